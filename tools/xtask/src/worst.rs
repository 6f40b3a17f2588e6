//! `cargo xtask worst`: the most expensive of two million changes of tables that grow, and what a page takes at most.

use crate::bench;
use crate::shell::{Line, Shell};

/// Makes the changes several times in the release profile, for a minute, and prints a table.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    shell.run(&bench::as_kernels_are(Line::new("cargo", "run --release -p tlbkit-benches --example worst")))
}
