//! Payloads that a walk may still reach after their operation has ended. With a TLB-first plan, a walk may enter a node
//! after all CPUs have acknowledged; a plan that flushes remotely ends no walk by software ([`RemoteTlbs::ends_walks`]).
//! With TLB-first:
//!
//! ```text
//!   requester                                            another CPU
//!     all CPUs have acknowledged
//!                                                          a walk enters node N
//!     the update unlinks N                                   |
//!     N waits in the operation's slot                        |
//!     the requester's next operation on the space ->       the walk ends
//!                                              <- an acknowledgement
//!     N is free
//! ```
//!
//! The next operation of the same CPU on the same space that interrupts the other CPUs completes the payload at no
//! additional cost. [`System::drain`] completes it by requests to the CPUs that may be in such a walk, or by a flush that
//! ends their walks, and so does an operation that finds no other slot free. A CPU that does not run the space, or is
//! offline, is in no walk of the space.

use tlbkit_addr::Flush;

use super::slot::{CARRIES, CLAIMED, CONTINUED, Cargo, Deferred, FREE, Kept, Slot};
use super::{CpuHandle, Edit, LocalCpu, RemoteTlbs, System};
use crate::operation::Hold;
use crate::sync::Ordering;
use crate::{Misuse, OpId, SharedSpace, Target};

impl<P, E, const CPUS: usize, const N: usize, const W: usize, const SLOTS: usize>
    System<P, E, CPUS, N, W, SLOTS>
where
    E: Edit<W, Payload = P>,
{
    /// Keeps a payload in its slot, or returns it if no other CPU runs the space, so that the payload is free.
    ///
    /// The caller must own the slot's cell, and stores the slot's state afterwards.
    pub(super) fn carry(
        me: usize,
        slot: &Slot<P, E, W>,
        space: &SharedSpace<W>,
        kept: Kept<P>,
    ) -> Option<Kept<P>> {
        // A fence has followed the update, so a CPU that is not in `running` now and enters it later walks only the updated
        // table.
        let mut walkers = space.running.load().intersection(Self::ALL);
        walkers.remove(me);
        if walkers.is_empty() {
            return Some(kept);
        }
        slot.space.store(space.named().unwrap_or(0), Ordering::Relaxed);
        let carried = Deferred { kept: Hold::new(Some(kept)), walkers };
        // SAFETY: the caller owns the slot's cell (the function's precondition), so no other CPU accesses it.
        slot.cell.with_mut(|cell| unsafe { *cell = Cargo::Deferred(carried) });
        None
    }

    /// Takes the payload that a slot carries for the space of this name, or for any space if `name` is `None`. If there is
    /// one, `then` is the state of the slot afterwards: [`FREE`], or [`CONTINUED`] for a slot of this CPU, which then owns it.
    pub(super) fn claim(slot: &Slot<P, E, W>, name: Option<usize>, then: u32) -> Option<Deferred<P, W>> {
        let is_wanted = || name.is_none_or(|name| slot.space.load(Ordering::Relaxed) == name);
        if slot.state.load(Ordering::Relaxed) != CARRIES || !is_wanted() {
            return None;
        }
        slot.state.compare_exchange(CARRIES, CLAIMED, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // Between the check above and the exchange, another CPU may have claimed the slot, and its owner may have carried a
        // payload of another space in it.
        if !is_wanted() {
            slot.state.store(CARRIES, Ordering::Release);
            return None;
        }
        let taken = slot.cell.with_mut(|cell| {
            // SAFETY: this CPU has changed the state from CARRIES, so it owns the cell now. The acquiring exchange orders
            // this access after the write of the former owner, which stored the state with release.
            match core::mem::replace(unsafe { &mut *cell }, Cargo::Nothing) {
                Cargo::Deferred(carried) => Some(carried),
                _ => None,
            }
        });
        slot.state.store(then, Ordering::Release);
        taken
    }

    /// Completes all payloads that any CPU carries for `space`: sends requests to the CPUs that may be in a walk of the
    /// nodes that the space's updates have unlinked, and waits for their acknowledgements. If a remote flush ends such walks
    /// ([`RemoteTlbs::ends_walks`]), it flushes instead. There are such payloads only if a plan is TLB-first, or flushes
    /// remotely and [`RemoteTlbs::ends_walks`] is false.
    ///
    /// A kernel calls it before it drops the space, and when it is short of memory. A payload that is carried for a dropped
    /// space stays until the CPU that carries it has no other slot for an operation; until then, that CPU has one slot less.
    /// A [`System`] that is dropped leaks the payload ([`leaked`](crate::leaked)). The payloads of a CPU that goes offline
    /// stay in the system, and a call on another CPU completes them.
    ///
    /// The call reads every slot of the system. For each payload, of which there are at most `CPUS * SLOTS`, it makes one
    /// round of acknowledgements, or one remote flush if that ends walks. It interrupts only CPUs that ran the space when
    /// the payload was unlinked and run it now; and, if this CPU has no free slot, those that ran the space of one other
    /// payload, which is completed first.
    ///
    /// # Errors
    ///
    /// [`Misuse::OtherSystem`] if the handle belongs to another system; [`Misuse::Busy`] if operations in flight use all of
    /// this CPU's slots and there is a payload to complete. In both cases nothing has been done.
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
                self.settle(handle, local, (mine, at), Deferred { walkers, ..carried })?;
            }
            carried = others.by_ref().find_map(|slot| Self::claim(slot, Some(name), FREE));
            if carried.is_none() {
                mine.state.store(FREE, Ordering::Release);
                return Ok(());
            }
        }
    }

    /// Frees one of this CPU's slots that carries a payload, of any address space, and returns the slot and its number.
    #[cold]
    pub(super) fn unload<'s>(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
        own: &'s [Slot<P, E, W>],
    ) -> Result<(&'s Slot<P, E, W>, usize), Misuse> {
        for (at, slot) in own.iter().enumerate() {
            if let Some(carried) = Self::claim(slot, None, CONTINUED) {
                self.settle(handle, local, (slot, at), carried)?;
                return Ok((slot, at));
            }
        }
        let generation = own.first().map_or(0, |slot| slot.word.load(Ordering::Relaxed) >> 16);
        Err(Misuse::Busy { op: OpId { cpu: handle.me as u16, slot: 0, generation } })
    }

    /// Waits until all walkers have acknowledged, and completes the carried payload. `slot` counts the acknowledgements, and
    /// is a slot of this CPU.
    fn settle(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
        (slot, at): (&Slot<P, E, W>, usize),
        mut carried: Deferred<P, W>,
    ) -> Result<(), Misuse> {
        let mut walkers = carried.walkers;
        walkers.remove(handle.me);
        let op = Self::name(handle.me, slot, at);
        let remote = local.remote().filter(|tlbs| tlbs.ends_walks());
        if let Some(ticket) = remote.map(|tlbs| tlbs.flush(walkers, None, &Flush::none(), true)) {
            let left = |tlbs: &mut dyn RemoteTlbs<W>| tlbs.is_flushed(ticket);
            self.wait(handle, local, |local| Ok(local.remote().is_some_and(left)))?;
        } else {
            self.ask_and_wait(handle, local, (slot, op), Target::Nothing, walkers)?;
        }
        if let Some(kept) = carried.kept.take() {
            local.complete(kept.op, kept.payload, kept.outcome);
        }
        Ok(())
    }
}
