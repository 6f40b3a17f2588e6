//! Where things are.

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::Context;

use crate::misused;

/// Makes the workspace's root the working directory, wherever the command was given.
pub fn enter_root() -> anyhow::Result<()> {
    // As cargo runs it: work trees that share a target directory share its program.
    let own = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let root = Path::new(&own).ancestors().nth(2).context("xtask is no folder of a workspace")?;
    env::set_current_dir(root).with_context(|| format!("cannot enter {}", root.display()))
}

/// Returns where cargo builds.
pub fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from)
}

/// Checks that a file can be written, before anything is built for it. Leaves everything as it was.
///
/// # Errors
///
/// If it cannot, in one line that names the option by which the file was given.
pub fn can_write(option: &str, file: &Path) -> anyhow::Result<()> {
    let was_there = file.exists();
    let opened = fs::OpenOptions::new().append(true).create(true).open(file);
    let tried = opened.and_then(|_| if was_there { Ok(()) } else { fs::remove_file(file) });
    if let Err(error) = tried {
        misused!("{option} {} cannot be written: {error}", file.display());
    }
    Ok(())
}

/// Returns the folders of `crates` that a kernel embeds: those whose manifest has the category `no-std`.
pub fn kernel_folders() -> anyhow::Result<Vec<String>> {
    let mut folders = Vec::new();
    for entry in fs::read_dir("crates").context("cannot list crates")? {
        let entry = entry?;
        let manifest = fs::read_to_string(entry.path().join("Cargo.toml")).unwrap_or_default();
        if manifest.contains("\"no-std") {
            folders.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    folders.sort();
    Ok(folders)
}

/// Returns the package in a folder of `crates`.
pub fn package(folder: &str) -> String {
    if folder == "tlbkit" { folder.into() } else { format!("tlbkit-{folder}") }
}

/// Returns `-p` and the package for each folder of `crates`.
pub fn kernel_packages() -> anyhow::Result<Vec<String>> {
    let packages: Vec<_> = kernel_folders()?.iter().map(|folder| package(folder)).collect();
    Ok(chosen(&packages))
}

/// Returns `-p` and its name for each package.
pub fn chosen(packages: &[String]) -> Vec<String> {
    packages.iter().flat_map(|package| ["-p".to_owned(), package.clone()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_is_known_before() {
        let folder = env::temp_dir().join(format!("tlbkit-places-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (new, old) = (folder.join("new"), folder.join("old"));
        fs::write(&old, "kept").unwrap();
        for file in [&new, &old] {
            can_write("--picture", file).unwrap();
        }
        let (left, kept) = (new.exists(), fs::read_to_string(&old).unwrap());
        let refused = [can_write("--picture", &folder), can_write("--picture", &folder.join("no/such"))];
        fs::remove_dir_all(&folder).unwrap();
        assert!(!left && kept == "kept");
        for error in refused {
            let text = format!("{:#}", error.unwrap_err());
            assert!(text.starts_with("--picture ") && text.contains("cannot be written"), "{text}");
        }
    }
}
