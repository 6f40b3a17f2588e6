//! `cargo xtask instructions`: how many instructions one call of each operation takes, counted by callgrind, and how many of them are
//! serializing.
//!
//! A serializing instruction of x86-64 waits until all earlier stores of the CPU are visible: one with a `lock` prefix, an exchange with
//! memory, and `mfence`. It takes the time of ten to forty others.

use std::collections::HashSet;
use std::fs;
use std::process::Stdio;

use anyhow::{Context, bail};
use clap::Args;
use indicatif::ProgressBar;
use serde_json::{Value, json};

use crate::shell::{Line, Shell, progress};
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

/// What was counted: a table, an operation, and per call the instructions and the serializing ones.
type Count<'a> = (&'a str, &'a str, [f64; 2]);

/// Runs it.
pub(crate) fn run(args: &InstructionsArgs) -> anyhow::Result<()> {
    let shell = Shell::Plain;
    tools::program(&shell, "valgrind", "valgrind")?;
    tools::program(&shell, "objdump", "binutils")?;
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
    let serializing =
        serializing(&output(&Line::new("objdump", "-d --no-show-raw-insn").with([&program]))?.0);
    let bar = progress::watch(ProgressBar::new(wanted.len() as u64));
    let mut counts = Vec::new();
    for (subject, operation) in bar.wrap_iter(wanted.into_iter()) {
        counts.push((subject, operation, count(&program, &serializing, subject, operation)?));
    }
    bar.finish_and_clear();
    if args.json {
        let rows = counts.iter().map(|(subject, operation, [instructions, serializing])| {
            json!({ "subject": subject, "operation": operation, "instructions": instructions, "serializing": serializing })
        });
        println!("{:#}", Value::from_iter(rows));
    } else {
        println!("{}", table("instructions a call", &counts, 0));
        let locked: Vec<_> =
            counts.iter().copied().filter(|(.., [_, serializing])| *serializing > 0.0).collect();
        if !locked.is_empty() {
            println!("\n{}", table("serializing instructions", &locked, 1));
        }
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

/// Returns the instructions of one call, and those of them that are at a `serializing` address.
fn count(
    program: &str,
    serializing: &HashSet<u64>,
    subject: &str,
    operation: &str,
) -> anyhow::Result<[f64; 2]> {
    // `map 128` is done by the function `operation::map`.
    let function = operation.split(' ').next().unwrap_or_default();
    let profile = places::target().join("instructions.callgrind");
    let line = Line::new("valgrind", "--tool=callgrind --dump-instr=yes --compress-pos=no")
        .with([format!("--callgrind-out-file={}", profile.display())])
        .with([format!("--toggle-collect=*operation::{function}*"), program.into()])
        .with([subject, operation]);
    let said = output(&line)?.1;
    let collected =
        said.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse::<f64>().ok());
    match collected {
        // A recorder that is off is nothing, which the linker's optimizer sees.
        Some(instructions) if instructions > 0.0 || subject == "Recorder off" => {
            let profile = fs::read_to_string(&profile).with_context(|| format!("{}", profile.display()))?;
            Ok([instructions / CALLS, executed(&profile, serializing) as f64 / CALLS])
        }
        _ => bail!("callgrind saw no call of {function}; to repeat it: {line}"),
    }
}

/// Returns the addresses of the serializing instructions in a disassembly.
fn serializing(disassembly: &str) -> HashSet<u64> {
    let address = |line: &str| {
        let (address, instruction) = line.split_once(":\t")?;
        let (name, operands) = instruction.split_once(' ').unwrap_or((instruction, ""));
        // An exchange of two registers locks nothing.
        let is_locked =
            name == "lock" || name == "xchg" && (operands.contains('(') || operands.contains("0x"));
        if is_locked || name == "mfence" { u64::from_str_radix(address.trim(), 16).ok() } else { None }
    };
    disassembly.lines().filter_map(address).collect()
}

/// Returns how often the instructions at some addresses were executed. In a profile of callgrind, `address line count` stands for an
/// instruction, and after a line that begins with `calls=` for all of a call.
fn executed(profile: &str, at: &HashSet<u64>) -> u64 {
    let mut is_call = false;
    let mut all = 0;
    for line in profile.lines() {
        let mut words = line.split(' ');
        let address = words.next().and_then(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
        if !is_call && address.is_some_and(|address| at.contains(&address)) {
            all += words.nth(1).and_then(|count| count.parse::<u64>().ok()).unwrap_or(0);
        }
        is_call = line.starts_with("calls=");
    }
    all
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

/// Returns a row for each subject, a column for each operation, with the instructions (0) or the serializing ones (1).
fn table(name: &str, counts: &[Count<'_>], which: usize) -> String {
    let mut operations: Vec<&str> = Vec::new();
    for (_, operation, _) in counts {
        if !operations.contains(operation) {
            operations.push(operation);
        }
    }
    let mut text = format!("{name:<27}");
    text.extend(operations.iter().map(|operation| format!("{operation:>13}")));
    for row in counts.chunk_by(|(one, ..), (other, ..)| one == other) {
        text += &format!("\n{:<27}", row[0].0);
        text.extend(operations.iter().map(|operation| {
            let count = row.iter().find(|(_, counted, _)| counted == operation);
            count.map_or(format!("{:>13}", "-"), |(.., counted)| format!("{:>13.1}", counted[which]))
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
        let counts = [
            ("MPT solo", "hit dense", [31.0, 0.0]),
            ("x86_64", "hit dense", [60.25, 0.0]),
            ("x86_64", "map 1", [90.0, 2.0]),
        ];
        let text = table("instructions a call", &counts, 0);
        let rows: Vec<Vec<_>> = text
            .lines()
            .map(|line| line.split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect())
            .collect();
        assert_eq!(rows[0], ["instructions a call", "hit dense", "map 1"]);
        assert_eq!(rows[1], ["MPT solo", "31.0", "-"]);
        assert_eq!(rows[2], ["x86_64", "60.2", "90.0"]);
        assert!(table("serializing instructions", &counts, 1).ends_with(" 0.0          2.0"));
    }

    #[test]
    fn locked_instructions_are_counted_where_they_are_executed() {
        let disassembly = "000000000024a480 <unmap>:
  24a480:\tpush   %r15
  24a482:\txchg   %al,0xd4(%rbx)
  24a488:\txchg   %ax,%ax
  24a48a:\tlock orl $0x0,-0x40(%rsp)
  24a490:\txchg   %rax,0x403b5010
  24a498:\tmfence
  24a49b:\tlockless
";
        let at = serializing(disassembly);
        let mut addresses: Vec<_> = at.iter().copied().collect();
        addresses.sort_unstable();
        assert_eq!(addresses, [0x24a482, 0x24a48a, 0x24a490, 0x24a498]);
        // The second line for 0x24a48a is a call's.
        let profile = "fn=(1) unmap\n0x24a480 7 1000\n0x24a482 8 1000\n0x24a48a 9 500\ncalls=1 0x24a480 7\n0x24a48a 9 99\n";
        assert_eq!(executed(profile, &at), 1500);
    }
}
