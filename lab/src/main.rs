//! `tlblab`: the papers' experiments, run on the code that a kernel embeds.
//!
//! Every command prints a table for people, or under `--json` one array of rows and nothing else. Progress goes to
//! standard error. What the user got wrong is one line that says what to do, and exit code 2.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod explore;
mod parallel;
mod rows;
mod shootdown;

/// The papers' experiments on page tables, TLBs, superpages and shootdowns.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// One experiment each; its module has its arguments and a `run`.
#[derive(Debug, Subcommand)]
enum Command {
    Explore(explore::Explore),
    Shootdown(shootdown::Shootdown),
}

fn main() -> ExitCode {
    // clap's own exit code for a bad argument is 2 as well.
    let outcome: anyhow::Result<()> = match Cli::parse().command {
        Command::Explore(args) => explore::run(&args),
        Command::Shootdown(args) => shootdown::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tlblab: {error:#}");
            ExitCode::from(2)
        }
    }
}
