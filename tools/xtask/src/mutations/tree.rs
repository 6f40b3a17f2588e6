//! A copy of the tree, to change lines of: what one works on is never changed.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::places;

/// The copy, and places beside it to build in.
pub(super) struct Tree {
    place: PathBuf,
}

impl Tree {
    /// Copies what git knows of, and what is new.
    pub(super) fn copy() -> anyhow::Result<Self> {
        let tree = Self { place: std::path::absolute(places::target())?.join("mutations") };
        let listed = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .output()
            .context("cannot run git")?;
        let listed = String::from_utf8(listed.stdout)?;
        let names: HashSet<_> = listed.split_terminator('\0').map(Path::new).collect();
        remove_others(&tree.root(), Path::new(""), &names)?;
        for name in names {
            let to = tree.root().join(name);
            // What was deleted, and not yet committed.
            let Ok(new) = fs::read(name) else { continue };
            // What is the same keeps its time, by which cargo goes.
            if fs::read(&to).is_ok_and(|old| old == new) {
                continue;
            }
            if let Some(folder) = to.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::write(&to, new)?;
        }
        Ok(tree)
    }

    pub(super) fn root(&self) -> PathBuf {
        self.place.join("tree")
    }

    /// A folder for what is built from the copy.
    pub(super) fn build(&self, name: &str) -> PathBuf {
        self.place.join(name)
    }

    /// Leaves of a package's test program, in the copy, one module and what it needs: the whole takes minutes to compile.
    pub(super) fn keep_tests(&self, package: &str, module: &str) -> anyhow::Result<()> {
        let folder = Path::new("crates").join(package.trim_start_matches("tlbkit-")).join("tests/all");
        let whole = read(&folder.join("main.rs"))?;
        let name = |line: &str| line.strip_prefix("mod ")?.strip_suffix(';').map(str::to_owned);
        let all: Vec<_> = whole.lines().filter_map(name).collect();
        let macros = whole.split_once("#[macro_use]\nmod ").and_then(|(_, rest)| rest.split_once(';'));
        let from = [module, macros.map_or(module, |(name, _)| name)];
        let needed = needed(&folder, &all.iter().map(String::as_str).collect::<Vec<_>>(), from)?;
        let kept = whole.lines().filter(|line| name(line).is_none_or(|name| needed.contains(&name)));
        let kept: String = kept.flat_map(|line| [line, "\n"]).collect();
        let path = self.root().join(folder).join("main.rs");
        if read(&path)? != kept {
            fs::write(path, kept)?;
        }
        Ok(())
    }

    /// Does something while a file of the copy has one of its lines changed.
    pub(super) fn with<T>(
        &self,
        file: &str,
        change: &Change,
        action: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let path = self.root().join(file);
        let text = read(&path)?;
        let changed = change.apply(file, &text)?;
        fs::write(&path, changed)?;
        let outcome = action();
        fs::write(&path, text)?;
        outcome
    }
}

/// Returns the modules `from` of a folder and, of all that it has, those that one of these names.
fn needed(folder: &Path, all: &[&str], from: [&str; 2]) -> anyhow::Result<HashSet<String>> {
    let (mut needed, mut left) = (HashSet::new(), from.to_vec());
    while let Some(module) = left.pop() {
        if !all.contains(&module) || !needed.insert(module.to_owned()) {
            continue;
        }
        let mut text = fs::read_to_string(folder.join(module).with_extension("rs")).unwrap_or_default();
        for file in fs::read_dir(folder.join(module)).into_iter().flatten() {
            text += &read(&file?.path())?;
        }
        left.extend(all.iter().filter(|other| text.contains(&format!("crate::{other}"))));
    }
    Ok(needed)
}

/// Removes the files below a folder of the copy that are not among `names`: what was there when it was last made, and has
/// gone since.
fn remove_others(root: &Path, folder: &Path, names: &HashSet<&Path>) -> anyhow::Result<()> {
    let Ok(entries) = fs::read_dir(root.join(folder)) else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        let name = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            remove_others(root, &name, names)?;
        } else if !names.contains(name.as_path()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The first `line` below `after` becomes `instead`.
pub(super) struct Change {
    pub(super) after: &'static str,
    pub(super) line: &'static str,
    pub(super) instead: &'static str,
}

impl Change {
    /// Returns the text of a file with the change.
    ///
    /// # Errors
    ///
    /// If the line is not there: the file has changed, and the list of mutations must follow.
    pub(super) fn apply(&self, file: &str, text: &str) -> anyhow::Result<String> {
        let Self { after, line, instead } = self;
        let from = text.find(after).with_context(|| format!("{file} has no `{after}`"))?;
        let at =
            text[from..].find(line).with_context(|| format!("{file} has no `{line}` below `{after}`"))?;
        let (before, rest) = text.split_at(from + at);
        Ok(format!("{before}{instead}{}", &rest[line.len()..]))
    }
}

pub(super) fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
