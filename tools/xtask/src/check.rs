//! The checks that read the code and run none of it.

use crate::shell::{Line, Shell};
use crate::{places, tools};

/// What is a workspace of its own, and the machines that it is built for.
const ISLANDS: [(&str, &[&str]); 5] = [
    ("fuzz", &[]),
    ("examples/cost", &["riscv64gc-unknown-none-elf", "aarch64-unknown-none", "x86_64-unknown-none"]),
    ("examples/embed", &["riscv64gc-unknown-none-elf"]),
    ("examples/kernel", &["riscv64gc-unknown-none-elf", "aarch64-unknown-none", "x86_64-unknown-none"]),
    (
        "examples/judge",
        &[
            "riscv64gc-unknown-none-elf",
            "riscv32imac-unknown-none-elf",
            "aarch64-unknown-none",
            "x86_64-unknown-none",
        ],
    ),
];

/// Nothing but a nightly compiler knows their machines, and what that one warns of changes from night to night.
const NIGHTLY: [&str; 3] = ["examples/malta", "examples/mips32", "examples/mips3"];

/// Is everything formatted?
pub(crate) fn format(shell: &Shell) -> anyhow::Result<()> {
    tools::parts(shell, &["rustfmt"], &[])?;
    shell.run(&Line::new("cargo", "fmt --all --check"))?;
    for folder in ISLANDS.map(|(folder, _)| folder).into_iter().chain(NIGHTLY) {
        shell.run(&Line::new("cargo", "fmt --check --manifest-path").with([manifest(folder)]))?;
    }
    Ok(())
}

/// Has clippy nothing to say, of any target of any package?
pub(crate) fn clippy(shell: &Shell) -> anyhow::Result<()> {
    lint(shell, &["--workspace".into()])
}

/// The same of these packages, and of what is a workspace of its own.
pub(crate) fn clippy_of(shell: &Shell, packages: &[String]) -> anyhow::Result<()> {
    lint(shell, &places::chosen(packages))
}

fn lint(shell: &Shell, packages: &[String]) -> anyhow::Result<()> {
    let machines: Vec<_> = ISLANDS.iter().flat_map(|(_, machines)| *machines).copied().collect();
    tools::parts(shell, &["clippy"], &machines)?;
    let deny = ["--", "-D", "warnings"];
    shell.run(&Line::new("cargo", "clippy --all-targets").with(packages.iter().cloned()).with(deny))?;
    for (folder, machines) in ISLANDS {
        let place = places::target().join("islands");
        let line = Line::new("cargo", "clippy --manifest-path").with([manifest(folder)]);
        let line = line.with(["--target-dir", &place.to_string_lossy()]);
        shell.run(&line.with(machines.iter().flat_map(|machine| ["--target", machine])).with(deny))?;
    }
    Ok(())
}

fn manifest(folder: &str) -> String {
    format!("{folder}/Cargo.toml")
}
