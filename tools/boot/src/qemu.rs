//! QEMU, for a limited time, and what a kernel says in it.

use std::io::{BufRead, BufReader};
use std::process::{ExitStatus, Stdio};

use anyhow::Context;
use tlbkit_shell::Line;

/// Returns the command line of one of QEMU's programs, for so many seconds at most, with its words for a machine: without the cards
/// for a network and for a display, whose firmware is in other packages than QEMU.
pub(crate) fn line(seconds: &str, program: &str, words: &str) -> Line {
    let line = Line::new("timeout", "-k 5").with([seconds, program]).with(words.split(' '));
    line.with("-nic none -vga none -nographic -no-reboot".split(' '))
}

/// Runs a command line, and hands each line that the kernel says to `each`. Returns how it ended.
///
/// # Errors
///
/// If it cannot be run at all.
pub(crate) fn listen(line: &Line, mut each: impl FnMut(&str)) -> anyhow::Result<ExitStatus> {
    let child = line.command().stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("cannot run `{line}`"))?;
    let output = child.stdout.take().context("no output")?;
    for part in BufReader::new(output).split(b'\n') {
        each(String::from_utf8_lossy(&part?).trim_end());
    }
    Ok(child.wait()?)
}
