//! `cargo xtask miri`: tests of the unsafe code under an interpreter that knows undefined behaviour when it meets it.

use clap::Args;

use crate::ledger::Ledger;
use crate::shell::{Line, Shell};
use crate::{places, properties, tools};

/// Interpret tests of the unsafe code, watching for undefined behaviour
#[derive(Args, Debug, Default)]
pub(crate) struct MiriArgs {
    /// All the tests that Miri can run, with strict provenance, threads under several seeds, and on machines of both
    /// byte orders and both widths; goes on where it was interrupted
    #[arg(long)]
    full: bool,
}

/// What the gate looks at.
pub(crate) const PACKAGES: [&str; 2] = ["tlbkit-pagetable", "tlbkit"];

/// What the gate runs: small tests, and of several alike those that differ in what the unsafe code does, for a step takes a hundred
/// times as long. (`tlbkit-addr` forbids unsafe code.)
const SOME: [&str; 3] = [
    // Guarded tables of each layout of slots, with nodes of one size and of several.
    "-p tlbkit-pagetable --lib -- gpt::tests::gpt_ compact_g16 compact_ga kseg0_g16 kseg0_ga paper_g16 paper_ga nodes::",
    // One table of each organisation. `cpt` would also be the one that grows, as `hr` does.
    "-p tlbkit-pagetable --test all -- slab:: pieces:: unwinding::a_ unwinding::the_ unwinding::mpt unwinding::lpt unwinding::ga \
     unwinding::cpt unwinding::hr --skip unwinding::cpt_grows",
    // Each kind of table, and a TLB that hardware loads and one that software loads; copies of user memory, with threads and without.
    "-p tlbkit --test all -- sv39::a_history_of_cpus mips32::a_history_of_cpus guarded::a_history_of_cpus \
     user::a_part user::a_page",
];

/// What takes minutes more: the others of these tests.
const MORE: [&str; 3] = [
    "-p tlbkit-pagetable --lib",
    "-p tlbkit-pagetable --test all -- slab:: pieces:: unwinding::",
    "-p tlbkit --test all -- properties:: user::",
];

/// What is run on every machine.
const EACH: [&str; 7] = [
    "-p tlbkit --test all -- one_cpu:: properties::",
    "-p tlbkit-pagetable --lib",
    "-p tlbkit-pagetable --test all -- slab:: pieces:: unwinding:: formats:: lpt:: mpt_share:: mpt_pairs::",
    "-p tlbkit-pagetable --test all -- mpt:: lpt_properties::",
    "-p tlbkit-pagetable --test all -- gpt_properties:: hashed_properties:: vacant::",
    "-p tlbkit-stlb --test all -- forms:: never_stale::",
    // But for the test that makes 65 551 operations.
    "-p tlbkit-shootdown --test all -- api:: queue:: --skip a_name_is_one_operations",
];

/// What has threads, and so a schedule: once for each seed.
const THREADS: [&str; 5] = [
    "-p tlbkit --test all cpus::",
    "-p tlbkit --test all user::",
    "-p tlbkit-stlb --test all shared_stress::",
    "-p tlbkit-pagetable --test all hashed_threads::",
    "-p tlbkit-pagetable --test all slab::threads_share_a_slab",
];

const SEEDS: u32 = 4;

/// 64 and 32 bits, the low byte first and the high one.
const MACHINES: [&str; 4] = [
    "x86_64-unknown-linux-gnu",
    "i686-unknown-linux-gnu",
    "s390x-unknown-linux-gnu",
    "mips-unknown-linux-gnu",
];

// Proptest looks for its folder of failures, which is outside what Miri shows a program.
const ALWAYS: &str = "-Zmiri-disable-isolation -Zmiri-strict-provenance";

/// Interprets all of the tests of which the gate interprets some.
pub(crate) fn long(shell: &Shell) -> anyhow::Result<()> {
    interpret(shell, &MORE)
}

/// Interprets tests on this machine, with the cases that the gate draws.
fn interpret(shell: &Shell, all: &[&str]) -> anyhow::Result<()> {
    tools::toolchain(shell, tools::NIGHTLY, &["miri", "rust-src"])?;
    for tests in all {
        let test = Line::new("cargo", "+nightly miri test").with(tests.split(' '));
        // Some cases take a hundred times as long as others, so the gate draws the same ones every time.
        let test = test.set("PROPTEST_RNG_SEED", &properties::GATE.to_string());
        shell.run(&test.set("MIRIFLAGS", ALWAYS))?;
    }
    Ok(())
}

/// Runs them.
pub(crate) fn run(shell: &Shell, args: &MiriArgs) -> anyhow::Result<()> {
    if !args.full {
        interpret(shell, &SOME)?;
        return compile(shell);
    }
    tools::toolchain(shell, tools::NIGHTLY, &["miri", "rust-src"])?;
    let mut ledger = Ledger::open("miri")?;
    let mut job = |machine: &str, tests: &str, flags: &str| {
        let line = Line::new("cargo", "+nightly miri test --target").with([machine]).with(tests.split(' '));
        let line = line.set("MIRIFLAGS", &format!("{ALWAYS}{flags}"));
        ledger.job(&line.to_string(), || shell.run(&line))
    };
    for seed in 0..SEEDS {
        for tests in THREADS {
            // Frames are nodes' words and bytes of programs in turn, and Miri's stale values of atomics of two sizes end in an error of
            // its own (rust-lang/miri#5185). Loom has stale values, too.
            let plain =
                if tests.starts_with("-p tlbkit ") { " -Zmiri-disable-weak-memory-emulation" } else { "" };
            job(MACHINES[0], tests, &format!(" -Zmiri-seed={seed}{plain}"))?;
        }
    }
    for machine in MACHINES {
        for tests in EACH {
            job(machine, tests, "")?;
        }
    }
    Ok(())
}

/// As narrow as the narrowest of [`MACHINES`]: 32 bits, the high byte first, no atomic of 64 bits. Its `std` need not be built.
const NARROW: &str = "powerpc-unknown-linux-gnu";

/// Compiles what is run on every machine for a narrow one.
fn compile(shell: &Shell) -> anyhow::Result<()> {
    tools::parts(shell, &[], &[NARROW])?;
    let place = places::target().join("narrow");
    for tests in EACH {
        let tests = tests.split(' ').take_while(|&word| word != "--");
        let check = Line::new("cargo", "check --target").with([NARROW]);
        shell.run(&check.with(["--target-dir", &place.to_string_lossy()]).with(tests))?;
    }
    Ok(())
}
