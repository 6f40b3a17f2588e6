//! Frames and nodes that a call has taken out of a table, and releases in bounded parts: between two parts interrupts are unmasked,
//! if they were when the call began.

use tlbkit_pagetable::{Mark, Run, Uncovered};

use crate::runs::Batch;
use crate::storage::Parts;
use crate::table::{Detached as _, RELEASED};
use crate::{Kernel, Mmu};

/// Takes what waits out of the parts, hands it over, and tells whether nothing is left.
type Take<'f, K> = dyn FnMut(&mut Parts<K>, &mut dyn FnMut(Uncovered)) -> bool + 'f;

/// What waits for its release after its flush. The drop of this value releases the rest, also after a call of the kernel has unwound.
pub(crate) struct Detachment<K: Kernel, const CPUS: usize> {
    mmu: &'static Mmu<K, CPUS>,
    parts: Parts<K>,
    /// Whether the frames count as dirty whatever their entries say.
    dirty: bool,
    /// How many base pages have been released.
    pages: usize,
    /// Whether the flush was refused, so that nothing may be released.
    lost: bool,
    /// Whether everything has been released.
    done: bool,
}

impl<K: Kernel, const CPUS: usize> Detachment<K, CPUS> {
    /// Takes over parts of a table. `dirty` says that their frames count as dirty whatever their entries say.
    ///
    /// # Safety
    ///
    /// Before the next call every CPU that may hold a translation of the table, or walk the parts, has left its walks and flushed, or
    /// the caller [gives them up](Self::lose).
    pub(crate) unsafe fn new(mmu: &'static Mmu<K, CPUS>, parts: Parts<K>, dirty: bool) -> Self {
        Self { mmu, parts, dirty, pages: 0, lost: false, done: false }
    }

    /// Gives up the frames and nodes: their flush was refused.
    pub(crate) fn lose(&mut self) {
        self.lost = true;
    }

    /// Calls `take` with the parts, and with a function that releases what it is called with.
    #[inline(never)]
    pub(crate) fn release_by(&mut self, take: &mut Take<'_, K>) -> bool {
        let (kernel, pages, lost, dirty) = (self.mmu.kernel(), &mut self.pages, self.lost, self.dirty);
        let mut batch = Batch::new(kernel);
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
    #[inline(never)]
    fn release_some(&mut self) -> bool {
        let release = &mut |parts: &mut Parts<K>, hand_over: &mut dyn FnMut(Uncovered)| {
            // SAFETY: by the contract of `new` every CPU has flushed by now; lost parts do not come here.
            unsafe { parts.release(RELEASED, hand_over) }
        };
        self.done = self.lost || self.release_by(release);
        self.done
    }

    /// Releases everything, part by part, and returns how many base pages have been released.
    #[inline(never)]
    pub(crate) fn release(&mut self) -> usize {
        loop {
            // Inside a call the methods of the kernel find this CPU busy. An edit is inside a call already.
            let done = match self.mmu.call(|_| Ok(self.release_some())) {
                Ok(done) => done,
                Err(_) => self.mmu.kernel().masked(|| self.release_some()),
            };
            if done {
                break;
            }
        }
        self.pages
    }
}

impl<K: Kernel, const CPUS: usize> Detachment<K, CPUS> {
    /// Releases everything, part by part, outside of any call: the methods of the kernel may use the address spaces.
    pub(crate) fn end(&mut self) {
        while !self.mmu.kernel().masked(|| self.release_some()) {}
    }
}

impl<K: Kernel, const CPUS: usize> Drop for Detachment<K, CPUS> {
    fn drop(&mut self) {
        while !self.done && !self.mmu.kernel().masked(|| self.release_some()) {}
    }
}
