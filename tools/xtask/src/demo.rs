//! `cargo xtask demo`: every page table on a real program's trace.

use clap::Args;

use crate::shell::{Line, Shell};

/// Build the lab and compare every page table on the trace of a real program
#[derive(Args, Debug, Default)]
pub(crate) struct DemoArgs {
    /// Arguments for `tlblab tables`: names of tables, `--layout compact`, `--workload file`, `--json`, ...
    #[arg(value_name = "ARG", trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Runs it.
pub(crate) fn run(shell: &Shell, args: &DemoArgs) -> anyhow::Result<()> {
    shell.run(&Line::new("cargo", "run --release -p tlblab -- tables").with(&args.args))
}
