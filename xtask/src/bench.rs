//! `cargo xtask bench`: every table beside its peers, as ratios.

use clap::Args;

use crate::shell::{Line, Shell};

/// Time every table beside its peers, round by round in one run, as ratios
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// Jobs to run, by parts of their names [default: all]
    #[arg(value_name = "JOB", trailing_var_arg = true, allow_hyphen_values = true)]
    jobs: Vec<String>,
}

/// Runs it.
pub(crate) fn run(shell: &Shell, args: &BenchArgs) -> anyhow::Result<()> {
    shell.run(&Line::new("cargo", "bench -p tlbkit-benches --bench ratios --").with(&args.jobs))
}
