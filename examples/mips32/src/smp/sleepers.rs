//! CPUs that may be asleep, so that others wake them.

use core::sync::atomic::{AtomicU32, Ordering, fence};

use super::gic;

/// A set of CPUs.
#[derive(Debug, Default)]
pub(super) struct Sleepers(AtomicU32);

impl Sleepers {
    /// Runs `f`, in which CPU `me` may look for something and then sleep: a CPU that changes that something later wakes
    /// it.
    pub(super) fn with<R>(&self, me: usize, f: impl FnOnce() -> R) -> R {
        self.0.fetch_or(1 << me, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let result = f();
        self.0.fetch_and(!(1 << me), Ordering::SeqCst);
        result
    }

    /// Interrupts every CPU of the set but `me`.
    pub(super) fn wake(&self, me: usize) {
        fence(Ordering::SeqCst);
        let cpus = self.0.load(Ordering::SeqCst);
        (0..super::CPUS).filter(|&cpu| cpu != me && cpus >> cpu & 1 == 1).for_each(gic::send);
    }
}
