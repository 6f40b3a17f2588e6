//! The end of a change on a machine that [broadcasts](Kernel::BROADCAST) its flushes: no CPU is interrupted.
//!
//! | what may still be in use after the broadcast | until | how the initiator knows |
//! |-|-|-|
//! | a translation in a TLB, a walk by hardware, an access that one of them has translated | - | the broadcast and its barrier have ended them |
//! | a leaf that a visit or a copy has looked up | the [section](crate::section) of that CPU ends | it waits, before frames are released |
//! | a node that a walk by software has found | the section of that CPU ends | it does not wait: the nodes are [kept](crate::limbo) |
//!
//! Only CPUs in `running` walk the table. One that a load of `running` does not show enters it later, and its walk finds the change: it
//! executes a fence in between, and so has the initiator ([`visit`](crate::visit)).

use tlbkit_addr::Flush;
use tlbkit_pagetable::Pending;
use tlbkit_shootdown::{Broadcast, BroadcastAction, BroadcastSeen};

use super::shoot::{tag, under};
use super::{CpuCall, Wait};
use crate::block::Block;
use crate::cpu_set::{SharedSpace, WORDS};
use crate::section::advance;
use crate::{CpuSet, Kernel, Mmu, Overdue};

impl<K: Kernel, const CPUS: usize> CpuCall<K, CPUS> {
    /// Executes `flush` on every CPU that may hold the translations that it names, and waits until that is done. Returns false if it
    /// cannot be done without the help of these CPUs. Changes and fence came before.
    pub(super) fn broadcast(&self, space: &Block<K, CPUS>, flush: &Flush) -> bool {
        let (true, Some(broadcast)) = (Mmu::<K, CPUS>::BROADCASTS, K::BROADCAST) else { return false };
        space.count_broadcast();
        // No CPU has ever run the address space: one that does so later walks the table as it is now.
        let Some(asid) = under(space.held()) else { return true };
        // A CPU that is offline has flushed, and flushes again when it comes online.
        let cpus = space.cpus().members.load().intersection(self.mmu.online_cpus().members.load());
        broadcast(self.mmu.kernel(), &crate::Flush::counted::<K::Machine>(flush), tag(asid), cpus)
    }

    /// Waits, after a broadcast, until no other CPU uses a leaf that the change has taken away; then gives the nodes of `pending` and the
    /// frames in the list back, if `pending` is there.
    pub(super) fn after_broadcast(&mut self, space: &Block<K, CPUS>, pending: Option<Pending<'_, 'static>>) {
        let has_nodes = pending.as_ref().is_some_and(|pending| pending.nodes() > 0);
        self.carry_out(space.cpus(), Broadcast::new(&Self::PLAN, has_nodes), pending);
    }

    /// Waits until no other CPU is in a walk of the table by software that began before the changes so far, if shootdowns do not do
    /// so.
    pub(crate) fn end_walks(&mut self, space: &Block<K, CPUS>) {
        if Mmu::<K, CPUS>::BROADCASTS && !self.is_alone(space) {
            self.carry_out(space.cpus(), Broadcast::walks(&Self::PLAN), None);
        }
    }

    /// Does what `change` asks for, after the broadcast to `cpus`. While this CPU waits, it serves shootdowns: the CPUs that it waits for wait for
    /// nothing.
    pub(super) fn carry_out(
        &mut self,
        cpus: &SharedSpace,
        mut change: Broadcast<WORDS>,
        mut pending: Option<Pending<'_, 'static>>,
    ) {
        let mmu = self.mmu;
        let mut wait = Wait::new();
        // What `Keep` has found no room for. If a wait unwinds, these nodes become a debt of the table.
        let mut nodes = None;
        loop {
            let seen = match change.next() {
                // `broadcast` has done both: `Kernel::BROADCAST` is the flush and its barrier.
                BroadcastAction::Flush => BroadcastSeen::Did,
                BroadcastAction::AllFlushed => BroadcastSeen::Yes,
                BroadcastAction::ReadRunning => BroadcastSeen::Cpus(self.others(cpus)),
                BroadcastAction::Look { cpus, kind, since } => {
                    let inside = mmu.inside(cpus, kind, since);
                    if since.is_some() && !inside.is_empty() {
                        mmu.kernel().pause();
                        self.serve();
                        if wait.is_overdue::<K>() {
                            Mmu::<K, CPUS>::OVERDUE(mmu.kernel(), Overdue::Walks(inside));
                        }
                    }
                    BroadcastSeen::Cpus(inside)
                }
                BroadcastAction::BeginEpoch => BroadcastSeen::Epoch(advance(mmu.epoch())),
                BroadcastAction::Release => {
                    // If a release unwinds, or one of the nodes that have waited, the nodes stay in the obligation. The frames are released
                    // first, because they would be lost.
                    if pending.is_some() {
                        self.release();
                        mmu.collect();
                    }
                    BroadcastSeen::Did
                }
                BroadcastAction::Keep { since } => {
                    // It succeeds, because the storage is in shared mode.
                    nodes = pending.take().and_then(|pending| pending.take().across_cpus().ok());
                    mmu.limbo.keep(&mut nodes, since);
                    if nodes.is_none() { BroadcastSeen::Yes } else { BroadcastSeen::No }
                }
                BroadcastAction::Reclaim => {
                    // `Broadcast` asks for this when the broadcast has flushed every TLB, and no other CPU is in a walk by software that
                    // began before. This CPU is in none.
                    if let Some(nodes) = nodes.take() {
                        // SAFETY: the nodes are in no TLB's reach and in no walk, as said above.
                        unsafe { nodes.into_retired().reclaim() };
                    } else if let Some(pending) = pending.take() {
                        // SAFETY: as above.
                        unsafe { pending.complete() };
                    }
                    BroadcastSeen::Did
                }
                BroadcastAction::Done => return,
            };
            if change.did(seen).is_err() {
                debug_assert!(false, "each answer fits its action");
                return;
            }
        }
    }

    /// Returns the other CPUs of `cpus` that may walk.
    fn others(&self, cpus: &SharedSpace) -> CpuSet {
        let mut others = cpus.running.load();
        others.remove(self.cpu);
        others
    }
}

#[cfg(test)]
#[cfg(target_pointer_width = "64")]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::Ordering;

    use tlbkit_shootdown::SectionKind;

    use crate::host::{Host, any_machine, run_as};
    use crate::mmu::Announced;
    use crate::{AddressSpace, Attr, Mmu, PageSize, Pages, PhysAddr, VirtAddr};

    type Space = AddressSpace<Host<true>, 2>;

    /// Two CPUs that run an address space, of which the first runs this thread.
    fn two_cpus() -> (&'static Mmu<Host<true>, 2>, Space) {
        let mmu = any_machine::<2, true>(64);
        let space = Space::new(mmu).unwrap();
        for cpu in [1, 0] {
            run_as(cpu);
            space.activate().unwrap();
        }
        (mmu, space)
    }

    /// Maps a page with nodes of its own, and unmaps it: its nodes are out of the table then.
    fn come_and_go(space: &Space) {
        let page = Pages::one(VirtAddr::new(1 << 30).vpn(PageSize::K4));
        let frame = space.mmu().kernel().data(1).unwrap();
        space.map(page, frame, Attr::READ | Attr::USER).unwrap();
        assert_eq!(space.unmap(page), Ok(1));
    }

    /// Begins a section of a walk on CPU 1.
    fn walk_on_1(mmu: &'static Mmu<Host<true>, 2>) -> Announced<Host<true>, 2> {
        run_as(1);
        let section = mmu.section(PhysAddr::new(0), SectionKind::Walk);
        run_as(0);
        section
    }

    #[test]
    fn nodes_wait_for_a_walk_that_may_be_in_them_and_nobody_waits_with_them() {
        let (mmu, space) = two_cpus();
        let host = mmu.kernel();
        let empty = host.in_use();
        come_and_go(&space);
        assert_eq!(host.in_use(), empty, "no CPU is in a walk");
        let walk = walk_on_1(mmu);
        come_and_go(&space);
        assert_eq!((mmu.reclaim(), host.in_use()), (2, empty + 2), "the nodes, and not the frame");
        drop(walk);
        // CPU 1 walks again, and cannot have found the nodes.
        let _again = walk_on_1(mmu);
        assert_eq!((mmu.reclaim(), host.in_use()), (0, empty));
        assert_eq!((host.interrupted.load(Ordering::Relaxed), host.pauses.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn nodes_are_given_back_by_a_later_change_a_switch_and_the_end_of_an_address_space() {
        let (mmu, space) = two_cpus();
        let other = Space::new(mmu).unwrap();
        let later: [&dyn Fn(); 3] =
            [&|| come_and_go(&space), &|| space.activate().unwrap(), &|| drop(Space::new(mmu).unwrap())];
        for later in later {
            let walk = walk_on_1(mmu);
            come_and_go(&space);
            drop(walk);
            assert_eq!(mmu.limbo.nodes(), 2);
            later();
            assert_eq!(mmu.limbo.nodes(), 0);
        }
        drop(other);
    }

    #[test]
    fn the_nodes_that_wait_are_bounded() {
        let (mmu, space) = two_cpus();
        let host = mmu.kernel();
        let empty = host.in_use();
        let walk = Mutex::new(Some(walk_on_1(mmu)));
        let walk: &'static Mutex<_> = Box::leak(Box::new(walk));
        // While a CPU waits, the other one leaves its walk.
        assert!(host.meanwhile.set(Box::new(|| drop(walk.lock().unwrap().take()))).is_ok());
        for batch in 1..=4 {
            come_and_go(&space);
            assert_eq!((mmu.reclaim(), host.pauses.load(Ordering::Relaxed)), (2 * batch, 0));
        }
        come_and_go(&space);
        assert_eq!(host.pauses.load(Ordering::Relaxed), 1, "it has waited for the walk");
        assert_eq!((mmu.reclaim(), host.in_use()), (0, empty));
    }

    #[test]
    fn a_long_range_waits_for_walks() {
        let (mmu, space) = two_cpus();
        let host = mmu.kernel();
        let empty = host.in_use();
        // More scattered frames than a change keeps in its list: they wait in their entries.
        let page = |number: usize| Pages::one(VirtAddr::new(number << 21).vpn(PageSize::K4));
        let frames: Vec<_> = (0..36).map(|_| host.data(1).unwrap()).collect();
        for number in 0..18 {
            space.map(page(number), frames[2 * number], Attr::READ | Attr::USER).unwrap();
        }
        let walk: &'static Mutex<_> = Box::leak(Box::new(Mutex::new(Some(walk_on_1(mmu)))));
        assert!(host.meanwhile.set(Box::new(|| drop(walk.lock().unwrap().take()))).is_ok());
        let all = Pages::new(page(0).first(), page(18).first()).unwrap();
        assert_eq!(space.unmap(all), Ok(18));
        assert_eq!(host.pauses.load(Ordering::Relaxed), 1, "it has waited for the walk");
        for unused in frames.iter().skip(1).step_by(2) {
            host.put_back(*unused);
        }
        assert_eq!((mmu.reclaim(), host.in_use()), (0, empty));
    }
}
