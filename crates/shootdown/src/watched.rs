//! Atomics that report every access to an explorer, so that the explorer can run another CPU between two accesses.

use core::cell::Cell;
use core::sync::atomic::{self, Ordering};

/// An event in the memory that CPUs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A word is about to be read or written.
    Next,
    /// A word has been written.
    Wrote,
    /// The CPU waits for another one to write a word.
    Waits,
}

std::thread_local! {
    static WATCHER: Cell<Option<fn(Access)>> = const { Cell::new(None) };
}

/// Makes each access of this thread to the atomics of this crate call `watcher`; `None` ends the calls.
///
/// If the watcher lets only one thread run at a time, all accesses are sequentially consistent. Tests with loom cover weaker
/// memory orders.
pub fn watch(watcher: Option<fn(Access)>) {
    WATCHER.set(watcher);
}

#[inline]
fn tell(access: Access) {
    if let Some(watcher) = WATCHER.get() {
        watcher(access);
    }
}

/// Reports that this CPU waits.
pub(crate) fn waits() {
    tell(Access::Waits);
}

macro_rules! watched {
    ($($name:ident $value:ty;)*) => {$(
        #[derive(Debug)]
        #[repr(transparent)]
        pub(crate) struct $name(atomic::$name);

        #[allow(dead_code, reason = "each type has what any of them needs")]
        impl $name {
            pub(crate) const fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            #[inline]
            pub(crate) fn load(&self, order: Ordering) -> $value {
                tell(Access::Next);
                self.0.load(order)
            }

            #[inline]
            pub(crate) fn store(&self, value: $value, order: Ordering) {
                tell(Access::Next);
                self.0.store(value, order);
                tell(Access::Wrote);
            }

            #[inline]
            pub(crate) fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                tell(Access::Next);
                let was = self.0.compare_exchange(current, new, success, failure);
                if was.is_ok() {
                    tell(Access::Wrote);
                }
                was
            }

            #[inline]
            pub(crate) fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }
        }
    )*};
}

watched! {
    AtomicBool bool;
    AtomicU32 u32;
    AtomicUsize usize;
}

/// Defines the read-modify-write operations that cannot fail, for the types that need them.
macro_rules! changed {
    ($($name:ident $value:ty: $($change:ident)*;)*) => {$(
        impl $name {
            $(#[inline]
            pub(crate) fn $change(&self, value: $value, order: Ordering) -> $value {
                tell(Access::Next);
                let was = self.0.$change(value, order);
                tell(Access::Wrote);
                was
            })*
        }
    )*};
}

changed! {
    AtomicBool bool: swap;
    AtomicU32 u32: swap;
    AtomicUsize usize: fetch_add fetch_or fetch_and;
}
