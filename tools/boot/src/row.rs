//! What a boot says of a table: a row.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// A table, with one way to write the TLB.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    cpu: String,
    pub(crate) table: String,
    /// `random` or `index`.
    pub(crate) write: String,
    /// Everything else by name, as the kernel said it.
    numbers: BTreeMap<String, String>,
    pub(crate) checks: u64,
    pub(crate) failures: u64,
}

impl Row {
    fn new(cpu: &str, table: &str, write: &str) -> Self {
        let (cpu, table, write) = (cpu.into(), table.into(), write.into());
        Self { cpu, table, write, numbers: BTreeMap::new(), checks: 0, failures: 0 }
    }

    /// Takes over what the plugin counted: memory references for each refill. Its instructions must be the kernel's.
    fn counted(&mut self, numbers: &BTreeMap<String, String>) {
        let number = |name| numbers.get(name).and_then(|text: &String| text.parse::<f64>().ok());
        let (Some(refills), Some(instructions), Some(references)) =
            (number("refills"), number("plugin_insns"), number("refs"))
        else {
            return;
        };
        self.numbers.insert("refs".into(), format!("{:.3}", references / refills));
        self.checks += 1;
        if self.number("insns") != Some(instructions) {
            self.failures += 1;
            eprintln!(
                "{}: the kernel counts {:?} instructions of refills, the plugin {instructions}",
                self.table,
                self.number("insns")
            );
        }
    }

    /// Returns a number.
    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        self.numbers.get(name)?.parse().ok()
    }

    /// Returns a number as JSON has it: whole ones are whole.
    fn value(&self, name: &str) -> Value {
        let Some(text) = self.numbers.get(name) else { return Value::Null };
        match text.parse::<u64>() {
            Ok(number) => json!(number),
            Err(_) => json!(text.parse::<f64>().ok()),
        }
    }

    /// Returns the costs of a primitive by region.
    fn regions(&self, primitive: &str) -> Value {
        let all = self.numbers.keys().filter_map(|name| name.strip_prefix(primitive)?.strip_prefix('.'));
        let all: Map<_, _> =
            all.map(|region| (region.to_owned(), self.value(&format!("{primitive}.{region}")))).collect();
        if all.is_empty() { Value::Null } else { Value::Object(all) }
    }

    /// Returns the row as JSON. `tlbwr` evicts less under QEMU than on a machine, so only the other way to write the TLB
    /// counts its refills right.
    pub(crate) fn json(&self) -> Value {
        let refills = if self.write == "index" { self.value("refills") } else { Value::Null };
        json!({
            "cpu": self.cpu,
            "cpus": 1,
            "table": self.table,
            "stlb": self.table.contains('/'),
            "write": self.write,
            "refills": refills,
            "insns_per_refill_mean": self.value("mean"),
            "insns_per_refill_min": self.value("min"),
            "insns_per_refill_max": self.value("max"),
            "task_insns": self.value("task"),
            "prot1_insns": self.regions("prot1"),
            "protn_insns": self.regions("protn"),
            "bytes": self.value("bytes"),
            "checks": self.checks,
            "failures": self.failures,
        })
    }
}

/// Returns how many checks failed, as a boot says at its end.
pub(crate) fn failures(lines: &[String]) -> u64 {
    let count = |line: &String| line.rsplit_once("failures=").and_then(|(_, text)| text.parse::<u64>().ok());
    // A boot that says nothing of checks has not come to its end.
    lines.last().and_then(count).unwrap_or(1)
}

/// Returns a line `word name=value ...` as JSON, `word` under the name `kind`; nothing of any other line, among them those
/// of the plugin, which counts what the kernel has counted itself.
pub(crate) fn said(line: &str) -> Option<Value> {
    let (kind, words) = line.split_once(' ')?;
    let value = |text: &str| match text.parse::<u64>() {
        Ok(number) => json!(number),
        Err(_) => json!(text),
    };
    let words = words.split(' ').map(|word| word.split_once('='));
    let mut row: Map<_, _> =
        words.map(|word| word.map(|(name, text)| (name.to_owned(), value(text)))).collect::<Option<_>>()?;
    row.insert("kind".into(), json!(kind));
    (kind != "plugin").then_some(Value::Object(row))
}

/// Makes rows of what a boot said: one for each line `row`. Stress and reports belong to the last, or are a row of their own.
pub(crate) fn rows(cpu: &str, table: &str, lines: &[String]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    // The plugin counts each sweep, in the order of the rows.
    let mut counted = 0;
    for line in lines {
        let mut words = line.split(' ');
        let kind = words.next().unwrap_or_default();
        let mut numbers: BTreeMap<_, _> = words
            .filter_map(|word| word.split_once('='))
            .map(|(name, text)| (name.to_owned(), text.to_owned()))
            .collect();
        let mut count = |name| numbers.remove(name).and_then(|text| text.parse().ok()).unwrap_or(0);
        let (checks, failures): (u64, u64) = (count("checks"), count("failures"));
        match (kind, rows.last_mut()) {
            ("row", _) => {
                let write = numbers.remove("write").unwrap_or_default();
                rows.push(Row { numbers, checks, failures, ..Row::new(cpu, table, &write) });
            }
            ("plugin", Some(_)) => {
                if let Some(row) = rows.get_mut(counted) {
                    row.counted(&numbers);
                }
                counted += 1;
            }
            ("stress" | "reports", Some(row)) => {
                row.checks += checks;
                row.failures += failures;
            }
            ("stress" | "reports", None) => {
                rows.push(Row { numbers, checks, failures, ..Row::new(cpu, table, "index") });
            }
            _ => {}
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a boot says, cut short.
    fn booted() -> Vec<Row> {
        let lines = [
            "row table=S8k/MPT stlb=true write=random refills=9 insns=130 mean=14.444 prot1.64K=7 checks=5 failures=0",
            "row table=S8k/MPT stlb=true write=index refills=10 insns=160 mean=16.000 checks=5 failures=1",
            "stress table=S8k/MPT refills=20 checks=100 failures=2",
            "plugin refills=9 plugin_insns=130 refs=36",
            "plugin refills=10 plugin_insns=161 refs=40",
        ];
        rows("34Kf", "S8k/MPT", &lines.map(String::from))
    }

    #[test]
    fn refills_are_told_only_where_they_are_counted_right() {
        let json: Vec<_> = booted().iter().map(Row::json).collect();
        assert_eq!((&json[0]["refills"], &json[1]["refills"]), (&Value::Null, &json!(10)));
        assert_eq!(
            (&json[0]["stlb"], &json[0]["cpu"], &json[0]["cpus"]),
            (&json!(true), &json!("34Kf"), &json!(1))
        );
        assert_eq!(json[0]["prot1_insns"], json!({ "64K": 7 }));
        assert_eq!(json[1]["prot1_insns"], Value::Null);
    }

    #[test]
    fn stress_belongs_to_the_last_row_and_the_plugin_contradicts_one() {
        let rows = booted();
        assert_eq!((rows[0].checks, rows[0].failures), (6, 0));
        assert_eq!((rows[1].checks, rows[1].failures), (106, 4));
        assert_eq!(rows[0].number("refs"), Some(4.0));
    }

    #[test]
    fn what_the_kernel_says_to_programs_is_json() {
        let row = said("moving how=copy accessed=no 4K=1200").unwrap();
        assert_eq!(row, json!({ "kind": "moving", "how": "copy", "accessed": "no", "4K": 1200 }));
        for other in
            ["plugin refills=9 plugin_insns=130 refs=36", "+ m 10 -", "Messages over linear page tables"]
        {
            assert_eq!(said(other), None);
        }
    }

    #[test]
    fn a_boot_that_says_nothing_has_failed() {
        assert_eq!(failures(&["ipc checks=3 failures=0".into()]), 0);
        assert_eq!(failures(&["ipc checks=3 failures=2".into()]), 2);
        assert_eq!(failures(&[]), 1);
    }
}
