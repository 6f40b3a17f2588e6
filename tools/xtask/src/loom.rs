//! `cargo xtask loom`: the tests that loom runs in every interleaving.

use crate::places;
use crate::shell::{Line, Shell};

/// Those that have such tests.
pub(crate) const PACKAGES: [&str; 5] =
    ["tlbkit", "tlbkit-conformance", "tlbkit-pagetable", "tlbkit-shootdown", "tlbkit-stlb"];

/// Runs each crate's test targets that have loom in their name, but for the scenes that take minutes and have their stores in the
/// order of another's.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    scenes(shell, "loom", CFG)
}

/// Runs all of their scenes.
pub(crate) fn long(shell: &Shell) -> anyhow::Result<()> {
    scenes(shell, "loom-full", &format!("{CFG} --cfg tlbkit_full"))
}

/// Runs the scenes that are compiled with these flags.
fn scenes(shell: &Shell, place: &str, flags: &str) -> anyhow::Result<()> {
    // Loom's atomics are other types, so what is built with them has a place of its own.
    let target = places::target().join(place);
    let test = Line::new("cargo", "test --target-dir").with([target.to_string_lossy()]);
    // Where the processor runs a table's tests for seconds, loom does for minutes.
    let test = test.with(["--config", "profile.dev.package.tlbkit-pagetable.opt-level=1"]);
    // Each test says how many interleavings there were.
    let test = with_loom(test, flags).with(places::chosen(&PACKAGES.map(String::from)));
    shell.run(&test.with(["--test", "*loom*", "--", "--show-output"]))
}

/// Returns the command line of `cargo test` with loom's atomics in the packages that it builds.
pub(crate) fn explored(test: Line) -> Line {
    with_loom(test, CFG)
}

/// What makes loom's atomics those of the packages, together with the feature.
const CFG: &str = "--cfg tlbkit_loom";

fn with_loom(test: Line, flags: &str) -> Line {
    test.set("RUSTFLAGS", flags).with(["--features", "loom"])
}
