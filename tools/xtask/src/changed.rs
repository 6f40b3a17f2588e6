//! What has changed since `cargo xtask test` last passed, and which packages that reaches.
//!
//! ```text
//!   green   the tree's number when all steps had passed, kept in the target directory
//!   files   what differs from it, what git does not know yet among it
//!   reach   the packages of those files, those whose tests read a page of `docs`, and all that depend on one of them
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::{bare, places};

/// What a change reaches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reach {
    /// Packages, of the workspace and of the folders that are workspaces of their own.
    packages: BTreeSet<String>,
}

impl Reach {
    /// Tells whether the change reaches one of these packages.
    pub(crate) fn any(&self, packages: &[String]) -> bool {
        packages.iter().any(|package| self.packages.contains(package))
    }

    /// Returns those of `packages` that the change reaches.
    pub(crate) fn of(&self, packages: Vec<String>) -> Vec<String> {
        packages.into_iter().filter(|package| self.packages.contains(package)).collect()
    }
}

/// A package: its folder, and the packages of the tree that it depends on, for its tests too.
#[derive(Debug)]
struct Package {
    folder: PathBuf,
    needs: BTreeSet<String>,
}

/// Returns what has changed since the last green run; `None` if there was none, or a file has changed that every package reads.
pub(crate) fn reach() -> anyhow::Result<Option<Reach>> {
    let Ok(green) = fs::read_to_string(note()) else { return Ok(None) };
    // A tree that git has thrown away is as good as none.
    let Ok(changed) = git(&["diff", "--name-only", green.trim(), &tree()?]) else { return Ok(None) };
    Ok(reached(&packages(&env::current_dir()?)?, changed.lines().map(Path::new), &readers()?))
}

/// Notes that all steps have passed on a tree.
pub(crate) fn note_green(tree: &str) -> anyhow::Result<()> {
    let note = note();
    fs::create_dir_all(note.parent().unwrap_or(Path::new(".")))?;
    fs::write(&note, tree).with_context(|| format!("cannot write {}", note.display()))
}

/// Returns git's number for the files as they are, those that it does not know yet among them.
pub(crate) fn tree() -> anyhow::Result<String> {
    let index = env::temp_dir().join(format!("tlbkit-index-{}", std::process::id()));
    let with = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).env("GIT_INDEX_FILE", &index).output();
        answer(output.context("cannot run git")?, arguments)
    };
    let number = with(&["read-tree", "HEAD"])
        .and_then(|_| with(&["add", "--all"]))
        .and_then(|_| with(&["write-tree"]));
    let _ = fs::remove_file(&index);
    Ok(number?.trim().to_owned())
}

fn note() -> PathBuf {
    places::target().join("test/green")
}

fn git(arguments: &[&str]) -> anyhow::Result<String> {
    answer(Command::new("git").args(arguments).output().context("cannot run git")?, arguments)
}

fn answer(output: std::process::Output, arguments: &[&str]) -> anyhow::Result<String> {
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git {}: {}", arguments.join(" "), said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the packages of the workspace.
pub(crate) fn workspace() -> anyhow::Result<Vec<String>> {
    Ok(described(&env::current_dir()?, "")?.into_iter().map(|(name, _)| name).collect())
}

/// Returns all packages of a tree.
fn packages(root: &Path) -> anyhow::Result<BTreeMap<String, Package>> {
    let mut all = described(root, "")?;
    for entry in fs::read_dir(root.join("examples")).context("cannot list examples")? {
        all.extend(described(root, &format!("examples/{}", entry?.file_name().to_string_lossy()))?);
    }
    all.extend(described(root, "fuzz")?);
    Ok(all.into_iter().collect())
}

/// Asks cargo for the packages of the workspace in a folder of the tree.
fn described(root: &Path, folder: &str) -> anyhow::Result<Vec<(String, Package)>> {
    let arguments = ["metadata", "--no-deps", "--format-version", "1", "--manifest-path"];
    let manifest = root.join(folder).join("Cargo.toml");
    let output = Command::new("cargo").args(arguments).arg(manifest).output().context("cannot run cargo")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo metadata of `{folder}`: {}", said.trim());
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let text = |value: &Value, key: &str| value[key].as_str().map(String::from);
    let package = |package: &Value| {
        let folder = PathBuf::from(text(package, "manifest_path")?);
        let folder = folder.parent()?.strip_prefix(root).ok()?.to_owned();
        let near = list(package, "dependencies").into_iter().filter(|need| !need["path"].is_null());
        let needs = near.filter_map(|need| text(&need, "name")).collect();
        Some((text(package, "name")?, Package { folder, needs }))
    };
    Ok(list(&metadata, "packages").iter().filter_map(package).collect())
}

/// Returns the pages that code reads, and the files that read them.
fn readers() -> anyhow::Result<Vec<(String, PathBuf)>> {
    let found = git(&["grep", "-oE", r"(docs/[a-z0-9_-]+|README|CONTRIBUTING)\.md", "--", "*.rs"])?;
    let pair = |line: &str| line.split_once(':').map(|(file, page)| (page.to_owned(), file.into()));
    // This package reads each page for the commands that it shows.
    let shown = bare::pages(Path::new("."))?.into_iter().map(|page| (page, file!().into()));
    Ok(found.lines().filter_map(pair).chain(shown).collect())
}

/// Returns the packages that a change of `files` reaches; `None` if that is all of them.
fn reached<'f>(
    packages: &BTreeMap<String, Package>,
    files: impl Iterator<Item = &'f Path>,
    readers: &[(String, PathBuf)],
) -> Option<Reach> {
    // The package in the innermost folder that the file is in.
    let owner = |file: &Path| {
        let inside = packages.iter().filter(|(_, package)| file.starts_with(&package.folder));
        inside.max_by_key(|(_, package)| package.folder.components().count()).map(|(name, _)| name.clone())
    };
    let mut reach = BTreeSet::new();
    for file in files {
        if let Some(name) = owner(file) {
            reach.insert(name);
        } else if file.extension().is_none_or(|extension| extension != "md") {
            return None;
        }
        let page = file.to_string_lossy();
        let reading = readers.iter().filter(|(read, _)| *read == page);
        reach.extend(reading.filter_map(|(_, reader)| owner(reader)));
    }
    loop {
        let depends = |package: &Package| !package.needs.is_disjoint(&reach);
        let more = packages.iter().filter(|(name, package)| !reach.contains(*name) && depends(package));
        let more: Vec<_> = more.map(|(name, _)| name.clone()).collect();
        if more.is_empty() {
            return Some(Reach { packages: reach });
        }
        reach.extend(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree_of(packages: &[(&str, &str, &[&str])]) -> BTreeMap<String, Package> {
        let package = |&(name, folder, needs): &(&str, &str, &[&str])| {
            let needs = needs.iter().map(|need| (*need).to_owned()).collect();
            (name.to_owned(), Package { folder: folder.into(), needs })
        };
        packages.iter().map(package).collect()
    }

    #[test]
    fn a_change_reaches_what_depends_on_it_and_what_reads_it() {
        let packages = tree_of(&[
            ("addr", "crates/addr", &[]),
            ("table", "crates/table", &["addr"]),
            ("cache", "crates/cache", &["addr"]),
            ("plugin", "tools/boot/plugin", &[]),
            ("boot", "tools/boot", &["table"]),
        ]);
        let readers = [("docs/table.md".to_owned(), "crates/table/tests/page.rs".into())];
        let names = |files: &[&str]| {
            let reach = reached(&packages, files.iter().map(Path::new), &readers);
            reach.map(|reach| reach.packages.into_iter().collect::<Vec<_>>().join(" "))
        };
        assert_eq!(names(&["crates/addr/src/lib.rs"]).as_deref(), Some("addr boot cache table"));
        assert_eq!(names(&["crates/table/src/a/b.rs"]).as_deref(), Some("boot table"));
        assert_eq!(names(&["tools/boot/plugin/src/lib.rs"]).as_deref(), Some("plugin"));
        assert_eq!(names(&["docs/table.md"]).as_deref(), Some("boot table"));
        assert_eq!(names(&["docs/other.md"]).as_deref(), Some(""));
        assert_eq!(names(&["Cargo.lock"]), None, "every package may read it");
    }

    #[test]
    fn every_package_of_the_tree_is_known() {
        let root = fs::canonicalize(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).unwrap();
        let packages = packages(&root).unwrap();
        for (name, folder, need) in [
            ("tlbkit", "crates/tlbkit", "tlbkit-pagetable"),
            ("tlbkit-kernel", "examples/kernel", "tlbkit"),
            ("tlblab", "tools/lab", "tlbkit-shootdown"),
        ] {
            let package = &packages[name];
            assert!(package.folder == Path::new(folder) && package.needs.contains(need), "{package:?}");
        }
        assert_eq!(tree().unwrap().len(), 40);
    }
}
