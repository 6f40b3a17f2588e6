//! `cargo xtask boot`: the MIPS32 kernel of `examples/mips32` in QEMU.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, bail};
use clap::Args;

use crate::shell::{Line, Shell};
use crate::{places, superpage, tools};

/// The kernel's folder, and its program.
const FOLDER: &str = "examples/mips32";
const PROGRAM: &str = "tlbkit-mips32";

/// The CPUs that the kernel is known to run on.
const CPUS: [&str; 5] = ["24Kf", "34Kf", "74Kf", "4KEc", "P5600"];

/// Seconds until a boot that has not ended counts as failed.
const LIMIT: &str = "300";

/// Boot the MIPS32 kernel in QEMU, its TLB refilled from every page table
#[derive(Args, Debug)]
pub(crate) struct BootArgs {
    /// The CPU: 24Kf, 34Kf, 74Kf, 4KEc or P5600
    #[arg(long, default_value = "24Kf")]
    cpu: String,
    /// Tables to boot, as `tlblab tables` names them [default: all]
    #[arg(long, value_name = "NAME", num_args = 1..)]
    table: Vec<String>,
    /// How many CPUs
    #[arg(long, default_value_t = 1)]
    cpus: usize,
    /// With several CPUs: 10 000 shootdowns of each protocol instead of 1000
    #[arg(long)]
    stress: bool,
    /// Plant a fault that the checks must find: drop-flush, corrupt-guard, skip-invalidation; no-flush (several CPUs)
    #[arg(long, value_name = "FAULT")]
    inject: Option<String>,
    /// Boot the big-endian kernel
    #[arg(long)]
    big_endian: bool,
}

/// Runs it.
pub(crate) fn run(args: &BootArgs) -> anyhow::Result<()> {
    if !CPUS.contains(&args.cpu.as_str()) {
        bail!("no CPU `{}`: choose from {}", args.cpu, CPUS.join(", "));
    }
    let shell = Shell::Plain;
    let kernel = build(&shell, args.big_endian)?;
    let inject = args.inject.iter().map(|fault| format!(" inject={fault}")).collect::<String>();
    if args.cpus > 1 {
        if args.cpu != "P5600" {
            bail!("several CPUs are of the kind P5600: give --cpu P5600");
        }
        let count = if args.stress { 10_000 } else { 1_000 };
        let words = format!("work=shootdown cpus={} shootdowns={count}{inject}", args.cpus);
        return boot(args, &kernel, &words).map(|_| ());
    }
    for table in &args.table {
        boot(args, &kernel, &format!("table={table}{inject}"))?;
    }
    let agreed = superpage::replay(boot(args, &kernel, "work=superpage")?.iter().map(String::as_str))?;
    let superpage::Agreed { misses, promotions, refusals, demotions } = agreed;
    println!(
        "the host, told of the same {misses} misses, gives the same {promotions} promotions, {refusals} refusals and \
         {demotions} demotions, line by line"
    );
    boot(args, &kernel, "work=moving").map(|_| ())
}

/// Returns QEMU's program for an endianness.
fn qemu(big_endian: bool) -> &'static str {
    if big_endian { "qemu-system-mips" } else { "qemu-system-mipsel" }
}

/// Builds the kernel and returns its file.
fn build(shell: &Shell, big_endian: bool) -> anyhow::Result<PathBuf> {
    tools::program(shell, qemu(big_endian), "qemu-system-mips")?;
    tools::toolchain(shell, tools::NIGHTLY, &["rust-src"])?;
    let target = if big_endian { "mips-mti-none-elf" } else { "mipsel-unknown-none" };
    let folder = env::current_dir().context("no working directory")?.join(places::target()).join("mips32");
    // In the kernel's folder, for its configuration.
    let line = Line::new("cargo", "+nightly -Z unstable-options -C").with([FOLDER]);
    let line = line.with(["build", "--release", "--target", target, "--target-dir"]);
    shell.run(&line.with([folder.to_string_lossy()]))?;
    Ok(folder.join(target).join("release").join(PROGRAM))
}

/// Boots the kernel with these words, shows what it prints, and returns that; what is for [`superpage`] is not shown.
fn boot(args: &BootArgs, kernel: &std::path::Path, words: &str) -> anyhow::Result<Vec<String>> {
    let cpus = args.cpus.to_string();
    let line = Line::new("timeout", "-k 5").with([LIMIT, qemu(args.big_endian)]).with(
        "-M malta -m 256 -nographic -no-reboot -semihosting-config enable=on,target=native".split(' '),
    );
    let line = line.with(["-cpu", &args.cpu, "-smp", &cpus]);
    // Alone, a CPU counts its instructions by time: one takes 64 ns.
    let line = if args.cpus == 1 { line.with(["-icount", "shift=6"]) } else { line };
    let line = line.with(["-kernel", &kernel.to_string_lossy(), "-append", words]);
    let mut child = line
        .command()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run `{line}`"))?;
    let output = child.stdout.take().context("no output")?;
    let mut lines = Vec::new();
    for text in BufReader::new(output).lines() {
        let text = text?;
        if !text.starts_with(superpage::MARK) {
            println!("{text}");
        }
        lines.push(text);
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("failed ({status}); to repeat it: {line}");
    }
    Ok(lines)
}
