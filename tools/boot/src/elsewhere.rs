//! Handlers that the CPU of the other rows does not run: those of release 1, those with the root in a scratch register, and
//! those of MIPS III.

use anyhow::ensure;
use serde_json::Value;
use tlbkit_names::{C128K, G16, GA, HR, LPT, MPT, S8K_G16};

use super::machine::Machine;
use super::{Root, SCRATCH, row};
use tlbkit_shell::Shell;

/// Tables that together have every kind of walk.
const TABLES: [&str; 7] = [MPT, LPT, G16, GA, HR, C128K, S8K_G16];

/// CPUs of 32 bits, and where the handlers have their root.
const CPUS: [(&str, Root); 2] = [("4Kc", Root::Block), (SCRATCH, Root::Kscratch1)];

/// Boots them under random changes and accesses against the kernel's model, and returns what there is to say.
///
/// # Errors
///
/// If something is missing, a boot goes wrong or a check fails.
pub(super) fn run(quiet: bool) -> anyhow::Result<String> {
    let mut text = String::from("\nHandlers of other CPUs, against the model:\n");
    for (cpu, root) in CPUS {
        let machine = Machine::new(&Shell::Plain, cpu, false, quiet)?;
        let mut checks = 0;
        for table in TABLES {
            let report = machine.boot(&format!("table={table} work=stress {}", root.word()))?;
            let rows = row::rows(cpu, table, &report.lines);
            let failures: u64 = rows.iter().map(|row| row.failures).sum();
            let ended = report.error.is_none() && !rows.is_empty();
            ensure!(ended && failures == 0, "{cpu}, {table}: {failures} checks failed, {:?}", report.error);
            checks += rows.iter().map(|row| row.checks).sum::<u64>();
        }
        text += &format!("  {cpu:<6} {}: {} tables, {checks} checks\n", root.word(), TABLES.len());
    }
    let (lines, checks) = wide(quiet, "")?;
    text += &format!("  {:<6} MIPS III: {} tables, {checks} checks\n", super::machine::MIPS_III, lines.len());
    Ok(text)
}

/// Boots the kernel for MIPS III, and returns its rows, one for each table, and how many checks there were.
///
/// # Errors
///
/// If something is missing, the boot goes wrong or a check fails.
pub(super) fn wide(quiet: bool, words: &str) -> anyhow::Result<(Vec<Value>, u64)> {
    let report = Machine::wide(&Shell::Plain, quiet)?.boot(words)?;
    ensure!(report.error.is_none(), "{:?}", report.error);
    let said: Vec<_> = report.lines.iter().filter_map(|line| row::said(line)).collect();
    let count = |row: &Value, name: &str| row[name].as_u64().unwrap_or(0);
    let rows: Vec<_> = said.iter().filter(|row| row["kind"] == "mips3").cloned().collect();
    // A kernel that panics does not say this last line.
    let end = said.last().filter(|row| row["kind"] == "end");
    ensure!(end.is_some() && !rows.is_empty(), "the kernel for MIPS III has not come to its end");
    let failures: u64 =
        said.iter().filter(|row| row["kind"] == "mips3").map(|row| count(row, "failures")).sum();
    ensure!(failures == 0, "{failures} checks failed");
    Ok((rows, end.map_or(0, |row| count(row, "checks"))))
}
