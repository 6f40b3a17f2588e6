//! `cargo xtask fuzz`: each part of tlbkit under inputs that grow towards what has not been seen yet.
//!
//! What is interesting is kept in the target directory, so a run goes on where the last one ended; `fuzz/seeds` has
//! a little of it to begin with, and tlbkit-conformance's corpus for the targets whose bodies are there.

use std::fs;
use std::path::absolute;

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use crate::shell::{Line, Shell, progress};
use crate::{misused, near, places, tools};

/// Fuzz tlbkit's parts, one after the other
#[derive(Args, Debug)]
pub(crate) struct FuzzArgs {
    /// Seconds for each target
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Targets [default: all in fuzz/targets]
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
}

/// The targets whose body is one of tlbkit-conformance's, all of which take the same inputs.
const BODIES: [&str; 3] = ["mapper", "own", "tables"];

/// What libFuzzer says in its last lines.
#[derive(Debug, Default, PartialEq)]
struct Tally {
    executions: u64,
    /// Edges of the program that some input has taken.
    edges: u64,
    corpus: u64,
}

impl Tally {
    /// Takes in a line of libFuzzer's: `#4711 NEW cov: 12 ft: 34 corp: 5/67b ...`.
    fn read(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix('#') else { return };
        let mut words = rest.split_whitespace();
        let number = |word: Option<&str>| word.and_then(|word| word.split('/').next()?.parse().ok());
        self.executions = number(words.next()).unwrap_or(self.executions);
        while let Some(word) = words.next() {
            match word {
                "cov:" => self.edges = number(words.next()).unwrap_or(self.edges),
                "corp:" => self.corpus = number(words.next()).unwrap_or(self.corpus),
                _ => {}
            }
        }
    }
}

/// Runs the targets for as long as the arguments say.
pub(crate) fn run(shell: &Shell, args: &FuzzArgs) -> anyhow::Result<()> {
    fuzz_all(shell, args, &["--release"])
}

fn fuzz_all(shell: &Shell, args: &FuzzArgs, flags: &[&str]) -> anyhow::Result<()> {
    let known = targets()?;
    if let Some(unknown) = args.targets.iter().find(|target| !known.contains(target)) {
        let hint = near::hint(unknown, known.iter().map(String::as_str));
        let all = known.join(" | ");
        misused!("there is no target `{unknown}`{hint}; the targets are: {all}");
    }
    let chosen = if args.targets.is_empty() { &known } else { &args.targets };
    tools::toolchain(shell, tools::NIGHTLY, &["rust-src"])?;
    tools::cargo(shell, "fuzz")?;
    // The fuzzer's run-time is compiled by it.
    tools::program(shell, "c++", "g++")?;
    // Before any of them runs: what does not compile has found nothing.
    if args.targets.is_empty() {
        shell.run(&cargo_fuzz("build", flags))?;
    }
    for target in &args.targets {
        shell.run(&cargo_fuzz("build", flags).with([target]))?;
    }
    for target in chosen {
        let tally = fuzz(shell, target, args.seconds, flags)?;
        if matches!(shell, Shell::Plain) {
            let Tally { executions, edges, corpus } = tally;
            let rate = executions / args.seconds.max(1);
            println!(
                "{target:<14} {executions:>10} executions, {rate:>7} a second, {edges:>6} edges, {corpus:>6} inputs kept, no \
                 crash"
            );
        }
    }
    Ok(())
}

/// What the gate runs, for a few seconds each; clippy has compiled the others. The lab, which some of those fuzz, takes minutes to
/// build.
const SOME: [&str; 3] = ["address_space", "stlb", "witness"];

/// Some targets, not optimized, for a few seconds.
pub(crate) fn briefly(shell: &Shell) -> anyhow::Result<()> {
    fuzz_all(
        shell,
        &FuzzArgs { seconds: 5, targets: SOME.map(String::from).to_vec() },
        &["--dev", "--no-default-features"],
    )
}

fn cargo_fuzz(verb: &str, flags: &[&str]) -> Line {
    let place = places::target().join("fuzz");
    // Their nightly compiler and its sanitizer have a place of their own.
    Line::new("cargo", "+nightly fuzz")
        .with([verb])
        .with(flags.iter().copied())
        .with(["--target-dir", &place.to_string_lossy()])
}

fn fuzz(shell: &Shell, target: &str, seconds: u64, flags: &[&str]) -> anyhow::Result<Tally> {
    let kept = absolute(places::target())?.join("fuzz/corpus").join(target);
    fs::create_dir_all(&kept).with_context(|| format!("cannot make {}", kept.display()))?;
    let mut folders = vec![kept.to_string_lossy().into_owned()];
    let seeds = if BODIES.contains(&target) {
        absolute("crates/conformance/corpus")?
    } else {
        absolute("fuzz/seeds")?.join(target)
    };
    if seeds.is_dir() {
        folders.push(seeds.to_string_lossy().into_owned());
    }
    // Long inputs from the start: a table does not show its faults in two operations.
    let limits = format!("-- -max_total_time={seconds} -len_control=0 -max_len=1024 -rss_limit_mb=4096");
    let line = cargo_fuzz("run", flags).with([target]).with(folders).with(limits.split(' '));
    let bar = match shell {
        Shell::Plain => progress::watch(ProgressBar::new(seconds)),
        Shell::Quiet { bar, .. } => bar.clone(),
    };
    if matches!(shell, Shell::Plain) {
        bar.set_style(ProgressStyle::with_template("{prefix:<14} {bar:30} {pos}/{len} s  {wide_msg}")?);
        bar.set_prefix(target.to_owned());
    }
    let mut tally = Tally::default();
    let outcome = shell.watch(&line, |text| {
        tally.read(text);
        if text.starts_with('#') {
            if matches!(shell, Shell::Plain) {
                bar.set_position(bar.elapsed().as_secs().min(seconds));
            }
            bar.set_message(format!("{target}: {} executions, {} edges", tally.executions, tally.edges));
        }
    });
    if matches!(shell, Shell::Plain) {
        bar.finish_and_clear();
    }
    outcome.with_context(|| format!("{target} has found something: make a test of it"))?;
    Ok(tally)
}

/// Returns the names of the files in `fuzz/targets`.
fn targets() -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir("fuzz/targets").context("cannot list fuzz/targets")? {
        if let Some(name) = entry?.path().file_stem() {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_is_what_the_last_line_says() {
        let mut tally = Tally::default();
        for line in [
            "INFO: seed corpus: files: 3",
            "#512\tpulse  cov: 12 ft: 34 corp: 5/67b lim: 4 exec/s: 256 rss: 40Mb",
            "#4711\tDONE   cov: 14 ft: 34 corp: 6/67b lim: 4 exec/s: 256 rss: 40Mb",
        ] {
            tally.read(line);
        }
        assert_eq!(tally, Tally { executions: 4711, edges: 14, corpus: 6 });
    }
}
