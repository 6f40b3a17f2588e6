//! The driver for kernels and for host threads: mailboxes, operations in flight, and the loops that do the actions for which
//! the state machines ask.
//!
//! | file | holds |
//! |-|-|
//! | this file | the memory that all CPUs share, and the handle of each CPU |
//! | `edit` | the traits that a kernel implements |
//! | `slot` | an operation in shared memory |
//! | `request` | the loop of a requester |
//! | `alone` | the requester on a machine with one CPU |
//! | `straight` | both, if all operations are PTE-first |
//! | `reply` | the loop of a replier, and a CPU's switch to or from an address space |
//! | `carry` | payloads that a walk may still reach after their operation has ended |

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
mod straight;

pub use edit::{Edit, LocalCpu, PteFirst, RemoteTlbs, Synchronous};

use slot::{Slot, tagged};

/// One of a CPU's two mailboxes: that for requests to flush, or that for 2-phase's requests to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Post {
    Flushes,
    Stops,
}

/// The state of one CPU of a [`System`], which only that CPU uses. Each CPU has at most one handle at a time; dropping the
/// handle detaches the CPU, unless a call panicked in the middle of a reply or of 2-phase: then the CPU stays attached.
///
/// A CPU must use its handle with interrupts disabled, at least the interrupt whose handler calls [`System::poll`]: a handler that
/// interrupts a call could not borrow the handle. A call serves requests while it waits for other CPUs, when it ends 2-phase, and
/// when it takes the CPU offline; a request that arrives at another moment waits for the next [`System::poll`].
#[derive(Debug)]
pub struct CpuHandle<'s, const N: usize, const W: usize = 1, const SLOTS: usize = 1> {
    me: usize,
    /// The system's flag which says that the CPU has a handle.
    attached: &'s AtomicBool,
    flusher: Replier<N, W, SLOTS>,
    stopper: Replier<N, W, SLOTS>,
    /// Whether the CPU is in 2-phase as a requester. If so, it must not run its repliers, except to collect requests with
    /// [`Rendezvous::Serve`]. In a system whose operations are all PTE-first: whether it is in the middle of a reply.
    entered: bool,
    /// The first error found in the CPU's mailbox, until it can be reported.
    wrong: Option<Misuse>,
}

impl<const N: usize, const W: usize, const SLOTS: usize> CpuHandle<'_, N, W, SLOTS> {
    /// Returns the number of the CPU.
    pub const fn cpu(&self) -> usize {
        self.me
    }

    fn replier(&mut self, of: Post) -> &mut Replier<N, W, SLOTS> {
        match of {
            Post::Flushes => &mut self.flusher,
            Post::Stops => &mut self.stopper,
        }
    }

    /// Returns the value of a result. Records the first error until it can be reported.
    fn note<T>(&mut self, result: Result<T, Misuse>) -> Option<T> {
        result.map_err(|why| self.wrong.get_or_insert(why)).ok()
    }
}

impl<const N: usize, const W: usize, const SLOTS: usize> Drop for CpuHandle<'_, N, W, SLOTS> {
    fn drop(&mut self) {
        // After a panic in the middle of a reply or of 2-phase the CPU stays attached: a new handle would reply, and a requester
        // would take that for the flush that never came.
        if self.flusher.is_idle() && self.stopper.is_idle() && !self.entered {
            self.attached.store(false, Ordering::Release);
        }
    }
}

/// A CPU's 2-phase flag, on its own cache line: the number of times that the CPU has stopped plus the number of times that
/// it has continued. The CPU is stopped while this number is odd.
#[derive(Debug)]
#[repr(align(64))]
struct Flag(AtomicU32);

/// The shared memory of up to `CPUS` CPUs: two mailboxes of `N` requests and `SLOTS` operations for each.
///
/// A kernel has one system, for instance in a `static`. Every operation names its plan; operations of all plans that suit
/// the hardware run concurrently.
///
/// ```
/// use tlbkit_shootdown::{Hardware, Synchronous, System};
///
/// /// Four CPUs, without asynchronous operations. An update returns the number of a frame.
/// static SHOOTDOWNS: System<usize, Synchronous<usize>, 4, 8> = System::new(Hardware::I386);
/// ```
///
/// The compiler checks the sizes: `CPUS`, `N`, `W` and `SLOTS` are not zero, `SLOTS` is at most 65536, and a `CpuSet<W>` and
/// an [`OpId`] can name every CPU.
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
    /// For each CPU, whether it has a handle.
    attached: [AtomicBool; CPUS],
    /// For each CPU, the number of address spaces that it runs.
    runs: [AtomicUsize; CPUS],
    slots: [[Slot<P, E, W>; SLOTS]; CPUS],
}

// SAFETY: the mailboxes are `Sync`, and so are the atomics. The two cells of a slot remain.
// - One CPU at a time accesses the cell `cell`: first the CPU that owns the slot, until it sends the last request, before
//   which the count is not zero; then no CPU; then the CPU whose decrement of the count returned zero, which the
//   acquire-release decrements order after all accesses of the other CPUs; then, if the slot carries a payload, the CPU that
//   claims it by an acquiring exchange of the state, which a releasing store has set. Payload and edit move between CPUs
//   with the cell, hence `P: Send` and `E: Send`.
// - The owner of `cell` writes the cell `flush` while no acknowledgement is outstanding. Only CPUs that have an
//   acknowledgement to give, or in 2-phase wait to continue, read it: the mailbox's lock orders their reads after the write, and
//   they acknowledge, or continue, after the read.
// The owner is one thread, because a CPU has at most one handle at a time. No CPU counts an acknowledgement that another CPU
// has to give (the safety contract of `System::acknowledge`).
unsafe impl<P: Send, E: Send, const CPUS: usize, const N: usize, const W: usize, const SLOTS: usize> Sync
    for System<P, E, CPUS, N, W, SLOTS>
{
}

impl<P, E, const CPUS: usize, const N: usize, const W: usize, const SLOTS: usize>
    System<P, E, CPUS, N, W, SLOTS>
{
    /// The set of all CPUs of the system.
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
        /// Returns a system for `hardware` without any operation in flight.
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

    /// Returns the system with the given way in which 2-phase avoids its deadlock. It replaces that of every plan.
    #[must_use]
    pub const fn with_rendezvous(mut self, rendezvous: Rendezvous) -> Self {
        self.rendezvous = rendezvous;
        self
    }

    /// Returns the handle of CPU `me`. A CPU has at most one handle at a time.
    ///
    /// # Errors
    ///
    /// [`Misuse::NoSuchCpu`], or [`Misuse::Attached`] if the CPU has a handle, or has had one that a panic ended
    /// ([`CpuHandle`]).
    pub fn attach(&self, me: usize) -> Result<CpuHandle<'_, N, W, SLOTS>, Misuse> {
        let attached = self.attached.get(me).ok_or(Misuse::NoSuchCpu { cpu: me })?;
        if attached.swap(true, Ordering::Acquire) {
            return Err(Misuse::Attached { cpu: me });
        }
        // Among the algorithms that do not stop repliers, this one gives a replier the most duties. Each request says
        // whether the replier also finishes the operation.
        let flushes = Plan::unchecked(Algorithm::PteFirstAsync, &self.hardware, LowRights::MayWriteBack);
        let (flusher, stopper) =
            (Replier::of_checked_size(flushes), Replier::of_checked_size(self.stopping()));
        Ok(CpuHandle { me, attached, flusher, stopper, entered: false, wrong: None })
    }

    /// Returns the plan of 2-phase's repliers.
    const fn stopping(&self) -> Plan {
        Plan::unchecked(Algorithm::TwoPhase, &self.hardware, LowRights::MayWriteBack)
            .with_rendezvous(self.rendezvous)
    }

    /// Checks that a handle belongs to this system.
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

    /// Posts a request to the mailbox of `cpu`, outside of an operation.
    ///
    /// # Errors
    ///
    /// [`Misuse::NoSuchCpu`]; otherwise as [`Mailbox::post`].
    ///
    /// # Safety
    ///
    /// The caller ensures both:
    ///
    /// - From this call until the reply, no operation is in flight that would count the reply as one of the acknowledgements
    ///   for which it waits.
    /// - The request's target is not [`Target::Listed`](crate::Target::Listed), because no operation holds the list.
    pub unsafe fn post(&self, cpu: usize, request: Request) -> Result<bool, Misuse> {
        self.send(cpu, request)
    }

    /// Counts one acknowledgement of `op` outside of [`poll`](Self::poll), and returns how many are outstanding.
    ///
    /// # Errors
    ///
    /// [`Misuse::UnknownGeneration`] if the slot has another operation, [`Misuse::AlreadyComplete`] if no acknowledgement
    /// was outstanding, [`Misuse::NoSuchCpu`] or [`Misuse::NoRoom`] if there is no such slot.
    ///
    /// # Safety
    ///
    /// The caller ensures that no CPU will also give this acknowledgement by [`poll`](Self::poll). The CPU that counts the
    /// last acknowledgement of an asynchronous operation owns that operation, so a count too many would give it two owners.
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
        // The first exchange guesses that this is the last acknowledgement. If the guess is right, this CPU fetches the
        // word's cache line once, for writing. A load before the exchange would fetch the line for reading, and the exchange
        // once more for writing.
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
            // One atomic step decrements the count, and the caller tests the value that this step stored.
            match word.compare_exchange_weak(seen, seen - 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok(count - 1),
                Err(now) => seen = now,
            }
        }
    }

    /// Sets or clears the 2-phase flag of `cpu`, which must be the calling CPU, and executes a full fence.
    fn set_stopped(&self, cpu: usize, on: bool) {
        if let Some(flag) = self.stopped.get(cpu) {
            // Only this CPU writes its flag, so a load and a store suffice.
            let count = flag.0.load(Ordering::Relaxed);
            if (count & 1 == 1) != on {
                flag.0.store(count.wrapping_add(1), Ordering::SeqCst);
            }
            fence(Ordering::SeqCst);
        }
    }

    /// Stops this CPU for 2-phase: waits for its status writes, then sets its flag. A requester that sees the flag changes
    /// the entry, so a status write of this CPU that reached memory later would restore the old entry.
    fn stop(&self, cpu: usize, local: &mut impl LocalCpu<P, W>) {
        if self.hardware.status_overwrites() {
            local.drain();
        }
        self.set_stopped(cpu, true);
        local.changed();
    }

    /// Returns a CPU's 2-phase count, which is odd while the CPU is stopped.
    fn stops_of(&self, cpu: usize) -> Result<u32, Misuse> {
        let flag = self.stopped.get(cpu).ok_or(Misuse::NoSuchCpu { cpu })?;
        Ok(flag.0.load(Ordering::SeqCst))
    }

    fn is_stopped(&self, cpu: usize) -> Result<bool, Misuse> {
        Ok(self.stops_of(cpu)? & 1 == 1)
    }

    /// Returns an error if a member of the space is not a CPU of this system.
    fn has_all(&self, space: &SharedSpace<W>) -> Result<(), Misuse> {
        match space.members.load().difference(Self::ALL).iter().next() {
            Some(cpu) => Err(Misuse::NoSuchCpu { cpu }),
            None => Ok(()),
        }
    }
}
