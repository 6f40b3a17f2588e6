//! `tlblab`: the papers' experiments, run on the code that a kernel embeds.
//!
//! Every command prints a table for people, or under `--json` one array of rows and nothing else. Progress goes to
//! standard error. What the user got wrong is one line that says what to do, and exit code 2.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod capture;
mod explore;
mod mach;
mod model;
mod parallel;
mod refill;
mod rows;
mod shootdown;
mod superpage;
mod sweep;
mod tables;
mod tlb;
mod trace;
mod workload;

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
    Explore(explore::Explore),
    Mach(mach::Mach),
    Model(model::Model),
    Sweep(sweep::Sweep),
    Shootdown(shootdown::Shootdown),
    Superpage(superpage::SuperpageArgs),
    Refill(refill::RefillArgs),
    Tables(tables::TablesArgs),
}

fn main() -> ExitCode {
    let outcome = Cli::try_parse().map_err(one_line).and_then(|cli| match cli.command {
        Command::Capture(args) => capture::run(&args),
        Command::Explore(args) => explore::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Mach(args) => args.run().map(|()| ExitCode::SUCCESS),
        Command::Model(args) => args.run().map(|()| ExitCode::SUCCESS),
        Command::Sweep(args) => args.run().map(|()| ExitCode::SUCCESS),
        Command::Shootdown(args) => shootdown::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Superpage(args) => superpage::run(&args),
        Command::Refill(args) => refill::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Tables(args) => tables::run(&args).map(|()| ExitCode::SUCCESS),
    });
    outcome.unwrap_or_else(|error| {
        eprintln!("tlblab: {error:#}");
        ExitCode::from(2)
    })
}

/// Makes one line of clap's paragraphs. Help and version are no errors: they are printed, and that is all.
fn one_line(error: clap::Error) -> anyhow::Error {
    if !error.use_stderr() {
        error.exit();
    }
    let text = error.to_string();
    let first = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
    let words: Vec<_> = first.split_whitespace().collect();
    anyhow::anyhow!("{}; `tlblab help` says more", words.join(" "))
}
