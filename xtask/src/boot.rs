//! `cargo xtask boot`: the MIPS32 kernel of `examples/mips32` in QEMU.
//!
//! One boot a table. What the kernel says is shown; the lines that it means for this program become rows, and the rows a
//! table at the end, or with `--json` the output.

use anyhow::bail;
use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::shell::Shell;

mod break_even;
mod compare;
mod machine;
mod row;

use machine::Machine;
use row::Row;

/// Every table that is booted unless some are named: each alone, then those behind a software TLB cache.
const TABLES: [&str; 16] = [
    "MPT",
    "LPT",
    "G8",
    "G16",
    "G64",
    "G256",
    "GA",
    "H8k",
    "H128k",
    "C128k",
    "S8k/MPT",
    "S128k/MPT",
    "S8k/G16",
    "S128k/G16",
    "S8k/GA",
    "S128k/LPT",
];

/// Refills of random stress for each table.
const STRESS: u32 = 1_000_000;

/// Boot the MIPS32 kernel in QEMU, its TLB refilled from every page table
#[derive(Args, Clone, Debug)]
pub(crate) struct BootArgs {
    /// The CPU: 4KEc, 24Kf, 34Kf, 74Kf or P5600
    #[arg(long, default_value = "34Kf")]
    cpu: String,
    /// Tables to boot, as `tlblab tables` names them, with `S8k/` or `S128k/` in front for a software TLB cache
    /// [default: all]
    #[arg(long, value_name = "NAME", num_args = 1.., value_delimiter = ',')]
    table: Vec<String>,
    /// How many CPUs
    #[arg(long, default_value_t = 1)]
    cpus: usize,
    /// Boot the big-endian kernel
    #[arg(long)]
    big_endian: bool,
    /// Random changes and accesses, a million refills for each table, against a model
    #[arg(long)]
    stress: bool,
    /// Plant a fault: the checks must fail
    #[arg(long, value_enum)]
    inject: Option<Inject>,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

/// A fault to plant.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Inject {
    /// Pages are unmapped without a flush of the TLB
    DropFlush,
    /// A guard, or a tag, is another one for a while
    CorruptGuard,
    /// Software caches are not told of changes, nor the TLB when address-space numbers begin anew
    SkipInvalidation,
}

/// Runs it.
///
/// # Errors
///
/// If something is missing, a boot goes wrong or a check fails.
pub(crate) fn run(args: &BootArgs) -> anyhow::Result<()> {
    for table in &args.table {
        let alone = table.strip_prefix("S8k/").or(table.strip_prefix("S128k/")).unwrap_or(table);
        let mut known = TABLES.iter().filter(|name| !name.contains('/'));
        if !known.any(|name| *name == alone) {
            let names: Vec<_> = TABLES.into_iter().filter(|name| !name.contains('/')).collect();
            bail!("there is no table `{table}`: choose from {}, S8k/ or S128k/ in front", names.join(", "));
        }
    }
    let machine = Machine::new(&Shell::Plain, &args.cpu, args.cpus, args.big_endian, args.json)?;
    let tables = if args.table.is_empty() { TABLES.map(String::from).to_vec() } else { args.table.clone() };
    let mut rows = Vec::new();
    let mut curves = break_even::Curves::default();
    let mut failed = Vec::new();
    for table in &tables {
        let report = machine.boot(&words(args, table))?;
        curves.add(&report.lines);
        let booted = row::rows(&args.cpu, table, &report.lines);
        // A kernel that ended without a word about it has failed, too.
        let failures = booted.iter().map(|row: &Row| row.failures).sum::<u64>();
        if failures > 0 || report.error.is_some() {
            failed.push(report.error.unwrap_or_else(|| format!("{table}: {failures} checks failed")));
        }
        rows.extend(booted);
    }
    // Processes that send messages have tables of their own.
    if args.table.is_empty() && !args.stress && args.inject.is_none() {
        let report = machine.boot("work=ipc")?;
        let failures = row::failures(&report.lines);
        if failures > 0 || report.error.is_some() {
            failed.push(report.error.unwrap_or_else(|| format!("messages: {failures} checks failed")));
        }
    }
    if args.json {
        println!("{:#}", Value::from_iter(rows.iter().map(Row::json)));
    } else {
        print!("{}{}", compare::table(&rows), curves.table());
    }
    match failed.as_slice() {
        [] => Ok(()),
        [only] => bail!("{only}"),
        [first, rest @ ..] => bail!("{first}; and {} more", rest.len()),
    }
}

/// Returns the kernel's command line.
fn words(args: &BootArgs, table: &str) -> String {
    let mut words = format!("table={table}");
    if args.stress {
        words += &format!(" work=stress refills={STRESS}");
    } else if args.inject.is_some() {
        words += " work=stress";
    }
    if let Some(inject) = args.inject.and_then(|inject| inject.to_possible_value()) {
        words += &format!(" inject={}", inject.get_name());
    }
    words
}
