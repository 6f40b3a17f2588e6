//! `cargo xtask release`: is everything ready to be published? Publishes nothing.

use std::process::Command;

use anyhow::Context;

use crate::shell::{Line, Shell};
use crate::{doc, msrv, tools};

/// Checks documentation, oldest Rust, packages, licences and advisories, and what has changed since the last release.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    doc::run(shell)?;
    msrv::run(shell)?;
    // In the order of their dependencies, each built from what would be uploaded.
    shell.run(&Line::new("cargo", "publish --dry-run --workspace"))?;
    tools::cargo(shell, "deny")?;
    shell.run(&Line::new("cargo", "deny --all-features check"))?;
    match last_release()? {
        Some(tag) => {
            tools::cargo(shell, "semver-checks")?;
            shell.run(&Line::new("cargo", "semver-checks --workspace --baseline-rev").with([tag]))
        }
        None => {
            println!("nothing has been released yet, so there is nothing to be compatible with");
            Ok(())
        }
    }
}

/// Returns the tag of the last release: `v1.2.3`.
fn last_release() -> anyhow::Result<Option<String>> {
    let mut git = Command::new("git");
    let output = git.args(["describe", "--tags", "--match", "v[0-9]*", "--abbrev=0"]).output();
    let output = output.context("cannot run git")?;
    Ok(output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned()))
}
