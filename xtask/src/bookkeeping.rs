//! `cargo xtask bookkeeping`: how many instructions a TLB miss costs the superpage policies, counted by callgrind.

use std::process::Stdio;

use anyhow::{Context, bail};
use clap::Args;
use indicatif::ProgressBar;
use serde_json::{Value, json};

use crate::places;
use crate::shell::{Line, Shell};
use crate::tools;

/// The policies, by name and by type.
const POLICIES: [(&str, &str); 2] = [("APPROX-ONLINE", "ApproxOnline"), ("THRIFT", "Thrift")];
/// The shipped traces.
const TRACES: [&str; 5] = ["cc1", "grep", "gzip", "sort", "sqlite"];

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
        [] => TRACES.iter().map(|name| format!("lab/traces/{name}.tlbt")).collect(),
        traces => traces.to_vec(),
    };
    let bar = ProgressBar::new((traces.len() * POLICIES.len()) as u64);
    let mut rows = Vec::new();
    for trace in &traces {
        for (policy, name) in POLICIES {
            let (misses, instructions) = count(&lab, trace, policy, name)?;
            rows.push((trace, policy, misses, instructions));
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    if args.json {
        let rows = rows.iter().map(|(trace, policy, misses, instructions)| {
            json!({ "trace": trace, "policy": policy, "misses": misses, "instructions": instructions,
                "per_miss": *instructions as f64 / *misses as f64 })
        });
        println!("{:#}", Value::from_iter(rows));
        return Ok(());
    }
    println!("{:<32} {:<14} {:>10} {:>19}", "trace", "policy", "misses", "instructions a miss");
    for (trace, policy, misses, instructions) in rows {
        println!("{trace:<32} {policy:<14} {misses:>10} {:>19.1}", instructions as f64 / misses as f64);
    }
    Ok(())
}

/// Returns the misses of a trace under a policy, and the instructions of all its calls of `on_miss`.
fn count(lab: &str, trace: &str, policy: &str, name: &str) -> anyhow::Result<(u64, u64)> {
    let line = Line::new("valgrind", "--tool=callgrind --callgrind-out-file=/dev/null --collect-atstart=no")
        .with([format!("--toggle-collect=<*::{name} as *Policy>::on_miss*"), lab.into()])
        .with(["superpage", "--trace", trace, "--policy", policy, "--json"]);
    let output =
        line.command().stdin(Stdio::null()).output().with_context(|| format!("cannot run `{line}`"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{said}failed ({}); to repeat it: {line}", output.status);
    }
    let rows: Value = serde_json::from_slice(&output.stdout).context("tlblab printed no JSON")?;
    let misses = rows[0]["tlb_misses"].as_u64().unwrap_or(0);
    let collected =
        said.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse::<u64>().ok());
    match collected {
        Some(instructions @ 1..) if misses > 0 => Ok((misses, instructions)),
        _ => bail!("callgrind saw no miss of {policy}; to repeat it: {line}"),
    }
}
