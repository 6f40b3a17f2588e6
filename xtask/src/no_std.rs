//! `cargo xtask no-std`: the crates on a machine that has nothing but `core`.

use crate::shell::{Line, Shell};
use crate::{places, tools};

/// A 32-bit microcontroller: no `std` exists for it, and no atomic of 64 bits.
const BARE: &str = "thumbv7em-none-eabi";

/// Checks them.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    tools::parts(shell, &[], &[BARE])?;
    let check = Line::new("cargo", "check --target").with([BARE]).with(places::kernel_packages()?);
    shell.run(&check.set("RUSTFLAGS", "-D warnings"))
}
