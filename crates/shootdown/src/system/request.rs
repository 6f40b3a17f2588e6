//! The loop of a CPU that changes something: asks its operation's machine what to do, and does it.

use super::{
    CONTINUED, Edit, FREE, Flight, Local, OPEN, RemoteTlbs, SUPERSEDED, Slot, Station, System, TAKEN, tagged,
};
use crate::sync::{Ordering, fence};
use crate::{Action, Misuse, OpId, Operation, Rendezvous, Request, Seen, Style};

impl<P, E: Edit<W>, const CPUS: usize, const N: usize, const W: usize, const SLOTS: usize>
    System<P, E, CPUS, N, W, SLOTS>
{
    /// Starts an operation, and runs it as far as this CPU can: to its end, unless the plan is asynchronous. Its
    /// payload comes back through [`Local::complete`], here or on another CPU. Returns its name, for
    /// [`supersede`](Self::supersede).
    ///
    /// # Errors
    ///
    /// The payload and the edit, with [`Misuse::Busy`] if all of this CPU's slots are in flight, [`Misuse::Stranger`],
    /// [`Misuse::NoRemoteTlbs`] if the plan is to flush other CPUs' TLBs and [`Local::remote`] has none, or
    /// [`Misuse::NoSuchCpu`] if a CPU that the system does not have is a member of the space. (One that becomes a
    /// member later is not asked: there is nobody to flush.)
    pub fn start(
        &self,
        station: &mut Station<'_, N, W, SLOTS>,
        local: &mut impl Local<P>,
        payload: P,
        edit: E,
    ) -> Result<OpId, (P, E, Misuse)> {
        if let Err(why) = self.check(station) {
            return Err((payload, edit, why));
        }
        if station.plan.algorithm().style() == Style::Remote && local.remote().is_none() {
            return Err((payload, edit, Misuse::NoRemoteTlbs));
        }
        let me = station.me as u16;
        let free = |slot: &Slot<_>| slot.state.load(Ordering::Acquire) == FREE;
        let mine =
            self.slots.get(station.me).map(|slots| slots.iter().enumerate().find(|(_, slot)| free(slot)));
        let Some(Some((at, slot))) = mine else {
            let op = OpId { cpu: me, slot: 0, generation: 0 };
            return Err((payload, edit, Misuse::Busy { op }));
        };
        if let Some(cpu) = edit.space().members.load().difference(self.cpus).iter().next() {
            return Err((payload, edit, Misuse::NoSuchCpu { cpu }));
        }
        let operation = match Operation::new(station.plan, station.me, payload) {
            Ok(operation) => operation,
            Err((payload, why)) => return Err((payload, edit, why)),
        };
        let generation = (slot.word.load(Ordering::Relaxed) >> 16).wrapping_add(1) & 0xffff;
        slot.word.store(tagged(generation, 0), Ordering::Relaxed);
        // An operation that has asked nobody yet holds nobody up. Who holds the one before it by its slot alone (after
        // an overflow) must not wait for this one: it may be this one's turn only when he has left.
        slot.state.store(CONTINUED, Ordering::Release);
        // SAFETY: the slot was free and it is this CPU's: nobody else enters it before the first request is sent.
        slot.cell.with_mut(|cell| unsafe { *cell = Some((operation, edit)) });
        let id = OpId { cpu: me, slot: at as u16, generation };
        if self.drive(station, local, slot, id).is_err() {
            // `Local::remote` has gone back on what it said. What it was to flush may be in use, so the payload is
            // leaked, and the slot is not used again.
            // SAFETY: no other algorithm fails half-way, and this one asks nobody: the cell is still this CPU's.
            drop(slot.cell.with_mut(|cell| unsafe { (*cell).take() }));
        }
        Ok(id)
    }

    /// Runs an operation until it is the repliers', or ends. The caller owns the slot's cell.
    pub(super) fn drive(
        &self,
        station: &mut Station<'_, N, W, SLOTS>,
        local: &mut impl Local<P>,
        slot: &Slot<Flight<P, E, W>>,
        id: OpId,
    ) -> Result<(), Misuse> {
        loop {
            let last = slot.cell.with_mut(|cell| {
                // SAFETY: the caller owns the cell; what is called from here reaches other slots' cells only.
                match unsafe { &mut *cell } {
                    Some((operation, edit)) => self.run(station, local, slot, id, operation, edit),
                    None => Err(Misuse::NotAsked),
                }
            })?;
            let Some((to, request)) = last else { break };
            // Outside the cell: with this request it is the repliers'.
            if self.send(to, request)? {
                local.interrupt(to);
                return Ok(());
            }
            // Nobody there to reply: this CPU counts, and goes on itself if it was the last.
            if self.reply_to(id)? > 0 {
                return Ok(());
            }
            Self::take_over(slot, station.me)?;
        }
        // SAFETY: the operation has ended on this CPU, which therefore owns the cell.
        let ended = slot.cell.with_mut(|cell| unsafe { (*cell).take() });
        slot.state.store(FREE, Ordering::Release);
        if let Some((operation, _)) = ended
            && let Ok((payload, outcome)) = operation.finish()
        {
            local.complete(payload, outcome);
        }
        Ok(())
    }

    /// Does what an operation asks for, until it has ended, or is to leave with the request that this returns.
    fn run(
        &self,
        station: &mut Station<'_, N, W, SLOTS>,
        local: &mut impl Local<P>,
        slot: &Slot<Flight<P, E, W>>,
        id: OpId,
        operation: &mut Operation<P, W>,
        edit: &E,
    ) -> Result<Option<(usize, Request)>, Misuse> {
        let answer = |yes| if yes { Seen::Yes } else { Seen::No };
        let mut last = None;
        loop {
            let seen = match operation.next() {
                Action::Exclude => self.wait(station, local, |_| Ok(edit.exclude()))?,
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
                    edit.set_changing(on);
                    // Before the target set is read, or the next entry is loaded.
                    fence(Ordering::SeqCst);
                    Seen::Did
                }
                Action::Update | Action::Store => {
                    edit.update();
                    fence(Ordering::SeqCst);
                    Seen::Did
                }
                Action::ReadStatus => Seen::Did,
                Action::ReadTargets | Action::ReadHolders => {
                    let space = edit.space();
                    // Somebody may have joined since `start` looked whether there are only CPUs of this system.
                    let members = space.members.load().intersection(self.cpus);
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
                    local.flush(edit.what(), drain);
                    Seen::Did
                }
                Action::SetCount(count) => {
                    slot.word.store(tagged(id.generation, count & 0xffff), Ordering::Release);
                    slot.state.store(TAKEN, Ordering::Relaxed);
                    Seen::Did
                }
                Action::Send(to) => {
                    if self.send(to, Request { op: id, what: edit.what() })? {
                        local.interrupt(to);
                        Seen::Did
                    } else {
                        self.reply_to(id)?;
                        Seen::No
                    }
                }
                Action::SendAndLeave(to) => {
                    last = Some((to, Request { op: id, what: edit.what() }));
                    Seen::Did
                }
                Action::AllAcknowledged => {
                    self.wait(station, local, |_| Ok(slot.word.load(Ordering::Acquire) & 0xffff == 0))?
                }
                Action::Enter => {
                    station.entered = true;
                    self.stop(station.me, local);
                    Seen::Did
                }
                Action::IsStopped(cpu) => self.wait(station, local, |_| self.is_stopped(cpu))?,
                Action::Continue => {
                    slot.state.store(CONTINUED, Ordering::Release);
                    local.changed();
                    Seen::Did
                }
                Action::FlushRemotely { cpu, drain } => {
                    let tlbs = local.remote().ok_or(Misuse::NoRemoteTlbs)?;
                    let (ticket, done) = tlbs.flush(cpu, edit.what(), drain);
                    Seen::Posted { ticket, done }
                }
                Action::IsFlushed { cpu, ticket } => {
                    let flushed = |tlbs: &mut dyn RemoteTlbs| tlbs.is_flushed(cpu, ticket);
                    self.wait(station, local, |local| Ok(local.remote().is_some_and(flushed)))?
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
                    station.replier.finish();
                    let served = self.reply(station, local);
                    station.note(served);
                    station.entered = false;
                    Seen::Did
                }
                Action::Done(_) => return Ok(None),
            };
            operation.did(seen)?;
            if last.is_some() {
                return Ok(last);
            }
        }
    }

    /// Waits until `is_so`, and serves this CPU's queue meanwhile, in the way that the plan allows. Told that it is
    /// not so yet, the machine would only ask again; so it is not told.
    fn wait<L: Local<P>>(
        &self,
        station: &mut Station<'_, N, W, SLOTS>,
        local: &mut L,
        is_so: impl Fn(&mut L) -> Result<bool, Misuse>,
    ) -> Result<Seen<W>, Misuse> {
        while !is_so(local)? {
            local.pause();
            let served = if !station.entered {
                self.poll(station, local)
            } else if station.plan.rendezvous() == Rendezvous::Serve && !self.mailbox(station.me)?.is_empty()
            {
                station.replier.collect();
                self.reply(station, local)
            } else {
                Ok(())
            };
            // That concerns others' operations, not the one at hand.
            station.note(served);
        }
        Ok(Seen::Yes)
    }

    /// Continues an operation on CPU `me`, whose decrement returned zero.
    pub(super) fn take_over(slot: &Slot<Flight<P, E, W>>, me: usize) -> Result<(), Misuse> {
        // SAFETY: by the caller's word the cell is this CPU's now.
        slot.cell.with_mut(|cell| match unsafe { &mut *cell } {
            Some((operation, _)) => operation.take_over(me),
            None => Err(Misuse::NotAsked),
        })
    }

    /// Raises the rights of a page whose operation is in flight, if it still may be: the operation then ends as
    /// [`Outcome::Superseded`](crate::Outcome::Superseded), and leaves the entry alone. The caller writes the entry if this returns true.
    ///
    /// From before this call until the entry is written, the caller holds a lock without which nobody starts an operation
    /// on that entry. The operation may end right after this call, exclusion and all: the next one would lower the entry
    /// before it is written, and be done, with the page mapped. Whoever wants the lock polls while he waits: who has it
    /// may be waiting for his reply.
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
