//! The tests one by one: how long each takes, and which mutants it comes by.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::ProgressBar;

use super::weave::Number;

/// A test.
#[derive(Debug)]
pub(super) struct Test {
    /// Its program and its name there.
    pub(super) name: String,
    program: PathBuf,
    /// The name alone.
    alone: String,
    pub(super) time: Duration,
    pub(super) reaches: BTreeSet<Number>,
}

/// KiB that a test may have.
const MEMORY: u32 = 6 << 20;

/// Runs its first two arguments' worth of seconds, of the processor's and of the clock's, at most.
const LIMITED: &str =
    "ulimit -v $0 && ulimit -t $1 && wall=$2 && shift 2 && exec timeout --foreground -s KILL $wall \"$@\"";

impl Test {
    /// Does the test pass? It has some times as long as it took at first.
    pub(super) fn passes(&self, folder: &Path, variable: (&str, &str)) -> anyhow::Result<bool> {
        let seconds = self.time.as_secs() + 1;
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                LIMITED,
                &MEMORY.to_string(),
                &(5 * seconds).to_string(),
                &(20 * seconds).to_string(),
            ])
            .arg(&self.program)
            .args(["--exact", &self.alone, "--test-threads=1"])
            .current_dir(folder)
            .env(variable.0, variable.1)
            // A property that fails has done so at its first counterexample, the same whenever it is asked.
            .env("PROPTEST_MAX_SHRINK_ITERS", "0")
            .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1")
            .env("PROPTEST_RNG_SEED", "1")
            .env("RUST_BACKTRACE", "0");
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        Ok(status.context("cannot run sh")?.success())
    }
}

/// Runs every test of the programs, which must pass as no mutant is on, and finds what it reaches.
pub(super) fn survey(
    programs: &[(String, PathBuf)],
    folder: &Path,
    lists: &Path,
) -> anyhow::Result<Vec<Test>> {
    let mut tests = Vec::new();
    for (program, path) in programs {
        let output = Command::new(path).args(["--list", "--format", "terse"]).output()?;
        for line in String::from_utf8(output.stdout)?.lines() {
            let Some(alone) = line.strip_suffix(": test") else { continue };
            let (name, alone) = (format!("{program} {alone}"), alone.to_owned());
            let time = Duration::from_secs(300);
            tests.push(Test { name, program: path.clone(), alone, time, reaches: BTreeSet::new() });
        }
    }
    if lists.exists() {
        fs::remove_dir_all(lists)?;
    }
    fs::create_dir_all(lists)?;
    each("tests", &mut tests, |at, test| {
        let list = std::path::absolute(lists)?.join(at.to_string());
        let start = Instant::now();
        let mut passes = test.passes(folder, ("MUTANT", "0"))?;
        let time = start.elapsed();
        passes &= test.passes(folder, ("MUTANTS_REACHED", &list.to_string_lossy()))?;
        if !passes {
            bail!("{} fails though no mutant is on", test.name);
        }
        test.time = time;
        // None if it reaches nothing.
        let text = fs::read_to_string(list).unwrap_or_default();
        test.reaches = text.lines().map(str::parse).collect::<Result<_, _>>()?;
        Ok(())
    })?;
    tests.sort_by_key(|test| test.time);
    Ok(tests)
}

/// Does something with each of the items, as many at once as there are processors.
pub(super) fn each<T: Send>(
    what: &'static str,
    items: &mut [T],
    job: impl Fn(usize, &mut T) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    let bar = ProgressBar::new(items.len() as u64).with_message(what);
    let style =
        indicatif::ProgressStyle::with_template("{pos}/{len} {msg} {wide_bar} {elapsed}, {eta} more")?;
    bar.set_style(style);
    let open = Mutex::new(items.iter_mut().enumerate());
    let worker = || -> anyhow::Result<()> {
        loop {
            let next = open.lock().map_or(None, |mut open| open.next());
            let Some((at, item)) = next else { return Ok(()) };
            job(at, item)?;
            bar.inc(1);
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let outcome = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(outcome) => outcome,
            Err(_) => bail!("a worker panicked"),
        })
    });
    bar.finish_and_clear();
    outcome
}
