//! Any subject under one spin lock: what a kernel does with a table that has no locks of its own.

use std::cell::UnsafeCell;

use super::{Concurrent, Spin};
use crate::Subject;

/// A subject under one spin lock.
pub struct Locked<S> {
    lock: Spin,
    table: UnsafeCell<S>,
}

// SAFETY: the lock gives the subject to one thread at a time.
unsafe impl<S: Send> Sync for Locked<S> {}

impl<S> Locked<S> {
    #[inline(always)]
    fn with<R>(&self, f: impl FnOnce(&mut S) -> R) -> R {
        // SAFETY: while `f` runs, this thread has the lock, and `f` does not come here again.
        self.lock.with(|| f(unsafe { &mut *self.table.get() }))
    }
}

impl<S: Subject + Send> Concurrent for Locked<S> {
    const BITS: u32 = S::BITS;

    fn name() -> String {
        format!("{}, one lock", S::NAME)
    }

    fn new() -> Self {
        Self { lock: Spin::new(), table: UnsafeCell::new(S::new()) }
    }

    #[inline(always)]
    fn fault(&self, vpn: usize, pfn: usize) {
        self.with(|table| {
            if table.translate(vpn << 12).is_none() {
                table.map(vpn, pfn);
            }
        });
    }

    #[inline(always)]
    fn map(&self, vpn: usize, pfn: usize, pages: usize) {
        self.with(|table| table.map_range(vpn, pfn, pages));
    }

    #[inline(always)]
    fn unmap(&self, vpn: usize, pages: usize) {
        self.with(|table| table.unmap_range(vpn, pages));
    }

    fn translate(&self, va: usize) -> Option<usize> {
        self.with(|table| table.translate(va))
    }

    fn destroy(self) {
        self.table.into_inner().destroy();
    }
}
