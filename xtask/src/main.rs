//! The project's one front door.
//!
//! ```text
//! main ── a module per command ──┬── shell   a command line, run for people or for `test`
//!                                ├── tools   what a step needs, installed, or one line that says how
//!                                └── places  where things are
//! ```
//!
//! `test` runs the steps that the gate runs; most of them are also commands of their own.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod boot;
mod check;
mod demo;
mod doc;
mod instructions;
mod loom;
mod miri;
mod msrv;
mod no_std;
mod places;
mod shell;
mod test;
mod tools;

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
    /// Run every test that the gate runs, fastest first, up to the first failure
    Test,
    /// Check the crates and their tests with the oldest Rust they promise
    Msrv,
    /// Check the crates for a bare 32-bit machine: no std, no alloc, no 64-bit atomics
    NoStd,
    /// Explore walkers beside a writer in every interleaving
    Loom,
    /// Interpret tests of the unsafe code, watching for undefined behaviour
    Miri,
    /// Build the documentation; any warning is an error
    Doc,
    Bench(bench::BenchArgs),
    Instructions(instructions::InstructionsArgs),
}

fn main() -> ExitCode {
    let shell = shell::Shell::Plain;
    let outcome = places::enter_root().and_then(|()| match Cli::parse().command {
        Command::Demo(args) => demo::run(&shell, &args),
        Command::Boot(args) => boot::run(&args),
        Command::Test => test::run(),
        Command::Msrv => msrv::run(&shell),
        Command::NoStd => no_std::run(&shell),
        Command::Loom => loom::run(&shell),
        Command::Miri => miri::run(&shell),
        Command::Doc => doc::run(&shell),
        Command::Bench(args) => bench::run(&shell, &args),
        Command::Instructions(args) => instructions::run(&args),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
