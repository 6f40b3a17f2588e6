//! `cargo xtask test`: every test that the gate runs.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::shell::{Line, Shell};
use crate::{check, doc, fuzz, judge, locks, loom, miri, msrv, near, no_std, properties};

/// Run every test that the gate runs, two steps at a time, up to the first failure
#[derive(Args, Debug)]
pub(crate) struct TestArgs {
    /// Only the steps of these names, such as `loom` [default: all]
    #[arg(value_name = "STEP")]
    steps: Vec<String>,
}

/// What a step builds in: cargo lets one command at a time into a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Folder {
    /// `target/debug`, where most of the workspace is built.
    Debug,
    /// A folder of its own.
    Own,
}

/// A step's name, what it builds in, and what it does.
type Step = (&'static str, Folder, fn(&Shell) -> anyhow::Result<()>);

/// Those that fail fast come first.
const STEPS: [Step; 13] = [
    ("format", Folder::Debug, check::format),
    ("no std", Folder::Debug, no_std::run),
    ("locks", Folder::Debug, locks::run),
    ("clippy", Folder::Debug, check::clippy),
    ("tests", Folder::Debug, properties::gate),
    ("doctests", Folder::Debug, doctests),
    ("documentation", Folder::Debug, doc::run),
    ("oldest Rust", Folder::Own, msrv::run),
    ("loom", Folder::Own, loom::run),
    ("Miri", Folder::Own, |shell| miri::run(shell, &miri::MiriArgs::default())),
    ("judge", Folder::Own, judge::briefly),
    ("boot", Folder::Own, boot),
    ("fuzz", Folder::Own, fuzz::briefly),
];

/// Steps at a time: linkers, interpreters and emulators keep one core busy, and leave one.
const AT_A_TIME: usize = 2;

/// Which steps are to come, and how those ended that have been.
#[derive(Default)]
struct Progress {
    left: Vec<Step>,
    /// Whether a step builds in [`Folder::Debug`].
    is_building: bool,
    passed: usize,
    failures: Vec<anyhow::Error>,
}

impl Progress {
    /// Returns the first step that can begin; none after a failure.
    fn next(&mut self) -> Option<Step> {
        let can_begin = |step: &Step| step.1 == Folder::Own || !self.is_building;
        let at = self.left.iter().position(can_begin).filter(|_| self.failures.is_empty())?;
        let step = self.left.remove(at);
        self.is_building |= step.1 == Folder::Debug;
        Some(step)
    }

    /// Notes how a step has ended.
    fn end(&mut self, (name, folder, _): Step, outcome: anyhow::Result<()>) {
        self.is_building &= folder != Folder::Debug;
        match outcome {
            Ok(()) => self.passed += 1,
            Err(error) => self.failures.push(error.context(name)),
        }
    }
}

/// Runs the steps; after the first that fails, none begins.
///
/// # Errors
///
/// If a step fails: its output is shown, and the error says what to repeat. If there is no step of a name.
pub(crate) fn run(args: &TestArgs) -> anyhow::Result<()> {
    for step in &args.steps {
        let names = STEPS.map(|(name, ..)| name);
        if !names.iter().any(|name| name.eq_ignore_ascii_case(step)) {
            let (hint, all) = (near::hint(step, names), names.join(" | "));
            misused!("there is no step `{step}`{hint}; the steps are: {all}");
        }
    }
    let wanted =
        |name: &str| args.steps.is_empty() || args.steps.iter().any(|step| step.eq_ignore_ascii_case(name));
    let left = STEPS.into_iter().filter(|&(name, ..)| wanted(name)).collect();
    let progress = Mutex::new(Progress { left, ..Progress::default() });
    let locked = || progress.lock().unwrap_or_else(PoisonError::into_inner);
    let bars = MultiProgress::new();
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let Some(step) = locked().next() else { return };
                    let outcome = take(&bars, step);
                    locked().end(step, outcome);
                }
            });
        }
    });
    let Progress { passed, mut failures, .. } = progress.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("{passed} steps passed, {} failed", failures.len());
    failures.drain(..).next().map_or(Ok(()), Err)
}

/// Takes a step, with a bar for it while it lasts, and prints how it went.
fn take(bars: &MultiProgress, (name, _, step): Step) -> anyhow::Result<()> {
    let bar = bars.add(ProgressBar::new_spinner());
    bar.set_style(ProgressStyle::with_template("{prefix:<14} {elapsed:>5} {wide_msg:.dim}")?);
    bar.set_prefix(name);
    bar.enable_steady_tick(Duration::from_millis(200));
    let start = Instant::now();
    let shell = Shell::Quiet { bar, tests: Cell::new(0) };
    let outcome = step(&shell);
    let Shell::Quiet { bar, tests } = shell else { unreachable!("it was made so") };
    bar.finish_and_clear();
    let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
    let count = if tests.get() > 0 { format!("{} tests", tests.get()) } else { String::new() };
    bars.suspend(|| println!("{name:<14} {verdict:<6} {:>7.1} s  {count}", start.elapsed().as_secs_f64()));
    outcome
}

/// The examples in the documentation and in the README.
fn doctests(shell: &Shell) -> anyhow::Result<()> {
    shell.run(&Line::new("cargo", "test --workspace --doc"))
}

/// Five tables in the kernel for MIPS32 (`cargo xtask boot` has all), then four CPUs; the kernel with programs on RISC-V, on one CPU
/// and on four, and on four of MIPS32, x86-64 and AArch64; on MIPS32 with guarded tables too. On RISC-V the witness finds a planted
/// fault.
fn boot(shell: &Shell) -> anyhow::Result<()> {
    shell.run(&Line::new("cargo", "xtask boot --table MPT,LPT,GA,HR,S8k/GA"))?;
    shell.run(&Line::new("cargo", "xtask boot --cpus 4"))?;
    for line in [
        "riscv64",
        "riscv64 --cpus 4",
        "mips32 --cpus 4",
        "mips32 --cpus 4 --table guarded",
        "x86_64 --cpus 4",
        "aarch64 --cpus 4",
    ] {
        shell.run(&Line::new("cargo", "xtask boot --machine").with(line.split(' ')))?;
    }
    shell.run(&Line::new("cargo", "xtask witness --machine riscv64 --with early-free"))
}
