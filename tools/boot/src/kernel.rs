//! The kernel of `examples/kernel`, for one CPU and for several: on RISC-V and on AArch64, QEMU's machine `virt`, on
//! MIPS32 its Malta with P5600 cores, on x86-64 its PC. For one CPU there is also the kernel of `docs/embedding.md`, but on MIPS32.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use serde_json::Value;
use tlbkit_witness::check::Arch;

use super::witness::{self, Record};
use super::{Work, moving, protocols, qemu, row, superpage};
use tlbkit_shell::{Line, Shell, misused, places, tools};

const FOLDER: &str = "examples/kernel";

/// What differs from machine to machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Board {
    pub(super) target: &'static str,
    qemu: &'static str,
    package: &'static str,
    /// Whether Rust has no libraries for the target, so that `core` is built with the kernel.
    builds_core: bool,
    /// QEMU's words for the board.
    words: &'static str,
    /// The most CPUs.
    cpus: usize,
    /// The last line that the firmware says begins like this, if it says anything.
    firmware: Option<&'static str>,
    /// What the witness knows of the machine.
    witness: witness::Machine,
    /// Whether there is a kernel of the guide.
    has_guide: bool,
}

/// A machine that examples/kernel runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Architecture {
    Aarch64,
    Mips32,
    Riscv64,
    #[value(name = "x86_64")]
    X86_64,
}

impl Architecture {
    pub(super) const fn board(self) -> Board {
        match self {
            Self::Aarch64 => Board {
                target: "aarch64-unknown-none",
                qemu: "qemu-system-aarch64",
                package: "qemu-system-arm",
                builds_core: false,
                words: "-M virt,gic-version=2 -cpu max",
                cpus: 8,
                firmware: None,
                witness: witness::Machine {
                    arch: Arch::Aarch64,
                    name: "aarch64",
                    memory: 0x4000_0000,
                    size: "1G",
                },
                has_guide: true,
            },
            Self::Mips32 => Board {
                target: "mipsel-unknown-none",
                qemu: "qemu-system-mipsel",
                package: "qemu-system-mips",
                builds_core: true,
                words: "-M malta -cpu P5600 -semihosting-config enable=on,target=native",
                cpus: 4,
                firmware: None,
                witness: witness::Machine { arch: Arch::Mips32, name: "mips32", memory: 0, size: "256M" },
                has_guide: false,
            },
            Self::Riscv64 => Board {
                target: "riscv64gc-unknown-none-elf",
                qemu: "qemu-system-riscv64",
                package: "qemu-system-misc",
                builds_core: false,
                words: "-M virt",
                cpus: 8,
                firmware: Some("Boot HART MEDELEG"),
                witness: witness::Machine { arch: Arch::Sv39, name: "sv39", memory: 0x8000_0000, size: "1G" },
                has_guide: true,
            },
            Self::X86_64 => Board {
                target: "x86_64-unknown-none",
                qemu: "qemu-system-x86_64",
                package: "qemu-system-x86",
                builds_core: false,
                words: "-M q35 -cpu max",
                cpus: 8,
                firmware: Some("Booting from ROM"),
                witness: witness::Machine { arch: Arch::X86_64, name: "x86_64", memory: 0, size: "1G" },
                has_guide: true,
            },
        }
    }
}

/// Seconds that a boot may take. One takes seconds, under stress minutes.
const LIMIT: [&str; 2] = ["300", "1800"];

/// The logarithm of the nanoseconds that an instruction takes, on a CPU that is alone.
const SHIFT: u32 = 4;

/// Operations that the programs come to under stress, and shootdowns of each protocol.
const STRESS: usize = 1_000_000;
const SHOOTDOWNS: usize = 10_000;

/// What is booted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Boot<'a> {
    pub(super) machine: Architecture,
    /// QEMU's name of another CPU than the board's own.
    pub(super) cpu: Option<&'a str>,
    pub(super) cpus: usize,
    /// What runs in place of the programs.
    pub(super) work: Option<Work>,
    pub(super) stress: bool,
    /// The fault that is planted.
    pub(super) inject: Option<&'static str>,
    /// The kernel records what concerns translations, and the witness checks that.
    pub(super) witness: bool,
    /// A CPU's TLB is flushed by that CPU alone, where another one could.
    pub(super) interrupts: bool,
    /// Unmaps that programs ask for wait with their flush.
    pub(super) defers: bool,
    /// Address spaces have guarded page tables.
    pub(super) guarded: bool,
    pub(super) json: bool,
}

impl Boot<'_> {
    /// Tells whether the kernel of the guide is booted before this one.
    fn has_guide(&self) -> bool {
        let plain = !self.stress && self.inject.is_none() && !self.witness && self.work.is_none();
        self.machine.board().has_guide && self.cpus == 1 && plain
    }
}

/// What a boot came to.
pub(super) struct Booted {
    pub(super) rows: Vec<Value>,
    /// What a workload has said beside the row.
    pub(super) lines: Vec<String>,
    /// What the witness says of its record.
    pub(super) witnessed: Option<witness::Outcome>,
    /// Whether it came to its end, and nothing failed.
    pub(super) outcome: anyhow::Result<()>,
}

/// Boots a kernel that is alone on one CPU, where each instruction takes a nanosecond of the machine's time. Returns the lines that begin
/// with `begin`.
///
/// # Errors
///
/// If QEMU is missing, or the kernel has not come to its end, or says that something failed.
pub(super) fn count(
    shell: &Shell,
    machine: Architecture,
    kernel: &Path,
    begin: &str,
) -> anyhow::Result<Vec<Value>> {
    let board = &machine.board();
    tools::program(shell, board.qemu, board.package)?;
    let line = qemu::line(LIMIT[0], board.qemu, board.words)
        .with("-m 256M -smp 1 -icount shift=0,sleep=off".split(' '));
    let line = line.with(["-kernel", &kernel.to_string_lossy()]);
    let (mut lines, mut rows, mut rest) = (Vec::new(), Vec::new(), String::new());
    let status = qemu::listen(&line, |text| match row::said(text) {
        Some(row) if text.starts_with(begin) => lines.push(row),
        Some(row) if text.starts_with("row ") => rows.push(row),
        _ => rest += &format!("{text}\n"),
    })?;
    outcome(&line, &rows, status).with_context(|| rest)?;
    Ok(lines)
}

/// Builds the kernel and its programs, boots them, and shows the row.
///
/// # Errors
///
/// If something is missing, the boot goes wrong or a check fails.
pub(super) fn run(boot: &Boot<'_>) -> anyhow::Result<()> {
    let say = |text: &str| if boot.json { eprintln!("{text}") } else { println!("{text}") };
    let Booted { mut rows, lines, witnessed, outcome } = boot_with(boot, &say)?;
    if let (Some(row), Some(witnessed)) = (rows.first_mut(), &witnessed) {
        row["witness"] = witnessed.json();
    }
    // Also for a program that reads the rows: the host's policy answers, too.
    let told = match boot.work {
        // What a kernel that failed has not said is no error of its own.
        Some(Work::Moving | Work::Superpage) if outcome.is_err() => String::new(),
        Some(Work::Moving) => moving::text(&lines)?,
        Some(Work::Protocols) => protocols::text(&lines),
        Some(Work::Superpage) => superpage::text(&lines)?,
        Some(Work::Ipc) => String::new(),
        None => rows.iter().map(text).collect(),
    };
    if boot.json {
        println!("{:#}", Value::from_iter(lines.iter().filter_map(|line| row::said(line)).chain(rows)));
    } else {
        print!("{told}");
        witnessed.iter().for_each(|witnessed| print!("{}", witnessed.text()));
    }
    match (outcome, witnessed.map_or(Ok(()), |witnessed| witnessed.holds())) {
        (Err(why), Err(more)) => bail!("{why}; {more}"),
        (outcome, witnessed) => outcome.and(witnessed),
    }
}

/// Builds the kernel and its programs, and boots them. Hands each line to `say` that the kernel means for people.
///
/// # Errors
///
/// If something is missing, the kernel of the guide fails, or there is no record where one was to be.
pub(super) fn boot_with(boot: &Boot<'_>, say: &dyn Fn(&str)) -> anyhow::Result<Booted> {
    let board = &boot.machine.board();
    if !(1..=board.cpus).contains(&boot.cpus) {
        misused!("--cpus {}: the kernel runs on 1 to {}", boot.cpus, board.cpus);
    }
    let record = boot.witness.then(|| Record::new(board.witness, boot.cpus)).transpose()?;
    let shell = &Shell::Plain;
    tools::program(shell, board.qemu, board.package)?;
    if board.builds_core {
        tools::toolchain(shell, tools::NIGHTLY, &["rust-src"])?;
    } else {
        tools::parts(shell, &[], &[board.target])?;
    }
    let built = build(shell, boot)?;
    if boot.has_guide() {
        let said = listen(&machine(boot, &built, "tlbkit-embedding", None), board, say)?;
        said.outcome?;
        if !boot.json {
            println!(
                "docs/embedding.md: {} checks\n",
                said.rows.first().map_or(0, |row| number(row, "checks"))
            );
        }
    }
    let Said { rows, lines, recorder, outcome } = listen(&line(boot, &built, record.as_ref()), board, say)?;
    let witnessed = record.map(|record| record.check(recorder.as_ref())).transpose()?;
    Ok(Booted { rows, lines, witnessed, outcome })
}

/// Tells whether a boot has come to its end, one row, and nothing has failed.
fn outcome(line: &Line, rows: &[Value], status: ExitStatus) -> anyhow::Result<()> {
    let failures = match rows {
        [row] => row["failures"].as_u64(),
        _ => None,
    };
    match (failures, status.success()) {
        (Some(0), true) => Ok(()),
        (Some(failures), _) if failures > 0 => bail!("{failures} checks failed"),
        _ => bail!("the kernel has not come to its end ({status}); to repeat it: {line}"),
    }
}

/// Returns the folder with the kernel and its programs. The one for one CPU has no shootdown in it.
fn build(shell: &Shell, boot: &Boot<'_>) -> anyhow::Result<PathBuf> {
    let board = &boot.machine.board();
    let features: Vec<_> = [
        (boot.cpus == 1, "one-cpu"),
        // The one for several CPUs can always record.
        (boot.witness && boot.cpus == 1, "witness"),
        (boot.interrupts, "interrupts"),
        (boot.guarded, "guarded"),
        (boot.stress && boot.cpus == 1 && !boot.witness, "longest"),
    ]
    .into_iter()
    .filter_map(|(wanted, feature)| wanted.then_some(feature))
    .collect();
    let folder = ["kernel"].iter().chain(&features).copied().collect::<Vec<_>>().join("-");
    let folder = places::target().join(folder);
    let words = if board.builds_core { "+nightly build -Z build-std=core" } else { "build" };
    let line = Line::new("cargo", words).with("--bin tlbkit-kernel --bin tlbkit-programs".split(' '));
    let line = if boot.has_guide() { line.with(["--bin", "tlbkit-embedding"]) } else { line };
    let line = line.with(["--quiet", "--release", "--manifest-path", &format!("{FOLDER}/Cargo.toml")]);
    let line = line.with(["--target", board.target, "--target-dir"]);
    let line = line.with([folder.to_string_lossy()]);
    // `core` and what no feature changes are built once for all of them.
    let line = line.set("CARGO_BUILD_BUILD_DIR", &places::target().join("kernels").to_string_lossy());
    shell.run(&line.with(["--features", &features.join(",")]))?;
    Ok(folder.join(board.target).join("release"))
}

/// Returns the command line that boots a kernel.
fn machine(boot: &Boot<'_>, built: &Path, kernel: &str, record: Option<&Record>) -> Line {
    let cpus = boot.cpus.to_string();
    let board = boot.machine.board();
    let line = qemu::line(LIMIT[usize::from(boot.stress)], board.qemu, board.words);
    let line = line.with(boot.cpu.iter().flat_map(|cpu| ["-cpu", cpu]));
    let line = match record {
        Some(record) => record.memory(line),
        None => line.with(["-m", "256M"]),
    };
    let line = line.with(["-smp", &cpus]);
    // A CPU that is alone counts its time in instructions, and so every boot is the same.
    let line =
        if boot.cpus == 1 { line.with(["-icount", &format!("shift={SHIFT},sleep=off")]) } else { line };
    line.with(["-kernel", &built.join(kernel).to_string_lossy()])
}

/// Returns the command line that boots the kernel with its programs.
fn line(boot: &Boot<'_>, built: &Path, record: Option<&Record>) -> Line {
    let mut words = format!("cpus={}", boot.cpus);
    if boot.cpus == 1 && record.is_none() {
        // QEMU counts the nanoseconds that the instructions take.
        words += &format!(" costs={}", 1 << SHIFT);
    }
    match boot.work {
        None if boot.stress => words += &format!(" operations={STRESS}"),
        None => {}
        Some(work) => {
            words += &format!(" work={}", work.name());
            if boot.stress {
                words += &format!(" shootdowns={SHOOTDOWNS}");
            }
        }
    }
    if boot.defers {
        words += " unmaps=deferred";
    }
    if record.is_some() {
        words += " witness";
    }
    if let Some(fault) = boot.inject {
        words += &format!(" inject={fault}");
    }
    let programs = built.join("tlbkit-programs");
    machine(boot, built, "tlbkit-kernel", record).with([
        "-initrd",
        &programs.to_string_lossy(),
        "-append",
        &words,
    ])
}

/// What the kernel has said to this program.
struct Said {
    rows: Vec<Value>,
    /// The lines of a workload.
    lines: Vec<String>,
    /// Where its record is.
    recorder: Option<Value>,
    /// Whether all is well.
    outcome: anyhow::Result<()>,
}

/// What begins the lines that a workload means for this program.
const LINES: [&str; 4] = ["protocol ", "moving ", "passing ", superpage::TRANSCRIPT];

/// Runs a boot. What else the kernel says goes to `say`; what the firmware says does not.
///
/// # Errors
///
/// If QEMU cannot be run at all.
fn listen(line: &Line, board: &Board, say: &dyn Fn(&str)) -> anyhow::Result<Said> {
    let (mut rows, mut lines, mut recorder) = (Vec::new(), Vec::new(), None);
    let mut is_kernel = board.firmware.is_none();
    let status = qemu::listen(line, |text| {
        if let Some(row) = text.starts_with("row ").then(|| row::said(text)).flatten() {
            rows.push(row);
        } else if text.starts_with("recorder ") {
            recorder = row::said(text);
        } else if LINES.iter().any(|begin| text.starts_with(begin)) {
            lines.push(text.to_owned());
        } else if is_kernel {
            say(text);
        }
        is_kernel |= board.firmware.is_some_and(|last| text.starts_with(last));
    })?;
    let outcome = outcome(line, &rows, status);
    Ok(Said { rows, lines, recorder, outcome })
}

/// Returns a row for people: a name and a number in each line.
fn text(row: &Value) -> String {
    let head = format!("{}, {} CPUs\n", row["machine"].as_str().unwrap_or("?"), number(row, "cpus"));
    let names = NAMES.iter().chain(LONGEST.iter().filter(|name| row.get(**name).is_some()));
    let line = |name: &str| match (name, number(row, name), number(row, "shootdowns")) {
        ("interrupts", interrupts, shootdowns @ 1..) => {
            let each = interrupts as f64 / shootdowns as f64;
            let operation = interrupts as f64 / number(row, "operations").max(1) as f64;
            format!("{name:<16} {interrupts:>9}, {each:.2} a shootdown, {operation:.3} an operation\n")
        }
        ("churn_interrupts", interrupts, 1..) => {
            let unmap = interrupts as f64 / number(row, "churned").max(1) as f64;
            format!("{name:<16} {interrupts:>9}, {unmap:.3} an unmap\n")
        }
        (_, number, _) => format!("{name:<16} {number:>9}\n"),
    };
    names.fold(head, |text, name| text + &line(name))
}

/// What a row has for every machine.
const NAMES: [&str; 24] = [
    "operations",
    "beside",
    "forks",
    "faults",
    "shootdowns",
    "interrupts",
    "pages_moved",
    "paged_out",
    "paged_in",
    "stayed_in",
    "came_twice",
    "promotions",
    "refusals",
    "demotions",
    "large_copies",
    "own_pages",
    "churned",
    "churn_interrupts",
    "stale_reads",
    "stale_writes",
    "frames_leaked",
    "nodes_leaked",
    "checks",
    "failures",
];

/// The most instructions that a call for 4 GiB executes with interrupts masked, on one CPU under stress: counted in the guest.
const LONGEST: [&str; 4] = ["longest_unmap", "longest_drop", "longest_fork", "longest_copy"];

fn number(row: &Value, name: &str) -> u64 {
    row[name].as_u64().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    /// The files that are compiled and booted. A file of the guide is shown in full, of the others there are parts.
    macro_rules! file {
        ($path:literal) => {
            include_str!(concat!("../../../examples/kernel/", $path))
        };
    }
    const MEMORY: &str = file!("embedding/memory.rs");
    const OWN: &str = file!("embedding/own.rs");
    const UPPER: &str = file!("embedding/upper.rs");
    const SWAP: &str = file!("embedding/swap.rs");
    const CPUS: [&str; 3] = [
        file!("embedding/cpu/riscv64.rs"),
        file!("embedding/cpu/x86_64.rs"),
        file!("embedding/cpu/aarch64.rs"),
    ];
    const PARTS: [&str; 3] =
        [file!("src/memory.rs"), file!("src/arch/mips32/refill.rs"), file!("src/arch/riscv64/mod.rs")];

    /// Returns what a page of the guide shows of files that are compiled elsewhere.
    fn quotations(page: &'static str) -> Vec<&'static str> {
        let blocks = page.split("```rust,ignore\n").skip(1);
        blocks.filter_map(|rest| rest.split("```").next()).collect()
    }

    #[test]
    fn the_guide_shows_what_is_booted() {
        let [riscv64, x86_64, aarch64] = CPUS;
        let pages = [
            (include_str!("../../../docs/embedding.md"), &[MEMORY, OWN, SWAP] as &[_]),
            (include_str!("../../../docs/embedding-riscv64.md"), &[riscv64]),
            (include_str!("../../../docs/embedding-x86_64.md"), &[x86_64]),
            (include_str!("../../../docs/embedding-aarch64.md"), &[aarch64, UPPER]),
            (include_str!("../../../docs/embedding-mips32.md"), &[]),
        ];
        for (page, files) in pages {
            let quotations = quotations(page);
            assert_eq!(quotations[..files.len()], *files);
            for quotation in &quotations[files.len()..] {
                let is_booted = PARTS.iter().any(|file| file.contains(quotation));
                assert!(is_booted, "examples/kernel has no such lines:\n{quotation}");
            }
        }
    }
}
