//! The kernel of `examples/kernel` on RISC-V: QEMU's machine `virt`, with OpenSBI.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::row;
use crate::shell::{Line, Shell};
use crate::{places, tools};

const FOLDER: &str = "examples/kernel";
const TARGET: &str = "riscv64gc-unknown-none-elf";
const QEMU: &str = "qemu-system-riscv64";

/// The most CPUs that the kernel is built for.
const CPUS: usize = 8;

/// Seconds that a boot may take. One takes seconds, under stress minutes.
const LIMIT: [&str; 2] = ["300", "1800"];

/// Operations that the programs come to under stress.
const STRESS: usize = 1_000_000;

/// What is booted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Boot {
    pub(super) cpus: usize,
    pub(super) stress: bool,
    /// The fault that is planted.
    pub(super) inject: Option<&'static str>,
    pub(super) json: bool,
}

/// Builds the kernel and its programs, boots them, and shows the row.
///
/// # Errors
///
/// If something is missing, the boot goes wrong or a check fails.
pub(super) fn run(boot: &Boot) -> anyhow::Result<()> {
    ensure!((1..=CPUS).contains(&boot.cpus), "{} CPUs: the kernel runs on 1 to {CPUS}", boot.cpus);
    let shell = &Shell::Plain;
    tools::program(shell, QEMU, "qemu-system-misc")?;
    tools::parts(shell, &[], &[TARGET])?;
    let built = build(shell, boot.cpus)?;
    let line = line(boot, &built);
    let (rows, status) = listen(&line, boot.json)?;
    if boot.json {
        println!("{:#}", Value::from_iter(rows.iter().cloned()));
    } else {
        rows.iter().for_each(|row| print!("{}", text(row)));
    }
    let failures = match rows.as_slice() {
        [row] => row["failures"].as_u64(),
        _ => None,
    };
    match (failures, status.success()) {
        (Some(0), true) => Ok(()),
        (Some(failures), _) if failures > 0 => bail!("{failures} checks failed"),
        _ => bail!("the kernel has not come to its end ({status}); to repeat it: {line}"),
    }
}

/// Returns the folder with the kernel and its programs. The one for one CPU has no shootdown in it.
fn build(shell: &Shell, cpus: usize) -> anyhow::Result<PathBuf> {
    let folder = places::target().join(if cpus == 1 { "kernel-1" } else { "kernel" });
    let line = Line::new("cargo", "build --quiet --release --manifest-path");
    let line = line.with([format!("{FOLDER}/Cargo.toml")]).with(["--target", TARGET, "--target-dir"]);
    let line = line.with([folder.to_string_lossy()]);
    shell.run(&if cpus == 1 { line.with(["--features", "one-cpu"]) } else { line })?;
    Ok(folder.join(TARGET).join("release"))
}

fn line(boot: &Boot, built: &Path) -> Line {
    let cpus = boot.cpus.to_string();
    let line = Line::new("timeout", "-k 5").with([LIMIT[usize::from(boot.stress)], QEMU]);
    let line = line.with("-M virt -m 256M -nic none -nographic -no-reboot -smp".split(' ')).with([&cpus]);
    // A CPU that is alone counts its time in instructions, and so every boot is the same.
    let line = if boot.cpus == 1 { line.with(["-icount", "shift=4,sleep=off"]) } else { line };
    let mut words = format!("cpus={cpus}");
    if boot.stress {
        words += &format!(" operations={STRESS}");
    }
    if let Some(fault) = boot.inject {
        words += &format!(" inject={fault}");
    }
    let file = |name| built.join(name).to_string_lossy().into_owned();
    line.with(["-kernel", &file("tlbkit-kernel"), "-initrd", &file("tlbkit-programs"), "-append", &words])
}

/// Runs a boot; returns its rows, and how it ended. What else the kernel says is shown; what OpenSBI says is not.
fn listen(line: &Line, quiet: bool) -> anyhow::Result<(Vec<Value>, std::process::ExitStatus)> {
    let mut child = line
        .command()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run `{line}`"))?;
    let output = child.stdout.take().context("no output")?;
    let mut rows = Vec::new();
    let mut is_kernel = false;
    for part in BufReader::new(output).split(b'\n') {
        let part = part?;
        let text = String::from_utf8_lossy(&part);
        let text = text.trim_end();
        if let Some(row) = text.starts_with("row ").then(|| row::said(text)).flatten() {
            rows.push(row);
        } else if is_kernel && quiet {
            eprintln!("{text}");
        } else if is_kernel {
            println!("{text}");
        }
        // The last that OpenSBI says.
        is_kernel |= text.starts_with("Boot HART MEDELEG");
    }
    Ok((rows, child.wait()?))
}

/// Returns a row for people: a name and a number in each line.
fn text(row: &Value) -> String {
    let names = [
        "operations",
        "forks",
        "faults",
        "shootdowns",
        "interrupts",
        "pages_moved",
        "paged_out",
        "paged_in",
        "stale_reads",
        "stale_writes",
        "frames_leaked",
        "nodes_leaked",
        "checks",
        "failures",
    ];
    let number = |name: &str| row[name].as_u64().unwrap_or(0);
    let head = format!("{}, {} CPUs\n", row["machine"].as_str().unwrap_or("?"), number("cpus"));
    names.iter().fold(head, |text, name| text + &format!("{name:<14} {:>9}\n", number(name)))
}
