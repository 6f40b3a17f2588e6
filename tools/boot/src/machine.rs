//! QEMU, and the kernel built for it.

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::{env, fs};

use anyhow::Context;
use tlbkit_shell::{Line, Shell, misused, near, places, tools};

use crate::qemu;

/// The kernel's folder, and its program.
const FOLDER: &str = "examples/mips32";
const PROGRAM: &str = "tlbkit-mips32";

/// The CPUs that the kernel is known to run on.
const CPUS: [&str; 7] = ["4Kc", "4KEcR1", "4KEc", "24Kf", "34Kf", "74Kf", "P5600"];

/// Those among them that know release 1 alone. Rust's targets are of release 2: the kernel is built by other flags, apart.
const RELEASE_1: [&str; 2] = ["4Kc", "4KEcR1"];
/// The compiler does not know the feature by name, and would say so; what is wrong with the kernel the other build says.
const RELEASE_1_FLAGS: &str = r#"["-Ctarget-cpu=mips32", "-Ctarget-feature=-mips32r2", "-Awarnings"]"#;

/// Seconds until a boot that has not ended is begun anew, then counts as failed. One takes seconds, under stress a minute.
const LIMIT: &str = "200";

/// How often a boot is begun: QEMU 7.2's threads have been seen to starve each other.
const TRIES: u32 = 2;

/// Tells whether `timeout` has ended a boot. If QEMU does not end when it is told to, `timeout` kills it, and itself with it.
fn has_timed_out(status: ExitStatus) -> bool {
    status.code().is_some_and(|code| [124, 137].contains(&code)) || status.signal() == Some(9)
}

/// The CPU of MIPS III, the kernel for it, and that kernel's target. The kernel's own configuration makes the target's code
/// code for MIPS III.
pub(crate) const MIPS_III: &str = "R4000";
const WIDE_FOLDER: &str = "examples/mips3";
const WIDE_PROGRAM: &str = "tlbkit-mips3";
const WIDE_TARGET: &str = "mips64el-unknown-linux-gnuabi64";

/// A machine that is ready to boot.
#[derive(Debug)]
pub(crate) struct Machine {
    qemu: &'static str,
    kernel: PathBuf,
    /// The plugin that counts, if one does, and where it writes.
    plugin: Option<PathBuf>,
    counts: PathBuf,
    cpu: String,
    big_endian: bool,
    /// Whether standard output is taken, so that the kernel's goes to standard error.
    quiet: bool,
}

/// What a boot said.
#[derive(Debug)]
pub(crate) struct Report {
    /// The lines that are meant for programs: a word, then `name=value`.
    pub(crate) lines: Vec<String>,
    /// How it ended, if not well.
    pub(crate) error: Option<String>,
}

impl Machine {
    /// Sees to QEMU and Rust's sources, and builds the kernel.
    ///
    /// # Errors
    ///
    /// If the machine does not exist, or something is missing.
    pub(crate) fn new(shell: &Shell, cpu: &str, big_endian: bool, quiet: bool) -> anyhow::Result<Self> {
        if !CPUS.contains(&cpu) {
            let known = CPUS.into_iter().chain([MIPS_III]);
            let names: Vec<_> = known.clone().collect();
            misused!(
                "--cpu: the kernel runs on no `{cpu}`{}; choose from {}",
                near::hint(cpu, known),
                names.join(", ")
            );
        }
        tools::program(shell, program(big_endian), "qemu-system-mips")?;
        tools::toolchain(shell, tools::NIGHTLY, &["rust-src"])?;
        let target = if big_endian { "mips-mti-none-elf" } else { "mipsel-unknown-none" };
        let root = env::current_dir().context("no working directory")?;
        let release1 = RELEASE_1.contains(&cpu);
        let folder = root.join(places::target()).join(if release1 { "mips32r1" } else { "mips32" });
        // In the kernel's folder, for its configuration.
        let line = Line::new("cargo", "+nightly -Z unstable-options -C").with([FOLDER]);
        let line = line.with(["build", "--quiet", "--release", "--target", target, "--target-dir"]);
        let line = line.with([folder.to_string_lossy()]);
        let flags = format!("target.{target}.rustflags={RELEASE_1_FLAGS}");
        let more = ["--features", "release1", "--config", &flags];
        shell.run(&line.with(release1.then_some(more).into_iter().flatten()))?;
        let kernel = folder.join(target).join("release").join(PROGRAM);
        fs::metadata(&kernel).with_context(|| format!("cargo built no {}", kernel.display()))?;
        shell.run(&Line::new("cargo", "build --quiet --release -p tlbkit-count"))?;
        let plugin = root.join(places::target()).join("release").join("libtlbkit_count.so");
        let counts = folder.join(format!("counts-{}", std::process::id()));
        let (qemu, plugin, cpu) = (program(big_endian), Some(plugin), cpu.into());
        Ok(Self { qemu, kernel, plugin, counts, cpu, big_endian, quiet })
    }

    /// The same with the kernel for MIPS III.
    ///
    /// # Errors
    ///
    /// If something is missing.
    pub(crate) fn wide(shell: &Shell, quiet: bool) -> anyhow::Result<Self> {
        let qemu = "qemu-system-mips64el";
        tools::program(shell, qemu, "qemu-system-mips")?;
        tools::toolchain(shell, tools::NIGHTLY, &["rust-src"])?;
        let root = env::current_dir().context("no working directory")?;
        let folder = root.join(places::target()).join("mips3");
        // In the kernel's folder, for its configuration.
        let line = Line::new("cargo", "+nightly -Z unstable-options -C").with([WIDE_FOLDER]);
        let line = line.with(["build", "--quiet", "--release", "--target", WIDE_TARGET, "--target-dir"]);
        shell.run(&line.with([folder.to_string_lossy()]))?;
        let kernel = folder.join(WIDE_TARGET).join("release").join(WIDE_PROGRAM);
        fs::metadata(&kernel).with_context(|| format!("cargo built no {}", kernel.display()))?;
        let counts = folder.join("no-counts");
        let (cpu, big_endian, plugin) = (MIPS_III.into(), false, None);
        Ok(Self { qemu, kernel, plugin, counts, cpu, big_endian, quiet })
    }

    /// Boots the kernel with these words, and shows what it says but for the lines that it says to programs.
    ///
    /// # Errors
    ///
    /// If QEMU cannot be run at all.
    pub(crate) fn boot(&self, words: &str) -> anyhow::Result<Report> {
        let line = self.line(words);
        let (mut lines, mut status) = self.listen(&line)?;
        for _ in 1..TRIES {
            if has_timed_out(status) {
                eprintln!("no end after {LIMIT} s: once more");
                (lines, status) = self.listen(&line)?;
            }
        }
        if let Ok(counts) = fs::read_to_string(&self.counts) {
            fs::remove_file(&self.counts)
                .with_context(|| format!("cannot remove {}", self.counts.display()))?;
            lines.extend(counts.lines().map(String::from));
        }
        let error = match status.code() {
            Some(0) => None,
            // The kernel counts its failed checks itself.
            Some(1) if !lines.is_empty() => None,
            _ if has_timed_out(status) => Some(format!("no end after {LIMIT} s; to repeat it: {line}")),
            _ => Some(format!("the kernel failed ({status}); to repeat it: {line}")),
        };
        Ok(Report { lines, error })
    }

    /// Returns what a boot with these words is called in a ledger.
    pub(crate) fn job(&self, words: &str) -> String {
        let order = if self.big_endian { "big-endian" } else { "little-endian" };
        format!("{}, {order}: {words}", self.cpu)
    }

    /// Returns QEMU's command line.
    fn line(&self, words: &str) -> Line {
        let machine = "-M malta -m 256 -semihosting-config enable=on,target=native";
        let line = qemu::line(LIMIT, self.qemu, machine);
        // Instructions are counted by time: one takes 64 ns.
        let line = line.with(["-cpu", &self.cpu, "-icount", "shift=6"]);
        let plugin = self
            .plugin
            .as_ref()
            .map(|plugin| format!("file={},out={}", plugin.display(), self.counts.display()));
        let line = line.with(plugin.iter().flat_map(|plugin| ["-plugin", plugin.as_str()]));
        line.with(["-kernel", &self.kernel.to_string_lossy(), "-append", words])
    }

    /// Runs a command line; returns the lines for programs, and how it ended.
    fn listen(&self, line: &Line) -> anyhow::Result<(Vec<String>, ExitStatus)> {
        let mut lines = Vec::new();
        let status = qemu::listen(line, |text| {
            let row = text.contains('=')
                && !text.starts_with(' ')
                && text.split(' ').skip(1).all(|word| word.contains('='));
            if row {
                lines.push(text.to_owned());
            } else if self.quiet {
                eprintln!("{text}");
            } else {
                println!("{text}");
            }
        })?;
        Ok((lines, status))
    }
}

/// Returns QEMU's program for an endianness.
fn program(big_endian: bool) -> &'static str {
    if big_endian { "qemu-system-mips" } else { "qemu-system-mipsel" }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::has_timed_out;

    #[test]
    fn what_is_killed_has_timed_out() {
        let ended = |limit: &str, script: &str| {
            let line = ["-k", "0.1", limit, "sh", "-c", script];
            Command::new("timeout").args(line).stderr(std::process::Stdio::null()).status().unwrap()
        };
        assert!(has_timed_out(ended("0.1", "sleep 60")));
        assert!(has_timed_out(ended("0.1", "trap '' TERM; while :; do sleep 0.05; done")));
        assert!(!has_timed_out(ended("60", "exit 1")) && !has_timed_out(ended("60", "exit 0")));
    }
}
