//! `cargo xtask miri`: tests of the unsafe code under an interpreter that knows undefined behaviour when it meets it.

use crate::shell::{Line, Shell};
use crate::tools;

/// The tests: small ones, for a step takes a hundred times as long. (`tlbkit-addr` forbids unsafe code.)
const TESTS: &str = "-p tlbkit-pagetable --lib --test slab";

/// Runs them.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    tools::toolchain(shell, tools::NIGHTLY, &["miri", "rust-src"])?;
    let test = Line::new("cargo", "+nightly miri test").with(TESTS.split(' '));
    // Proptest looks for its folder of failures, which is outside what Miri shows a program.
    shell.run(&test.set("MIRIFLAGS", "-Zmiri-disable-isolation"))
}
