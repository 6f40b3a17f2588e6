//! A system whose operations are all [PTE-first](crate::Algorithm::PteFirst) and waited for ([`Edit::ONLY_PTE_FIRST`]): the same steps
//! as those of the state machines, without them. Such a system has no code of the other algorithms.
//!
//! ```text
//!   requester: run_straight                     replier: reply_straight
//!     exclude, update, fence                      take a request
//!     read members and running                    flush
//!     flush here, if a member                     count one less
//!     mark each member that does not run,
//!       fence, look again whether it runs
//!     count, send, interrupt, wait for 0
//!     release
//! ```

use tlbkit_addr::CpuSet;

use super::edit::everything;
use super::slot::{CONTINUED, FREE, Slot, tagged};
use super::{CpuHandle, Edit, LocalCpu, Post, System};
use crate::operation::Hold;
use crate::sync::{Ordering, fence};
use crate::{Algorithm, Duty, Misuse, OpId, Outcome, Plan, Request, SharedSpace, Target, Work};

impl<P, E, const CPUS: usize, const N: usize, const W: usize, const SLOTS: usize>
    System<P, E, CPUS, N, W, SLOTS>
where
    E: Edit<W, Payload = P>,
{
    /// Implements [`run`](Self::run).
    #[inline]
    pub(super) fn run_straight<X: Edit<W, Payload = P>>(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
        plan: Plan,
        edit: &mut X,
    ) -> Result<(OpId, Outcome), Misuse> {
        self.check(handle)?;
        if plan.algorithm() != Algorithm::PteFirst {
            return Err(Misuse::OtherPlan);
        }
        if !plan.allows(edit.low_rights()) {
            return Err(Misuse::OtherRights);
        }
        self.has_all(edit.space())?;
        let own = self.slots.get(handle.me).ok_or(Misuse::NoSuchCpu { cpu: handle.me })?;
        let is_free = |(_, slot): &(usize, &Slot<P, E, W>)| slot.state.load(Ordering::Acquire) == FREE;
        let Some((at, slot)) = own.iter().enumerate().find(is_free) else {
            let generation = own.first().map_or(0, |slot| slot.word.load(Ordering::Relaxed) >> 16);
            return Err(Misuse::Busy { op: OpId { cpu: handle.me as u16, slot: 0, generation } });
        };
        slot.state.store(CONTINUED, Ordering::Release);
        let id = Self::name(handle.me, slot, at);
        edit.begin(id);
        self.wait(handle, local, |_| Ok(edit.exclude()))?;
        // If a call below panics, the payload is leaked, because a TLB may still lead to it.
        let mut payload = Hold::new(Some(edit.update()));
        self.flush_all(handle, local, (slot, id), edit)?;
        edit.release();
        local.changed();
        slot.state.store(FREE, Ordering::Release);
        local.ended(id, Outcome::Done);
        if let Some(payload) = payload.take() {
            local.complete(id, payload, Outcome::Done);
        }
        Ok((id, Outcome::Done))
    }

    /// Flushes what an update has made stale on every CPU that may hold it, after the update.
    fn flush_all<X: Edit<W, Payload = P>>(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
        (slot, op): (&Slot<P, E, W>, OpId),
        edit: &X,
    ) -> Result<(), Misuse> {
        let (space, asid, flush) = (edit.space(), edit.asid(), edit.flush());
        // Orders the update before the loads of the sets. A CPU that joins later walks only the updated table.
        fence(Ordering::SeqCst);
        // A CPU that this system does not have may have joined since `has_all` checked the members.
        let mut others = space.members.load().intersection(Self::ALL);
        let running = space.running.load();
        if others.remove(handle.me) {
            local.flush(Some(asid), flush, true);
        }
        let repliers = Self::defer(space, others, running);
        let what = Target::of(asid, flush);
        if let Target::Listed(_) = what {
            // SAFETY: this CPU owns the slot's cells. No CPU has a request of this operation yet, and those of earlier operations in
            // this slot have acknowledged: no CPU reads.
            slot.flush.with_mut(|listed| unsafe { (*listed).clone_from(flush) });
        }
        self.ask_and_wait(handle, local, (slot, op), what, repliers)
    }

    /// Has each of `cpus` do its part of a flush, and waits until all have. The operation's slot counts those that have not.
    pub(super) fn ask_and_wait(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
        (slot, op): (&Slot<P, E, W>, OpId),
        what: Target,
        cpus: CpuSet<W>,
    ) -> Result<(), Misuse> {
        slot.word.store(tagged(op.generation, cpus.len() as u32), Ordering::Release);
        let mut asked = CpuSet::empty();
        for cpu in cpus.iter() {
            if self.send(cpu, Request { op, what, duty: Duty::Flush })? {
                asked.insert(cpu);
            } else {
                // It is offline, so this CPU counts its acknowledgement.
                self.reply_to(op)?;
            }
        }
        if !asked.is_empty() {
            local.interrupt(asked);
        }
        self.wait(handle, local, |_| Ok(slot.word.load(Ordering::Acquire) & 0xffff == 0))?;
        Ok(())
    }

    /// Marks each of `others` that does not run the space as stale, and returns the others.
    fn defer(space: &SharedSpace<W>, others: CpuSet<W>, running: CpuSet<W>) -> CpuSet<W> {
        let mut repliers = others.intersection(running);
        for cpu in others.difference(running).iter() {
            space.stale.insert(cpu);
            // Orders the mark before the load of `running`. `switch` has the matching fence.
            fence(Ordering::SeqCst);
            if space.running.contains(cpu) {
                // It may have switched to the space before it could see the mark.
                repliers.insert(cpu);
            }
        }
        repliers
    }

    /// Implements [`poll`](Self::poll), where there is a request.
    pub(super) fn reply_straight(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
    ) -> Result<(), Misuse> {
        // After a panic in the middle of a reply the CPU serves no further request, and stays attached.
        if core::mem::replace(&mut handle.entered, true) {
            return Ok(());
        }
        while let Some(work) = self.mailbox(Post::Flushes, handle.me)?.take() {
            match work {
                Work::One(Request { op, what, .. }) => {
                    let flushed = self.flush_for(local, op, what);
                    handle.note(flushed);
                    let left = self.reply_to(op);
                    Self::count(handle, local, left);
                }
                Work::Everything(mut ops) => {
                    local.flush(None, &everything(), true);
                    while let Some((cpu, slot)) = ops.pop() {
                        // The operation in the slot does not end before this CPU has acknowledged.
                        let left = self.count_down(cpu, slot, None);
                        Self::count(handle, local, left);
                    }
                }
            }
        }
        handle.entered = false;
        handle.wrong.take().map_or(Ok(()), Err)
    }

    /// Flushes what a request asks for.
    fn flush_for(&self, local: &mut impl LocalCpu<P, W>, op: OpId, what: Target) -> Result<(), Misuse> {
        match what {
            Target::Listed(space) => {
                let slot = self.slot(op.cpu, op.slot)?;
                // SAFETY: the requester wrote the list before it sent this request, and writes it again only after this CPU has
                // acknowledged, which comes after this read.
                slot.flush.with(|flush| local.flush(Some(space), unsafe { &*flush }, true));
            }
            what => what.with(|space, flush| local.flush(space, flush, true)),
        }
        Ok(())
    }

    /// Records what came of an acknowledgement. The last one may end another CPU's wait.
    fn count(
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
        left: Result<u32, Misuse>,
    ) {
        if handle.note(left) == Some(0) {
            local.changed();
        }
    }
}
