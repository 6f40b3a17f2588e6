//! Plans: the choice of an algorithm, checked once against the hardware.

use bitflags::bitflags;

use crate::{Algorithm, Consistency, Duty, Hardware, LowRights, Order, Style, Unsuitable};

bitflags! {
    /// The differences between this crate's algorithms and the printed pseudocode: steps that the text leaves out, or prints
    /// in an order that is wrong on some of the hardware that it names. A plan has all repairs. A test can switch one off
    /// (feature `hazards`) to show which error the repair prevents.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Repair: u32 {
        /// Optimistic: if a late write of the new entry is possible, the number of rounds is one more than the hardware has
        /// status bits with overwriting writes. One successful check is not sufficient, because a second late status write
        /// can hide the first (A-B-A). Without this repair there is one round fewer.
        const ROUNDS = 1 << 0;
        /// A flush waits for the status writes of its CPU that are under way.
        const DRAIN = 1 << 1;
        /// One operation at a time changes an entry.
        const EXCLUSION = 1 << 2;
        /// The requester reads the target set after it has written the entry (TLB-first: the flag), and again in each round.
        const TARGETS_AFTER = 1 << 3;
        /// TLB-first: the requester sets the tentative entry before the flag that makes miss handlers load it.
        const VALUE_BEFORE_FLAG = 1 << 4;
        /// No flush interrupts a miss handler between its read of an entry and its load of the TLB.
        const MISS_MASKED = 1 << 5;
        /// TLB-first: each page-table entry has its own flag and tentative entry.
        const FLAG_PER_PTE = 1 << 6;
        /// 2-phase: a CPU that has entered the algorithm for any operation counts as stopped; or, with
        /// [`Rendezvous::Serve`], a waiting CPU serves its own queue.
        const RENDEZVOUS = 1 << 7;
        /// 2-phase: the requester puts its request into the queue before it reads the replier's flag, and a replier checks
        /// its queue once more after it has cleared the flag.
        const ENQUEUE_BEFORE_FLAG = 1 << 8;
        /// 2-phase: repliers flush after the update, not when they stop.
        const FLUSH_AFTER_UPDATE = 1 << 9;
        /// 2-phase: the requester flushes after the update, and not before it as printed.
        const REQUESTER_FLUSHES_AFTER = 1 << 10;
        /// 2-phase: every CPU that may load the entry stops, not only every CPU that holds it.
        const ALL_LOADERS = 1 << 11;
        /// 2-phase: interrupts whose handlers may touch the page are disabled.
        const INTERRUPTS_DISABLED = 1 << 12;
        /// Asynchronous: a replier decrements the count in one atomic step, and tests the value that this step returned.
        const ATOMIC_COUNT = 1 << 13;
        /// Asynchronous: if no CPU has to reply, the requester completes the operation itself.
        const ZERO_REPLIERS = 1 << 14;
        /// Asynchronous: a CPU that raises the rights again while acknowledgements are outstanding marks the operation as
        /// superseded, and the operation ends without writing the entry again.
        const RAISE_SUPERSEDES = 1 << 15;
        /// Remote flush: the flush waits for hardware walks, miss handlers and status writes under way on its target.
        const REMOTE_DRAIN = 1 << 16;
        /// An atomic exchange changes the entry, so that a dirty bit set at the last moment is not lost.
        const EXCHANGE = 1 << 17;
        /// Remote flush: the requester waits for the acknowledgement of its own flush, not for one more acknowledgement of
        /// any flush.
        const GENERATION = 1 << 18;
        /// Broadcast: a barrier waits until the flush is done on every CPU.
        const BARRIER = 1 << 19;
        /// Broadcast: a change ends after the sections that use a leaf which they have found.
        const USES_END = 1 << 20;
        /// Broadcast: nodes go back after the walks by software that may be in them have ended.
        const WALKS_END = 1 << 21;
        /// Broadcast: a CPU announces a walk by software before the walk reads the root.
        const ANNOUNCE_FIRST = 1 << 22;
        /// Early acknowledgement: a CPU that has acknowledged runs no program until it has flushed.
        const FLUSH_BEFORE_USE = 1 << 23;
    }
}

/// How 2-phase avoids the deadlock of two requesters that wait for each other (3.3.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rendezvous {
    /// A requester waits until every replier has entered the algorithm, for any operation. A replier finishes all its
    /// requests before it leaves. The text's first way.
    #[default]
    Flag,
    /// A requester waits for an acknowledgement of its own request, and serves its queue while it waits. The text's
    /// second way.
    Serve,
}

/// A later form of an algorithm, which runs the same steps in another order, or at other times.
///
/// | form | of | steps | suits |
/// |-|-|-|-|
/// | [`Printed`](Self::Printed) | every algorithm | those of Tzou 3.2 | [`Algorithm::suits`] |
/// | [`Concurrent`](Self::Concurrent) | PTE-first | the requester's own flush comes after its requests | as PTE-first |
/// | [`EarlyAcknowledgement`](Self::EarlyAcknowledgement) | PTE-first | besides, a replier acknowledges, and then flushes | as PTE-first |
/// | [`Swept`](Self::Swept) | PTE-first', TLB-first', optimistic' | no interrupt is sent | as the algorithm |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Form {
    /// The steps as Tzou has them.
    #[default]
    Printed,
    /// The requester flushes its own TLB while the repliers flush theirs (Amit, Tai and Wei, EuroSys 2020, "concurrent flushes").
    Concurrent,
    /// The same, and a replier acknowledges as soon as it is in its handler, before its flush ("early acknowledgement"). The requester
    /// does not wait for the slowest flush. A stale TLB entry outlives the operation, on a CPU that is in the handler: it
    /// runs no program until it has flushed. So the kernel's part is that nothing runs between the two which reads or writes user memory
    /// by the address space: [`System::poll`](crate::System::poll) flushes before it returns, and no other handler that does so
    /// interrupts it (a non-maskable one would).
    ///
    /// The acknowledgement does not say that hardware walks have ended. So a payload that [is walked](crate::Edit::is_walked), a
    /// page-table node, waits for a later operation, as with TLB-first. A frame need not wait, except on a virtually tagged cache: a CPU
    /// whose flush writes dirty lines back by their physical address does so after its acknowledgement, over what the frame's next
    /// use has stored there. On such a machine the edit says of frames, too, that they are walked, or the form is
    /// [`Concurrent`](Self::Concurrent).
    EarlyAcknowledgement,
    /// A request stays in the receiver's queue until the receiver looks there by itself: at its next tick, or when it switches to
    /// another address space (LATR, ASPLOS 2018: lists that each CPU sweeps). The CPU that looks last ends the operation, so the
    /// payload comes back after one interval between two looks. In Tzou's analysis, and in the queueing simulator, the asynchronous algorithms run so:
    /// processors look into their queues at the ends of time slices.
    ///
    /// LATR frees after two ticks, whether or not each CPU has looked by then. Here the acknowledgements are counted: a CPU whose
    /// tick is late holds the payload up, and loses none.
    Swept,
}

/// The requirements of a kernel on an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Want {
    /// The time from which the new rights must hold.
    pub consistency: Consistency,
    /// Whether the caller can continue before the operation has ended, and receive the payload later.
    pub asynchronous: bool,
    /// Whether the hardware writes status bits to entries with the new rights.
    pub low: LowRights,
}

/// An algorithm that has been checked against the hardware, with the parameters that follow from the hardware.
///
/// Every operation names its plan; a [`System`](crate::System) runs operations of different plans concurrently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    algorithm: Algorithm,
    low: LowRights,
    rounds: u8,
    overwrites: bool,
    rendezvous: Rendezvous,
    conditional: bool,
    form: Form,
    #[cfg(any(test, feature = "hazards"))]
    off: Repair,
}

impl Plan {
    /// Returns the plan to run `algorithm` on `hardware` for changes to rights of the kind `low`.
    ///
    /// # Errors
    ///
    /// [`Unsuitable`] if the algorithm would not provide its consistency on this hardware.
    pub const fn new(algorithm: Algorithm, hardware: &Hardware, low: LowRights) -> Result<Self, Unsuitable> {
        match algorithm.suits(hardware, low) {
            Ok(()) => Ok(Self::unchecked(algorithm, hardware, low)),
            Err(why) => Err(why),
        }
    }

    pub(crate) const fn unchecked(algorithm: Algorithm, hardware: &Hardware, low: LowRights) -> Self {
        // A late status write restores the old rights with at least one more status bit than the word that the hardware had
        // read: `suits` refuses other hardware. A round flushes every TLB entry that was loaded before it, and waits for
        // every status write. So each round in which the old rights reappear sets one more bit, and in the round after the
        // last bit they cannot reappear. Another late write, of the new rights, can hide a reappearance even if the new
        // rights allow nothing: an access uses a stale TLB entry, the hardware reads the new entry to set the bit in it, and
        // writes the new entry back. If only TLB entries with the new rights can cause a write of the new entry, and they
        // never do, one successful check is sufficient.
        let covered = hardware.reads_entry_on_hit() || matches!(low, LowRights::MayWriteBack);
        let rounds = if covered { hardware.bits_that_overwrite() + 1 } else { 1 };
        Self {
            algorithm,
            low,
            rounds,
            overwrites: hardware.status_overwrites(),
            rendezvous: Rendezvous::Flag,
            conditional: false,
            form: Form::Printed,
            #[cfg(any(test, feature = "hazards"))]
            off: Repair::empty(),
        }
    }

    /// Returns the plan with the cheapest algorithm that meets the requirements `want`.
    ///
    /// On hardware with a [remote flush](Hardware::remote_flush) that is a plan that flushes remotely, if one suits: it needs
    /// [`LocalCpu::remote`](crate::LocalCpu::remote). A kernel without it sets `remote_flush` to false.
    ///
    /// The cost is the work of all CPUs together (Tzou 4.4): a remote flush interrupts no CPU; to wait costs more than not
    /// to wait; a check of the entry costs more than none; a flag that the miss handler reads costs every miss; to stop
    /// every CPU costs most.
    ///
    /// # Errors
    ///
    /// The [`Unsuitable`] reason of 2-phase, the algorithm that suits the most hardware, if no algorithm suits.
    pub fn choose(hardware: &Hardware, want: Want) -> Result<Self, Unsuitable> {
        use Algorithm as A;
        const CHEAPEST_FIRST: [Algorithm; 10] = [
            A::PteFirstRemote,
            A::OptimisticRemote,
            A::TlbFirstRemote,
            A::PteFirstAsync,
            A::OptimisticAsync,
            A::TlbFirstAsync,
            A::PteFirst,
            A::Optimistic,
            A::TlbFirst,
            A::TwoPhase,
        ];
        CHEAPEST_FIRST
            .into_iter()
            .filter(|a| a.consistency() >= want.consistency)
            .filter(|a| want.asynchronous || a.style() != Style::Asynchronous)
            .find_map(|a| Self::new(a, hardware, want.low).ok())
            .map_or_else(|| Self::new(A::TwoPhase, hardware, want.low), Ok)
    }

    /// Returns the plan with the given way in which 2-phase avoids its deadlock.
    #[must_use]
    pub const fn with_rendezvous(self, rendezvous: Rendezvous) -> Self {
        Self { rendezvous, ..self }
    }

    /// Returns the plan with the `conditional` hint of Table 5.2: if the check of an optimistic operation fails in the last of its
    /// [`rounds`](Self::rounds), the operation ends as [`Outcome::Overwritten`](crate::Outcome) instead of starting over. A check
    /// that fails in an earlier round does not end it.
    #[must_use]
    pub const fn conditional(self) -> Self {
        Self { conditional: true, ..self }
    }

    /// Returns the plan with another form of its algorithm.
    ///
    /// # Errors
    ///
    /// [`Unsuitable::NoSuchForm`] if the algorithm has no such form ([`Form`]).
    pub const fn with_form(self, form: Form) -> Result<Self, Unsuitable> {
        let has = match form {
            Form::Printed => true,
            Form::Concurrent | Form::EarlyAcknowledgement => matches!(self.algorithm, Algorithm::PteFirst),
            Form::Swept => matches!(self.algorithm.style(), Style::Asynchronous),
        };
        if has { Ok(Self { form, ..self }) } else { Err(Unsuitable::NoSuchForm) }
    }

    /// Returns an unchecked plan: any algorithm on any hardware.
    #[cfg(any(test, feature = "hazards"))]
    #[must_use]
    pub const fn unsound(algorithm: Algorithm, hardware: &Hardware, low: LowRights) -> Self {
        Self::unchecked(algorithm, hardware, low)
    }

    /// Returns the plan with some repairs switched off.
    #[cfg(any(test, feature = "hazards"))]
    #[must_use]
    pub const fn without(self, off: Repair) -> Self {
        Self { off, ..self }
    }

    /// Tells whether `repair` is switched on: always, except in a test that switches it off.
    #[inline]
    pub const fn has(&self, repair: Repair) -> bool {
        #[cfg(any(test, feature = "hazards"))]
        return !self.off.contains(repair);
        #[cfg(not(any(test, feature = "hazards")))]
        {
            let _ = repair;
            true
        }
    }

    /// Returns the algorithm.
    #[inline]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the smallest number of rounds that an optimistic operation makes. Operations of other algorithms make one round.
    #[inline]
    pub const fn rounds(&self) -> u8 {
        if self.has(Repair::ROUNDS) || self.rounds == 1 { self.rounds } else { self.rounds - 1 }
    }

    /// Tells whether a late status write can undo the change. If so, a CPU that stops for 2-phase first waits for its own
    /// status writes.
    #[inline]
    pub const fn status_overwrites(&self) -> bool {
        self.overwrites
    }

    /// Tells whether the plan is correct for changes to rights of the kind `low`. If status writes can undo a change, a plan
    /// that was made for unmapping is not correct for rights with which the hardware may write status bits.
    #[inline]
    pub const fn allows(&self, low: LowRights) -> bool {
        !self.overwrites
            || matches!(low, LowRights::NeverWriteBack)
            || matches!(self.low, LowRights::MayWriteBack)
    }

    /// Tells whether an operation ends after a failed check in its last required round instead of starting over.
    #[inline]
    pub const fn is_conditional(&self) -> bool {
        self.conditional
    }

    /// Returns the form of the algorithm.
    #[inline]
    pub const fn form(&self) -> Form {
        self.form
    }

    /// Returns how 2-phase avoids its deadlock.
    #[inline]
    pub const fn rendezvous(&self) -> Rendezvous {
        self.rendezvous
    }

    /// Returns the plan with the synchronous form of its algorithm if that is asynchronous, so that the requester waits for
    /// the end. Both forms suit the same hardware.
    #[must_use]
    pub const fn waited_for(self) -> Self {
        let algorithm = match self.algorithm {
            Algorithm::PteFirstAsync => Algorithm::PteFirst,
            Algorithm::TlbFirstAsync => Algorithm::TlbFirst,
            Algorithm::OptimisticAsync => Algorithm::Optimistic,
            synchronous => synchronous,
        };
        // A requester that waits has its requests answered at once.
        let form = if matches!(self.form, Form::Swept) { Form::Printed } else { self.form };
        Self { algorithm, form, ..self }
    }

    /// Returns the duty of a replier.
    #[inline]
    pub const fn duty(&self) -> Duty {
        match (self.algorithm.order(), self.algorithm.style()) {
            (Order::TwoPhase, _) => Duty::Stop,
            _ if matches!(self.form, Form::EarlyAcknowledgement) => Duty::AcknowledgeFirst,
            (_, Style::Asynchronous) => Duty::FlushAndFinish,
            _ => Duty::Flush,
        }
    }

    /// Tells whether repliers stop until the entry has changed.
    #[inline]
    pub const fn stops_repliers(&self) -> bool {
        matches!(self.algorithm.order(), Order::TwoPhase)
    }

    /// Returns where the flag and the tentative entry of page-table entry `entry` are kept.
    #[inline]
    pub const fn flag_of(&self, entry: usize) -> usize {
        if self.has(Repair::FLAG_PER_PTE) { entry } else { 0 }
    }
}
