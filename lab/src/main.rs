//! `tlblab`: the papers' experiments, run on the code that a kernel embeds.
//!
//! Every command prints a table for people, or under `--json` one array of rows and nothing else. Progress goes to
//! standard error. What the user got wrong is one line that says what to do, and exit code 2.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod capture;
mod rows;
mod superpage;
#[allow(dead_code, unused_imports)]
mod trace;

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
    Capture(capture::CaptureArgs),
    Superpage(superpage::SuperpageArgs),
}

fn main() -> ExitCode {
    // clap's own exit code for a bad argument is 2 as well.
    let outcome = match Cli::parse().command {
        Command::Capture(args) => capture::run(&args),
        Command::Superpage(args) => superpage::run(&args),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("tlblab: {error:#}");
        ExitCode::from(2)
    })
}
