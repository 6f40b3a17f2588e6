//! Several CPUs: a row for each shootdown protocol.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{bail, ensure};
use serde_json::{Value, json};
use tlbkit_shootdown::Algorithm;

use super::machine::Machine;
use crate::ledger::Ledger;

/// Shootdowns of each protocol: by default, and with `--stress`.
const FEW: usize = 1_000;
const MANY: usize = 10_000;

/// The columns of numbers, as the kernel names them.
const COLUMNS: [&str; 8] =
    ["shootdowns", "touches", "faults", "spurious", "nodes", "stale_reads", "stale_writes", "failures"];

/// A protocol's run.
#[derive(Debug)]
pub(super) struct Row {
    protocol: String,
    numbers: BTreeMap<String, u64>,
}

impl Row {
    /// Reads a line `shootdown protocol=... name=number ...`.
    fn parse(line: &str) -> Option<Self> {
        let words = line.strip_prefix("shootdown ")?.split(' ').map(|word| word.split_once('='));
        let mut words = words.collect::<Option<BTreeMap<_, _>>>()?;
        let protocol = words.remove("protocol")?.to_owned();
        let numbers = words.into_iter().map(|(name, text)| Some((name.to_owned(), text.parse().ok()?)));
        Some(Self { protocol, numbers: numbers.collect::<Option<_>>()? })
    }

    fn number(&self, name: &str) -> u64 {
        self.numbers.get(name).copied().unwrap_or(0)
    }

    /// Returns how many checks failed.
    pub(super) fn failures(&self) -> u64 {
        self.number("failures")
    }

    /// Returns the row as JSON: with the names that all rows have, and its own.
    pub(super) fn json(&self, cpu: &str) -> Value {
        let nothing = Value::Null;
        let mut row = json!({
            "cpu": cpu, "cpus": self.number("cpus"), "table": "MPT", "stlb": false, "write": "random",
            "refills": nothing, "insns_per_refill_mean": nothing, "insns_per_refill_min": nothing,
            "insns_per_refill_max": nothing, "task_insns": nothing, "prot1_insns": nothing, "protn_insns": nothing,
            "bytes": nothing, "checks": self.number("touches"), "failures": self.failures(), "protocol": self.protocol,
        });
        for name in COLUMNS {
            row[name] = json!(self.number(name));
        }
        row
    }
}

/// Boots `cpus` CPUs and runs every protocol that suits them: a boot each for many shootdowns, one for few. Those that
/// the ledger knows are left out.
///
/// # Errors
///
/// If QEMU cannot be run, or a boot ends without a word about it; with a ledger, if a check fails.
pub(super) fn run(
    machine: &Machine,
    cpus: usize,
    stress: bool,
    inject: &str,
    mut ledger: Option<&mut Ledger>,
) -> anyhow::Result<Vec<Row>> {
    let count = if stress { MANY } else { FEW };
    let words = format!("work=shootdown cpus={cpus} shootdowns={count}{inject}");
    let boots = match stress {
        true => Algorithm::ALL.map(|algorithm| format!("{words} protocol={algorithm}")).to_vec(),
        false => vec![words],
    };
    let mut rows = Vec::new();
    for words in boots {
        let boot = || -> anyhow::Result<Vec<Row>> {
            let report = machine.boot(&words)?;
            match report.error {
                Some(error) => bail!("{error}"),
                None => Ok(report.lines.iter().filter_map(|line| Row::parse(line)).collect()),
            }
        };
        match &mut ledger {
            None => rows.extend(boot()?),
            Some(ledger) => ledger.job(&machine.job(&words), || {
                rows.extend(boot()?);
                let failures = rows.iter().map(Row::failures).sum::<u64>();
                ensure!(failures == 0, "{failures} checks failed");
                Ok(())
            })?,
        }
    }
    if rows.is_empty() && ledger.is_none() {
        bail!("the kernel has run no protocol");
    }
    Ok(rows)
}

/// Returns the rows as a table for people.
pub(super) fn table(cpus: usize, rows: &[Row]) -> String {
    let mut text =
        format!("\nShootdowns by {cpus} CPUs, all of which use the pages that change\n{:18}", "protocol");
    for name in COLUMNS {
        let _ = write!(text, " {:>12}", name.replace('_', " "));
    }
    for row in rows {
        let _ = write!(text, "\n{:18}", row.protocol);
        for name in COLUMNS {
            let _ = write!(text, " {:>12}", row.number(name));
        }
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_row() {
        let line =
            "shootdown protocol=2-phase/serving cpus=4 shootdowns=100 touches=9 stale_reads=0 failures=2";
        let row = Row::parse(line).unwrap();
        assert_eq!((row.protocol.as_str(), row.failures()), ("2-phase/serving", 2));
        assert_eq!(row.json("P5600")["shootdowns"], 100);
        assert!(table(4, &[row]).contains("2-phase/serving"));
        for other in ["row table=MPT", "shootdown cpus=4", "shootdown protocol=x cpus=four"] {
            assert!(Row::parse(other).is_none(), "{other}");
        }
    }
}
