//! `cargo xtask loom`: the tests that loom runs in every interleaving.

use crate::places;
use crate::shell::{Line, Shell};

/// Runs each crate's test targets that have loom in their name.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    // Loom's atomics are other types, so what is built with them has a place of its own.
    let target = places::target().join("loom");
    let test = Line::new("cargo", "test --target-dir").with([target.to_string_lossy()]);
    // Where the processor runs a table's tests for seconds, loom does for minutes.
    let test = test.with(["--config", "profile.dev.package.tlbkit-pagetable.opt-level=1"]);
    // Each test says how many interleavings there were.
    let test = explored(test).with(places::kernel_packages()?).with(["-p", "tlbkit-conformance"]);
    shell.run(&test.with(["--test", "*loom*", "--", "--show-output"]))
}

/// Returns the command line of `cargo test` with loom's atomics in the packages that it builds.
pub(crate) fn explored(test: Line) -> Line {
    test.set("RUSTFLAGS", "--cfg tlbkit_loom").with(["--features", "loom"])
}
