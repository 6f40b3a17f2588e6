//! The loop of a CPU that changes something: asks its operation's machine what to do, and does it.

use tlbkit_addr::CpuSet;

use super::slot::{
    CARRIES, CONTINUED, Cargo, Carried, FREE, Kept, LEFT, OPEN, SUPERSEDED, Slot, TAKEN, tagged,
};
use super::{CpuHandle, Edit, LocalCpu, Post, RemoteTlbs, System};
use crate::sync::{Ordering, fence};
use crate::{Action, Duty, Misuse, OpId, Operation, Outcome, Plan, Rendezvous, Request, Seen, Style, Target};

/// The request with which an operation becomes the repliers', and the other CPUs to interrupt with its receiver.
type Last<const W: usize> = (usize, Request, CpuSet<W>);
/// A slot for an operation, its place, and what it carries for the same address space.
pub(super) type Taken<'s, P, E, const W: usize> = (&'s Slot<P, E, W>, usize, Option<Carried<P, W>>);

/// Tells whether an operation's acknowledgements say that walks by software have ended.
fn ends_walks<P, const W: usize>(plan: &Plan, local: &mut impl LocalCpu<P, W>) -> bool {
    plan.algorithm().style() != Style::Remote || local.remote().is_some_and(|tlbs| tlbs.ends_walks())
}

impl<P, E, const CPUS: usize, const N: usize, const W: usize, const SLOTS: usize>
    System<P, E, CPUS, N, W, SLOTS>
where
    E: Edit<W, Payload = P>,
{
    /// Runs an operation to its end, and tells its name and how it ended. An asynchronous plan's algorithm runs in its
    /// synchronous form. The payload comes back through [`LocalCpu::complete`] before this returns, unless the plan is
    /// TLB-first, or flushes remotely and [`RemoteTlbs::ends_walks`] is false: then a walk may still be in what it names
    /// ([`drain`](Self::drain)).
    ///
    /// With `CPUS` 1 it is the edit and the local flush, and nothing else.
    ///
    /// Called with interrupts disabled, or at least that one whose handler polls; with 2-phase, any one whose handler may
    /// touch the page (Tzou 3.3.1). This CPU is in no walk of the table, and relies on none that it has been in.
    ///
    /// # Errors
    ///
    /// Nothing has been done: [`Misuse::Busy`] if all of this CPU's slots are in flight, [`Misuse::OtherSystem`],
    /// [`Misuse::OtherRights`] if the plan is for unmapping and the edit is not,
    /// [`Misuse::NoRemoteTlbs`] if the plan is to flush other CPUs' TLBs and [`LocalCpu::remote`] has none, or
    /// [`Misuse::NoSuchCpu`] if a CPU that the system does not have is a member of the space. (One that becomes a
    /// member later is not asked: it has nothing to flush.)
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
        let (slot, id, operation) = self.begin(handle, local, plan, edit)?;
        let mut operation = operation;
        // No synchronous algorithm leaves.
        let ran = self.advance(handle, local, slot, id, &mut operation, edit);
        ran.and_then(|_| self.end(handle, local, slot, id, operation, edit)).map(|outcome| (id, outcome))
    }

    /// Starts an operation, and runs it as far as this CPU can: to its end, unless the plan is asynchronous. Its end is
    /// told by [`LocalCpu::ended`] and [`LocalCpu::complete`], here or on another CPU. Returns its name, which the edit
    /// [has been told](Edit::begin) before.
    ///
    /// Called as [`run`](Self::run) is.
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
        if plan.algorithm().style() != Style::Asynchronous || CPUS == 1 {
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
        // SAFETY: the slot was free or claimed, and it is this CPU's: no other CPU enters it before the first request.
        slot.cell.with_mut(|cell| unsafe { *cell = Cargo::Flight(operation, edit) });
        // No algorithm that leaves its operation to the repliers fails half-way.
        let driven = self.drive(handle, local, slot, id);
        handle.note(driven);
        Ok(id)
    }

    /// Takes a slot for an operation, and tells the edit its name.
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
        // What is carried can be taken along where this operation makes every CPU that may be in a walk of it leave
        // that walk.
        let name = edit.space().name().filter(|_| ends_walks(&plan, local));
        let (slot, at, carried) = self.take_slot(handle, local, name)?;
        let earlier = carried.and_then(|mut carried| carried.kept.take());
        let id = Self::name(handle.me, slot, at);
        // The sizes were checked, so every CPU can be named.
        let operation = Operation::new(plan, handle.me, earlier).map_err(|(_, why)| why)?;
        edit.begin(id);
        Ok((slot, id, operation))
    }

    /// Finds a slot of this CPU's: one that carries something for the same address space, which the operation takes
    /// along; or a free one; or one that carries something else, which is settled first.
    #[inline]
    pub(super) fn take_slot(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
        space: Option<usize>,
    ) -> Result<Taken<'_, P, E, W>, Misuse> {
        let own = self.slots.get(handle.me).ok_or(Misuse::NoSuchCpu { cpu: handle.me })?;
        if space.is_some() {
            for (at, slot) in own.iter().enumerate() {
                if let Some(carried) = Self::claim(slot, space) {
                    return Ok((slot, at, Some(carried)));
                }
            }
        }
        for (at, slot) in own.iter().enumerate() {
            if slot.state.load(Ordering::Acquire) == FREE {
                // An operation that has sent no request yet delays no CPU. A CPU that holds the one before it by its
                // slot alone (after an overflow) must not wait for this one: it may be this one's turn only when that
                // CPU has left.
                slot.state.store(CONTINUED, Ordering::Release);
                return Ok((slot, at, None));
            }
        }
        self.unload(handle, local, own).map(|(slot, at)| (slot, at, None))
    }

    /// Gives the operation that begins in a slot its name.
    #[inline]
    pub(super) fn name(me: usize, slot: &Slot<P, E, W>, at: usize) -> OpId {
        let generation = (slot.word.load(Ordering::Relaxed) >> 16).wrapping_add(1) & 0xffff;
        slot.word.store(tagged(generation, 0), Ordering::Relaxed);
        OpId { cpu: me as u16, slot: at as u16, generation }
    }

    /// Runs an operation that others may take over, until it is the repliers', or ends. The caller owns the slot's cell.
    pub(super) fn drive(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
        slot: &Slot<P, E, W>,
        id: OpId,
    ) -> Result<(), Misuse> {
        loop {
            let last = slot.cell.with_mut(|cell| {
                // SAFETY: the caller owns the cell; what is called from here reaches other slots' cells only.
                match unsafe { &mut *cell } {
                    Cargo::Flight(operation, edit) => self.advance(handle, local, slot, id, operation, edit),
                    _ => Err(Misuse::NotAsked),
                }
            })?;
            let Some((to, request, mut asked)) = last else { break };
            // Outside the cell: with this request it is the repliers'.
            if self.send(to, request)? {
                asked.insert(to);
                local.interrupt(asked);
                return Ok(());
            }
            // No CPU has to reply: this CPU counts, and goes on itself if it was the last.
            if self.reply_to(id)? > 0 {
                local.interrupt(asked);
                return Ok(());
            }
            Self::take_over(slot, handle.me)?;
        }
        // SAFETY: the operation has ended on this CPU, which therefore owns the cell.
        let ended = slot.cell.with_mut(|cell| unsafe { core::mem::replace(&mut *cell, Cargo::Nothing) });
        match ended {
            Cargo::Flight(operation, edit) => self.end(handle, local, slot, id, operation, &edit).map(|_| ()),
            _ => Err(Misuse::NotAsked),
        }
    }

    /// An operation has ended: hands back what is free, and keeps what is not. The caller owns the slot's cell.
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
        let Ok(ended) = operation.finish() else { return Err(Misuse::NotAsked) };
        let outcome = ended.outcome;
        let (mut free, mut carried) = (ended.free, ended.carried);
        if !ends_walks {
            carried = carried.or(free.take());
        }
        let mut state = FREE;
        if let Some(kept) = carried.map(|kept| Kept { outcome, ..kept }) {
            free = match edit.is_walked(&kept.payload) {
                true => Self::carry(handle.me, slot, edit.space(), kept),
                false => Some(kept),
            };
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

    /// Does what an operation asks for, until it has ended, or is to leave with the request that this returns.
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
        // What this round's requests say, the CPUs that it flushes remotely, and the number of that flush.
        let (mut what, mut others, mut remote) = (Target::Nothing, CpuSet::empty(), None);
        // CPUs that have a request, and have not been interrupted for it yet.
        let mut asked = CpuSet::empty();
        loop {
            let action = operation.next();
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
                    // Before the target set is read, or the next entry is loaded.
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
                    // A CPU may have joined since the check that all CPUs are of this system.
                    let members = space.members.load().intersection(Self::ALL);
                    (others, remote) = (members, None);
                    others.remove(handle.me);
                    Seen::Targets { members, running: space.running.load() }
                }
                Action::MarkStale(cpu) => {
                    edit.space().stale.insert(cpu);
                    // Before it is asked whether it runs; its own half is in `switch`.
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
                    if let Target::Listed(_) = what {
                        // SAFETY: no CPU has been asked in this round, and all have replied in the last one: those of
                        // the slot's earlier operations, too.
                        slot.flush.with_mut(|flush| unsafe { (*flush).clone_from(edit.flush()) });
                    }
                    slot.word.store(tagged(id.generation, count & 0xffff), Ordering::Release);
                    let state = match plan.duty() {
                        Duty::Stop => TAKEN,
                        Duty::FlushAndFinish => LEFT,
                        Duty::Flush => CONTINUED,
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
                    let last = (to, Request { op: id, what, duty: plan.duty() }, asked);
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
                    // Once for all: they are asked for one by one, each when the one before has flushed.
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
                        self.wait_until_flushed(handle, local, operation.machine().repliers())?;
                    }
                    return Ok(None);
                }
            };
            operation.did(seen)?;
        }
    }

    /// Waits until CPUs that have stopped have flushed, too. A CPU that goes on has flushed for all for which it stopped.
    fn wait_until_flushed(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
        cpus: CpuSet<W>,
    ) -> Result<(), Misuse> {
        for cpu in cpus.iter() {
            let stopped = self.stops_of(cpu)?;
            if stopped & 1 == 1 {
                self.wait(handle, local, |_| Ok(self.stops_of(cpu)? != stopped))?;
            }
        }
        Ok(())
    }

    /// Waits until the predicate `is_so` holds, and serves this CPU's queue meanwhile in the way that the plan allows. The state
    /// machine is not told each time that the predicate does not hold yet, for it would only ask again.
    pub(super) fn wait<L: LocalCpu<P, W>>(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut L,
        mut is_so: impl FnMut(&mut L) -> Result<bool, Misuse>,
    ) -> Result<Seen<W>, Misuse> {
        while !is_so(local)? {
            local.pause();
            let served = if !handle.entered {
                self.poll(handle, local)
            } else if self.rendezvous == Rendezvous::Serve
                && !self.mailbox(Post::Stops, handle.me)?.is_empty()
            {
                handle.stopper.collect();
                self.reply(handle, local, Post::Stops)
            } else {
                Ok(())
            };
            // That concerns others' operations, not the one at hand.
            handle.note(served);
        }
        Ok(Seen::Yes)
    }

    /// Continues an operation on CPU `me`, whose decrement returned zero.
    pub(super) fn take_over(slot: &Slot<P, E, W>, me: usize) -> Result<(), Misuse> {
        // SAFETY: by the caller's word the cell is this CPU's now.
        slot.cell.with_mut(|cell| match unsafe { &mut *cell } {
            Cargo::Flight(operation, _) => operation.take_over(me),
            _ => Err(Misuse::NotAsked),
        })
    }

    /// Raises the rights of a page whose operation is in flight, if it still may be: the operation then ends as
    /// [`Outcome::Superseded`](crate::Outcome::Superseded), and leaves the entry alone. The caller writes the entry if this returns
    /// true.
    ///
    /// From before this call until the entry is written, the caller holds a lock without which no CPU starts an
    /// operation on that entry. The operation may end right after this call, exclusion and all: the next one would
    /// lower the entry before it is written, and be done, with the page mapped. A CPU that wants the lock polls while
    /// it waits: the holder may be waiting for its reply.
    ///
    /// # Errors
    ///
    /// [`Misuse::UnknownGeneration`] if the slot is at another operation, [`Misuse::NoSuchCpu`] or [`Misuse::NoRoom`] if
    /// there is no such slot.
    pub fn supersede(&self, op: OpId) -> Result<bool, Misuse> {
        let slot = self.slot(op.cpu, op.slot)?;
        let current = slot.word.load(Ordering::Acquire) >> 16;
        if op.generation & 0xffff != current {
            return Err(Misuse::UnknownGeneration { op, current });
        }
        // It may have ended since, and the slot's next operation have begun, which this must not touch.
        let [open, raised] = [OPEN, SUPERSEDED].map(|rights| tagged(op.generation, rights));
        let was = slot.rights.compare_exchange(open, raised, Ordering::AcqRel, Ordering::Acquire);
        Ok(was.is_ok() || was == Err(raised))
    }
}
