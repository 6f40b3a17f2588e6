//! `cargo xtask explore`: every shootdown algorithm on every kind of hardware, over all interleavings.

use clap::Args;
use tlbkit_shootdown::Algorithm;

use crate::ledger::Ledger;
use crate::shell::{Line, Shell};

/// Explore every shootdown algorithm over all interleavings of two CPUs, what each repair is for, and the driver
#[derive(Args, Debug)]
pub(crate) struct ExploreArgs {
    /// Of three CPUs: minutes for each algorithm. Goes on where it was interrupted
    #[arg(long)]
    full: bool,
}

/// Runs `tlblab explore`, which fails if any verdict is not the crate's own.
pub(crate) fn run(shell: &Shell, args: &ExploreArgs) -> anyhow::Result<()> {
    let cpus = if args.full { 3 } else { 2 };
    let names =
        Algorithm::ALL.map(Algorithm::name).into_iter().chain(["broadcast", "concurrent", "early", "swept"]);
    let pairings: Vec<_> = names.map(|name| format!("--cpus {cpus} --algorithm {name}")).collect();
    let bounds = if args.full { " --preemptions 3 --schedules 100000" } else { "" };
    let driver = ["", " --hazards"].map(|hazards| format!("--driver{hazards}{bounds}"));
    let mut ledger = Ledger::open("explore")?;
    let all = driver.iter().chain(&pairings).map(String::as_str);
    for what in ["--hazards", "--damages"].into_iter().chain(all) {
        let line = Line::new("cargo", "run --quiet --release -p tlblab -- explore").with(what.split(' '));
        ledger.job(&line.to_string(), || shell.run(&line))?;
    }
    Ok(())
}
