//! The project's one front door.
//!
//! ```text
//! main ── a module per command ──┬── tlbkit_boot   kernels in QEMU: `boot`, `judge`, `witness`
//!                                └── tlbkit_shell  a command line, run for people or for `test`; what a step needs
//! ```
//!
//! `test` runs the steps that the gate runs; most of them are also commands of their own.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use tlbkit_boot::{self as boot, judge};
use tlbkit_shell::{self as shell, Usage, ledger, misused, near, places, tools};

mod bare;
mod bench;
mod bookkeeping;
mod changed;
mod check;
#[cfg(test)]
mod contributing;
mod cost;
mod demo;
mod doc;
mod explore;
mod fuzz;
mod instructions;
mod locks;
mod loom;
mod miri;
mod msrv;
mod mutants;
mod mutations;
mod no_std;
mod portability;
mod properties;
mod reach;
mod release;
mod report;
mod sanitize;
mod stack;
mod support;
mod test;
mod weight;
mod worst;

/// Everything one does with tlbkit
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::DemoArgs),
    Boot(boot::BootArgs),
    Witness(boot::verdicts::WitnessArgs),
    Test(test::TestArgs),
    Properties(properties::PropertiesArgs),
    /// Check the crates with the oldest Rust they promise
    Msrv,
    /// Check the crates for a bare 32-bit machine: no std, no alloc, no 64-bit atomics
    NoStd,
    Fuzz(fuzz::FuzzArgs),
    /// Let the MMUs of RISC-V, AArch64 and x86-64 processors judge what lookup says, in QEMU
    Judge,
    Explore(explore::ExploreArgs),
    /// Explore walkers beside a writer in every interleaving
    Loom,
    /// Check that a crate that depends on one of ours locks only the packages that it builds
    Locks,
    Miri(miri::MiriArgs),
    /// Run the tests with threads under the address and the thread sanitizer
    Sanitize,
    Mutations(mutations::MutationsArgs),
    Mutants(mutants::MutantsArgs),
    /// Build for every machine: code sizes, and no panic, heap or float in the hit paths
    Portability,
    /// Is everything ready to be published? Packages, licences, advisories, compatibility
    Release,
    /// Build the documentation; any warning is an error
    Doc,
    Bare(bare::BareArgs),
    Bench(bench::BenchArgs),
    Cost(cost::CostArgs),
    Instructions(instructions::InstructionsArgs),
    /// Time two million changes of the tables that grow: the worst of them, and the most bytes a page
    Worst,
    /// Measure the stack that each operation of each table takes; more than 2 KiB is an error
    Stack,
    /// Write the tables of docs/support.md that the code makes; the tests compare them
    Support,
    Report(report::ReportArgs),
    Bookkeeping(bookkeeping::BookkeepingArgs),
    Weight(weight::WeightArgs),
}

/// Reads the arguments, the program's name first. Help and version are printed, and that is all.
fn parse(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> anyhow::Result<Cli> {
    Cli::try_parse_from(words).map_err(|error| {
        if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            error.exit();
        }
        Usage::of(one_line(&error.to_string()))
    })
}

/// Makes one line of clap's paragraphs: what is wrong, and what may have been meant.
fn one_line(text: &str) -> String {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let first = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
    // Of an option that is a switch, and has no value to be one more of.
    let first = first.replace("; no more were expected", ", which takes no value");
    let tip =
        text.lines().find_map(|line| line.trim().strip_prefix("tip: ").filter(|tip| tip.contains("similar")));
    let tip = tip.map(|tip| format!("; {}", words(tip))).unwrap_or_default();
    // The usage line names the command, if one was recognized.
    let command = text.lines().find_map(|line| line.trim().strip_prefix("Usage: cargo xtask "));
    let command = command.and_then(|usage| usage.split_whitespace().next());
    let command = command.filter(|word| word.starts_with(|first: char| first.is_ascii_lowercase()));
    let help = command.map_or("help".to_owned(), |command| format!("help {command}"));
    format!("{}{tip}; `cargo xtask {help}` says more", words(&first))
}

fn main() -> ExitCode {
    shell::output::end_when_unread();
    let shell = shell::Shell::Plain;
    let outcome = places::enter_root().and_then(|()| match parse(std::env::args_os())?.command {
        Command::Demo(args) => demo::run(&shell, &args),
        Command::Boot(args) => boot::run(&args),
        Command::Witness(args) => boot::verdicts::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Properties(args) => properties::run(&shell, &args),
        Command::Msrv => msrv::run(&shell),
        Command::NoStd => no_std::run(&shell),
        Command::Fuzz(args) => fuzz::run(&shell, &args),
        Command::Judge => judge::run(&shell),
        Command::Explore(args) => explore::run(&shell, &args),
        Command::Loom => loom::run(&shell),
        Command::Locks => locks::run(&shell),
        Command::Miri(args) => miri::run(&shell, &args),
        Command::Sanitize => sanitize::run(&shell),
        Command::Mutations(args) => mutations::run(&args),
        Command::Mutants(args) => mutants::run(&shell, &args),
        Command::Release => release::run(&shell),
        Command::Portability => portability::run(&shell),
        Command::Doc => doc::run(&shell),
        Command::Bare(args) => bare::run(&args),
        Command::Bench(args) => bench::run(&shell, &args),
        Command::Cost(args) => cost::run(&args),
        Command::Instructions(args) => instructions::run(&args),
        Command::Stack => stack::run(&shell),
        Command::Support => support::run(&shell),
        Command::Worst => worst::run(&shell),
        Command::Report(args) => report::run(&shell, &args),
        Command::Bookkeeping(args) => bookkeeping::run(&args),
        Command::Weight(args) => weight::run(&args),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            if error.is::<Usage>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is wrong with a command line is said in one line, which names what may have been meant.
    #[test]
    fn a_wrong_command_line_is_refused_in_one_line() {
        for (words, says, help) in [
            (&["tset"][..], "similar subcommand exists: 'test'", "help"),
            (&["bench", "--sumary"], "similar argument exists: '--summary'", "help bench"),
            (&["bench", "--against"], "--against", "help"),
            (&["bench", "--summary", "--json=xml"], "'--json' found, which takes no value", "help bench"),
            (&["boot", "--machine", "riscv"], "similar value exists: 'riscv64'", "help"),
            (&["boot", "--cpus", "many"], "'many'", "help"),
            (&["cost"], "--machine", "help cost"),
            (&["cost", "--machine", "mips32"], "'mips32'", "help"),
            (
                &["cost", "--machine", "riscv64", "--write", "--json"],
                "'--write' cannot be used with '--json'",
                "help cost",
            ),
            (&["report", "--quick", "--quick"], "--quick", "help report"),
            (&["loom", "--full"], "--full", "help loom"),
            (&["miri", "zzz"], "'zzz'", "help miri"),
        ] {
            let error = parse([&["xtask"], words].concat()).unwrap_err();
            let text = error.to_string();
            assert!(error.is::<Usage>() && !text.contains('\n'), "{words:?}: {text}");
            assert!(
                text.contains(says) && text.ends_with(&format!("`cargo xtask {help}` says more")),
                "{words:?}: {text}"
            );
        }
    }
}
