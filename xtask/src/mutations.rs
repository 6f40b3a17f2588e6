//! `cargo xtask mutations`: what if a line of the shootdown crate were wrong?
//!
//! Changes one line at a time, in a copy of the tree, and expects two drivers to notice: the explorer, and the host
//! threads. If one of them ran a model of the crate instead of the crate, it would notice nothing.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use anyhow::{Context, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::places;
use crate::shell::{Line, Shell};

/// Change one line of the shootdown crate at a time, and expect the explorer and the threads to notice
#[derive(Args, Debug)]
pub(crate) struct MutationsArgs {
    /// Only the mutations whose names contain each of these [default: all]
    #[arg(value_name = "PART")]
    parts: Vec<String>,
}

/// One wrong line: in a file below `crates/shootdown/src`, the first of these becomes that.
struct Mutation {
    name: &'static str,
    file: &'static str,
    right: &'static str,
    wrong: &'static str,
}

const fn line(name: &'static str, file: &'static str, right: &'static str, wrong: &'static str) -> Mutation {
    Mutation { name, file, right, wrong }
}

const MUTATIONS: [Mutation; 13] = [
    line("PTE-first does not wait", "protocol/pte_first.rs", "Request, Wait, Release", "Request, Release"),
    line(
        "PTE-first does not flush its own TLB",
        "protocol/pte_first.rs",
        "Targets, FlushLocally, Defer, Count",
        "Targets, Defer, Count",
    ),
    line(
        "PTE-first leaves lazy CPUs alone",
        "protocol/pte_first.rs",
        "FlushLocally, Defer, Count",
        "FlushLocally, Count",
    ),
    line("PTE-first keeps its exclusion", "protocol/pte_first.rs", "Wait, Release, Done", "Wait, Done"),
    line("TLB-first sets no flag", "protocol/tlb_first.rs", "    Changing,\n", ""),
    line("2-phase does not wait until all have stopped", "protocol/two_phase.rs", "    WaitStopped,\n", ""),
    line("optimistic sends no requests", "protocol/optimistic.rs", "Count, Request, Wait", "Count, Wait"),
    line(
        "a replier acknowledges without flushing",
        "protocol/replier.rs",
        "            self.at = At::Flush;\n",
        "            self.acknowledge();\n",
    ),
    line("the last but one replier takes over", "protocol/replier.rs", "if left == 0 &&", "if left == 1 &&"),
    line(
        "a taken-over operation is still with the repliers",
        "protocol/requester.rs",
        "        self.left = false;\n",
        "",
    ),
    line("an overflow forgets who waits", "queue.rs", "            self.owed.insert(earlier.op);\n", ""),
    line("an offline CPU accepts requests", "queue.rs", "        self.closed = true;\n", ""),
    line(
        "a CPU that comes back does not look whether it is stale",
        "lazy.rs",
        "S::TakeStale, S::FlushSpace]",
        "S::FlushSpace]",
    ),
];

/// A driver that takes longer has noticed, too.
const PATIENCE: Duration = Duration::from_secs(180);

/// Runs it.
///
/// # Errors
///
/// If a mutation survives one of the drivers, or is of a line that is no longer there.
pub(crate) fn run(shell: &Shell, args: &MutationsArgs) -> anyhow::Result<()> {
    let wanted: Vec<_> = MUTATIONS
        .iter()
        .filter(|mutation| args.parts.iter().all(|part| mutation.name.contains(part.as_str())))
        .collect();
    ensure!(!wanted.is_empty(), "no mutation is called so: {}", MUTATIONS.map(|m| m.name).join(", "));
    let sources: Vec<_> = wanted.iter().map(|mutation| mutated(mutation)).collect::<Result<_, _>>()?;
    let place = env::current_dir()?.join(places::target()).join("mutations");
    let (tree, build) = (place.join("tree"), place.join("build"));
    copy(&tree)?;
    for driver in drivers(shell, &tree, &build)? {
        ensure!(!driver.notices()?, "{} fails without any mutation", driver.name);
    }
    let mut survivors = 0;
    for (mutation, (right, wrong)) in wanted.iter().zip(&sources) {
        let file = tree.join(SOURCES).join(mutation.file);
        fs::write(&file, wrong)?;
        for driver in drivers(shell, &tree, &build)? {
            let start = Instant::now();
            let noticed = driver.notices()?;
            survivors += usize::from(!noticed);
            let verdict = if noticed { "noticed by" } else { "SURVIVED" };
            println!("{:<56} {verdict:<10} {:<9} {:>6.1?}", mutation.name, driver.name, start.elapsed());
        }
        fs::write(&file, right)?;
    }
    ensure!(survivors == 0, "{survivors} of {} times nothing was noticed", 2 * wanted.len());
    println!("{} mutations, each noticed by both drivers", wanted.len());
    Ok(())
}

const SOURCES: &str = "crates/shootdown/src";

/// Returns the file as it is, and with the mutation.
fn mutated(mutation: &Mutation) -> anyhow::Result<(String, String)> {
    let path = Path::new(SOURCES).join(mutation.file);
    let right = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let wrong = right.replacen(mutation.right, mutation.wrong, 1);
    ensure!(wrong != right, "`{}` is of a line that {} no longer has", mutation.name, path.display());
    Ok((right, wrong))
}

/// Copies the tree as it is, without what git does not know of.
fn copy(to: &Path) -> anyhow::Result<()> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("cannot run git")?;
    for name in String::from_utf8(listed.stdout)?.split_terminator('\0') {
        let new = to.join(name);
        let old = fs::read(name).ok(); // Deleted, and not yet committed.
        if let Some(text) = old
            && fs::read(&new).ok().as_ref() != Some(&text)
        {
            fs::create_dir_all(new.parent().unwrap_or(to))?;
            fs::write(&new, text)?;
        }
    }
    Ok(())
}

/// A program that fails where the crate is wrong.
struct Driver {
    name: &'static str,
    program: String,
    arguments: &'static str,
}

/// Builds the drivers from the tree.
fn drivers(shell: &Shell, tree: &Path, build: &Path) -> anyhow::Result<[Driver; 2]> {
    let manifest = tree.join("Cargo.toml").to_string_lossy().into_owned();
    let build = build.to_string_lossy().into_owned();
    let within = ["--manifest-path", manifest.as_str(), "--target-dir", build.as_str()];
    shell.run(&Line::new("cargo", "build --quiet -p tlblab --bin tlblab").with(within))?;
    let tests =
        Line::new("cargo", "test --quiet --no-run --message-format json -p tlbkit-shootdown --test threads");
    let said = tests.with(within).command().stderr(Stdio::inherit()).output()?;
    let threads = String::from_utf8_lossy(&said.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok()?["executable"].as_str().map(String::from))
        .next_back();
    let Some(threads) = threads else { bail!("cargo did not say where it built the threads") };
    // Software loads the TLB there, which suits all ten algorithms; a third CPU overflows a queue.
    let explore = "explore --hardware rp3 --cpus 3 --limit 1000000 --json";
    Ok([
        Driver { name: "explorer", program: format!("{build}/debug/tlblab"), arguments: explore },
        Driver { name: "threads", program: threads, arguments: "" },
    ])
}

impl Driver {
    /// Runs the driver, and tells whether it fails.
    fn notices(&self) -> anyhow::Result<bool> {
        let mut child = Command::new(&self.program)
            .args(self.arguments.split_whitespace())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot run {}", self.program))?;
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = child.try_wait()? {
                return Ok(!status.success());
            }
            thread::sleep(Duration::from_millis(50));
        }
        child.kill()?;
        child.wait()?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutation_is_of_a_line_that_is_there() {
        places::enter_root().unwrap();
        for mutation in &MUTATIONS {
            let (right, wrong) = mutated(mutation).unwrap();
            assert!(right.lines().count() - wrong.lines().count() <= 1, "{}", mutation.name);
        }
    }
}
