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
