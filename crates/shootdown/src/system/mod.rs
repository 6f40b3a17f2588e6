//! The driver of a kernel, and of host threads: mailboxes, operations in flight, and the loops that do what the
//! machines ask.
//!
//! | file | holds |
//! |-|-|
//! | here | what the CPUs share, and what each keeps for itself |
//! | `request` | the loop of a CPU that changes something |
//! | `reply` | the loop of one that is asked to flush, or comes and goes |

use core::array::from_fn;

use tlbkit_addr::CpuSet;

use crate::sync::{AtomicBool, AtomicU32, Cell, Ordering, fence, relax};
use crate::{
    Mailbox, Misuse, OpId, Operation, Outcome, Plan, Replier, Request, Requester, SharedSpace, Style, Target,
};

mod reply;
mod request;

/// A change of page-table entries, as a kernel knows how to make it. Each call is one action of a
/// [`Requester`](crate::Requester), whose documentation says what it must do.
pub trait Edit<const W: usize> {
    /// [`Action::Exclude`](crate::Action::Exclude).
    fn exclude(&self) -> bool;
    /// [`Action::Release`](crate::Action::Release).
    fn release(&self);
    /// [`Action::SetTentative`](crate::Action::SetTentative); nothing unless the plan is TLB-first.
    fn set_tentative(&self) {}
    /// [`Action::SetChanging`](crate::Action::SetChanging); nothing unless the plan is TLB-first or 2-phase.
    fn set_changing(&self, _on: bool) {}
    /// [`Action::Update`](crate::Action::Update).
    fn update(&self);
    /// [`Action::Check`](crate::Action::Check); always true unless the plan is optimistic.
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
    /// Waits until this CPU's status writes are in memory. Asked of a CPU that stops for 2-phase, and only where they
    /// could undo a change. A flush that drains does it at the cost of the TLB; who can wait without one says how.
    fn drain(&mut self) {
        self.flush(Target::All, true);
    }
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
    /// The other CPUs' TLBs, if this CPU can flush them itself. Only plans with [`Style::Remote`] ask for them.
    fn remote(&mut self) -> Option<&mut dyn RemoteTlbs> {
        None
    }
}

/// The TLBs of other CPUs, where the hardware lets one CPU flush another one's (as on the MC88200; algorithms with two primes).
pub trait RemoteTlbs {
    /// Asks a CPU's TLB to flush; with `drain`, also to wait for the walks and status writes under way there. Returns
    /// the flush's number and the number of the last one done there.
    fn flush(&mut self, cpu: usize, what: Target, drain: bool) -> (u32, u32);
    /// Tells whether flush `ticket` of that TLB is done.
    fn is_flushed(&mut self, cpu: usize, ticket: u32) -> bool;
}

/// What each CPU keeps for itself: the right to be that CPU of a [`System`], given back when it is dropped.
#[derive(Debug)]
pub struct Station<'s, const N: usize, const W: usize = 1, const SLOTS: usize = 1> {
    me: usize,
    /// The system's own note that somebody is that CPU.
    manned: &'s AtomicBool,
    plan: Plan,
    replier: Replier<N, W, SLOTS>,
    /// In 2-phase as a requester: only [`System::poll`]'s rendezvous part may run.
    entered: bool,
    /// What was wrong in the CPU's mailbox first, until somebody can be told.
    wrong: Option<Misuse>,
}

impl<const N: usize, const W: usize, const SLOTS: usize> Station<'_, N, W, SLOTS> {
    /// Returns the CPU.
    pub const fn cpu(&self) -> usize {
        self.me
    }

    /// Keeps what is wrong for who can be told, if nothing was before, and returns what is not.
    fn note<T>(&mut self, result: Result<T, Misuse>) -> Option<T> {
        result.map_err(|why| self.wrong.get_or_insert(why)).ok()
    }
}

impl<const N: usize, const W: usize, const SLOTS: usize> Drop for Station<'_, N, W, SLOTS> {
    fn drop(&mut self) {
        self.manned.store(false, Ordering::Release);
    }
}

/// Of [`Slot::state`]: there is no operation; there is one, and who stops for it waits; there is one that goes on.
const FREE: u32 = 0;
const TAKEN: u32 = 1;
const CONTINUED: u32 = 2;
/// Of [`Slot::rights`], in its lower half: they may be raised; they have been.
const OPEN: u32 = 1;
const SUPERSEDED: u32 = 2;

/// Returns what is in a slot's word under the operation's generation.
const fn tagged(generation: u32, half: u32) -> u32 {
    generation << 16 | half
}

/// An operation in flight. Its count says whose the cell is: the repliers' while it is not zero, and then of the one
/// who made it zero. A replier of a synchronous operation touches `word` alone: the cache line that the requester looks
/// at goes to him once, and comes back.
#[derive(Debug)]
#[repr(align(64))]
struct Slot<T> {
    /// Generation in the upper half, acknowledgements to come in the lower.
    word: AtomicU32,
    /// Written by the cell's owner alone.
    state: AtomicU32,
    /// Generation in the upper half. Written by anybody while it is [`OPEN`], otherwise by the cell's owner.
    rights: AtomicU32,
    cell: Cell<Option<T>>,
}

/// A CPU's 2-phase flag, on a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Flag(AtomicBool);

/// An operation and its change.
type Flight<P, E, const W: usize> = (Operation<P, W>, E);

/// The shared memory of up to `CPUS` CPUs: a mailbox of `N` requests and `SLOTS` operations for each.
#[derive(Debug)]
pub struct System<P, E, const CPUS: usize, const N: usize, const W: usize = 1, const SLOTS: usize = 1> {
    plan: Plan,
    cpus: CpuSet<W>,
    mailboxes: [Mailbox<N, W, SLOTS>; CPUS],
    stopped: [Flag; CPUS],
    /// Whose station somebody has.
    manned: [AtomicBool; CPUS],
    slots: [[Slot<Flight<P, E, W>>; SLOTS]; CPUS],
}

// SAFETY: mailboxes and atomics are shared by design. A slot's cell is reached by one CPU at a time: by its owner
// before the first request is sent, then by nobody, then by the CPU whose decrement returned zero, which the
// acquire-release decrements order after everything the others did. Payload and edit move between CPUs with it. The owner
// is one thread, as a CPU has one station at a time, and nobody else gives acknowledgements (`System::acknowledge`).
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
    /// [`Misuse::NoSuchCpu`] if a `CpuSet<W>` cannot hold all CPUs, or an [`OpId`] cannot name them.
    pub fn new(plan: Plan) -> Result<Self, Misuse> {
        if CPUS == 0 {
            return Err(Misuse::NobodyThere);
        }
        if CPUS > Requester::<W>::CPUS {
            return Err(Misuse::NoSuchCpu { cpu: CPUS - 1 });
        }
        if N == 0 || W == 0 || SLOTS == 0 {
            return Err(Misuse::NoRoom);
        }
        let word = || AtomicU32::new(0);
        let slot = |_| Slot { word: word(), state: word(), rights: word(), cell: Cell::new(None) };
        Ok(Self {
            plan,
            cpus: (0..CPUS).collect(),
            mailboxes: from_fn(|_| Mailbox::of_checked_size()),
            stopped: from_fn(|_| Flag(AtomicBool::new(false))),
            manned: from_fn(|_| AtomicBool::new(false)),
            slots: from_fn(|_| from_fn(slot)),
        })
    }

    /// Returns what CPU `me` keeps for itself. There is one at a time.
    ///
    /// # Errors
    ///
    /// [`Misuse::NoSuchCpu`], or [`Misuse::Manned`] if somebody has it.
    pub fn station(&self, me: usize) -> Result<Station<'_, N, W, SLOTS>, Misuse> {
        let manned = self.manned.get(me).ok_or(Misuse::NoSuchCpu { cpu: me })?;
        let replier = Replier::new(self.plan)?;
        if manned.swap(true, Ordering::Acquire) {
            return Err(Misuse::Manned { cpu: me });
        }
        Ok(Station { me, manned, plan: self.plan, replier, entered: false, wrong: None })
    }

    /// Checks that a station is one of this system's: it speaks for its CPU alone, and there alone.
    #[inline]
    fn check(&self, station: &Station<'_, N, W, SLOTS>) -> Result<(), Misuse> {
        let own = self.manned.get(station.me).is_some_and(|manned| core::ptr::eq(manned, station.manned));
        if own { Ok(()) } else { Err(Misuse::Stranger { cpu: station.me }) }
    }

    fn mailbox(&self, cpu: usize) -> Result<&Mailbox<N, W, SLOTS>, Misuse> {
        self.mailboxes.get(cpu).ok_or(Misuse::NoSuchCpu { cpu })
    }

    fn slot(&self, cpu: u16, slot: u16) -> Result<&Slot<Flight<P, E, W>>, Misuse> {
        let cpu = usize::from(cpu);
        self.slots.get(cpu).ok_or(Misuse::NoSuchCpu { cpu })?.get(usize::from(slot)).ok_or(Misuse::NoRoom)
    }

    /// Posts a request to `cpu`'s mailbox by hand.
    ///
    /// # Errors
    ///
    /// [`Misuse::NoSuchCpu`]; otherwise as [`Mailbox::post`].
    ///
    /// # Safety
    ///
    /// No operation is in flight, nor will be before the reply, that would count the reply as one that it waits for.
    pub unsafe fn post(&self, cpu: usize, request: Request) -> Result<bool, Misuse> {
        self.send(cpu, request)
    }

    /// Counts one acknowledgement of `op` by hand, and returns how many are left.
    ///
    /// # Errors
    ///
    /// [`Misuse::UnknownGeneration`] if the slot is at another operation, [`Misuse::AlreadyComplete`] if none was
    /// left, [`Misuse::NoSuchCpu`] or [`Misuse::NoRoom`] if there is no such slot.
    ///
    /// # Safety
    ///
    /// It is not one that a CPU has still to give by [`poll`](Self::poll). Whoever gives the last one owns what is in
    /// flight.
    pub unsafe fn acknowledge(&self, op: OpId) -> Result<u32, Misuse> {
        self.reply_to(op)
    }

    fn send(&self, cpu: usize, request: Request) -> Result<bool, Misuse> {
        self.mailbox(cpu)?.post(request)
    }

    fn reply_to(&self, op: OpId) -> Result<u32, Misuse> {
        self.count_down(op.cpu, op.slot, Some(op.generation))
    }

    fn count_down(&self, cpu: u16, slot: u16, generation: Option<u32>) -> Result<u32, Misuse> {
        let word = &self.slot(cpu, slot)?.word;
        // Guessed that this is the last one: if so, the word's cache line comes here once, to be written. A look at
        // it would fetch it to be read, and the write would then take it from the requester once more.
        let mut seen = generation.map_or_else(|| word.load(Ordering::Relaxed), |of| tagged(of, 1));
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

    fn set_stopped(&self, cpu: usize, on: bool) {
        if let Some(flag) = self.stopped.get(cpu) {
            flag.0.store(on, Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
    }

    /// Stops this CPU for 2-phase. Its flag says that nothing of its own is under way any more: who sees it changes the
    /// entry, and a status write that landed after that would bring the old one back.
    fn stop(&self, cpu: usize, local: &mut impl Local<P>) {
        if self.plan.status_overwrites() {
            local.drain();
        }
        self.set_stopped(cpu, true);
        local.changed();
    }

    fn is_stopped(&self, cpu: usize) -> Result<bool, Misuse> {
        let flag = self.stopped.get(cpu).ok_or(Misuse::NoSuchCpu { cpu })?;
        Ok(flag.0.load(Ordering::SeqCst))
    }

    /// Returns how the plan's operations run.
    pub const fn style(&self) -> Style {
        self.plan.algorithm().style()
    }
}
