//! `cargo xtask miri`: tests of the unsafe code under an interpreter that knows undefined behaviour when it meets it.

use crate::shell::{Line, Shell};
use crate::tools;

/// The tests: small ones, for a step takes a hundred times as long.
const TESTS: [&str; 2] = ["-p tlbkit-addr --lib --tests", "-p tlbkit-pagetable --lib"];

/// Runs them.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    tools::toolchain(shell, tools::NIGHTLY, &["miri", "rust-src"])?;
    for tests in TESTS {
        let test = Line::new("cargo", "+nightly miri test").with(tests.split(' '));
        // Proptest looks for its folder of failures, which is outside what Miri shows a program.
        shell.run(&test.set("MIRIFLAGS", "-Zmiri-disable-isolation"))?;
    }
    Ok(())
}
