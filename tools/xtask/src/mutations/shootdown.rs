//! The shootdown crate: one wrong line, and two drivers that must notice: the explorer, and threads, the host's or
//! loom's. If one of them ran a model of the crate instead of the crate, it would notice nothing.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::MutationsArgs;
use super::tree::{Change, Tree};
use crate::loom;
use crate::shell::{Line, Shell};

/// One wrong line, in a file below `crates/shootdown/src`.
struct Mutation {
    name: &'static str,
    file: &'static str,
    change: Change,
}

const fn line(name: &'static str, file: &'static str, right: &'static str, wrong: &'static str) -> Mutation {
    Mutation { name, file, change: Change { after: "", line: right, instead: wrong } }
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
    line(
        "an overflow forgets which operation waits",
        "queue.rs",
        "            self.unacknowledged.insert(earlier.op);\n",
        "",
    ),
    line("an offline CPU accepts requests", "queue.rs", "        self.closed = true;\n", ""),
    line(
        "a CPU that comes back does not look whether it is stale",
        "lazy.rs",
        "S::TakeStale, S::FlushSpace]",
        "S::FlushSpace]",
    ),
];

/// A driver that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(180);

/// Returns what the mutations are called.
pub(super) fn names() -> Vec<&'static str> {
    MUTATIONS.iter().map(|mutation| mutation.name).collect()
}

/// Makes each of the changes that are wanted, and returns how many these are.
///
/// # Errors
///
/// If a mutation survives one of the drivers.
pub(super) fn run(shell: &Shell, tree: &Tree, args: &MutationsArgs) -> anyhow::Result<usize> {
    let wanted: Vec<_> = MUTATIONS.iter().filter(|mutation| args.wants("shootdown", mutation.name)).collect();
    if wanted.is_empty() {
        return Ok(0);
    }
    for driver in drivers(shell, tree)?.into_iter().chain([interleavings(tree)?]) {
        ensure!(driver.run()? == Ends::Well, "{} fails without any mutation", driver.name);
    }
    let mut survivors = 0;
    for mutation in &wanted {
        survivors += tree.with(&mutation.path(), &mutation.change, || {
            let [explorer, threads] = drivers(shell, tree)?;
            // Threads meet by chance. Where they have not, loom lets them.
            let explored = mutation.is_noticed_by(&explorer)?;
            let driven =
                mutation.is_noticed_by(&threads)? || mutation.is_noticed_by(&interleavings(tree)?)?;
            Ok(usize::from(!explored) + usize::from(!driven))
        })?;
    }
    ensure!(survivors == 0, "{survivors} of {} times nothing was noticed", 2 * wanted.len());
    Ok(wanted.len())
}

impl Mutation {
    /// Runs a driver, says how it ended, and tells whether it noticed.
    fn is_noticed_by(&self, driver: &Driver) -> anyhow::Result<bool> {
        let start = Instant::now();
        let ends = driver.run()?;
        let verdict = match ends {
            Ends::Well => "not noticed by",
            Ends::Badly => "noticed by",
            Ends::Never => "hangs",
        };
        println!("{:<56} {verdict:<14} {:<9} {:>6.1?}", self.name, driver.name, start.elapsed());
        Ok(ends != Ends::Well)
    }

    fn path(&self) -> String {
        format!("crates/shootdown/src/{}", self.file)
    }
}

/// A program that fails where the crate is wrong.
struct Driver {
    name: &'static str,
    program: String,
    arguments: &'static str,
}

/// Builds the drivers from the tree.
fn drivers(shell: &Shell, tree: &Tree) -> anyhow::Result<[Driver; 2]> {
    let manifest = tree.root().join("Cargo.toml").to_string_lossy().into_owned();
    let build = tree.build("drivers").to_string_lossy().into_owned();
    let within = ["--manifest-path", manifest.as_str(), "--target-dir", build.as_str()];
    shell.run(&Line::new("cargo", "build --quiet -p tlblab --bin tlblab").with(within))?;
    // Software loads the TLB there, which suits all ten algorithms; a third CPU overflows a queue.
    let arguments = "explore --hardware rp3 --cpus 3 --limit 1000000 --json";
    let explorer = Driver { name: "explorer", program: format!("{build}/debug/tlblab"), arguments };
    Ok([
        explorer,
        test(Line::new("cargo", "test -p tlbkit-shootdown --test all").with(within), "threads", "threads::")?,
    ])
}

/// Builds the tests that loom runs.
fn interleavings(tree: &Tree) -> anyhow::Result<Driver> {
    let manifest = tree.root().join("Cargo.toml").to_string_lossy().into_owned();
    let build = tree.build("interleavings").to_string_lossy().into_owned();
    let line = Line::new("cargo", "test --release -p tlbkit-shootdown --test loom");
    let line = line.with(["--manifest-path", &manifest, "--target-dir", &build]);
    test(loom::explored(line), "loom", "")
}

/// Builds a test, and returns it as a driver that runs the tests of this name.
fn test(line: Line, name: &'static str, arguments: &'static str) -> anyhow::Result<Driver> {
    let line = line.with(["--quiet", "--no-run", "--message-format", "json"]);
    let said = line.command().stderr(Stdio::inherit()).output()?;
    let program = String::from_utf8_lossy(&said.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok()?["executable"].as_str().map(String::from))
        .next_back();
    let Some(program) = program else { bail!("cargo did not say where it built the test {name}") };
    Ok(Driver { name, program, arguments })
}

/// How a run of a driver ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    Well,
    Badly,
    /// Not within [`PATIENCE`]: a test that waits for an acknowledgement that never comes has noticed, too.
    Never,
}

impl Driver {
    /// Runs the driver.
    fn run(&self) -> anyhow::Result<Ends> {
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
                return Ok(if status.success() { Ends::Well } else { Ends::Badly });
            }
            thread::sleep(Duration::from_millis(50));
        }
        child.kill()?;
        child.wait()?;
        Ok(Ends::Never)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::tree::read;
    use super::*;
    use crate::places;

    #[test]
    fn every_mutation_is_of_a_line_that_is_there() {
        places::enter_root().unwrap();
        for mutation in &MUTATIONS {
            let right = read(Path::new(&mutation.path())).unwrap();
            let wrong = mutation.change.apply(mutation.file, &right).unwrap();
            assert!(right.lines().count() - wrong.lines().count() <= 1, "{}", mutation.name);
        }
    }
}
