//! Atomics and cells: those of `core`, those of loom under `cfg(tlbkit_loom)`, or those of `watched.rs` with the feature
//! `hazards`.

#[cfg(all(feature = "hazards", not(tlbkit_loom)))]
pub(crate) use crate::watched::{AtomicBool, AtomicU32, AtomicUsize};
#[cfg(not(any(feature = "hazards", tlbkit_loom)))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
#[cfg(not(tlbkit_loom))]
pub(crate) use core::sync::atomic::{Ordering, fence};
#[cfg(tlbkit_loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};

/// An `UnsafeCell` with loom's interface, so that loom sees which thread accesses it.
#[cfg(tlbkit_loom)]
pub(crate) type Cell<T> = loom::cell::UnsafeCell<T>;

#[cfg(not(tlbkit_loom))]
#[derive(Debug)]
pub(crate) struct Cell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(tlbkit_loom))]
impl<T> Cell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    #[inline]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Defines a constructor that is `const`, except under loom, whose atomics cannot be constants.
macro_rules! constructor {
    ($(#[$about:meta])* $see:vis fn $name:ident($($argument:ident: $type:ty),*) -> Self $body:block) => {
        #[cfg(not(tlbkit_loom))]
        $(#[$about])*
        $see const fn $name($($argument: $type),*) -> Self $body

        #[cfg(tlbkit_loom)]
        $(#[$about])*
        $see fn $name($($argument: $type),*) -> Self $body
    };
}
pub(crate) use constructor;

/// Returns an array of `$count` values of `$value`, which is a constant except under loom.
macro_rules! array {
    ($value:expr; $count:expr) => {{
        #[cfg(not(tlbkit_loom))]
        let array = [const { $value }; $count];
        #[cfg(tlbkit_loom)]
        let array = core::array::from_fn(|_| $value);
        array
    }};
}
pub(crate) use array;

/// Lets another hardware thread, or loom's next thread, go on.
#[inline]
pub(crate) fn relax() {
    #[cfg(not(tlbkit_loom))]
    core::hint::spin_loop();
    #[cfg(all(feature = "hazards", not(tlbkit_loom)))]
    crate::watched::waits();
    #[cfg(tlbkit_loom)]
    loom::thread::yield_now();
}
