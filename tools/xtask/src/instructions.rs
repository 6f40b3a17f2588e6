//! `cargo xtask instructions`: how many instructions one call of each operation takes, counted by callgrind.

use std::process::Stdio;

use anyhow::{Context, bail};
use clap::Args;
use indicatif::ProgressBar;
use serde_json::{Value, json};

use crate::shell::{Line, Shell};
use crate::{bench, misused, near, places, tools};

/// The program under `benches/src/bin` that makes the calls, and how many it makes.
const PROGRAM: &str = "instructions";
const CALLS: f64 = 1000.0;

/// Count the instructions of one call of each operation, for every table, its peers, and address spaces
#[derive(Args, Debug)]
pub(crate) struct InstructionsArgs {
    /// Count only where table and operation, as in `MPT solo hit dense`, contain each of these [default: all]
    #[arg(value_name = "PART")]
    parts: Vec<String>,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

/// What was counted: a table, an operation, instructions per call.
type Count<'a> = (&'a str, &'a str, f64);

/// Runs it.
pub(crate) fn run(args: &InstructionsArgs) -> anyhow::Result<()> {
    let shell = Shell::Plain;
    tools::program(&shell, "valgrind", "valgrind")?;
    // A kernel is linked where it runs, so its direct map is a constant in an instruction. In a program that may be loaded
    // anywhere each use of that constant is one instruction more.
    let build = bench::as_kernels_are(Line::new("cargo", "rustc --release -p tlbkit-benches --bin"));
    shell.run(&build.with([PROGRAM]).with(["--", "-C", "relocation-model=static"]))?;
    let program = places::target().join("release").join(PROGRAM).to_string_lossy().into_owned();
    let known = output(&Line::new(&program, ""))?.0;
    let wanted: Vec<_> = known
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .filter(|(subject, operation)| has_all(&format!("{subject} {operation}"), &args.parts))
        .collect();
    if wanted.is_empty() {
        misused!("{}", unknown(&args.parts, &known.lines().map(String::from).collect::<Vec<_>>()));
    }
    let bar = ProgressBar::new(wanted.len() as u64);
    let mut counts = Vec::new();
    for (subject, operation) in bar.wrap_iter(wanted.into_iter()) {
        counts.push((subject, operation, count(&program, subject, operation)?));
    }
    bar.finish_and_clear();
    if args.json {
        let rows = counts.iter().map(|(subject, operation, instructions)| {
            json!({ "subject": subject, "operation": operation, "instructions": instructions })
        });
        println!("{:#}", Value::from_iter(rows));
    } else {
        println!("{}", table(&counts));
    }
    Ok(())
}

fn has_all(name: &str, parts: &[String]) -> bool {
    let name = name.replace('\t', " ");
    parts.iter().all(|part| name.contains(part.as_str()))
}

/// Says that nothing has all the parts in its name, and what there is.
fn unknown(parts: &[String], known: &[String]) -> String {
    let (mut subjects, mut operations): (Vec<_>, Vec<_>) =
        known.iter().filter_map(|line| line.split_once('\t')).unzip();
    subjects.dedup();
    operations.sort_unstable();
    operations.dedup();
    let names = || subjects.iter().chain(&operations).copied();
    let wrong = parts.iter().find(|part| !names().any(|name| name.contains(part.as_str())));
    let hint = wrong.map(|part| near::hint(part, near::words(names()))).unwrap_or_default();
    let wrong = wrong.map_or_else(|| parts.join(" "), String::clone);
    format!(
        "nothing is called `{wrong}`{hint}; the operations are: {}; the subjects are: {}",
        operations.join(" | "),
        subjects.join(" | ")
    )
}

/// Returns the instructions of one call.
fn count(program: &str, subject: &str, operation: &str) -> anyhow::Result<f64> {
    // `map 128` is done by the function `operation::map`.
    let function = operation.split(' ').next().unwrap_or_default();
    let line = Line::new("valgrind", "--tool=callgrind --callgrind-out-file=/dev/null")
        .with([format!("--toggle-collect=*operation::{function}*"), program.into()])
        .with([subject, operation]);
    let said = output(&line)?.1;
    let collected =
        said.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse::<f64>().ok());
    match collected {
        // A recorder that is off is nothing, which the linker's optimizer sees.
        Some(instructions) if instructions > 0.0 || subject == "Recorder off" => Ok(instructions / CALLS),
        _ => bail!("callgrind saw no call of {function}; to repeat it: {line}"),
    }
}

/// Returns what a command prints and what it reports.
fn output(line: &Line) -> anyhow::Result<(String, String)> {
    let output =
        line.command().stdin(Stdio::null()).output().with_context(|| format!("cannot run `{line}`"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if !output.status.success() {
        bail!("{}failed ({}); to repeat it: {line}", text(&output.stderr), output.status);
    }
    Ok((text(&output.stdout), text(&output.stderr)))
}

/// Returns a row for each subject, a column for each operation.
fn table(counts: &[Count<'_>]) -> String {
    let mut operations: Vec<&str> = Vec::new();
    for (_, operation, _) in counts {
        if !operations.contains(operation) {
            operations.push(operation);
        }
    }
    let mut text = format!("{:<27}", "instructions a call");
    text.extend(operations.iter().map(|operation| format!("{operation:>13}")));
    for row in counts.chunk_by(|(one, ..), (other, ..)| one == other) {
        text += &format!("\n{:<27}", row[0].0);
        text.extend(operations.iter().map(|operation| {
            let count = row.iter().find(|(_, counted, _)| counted == operation);
            count.map_or(format!("{:>13}", "-"), |(.., instructions)| format!("{instructions:>13.1}"))
        }));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unknown_is_said_with_what_there_is() {
        let known = ["x86_64\thit dense", "x86_64\tmap 1", "MPT solo\thit dense"].map(String::from);
        let said = unknown(&["MPT".into(), "mpa 1".into()], &known);
        assert_eq!(
            said,
            "nothing is called `mpa 1` (did you mean `map 1`?); the operations are: hit dense | map 1; the subjects are: x86_64 | \
             MPT solo"
        );
        // Each is in a name, and no name has both.
        assert!(
            unknown(&["MPT".into(), "map 1".into()], &known).starts_with("nothing is called `MPT map 1`;")
        );
    }

    #[test]
    fn what_was_not_counted_is_a_dash() {
        let text = table(&[
            ("MPT solo", "hit dense", 31.0),
            ("x86_64", "hit dense", 60.25),
            ("x86_64", "map 1", 90.0),
        ]);
        let rows: Vec<Vec<_>> = text
            .lines()
            .map(|line| line.split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect())
            .collect();
        assert_eq!(rows[0], ["instructions a call", "hit dense", "map 1"]);
        assert_eq!(rows[1], ["MPT solo", "31.0", "-"]);
        assert_eq!(rows[2], ["x86_64", "60.2", "90.0"]);
    }
}
