//! `cargo xtask bookkeeping`: how many instructions a TLB miss costs the superpage policies, counted by callgrind, and what
//! the program gains by them then.

use std::process::Stdio;

use anyhow::{Context, bail};
use clap::Args;
use indicatif::ProgressBar;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::places;
use crate::shell::{Line, Shell, progress};
use crate::tools;

/// The policies, by name and by type.
const POLICIES: [(&str, &str); 2] = [("APPROX-ONLINE", "ApproxOnline"), ("THRIFT", "Thrift")];
/// The shipped traces.
const TRACES: [&str; 6] = ["cc1", "grep", "gzip", "perl", "sort", "sqlite"];

/// The fields of a row of `tlblab superpage --json` that the count uses.
#[derive(Debug, Deserialize)]
struct Row {
    /// Instructions of the program.
    instructions: u64,
    /// TLB misses.
    tlb_misses: u64,
    /// Cycles of the miss handler.
    handler_cycles: u64,
    /// Cycles of copying.
    copy_cycles: u64,
}

/// The results of callgrind and of the simulation for a policy on a trace.
struct Measured {
    misses: u64,
    instructions: u64,
    /// TLBMCPI with these instructions as cycles of bookkeeping.
    tlbmcpi: f64,
    /// How much faster than with fixed 4 KB pages the program is, at one cycle an instruction (Table 5).
    improvement: f64,
}

/// Count the instructions of the superpage policies' bookkeeping, a TLB miss, on traces
#[derive(Args, Debug)]
pub(crate) struct BookkeepingArgs {
    /// Traces [default: the shipped ones]
    #[arg(value_name = "FILE")]
    traces: Vec<String>,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub(crate) fn run(args: &BookkeepingArgs) -> anyhow::Result<()> {
    let shell = Shell::Plain;
    tools::program(&shell, "valgrind", "valgrind")?;
    shell.run(&Line::new("cargo", "build --release -p tlblab"))?;
    let lab = places::target().join("release/tlblab").to_string_lossy().into_owned();
    let traces = match args.traces.as_slice() {
        [] => TRACES.iter().map(|name| format!("tools/lab/traces/{name}.tlbt")).collect(),
        traces => traces.to_vec(),
    };
    let bar = progress::watch(ProgressBar::new((traces.len() * POLICIES.len()) as u64));
    let mut rows = Vec::new();
    for trace in &traces {
        for (policy, name) in POLICIES {
            let measured = count(&lab, trace, policy, name)?;
            rows.push((trace, policy, measured));
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    if args.json {
        let rows = rows.iter().map(|(trace, policy, measured)| {
            json!({ "trace": trace, "policy": policy, "misses": measured.misses,
                "instructions": measured.instructions,
                "per_miss": measured.instructions as f64 / measured.misses as f64,
                "tlbmcpi": measured.tlbmcpi, "improvement_pct": measured.improvement })
        });
        println!("{:#}", Value::from_iter(rows));
        return Ok(());
    }
    println!(
        "{:<32} {:<14} {:>9} {:>12} {:>8} {:>13}",
        "trace", "policy", "misses", "instr./miss", "TLBMCPI", "improvement"
    );
    for (trace, policy, measured) in rows {
        println!(
            "{trace:<32} {policy:<14} {:>9} {:>12.1} {:>8.3} {:>11.2} %",
            measured.misses,
            measured.instructions as f64 / measured.misses as f64,
            measured.tlbmcpi,
            measured.improvement,
        );
    }
    Ok(())
}

/// Counts the instructions of all calls of `on_miss` on a trace under a policy.
fn count(lab: &str, trace: &str, policy: &str, name: &str) -> anyhow::Result<Measured> {
    let line = Line::new("valgrind", "--tool=callgrind --callgrind-out-file=/dev/null --collect-atstart=no")
        .with([format!("--toggle-collect=<*::{name} as *Policy>::on_miss*")])
        .with([lab, "superpage", "--trace", trace, "--json", "--policy"])
        .with([format!("FIXED-4K,{policy}")]);
    let output =
        line.command().stdin(Stdio::null()).output().with_context(|| format!("cannot run `{line}`"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{said}failed ({}); to repeat it: {line}", output.status);
    }
    let [fixed, row] = rows(&output.stdout)?;
    let misses = row.tlb_misses;
    let collected =
        said.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse::<u64>().ok());
    let Some(instructions @ 1..) = collected.filter(|_| misses > 0) else {
        bail!("callgrind saw no miss of {policy}; to repeat it: {line}");
    };
    let program = row.instructions;
    let overhead = row.handler_cycles + row.copy_cycles + instructions;
    let before = program + fixed.handler_cycles;
    Ok(Measured {
        misses,
        instructions,
        tlbmcpi: overhead as f64 / program as f64,
        improvement: 100.0 * (1.0 - (program + overhead) as f64 / before as f64),
    })
}

/// Reads the two rows that `tlblab` prints: that of fixed 4 KB pages, and that of the policy.
fn rows(json: &[u8]) -> anyhow::Result<[Row; 2]> {
    serde_json::from_slice(json).context("`tlblab superpage --json` did not print the two rows")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str =
        r#"{ "trace": "t", "instructions": 9, "tlb_misses": 3, "handler_cycles": 30, "copy_cycles": 5 }"#;

    #[test]
    fn rows_are_complete_and_two() {
        let [fixed, row] = rows(format!("[{ROW}, {ROW}]").as_bytes()).unwrap();
        assert_eq!((fixed.handler_cycles, row.instructions, row.tlb_misses, row.copy_cycles), (30, 9, 3, 5));
        for missing in ["instructions", "tlb_misses", "handler_cycles", "copy_cycles"] {
            let other = ROW.replace(missing, "other");
            assert!(rows(format!("[{ROW}, {other}]").as_bytes()).is_err(), "{missing}");
        }
        assert!(rows(format!("[{ROW}]").as_bytes()).is_err());
        assert!(rows(format!("[{ROW}, {ROW}, {ROW}]").as_bytes()).is_err());
    }
}
