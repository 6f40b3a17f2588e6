//! `cargo xtask boot`: the kernels of `examples/mips32`, `examples/mips3` and `examples/kernel` in QEMU.
//!
//! Without `--machine` it is the first, which measures refill handlers on one CPU: one boot a table. `--cpu R4000` is the kernel for
//! MIPS III, one boot and a row for each table. With `--machine` it is the third, one boot and one row, or with `--work` one of its
//! workloads.
//!
//! What the kernel says is shown; the lines that it means for this program become rows, and the rows a table at the end, or with
//! `--json` the output.

use anyhow::{bail, ensure};
use clap::{Args, ValueEnum};
use serde_json::Value;

use tlbkit_shell::ledger::Ledger;
use tlbkit_shell::{Shell, misused, near};

mod break_even;
mod compare;
pub mod cost;
mod elsewhere;
pub mod judge;
mod kernel;
mod machine;
mod moving;
mod protocols;
mod qemu;
mod row;
mod superpage;
pub mod verdicts;
mod witness;

use kernel::Architecture;
use machine::Machine;
use row::Row;
use tlbkit_names::{
    C128K, G8, G16, G64, G256, GA, H8K, H128K, HR, LPT, MPT, ON_MIPS32, S8K_G16, S8K_GA, S8K_MPT, S128K_G16,
    S128K_LPT, S128K_MPT,
};

/// Every table that is booted unless some are named: each alone, then those behind a software TLB cache.
const TABLES: [&str; 17] = [
    MPT, LPT, G8, G16, G64, G256, GA, H8K, H128K, HR, C128K, S8K_MPT, S128K_MPT, S8K_G16, S128K_G16, S8K_GA,
    S128K_LPT,
];

/// Refills of random stress for each table.
const STRESS: u32 = 1_000_000;

/// The CPU that has scratch registers.
const SCRATCH: &str = "P5600";

/// Boot a kernel in QEMU: on MIPS32, its TLB refilled from every page table; or on a machine, with programs that check themselves
#[derive(Args, Clone, Debug)]
pub struct BootArgs {
    /// Boot examples/kernel on this machine [default: boot examples/mips32]
    #[arg(long, value_enum)]
    machine: Option<Architecture>,
    /// The CPU: 4Kc or 4KEcR1 (release 1), 4KEc, 24Kf, 34Kf, 74Kf, P5600, or R4000 (MIPS III, all its tables at once) [default:
    /// 34Kf]. With --machine aarch64, as QEMU names it: cortex-a72 leaves the dirty state to software
    /// [default: max]
    #[arg(long)]
    cpu: Option<String>,
    /// Tables to boot, as `tlblab tables` names them, with `S8k/` or `S128k/` in front for a software TLB cache
    /// [default: all]. With --machine mips32: `guarded`, the page tables of all address spaces [default: multi-level ones]
    #[arg(long, value_name = "NAME", num_args = 1.., value_delimiter = ',')]
    table: Vec<String>,
    /// How many CPUs (--machine)
    #[arg(long, default_value_t = 1)]
    cpus: usize,
    /// Where the refill handler has the root of the running table
    #[arg(long, value_enum, default_value_t = Root::ErrorEpc, conflicts_with = "work")]
    root: Root,
    /// Boot the big-endian kernel
    #[arg(long)]
    big_endian: bool,
    /// Random changes and accesses, a million refills for each table, against a model. Goes on where it was interrupted. With
    /// --machine: a million operations, or ten thousand shootdowns by each protocol
    #[arg(long)]
    stress: bool,
    /// Plant a fault: the checks must fail
    #[arg(long, value_enum)]
    inject: Option<Inject>,
    /// Boot one of the workloads of the papers
    #[arg(long, value_enum, conflicts_with_all = ["table", "witness"])]
    work: Option<Work>,
    /// Record what concerns translations, and let the witness check the record: docs/witness.md (--machine)
    #[arg(long, requires = "machine", conflicts_with = "stress")]
    witness: bool,
    /// How CPUs flush each other's TLBs (--machine aarch64) [default: broadcast]
    #[arg(long, value_enum, requires = "machine")]
    shootdown: Option<Shootdown>,
    /// When CPUs flush what programs have unmapped (--machine, several CPUs) [default: at-once]
    #[arg(long, value_enum, requires = "machine")]
    unmaps: Option<Unmaps>,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

/// When the pages that a program has unmapped are flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Unmaps {
    /// Before the call returns
    AtOnce,
    /// When their frames are wanted again, or their addresses are
    Deferred,
}

/// What flushes the TLB of another CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shootdown {
    /// An instruction of the CPU that has made the change, which reaches all: no CPU is interrupted
    Broadcast,
    /// The CPU itself, as it is interrupted
    Interrupts,
}

/// Where a refill handler finds the root of the running table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Root {
    /// In ErrorEPC
    ErrorEpc,
    /// In memory
    Block,
    /// In KScratch1, as for the others on a CPU that has them: P5600
    Kscratch1,
    Kscratch2,
    Kscratch3,
}

impl Root {
    /// Returns the word that the kernel knows it by.
    fn word(self) -> String {
        let name = self.to_possible_value();
        format!("root={}", name.as_ref().map_or("", |name| name.get_name()))
    }
}

/// A workload of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Work {
    /// A client and a chain of servers over linear page tables, under Bala's schemes
    Ipc,
    /// Messages that are copied or remapped from one address space to another: Tzou's Figures 5.5 and 5.6 (--machine)
    Moving,
    /// Every shootdown algorithm that suits the machine, under page-out and messages: Tzou's chapters 3 and 5 (--machine mips32,
    /// several CPUs)
    Protocols,
    /// Pages that grow where the TLB misses, and the host's policy beside that of the kernel (--machine mips32)
    Superpage,
}

impl Work {
    /// Returns the word that the kernels know it by.
    const fn name(self) -> &'static str {
        match self {
            Self::Ipc => "ipc",
            Self::Moving => "moving",
            Self::Protocols => "protocols",
            Self::Superpage => "superpage",
        }
    }
}

/// A fault to plant.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Inject {
    /// Pages are unmapped without a flush of the TLB
    DropFlush,
    /// A guard, or a tag, is another one for a while
    CorruptGuard,
    /// Software caches are not told of changes, nor the TLB when address-space numbers begin anew
    SkipInvalidation,
    /// No TLB is flushed at all; with --work protocols, a CPU that is asked to flush its TLB says that it has, and has not
    /// (--machine)
    NoFlush,
    /// A CPU that is asked to flush its TLB says that it has, and does it later (--machine, several CPUs)
    NoWait,
    /// A frame is freed before its page is unmapped (--machine, several CPUs)
    EarlyFree,
    /// A store to a copy-on-write page gets the right to write, and no copy (--machine)
    NoCow,
    /// A CPU that takes up an address space flushes nothing of what changed while it ran another one (--machine, several
    /// CPUs, --witness: QEMU flushes then, so that no program meets it)
    NoSwitchFlush,
}

impl BootArgs {
    /// The CPU that is asked for, or the one that is measured.
    fn cpu(&self) -> &str {
        self.cpu.as_deref().unwrap_or("34Kf")
    }
}

/// Runs it.
///
/// # Errors
///
/// If something is missing, a boot goes wrong or a check fails.
pub fn run(args: &BootArgs) -> anyhow::Result<()> {
    let of_machine = args.machine.is_some() && is_guarded(args);
    for table in args.table.iter().filter(|_| !of_machine) {
        let (_, alone) = tlbkit_names::split(table).unwrap_or((0, table));
        if !ON_MIPS32.contains(&alone) {
            let hint = near::hint(alone, ON_MIPS32);
            misused!(
                "--table: there is no table `{table}`{hint}; choose from {}, S8k/ or S128k/ in front",
                ON_MIPS32.join(", ")
            );
        }
    }
    check_fault(args)?;
    if let Some(machine) = args.machine {
        return kernel::run(&kernel_on(machine, args)?);
    }
    check_root(args)?;
    if args.cpus > 1 {
        misused!("--cpus {} wants --machine: the kernel that measures runs on one CPU", args.cpus);
    }
    if args.cpu() == machine::MIPS_III {
        return wide(args);
    }
    let machine = Machine::new(&Shell::Plain, args.cpu(), args.big_endian, args.json)?;
    match args.work {
        Some(Work::Ipc) => return messages(&machine, args.json),
        Some(work) => misused!("--work {} wants --machine mips32", work.name()),
        None => {}
    }
    let tables = if args.table.is_empty() { TABLES.map(String::from).to_vec() } else { args.table.clone() };
    let mut rows = Vec::new();
    let mut curves = break_even::Curves::default();
    let mut failed = Vec::new();
    let mut ledger = ledger(args)?;
    for table in &tables {
        let words = words(args, table);
        let mut boot = || {
            let report = machine.boot(&words)?;
            curves.add(&report.lines);
            let booted = row::rows(args.cpu(), table, &report.lines);
            // A kernel that ended without a word about it has failed, too.
            let failures = booted.iter().map(|row: &Row| row.failures).sum::<u64>();
            rows.extend(booted);
            match report.error {
                Some(error) => bail!("{error}"),
                None => ensure!(failures == 0, "{table}: {failures} checks failed"),
            }
            Ok(())
        };
        let outcome = match &mut ledger {
            Some(ledger) => ledger.job(&machine.job(&words), boot),
            None => boot(),
        };
        failed.extend(outcome.err().map(|error| format!("{error:#}")));
    }
    // Without wishes, everything else that the kernel can show.
    if args.table.is_empty() && args.inject.is_none() && !args.stress {
        // Processes that send messages have tables of their own.
        let report = machine.boot("work=ipc")?;
        let failures = row::failures(&report.lines);
        if failures > 0 || report.error.is_some() {
            failed.push(report.error.unwrap_or_else(|| format!("messages: {failures} checks failed")));
        }
        if args.cpu.is_none() && !args.big_endian && !args.json {
            match elsewhere::run(args.json) {
                Ok(text) => print!("{text}"),
                Err(error) => failed.push(format!("{error:#}")),
            }
            // What examples/kernel has of the papers.
            let machine = Architecture::Mips32;
            for work in [Work::Moving, Work::Superpage, Work::Protocols] {
                let cpus = if work == Work::Protocols { 4 } else { 1 };
                let boot = BootArgs { machine: Some(machine), cpus, work: Some(work), ..args.clone() };
                let booted = kernel_on(machine, &boot).and_then(|boot| kernel::run(&boot));
                failed.extend(booted.err().map(|error| format!("{error:#}")));
            }
        }
    }
    if args.json {
        println!("{:#}", Value::from_iter(rows.iter().map(Row::json)));
    } else {
        print!("{}{}", compare::table(&rows), curves.table());
    }
    match failed.as_slice() {
        [] => Ok(()),
        [only] => bail!("{only}"),
        [first, rest @ ..] => bail!("{first}; and {} more", rest.len()),
    }
}

/// Checks that none of these options is given with another.
fn none_of(given: &[(&str, bool)], with: &str) -> anyhow::Result<()> {
    match given.iter().find(|(_, given)| *given) {
        Some((option, _)) => misused!("{option} does not go with {with}: leave one of them out"),
        None => Ok(()),
    }
}

/// Returns the boot of the kernel whose programs check themselves.
/// Returns the names of the machines that `--machine` knows.
pub fn machines() -> impl Iterator<Item = String> {
    let names = Architecture::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    names.map(|name| name.get_name().to_owned())
}

fn kernel_on(machine: Architecture, args: &BootArgs) -> anyhow::Result<kernel::Boot<'_>> {
    check_machine(machine, args)?;
    Ok(kernel::Boot {
        machine,
        cpu: args.cpu.as_deref(),
        cpus: args.cpus,
        work: args.work,
        stress: args.stress,
        inject: args.inject.map(Inject::name),
        witness: args.witness,
        interrupts: args.shootdown == Some(Shootdown::Interrupts),
        defers: args.unmaps == Some(Unmaps::Deferred),
        guarded: is_guarded(args),
        json: args.json,
    })
}

/// Checks that the machine has what is asked for.
fn check_machine(machine: Architecture, args: &BootArgs) -> anyhow::Result<()> {
    let given = [
        ("--cpu", args.cpu.is_some() && machine != Architecture::Aarch64),
        ("--table", !(args.table.is_empty() || is_guarded(args) && machine == Architecture::Mips32)),
        ("--root", args.root != Root::ErrorEpc),
        ("--big-endian", args.big_endian),
        ("--work ipc", args.work == Some(Work::Ipc)),
    ];
    none_of(&given, "--machine")?;
    let (is_mips32, several) = (machine == Architecture::Mips32, args.cpus > 1);
    match args.work {
        Some(Work::Protocols) if !(is_mips32 && several) => {
            misused!(
                "--work protocols wants --machine mips32 --cpus 4: only software that loads TLBs suits every order"
            )
        }
        Some(Work::Superpage) if !is_mips32 => {
            misused!("--work superpage wants --machine mips32: no other one tells of TLB misses")
        }
        Some(Work::Moving) if several => misused!("--work moving wants one CPU: leave --cpus out"),
        Some(Work::Moving | Work::Superpage) => {
            none_of(
                &[("--stress", args.stress), ("--inject", args.inject.is_some())],
                "--work moving or superpage",
            )?;
        }
        _ => {}
    }
    if let (Architecture::X86_64, Some(fault @ Inject::NoSwitchFlush)) = (machine, args.inject) {
        misused!("--inject {} is no fault on x86_64: without PCIDs a load of CR3 flushes", fault.name());
    }
    if args.witness && is_guarded(args) {
        misused!(
            "--witness does not go with --table {GUARDED}: it knows the tables that hardware could walk"
        );
    }
    if args.unmaps.is_some() && !several {
        misused!("--unmaps wants several CPUs: give --cpus 4");
    }
    if args.shootdown.is_some() && machine != Architecture::Aarch64 {
        misused!(
            "--shootdown wants --machine aarch64: no other one flushes the TLBs of others by an instruction"
        );
    }
    Ok(())
}

/// The name of the tables that examples/kernel has on MIPS32 if it is told so.
const GUARDED: &str = "guarded";

/// Tells whether address spaces are to have guarded tables.
fn is_guarded(args: &BootArgs) -> bool {
    args.table == [GUARDED]
}

impl Inject {
    /// The fault's name, on the command line and for the kernels.
    const fn name(self) -> &'static str {
        match self {
            Self::DropFlush => "drop-flush",
            Self::CorruptGuard => "corrupt-guard",
            Self::SkipInvalidation => "skip-invalidation",
            Self::NoFlush => "no-flush",
            Self::NoWait => "no-wait",
            Self::EarlyFree => "early-free",
            Self::NoCow => "no-cow",
            Self::NoSwitchFlush => "no-switch-flush",
        }
    }
}

/// Checks that the fault that is asked for can be planted: one that is not would be one that nothing has noticed.
fn check_fault(args: &BootArgs) -> anyhow::Result<()> {
    use Inject::{
        CorruptGuard, DropFlush, EarlyFree, NoCow, NoFlush, NoSwitchFlush, NoWait, SkipInvalidation,
    };

    let Some(inject) = args.inject else { return Ok(()) };
    if matches!((args.machine, inject, args.witness), (Some(_), NoSwitchFlush, false)) {
        misused!("--inject {} wants --witness: no program meets it in QEMU", inject.name());
    }
    let wide = args.cpu() == machine::MIPS_III;
    let wants = match (args.machine, inject, args.cpus) {
        (Some(_), NoFlush | NoCow, _) | (Some(_), NoWait | EarlyFree | NoSwitchFlush, 2..) => return Ok(()),
        (None, CorruptGuard, _) if wide => "a CPU of 32 bits: leave --cpu out",
        (None, DropFlush | CorruptGuard | SkipInvalidation, ..2) => return Ok(()),
        (Some(_), NoWait | EarlyFree | NoSwitchFlush, _) => "several CPUs: give --cpus 4",
        (None, DropFlush | CorruptGuard | SkipInvalidation, _) => "one CPU: leave --cpus out",
        (Some(_), DropFlush | CorruptGuard | SkipInvalidation, _) => "the tables: leave --machine out",
        (None, NoFlush | NoWait | EarlyFree | NoCow | NoSwitchFlush, _) => "a machine: give --machine",
    };
    misused!("--inject {} wants {wants}", inject.name())
}

/// Boots the kernel for MIPS III: all tables, alone and behind each cache, under random changes and accesses.
fn wide(args: &BootArgs) -> anyhow::Result<()> {
    let given = [
        ("--table", !args.table.is_empty()),
        ("--work", args.work.is_some()),
        ("--root", args.root != Root::ErrorEpc),
        ("--big-endian", args.big_endian),
        ("--stress", args.stress),
    ];
    none_of(&given, &format!("--cpu {}", machine::MIPS_III))?;
    let (rows, checks) = elsewhere::wide(args.json, injected(args).trim())?;
    if args.json {
        println!("{:#}", Value::from_iter(rows));
    } else {
        println!("{:<12}{:>10}{:>10}{:>10}", "table", "refills", "faults", "checks");
        for row in &rows {
            let name = row["table"].as_str().unwrap_or_default();
            let [refills, faults, checks] =
                ["refills", "faults", "checks"].map(|field| row[field].as_u64().unwrap_or(0));
            println!("{name:<12}{refills:>10}{faults:>10}{checks:>10}");
        }
        println!("{checks} checks, none failed");
    }
    Ok(())
}

/// Checks that the CPU has the register that the root is to be in.
fn check_root(args: &BootArgs) -> anyhow::Result<()> {
    let anywhere = matches!(args.root, Root::ErrorEpc | Root::Block);
    if !(anywhere || args.cpu() == SCRATCH) {
        misused!("--{} wants scratch registers: give --cpu {SCRATCH}", args.root.word().replace('=', " "));
    }
    Ok(())
}

/// Opens the ledger of the long form. What is read by programs is whole, or planted to fail, so it has none.
fn ledger(args: &BootArgs) -> anyhow::Result<Option<Ledger>> {
    let long = args.stress && args.inject.is_none() && !args.json;
    long.then(|| Ledger::open("boot")).transpose()
}

/// Boots the processes that send messages. The rows are the lines that the kernel means for programs.
fn messages(machine: &Machine, json: bool) -> anyhow::Result<()> {
    let report = machine.boot("work=ipc")?;
    let rows: Vec<_> = report.lines.iter().filter_map(|line| row::said(line)).collect();
    if json {
        println!("{:#}", Value::from_iter(rows));
    }
    match (report.error, row::failures(&report.lines)) {
        (Some(error), _) => bail!("{error}"),
        (None, 0) => Ok(()),
        (None, failures) => bail!("{failures} checks failed"),
    }
}

/// Returns the word for a planted fault.
fn injected(args: &BootArgs) -> String {
    args.inject.map(|inject| format!(" inject={}", inject.name())).unwrap_or_default()
}

/// Returns the kernel's command line.
fn words(args: &BootArgs, table: &str) -> String {
    let mut words = format!("table={table}");
    if args.root != Root::ErrorEpc {
        words += &format!(" {}", args.root.word());
    }
    if args.stress {
        words += &format!(" work=stress refills={STRESS}");
    } else if args.inject.is_some() {
        words += " work=stress";
    }
    words + &injected(args)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Boot {
        #[command(flatten)]
        args: BootArgs,
    }

    /// A fault that the kernel does not plant on so many CPUs is refused, by a word on what it wants.
    #[test]
    fn a_fault_that_cannot_be_planted_is_refused() {
        let check = |words: &[&str]| {
            let boot = Boot::try_parse_from([&["boot"], words].concat()).unwrap();
            check_fault(&boot.args).map_err(|error| error.to_string())
        };
        let refused = check(&["--inject", "no-flush"]).unwrap_err();
        assert!(refused.contains("no-flush") && refused.contains("--machine"), "{refused}");
        let protocols = ["--machine", "mips32", "--work", "protocols", "--cpus", "2"];
        assert_eq!(check(&[&protocols[..], &["--inject", "no-flush"]].concat()), Ok(()));
        for fault in ["drop-flush", "corrupt-guard", "skip-invalidation"] {
            assert_eq!(check(&["--inject", fault]), Ok(()));
            assert!(check(&["--inject", fault, "--cpus", "4"]).is_err(), "{fault}");
        }
        assert_eq!(check(&["--cpus", "4"]), Ok(()));
        for fault in ["no-wait", "early-free", "no-switch-flush"] {
            assert!(check(&["--inject", fault, "--cpus", "4"]).unwrap_err().contains("--machine"));
            let on = ["--machine", "riscv64", "--witness", "--inject", fault];
            assert!(check(&on).unwrap_err().contains("--cpus"));
            assert_eq!(check(&[&on[..], &["--cpus", "4"]].concat()), Ok(()));
        }
        let hidden = ["--machine", "riscv64", "--inject", "no-switch-flush", "--cpus", "4"];
        assert!(check(&hidden).unwrap_err().contains("--witness"));
        for machine in ["riscv64", "aarch64", "mips32", "x86_64"] {
            for fault in ["no-flush", "no-cow"] {
                assert_eq!(check(&["--machine", machine, "--inject", fault]), Ok(()));
            }
        }
        assert!(check(&["--machine", "riscv64", "--inject", "drop-flush"]).is_err());
        assert!(check(&["--cpu", "R4000", "--inject", "corrupt-guard"]).is_err());
        assert_eq!(check(&["--cpu", "R4000", "--inject", "drop-flush"]), Ok(()));
    }

    /// What is not recorded, or is more than a record holds, is not witnessed.
    #[test]
    fn a_witness_where_it_means_nothing_is_refused() {
        let parse = |words: &[&str]| Boot::try_parse_from([&["boot", "--witness"], words].concat());
        assert!(parse(&["--machine", "riscv64", "--cpus", "4"]).is_ok());
        assert!(parse(&[]).unwrap_err().to_string().contains("--machine"));
        assert!(parse(&["--machine", "riscv64", "--stress"]).unwrap_err().to_string().contains("--stress"));
    }

    /// A CPU by its name, and a choice of what flushes, are for the machine that has several.
    #[test]
    fn what_a_machine_does_not_have_is_refused() {
        let check = |words: &[&str]| {
            let boot = Boot::try_parse_from([&["boot"], words].concat()).unwrap();
            check_machine(boot.args.machine.unwrap(), &boot.args).map_err(|error| error.to_string())
        };
        for option in [["--cpu", "cortex-a72"], ["--shootdown", "interrupts"]] {
            assert_eq!(check(&[&["--machine", "aarch64"], &option[..]].concat()), Ok(()));
            for machine in ["riscv64", "mips32", "x86_64"] {
                let refused = check(&[&["--machine", machine], &option[..]].concat()).unwrap_err();
                assert!(refused.contains(option[0]), "{refused}");
            }
        }
        let unmaps = ["--machine", "riscv64", "--unmaps", "deferred"];
        assert!(check(&unmaps).unwrap_err().contains("--cpus"));
        assert_eq!(check(&[&unmaps[..], &["--cpus", "4"]].concat()), Ok(()));
        assert!(check(&["--machine", "aarch64", "--table", "MPT"]).is_err());
        assert_eq!(check(&["--machine", "mips32", "--table", "guarded"]), Ok(()));
        for words in [["riscv64", "--table", "guarded"], ["mips32", "--table", "MPT"]] {
            assert!(
                check(&[&["--machine"], &words[..]].concat()).unwrap_err().contains("--table"),
                "{words:?}"
            );
        }
        assert_eq!(check(&["--machine", "mips32", "--work", "protocols", "--cpus", "4"]), Ok(()));
        assert_eq!(check(&["--machine", "riscv64", "--work", "moving"]), Ok(()));
        for words in [
            &["riscv64", "--work", "protocols", "--cpus", "4"][..],
            &["mips32", "--work", "protocols"],
            &["x86_64", "--work", "superpage"],
            &["mips32", "--work", "moving", "--cpus", "2"],
            &["mips32", "--work", "moving", "--stress"],
            &["mips32", "--work", "ipc"],
        ] {
            assert!(check(&[&["--machine"], words].concat()).unwrap_err().contains("--work"), "{words:?}");
        }
        let witnessed = check(&["--machine", "mips32", "--table", "guarded", "--witness"]).unwrap_err();
        assert!(witnessed.contains("--witness"), "{witnessed}");
    }

    /// The names that the kernels know are those of the command line.
    #[test]
    fn a_fault_and_a_work_have_one_name() {
        for inject in Inject::value_variants() {
            assert_eq!(inject.to_possible_value().unwrap().get_name(), inject.name());
        }
        for work in Work::value_variants() {
            assert_eq!(work.to_possible_value().unwrap().get_name(), work.name());
        }
    }

    /// A root in a register that the CPU does not have is refused, and so is what the kernel for MIPS III does not do.
    #[test]
    fn what_a_cpu_does_not_have_is_refused() {
        let parse = |words: &[&str]| Boot::try_parse_from([&["boot"], words].concat()).unwrap().args;
        for root in ["kscratch1", "kscratch2", "kscratch3"] {
            let error = check_root(&parse(&["--root", root])).unwrap_err().to_string();
            assert_eq!(error, format!("--root {root} wants scratch registers: give --cpu P5600"));
            assert!(check_root(&parse(&["--root", root, "--cpu", "4Kc"])).is_err());
            assert!(check_root(&parse(&["--root", root, "--cpu", "P5600"])).is_ok());
        }
        for root in ["block", "error-epc"] {
            assert!(check_root(&parse(&["--root", root, "--cpu", "4Kc"])).is_ok());
        }
        for words in [["--table", "MPT"], ["--root", "block"], ["--work", "ipc"]] {
            let error = wide(&parse(&[&["--cpu", "R4000"], words.as_slice()].concat())).unwrap_err();
            let says = format!("{} does not go with --cpu R4000: leave one of them out", words[0]);
            assert_eq!(error.to_string(), says);
        }
    }
}
