//! `cargo xtask test`: every test that the gate runs.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use std::{fs, path::PathBuf};

use anyhow::Context;
use clap::Args;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::changed::{self, Reach};
use crate::shell::{Line, Shell, progress};
use crate::{
    check, cost, doc, fuzz, judge, locks, loom, miri, misused, msrv, near, no_std, places, properties,
};

/// Run every test that the gate runs, two steps at a time, up to the first failure
#[derive(Args, Debug)]
pub(crate) struct TestArgs {
    /// Only the steps of these names, such as `loom` [default: all]
    #[arg(value_name = "STEP", conflicts_with_all = ["full", "changed"])]
    steps: Vec<String>,
    /// More than the gate: tests that take minutes, all that the judge does, fuzzing
    #[arg(long, conflicts_with = "changed")]
    full: bool,
    /// Only what the changes since the last run that passed can reach
    #[arg(long)]
    changed: bool,
}

/// What a step builds in: cargo lets one command at a time into a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Folder {
    /// `target/debug`, where most of the workspace is built.
    Debug,
    /// A folder of its own.
    Own,
}

/// What a step is about, and so which changes can reach it.
#[derive(Clone, Copy, Debug)]
enum About {
    /// The files of the tree.
    Tree,
    /// Packages of the workspace, each by itself: a change has those tested that it reaches.
    Packages(fn(&Shell, &[String]) -> anyhow::Result<()>),
    /// The packages that a kernel embeds.
    Crates,
    /// These packages.
    Of(&'static [&'static str]),
}

/// A step: its name, what it builds in, what it is about and what it does.
#[derive(Clone, Copy)]
struct Step {
    name: &'static str,
    folder: Folder,
    about: About,
    run: fn(&Shell) -> anyhow::Result<()>,
}

const fn step(
    name: &'static str,
    folder: Folder,
    about: About,
    run: fn(&Shell) -> anyhow::Result<()>,
) -> Step {
    Step { name, folder, about, run }
}

/// The gate's. Those that fail fast come first.
const STEPS: [Step; 13] = [
    step("format", Folder::Debug, About::Tree, check::format),
    step("no std", Folder::Debug, About::Crates, no_std::run),
    step("locks", Folder::Debug, About::Crates, locks::run),
    step("clippy", Folder::Debug, About::Packages(check::clippy_of), check::clippy),
    step("tests", Folder::Debug, About::Packages(properties::gate_of), properties::gate),
    step("doctests", Folder::Debug, About::Crates, doctests),
    step("documentation", Folder::Debug, About::Crates, doc::run),
    step("Miri", Folder::Own, About::Of(&miri::PACKAGES), |shell| {
        miri::run(shell, &miri::MiriArgs::default())
    }),
    step("boot", Folder::Own, About::Of(&["tlbkit-boot", "tlbkit-kernel", "tlbkit-mips32"]), boot),
    step("loom", Folder::Own, About::Of(&loom::PACKAGES), loom::run),
    step("judge", Folder::Own, About::Of(&["tlbkit-boot", "tlbkit-judge"]), judge::briefly),
    step("size of code", Folder::Own, About::Of(&["tlbkit-cost"]), cost::decided),
    step("oldest Rust", Folder::Own, About::Crates, msrv::run),
];

/// What `--full` adds.
const MORE: [Step; 6] = [
    step("long tests", Folder::Own, About::Tree, properties::long),
    step("loom whole", Folder::Own, About::Tree, loom::long),
    step("Miri whole", Folder::Own, About::Tree, miri::long),
    step("judge whole", Folder::Own, About::Tree, judge::run),
    step("boot whole", Folder::Own, About::Tree, boot_whole),
    step("fuzz", Folder::Own, About::Tree, fuzz::briefly),
];

/// Steps at a time: linkers, interpreters and emulators keep one core busy, and leave one.
const AT_A_TIME: usize = 2;

/// Which steps are to come, and how those ended that have been.
#[derive(Default)]
struct Progress {
    left: Vec<Step>,
    /// Whether a step builds in [`Folder::Debug`].
    is_building: bool,
    /// How many seconds each step took that passed.
    passed: BTreeMap<String, f64>,
    failures: Vec<anyhow::Error>,
}

impl Progress {
    /// Returns the first step that can begin; none after a failure.
    fn next(&mut self) -> Option<Step> {
        let can_begin = |step: &Step| step.folder == Folder::Own || !self.is_building;
        let at = self.left.iter().position(can_begin).filter(|_| self.failures.is_empty())?;
        let step = self.left.remove(at);
        self.is_building |= step.folder == Folder::Debug;
        Some(step)
    }

    /// Notes how a step has ended.
    fn end(&mut self, step: Step, seconds: f64, outcome: anyhow::Result<()>) {
        self.is_building &= step.folder != Folder::Debug;
        match outcome {
            Ok(()) => drop(self.passed.insert(step.name.to_owned(), seconds)),
            Err(error) => self.failures.push(error.context(step.name)),
        }
    }
}

/// Runs the steps; after the first that fails, none begins.
///
/// # Errors
///
/// If a step fails: its output is shown, and the error says what to repeat. If there is no step of a name.
pub(crate) fn run(args: &TestArgs) -> anyhow::Result<()> {
    let known: Vec<Step> = STEPS.into_iter().chain(MORE).collect();
    for wanted in &args.steps {
        let names: Vec<_> = known.iter().map(|step| step.name).collect();
        if !names.iter().any(|name| name.eq_ignore_ascii_case(wanted)) {
            let (hint, all) = (near::hint(wanted, names.iter().copied()), names.join(" | "));
            misused!("there is no step `{wanted}`{hint}; the steps are: {all}");
        }
    }
    let tree = changed::tree()?;
    let reach = if args.changed { changed::reach()? } else { None };
    if args.changed && reach.is_none() {
        println!("no run has passed yet, or a file has changed that every package reads: all steps");
    }
    let left = if args.steps.is_empty() {
        let more = if args.full { &MORE[..] } else { &[] };
        STEPS.iter().chain(more).copied().collect()
    } else {
        let wanted = |step: &Step| args.steps.iter().any(|name| name.eq_ignore_ascii_case(step.name));
        known.into_iter().filter(wanted).collect()
    };
    let left = reached(left, reach.as_ref())?;
    if args.full {
        println!("beyond the gate: {}", MORE.map(|step| step.name).join(", "));
    }
    let (before, begun) = (times(), Instant::now());
    let progress = Mutex::new(Progress { left, ..Progress::default() });
    let locked = || progress.lock().unwrap_or_else(PoisonError::into_inner);
    let bars = MultiProgress::new();
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let Some(step) = locked().next() else { return };
                    let started = Instant::now();
                    let outcome = take(&bars, step, reach.as_ref(), before.get(step.name).copied());
                    locked().end(step, started.elapsed().as_secs_f64(), outcome);
                }
            });
        }
    });
    let Progress { passed, mut failures, .. } = progress.into_inner().unwrap_or_else(PoisonError::into_inner);
    let count = passed.len();
    if failures.is_empty() && reach.is_none() {
        let all = (WHOLE.to_owned(), begun.elapsed().as_secs_f64());
        let whole = args.steps.is_empty() && !args.full;
        if whole {
            println!("{}", timed(WHOLE, "", all.1, before.get(WHOLE).copied(), ""));
        }
        note_times(before.into_iter().chain(passed).chain(whole.then_some(all)).collect())?;
    }
    if failures.is_empty() && args.steps.is_empty() {
        changed::note_green(&tree)?;
    }
    println!("{count} steps passed, {} failed", failures.len());
    failures.drain(..).next().map_or(Ok(()), Err)
}

/// Leaves out the steps that a change does not reach.
fn reached(steps: Vec<Step>, reach: Option<&Reach>) -> anyhow::Result<Vec<Step>> {
    let Some(reach) = reach else { return Ok(steps) };
    let crates = places::kernel_folders()?.iter().map(|folder| places::package(folder)).collect::<Vec<_>>();
    let workspace = changed::workspace()?;
    let is_reached = |step: &Step| match step.about {
        About::Tree => true,
        About::Packages(_) => reach.any(&workspace),
        About::Crates => reach.any(&crates),
        About::Of(packages) => reach.any(&packages.iter().map(|&package| package.into()).collect::<Vec<_>>()),
    };
    Ok(steps.into_iter().filter(is_reached).collect())
}

/// The row of the whole run.
const WHOLE: &str = "all of it";

/// Takes a step, with a bar for it while it lasts, and prints how it went.
fn take(bars: &MultiProgress, step: Step, reach: Option<&Reach>, before: Option<f64>) -> anyhow::Result<()> {
    let bar = progress::watch(bars.add(ProgressBar::new_spinner()));
    bar.set_style(ProgressStyle::with_template("{prefix:<14} {elapsed:>5} {wide_msg:.dim}")?);
    bar.set_prefix(step.name);
    bar.enable_steady_tick(Duration::from_millis(200));
    let start = Instant::now();
    let shell = Shell::Quiet { bar, tests: Cell::new(0) };
    let outcome = match (step.about, reach) {
        (About::Packages(run), Some(reach)) => {
            changed::workspace().and_then(|packages| run(&shell, &reach.of(packages)))
        }
        _ => (step.run)(&shell),
    };
    let Shell::Quiet { bar, tests } = shell else { unreachable!("it was made so") };
    bar.finish_and_clear();
    let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
    let count = if tests.get() > 0 { format!("{} tests", tests.get()) } else { String::new() };
    let row = timed(step.name, verdict, start.elapsed().as_secs_f64(), before, &count);
    bars.suspend(|| println!("{row}"));
    outcome
}

/// Returns a row: how long a step took, and how long it took in the last run of all of it.
fn timed(name: &str, verdict: &str, seconds: f64, before: Option<f64>, count: &str) -> String {
    let before = before.map_or(String::new(), |before| format!("(last time {before:.1} s)"));
    format!("{name:<14} {verdict:<6} {seconds:>7.1} s  {before:<22} {count}").trim_end().to_owned()
}

fn times_file() -> PathBuf {
    places::target().join("test/times")
}

/// Returns how many seconds each step took when it last passed as a whole.
fn times() -> BTreeMap<String, f64> {
    let text = fs::read_to_string(times_file()).unwrap_or_default();
    let row = |line: &str| {
        let (name, seconds) = line.split_once('\t')?;
        Some((name.to_owned(), seconds.parse().ok()?))
    };
    text.lines().filter_map(row).collect()
}

fn note_times(times: BTreeMap<String, f64>) -> anyhow::Result<()> {
    let file = times_file();
    fs::create_dir_all(file.parent().context("it is in a folder")?)?;
    let text: String = times.iter().map(|(name, seconds)| format!("{name}\t{seconds:.1}\n")).collect();
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// The examples in the documentation and in the README. The benches have none, and what they depend on takes long to build.
fn doctests(shell: &Shell) -> anyhow::Result<()> {
    shell.run(&Line::new("cargo", "test --doc --workspace --exclude tlbkit-benches"))
}

/// Two tables in the kernel that measures, for the other kernel has the multi-level one; that kernel with programs on four CPUs of
/// each machine, and on one of RISC-V, for which `tlbkit` has other code; on MIPS32 every workload: messages, every protocol, and
/// superpages that the host checks. On RISC-V the witness finds a planted fault.
fn boot(shell: &Shell) -> anyhow::Result<()> {
    boots(shell, ["boot --table GA,HR", "boot --machine riscv64"])?;
    boots(shell, tlbkit_boot::machines().map(|machine| format!("boot --machine {machine} --cpus 4")))?;
    boots(
        shell,
        [
            "boot --machine mips32 --work moving",
            "boot --machine mips32 --cpus 4 --work protocols",
            "boot --machine mips32 --cpus 4 --work superpage",
            "witness --machine riscv64 --with early-free",
        ],
    )
}

/// The tables and the kinds of address spaces that the gate leaves out.
fn boot_whole(shell: &Shell) -> anyhow::Result<()> {
    boots(shell, ["boot", "boot --machine mips32 --cpus 4 --table guarded", "witness"])
}

fn boots<S: AsRef<str>>(shell: &Shell, commands: impl IntoIterator<Item = S>) -> anyhow::Result<()> {
    commands
        .into_iter()
        .try_for_each(|command| shell.run(&Line::new("cargo", "xtask").with(command.as_ref().split(' '))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_last_time_beside_it() {
        assert_eq!(
            timed("loom", "ok", 12.34, None, "3 tests"),
            "loom           ok        12.3 s                         3 tests"
        );
        assert_eq!(
            timed("loom", "ok", 12.34, Some(8.0), ""),
            "loom           ok        12.3 s  (last time 8.0 s)"
        );
    }

    #[test]
    fn one_step_at_a_time_builds_in_a_folder() {
        let mut progress = Progress { left: STEPS.to_vec(), ..Progress::default() };
        let (first, second) = (progress.next().unwrap(), progress.next().unwrap());
        assert!(first.folder == Folder::Debug && second.folder == Folder::Own);
        progress.end(first, 1.0, Ok(()));
        let third = progress.next().unwrap();
        assert_eq!(third.folder, Folder::Debug);
        progress.end(third, 1.0, Err(anyhow::anyhow!("it failed")));
        assert!(progress.next().is_none() && progress.passed.contains_key(first.name));
    }
}
