//! The driver of a kernel, and of host threads: mailboxes, operations in flight, and the loops that do what the
//! machines ask.
//!
//! | file | holds |
//! |-|-|
//! | here | what the CPUs share, and what each keeps for itself |
//! | `edit` | what a kernel says of a change, and of a CPU |
//! | `slot` | an operation in shared memory |
//! | `request` | the loop of a CPU that changes something |
//! | `alone` | the same on a machine of one CPU |
//! | `reply` | the loop of one that is asked to flush, or comes and goes |
//! | `carry` | what an operation uncovered after all had acknowledged |

use tlbkit_addr::CpuSet;

use crate::sync::{AtomicBool, AtomicU32, AtomicUsize, Ordering, array, constructor, fence};
use crate::{
    Algorithm, Duty, Hardware, LowRights, Mailbox, Misuse, OpId, Plan, Rendezvous, Replier, Request,
    Requester, SharedSpace,
};

mod alone;
mod carry;
mod edit;
mod reply;
mod request;
mod slot;

pub use edit::{Edit, LocalCpu, RemoteTlbs, Synchronous};

use slot::{Slot, tagged};

/// Which of a CPU's two mailboxes: requests to flush, and 2-phase's requests to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Post {
    Flushes,
    Stops,
}

/// The state of one CPU of a [`System`], which that CPU alone uses. There is one handle for each CPU at a time;
/// dropping it detaches the CPU.
///
/// A CPU uses its handle with interrupts disabled, at least the interrupt whose handler calls [`System::poll`]. A handler
/// that interrupts a call cannot have the handle; that call serves the request that the interrupt was sent for.
#[derive(Debug)]
pub struct CpuHandle<'s, const N: usize, const W: usize = 1, const SLOTS: usize = 1> {
    me: usize,
    /// The system's flag that the CPU has a handle.
    attached: &'s AtomicBool,
    flusher: Replier<N, W, SLOTS>,
    stopper: Replier<N, W, SLOTS>,
    /// In 2-phase as a requester: only [`System::poll`]'s rendezvous part may run.
    entered: bool,
    /// The first error found in the CPU's mailbox, until it can be reported.
    wrong: Option<Misuse>,
}

impl<const N: usize, const W: usize, const SLOTS: usize> CpuHandle<'_, N, W, SLOTS> {
    /// Returns the CPU.
    pub const fn cpu(&self) -> usize {
        self.me
    }

    fn replier(&mut self, of: Post) -> &mut Replier<N, W, SLOTS> {
        match of {
            Post::Flushes => &mut self.flusher,
            Post::Stops => &mut self.stopper,
        }
    }

    /// Returns the value of a result. Records an error, if it is the first, until it can be reported.
    fn note<T>(&mut self, result: Result<T, Misuse>) -> Option<T> {
        result.map_err(|why| self.wrong.get_or_insert(why)).ok()
    }
}

impl<const N: usize, const W: usize, const SLOTS: usize> Drop for CpuHandle<'_, N, W, SLOTS> {
    fn drop(&mut self) {
        self.attached.store(false, Ordering::Release);
    }
}

/// A CPU's 2-phase flag, on a cache line of its own: how often the CPU has stopped and gone on. It is stopped while that is
/// odd.
#[derive(Debug)]
#[repr(align(64))]
struct Flag(AtomicU32);

/// The shared memory of up to `CPUS` CPUs: two mailboxes of `N` requests and `SLOTS` operations for each.
///
/// A kernel has one, for instance in a `static`. Every operation names its plan; operations of all plans that suit the
/// hardware run side by side.
///
/// ```
/// use tlbkit_shootdown::{Hardware, Synchronous, System};
///
/// /// Four CPUs, none of which leaves an operation to the others. An update returns the number of a frame.
/// static SHOOTDOWNS: System<usize, Synchronous<usize>, 4, 8> = System::new(Hardware::I386);
/// ```
///
/// The sizes are checked when it is compiled: there are CPUs, queues have room, and a `CpuSet<W>` holds all CPUs.
///
/// ```compile_fail
/// # use tlbkit_shootdown::{Hardware, Synchronous, System};
/// static NO_CPUS: System<usize, Synchronous<usize>, 0, 8> = System::new(Hardware::I386);
/// ```
#[derive(Debug)]
pub struct System<P, E, const CPUS: usize, const N: usize, const W: usize = 1, const SLOTS: usize = 1> {
    hardware: Hardware,
    rendezvous: Rendezvous,
    flushes: [Mailbox<N, W, SLOTS>; CPUS],
    stops: [Mailbox<N, W, SLOTS>; CPUS],
    stopped: [Flag; CPUS],
    /// Which CPUs have a handle.
    attached: [AtomicBool; CPUS],
    /// How many address spaces each CPU has begun to run.
    runs: [AtomicUsize; CPUS],
    slots: [[Slot<P, E, W>; SLOTS]; CPUS],
}

// SAFETY: mailboxes and atomics are shared by design. A slot's cell is reached by one CPU at a time: by its owner
// before the first request is sent, then by no CPU, then by the CPU whose decrement returned zero, which the
// acquire-release decrements order after everything the others did; then, if the slot carries something, by the CPU
// that claims it with an acquiring exchange of its state, which a releasing store has set. Payload and edit move
// between CPUs with it. A slot's flush is written by the cell's owner while no acknowledgement is outstanding, and read
// by the CPUs that have one to give: the mailbox's lock orders their reading after the write, and their acknowledgement
// comes after the reading. The owner is one thread, as a CPU has one handle at a time, and no other CPU gives
// acknowledgements (`System::acknowledge`).
unsafe impl<P: Send, E: Send, const CPUS: usize, const N: usize, const W: usize, const SLOTS: usize> Sync
    for System<P, E, CPUS, N, W, SLOTS>
{
}

impl<P, E, const CPUS: usize, const N: usize, const W: usize, const SLOTS: usize>
    System<P, E, CPUS, N, W, SLOTS>
{
    /// All CPUs of the system.
    const ALL: CpuSet<W> = {
        let mut words = [0; W];
        let mut cpu = 0;
        while cpu < CPUS && cpu < CpuSet::<W>::CAPACITY {
            words[cpu / usize::BITS as usize] |= 1 << (cpu % usize::BITS as usize);
            cpu += 1;
        }
        CpuSet::from_words(words)
    };

    constructor! {
        /// Returns a system at rest on `hardware`.
        pub fn new(hardware: Hardware) -> Self {
            const {
                assert!(CPUS > 0, "a system has a CPU");
                assert!(CPUS <= Requester::<W>::CPUS, "a CpuSet<W> and an OpId have room for every CPU");
                assert!(N > 0 && W > 0 && SLOTS > 0 && SLOTS <= 1 << 16, "queues and sets have room");
            }
            Self {
                hardware,
                rendezvous: Rendezvous::Flag,
                flushes: array!(Mailbox::of_checked_size(); CPUS),
                stops: array!(Mailbox::of_checked_size(); CPUS),
                stopped: array!(Flag(AtomicU32::new(0)); CPUS),
                attached: array!(AtomicBool::new(false); CPUS),
                runs: array!(AtomicUsize::new(0); CPUS),
                slots: array!(array!(Slot::new(); SLOTS); CPUS),
            }
        }
    }

    /// Returns the system with the other way around 2-phase's deadlock, whatever plans say.
    #[must_use]
    pub const fn with_rendezvous(mut self, rendezvous: Rendezvous) -> Self {
        self.rendezvous = rendezvous;
        self
    }

    /// Returns the handle of CPU `me`. A CPU has one at a time.
    ///
    /// # Errors
    ///
    /// [`Misuse::NoSuchCpu`], or [`Misuse::Attached`] if the CPU has a handle.
    pub fn attach(&self, me: usize) -> Result<CpuHandle<'_, N, W, SLOTS>, Misuse> {
        let attached = self.attached.get(me).ok_or(Misuse::NoSuchCpu { cpu: me })?;
        if attached.swap(true, Ordering::Acquire) {
            return Err(Misuse::Attached { cpu: me });
        }
        // The algorithm that asks most of repliers that do not stop. Which operations they finish, requests say.
        let flushes = Plan::unchecked(Algorithm::PteFirstAsync, &self.hardware, LowRights::MayWriteBack);
        let (flusher, stopper) =
            (Replier::of_checked_size(flushes), Replier::of_checked_size(self.stopping()));
        Ok(CpuHandle { me, attached, flusher, stopper, entered: false, wrong: None })
    }

    /// The plan of 2-phase's repliers.
    const fn stopping(&self) -> Plan {
        Plan::unchecked(Algorithm::TwoPhase, &self.hardware, LowRights::MayWriteBack)
            .with_rendezvous(self.rendezvous)
    }

    /// Checks that a handle is one of this system's.
    #[inline]
    fn check(&self, handle: &CpuHandle<'_, N, W, SLOTS>) -> Result<(), Misuse> {
        let own =
            self.attached.get(handle.me).is_some_and(|attached| core::ptr::eq(attached, handle.attached));
        if own { Ok(()) } else { Err(Misuse::OtherSystem { cpu: handle.me }) }
    }

    fn mailbox(&self, of: Post, cpu: usize) -> Result<&Mailbox<N, W, SLOTS>, Misuse> {
        let mailboxes = match of {
            Post::Flushes => &self.flushes,
            Post::Stops => &self.stops,
        };
        mailboxes.get(cpu).ok_or(Misuse::NoSuchCpu { cpu })
    }

    fn slot(&self, cpu: u16, slot: u16) -> Result<&Slot<P, E, W>, Misuse> {
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
    /// No operation is in flight, nor will be before the reply, that would count the reply as one that it waits for. The
    /// request does not say [`Target::Listed`](crate::Target::Listed).
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
    /// It is not one that a CPU has still to give by [`poll`](Self::poll). The CPU that gives the last one owns what is
    /// in flight.
    pub unsafe fn acknowledge(&self, op: OpId) -> Result<u32, Misuse> {
        self.reply_to(op)
    }

    fn send(&self, cpu: usize, request: Request) -> Result<bool, Misuse> {
        let of = if request.duty == Duty::Stop { Post::Stops } else { Post::Flushes };
        self.mailbox(of, cpu)?.post(request)
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
            // Written by this CPU alone.
            let count = flag.0.load(Ordering::Relaxed);
            if (count & 1 == 1) != on {
                flag.0.store(count.wrapping_add(1), Ordering::SeqCst);
            }
            fence(Ordering::SeqCst);
        }
    }

    /// Stops this CPU for 2-phase. Its flag says that nothing of its own is under way any more: a requester that sees
    /// the flag changes the entry, and a status write that landed after that would bring the old one back.
    fn stop(&self, cpu: usize, local: &mut impl LocalCpu<P, W>) {
        if self.hardware.status_overwrites() {
            local.drain();
        }
        self.set_stopped(cpu, true);
        local.changed();
    }

    /// Returns how often a CPU has stopped and gone on.
    fn stops_of(&self, cpu: usize) -> Result<u32, Misuse> {
        let flag = self.stopped.get(cpu).ok_or(Misuse::NoSuchCpu { cpu })?;
        Ok(flag.0.load(Ordering::SeqCst))
    }

    fn is_stopped(&self, cpu: usize) -> Result<bool, Misuse> {
        Ok(self.stops_of(cpu)? & 1 == 1)
    }

    /// Refuses a space of which a CPU is a member that the system does not have.
    fn has_all(&self, space: &SharedSpace<W>) -> Result<(), Misuse> {
        match space.members.load().difference(Self::ALL).iter().next() {
            Some(cpu) => Err(Misuse::NoSuchCpu { cpu }),
            None => Ok(()),
        }
    }
}
