//! Programs that are run for what they print, the booted kernel's, all of which end when the report is interrupted, or
//! cannot be made.
//!
//! ```text
//! output ── spawn ──┬── a thread reads standard output ──┐
//!                   └── a thread reads standard error ───┼── channel ── output goes on
//! end ── kill ───────────────────────────────────────────┘
//! ```
//!
//! What a killed program has itself started may live on and keep both pipes open, so no thread waits for them then.

use std::io::{self, Read};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The programs that run.
#[derive(Debug, Default)]
pub(crate) struct Children(Mutex<Running>);

#[derive(Debug, Default)]
struct Running {
    children: Vec<(Child, Sender<Heard>)>,
    ended: bool,
}

/// What the thread that waits for a program hears of it.
#[derive(Debug)]
enum Heard {
    Output(io::Result<Vec<u8>>),
    Error(io::Result<Vec<u8>>),
    Ended,
}

impl Children {
    fn lock(&self) -> MutexGuard<'_, Running> {
        // A thread that panicked had pushed or removed a child whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    ///
    /// If it cannot be run, or all have been ended.
    pub(crate) fn output(&self, command: &mut Command) -> io::Result<Output> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (say, hear) = mpsc::channel();
        let id = {
            let mut running = self.lock();
            if running.ended {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let mut child = command.spawn()?;
            // Both are read at once: a program that cannot write what it has to say does not go on.
            read(child.stdout.take(), Heard::Output, &say);
            read(child.stderr.take(), Heard::Error, &say);
            let id = child.id();
            running.children.push((child, say));
            id
        };
        let (mut stdout, mut stderr) = (None, None);
        while stdout.is_none() || stderr.is_none() {
            match hear.recv() {
                Ok(Heard::Output(bytes)) => stdout = Some(bytes?),
                Ok(Heard::Error(bytes)) => stderr = Some(bytes?),
                Ok(Heard::Ended) | Err(_) => break,
            }
        }
        let place = |running: &Running| running.children.iter().position(|(child, _)| child.id() == id);
        let mut running = self.lock();
        let Some(place) = place(&running) else { return Err(io::ErrorKind::NotFound.into()) };
        let (mut child, _) = running.children.swap_remove(place);
        // A program that was killed may have closed both pipes before anything else was heard.
        let ended = running.ended;
        drop(running);
        let status = child.wait()?;
        let (Some(stdout), Some(stderr), false) = (stdout, stderr, ended) else {
            return Err(io::ErrorKind::Interrupted.into());
        };
        Ok(Output { status, stdout, stderr })
    }

    /// Ends them all, and lets no other begin.
    pub(crate) fn end(&self) {
        let mut running = self.lock();
        running.ended = true;
        for (child, say) in &mut running.children {
            // Of one that has ended by itself, or whose output no thread waits for any more, there is nothing to say.
            let _ = child.kill();
            let _ = say.send(Heard::Ended);
        }
    }
}

/// Reads a pipe to its end and says what came.
fn read(
    pipe: Option<impl Read + Send + 'static>,
    heard: fn(io::Result<Vec<u8>>) -> Heard,
    say: &Sender<Heard>,
) {
    let say = say.clone();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut bytes));
        // After an end no thread listens.
        let _ = say.send(heard(read.map(|_| bytes)));
    });
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn an_end_ends_what_runs_and_lets_nothing_begin() {
        let children = Children::default();
        let begun = Instant::now();
        std::thread::scope(|scope| {
            // The second keeps the first's pipes open.
            let asleep =
                scope.spawn(|| children.output(Command::new("sh").args(["-c", "sleep 60 & sleep 60"])));
            while children.lock().children.is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
            children.end();
            let error = asleep.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::Interrupted);
        });
        assert!(begun.elapsed() < Duration::from_secs(30) && children.lock().ended);
        let refused = children.output(&mut Command::new("true")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::Interrupted);
    }

    #[test]
    fn both_outputs_are_read() {
        let script =
            "i=0; while [ $i -lt 9000 ]; do echo twenty-six-letters >&2; i=$((i + 1)); done; echo done";
        let output = Children::default().output(Command::new("sh").args(["-c", script])).unwrap();
        assert_eq!((output.stdout.as_slice(), output.stderr.len()), (&b"done\n"[..], 9000 * 19));
    }
}
