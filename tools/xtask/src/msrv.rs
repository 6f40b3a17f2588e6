//! `cargo xtask msrv`: the crates under the oldest Rust that they promise. It promises nothing for their tests, which only this
//! workspace runs.

use crate::shell::{Line, Shell};
use crate::{places, tools};

/// Checks them.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    tools::toolchain(shell, tools::MSRV, &[])?;
    let check = Line::new("cargo", "").with([format!("+{}", tools::MSRV)]).with(["check"]);
    shell.run(&check.with(places::kernel_packages()?))
}
