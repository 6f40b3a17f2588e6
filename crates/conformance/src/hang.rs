//! The detection of a table or mapper that does not return: prints the operations up to the one that hangs, and ends the process.
//!
//! A thread cannot be stopped, so the case is not shrunk.

use std::cell::RefCell;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::process;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use crate::Op;

/// The seconds allowed for one operation and the comparison after it, as [`Clock`] counts them. The environment variable
/// `TLBKIT_PATIENCE` overrides it.
const SECONDS: u64 = 30;

/// More pages than any case maps: a visit of this many pages does not end.
pub(crate) const ENDLESS: usize = 1 << 20;

/// A step of a case.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// An operation of a table.
    Op(Op),
    /// Any other step, in words.
    Said(String),
}

/// The steps of a case so far. The last one may not have ended.
#[derive(Default)]
struct Log {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    steps: Vec<Step>,
    /// The number of calls of [`goes_on`].
    signs: usize,
    has_ended: bool,
}

thread_local! {
    /// The log of the case that the thread runs.
    static LOG: RefCell<Option<Arc<Log>>> = const { RefCell::new(None) };
}

/// Records the next step. Prints it at once if `TLBKIT_TRACE` is set, because nothing else is left after a crash.
pub(crate) fn step(step: impl FnOnce() -> Step) {
    LOG.with_borrow(|log| {
        if let Some(log) = log {
            let step = step();
            if traces() {
                // `eprintln` would not do: the test harness keeps its output until the test has ended.
                let _ = match &step {
                    Step::Op(op) => writeln!(std::io::stderr(), "{op:?}"),
                    Step::Said(what) => writeln!(std::io::stderr(), "{what}"),
                };
            }
            log.lock().steps.push(step);
        }
    });
}

fn traces() -> bool {
    static TRACES: OnceLock<bool> = OnceLock::new();
    *TRACES.get_or_init(|| std::env::var_os("TLBKIT_TRACE").is_some())
}

/// Records progress of the last step. Callers count their calls of this function, and stop a step that does not end.
pub(crate) fn goes_on() {
    LOG.with_borrow(|log| {
        if let Some(log) = log {
            log.lock().signs += 1;
        }
    });
}

/// Records the next step in words.
pub(crate) fn say(what: &str) {
    step(|| Step::Said(what.to_owned()));
}

/// Runs a case. If the case hangs, prints the text that `tell` returns for the seconds without progress and the steps so far, and
/// ends the process.
pub(crate) fn guard<T>(tell: impl Fn(u64, &[Step]) -> String + Sync, body: impl FnOnce() -> T) -> T {
    if cfg!(miri) {
        return body();
    }
    let (log, clock) = (Arc::new(Log::default()), Clock::of_this_thread());
    thread::scope(|scope| {
        // If no thread can be created, the case runs unwatched.
        let _ = thread::Builder::new().spawn_scoped(scope, || log.watch(clock, &tell));
        let _case = Case::begin(&log);
        body()
    })
}

fn patience() -> u64 {
    static PATIENCE: OnceLock<u64> = OnceLock::new();
    let told = || std::env::var("TLBKIT_PATIENCE").ok()?.parse().ok();
    *PATIENCE.get_or_init(|| told().unwrap_or(SECONDS))
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, mut clock: Clock, tell: &dyn Fn(u64, &[Step]) -> String) {
        let (mut seen, mut still, second) = ((0, 0), 0, Duration::from_secs(1));
        let mut state = self.lock();
        while !state.has_ended {
            let waited = self.ended.wait_timeout_while(state, second, |state| !state.has_ended);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            let (now, spent) = ((state.steps.len(), state.signs), clock.spent());
            still = if now == seen { still + spent } else { 0 };
            seen = now;
            let seconds = still / TICKS;
            if seconds >= patience() && !state.has_ended {
                // `eprintln` would not do: the test harness keeps its output until the test has ended.
                let _ = writeln!(std::io::stderr(), "\n{}\n", tell(seconds, &state.steps));
                process::exit(101);
            }
        }
    }
}

/// What a thread spends, looked at once a second.
///
/// Where Linux tells, a thread that could run spends only what it ran, so that one that other programs leave no processor does not
/// hang. A thread that waits spends the second, and so does each where nothing is known. Looks are counted, and not the time between
/// them, so the suspension of the machine is no hang either.
struct Clock {
    /// The thread's line of `/proc/thread-self/stat`, if there is one.
    stat: Option<File>,
    /// The ticks that the thread had run at the last look. At the first, which counts a second at the most, its whole life is new.
    ran: u64,
}

/// What a second has on Linux, whatever the machine.
const TICKS: u64 = 100;

impl Clock {
    fn of_this_thread() -> Self {
        Self { stat: File::open("/proc/thread-self/stat").ok(), ran: 0 }
    }

    /// Returns the ticks of the last second that the thread spent.
    fn spent(&mut self) -> u64 {
        let Some((state, ran)) = self.look() else { return TICKS };
        let since = ran.saturating_sub(std::mem::replace(&mut self.ran, ran));
        if state == "R" { since.min(TICKS) } else { TICKS }
    }

    /// Returns the thread's state, and for how many ticks it has run: proc(5).
    fn look(&mut self) -> Option<(String, u64)> {
        let (mut line, stat) = (String::new(), self.stat.as_mut()?);
        stat.rewind().and_then(|()| stat.read_to_string(&mut line)).ok()?;
        // The name before may have any characters in its parentheses.
        let fields: Vec<_> = line.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(((*fields.first()?).to_owned(), number(11)? + number(12)?))
    }
}

/// A guard that makes a log the current one of its thread until it is dropped.
struct Case(Option<Arc<Log>>);

impl Case {
    fn begin(log: &Arc<Log>) -> Self {
        Self(LOG.replace(Some(Arc::clone(log))))
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        if let Some(log) = LOG.replace(self.0.take()) {
            log.lock().has_ended = true;
            log.ended.notify_all();
        }
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_spends_what_it_runs() {
        let mut clock = Clock::of_this_thread();
        let (_, begun) = clock.look().expect("a line of this thread");
        while clock.look().expect("a line of this thread").1 < begun + 3 {}
        // This thread runs now, and has run since the clock began at zero.
        let ran = clock.spent();
        assert!((3..=TICKS).contains(&ran), "{ran}");
        // It has not run for a second since.
        assert!(clock.spent() < TICKS);
        clock.stat = None;
        assert_eq!(clock.spent(), TICKS);
    }

    #[test]
    fn a_thread_that_waits_spends_its_time() {
        let (clock, waits) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
        thread::scope(|scope| {
            scope.spawn(move || {
                clock.0.send(Clock::of_this_thread()).unwrap();
                waits.1.recv()
            });
            let mut clock = clock.1.recv().unwrap();
            while clock.look().expect("a line of that thread").0 == "R" {}
            assert_eq!(clock.spent(), TICKS);
            drop(waits.0);
        });
    }
}
