//! `cargo xtask test`: every test that the gate runs.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use crate::shell::{Line, Shell};
use crate::{check, demo, doc, fuzz, judge, locks, loom, miri, msrv, near, no_std, properties};

/// Run every test that the gate runs, fastest first, up to the first failure
#[derive(Args, Debug)]
pub(crate) struct TestArgs {
    /// Only the steps of these names, such as `loom` [default: all]
    #[arg(value_name = "STEP")]
    steps: Vec<String>,
}

/// A step's name and what it does.
type Step = (&'static str, fn(&Shell) -> anyhow::Result<()>);

/// Those that fail fast come first.
const STEPS: [Step; 14] = [
    ("format", check::format),
    ("no std", no_std::run),
    ("locks", locks::run),
    ("clippy", check::clippy),
    ("tests", properties::gate),
    ("doctests", doctests),
    ("documentation", doc::run),
    ("oldest Rust", msrv::run),
    ("loom", loom::run),
    ("demo", |shell| demo::run(shell, &demo::DemoArgs::default())),
    ("Miri", |shell| miri::run(shell, &miri::MiriArgs::default())),
    ("judge", judge::run),
    ("boot", boot),
    ("fuzz", fuzz::briefly),
];

/// Runs the steps up to the first that fails.
///
/// # Errors
///
/// If a step fails: its output is shown, and the error says what to repeat. If there is no step of a name.
pub(crate) fn run(args: &TestArgs) -> anyhow::Result<()> {
    for step in &args.steps {
        let names = STEPS.map(|(name, _)| name);
        if !names.iter().any(|name| name.eq_ignore_ascii_case(step)) {
            let (hint, all) = (near::hint(step, names), names.join(" | "));
            misused!("there is no step `{step}`{hint}; the steps are: {all}");
        }
    }
    let wanted =
        |name: &str| args.steps.is_empty() || args.steps.iter().any(|step| step.eq_ignore_ascii_case(name));
    let steps: Vec<Step> = STEPS.into_iter().filter(|(name, _)| wanted(name)).collect();
    for (done, &(name, step)) in steps.iter().enumerate() {
        let bar = ProgressBar::new_spinner();
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
        println!("{name:<14} {verdict:<6} {:>7.1} s  {count}", start.elapsed().as_secs_f64());
        if let Err(error) = outcome {
            println!("{done} steps passed, 1 failed");
            bail!("{name}: {error:#}");
        }
    }
    println!("{} steps passed, 0 failed", steps.len());
    Ok(())
}

/// The examples in the documentation and in the README.
fn doctests(shell: &Shell) -> anyhow::Result<()> {
    shell.run(&Line::new("cargo", "test --workspace --exclude tlbkit-benches --doc"))
}

/// Every table in the kernel for MIPS32, then four CPUs; the kernel with programs on RISC-V, on MIPS32 and on x86-64, on one CPU
/// and on four, and on four of AArch64.
fn boot(shell: &Shell) -> anyhow::Result<()> {
    shell.run(&Line::new("cargo", "xtask boot"))?;
    for line in [
        "riscv64",
        "riscv64 --cpus 4",
        "mips32",
        "mips32 --cpus 4",
        "x86_64",
        "x86_64 --cpus 4",
        "aarch64 --cpus 4",
    ] {
        shell.run(&Line::new("cargo", "xtask boot --machine").with(line.split(' ')))?;
    }
    Ok(())
}
