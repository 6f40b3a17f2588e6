//! `cargo xtask bench`: every table beside its peers, by criterion or as ratios.

use clap::Args;

use crate::shell::{Line, Shell};

/// Time every table, cache and protocol beside its peers
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// Print only the table of ratios to x86_64, taken round by round in one run, with confidence intervals
    #[arg(long)]
    summary: bool,
    /// Print the table of ratios as one JSON array
    #[arg(long, requires = "summary")]
    json: bool,
    /// Jobs to run, by parts of their names [default: all]
    #[arg(value_name = "JOB")]
    jobs: Vec<String>,
}

/// Runs it.
pub(crate) fn run(shell: &Shell, args: &BenchArgs) -> anyhow::Result<()> {
    let of =
        if args.summary { "bench -p tlbkit-benches --bench ratios --" } else { "bench -p tlbkit-benches --" };
    shell.run(&Line::new("cargo", of).with(&args.jobs).with(args.json.then_some("--json")))
}
