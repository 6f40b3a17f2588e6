//! `cargo xtask no-std`: the crates on machines that have nothing but `core`.

use crate::shell::{Line, Shell};
use crate::{places, tools};

/// A 32-bit microcontroller: no `std` exists for it, and no atomic of 64 bits. And a 32-bit machine that has those, so
/// that the formats of 64-bit words are compiled where an address is narrower.
const BARE: [&str; 2] = ["thumbv7em-none-eabi", "i686-unknown-linux-gnu"];

/// Checks them.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    tools::parts(shell, &[], &BARE)?;
    for target in BARE {
        let check = Line::new("cargo", "check --target").with([target]).with(places::kernel_packages()?);
        shell.run(&check.set("RUSTFLAGS", "-D warnings"))?;
    }
    Ok(())
}
