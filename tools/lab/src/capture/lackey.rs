//! Running a program under valgrind's lackey, with its log on a pipe.

use std::env;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};

use anyhow::Context;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{WaitId, WaitIdOptions, waitid};

/// Returns where `program` is: as it stands if it is a path, else on `PATH`.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    let runs = |path: &PathBuf| {
        path.metadata().is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
    };
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(runs);
    }
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(program)).find(runs)
}

/// Starts `program` under lackey and returns the log, which ends when the program does, and the thread that waits for
/// its exit code. With `apart`, its standard output goes to our standard error.
pub(super) fn start(
    valgrind: &Path,
    program: &str,
    args: &[String],
    apart: bool,
) -> anyhow::Result<(Log, JoinHandle<io::Result<u8>>)> {
    let (reader, mut writer) = io::pipe().context("cannot make a pipe for valgrind's log")?;
    fcntl_setfd(&writer, FdFlags::empty()).context("cannot hand a pipe to valgrind")?;
    // What the program leaves running becomes a child of this process: see `leaves_children`.
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .context("cannot watch for children")?;
    let mut child = Command::new(valgrind)
        .args(["--tool=lackey", "--trace-mem=yes", "--basic-counts=no", "--child-silent-after-fork=yes"])
        .arg("--trace-signals=yes")
        .arg(format!("--log-fd={}", writer.as_raw_fd()))
        .arg("--")
        .arg(program)
        .args(args)
        .stdout(if apart { Stdio::from(io::stderr()) } else { Stdio::inherit() })
        .spawn()
        .context("cannot run valgrind")?;
    let waiter = thread::spawn(move || {
        let status = child.wait()?;
        // What the program leaves running may hold the pipe open: mark the end rather than wait for it. No process may
        // be listening any more, which is no matter.
        let _ = writer.write_all(&[END]);
        Ok(code(status))
    });
    Ok((Log { reader, ended: false }, waiter))
}

/// Tells whether a program that has been waited for has left children, which run or were never waited for.
pub(super) fn leaves_children() -> bool {
    waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT).is_ok()
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.map_or(u8::MAX, |code| code as u8)
}

/// The byte after the last of the log: lackey's text has none of them.
const END: u8 = 0;

/// What lackey writes, until the program has ended.
#[derive(Debug)]
pub(super) struct Log {
    reader: PipeReader,
    ended: bool,
}

impl Read for Log {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.ended {
            return Ok(0);
        }
        let read = self.reader.read(buffer)?;
        let text = buffer.get(..read).and_then(|bytes| bytes.iter().position(|&byte| byte == END));
        self.ended = text.is_some();
        Ok(text.unwrap_or(read))
    }
}
