//! What may still be walked after an operation has ended: with a TLB-first plan a walk may have entered it after all CPUs
//! acknowledged, and a plan that flushes remotely ends no walk by software ([`RemoteTlbs::ends_walks`]). TLB-first:
//!
//! ```text
//!   requester                                            another CPU
//!     all have acknowledged
//!                                                          a walk enters node N
//!     the update unlinks N                                   |
//!     N waits in the operation's slot                        |
//!     the requester's next operation on the space ->       it ends
//!                                              <- an acknowledgement
//!     N is free
//! ```
//!
//! The next operation of the same CPU on the same space takes it along at no cost. [`System::drain`] asks the CPUs that
//! may be in such a walk, and no others; so does an operation that finds no other slot free. A CPU that does not run
//! the space, or is offline, is in no walk of it.

use tlbkit_addr::{CpuSet, Flush};

use super::slot::{CARRIES, CONTINUED, Cargo, Carried, FREE, Kept, Slot, tagged};
use super::{CpuHandle, Edit, LocalCpu, RemoteTlbs, System};
use crate::operation::Hold;
use crate::sync::Ordering;
use crate::{Duty, Misuse, OpId, Request, SharedSpace, Target};

impl<P, E, const CPUS: usize, const N: usize, const W: usize, const SLOTS: usize>
    System<P, E, CPUS, N, W, SLOTS>
where
    E: Edit<W, Payload = P>,
{
    /// Keeps a payload in its slot, or returns it if it is free because no other CPU runs the space. The caller owns
    /// the slot's cell, and stores the state.
    pub(super) fn carry(
        me: usize,
        slot: &Slot<P, E, W>,
        space: &SharedSpace<W>,
        kept: Kept<P>,
    ) -> Option<Kept<P>> {
        // A fence has followed the update: a CPU that is not among them now walks what the update has left.
        let mut walkers = space.running.load().intersection(Self::ALL);
        walkers.remove(me);
        if walkers.is_empty() {
            return Some(kept);
        }
        slot.space.store(space.named().unwrap_or(0), Ordering::Relaxed);
        let carried = Carried { kept: Hold::new(Some(kept)), walkers };
        // SAFETY: by the caller's word the cell is this CPU's.
        slot.cell.with_mut(|cell| unsafe { *cell = Cargo::Carried(carried) });
        None
    }

    /// Takes what a slot carries for the space of this name, or for any. The slot is the caller's then.
    pub(super) fn claim(slot: &Slot<P, E, W>, name: Option<usize>) -> Option<Carried<P, W>> {
        let is_wanted = || name.is_none_or(|name| slot.space.load(Ordering::Relaxed) == name);
        if slot.state.load(Ordering::Relaxed) != CARRIES || !is_wanted() {
            return None;
        }
        slot.state.compare_exchange(CARRIES, CONTINUED, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // Another CPU may have claimed the slot since the look, and its owner have used it once more.
        if !is_wanted() {
            slot.state.store(CARRIES, Ordering::Release);
            return None;
        }
        slot.cell.with_mut(|cell| {
            // SAFETY: the state was that of a slot that carries something, and this CPU has changed it: the cell is its
            // own now, and the acquiring exchange comes after what was stored there.
            match core::mem::replace(unsafe { &mut *cell }, Cargo::Nothing) {
                Cargo::Carried(carried) => Some(carried),
                _ => None,
            }
        })
    }

    /// Completes what is carried for `space`, by any CPU: asks the CPUs that may be in a walk of what its updates have
    /// taken out, and waits for their acknowledgements. Nothing is carried unless a plan is TLB-first, or flushes remotely and
    /// [`RemoteTlbs::ends_walks`] is false.
    ///
    /// A kernel calls it before it drops the space, and when it is short of memory. What is carried for a space that has
    /// been dropped stays until the CPU that carries it has no other slot for an operation, and until then `SLOTS` is one
    /// less there; a [`System`] that is dropped leaks it ([`leaked`](crate::leaked)). A CPU that goes offline leaves what
    /// it carries in the system, where another one's call finds it.
    ///
    /// Costs a look at every slot of the system, and a round of acknowledgements for each payload, of which there are at
    /// most `CPUS * SLOTS`; it interrupts only CPUs that have run the space all the while.
    ///
    /// # Errors
    ///
    /// [`Misuse::OtherSystem`]; [`Misuse::Busy`] if all of this CPU's slots are in flight, and something is carried. Then
    /// nothing has been done.
    pub fn drain(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
        space: &SharedSpace<W>,
    ) -> Result<(), Misuse> {
        self.check(handle)?;
        let slots = || self.slots.iter().flatten();
        let Some(name) = space.name() else { return Ok(()) };
        let carries = |slot: &Slot<P, E, W>| {
            slot.state.load(Ordering::Acquire) == CARRIES && slot.space.load(Ordering::Relaxed) == name
        };
        if !slots().any(carries) {
            return Ok(());
        }
        let (mine, at, mut carried) = self.take_slot(handle, local, Some(name))?;
        let mut others = slots();
        loop {
            if let Some(carried) = carried.take() {
                let walkers = carried.walkers.intersection(space.running.load());
                self.settle(handle, local, (mine, at), Carried { walkers, ..carried })?;
            }
            carried = others.by_ref().find_map(|slot| {
                let carried = Self::claim(slot, Some(name))?;
                slot.state.store(FREE, Ordering::Release);
                Some(carried)
            });
            if carried.is_none() {
                mine.state.store(FREE, Ordering::Release);
                return Ok(());
            }
        }
    }

    /// Frees a slot of this CPU's that carries something, whatever it is for.
    #[cold]
    pub(super) fn unload<'s>(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
        own: &'s [Slot<P, E, W>],
    ) -> Result<(&'s Slot<P, E, W>, usize), Misuse> {
        for (at, slot) in own.iter().enumerate() {
            if let Some(carried) = Self::claim(slot, None) {
                self.settle(handle, local, (slot, at), carried)?;
                return Ok((slot, at));
            }
        }
        let generation = own.first().map_or(0, |slot| slot.word.load(Ordering::Relaxed) >> 16);
        Err(Misuse::Busy { op: OpId { cpu: handle.me as u16, slot: 0, generation } })
    }

    /// Has all walkers acknowledge, and completes what is carried. They are counted in `slot`, which is this CPU's.
    fn settle(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
        (slot, at): (&Slot<P, E, W>, usize),
        mut carried: Carried<P, W>,
    ) -> Result<(), Misuse> {
        let mut walkers = carried.walkers;
        walkers.remove(handle.me);
        let op = Self::name(handle.me, slot, at);
        let remote = local.remote().filter(|tlbs| tlbs.ends_walks());
        if let Some(ticket) = remote.map(|tlbs| tlbs.flush(walkers, None, &Flush::none(), true)) {
            let left = |tlbs: &mut dyn RemoteTlbs<W>| tlbs.is_flushed(ticket);
            self.wait(handle, local, |local| Ok(local.remote().is_some_and(left)))?;
        } else {
            slot.word.store(tagged(op.generation, walkers.len() as u32), Ordering::Release);
            let mut asked = CpuSet::empty();
            for cpu in walkers.iter() {
                if self.send(cpu, Request { op, what: Target::Nothing, duty: Duty::Flush })? {
                    asked.insert(cpu);
                } else {
                    self.reply_to(op)?;
                }
            }
            if !asked.is_empty() {
                local.interrupt(asked);
            }
            self.wait(handle, local, |_| Ok(slot.word.load(Ordering::Acquire) & 0xffff == 0))?;
        }
        if let Some(kept) = carried.kept.take() {
            local.complete(kept.op, kept.payload, kept.outcome);
        }
        Ok(())
    }
}
