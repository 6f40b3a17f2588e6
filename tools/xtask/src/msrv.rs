//! `cargo xtask msrv`: the crates and their tests under the oldest Rust that they promise.

use crate::shell::{Line, Shell};
use crate::{places, tools};

/// Checks them.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    tools::toolchain(shell, tools::MSRV, &[])?;
    let check = Line::new("cargo", "").with([format!("+{}", tools::MSRV)]).with(["check", "--all-targets"]);
    shell.run(&check.with(places::kernel_packages()?))
}
