//! The flush of all CPUs after which the frames and nodes of [deferred](crate::Deferred) unmaps are free.

use tlbkit_addr::{Asid, Flush, Pages};
use tlbkit_pagetable::nodes::Store;
use tlbkit_shootdown::Broadcast;

use super::CpuCall;
use super::shoot::everything;
use crate::block::Block;
use crate::sync::Ordering;
use crate::{Kernel, Mmu, visit};

impl<K: Kernel, const CPUS: usize> CpuCall<K, CPUS> {
    /// Tells whether frames of an address space wait that one of `pages` had. This CPU has the right to write the pages.
    #[inline(always)]
    pub(crate) fn is_deferred(&self, space: &Block<K, CPUS>, pages: Pages) -> bool {
        if CPUS == 1 {
            return false;
        }
        self.mmu.kernel().deferred().is_some_and(|deferred| {
            // Of a number that is long past this may say that it is to come. Then the queue is looked through in vain.
            let ahead = space.deferred.load(Ordering::Relaxed).wrapping_sub(deferred.first());
            ahead.cast_signed() > 0 && deferred.holds(space.address(), pages)
        })
    }

    /// Flushes every CPU's TLB, and releases all that waits. The list of uncovered frames is empty before and after. Returns how many base
    /// pages have been released.
    #[cold]
    #[inline(never)]
    pub(crate) fn flush_deferred(&mut self) -> usize {
        let mmu = self.mmu;
        let mut released = 0;
        let begun = mmu.kernel().deferred().and_then(|deferred| deferred.begin(mmu.address()));
        if let Some(mut begun) = begun
            && self.flush_all_cpus()
        {
            // SAFETY: every CPU that is online has flushed everything and left its walks, and the others do so before they walk.
            while unsafe { begun.take(self.uncovered()) } {
                released += self.uncovered().pages();
                self.release();
            }
            if let Some(nodes) = begun.nodes.take() {
                // SAFETY: as above, and the nodes were taken out of their tables before the flush.
                unsafe { nodes.into_retired().reclaim() };
            }
        }
        released
    }

    /// Flushes everything on every CPU that is online, and waits until the walks by software that began before have ended. Returns false if
    /// the shootdown system has refused the operation.
    fn flush_all_cpus(&mut self) -> bool {
        const EVERYTHING: &Flush = &Flush::everything();
        let (mmu, cpus) = (self.mmu, self.mmu.online_cpus());
        let is_alone = visit::is_alone(cpus, self.cpu, false);
        mmu.kernel().stored(Store::Fence);
        if is_alone {
            mmu.kernel().flush(&everything::<K>(), None);
            return true;
        }
        if Mmu::<K, CPUS>::BROADCASTS
            && let Some(broadcast) = K::BROADCAST
            && broadcast(mmu.kernel(), &everything::<K>(), None, cpus.members.load())
        {
            self.carry_out(cpus, Broadcast::walks(&Self::PLAN), None);
            return true;
        }
        self.ask_all(cpus, Asid::default(), EVERYTHING)
    }
}
