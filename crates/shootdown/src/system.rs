//! The driver of a kernel, and of host threads: mailboxes, operations in flight, and the loops that do what the
//! machines ask.

use core::array::from_fn;

use crate::sync::{AtomicBool, AtomicU32, Cell, Ordering, fence, relax};
use crate::{
    Action, Change, Mailbox, Misuse, OpId, Operation, Outcome, Plan, Rendezvous, Replier, Reply, Request,
    Seen, SharedSpace, Style, Switch, SwitchAction, Target,
};

/// A change of page-table entries, as a kernel knows how to make it. Each call is one action of a
/// [`Requester`](crate::Requester), whose documentation says what it must do.
pub trait Edit<const W: usize> {
    /// [`Action::Exclude`].
    fn exclude(&self) -> bool;
    /// [`Action::Release`].
    fn release(&self);
    /// [`Action::SetTentative`]; nothing unless the plan is TLB-first.
    fn set_tentative(&self) {}
    /// [`Action::SetChanging`]; nothing unless the plan is TLB-first or 2-phase.
    fn set_changing(&self, _on: bool) {}
    /// [`Action::Update`].
    fn update(&self);
    /// [`Action::Check`]; always true unless the plan is optimistic.
    fn check(&self) -> bool {
        true
    }
    /// The address space.
    fn space(&self) -> &SharedSpace<W>;
    /// What is to be flushed.
    fn what(&self) -> Target;
}

/// What a kernel can do on the CPU at hand.
pub trait Local<P> {
    /// Flushes this CPU's TLB; with `drain`, when its status writes are in memory.
    fn flush(&mut self, what: Target, drain: bool);
    /// Interrupts another CPU, which is to call [`System::poll`].
    fn interrupt(&mut self, cpu: usize);
    /// Takes a payload back: no CPU can reach it any more (unless the outcome says that it is in use again).
    fn complete(&mut self, payload: P, outcome: Outcome);
    /// Lets time pass while this CPU waits for another: a pause instruction, or a yield on host threads. A kernel
    /// whose CPUs sleep here has [`changed`](Self::changed) wake them.
    fn pause(&mut self) {
        relax();
    }
    /// Takes notice that something has changed for which another CPU may be in [`pause`](Self::pause): the last
    /// acknowledgement, a stopped CPU, a continuing signal, an exclusion given up. Whom to wake is the kernel's
    /// business: each CPU that was about to wait, or had begun to, when this is called.
    ///
    /// A CPU sleeps without losing a wake-up if it says that it may wait before it calls into [`System`], and if
    /// interrupts are disabled from there until it sleeps: nothing happens between the look that made it wait and
    /// [`pause`](Self::pause). The interrupt that ends the sleep may have been for a request too, so call
    /// [`System::poll`] once more after whatever may have slept.
    fn changed(&mut self) {}
    /// Asks another CPU's TLB to flush, and returns the flush's number and the number of the last one done there.
    /// Only plans with [`Style::Remote`] call it.
    fn flush_remotely(&mut self, _cpu: usize, _what: Target, _drain: bool) -> (u32, u32) {
        (0, 0)
    }
    /// Tells whether flush `ticket` of that TLB is done.
    fn is_flushed(&mut self, _cpu: usize, _ticket: u32) -> bool {
        true
    }
}

/// What each CPU keeps for itself.
#[derive(Debug)]
pub struct Station<const N: usize, const W: usize = 1, const SLOTS: usize = 1> {
    me: usize,
    plan: Plan,
    replier: Replier<N, W, SLOTS>,
    /// In 2-phase as a requester: only [`System::poll`]'s rendezvous part may run.
    entered: bool,
}

impl<const N: usize, const W: usize, const SLOTS: usize> Station<N, W, SLOTS> {
    /// Returns the CPU.
    pub const fn cpu(&self) -> usize {
        self.me
    }
}

const CONTINUED: u32 = 1;
const OPEN: u32 = 2;
const SUPERSEDED: u32 = 4;
const TAKEN: u32 = 8;

/// An operation in flight. Its count says whose the cell is: the repliers' while it is not zero, and then of the one
/// who made it zero.
#[derive(Debug)]
#[repr(align(64))]
struct Slot<T> {
    /// Generation in the upper half, acknowledgements to come in the lower.
    word: AtomicU32,
    flags: AtomicU32,
    cell: Cell<Option<T>>,
}

/// A CPU's 2-phase flag, on a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Flag(AtomicBool);

/// An operation and its change.
type Flight<P, E, const W: usize> = (Operation<P, W>, E);

enum Progress {
    Went,
    Waits,
    Left,
    Ended,
}

/// The shared memory of up to `CPUS` CPUs: a mailbox of `N` requests and `SLOTS` operations for each.
#[derive(Debug)]
pub struct System<P, E, const CPUS: usize, const N: usize, const W: usize = 1, const SLOTS: usize = 1> {
    plan: Plan,
    mailboxes: [Mailbox<N, W, SLOTS>; CPUS],
    stopped: [Flag; CPUS],
    slots: [[Slot<Flight<P, E, W>>; SLOTS]; CPUS],
}

// SAFETY: mailboxes and atomics are shared by design. A slot's cell is reached by one CPU at a time: by its owner
// before the first request is sent, then by nobody, then by the CPU whose decrement returned zero, which the
// acquire-release decrements order after everything the others did. Payload and edit move between CPUs with it.
unsafe impl<P: Send, E: Send, const CPUS: usize, const N: usize, const W: usize, const SLOTS: usize> Sync
    for System<P, E, CPUS, N, W, SLOTS>
{
}

impl<P, E: Edit<W>, const CPUS: usize, const N: usize, const W: usize, const SLOTS: usize>
    System<P, E, CPUS, N, W, SLOTS>
{
    /// Returns a system at rest.
    ///
    /// # Errors
    ///
    /// [`Misuse::NobodyThere`] without CPUs, [`Misuse::NoRoom`] if a queue would have no room,
    /// [`Misuse::NoSuchCpu`] if a `CpuSet<W>` cannot hold all CPUs.
    pub fn new(plan: Plan) -> Result<Self, Misuse> {
        if CPUS == 0 {
            return Err(Misuse::NobodyThere);
        }
        if CPUS > tlbkit_addr::CpuSet::<W>::CAPACITY {
            return Err(Misuse::NoSuchCpu { cpu: CPUS - 1 });
        }
        if N == 0 || W == 0 || SLOTS == 0 {
            return Err(Misuse::NoRoom);
        }
        let slot = |_| Slot { word: AtomicU32::new(0), flags: AtomicU32::new(0), cell: Cell::new(None) };
        Ok(Self {
            plan,
            mailboxes: from_fn(|_| Mailbox::of_checked_size()),
            stopped: from_fn(|_| Flag(AtomicBool::new(false))),
            slots: from_fn(|_| from_fn(slot)),
        })
    }

    /// Returns what CPU `me` keeps for itself.
    ///
    /// # Errors
    ///
    /// [`Misuse::NoSuchCpu`].
    pub fn station(&self, me: usize) -> Result<Station<N, W, SLOTS>, Misuse> {
        if me >= CPUS {
            return Err(Misuse::NoSuchCpu { cpu: me });
        }
        Ok(Station { me, plan: self.plan, replier: Replier::new(self.plan)?, entered: false })
    }

    fn mailbox(&self, cpu: usize) -> Result<&Mailbox<N, W, SLOTS>, Misuse> {
        self.mailboxes.get(cpu).ok_or(Misuse::NoSuchCpu { cpu })
    }

    fn slot(&self, cpu: u16, slot: u16) -> Result<&Slot<Flight<P, E, W>>, Misuse> {
        let cpu = usize::from(cpu);
        self.slots.get(cpu).ok_or(Misuse::NoSuchCpu { cpu })?.get(usize::from(slot)).ok_or(Misuse::NoRoom)
    }

    /// Posts a request to `cpu`'s mailbox: the hot half of an operation.
    ///
    /// # Errors
    ///
    /// [`Misuse::NoSuchCpu`]; otherwise as [`Mailbox::post`].
    pub fn post(&self, cpu: usize, request: Request) -> Result<bool, Misuse> {
        self.mailbox(cpu)?.post(request)
    }

    /// Counts one acknowledgement of `op`, and returns how many are left.
    ///
    /// # Errors
    ///
    /// [`Misuse::UnknownGeneration`] if the slot is at another operation, [`Misuse::AlreadyComplete`] if none was
    /// left, [`Misuse::NoSuchCpu`] or [`Misuse::NoRoom`] if there is no such slot.
    pub fn acknowledge(&self, op: OpId) -> Result<u32, Misuse> {
        self.count_down(op.cpu, op.slot, Some(op.generation))
    }

    fn count_down(&self, cpu: u16, slot: u16, generation: Option<u32>) -> Result<u32, Misuse> {
        let word = &self.slot(cpu, slot)?.word;
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            let (current, count) = (seen >> 16, seen & 0xffff);
            let op = OpId { cpu, slot, generation: generation.unwrap_or(current) };
            if op.generation & 0xffff != current {
                return Err(Misuse::UnknownGeneration { op, current });
            }
            if count == 0 {
                return Err(Misuse::AlreadyComplete { op });
            }
            // One atomic step; the value that it leaves is the one that is tested.
            match word.compare_exchange_weak(seen, seen - 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok(count - 1),
                Err(now) => seen = now,
            }
        }
    }

    /// Starts an operation, and runs it as far as this CPU can: to its end, unless the plan is asynchronous. Its
    /// payload comes back through [`Local::complete`], here or on another CPU.
    ///
    /// # Errors
    ///
    /// The payload and the edit, with [`Misuse::Busy`] if all of this CPU's slots are in flight.
    pub fn start(
        &self,
        station: &mut Station<N, W, SLOTS>,
        local: &mut impl Local<P>,
        payload: P,
        edit: E,
    ) -> Result<(), (P, E, Misuse)> {
        let me = station.me as u16;
        let free = |slot: &Slot<_>| slot.flags.load(Ordering::Acquire) & TAKEN == 0;
        let mine =
            self.slots.get(station.me).map(|slots| slots.iter().enumerate().find(|(_, slot)| free(slot)));
        let Some(Some((at, slot))) = mine else {
            let op = OpId { cpu: me, slot: 0, generation: 0 };
            return Err((payload, edit, Misuse::Busy { op }));
        };
        let operation = match Operation::new(station.plan, station.me, payload) {
            Ok(operation) => operation,
            Err((payload, why)) => return Err((payload, edit, why)),
        };
        let generation = (slot.word.load(Ordering::Relaxed) >> 16).wrapping_add(1) & 0xffff;
        slot.word.store(generation << 16, Ordering::Relaxed);
        // An operation that has asked nobody yet holds nobody up. Who holds the one before it by its slot alone (after
        // an overflow) must not wait for this one: it may be this one's turn only when he has left.
        slot.flags.store(TAKEN | CONTINUED, Ordering::Release);
        // SAFETY: the slot was free and it is this CPU's: nobody else enters it before the first request is sent.
        slot.cell.with_mut(|cell| unsafe { *cell = Some((operation, edit)) });
        let id = OpId { cpu: me, slot: at as u16, generation };
        // The machine asks for nothing that these could refuse.
        let _ = self.drive(station, local, slot, id);
        Ok(())
    }

    /// Runs an operation until it waits for others as its last act, or ends. The caller owns the slot's cell.
    fn drive(
        &self,
        station: &mut Station<N, W, SLOTS>,
        local: &mut impl Local<P>,
        slot: &Slot<Flight<P, E, W>>,
        id: OpId,
    ) -> Result<(), Misuse> {
        loop {
            match self.ask(station, local, slot, id)? {
                Progress::Went => {}
                Progress::Waits => {
                    local.pause();
                    self.wait(station, local)?;
                }
                Progress::Left => return Ok(()),
                Progress::Ended => break,
            }
        }
        // SAFETY: the operation has ended on this CPU, which therefore owns the cell.
        let ended = slot.cell.with_mut(|cell| unsafe { (*cell).take() });
        slot.flags.fetch_and(!TAKEN, Ordering::Release);
        if let Some((operation, _)) = ended
            && let Ok((payload, outcome)) = operation.finish()
        {
            local.complete(payload, outcome);
        }
        Ok(())
    }

    /// While the requester waits: serve the queue, in the way that the plan allows.
    fn wait(&self, station: &mut Station<N, W, SLOTS>, local: &mut impl Local<P>) -> Result<(), Misuse> {
        if !station.entered {
            return self.poll(station, local);
        }
        if station.plan.rendezvous() == Rendezvous::Serve && !self.mailbox(station.me)?.is_empty() {
            station.replier.collect();
            self.reply(station, local)?;
        }
        Ok(())
    }

    /// Does one action of an operation whose slot this CPU owns.
    fn ask(
        &self,
        station: &mut Station<N, W, SLOTS>,
        local: &mut impl Local<P>,
        slot: &Slot<Flight<P, E, W>>,
        id: OpId,
    ) -> Result<Progress, Misuse> {
        let me = station.me;
        let mut leave = None;
        let progress = slot.cell.with_mut(|cell| {
            // SAFETY: the caller owns the cell; what is called from here reaches other slots' cells only.
            let Some((operation, edit)) = (unsafe { &mut *cell }).as_mut() else {
                return Err(Misuse::NotAsked);
            };
            let asked = operation.next();
            let yes = |yes| if yes { Seen::Yes } else { Seen::No };
            let seen = match asked {
                Action::Exclude => yes(edit.exclude()),
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
                    Seen::Targets { members: space.members.load(), running: space.running.load() }
                }
                Action::MarkStale(cpu) => {
                    edit.space().stale.insert(cpu);
                    // Before it is asked whether it runs; its own half is in `switch`.
                    fence(Ordering::SeqCst);
                    Seen::Did
                }
                Action::IsRunning(cpu) => yes(edit.space().running.contains(cpu)),
                Action::FlushLocally { drain } => {
                    local.flush(edit.what(), drain);
                    Seen::Did
                }
                Action::SetCount(count) => {
                    slot.word.store(id.generation << 16 | count & 0xffff, Ordering::Release);
                    slot.flags.fetch_and(!CONTINUED, Ordering::Relaxed);
                    Seen::Did
                }
                Action::Send(to) => {
                    if self.post(to, Request { op: id, what: edit.what() })? {
                        local.interrupt(to);
                        Seen::Did
                    } else {
                        self.acknowledge(id)?;
                        Seen::No
                    }
                }
                Action::SendAndLeave(to) => {
                    leave = Some((to, Request { op: id, what: edit.what() }));
                    Seen::Did
                }
                Action::AllAcknowledged => yes(slot.word.load(Ordering::Acquire) & 0xffff == 0),
                Action::Enter => {
                    station.entered = true;
                    self.set_stopped(me, true);
                    local.changed();
                    Seen::Did
                }
                Action::IsStopped(cpu) => yes(self.is_stopped(cpu)?),
                Action::Continue => {
                    slot.flags.fetch_or(CONTINUED, Ordering::Release);
                    local.changed();
                    Seen::Did
                }
                Action::FlushRemotely { cpu, drain } => {
                    let (ticket, done) = local.flush_remotely(cpu, edit.what(), drain);
                    Seen::Posted { ticket, done }
                }
                Action::IsFlushed { cpu, ticket } => yes(local.is_flushed(cpu, ticket)),
                Action::Open => {
                    slot.flags.fetch_or(OPEN, Ordering::AcqRel);
                    Seen::Did
                }
                Action::Close => yes(slot.flags.fetch_and(!OPEN, Ordering::AcqRel) & SUPERSEDED == 0),
                Action::Check => yes(edit.check()),
                Action::Serve => {
                    station.replier.finish();
                    self.reply(station, local)?;
                    station.entered = false;
                    Seen::Did
                }
                Action::Done(_) => return Ok(Progress::Ended),
            };
            operation.did(seen)?;
            let again = seen == Seen::No && leave.is_none() && operation.next() == asked;
            Ok(if again { Progress::Waits } else { Progress::Went })
        })?;
        let Some((to, request)) = leave else { return Ok(progress) };
        // Outside the cell: with this request it is the repliers'.
        if self.post(to, request)? {
            local.interrupt(to);
            return Ok(Progress::Left);
        }
        // Nobody there to reply: this CPU counts, and goes on itself if it was the last.
        if self.acknowledge(id)? > 0 {
            return Ok(Progress::Left);
        }
        Self::take_over(slot, me)?;
        Ok(Progress::Went)
    }

    /// Continues an operation on CPU `me`, whose decrement returned zero.
    fn take_over(slot: &Slot<Flight<P, E, W>>, me: usize) -> Result<(), Misuse> {
        // SAFETY: by the caller's word the cell is this CPU's now.
        slot.cell.with_mut(|cell| match unsafe { &mut *cell } {
            Some((operation, _)) => operation.take_over(me),
            None => Err(Misuse::NotAsked),
        })
    }

    /// Raises the rights of a page whose operation is in flight, if it still may be: the operation then ends as
    /// [`Outcome::Superseded`], and leaves the entry alone. The caller writes the entry if this returns true.
    ///
    /// # Errors
    ///
    /// [`Misuse::UnknownGeneration`] if the slot is at another operation; as [`acknowledge`](Self::acknowledge).
    pub fn supersede(&self, op: OpId) -> Result<bool, Misuse> {
        let slot = self.slot(op.cpu, op.slot)?;
        let current = slot.word.load(Ordering::Acquire) >> 16;
        if op.generation & 0xffff != current {
            return Err(Misuse::UnknownGeneration { op, current });
        }
        let open = |flags| (flags & OPEN != 0).then_some(flags | SUPERSEDED);
        Ok(slot.flags.fetch_update(Ordering::AcqRel, Ordering::Acquire, open).is_ok())
    }

    fn set_stopped(&self, cpu: usize, on: bool) {
        if let Some(flag) = self.stopped.get(cpu) {
            flag.0.store(on, Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
    }

    fn is_stopped(&self, cpu: usize) -> Result<bool, Misuse> {
        let flag = self.stopped.get(cpu).ok_or(Misuse::NoSuchCpu { cpu })?;
        Ok(flag.0.load(Ordering::SeqCst))
    }

    /// Replies to what is in this CPU's mailbox: on an interrupt, or whenever it suits. One load if there is
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`Misuse`] only if a mailbox holds a request of an operation that does not exist.
    #[inline]
    pub fn poll(&self, station: &mut Station<N, W, SLOTS>, local: &mut impl Local<P>) -> Result<(), Misuse> {
        match self.mailboxes.get(station.me) {
            Some(mailbox) if !mailbox.is_empty() && station.replier.is_idle() => {
                station.replier.interrupt();
                self.reply(station, local)
            }
            _ => Ok(()),
        }
    }

    #[cold]
    fn reply(&self, station: &mut Station<N, W, SLOTS>, local: &mut impl Local<P>) -> Result<(), Misuse> {
        loop {
            match station.replier.next() {
                Reply::Idle => return Ok(()),
                Reply::Enter => {
                    self.set_stopped(station.me, true);
                    local.changed();
                    station.replier.did()?;
                }
                Reply::Leave => {
                    self.set_stopped(station.me, false);
                    station.replier.did()?;
                }
                Reply::Take => {
                    let work = self.mailbox(station.me)?.take();
                    station.replier.took(work)?;
                }
                Reply::Flush { what, drain } => {
                    local.flush(what, drain);
                    station.replier.did()?;
                }
                Reply::Acknowledge(op) => {
                    let left = self.acknowledge(op)?;
                    if left == 0 {
                        local.changed();
                    }
                    station.replier.counted(left)?;
                }
                Reply::AcknowledgeSlot { cpu, slot } => {
                    let left = self.count_down(cpu, slot, None)?;
                    if left == 0 {
                        local.changed();
                    }
                    station.replier.counted(left)?;
                }
                Reply::TakeOver { cpu, slot } => {
                    let at = self.slot(cpu, slot)?;
                    let generation = at.word.load(Ordering::Relaxed) >> 16;
                    Self::take_over(at, station.me)?;
                    self.drive(station, local, at, OpId { cpu, slot, generation })?;
                    station.replier.did()?;
                }
                Reply::MayContinue(op) => {
                    let yes = self.has_continued(op.cpu, op.slot, Some(op.generation))?;
                    if !yes {
                        local.pause();
                    }
                    station.replier.may_continue(yes)?;
                }
                Reply::MayContinueSlot { cpu, slot } => {
                    let yes = self.has_continued(cpu, slot, None)?;
                    if !yes {
                        local.pause();
                    }
                    station.replier.may_continue(yes)?;
                }
            }
        }
    }

    /// An operation that has ended has continued.
    fn has_continued(&self, cpu: u16, slot: u16, generation: Option<u32>) -> Result<bool, Misuse> {
        let slot = self.slot(cpu, slot)?;
        let flags = slot.flags.load(Ordering::Acquire);
        let other = generation.is_some_and(|of| of & 0xffff != slot.word.load(Ordering::Acquire) >> 16);
        Ok(other || flags & CONTINUED != 0 || flags & TAKEN == 0)
    }

    /// Carries out `change` for this CPU and an address space. `is_changing` tells whether one of the space's
    /// entries is changing (2-phase's gate).
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll).
    pub fn switch(
        &self,
        station: &mut Station<N, W, SLOTS>,
        local: &mut impl Local<P>,
        change: Change,
        space: &SharedSpace<W>,
        what: Target,
        is_changing: impl Fn() -> bool,
    ) -> Result<(), Misuse> {
        let me = station.me;
        let mut switch = Switch::new(&station.plan, change);
        loop {
            let yes = match switch.next() {
                SwitchAction::Open => {
                    self.mailbox(me)?.open();
                    false
                }
                SwitchAction::Join => space.members.insert(me),
                SwitchAction::SetRunning => {
                    let absent = space.running.insert(me);
                    fence(Ordering::SeqCst);
                    absent
                }
                SwitchAction::IsChanging => {
                    let changing = is_changing();
                    if changing {
                        local.pause();
                        self.poll(station, local)?;
                    }
                    changing
                }
                SwitchAction::TakeStale => space.stale.remove(me),
                SwitchAction::FlushSpace => {
                    local.flush(what, true);
                    false
                }
                // A flush that drains does both; there is nothing else to wait with.
                SwitchAction::Drain => {
                    local.flush(what, true);
                    false
                }
                SwitchAction::ClearRunning => space.running.remove(me),
                SwitchAction::Close => {
                    self.mailbox(me)?.close();
                    false
                }
                SwitchAction::Serve => {
                    self.poll(station, local)?;
                    false
                }
                SwitchAction::FlushAll => {
                    local.flush(Target::All, true);
                    false
                }
                SwitchAction::Part => space.members.remove(me),
                SwitchAction::Finished => return Ok(()),
            };
            switch.did(yes)?;
        }
    }

    /// Returns how the plan's operations run.
    pub const fn style(&self) -> Style {
        self.plan.algorithm().style()
    }
}
