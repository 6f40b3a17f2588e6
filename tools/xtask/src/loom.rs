//! `cargo xtask loom`: the tests that loom runs in every interleaving.

use crate::places;
use crate::shell::{Line, Shell};

/// Those that have such tests.
pub(crate) const PACKAGES: [&str; 5] =
    ["tlbkit", "tlbkit-conformance", "tlbkit-pagetable", "tlbkit-shootdown", "tlbkit-stlb"];

/// Runs each crate's test targets that have loom in their name.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    // Loom's atomics are other types, so what is built with them has a place of its own.
    let target = places::target().join("loom");
    let test = Line::new("cargo", "test --target-dir").with([target.to_string_lossy()]);
    // Where the processor runs a table's tests for seconds, loom does for minutes.
    let test = test.with(["--config", "profile.dev.package.tlbkit-pagetable.opt-level=1"]);
    // Each test says how many interleavings there were.
    let test = explored(test).with(places::chosen(&PACKAGES.map(String::from)));
    shell.run(&test.with(["--test", "*loom*", "--", "--show-output"]))
}

/// Returns the command line of `cargo test` with loom's atomics in the packages that it builds.
pub(crate) fn explored(test: Line) -> Line {
    test.set("RUSTFLAGS", "--cfg tlbkit_loom").with(["--features", "loom"])
}
