//! `cargo xtask sanitize`: the tests with threads under the address and the thread sanitizer.

use crate::ledger::Ledger;
use crate::shell::{Line, Shell};
use crate::{places, tools};

const TESTS: [&str; 4] = [
    "-p tlbkit-pagetable --test all threads::",
    "-p tlbkit-pagetable --test all slab::",
    "-p tlbkit-stlb --test all shared_stress::",
    "-p tlbkit-shootdown --test all threads::",
];

const HOST: &str = "x86_64-unknown-linux-gnu";

/// Runs them; goes on where it was interrupted.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    tools::toolchain(shell, tools::NIGHTLY, &["rust-src"])?;
    let mut ledger = Ledger::open("sanitize")?;
    for sanitizer in ["address", "thread"] {
        // What is built with a sanitizer, the standard library too, has a place of its own.
        let place = places::target().join(sanitizer);
        for tests in TESTS {
            let line = Line::new("cargo", "+nightly test -Zbuild-std --target").with([HOST]);
            let line = line.with(["--target-dir", &place.to_string_lossy()]).with(tests.split(' '));
            // The crates' own way of saying that this is the thread sanitizer; Rust's is not stable.
            let model = if sanitizer == "thread" { " --cfg tsan" } else { "" };
            let line = line.set("RUSTFLAGS", &format!("-Zsanitizer={sanitizer}{model}"));
            // A report is a backtrace.
            let line = line.set("CARGO_PROFILE_DEV_DEBUG", "line-tables-only");
            ledger.job(&line.to_string(), || shell.run(&line))?;
        }
    }
    Ok(())
}
