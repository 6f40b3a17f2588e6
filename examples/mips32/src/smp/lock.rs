//! A lock for what is changed in a few instructions, with interrupts off.

use core::cell::UnsafeCell;
use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, Ordering};

use super::masked::Masked;

/// A value that one CPU at a time uses.
#[derive(Debug)]
pub(super) struct Lock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: only the CPU that has set the flag uses the value until the flag is cleared.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// Returns a lock that is free.
    pub(super) const fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Calls `f` with the value. It waits for no other CPU, and takes this lock no second time.
    pub(super) fn with<R>(&self, _masked: &Masked, f: impl FnOnce(&mut T) -> R) -> R {
        while self.taken.swap(true, Ordering::Acquire) {
            spin_loop();
        }
        // SAFETY: the flag is this CPU's. A panic in `f` ends the kernel.
        let result = f(unsafe { &mut *self.value.get() });
        self.taken.store(false, Ordering::Release);
        result
    }
}
