//! Frames and nodes that a call has taken out of a table, and releases in bounded parts: between two parts interrupts are unmasked,
//! if they were when the call began.

use tlbkit_pagetable::{Mark, Run, Uncovered};

use crate::cpu_call::CpuCall;
use crate::runs::{Batch, UncoveredRuns};
use crate::storage::{Parts, Table};
use crate::table::{Detached as _, RELEASED, SpaceTable as _};
use crate::{Kernel, Mmu};

/// Takes what waits out of the parts, hands it over, and tells whether nothing is left.
type Take<'f, K> = dyn FnMut(&mut Parts<K>, &mut dyn FnMut(Uncovered)) -> bool + 'f;

/// What waits for its flush, and then for its release. It is large: the caller of a call has it, and passes it on by reference. The drop
/// of this value releases the rest, also after a call of the kernel has unwound.
pub(crate) struct Detachment<K: Kernel, const CPUS: usize> {
    mmu: &'static Mmu<K, CPUS>,
    parts: Parts<K>,
    /// Whether the frames count as dirty whatever their entries say.
    dirty: bool,
    /// How many base pages have been released.
    pages: usize,
    /// Whether the parts wait for their flush, so that nothing may be released.
    unflushed: bool,
    /// Whether everything has been released, or may not be.
    done: bool,
}

impl<K: Kernel, const CPUS: usize> Detachment<K, CPUS> {
    /// Returns what has nothing to release.
    #[inline]
    pub(crate) fn new(mmu: &'static Mmu<K, CPUS>) -> Self {
        let parts = Table::<K>::nothing(mmu.storage());
        Self { mmu, parts, dirty: false, pages: 0, unflushed: false, done: true }
    }

    /// Returns the parts, so that more is added to them: what waits for a flush, until [`flushed`](Self::flushed) is called. `dirty` says
    /// that the frames count as dirty whatever their entries say.
    pub(crate) fn add(&mut self, dirty: bool) -> &mut Parts<K> {
        (self.dirty, self.unflushed, self.done) = (dirty, true, false);
        &mut self.parts
    }

    /// States that the flush has been executed. If it was refused, this is not called: the parts are given up, and nothing is released.
    ///
    /// # Safety
    ///
    /// Since the parts have been added, every CPU that may hold a translation of the table, or walk the parts, has left its walks and
    /// flushed.
    pub(crate) unsafe fn flushed(&mut self) {
        self.unflushed = false;
    }

    /// Calls `take` with the parts, and with a function that releases what it is called with, by way of the list `runs`, which is empty.
    #[inline(never)]
    pub(crate) fn release_by(&mut self, runs: &mut UncoveredRuns, take: &mut Take<'_, K>) -> bool {
        let (kernel, pages, lost, dirty) = (self.mmu.kernel(), &mut self.pages, self.unflushed, self.dirty);
        let mut batch = Batch::new(kernel, runs);
        take(&mut self.parts, &mut |what| match what {
            _ if lost => {}
            Uncovered::Frames(run) => {
                *pages += run.len;
                batch.add(Run { dirty: run.dirty || dirty, ..run });
            }
            Uncovered::Mark(Mark::Payload(payload, _)) => kernel.release_payload(payload),
            Uncovered::Mark(Mark::Guard) => {}
        })
    }

    /// Releases a part, with interrupts masked, and tells whether nothing is left.
    fn release_some(&mut self, runs: &mut UncoveredRuns) -> bool {
        let release = &mut |parts: &mut Parts<K>, hand_over: &mut dyn FnMut(Uncovered)| {
            // SAFETY: by the contract of `flushed` every CPU has flushed by now; parts that wait for a flush do not come here.
            unsafe { parts.release(RELEASED, hand_over) }
        };
        self.done = self.unflushed || self.release_by(runs, release);
        self.done
    }

    /// Releases everything, inside of a call.
    pub(crate) fn release_in(&mut self, call: &mut CpuCall<K, CPUS>) {
        while !self.done {
            self.release_some(call.uncovered());
        }
    }

    /// Returns how many base pages have been released.
    pub(crate) const fn pages(&self) -> usize {
        self.pages
    }

    /// Releases everything, part by part.
    #[inline(never)]
    pub(crate) fn release(&mut self) {
        while !self.done {
            // Inside a call the methods of the kernel find this CPU busy.
            if self.mmu.call(|call| Ok(self.release_some(call.uncovered()))).is_err() {
                self.end();
            }
        }
    }

    /// Releases everything, part by part, outside of any call: the methods of the kernel may use the address spaces.
    #[inline(never)]
    pub(crate) fn end(&mut self) {
        let mut runs = UncoveredRuns::new();
        while !self.done {
            self.mmu.kernel().masked(|| self.release_some(&mut runs));
        }
    }
}

impl<K: Kernel, const CPUS: usize> Drop for Detachment<K, CPUS> {
    fn drop(&mut self) {
        if !self.done {
            self.end();
        }
    }
}
