//! A table, or a mapper, that never comes back: it is told, with what it was called for, and ends the process.
//!
//! Nothing stops a thread, so there is nothing to shrink. What is printed is the case up to the operation that hangs.

use std::cell::RefCell;
use std::io::Write as _;
use std::process;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use crate::Op;

/// Seconds for one operation and what is compared after it, unless `TLBKIT_PATIENCE` says others. The properties of our own
/// tables pass with 3 of them on two processors that thirty other processes share.
const SECONDS: u64 = 30;

/// What a case does.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// An operation of a table.
    Op(Op),
    /// Anything else, in words.
    Said(String),
}

/// What a case has done so far, the last of it perhaps not to its end.
#[derive(Default)]
struct Log {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    steps: Vec<Step>,
    /// How often a step has gone on.
    signs: usize,
    has_ended: bool,
}

thread_local! {
    /// The log of the case that the thread is in.
    static LOG: RefCell<Option<Arc<Log>>> = const { RefCell::new(None) };
}

/// Says what comes next, and prints it at once if `TLBKIT_TRACE` is set: a crash leaves nothing else.
pub(crate) fn step(step: impl FnOnce() -> Step) {
    LOG.with_borrow(|log| {
        if let Some(log) = log {
            let step = step();
            if traces() {
                // Not by `eprintln`, which a test keeps until it has ended.
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

/// Says that what came last goes on: what calls it counts the calls, and stops what does not end.
pub(crate) fn goes_on() {
    LOG.with_borrow(|log| {
        if let Some(log) = log {
            log.lock().signs += 1;
        }
    });
}

/// Says in words what comes next.
pub(crate) fn say(what: &str) {
    step(|| Step::Said(what.to_owned()));
}

/// Runs a case. If it hangs, prints what `tell` returns of how long nothing has come back and of the steps until then, and ends
/// the process.
pub(crate) fn guard<T>(tell: impl Fn(u64, &[Step]) -> String + Sync, body: impl FnOnce() -> T) -> T {
    if cfg!(miri) {
        return body();
    }
    let log = Arc::new(Log::default());
    thread::scope(|scope| {
        // A system that has no thread left checks without.
        let _ = thread::Builder::new().spawn_scoped(scope, || log.watch(&tell));
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

    fn watch(&self, tell: &dyn Fn(u64, &[Step]) -> String) {
        // Seconds are counted one by one, so that a machine that sleeps meanwhile is not taken for a table that does.
        let (mut seen, mut still, second) = ((0, 0), 0, Duration::from_secs(1));
        let mut state = self.lock();
        while !state.has_ended {
            let waited = self.ended.wait_timeout_while(state, second, |state| !state.has_ended);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            let now = (state.steps.len(), state.signs);
            still = if now == seen { still + 1 } else { 0 };
            seen = now;
            if still >= patience() && !state.has_ended {
                // Not by `eprintln`, which a test keeps until it has ended.
                let _ = writeln!(std::io::stderr(), "\n{}\n", tell(still, &state.steps));
                process::exit(101);
            }
        }
    }
}

/// The case of a thread, until it is dropped.
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
