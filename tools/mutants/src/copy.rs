//! A copy of the workspace in which a crate's sources can be changed.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// The package that says which mutant is on.
const SWITCH: &str = include_str!("switch.rs");
const SWITCH_MANIFEST: &str = "[package]\nname = \"tlbkit-mutant\"\nedition = \"2024\"\n";

/// A copy of the workspace.
#[derive(Debug)]
pub(crate) struct Copy {
    pub(crate) root: PathBuf,
    /// A number for the contents of the crate's own sources.
    pub(crate) sources: u64,
    /// A number for the contents of all that its tests are built from.
    pub(crate) all: u64,
}

/// Copies the workspace to a folder; the crate in `crates/folder` there depends on the package of the switch.
pub(crate) fn copy(root: PathBuf, folder: &str) -> anyhow::Result<Copy> {
    let mut copy = Copy { root, sources: 0, all: 0 };
    let output = Command::new("git")
        .args("ls-files -z --cached --others --exclude-standard".split(' '))
        .output()
        .context("cannot run git")?;
    if !output.status.success() {
        bail!("`git ls-files` failed ({})", output.status);
    }
    let (mut sources, mut all) = (DefaultHasher::new(), DefaultHasher::new());
    let mut files = Vec::new();
    let own = format!("crates/{folder}/src/");
    for path in String::from_utf8(output.stdout)?.split_terminator('\0') {
        // One that is deleted is listed, too.
        let Ok(mut text) = fs::read(path) else { continue };
        if path.starts_with(&own) {
            (path, &text).hash(&mut sources);
        }
        if ["crates/", "Cargo."].iter().any(|begin| path.starts_with(begin)) {
            (path, &text).hash(&mut all);
        }
        if path == format!("crates/{folder}/Cargo.toml") {
            let manifest = String::from_utf8(text)?;
            let dependency = "[dependencies.tlbkit-mutant]\npath = \"../mutant\"\n\n";
            text = manifest.replacen("[lints]\n", &(dependency.to_owned() + "[lints]\n"), 1).into_bytes();
        }
        files.push((path.to_owned(), text));
    }
    files.push(("crates/mutant/Cargo.toml".into(), SWITCH_MANIFEST.into()));
    files.push(("crates/mutant/src/lib.rs".into(), SWITCH.into()));
    (copy.sources, copy.all) = (sources.finish(), all.finish());
    let mark = copy.root.join(format!(".copied-{:016x}", copy.all));
    if !mark.exists() {
        if copy.root.exists() {
            fs::remove_dir_all(&copy.root)?;
        }
        for (path, text) in files {
            write(&copy.root.join(path), &text)?;
        }
        fs::write(mark, "")?;
    }
    Ok(copy)
}

/// Writes a file, unless it says so already: what is not written need not be built.
pub(crate) fn write(path: &Path, text: &[u8]) -> anyhow::Result<()> {
    if fs::read(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let folder = path.parent().context("a file is in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
