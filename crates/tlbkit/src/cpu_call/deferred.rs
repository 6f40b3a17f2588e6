//! The flush of all CPUs after which the frames and nodes of [deferred](crate::Deferred) unmaps are free.

use tlbkit_addr::{Asid, Flush, Pages};
use tlbkit_pagetable::nodes::Store;
use tlbkit_pagetable::{Pending, Retired};
use tlbkit_shootdown::Broadcast;

use super::CpuCall;
use super::shoot::everything;
use crate::block::Block;
use crate::{Deferred, Kernel, Mmu, visit};

impl<K: Kernel, const CPUS: usize> CpuCall<K, CPUS> {
    /// Tells whether frames of an address space wait. This CPU has the right to write some page of it: an unmap that takes
    /// out a node holds the right to write the node's whole range, so a CPU that finds the link empty also sees the number that the
    /// unmap stored.
    #[inline(always)]
    pub(crate) fn waits(&self, space: &Block<K, CPUS>) -> bool {
        CPUS > 1 && self.mmu.kernel().deferred().is_some_and(|deferred| deferred.is_ahead(&space.deferred))
    }

    /// Tells whether frames of an address space wait that one of `pages` had. This CPU has the right to write the pages, or its caller
    /// has synchronized with the unmap.
    #[inline(always)]
    pub(crate) fn is_deferred(&self, space: &Block<K, CPUS>, pages: Pages) -> bool {
        let holds = |deferred: &Deferred| {
            deferred.is_ahead(&space.deferred) && deferred.holds(space.address(), pages)
        };
        CPUS > 1 && self.mmu.kernel().deferred().is_some_and(holds)
    }

    /// Flushes on this CPU what a change of `pages` has made stale, and leaves its frames, which are in the list, and its obligation to
    /// a later flush of all CPUs. Returns false if there is no room for them: they stay where they are.
    pub(crate) fn leave(
        &mut self,
        space: &Block<K, CPUS>,
        deferred: &Deferred,
        pages: Pages,
        pending: Pending<'_, 'static>,
    ) -> bool {
        self.flush(space, pending.flush());
        if Mmu::<K, CPUS>::BROADCASTS {
            space.count_broadcast();
        }
        let mmu = self.mmu;
        let of = (space.address(), pages, &space.deferred);
        deferred.keep(mmu.address(), of, self.uncovered(), pending, || Retired::new(mmu.storage()))
    }

    /// Flushes every CPU's TLB, and releases all that waits, and the frames that the changes of this call have uncovered. Returns how
    /// many base pages have been released; `None` if there was no flush: nothing waits any more, or the flush was refused.
    #[cold]
    #[inline(never)]
    pub(crate) fn flush_deferred(&mut self) -> Option<usize> {
        let mmu = self.mmu;
        let mut begun = mmu.kernel().deferred()?.begin(mmu.address())?;
        if !self.flush_all_cpus() {
            return None;
        }
        let mut released = 0;
        // SAFETY: every CPU that is online has flushed everything and left its walks, and the others do so before they walk.
        while unsafe { begun.take(self.uncovered()) } {
            released += self.uncovered().pages();
            self.release();
        }
        if let Some(nodes) = begun.nodes.take() {
            // SAFETY: as above, and the nodes were taken out of their tables before the flush.
            unsafe { nodes.into_retired().reclaim() };
        }
        Some(released)
    }

    /// Flushes everything on every CPU that is online, and waits until the walks by software that began before have ended. Returns
    /// false if the shootdown system has refused the operation.
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

#[cfg(test)]
#[cfg(target_pointer_width = "64")]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::Ordering;

    use tlbkit_shootdown::SectionKind;

    use crate::host::{Met, Use, any_machine, machine, run_as};
    use crate::{
        AddressSpace, Attr, Deferred, Error, Kernel as _, PageSize, Pages, PhysAddr, Place, VirtAddr,
    };

    /// Where flushes are broadcast, a CPU that walks by software replies to nothing: it may be in a node that waits.
    #[test]
    fn a_broadcast_flush_waits_for_the_walks_of_others() {
        run_as(0);
        let mmu = any_machine::<2, true>(64);
        let host = mmu.kernel();
        let memory: &'static Deferred<[Place; 16]> = Box::leak(Box::default());
        assert!(host.deferred.set(memory).is_ok());
        let space = AddressSpace::new(mmu).unwrap();
        let page = Pages::one(VirtAddr::new(0x1000).vpn(PageSize::K4));
        space.map(page, host.data(1).unwrap(), Attr::READ | Attr::USER).unwrap();
        for cpu in [1, 0] {
            run_as(cpu);
            space.activate().unwrap();
        }
        let before = host.in_use();
        assert_eq!((space.unmap_deferred(page), memory.waiting(), host.in_use()), (Ok(1), (1, 2), before));
        run_as(1);
        let walk = Mutex::new(Some(mmu.section(PhysAddr::new(0), SectionKind::Walk)));
        run_as(0);
        let walk: &'static Mutex<_> = Box::leak(Box::new(walk));
        assert!(host.meanwhile.set(Box::new(|| drop(walk.lock().unwrap().take()))).is_ok());
        assert_eq!(mmu.flush_deferred(), Ok(1));
        assert_eq!((host.pauses.load(Ordering::Relaxed), host.in_use()), (1, before - 3));
    }

    /// A flush that is refused leaves everything waiting, and the nodes; so does a map that needs it.
    #[test]
    fn what_waits_waits_on_if_the_flush_is_refused() {
        run_as(0);
        let mmu = machine::<2>(64);
        let host = mmu.kernel();
        let memory: &'static Deferred<[Place; 16]> = Box::leak(Box::default());
        assert!(host.deferred.set(memory).is_ok());
        let serve = move || {
            run_as(1);
            if host.pending() {
                mmu.on_interrupt();
            }
            run_as(0);
        };
        assert!(host.meanwhile.set(Box::new(serve)).is_ok());
        let space = AddressSpace::new(mmu).unwrap();
        let at = VirtAddr::new(0x1000);
        let (page, rights) = (Pages::one(at.vpn(PageSize::K4)), Attr::READ | Attr::USER);
        let frame = host.data(1).unwrap();
        space.map(page, frame, rights).unwrap();
        for cpu in [1, 0] {
            run_as(cpu);
            space.activate().unwrap();
            assert!(matches!(host.access(at, false), Met::Memory(_)));
        }
        assert_eq!((space.unmap_deferred(page), memory.waiting()), (Ok(1), (1, 2)));
        // A CPU that the system does not have.
        mmu.online_cpus().members.insert(5);
        assert_eq!((mmu.flush_deferred(), memory.waiting()), (Err(Error::Unflushed), (1, 2)));
        assert_eq!(host.mappings(frame), Use::Data(1));
        mmu.online_cpus().members.remove(5);
        assert_eq!((mmu.flush_deferred(), memory.waiting()), (Ok(1), (0, 0)));
        assert_eq!((host.mappings(frame), mmu.lost()), (Use::Free, 0));
        assert!(host.deferred().is_some());
    }
}
