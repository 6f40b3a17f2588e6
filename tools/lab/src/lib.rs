//! `tlblab`: the papers' experiments, run on the code that a kernel embeds.
//!
//! Each experiment whose rows another program needs is an [`Experiment`]: typed arguments, typed rows. The report calls them
//! so; [`main()`] is the program, which prints the same rows.
//!
//! Every command but `witness` prints a table for people, or under `--json` one array of rows and nothing else. Progress goes to
//! standard error. What the user got wrong is one line that says what to do, and exit code 2.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

mod cache;
mod capture;
mod cycles;
mod experiment;
pub mod explore;
pub mod fuzzing;
pub mod locks;
pub mod mach;
pub mod mapping;
pub mod model;
mod modes;
mod pages;
mod parallel;
mod progress;
pub mod refill;
mod rows;
pub mod shootdown;
pub mod spaces;
pub mod superpage;
mod sweep;
pub mod tables;
mod tlb;
mod trace;
mod witness;
mod workload;

pub use cycles::Cycles;
pub use experiment::{Experiment, Name, read};

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
    Adversary(superpage::Adversary),
    Capture(capture::CaptureArgs),
    Explore(explore::Explore),
    Locks(locks::Locks),
    Mach(mach::Mach),
    Mapping(mapping::Mapping),
    Model(model::Model),
    Pages(pages::PagesArgs),
    Pressure(superpage::Pressure),
    Refill(refill::RefillArgs),
    Spaces(spaces::Spaces),
    Sweep(sweep::Sweep),
    Shootdown(shootdown::Shootdown),
    Superpage(superpage::SuperpageArgs),
    Tables(tables::TablesArgs),
    Witness(witness::WitnessArgs),
}

/// Runs the command that the program's arguments say.
pub fn main() -> ExitCode {
    tlbkit_shell::output::end_when_unread();
    let Some(command) = std::env::args_os().nth(1) else {
        eprint!("{}", Cli::command().render_help());
        return ExitCode::from(2);
    };
    let _while_it_runs = progress::show(format!("tlblab {}", command.display()));
    let outcome = parse(std::env::args_os()).and_then(|cli| match cli.command {
        Command::Adversary(args) => args.run().map(|()| ExitCode::SUCCESS),
        Command::Capture(args) => capture::run(&args),
        Command::Explore(args) => explore::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Locks(args) => args.run().map(|()| ExitCode::SUCCESS),
        Command::Mach(args) => args.run().map(|()| ExitCode::SUCCESS),
        Command::Mapping(args) => args.run().map(|()| ExitCode::SUCCESS),
        Command::Model(args) => args.run().map(|()| ExitCode::SUCCESS),
        Command::Pages(args) => pages::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Pressure(args) => args.run().map(|()| ExitCode::SUCCESS),
        Command::Refill(args) => refill::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Spaces(args) => args.run_command().map(|()| ExitCode::SUCCESS),
        Command::Sweep(args) => args.run().map(|()| ExitCode::SUCCESS),
        Command::Shootdown(args) => shootdown::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Superpage(args) => superpage::run(&args),
        Command::Tables(args) => tables::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Witness(args) => witness::run(&args),
    });
    outcome.unwrap_or_else(|error| {
        eprintln!("tlblab: {error:#}");
        ExitCode::from(2)
    })
}

/// Reads the arguments, the program's name first.
///
/// # Errors
///
/// What is wrong with them, in one line: also an option that the chosen mode does not use.
fn parse(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> anyhow::Result<Cli> {
    let mut program = Cli::command();
    let given = program.try_get_matches_from_mut(words).map_err(one_line)?;
    modes::check(&program, &given)?;
    Cli::from_arg_matches(&given).map_err(one_line)
}

/// Makes one line of clap's paragraphs: what is wrong, and what may have been meant. Help and version are no errors: they
/// are printed, and that is all.
fn one_line(error: clap::Error) -> anyhow::Error {
    if !error.use_stderr() {
        error.exit();
    }
    let text = error.to_string();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let first = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
    let tip =
        text.lines().find_map(|line| line.trim().strip_prefix("tip: ").filter(|tip| tip.contains("similar")));
    let tip = tip.map(|tip| format!("; {}", words(tip))).unwrap_or_default();
    anyhow::anyhow!("{}{tip}; `tlblab help` says more", words(first))
}
