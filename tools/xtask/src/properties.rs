//! `cargo xtask properties`: the tests again and again, each time with other random cases.

use clap::Args;

use crate::ledger::Ledger;
use crate::places;
use crate::shell::{Line, Shell};

/// Run every test in several rounds, each with random cases of its own; the gate draws the same ones every time
#[derive(Args, Debug)]
pub(crate) struct PropertiesArgs {
    /// How many rounds; goes on where it was interrupted
    #[arg(long, default_value_t = 10, value_name = "N")]
    rounds: u64,
}

/// The seed of the gate: the same on every run, so that an unchanged tree passes again.
pub(crate) const GATE: u64 = 0;

/// Returns the command that runs all tests of these packages with the cases that a seed draws. The benches' own run every job twice.
fn tests(packages: &[String], seed: u64) -> Line {
    let line = Line::new("cargo", "test --lib --bins --tests").with(packages.iter().cloned());
    line.set("PROPTEST_RNG_SEED", &seed.to_string())
}

/// All packages.
fn all() -> [String; 1] {
    ["--workspace".into()]
}

/// Runs the tests with the gate's cases.
pub(crate) fn gate(shell: &Shell) -> anyhow::Result<()> {
    shell.run(&tests(&all(), GATE))?;
    shell.run(&Line::new("cargo", "test -p tlbkit --features many-cpus --test many_cpus"))
}

/// Runs those of these packages.
pub(crate) fn gate_of(shell: &Shell, packages: &[String]) -> anyhow::Result<()> {
    shell.run(&tests(&places::chosen(packages), GATE))
}

/// Runs all tests, those among them that the gate leaves out because they take minutes.
pub(crate) fn long(shell: &Shell) -> anyhow::Result<()> {
    // Another flag is another build.
    let place = places::target().join("full");
    shell.run(
        &tests(&all(), GATE)
            .with(["--target-dir", &place.to_string_lossy()])
            .set("RUSTFLAGS", "--cfg tlbkit_full"),
    )
}

/// Runs the rounds.
pub(crate) fn run(shell: &Shell, args: &PropertiesArgs) -> anyhow::Result<()> {
    let mut ledger = Ledger::open("properties")?;
    for round in 1..=args.rounds {
        let line = tests(&all(), GATE + round).set("RUSTFLAGS", "--cfg tlbkit_full");
        ledger.job(&line.to_string(), || shell.run(&line))?;
    }
    Ok(())
}
