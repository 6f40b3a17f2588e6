//! Count-downs of calls, of which one is chosen to fail.

use std::cell::Cell;
use std::panic::resume_unwind;

/// No call is chosen.
pub(super) const NEVER: usize = usize::MAX;
/// The chosen call has happened.
pub(super) const DONE: usize = usize::MAX - 1;

/// Counts one call down, and tells whether it is the chosen one.
pub(super) fn count_down(left: &Cell<usize>) -> bool {
    let now = left.get();
    if !matches!(now, NEVER | DONE) {
        left.set(now.checked_sub(1).unwrap_or(DONE));
    }
    now == 0
}

/// A count-down of the calls of a table to its caller's code. The call at its end unwinds.
#[derive(Debug)]
pub struct Trip {
    left: Cell<usize>,
    calls: Cell<usize>,
}

impl Trip {
    pub(super) const fn new() -> Self {
        Self { left: Cell::new(NEVER), calls: Cell::new(0) }
    }

    /// Makes the next `calls` calls return, and the call after them unwind.
    pub fn set(&self, calls: usize) {
        self.left.set(calls);
        self.calls.set(0);
    }

    /// Returns the number of calls since the count-down was set.
    pub fn calls(&self) -> usize {
        self.calls.get()
    }

    /// Ends the count-down, and tells whether a call has unwound.
    pub fn tripped(&self) -> bool {
        self.left.replace(NEVER) == DONE
    }

    /// Counts a call.
    ///
    /// # Panics
    ///
    /// If the call is the chosen one. The panic has no message.
    pub fn call(&self) {
        self.calls.set(self.calls.get() + 1);
        if count_down(&self.left) {
            resume_unwind(Box::new("a call of the table's caller unwinds"));
        }
    }
}
