//! A lock that is held for a few instructions.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

/// A value that one CPU uses at a time, with interrupts masked. CPUs that wait spin.
#[derive(Debug)]
pub(crate) struct Lock<T: ?Sized> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `with` gives access to one CPU at a time.
unsafe impl<T: Send + ?Sized> Sync for Lock<T> {}

/// A guard that releases the lock when it is dropped, also during an unwinding.
struct Locked<'l>(&'l AtomicBool);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }
}

impl<T: ?Sized> Lock<T> {
    /// Calls `f` with the value. `f` must not take the lock again: that would deadlock.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        while self.held.swap(true, Ordering::Acquire) {
            core::hint::spin_loop();
        }
        let held = Locked(&self.held);
        // SAFETY: `held` was false and this CPU made it true, so that no other code is here until it is false again.
        let result = f(unsafe { &mut *self.value.get() });
        drop(held);
        result
    }
}
