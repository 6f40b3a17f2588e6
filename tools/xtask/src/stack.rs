//! `cargo xtask stack`: how many bytes of stack each operation of each table takes, on inputs that an adversary chooses.

use crate::bench;
use crate::shell::{Line, Shell};

/// Measures it as a kernel builds the code, and fails above 2 KiB.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    shell.run(&bench::as_kernels_are(Line::new("cargo", "run --release -p tlbkit-benches --example stack")))
}
