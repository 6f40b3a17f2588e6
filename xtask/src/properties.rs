//! `cargo xtask properties`: the tests again and again, each time with other random cases.

use clap::Args;

use crate::ledger::Ledger;
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

/// Returns the command that runs all tests with the cases that a seed draws. The benches' own run every job twice.
fn tests(seed: u64) -> Line {
    let line = Line::new("cargo", "test --workspace --lib --bins --tests --examples");
    line.set("PROPTEST_RNG_SEED", &seed.to_string())
}

/// Runs the tests with the gate's cases.
pub(crate) fn gate(shell: &Shell) -> anyhow::Result<()> {
    shell.run(&tests(GATE))
}

/// Runs the rounds.
pub(crate) fn run(shell: &Shell, args: &PropertiesArgs) -> anyhow::Result<()> {
    let mut ledger = Ledger::open("properties")?;
    for round in 1..=args.rounds {
        let line = tests(GATE + round);
        ledger.job(&line.to_string(), || shell.run(&line))?;
    }
    Ok(())
}
