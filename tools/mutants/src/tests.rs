//! The tests one by one: how long each takes, and which mutants it comes by.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use tlbkit_shell::progress;

use super::viable::Built;
use super::weave::Number;

/// A test.
#[derive(Debug)]
pub(crate) struct Test {
    /// Its program and its name there.
    pub(crate) name: String,
    program: PathBuf,
    /// What to tell the program.
    arguments: Vec<String>,
    pub(crate) time: Duration,
    pub(crate) reaches: BTreeSet<Number>,
}

/// KiB that a test may have.
const MEMORY: u32 = 6 << 20;

/// Runs a program with so much memory, and for so many seconds of the processor's and of the clock's.
const LIMITED: &str =
    "ulimit -v $0 && ulimit -t $1 && wall=$2 && shift 2 && exec timeout --foreground -s KILL $wall \"$@\"";

impl Test {
    /// Is it one of that program's?
    pub(crate) fn is_in(&self, program: &str) -> bool {
        self.name.split(' ').next() == Some(program)
    }

    /// Does the test pass? It has some times as long as it took at first.
    pub(crate) fn passes(&self, folder: &Path, variable: (&str, &str)) -> anyhow::Result<bool> {
        let seconds = self.time.as_secs() + 1;
        // Not of the clock, as other work goes on, unless it sleeps.
        let [processor, clock] = [2 * seconds, 5 + 5 * seconds].map(|seconds| seconds.to_string());
        let mut command = Command::new("sh");
        command
            .args(["-c", LIMITED, &MEMORY.to_string(), &processor, &clock])
            .arg(&self.program)
            .args(&self.arguments)
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

/// Finds the tests of what was built.
pub(crate) fn tests(built: &Built) -> anyhow::Result<Vec<Test>> {
    let test = |name, program: &Path, arguments| {
        let (program, time) = (program.to_owned(), Duration::from_secs(300));
        Test { name, program, arguments, time, reaches: BTreeSet::new() }
    };
    let mut tests = Vec::new();
    for (name, program) in &built.programs {
        let output = Command::new(program).args(["--list", "--format", "terse"]).output()?;
        for line in String::from_utf8(output.stdout)?.lines() {
            let Some(alone) = line.strip_suffix(": test") else { continue };
            let arguments = ["--exact", alone, "--test-threads=1"].map(String::from);
            tests.push(test(format!("{name} {alone}"), program, arguments.into()));
        }
    }
    // These run all that is in them, whatever they are told.
    tests.extend(built.examples.iter().map(|program| test("documentation".into(), program, Vec::new())));
    Ok(tests)
}

/// Runs every test, which must pass as no mutant is on, and finds what it reaches; the quickest are first then. What is
/// found is kept in a folder.
pub(crate) fn survey(tests: &mut [Test], folder: &Path, lists: &Path) -> anyhow::Result<()> {
    let lists = std::path::absolute(lists)?;
    fs::create_dir_all(&lists)?;
    each("tests", tests, |at, test| {
        let (list, time) = (lists.join(at.to_string()), lists.join(format!("{at}.ms")));
        if !time.exists() {
            let start = Instant::now();
            let mut passes = test.passes(folder, ("MUTANT", "0"))?;
            let took = start.elapsed().as_millis();
            fs::write(&list, "")?;
            passes &= test.passes(folder, ("MUTANTS_REACHED", &list.to_string_lossy()))?;
            if !passes {
                bail!("{} fails though no mutant is on", test.name);
            }
            fs::write(&time, took.to_string())?;
        }
        test.time = Duration::from_millis(fs::read_to_string(time)?.parse()?);
        test.reaches = fs::read_to_string(list)?.lines().map(str::parse).collect::<Result<_, _>>()?;
        Ok(())
    })?;
    tests.sort_by_key(|test| test.time);
    Ok(())
}

/// Returns a bar that counts things.
pub(crate) fn bar(count: usize, what: &'static str) -> anyhow::Result<ProgressBar> {
    let style = ProgressStyle::with_template("{pos}/{len} {msg} {wide_bar} {elapsed}, {eta} more")?;
    Ok(progress::watch(ProgressBar::new(count as u64).with_style(style).with_message(what)))
}

/// Does something with each of the items, some more at once than there are processors: tests with threads wait a lot.
pub(crate) fn each<T: Send>(
    what: &'static str,
    items: &mut [T],
    job: impl Fn(usize, &mut T) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    let bar = bar(items.len(), what)?;
    let open = Mutex::new(items.iter_mut().enumerate());
    let worker = || -> anyhow::Result<()> {
        loop {
            let next = open.lock().map_or(None, |mut open| open.next());
            let Some((at, item)) = next else { return Ok(()) };
            job(at, item)?;
            bar.inc(1);
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from) * 3;
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
