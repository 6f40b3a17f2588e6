//! `cargo xtask support`: the tables of `docs/support.md` that say what formats and machines can do, made from the code.
//!
//! The test that makes them compares them, too, so that the gate sees when they are stale.

use crate::shell::{Line, Shell};

/// Lets the test write what it would compare.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    let test = Line::new("cargo", "test --quiet --package tlbkit --test all support");
    shell.run(&test.set("TLBKIT_WRITE_SUPPORT", "1"))
}
