//! `cargo xtask mutants`: the program of the folder `mutants`, with what it needs installed.

use clap::Args;

use crate::shell::{Line, Shell};
use crate::tools;

/// Change every function in small ways, one at a time; the tests must notice 95 of 100. Goes on where it was
/// interrupted, with what no test has noticed so far
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct MutantsArgs {
    /// Arguments of the program: `--help` lists them
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Judges the mutants of the crates.
pub(crate) fn run(shell: &Shell, args: &MutantsArgs) -> anyhow::Result<()> {
    tools::cargo(shell, "mutants")?;
    tools::toolchain(shell, tools::NIGHTLY, &[])?;
    shell.run(&Line::new("cargo", "run --quiet -p tlbkit-mutants --").with(&args.args))
}
