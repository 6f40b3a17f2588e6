//! A place for what all CPUs share for a while.

use core::cell::UnsafeCell;

/// Room for one value.
pub(super) struct Shelf<T>(UnsafeCell<Option<T>>);

// SAFETY: what the shelf hands out is shared, so it must be `Sync`; it is put there and taken away by one CPU, while no
// other looks, as the functions below ask.
unsafe impl<T: Sync> Sync for Shelf<T> {}

impl<T> Shelf<T> {
    /// Returns an empty one.
    pub(super) const fn new() -> Self {
        Self(UnsafeCell::new(None))
    }

    /// Puts a value there.
    ///
    /// # Safety
    ///
    /// No code uses what was there, and no other code calls any function of this shelf meanwhile.
    pub(super) unsafe fn put(&'static self, value: T) -> &'static T {
        // SAFETY: the caller's promise.
        unsafe { (*self.0.get()).insert(value) }
    }

    /// Returns what is there.
    ///
    /// # Safety
    ///
    /// No other CPU puts or takes anything meanwhile, nor takes it while the caller uses it.
    pub(super) unsafe fn get(&'static self) -> Option<&'static T> {
        // SAFETY: the caller's promise.
        unsafe { (*self.0.get()).as_ref() }
    }

    /// Takes away what is there.
    ///
    /// # Safety
    ///
    /// As for [`put`](Self::put).
    pub(super) unsafe fn take(&'static self) -> Option<T> {
        // SAFETY: the caller's promise.
        unsafe { (*self.0.get()).take() }
    }
}
