//! What a step needs: installed if it is missing, or else one line that says what to install.

use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::shell::{Line, Shell};

/// The oldest Rust that the crates promise to build with: the manifest's.
pub const MSRV: &str = concat!(env!("CARGO_PKG_RUST_VERSION"), ".0");
/// The toolchain of the tools that look deeper than the stable ones.
pub const NIGHTLY: &str = "nightly";

/// Sees to components and targets of the toolchain that is in use.
pub fn parts(shell: &Shell, components: &[&str], targets: &[&str]) -> anyhow::Result<()> {
    parts_of(shell, &[], components, targets)
}

/// Sees to a toolchain with these components.
pub fn toolchain(shell: &Shell, name: &str, components: &[&str]) -> anyhow::Result<()> {
    if !succeeds(Command::new("rustup").args(["run", name, "rustc", "--version"])) {
        asked("show active-toolchain")?;
        shell
            .run(&Line::new("rustup", "toolchain install --profile minimal --no-self-update").with([name]))?;
    }
    parts_of(shell, &["--toolchain", name], components, &[])
}

fn parts_of(shell: &Shell, of: &[&str], components: &[&str], targets: &[&str]) -> anyhow::Result<()> {
    for (kind, wanted) in [("component", components), ("target", targets)] {
        let installed = asked(&format!("{kind} list --installed {}", of.join(" ")))?;
        for &part in wanted {
            // A component's name is followed by its machine's.
            if !installed.lines().any(|line| line.starts_with(part)) {
                shell.run(&Line::new("rustup", kind).with(["add"]).with(of.iter().copied()).with([part]))?;
            }
        }
    }
    Ok(())
}

/// Returns what rustup answers.
fn asked(question: &str) -> anyhow::Result<String> {
    let line = Line::new("rustup", question);
    let output = line.command().stderr(Stdio::inherit()).output();
    let output = output.context("rustup is missing: install it, the manager of Rust's toolchains")?;
    if !output.status.success() {
        bail!("failed ({}); to repeat it: {line}", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Sees to a program of Debian's.
pub fn program(shell: &Shell, name: &str, package: &str) -> anyhow::Result<()> {
    if succeeds(Command::new(name).arg("--version")) {
        return Ok(());
    }
    if !succeeds(Command::new("sh").args(["-c", "test $(id -u) = 0 && command -v apt-get"])) {
        bail!("{name} is missing: install it, on Debian by `sudo apt-get install {package}`");
    }
    // A new machine has no lists of packages. `apt-cache show` would take `g++` for a pattern, which others match.
    let listed = format!("apt-cache pkgnames | grep --quiet --fixed-strings --line-regexp {package}");
    if !succeeds(Command::new("sh").args(["-c", &listed])) {
        shell.run(&Line::new("apt-get", "update"))?;
    }
    shell.run(&Line::new("apt-get", "install --yes --no-install-recommends").with([package]))
}

/// Sees to a subcommand of cargo that is a package of its own.
pub fn cargo(shell: &Shell, subcommand: &str) -> anyhow::Result<()> {
    if succeeds(Command::new("cargo").args([subcommand, "--version"])) {
        return Ok(());
    }
    shell.run(&Line::new("cargo", "install --locked").with([format!("cargo-{subcommand}")]))
}

fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
