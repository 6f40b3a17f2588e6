//! Running programs under valgrind's lackey, with their logs on pipes.

use std::env;
use std::fs;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context;
use rustix::io::{FdFlags, fcntl_setfd, ioctl_fionbio};
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

/// Programs under lackey.
pub(super) struct Started {
    /// What they log, which ends when they do.
    pub(super) log: Turns,
    /// The threads that wait for their exit codes.
    pub(super) programs: Vec<JoinHandle<io::Result<u8>>>,
}

/// Starts programs under lackey, each one's standard output on a pipe to the next, as a shell does. With `apart`, the last one's
/// goes to our standard error.
pub(super) fn start(valgrind: &Path, commands: &[&[String]], apart: bool) -> anyhow::Result<Started> {
    // What a program leaves running becomes a child of this process: see `leaves_children`.
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .context("cannot watch for children")?;
    let (mut logs, mut programs, mut input) = (Vec::new(), Vec::new(), Stdio::inherit());
    for (at, command) in commands.iter().enumerate() {
        let (output, next) = if at + 1 < commands.len() {
            let (reader, writer) = io::pipe().context("cannot make a pipe between programs")?;
            (Stdio::from(writer), Stdio::from(reader))
        } else {
            (if apart { Stdio::from(io::stderr()) } else { Stdio::inherit() }, Stdio::null())
        };
        let (reader, mut writer) = io::pipe().context("cannot make a pipe for valgrind's log")?;
        if commands.len() > 1 {
            ioctl_fionbio(&reader, true).context("cannot read several logs")?;
            #[cfg(target_os = "linux")]
            rustix::pipe::fcntl_setpipe_size(&reader, AHEAD).context("cannot make a pipe of a page")?;
        }
        fcntl_setfd(&writer, FdFlags::empty()).context("cannot hand a pipe to valgrind")?;
        let mut child = Command::new(valgrind)
            .args(["--tool=lackey", "--trace-mem=yes", "--basic-counts=no", "--child-silent-after-fork=yes"])
            .arg("--trace-signals=yes")
            .arg(format!("--log-fd={}", writer.as_raw_fd()))
            .arg("--")
            .args(*command)
            .stdin(input)
            .stdout(output)
            .spawn()
            .context("cannot run valgrind")?;
        // The next program does not get it.
        fcntl_setfd(&writer, FdFlags::CLOEXEC).context("cannot keep a pipe")?;
        let stat = PathBuf::from(format!("/proc/{}/stat", child.id()));
        programs.push(thread::spawn(move || {
            let status = child.wait()?;
            // What the program leaves running may hold the pipe open: mark the end rather than wait for it. No process
            // may be listening any more, which is no matter.
            let _ = writer.write_all(&[END]);
            Ok(code(status))
        }));
        logs.push(Log { reader, stat, text: Vec::new(), ended: false });
        input = next;
    }
    Ok(Started { log: Turns { logs, turn: 0, said: 0, lines: Vec::new(), taken: 0 }, programs })
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

/// How many bytes of log a program writes at most while it is another's turn.
#[cfg(target_os = "linux")]
const AHEAD: usize = 4096;

/// How long to leave a program that runs before its log is read again.
const PAUSE: Duration = Duration::from_micros(20);

/// What lackey writes of a program, until that has ended.
#[derive(Debug)]
struct Log {
    reader: PipeReader,
    /// Where the system says whether it sleeps.
    stat: PathBuf,
    /// What has been read of it.
    text: Vec<u8>,
    ended: bool,
}

impl Log {
    /// Reads what is there and returns whether anything was; the end of the program is something.
    fn take(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 1 << 16];
        let read = match self.reader.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            read => read?,
        };
        let read = &buffer[..read];
        let end = read.iter().position(|&byte| byte == END);
        self.ended = end.is_some() || read.is_empty();
        self.text.extend_from_slice(&read[..end.unwrap_or(read.len())]);
        Ok(true)
    }

    /// Tells whether the program sleeps.
    fn sleeps(&self) -> bool {
        // The state follows the name, which is in parentheses and may have some in it.
        let stat = fs::read_to_string(&self.stat).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'))
    }

    /// Waits for lines, and returns whether there are any: there are none when the program waits for something else than its
    /// log, or has ended.
    fn waits(&mut self) -> io::Result<bool> {
        while !self.ended {
            // It can only sleep over its log if that is full.
            let asleep = self.sleeps();
            if self.take()? {
                return Ok(false);
            }
            if asleep {
                return Ok(true);
            }
            thread::sleep(PAUSE);
        }
        Ok(true)
    }
}

/// The logs of programs that run in turns, as on one CPU without time slices: one runs until it waits for another, then the next one in
/// the order of the pipeline that can. Before the lines of another program than before stands a line `@` with its number, from 0.
///
/// ```text
/// program 0 ──── log, 4 KB ──┐
/// program 1 ──── log, 4 KB ──┼── only that of the program whose turn it is is read: a log that is full stops the others
/// program 2 ──── log, 4 KB ──┘
/// ```
///
/// So a program that no longer waits is at most 4 KB of log, some 300 references, ahead of its turn.
#[derive(Debug)]
pub(super) struct Turns {
    logs: Vec<Log>,
    turn: usize,
    /// Of which program the last line was.
    said: usize,
    /// Whole lines, and how much of them has been handed out.
    lines: Vec<u8>,
    taken: usize,
}

impl Turns {
    /// Fetches lines, unless all programs have ended.
    fn fetch(&mut self) -> io::Result<()> {
        while self.logs.iter().any(|log| !log.ended || !log.text.is_empty()) {
            let alone = self.logs.len() == 1;
            let log = &mut self.logs[self.turn];
            let waits = if alone { !log.take()? } else { log.waits()? };
            // A line is written at once, but a message may not be.
            let whole = log.text.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
            let whole = if log.ended { log.text.len() } else { whole };
            if whole > 0 {
                if self.turn != self.said {
                    writeln!(self.lines, "@{}", self.turn)?;
                    self.said = self.turn;
                }
                self.lines.extend(log.text.drain(..whole));
                return Ok(());
            }
            if waits {
                self.turn = (self.turn + 1) % self.logs.len();
                if self.turn == 0 {
                    thread::sleep(PAUSE);
                }
            }
        }
        Ok(())
    }
}

impl Read for Turns {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.lines.len() {
            self.lines.clear();
            self.taken = 0;
            self.fetch()?;
        }
        let mut left = &self.lines[self.taken..];
        let read = left.read(buffer)?;
        self.taken += read;
        Ok(read)
    }
}
