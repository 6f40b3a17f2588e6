//! A value for each CPU, which its interrupt handler finds.

use core::cell::UnsafeCell;

use super::CPUS;
use super::masked::Masked;
use crate::arch::cp0;

/// Each CPU's value, while there is one.
pub(super) struct Seats<T>([UnsafeCell<Option<T>>; CPUS]);

// SAFETY: a CPU touches its own value only, with interrupts off, and the value has been made on that CPU.
unsafe impl<T> Sync for Seats<T> {}

impl<T> Seats<T> {
    /// Returns seats that are all free.
    pub(super) const fn new() -> Self {
        Self([const { UnsafeCell::new(None) }; CPUS])
    }

    /// Puts this CPU's value in place, or takes it away.
    pub(super) fn put(&'static self, _masked: &Masked, value: Option<T>) {
        // SAFETY: this CPU's value. Interrupts are off, so `with` does not run.
        unsafe { *self.0[cp0::cpu()].get() = value };
    }

    /// Calls `f` with this CPU's value, if there is one. `f` must not call this again.
    pub(super) fn with<R>(&'static self, _masked: &Masked, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        // SAFETY: this CPU's value, with interrupts off. Where `f` sleeps, no interrupt is served, so no handler gets here.
        unsafe { (*self.0[cp0::cpu()].get()).as_mut() }.map(f)
    }
}
