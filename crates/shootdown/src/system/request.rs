//! The loop of a requester: it asks its operation for the next action, and does it.

use tlbkit_addr::CpuSet;

use super::slot::{
    CARRIES, CLAIMED, CONTINUED, Cargo, Deferred, FREE, Kept, LEFT, OPEN, SUPERSEDED, Slot, TAKEN, tagged,
};
use super::{CpuHandle, Edit, LocalCpu, Post, RemoteTlbs, System};
use crate::operation::Hold;
use crate::sync::{Ordering, fence, relax};
use crate::{
    Action, Duty, Form, Misuse, OpId, Operation, Outcome, Plan, Rendezvous, Request, Seen, Style, Target,
};

/// The last request of an asynchronous operation: its receiver, the request, the other CPUs to interrupt together with the receiver,
/// and whether the form of the plan sends interrupts.
type Last<const W: usize> = (usize, Request, CpuSet<W>, bool);
/// A slot for an operation, its number, and the payload that it carries for the same address space.
pub(super) type Taken<'s, P, E, const W: usize> = (&'s Slot<P, E, W>, usize, Option<Deferred<P, W>>);

/// Tells whether an operation's acknowledgements imply that walks by software have ended.
fn ends_walks<P, const W: usize>(plan: &Plan, local: &mut impl LocalCpu<P, W>) -> bool {
    match plan.algorithm().style() {
        _ if plan.form() == Form::EarlyAcknowledgement => false,
        Style::Remote => local.remote().is_some_and(|tlbs| tlbs.ends_walks()),
        Style::Synchronous | Style::Asynchronous => true,
    }
}

impl<P, E, const CPUS: usize, const N: usize, const W: usize, const SLOTS: usize>
    System<P, E, CPUS, N, W, SLOTS>
where
    E: Edit<W, Payload = P>,
{
    /// Runs an operation to its end, and returns its name and its outcome. An asynchronous algorithm runs in its synchronous form.
    /// The payload comes back through [`LocalCpu::complete`] before this method returns, unless a walk on another CPU may still
    /// reach it. Then the slot carries it, and it comes back later ([`drain`](Self::drain)). That needs all of these:
    ///
    /// - the plan is TLB-first, or acknowledges early, or flushes remotely and [`RemoteTlbs::ends_walks`] is false;
    /// - the payload [is walked](Edit::is_walked);
    /// - another CPU runs the space.
    ///
    /// With `CPUS` 1 it consists of the edit and the local flush only, and [`Misuse::Busy`], [`Misuse::NoRemoteTlbs`] and
    /// [`Misuse::NoSuchCpu`] do not occur.
    ///
    /// The caller ensures:
    ///
    /// - interrupts are disabled, at least every interrupt whose handler calls [`poll`](Self::poll) and, with 2-phase, every
    ///   interrupt whose handler may access the page (Tzou 3.3.1);
    /// - this CPU is in no walk of the table, and uses no result of an earlier walk afterwards.
    ///
    /// # Errors
    ///
    /// After an error nothing has been done.
    ///
    /// - [`Misuse::Busy`] if operations in flight use all of this CPU's slots.
    /// - [`Misuse::OtherSystem`] if the handle belongs to another system.
    /// - [`Misuse::OtherRights`] if the plan was made for unmapping, and the edit leaves rights with which the hardware may
    ///   write status bits.
    /// - [`Misuse::OtherPlan`] if the plan is not PTE-first, and the system's edit type allows no other.
    /// - [`Misuse::NoRemoteTlbs`] if the plan flushes other CPUs' TLBs, and [`LocalCpu::remote`] returns none.
    /// - [`Misuse::NoSuchCpu`] if a member of the space is not a CPU of this system. (A CPU that becomes a member later gets
    ///   no request, because the system does not have it.)
    #[inline]
    pub fn run<X: Edit<W, Payload = P>>(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
        plan: Plan,
        edit: &mut X,
    ) -> Result<(OpId, Outcome), Misuse> {
        let plan = plan.waited_for().with_rendezvous(self.rendezvous);
        if CPUS == 1 {
            return self.run_alone(handle, local, plan, edit);
        }
        if E::ONLY_PTE_FIRST {
            return self.run_straight(handle, local, plan, edit);
        }
        let (slot, id, operation) = self.begin(handle, local, plan, edit)?;
        let mut operation = operation;
        // A synchronous algorithm never leaves its operation to the repliers, so `advance` returns at its end.
        let ran = self.advance(handle, local, slot, id, &mut operation, edit);
        ran.and_then(|_| self.end(handle, local, slot, id, operation, edit)).map(|outcome| (id, outcome))
    }

    /// Starts an operation, and runs it as far as this CPU can: to its end, unless the plan is asynchronous. When the
    /// operation ends, on this CPU or on another one, that CPU calls [`LocalCpu::ended`] and [`LocalCpu::complete`]. Returns
    /// the operation's name, which [`Edit::begin`] has received before.
    ///
    /// The preconditions are those of [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// The edit, with the reason as for [`run`](Self::run).
    pub fn start(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
        plan: Plan,
        mut edit: E,
    ) -> Result<OpId, (E, Misuse)> {
        if plan.algorithm().style() != Style::Asynchronous || CPUS == 1 || E::ONLY_PTE_FIRST {
            return match self.run(handle, local, plan, &mut edit) {
                Ok((id, _)) => Ok(id),
                Err(why) => Err((edit, why)),
            };
        }
        let plan = plan.with_rendezvous(self.rendezvous);
        let (slot, id, operation) = match self.begin(handle, local, plan, &mut edit) {
            Ok(begun) => begun,
            Err(why) => return Err((edit, why)),
        };
        // SAFETY: `begin` took this slot, of this CPU, when it was free or claimed. No other CPU accesses its cell before
        // this CPU sends the first request.
        slot.cell.with_mut(|cell| unsafe { *cell = Cargo::Flight(operation, edit) });
        // The preconditions have been checked, and an asynchronous algorithm has no other error: `note` would keep one for
        // `poll`.
        let driven = self.drive(handle, local, slot, id);
        handle.note(driven);
        Ok(id)
    }

    /// Takes a slot for an operation, and gives the edit the operation's name.
    #[inline]
    #[expect(clippy::type_complexity, reason = "what an operation is made of")]
    fn begin<X: Edit<W, Payload = P>>(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
        plan: Plan,
        edit: &mut X,
    ) -> Result<(&Slot<P, E, W>, OpId, Operation<Kept<P>, W>), Misuse> {
        self.check(handle)?;
        if !plan.allows(edit.low_rights()) {
            return Err(Misuse::OtherRights);
        }
        if plan.algorithm().style() == Style::Remote && local.remote().is_none() {
            return Err(Misuse::NoRemoteTlbs);
        }
        self.has_all(edit.space())?;
        // The operation can complete a carried payload only if its acknowledgements end the walks that may reach the
        // payload.
        let name = edit.space().name().filter(|_| ends_walks(&plan, local));
        let (slot, at, carried) = self.take_slot(handle, local, name)?;
        let earlier = carried.and_then(|mut carried| carried.kept.take());
        let id = Self::name(handle.me, slot, at);
        // The sizes were checked, so every CPU can be named.
        let operation = Operation::new(plan, handle.me, earlier).map_err(|(_, why)| why)?;
        edit.begin(id);
        Ok((slot, id, operation))
    }

    /// Takes one of this CPU's slots, by preference: a slot that carries a payload of the same address space, which the
    /// operation completes; a free slot; a slot that carries another payload, which is completed first.
    #[inline]
    pub(super) fn take_slot(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
        space: Option<usize>,
    ) -> Result<Taken<'_, P, E, W>, Misuse> {
        let own = self.slots.get(handle.me).ok_or(Misuse::NoSuchCpu { cpu: handle.me })?;
        loop {
            if space.is_some() {
                for (at, slot) in own.iter().enumerate() {
                    if let Some(carried) = Self::claim(slot, space, CONTINUED) {
                        return Ok((slot, at, Some(carried)));
                    }
                }
            }
            for (at, slot) in own.iter().enumerate() {
                if slot.state.load(Ordering::Acquire) == FREE {
                    // A CPU whose queue overflowed may hold the slot's previous operation by the slot's number alone. It must
                    // not wait for the new operation, which may need that CPU to leave first. So the state says that such a
                    // CPU may continue, until the new operation sends its requests.
                    slot.state.store(CONTINUED, Ordering::Release);
                    return Ok((slot, at, None));
                }
            }
            let unloaded = self.unload(handle, local, own).map(|(slot, at)| (slot, at, None));
            // While another CPU takes what a slot carries (`drain`), the slot is in use by no operation.
            let passes =
                |slot: &Slot<P, E, W>| matches!(slot.state.load(Ordering::Acquire), FREE | CARRIES | CLAIMED);
            if !matches!(unloaded, Err(Misuse::Busy { .. })) || !own.iter().any(passes) {
                return unloaded;
            }
            relax();
        }
    }

    /// Returns the name of the operation that begins in a slot: increments the slot's generation.
    #[inline]
    pub(super) fn name(me: usize, slot: &Slot<P, E, W>, at: usize) -> OpId {
        let generation = (slot.word.load(Ordering::Relaxed) >> 16).wrapping_add(1) & 0xffff;
        slot.word.store(tagged(generation, 0), Ordering::Relaxed);
        OpId { cpu: me as u16, slot: at as u16, generation }
    }

    /// Runs an asynchronous operation until the repliers own it, or until it ends. The caller must own the slot's cell.
    pub(super) fn drive(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
        slot: &Slot<P, E, W>,
        id: OpId,
    ) -> Result<(), Misuse> {
        loop {
            let last = slot.cell.with_mut(|cell| {
                // SAFETY: the caller owns the slot's cell, and the functions called from here access only other slots'
                // cells.
                match unsafe { &mut *cell } {
                    Cargo::Flight(operation, edit) => self.advance(handle, local, slot, id, operation, edit),
                    _ => Err(Misuse::NotAsked),
                }
            })?;
            let Some((to, request, mut asked, interrupts)) = last else { break };
            // The access to the cell has ended: with this request the repliers own the operation.
            if self.send(to, request)? {
                asked.insert(to);
                if interrupts {
                    local.interrupt(asked);
                }
                return Ok(());
            }
            // The receiver is offline, so this CPU counts its acknowledgement, and continues the operation if it was the
            // last.
            if self.reply_to(id)? > 0 {
                if interrupts {
                    local.interrupt(asked);
                }
                return Ok(());
            }
            Self::take_over(slot, handle.me)?;
        }
        // SAFETY: the operation has ended on this CPU, which therefore still owns the slot's cell.
        let ended = slot.cell.with_mut(|cell| unsafe { core::mem::replace(&mut *cell, Cargo::Nothing) });
        match ended {
            Cargo::Flight(operation, edit) => self.end(handle, local, slot, id, operation, &edit).map(|_| ()),
            _ => Err(Misuse::NotAsked),
        }
    }

    /// Finishes an operation that has ended: returns the payloads that are free, and keeps the others in the slot. The
    /// caller must own the slot's cell.
    #[inline]
    fn end<X: Edit<W, Payload = P>>(
        &self,
        handle: &CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
        slot: &Slot<P, E, W>,
        id: OpId,
        operation: Operation<Kept<P>, W>,
        edit: &X,
    ) -> Result<Outcome, Misuse> {
        let ends_walks = ends_walks(operation.machine().plan(), local);
        let space = edit.space();
        let Ok(ended) = operation.finish() else { return Err(Misuse::NotAsked) };
        let outcome = ended.outcome;
        let (mut free, mut carried) = (ended.free, ended.carried);
        if !ends_walks {
            carried = carried.or(free.take());
        }
        // If `is_walked` panics, the payload is leaked.
        let mut carried = Hold::new(carried);
        let is_walked = carried.place().as_ref().is_some_and(|kept| edit.is_walked(&kept.payload));
        let mut state = FREE;
        if let Some(kept) = carried.take().map(|kept| Kept { outcome, ..kept }) {
            free = if is_walked { Self::carry(handle.me, slot, space, kept) } else { Some(kept) };
            state = if free.is_some() { FREE } else { CARRIES };
        }
        let free = free.map(|kept| Kept { outcome, ..kept });
        slot.state.store(state, Ordering::Release);
        local.ended(id, outcome);
        for kept in ended.earlier.into_iter().chain(free) {
            local.complete(kept.op, kept.payload, kept.outcome);
        }
        Ok(outcome)
    }

    /// Does the actions of an operation until it has ended, or until the last request of an asynchronous operation is to be
    /// sent. Returns that request.
    #[inline]
    fn advance<X: Edit<W, Payload = P>>(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
        slot: &Slot<P, E, W>,
        id: OpId,
        operation: &mut Operation<Kept<P>, W>,
        edit: &mut X,
    ) -> Result<Option<Last<W>>, Misuse> {
        let plan = *operation.machine().plan();
        let answer = |yes| if yes { Seen::Yes } else { Seen::No };
        // The target of this round's requests, the CPUs that the round flushes remotely, and the number of that flush.
        let (mut what, mut others, mut remote) = (Target::Nothing, CpuSet::empty(), None);
        // The CPUs that have a request and no interrupt for it yet.
        let mut asked = CpuSet::empty();
        loop {
            let action = operation.next();
            if plan.form() == Form::Swept {
                asked = CpuSet::empty();
            }
            if !asked.is_empty() && !matches!(action, Action::Send(_) | Action::SendAndLeave(_)) {
                local.interrupt(core::mem::replace(&mut asked, CpuSet::empty()));
            }
            let seen = match action {
                Action::Exclude => self.wait(handle, local, |_| Ok(edit.exclude()))?,
                Action::Release => {
                    edit.release();
                    local.changed();
                    Seen::Did
                }
                Action::SetTentative => {
                    edit.set_tentative();
                    Seen::Did
                }
                Action::SetChanging(on) => {
                    if plan.stops_repliers() {
                        edit.space().set_changing(on);
                    } else {
                        edit.set_changing(on);
                    }
                    // Orders the flag before the read of the target set, and before the load of any entry.
                    fence(Ordering::SeqCst);
                    Seen::Did
                }
                Action::Update | Action::Store => {
                    match operation.uncovered() {
                        Some(kept) => edit.update_again(&mut kept.payload),
                        empty => {
                            *empty = Some(Kept { op: id, outcome: Outcome::Done, payload: edit.update() });
                        }
                    }
                    fence(Ordering::SeqCst);
                    Seen::Did
                }
                Action::ReadStatus => Seen::Did,
                Action::ReadTargets | Action::ReadHolders => {
                    let space = edit.space();
                    // A CPU that this system does not have may have joined since `has_all` checked the members.
                    let members = space.members.load().intersection(Self::ALL);
                    (others, remote) = (members, None);
                    others.remove(handle.me);
                    Seen::Targets { members, running: space.running.load() }
                }
                Action::MarkStale(cpu) => {
                    edit.space().stale.insert(cpu);
                    // Orders the mark before the load of `running`. `switch` has the matching fence.
                    fence(Ordering::SeqCst);
                    Seen::Did
                }
                Action::IsRunning(cpu) => answer(edit.space().running.contains(cpu)),
                Action::FlushLocally { drain } => {
                    local.flush(Some(edit.asid()), edit.flush(), drain);
                    Seen::Did
                }
                Action::SetCount(count) => {
                    what = Target::of(edit.asid(), edit.flush());
                    if let (Target::Listed(space), Duty::AcknowledgeFirst) = (what, plan.duty()) {
                        // A replier would read the list after its acknowledgement, when the slot may have another one.
                        what = Target::Space(space);
                    }
                    if let Target::Listed(_) = what {
                        // SAFETY: this CPU owns the slot's cell. No CPU has a request of this round yet. The repliers of earlier
                        // rounds, and of earlier operations in this slot, have acknowledged or, in 2-phase, continued: no CPU
                        // reads.
                        slot.flush.with_mut(|flush| unsafe { (*flush).clone_from(edit.flush()) });
                    }
                    slot.word.store(tagged(id.generation, count & 0xffff), Ordering::Release);
                    let state = match plan.duty() {
                        Duty::Stop => TAKEN,
                        Duty::FlushAndFinish => LEFT,
                        Duty::Flush | Duty::AcknowledgeFirst => CONTINUED,
                    };
                    slot.state.store(state, Ordering::Relaxed);
                    Seen::Did
                }
                Action::Send(to) => {
                    if self.send(to, Request { op: id, what, duty: plan.duty() })? {
                        asked.insert(to);
                        Seen::Did
                    } else {
                        self.reply_to(id)?;
                        Seen::No
                    }
                }
                Action::SendAndLeave(to) => {
                    let last =
                        (to, Request { op: id, what, duty: plan.duty() }, asked, plan.form() != Form::Swept);
                    operation.did(Seen::Did)?;
                    return Ok(Some(last));
                }
                Action::AllAcknowledged => {
                    self.wait(handle, local, |_| Ok(slot.word.load(Ordering::Acquire) & 0xffff == 0))?
                }
                Action::Enter => {
                    handle.entered = true;
                    self.stop(handle.me, local);
                    Seen::Did
                }
                Action::IsStopped(cpu) => self.wait(handle, local, |_| self.is_stopped(cpu))?,
                Action::Continue => {
                    slot.state.store(CONTINUED, Ordering::Release);
                    local.changed();
                    Seen::Did
                }
                Action::FlushRemotely { drain, .. } => {
                    let tlbs = local.remote().ok_or(Misuse::NoRemoteTlbs)?;
                    // The requester asks for the CPUs one after the other; the first action starts one flush for all of
                    // them.
                    let ticket = *remote
                        .get_or_insert_with(|| tlbs.flush(others, Some(edit.asid()), edit.flush(), drain));
                    Seen::Posted { ticket, done: ticket.wrapping_sub(1) }
                }
                Action::IsFlushed { ticket, .. } => {
                    let flushed = |tlbs: &mut dyn RemoteTlbs<W>| tlbs.is_flushed(ticket);
                    self.wait(handle, local, |local| Ok(local.remote().is_some_and(flushed)))?
                }
                Action::Open => {
                    slot.rights.store(tagged(id.generation, OPEN), Ordering::Release);
                    Seen::Did
                }
                Action::Close => {
                    let raised = tagged(id.generation, SUPERSEDED);
                    answer(slot.rights.swap(0, Ordering::AcqRel) != raised)
                }
                Action::Check => answer(edit.check()),
                Action::Serve => {
                    handle.stopper.finish();
                    let served = self.reply(handle, local, Post::Stops);
                    handle.note(served);
                    handle.entered = false;
                    local.changed();
                    Seen::Did
                }
                Action::Done(_) => {
                    if plan.stops_repliers() {
                        self.wait_until_flushed(handle, local, id, operation.machine().repliers())?;
                    }
                    return Ok(None);
                }
            };
            operation.did(seen)?;
        }
    }

    /// Waits until `cpus`, which have requests of 2-phase operation `id`, have flushed for it. A CPU that continues has flushed
    /// for all operations whose requests it had taken. It may have been stopped for another operation only: then it stops again
    /// before it takes this operation's request.
    pub(super) fn wait_until_flushed(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
        id: OpId,
        cpus: CpuSet<W>,
    ) -> Result<(), Misuse> {
        for cpu in cpus.iter() {
            // The mailbox's lock orders the load of the count after the CPU's stop.
            let requests = self.mailbox(Post::Stops, cpu)?;
            self.wait(handle, local, |_| Ok(!requests.has(id)))?;
            let stopped = self.stops_of(cpu)?;
            if stopped & 1 == 1 {
                self.wait(handle, local, |_| Ok(self.stops_of(cpu)? != stopped))?;
            }
        }
        Ok(())
    }

    /// Waits until the predicate `holds` returns true. While it waits, it serves this CPU's queue as far as the plan allows.
    /// The state machine gets no answer before that, because it would only ask again.
    pub(super) fn wait<L: LocalCpu<P, W>>(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut L,
        mut holds: impl FnMut(&mut L) -> Result<bool, Misuse>,
    ) -> Result<Seen<W>, Misuse> {
        while !holds(local)? {
            local.pause();
            let served = if E::ONLY_PTE_FIRST || !handle.entered {
                self.poll(handle, local)
            } else if self.rendezvous == Rendezvous::Serve
                && !self.mailbox(Post::Stops, handle.me)?.is_empty()
            {
                handle.stopper.collect();
                self.reply(handle, local, Post::Stops)
            } else {
                Ok(())
            };
            // Such an error concerns the operations of other CPUs, not the operation that waits.
            handle.note(served);
        }
        Ok(Seen::Yes)
    }

    /// Continues an operation on CPU `me`, whose decrement of the count returned zero, and which therefore owns the slot's
    /// cell.
    pub(super) fn take_over(slot: &Slot<P, E, W>, me: usize) -> Result<(), Misuse> {
        // SAFETY: the caller's decrement returned zero (the function's precondition), so it owns the slot's cell.
        slot.cell.with_mut(|cell| match unsafe { &mut *cell } {
            Cargo::Flight(operation, _) => operation.take_over(me),
            _ => Err(Misuse::NotAsked),
        })
    }

    /// Supersedes an operation in flight, for a caller that raises the rights of its page again. If it returns true, the
    /// operation will end as [`Outcome::Superseded`] and not write the entry any more, and the caller writes the entry. If
    /// it returns false, it is too late. It always returns false for a synchronous operation.
    ///
    /// The kernel ensures both:
    ///
    /// - From before this call until it has written the entry, the caller holds a lock without which no CPU starts an
    ///   operation on that entry. The superseded operation may end, and release its exclusion, right after this call.
    ///   Without the lock, a next operation could lower the entry and end before the caller writes the entry, and the page
    ///   would stay mapped.
    /// - A CPU that waits for that lock calls [`poll`](Self::poll), because the holder may be waiting for its reply.
    ///
    /// # Errors
    ///
    /// [`Misuse::UnknownGeneration`] if the slot has another operation, [`Misuse::NoSuchCpu`] or [`Misuse::NoRoom`] if there
    /// is no such slot.
    pub fn supersede(&self, op: OpId) -> Result<bool, Misuse> {
        let slot = self.slot(op.cpu, op.slot)?;
        let current = slot.word.load(Ordering::Acquire) >> 16;
        if op.generation & 0xffff != current {
            return Err(Misuse::UnknownGeneration { op, current });
        }
        // The operation may have ended since the load, and the slot's next operation may have begun. The generation in the
        // word makes the exchange fail then.
        let [open, raised] = [OPEN, SUPERSEDED].map(|rights| tagged(op.generation, rights));
        let was = slot.rights.compare_exchange(open, raised, Ordering::AcqRel, Ordering::Acquire);
        Ok(was.is_ok() || was == Err(raised))
    }
}
