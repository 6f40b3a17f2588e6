//! `cargo xtask judge`: processors' own MMUs walk our tables, and must find what `lookup` finds.

use tlbkit_shell::{Line, Shell, places, tools};

use crate::qemu;

type Boot = (&'static str, &'static str);

/// A processor as rustc and QEMU know it.
struct Processor {
    target: &'static str,
    program: &'static str,
    /// Debian's package of the program.
    package: &'static str,
    machine: &'static str,
    /// The kernel's Cargo features and further options of QEMU, one boot for each.
    boots: &'static [Boot],
    /// Those that the gate leaves out: what is new in them is in another of its boots, or `manuals.rs`, a test of tlbkit-pagetable,
    /// reads their tables.
    more: &'static [Boot],
}

const PROCESSORS: [Processor; 4] = [
    Processor {
        target: "riscv64gc-unknown-none-elf",
        program: "qemu-system-riscv64",
        package: "qemu-system-misc",
        machine: "-M virt -bios none",
        boots: &[
            ("", ""),
            ("sv48", ""),
            ("svnapot", "-cpu rv64,svnapot=on,svpbmt=on"),
            ("guest", "-cpu rv64,h=true"),
        ],
        more: &[("sv57", ""), ("guest,sv48", "-cpu rv64,h=true")],
    },
    Processor {
        target: "riscv32imac-unknown-none-elf",
        program: "qemu-system-riscv32",
        package: "qemu-system-misc",
        machine: "-M virt -bios none",
        boots: &[("", "")],
        more: &[],
    },
    Processor {
        target: "aarch64-unknown-none",
        program: "qemu-system-aarch64",
        package: "qemu-system-arm",
        machine: "-M virt -cpu max -semihosting",
        boots: &[
            ("", ""),
            ("bbm2", ""),
            ("unmarked", ""),
            ("k64", ""),
            ("lpa2,k16", ""),
            ("guest", "-machine virtualization=on"),
        ],
        more: &[
            ("runs", ""),
            ("k16", ""),
            ("lpa2", ""),
            ("lpa2,k64", ""),
            ("guest,unmarked", "-machine virtualization=on"),
            ("guest,runs", "-machine virtualization=on"),
        ],
    },
    Processor {
        target: "x86_64-unknown-none",
        program: "qemu-system-x86_64",
        package: "qemu-system-x86",
        machine: "-M q35 -cpu max -device isa-debug-exit,iobase=0xf4,iosize=4",
        boots: &[("", ""), ("la57", ""), ("keys", "")],
        more: &[("old", "-cpu max,-nx,-pdpe1gb")],
    },
];

/// Seconds that a processor may take: a table that sends it nowhere makes it hang.
const LIMIT: &str = "300";

/// Builds the kernel for each processor and runs it.
pub fn run(shell: &Shell) -> anyhow::Result<()> {
    judge(shell, true)
}

/// The same with a third of the operations, in fewer boots.
pub fn briefly(shell: &Shell) -> anyhow::Result<()> {
    judge(shell, false)
}

/// Does so whole, or briefly.
fn judge(shell: &Shell, whole: bool) -> anyhow::Result<()> {
    let feature = if whole { "" } else { "brief" };
    let place = places::target().join("judge");
    for processor in PROCESSORS {
        tools::parts(shell, &[], &[processor.target])?;
        tools::program(shell, processor.program, processor.package)?;
        let more = if whole { processor.more } else { &[] };
        for (features, options) in processor.boots.iter().chain(more) {
            let build =
                Line::new("cargo", "build --release --manifest-path examples/judge/Cargo.toml --target-dir");
            let build = build.with([&place.to_string_lossy(), "--target", processor.target]);
            shell.run(&build.with(["--features", &format!("{features},{feature}")]))?;
            let kernel = place.join(processor.target).join("release/tlbkit-judge");
            let boot = qemu::line(LIMIT, processor.program, processor.machine);
            let boot = boot.with(options.split_whitespace()).with(["-m", "256M", "-kernel"]);
            shell.run(&boot.with([kernel.to_string_lossy()]))?;
        }
    }
    Ok(())
}
