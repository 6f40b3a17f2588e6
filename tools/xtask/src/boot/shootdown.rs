//! Several CPUs: rows for each shootdown protocol.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{bail, ensure};
use serde_json::{Value, json};
use tlbkit_names::MPT;
use tlbkit_shootdown::Algorithm;

use super::machine::Machine;
use crate::ledger::Ledger;

/// Shootdowns of each protocol: by default, and with `--stress`.
const FEW: usize = 1_000;
const MANY: usize = 10_000;

/// What the CPUs do by a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Any page's rights change at any time.
    Shootdown,
    /// Pages come and go, and messages move (Tzou's chapter 5).
    Paging,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Shootdown, Self::Paging];

    /// Returns the word that its lines begin with.
    const fn name(self) -> &'static str {
        match self {
            Self::Shootdown => "shootdown",
            Self::Paging => "paging",
        }
    }

    /// Returns what its table says at the top, behind the number of CPUs.
    const fn title(self) -> &'static str {
        match self {
            Self::Shootdown => "all of which use the pages that change",
            Self::Paging => "which page out what others use, and send each other pages",
        }
    }

    /// Returns the columns of numbers, as the kernel names them.
    const fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Shootdown => &[
                "shootdowns",
                "touches",
                "faults",
                "spurious",
                "nodes",
                "stale_reads",
                "stale_writes",
                "failures",
            ],
            Self::Paging => &[
                "shootdowns",
                "touches",
                "faults",
                "written",
                "reclaimed",
                "letters",
                "copies",
                "lost",
                "leaks",
                "failures",
            ],
        }
    }
}

/// A protocol's run.
#[derive(Debug)]
pub(super) struct Row {
    kind: Kind,
    protocol: String,
    numbers: BTreeMap<String, u64>,
}

impl Row {
    /// Reads a line `shootdown protocol=... name=number ...`, or one of another kind.
    fn parse(line: &str) -> Option<Self> {
        let (kind, rest) = line.split_once(' ')?;
        let kind = Kind::ALL.into_iter().find(|of| of.name() == kind)?;
        let words = rest.split(' ').map(|word| word.split_once('='));
        let mut words = words.collect::<Option<BTreeMap<_, _>>>()?;
        let protocol = words.remove("protocol")?.to_owned();
        let numbers = words.into_iter().map(|(name, text)| Some((name.to_owned(), text.parse().ok()?)));
        Some(Self { kind, protocol, numbers: numbers.collect::<Option<_>>()? })
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
            "cpu": cpu, "cpus": self.number("cpus"), "table": MPT, "stlb": false, "write": "random",
            "refills": nothing, "insns_per_refill_mean": nothing, "insns_per_refill_min": nothing,
            "insns_per_refill_max": nothing, "task_insns": nothing, "prot1_insns": nothing, "protn_insns": nothing,
            "bytes": nothing, "checks": self.number("touches"), "failures": self.failures(), "protocol": self.protocol,
            "work": self.kind.name(),
        });
        for &name in self.kind.columns() {
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

/// Returns the rows as tables for people, one of each kind.
pub(super) fn table(cpus: usize, rows: &[Row]) -> String {
    let mut text = String::new();
    for kind in Kind::ALL {
        let mut rows = rows.iter().filter(|row| row.kind == kind).peekable();
        if rows.peek().is_none() {
            continue;
        }
        let _ = write!(text, "\nShootdowns by {cpus} CPUs, {}\n{:18}", kind.title(), "protocol");
        for name in kind.columns() {
            let _ = write!(text, " {:>12}", name.replace('_', " "));
        }
        for row in rows {
            let _ = write!(text, "\n{:18}", row.protocol);
            for name in kind.columns() {
                let _ = write!(text, " {:>12}", row.number(name));
            }
        }
        text.push('\n');
    }
    text
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
        let paging = Row::parse("paging protocol=TLB-first cpus=4 lost=3 failures=3").unwrap();
        assert_eq!((paging.failures(), &paging.json("P5600")["work"]), (3, &json!("paging")));
        let text = table(4, &[row, paging]);
        assert!(text.contains("2-phase/serving") && text.contains("TLB-first"), "{text}");
        assert_eq!(text.matches("Shootdowns by 4 CPUs").count(), 2);
        for other in ["row table=MPT", "shootdown cpus=4", "shootdown protocol=x cpus=four"] {
            assert!(Row::parse(other).is_none(), "{other}");
        }
    }
}
