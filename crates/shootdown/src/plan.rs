//! Which algorithm to run, checked against the hardware once: the chooser, and the plan that machines carry.

use bitflags::bitflags;

use crate::{Algorithm, Consistency, Duty, Hardware, LowRights, Order, Style, Unsuitable};

bitflags! {
    /// What the text leaves out of its pseudocode, or prints in an order that does not work on all the hardware
    /// that it names. A plan has them all; an explorer switches one off to show what it is for (feature `hazards`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Repair: u32 {
        /// Optimistic: as many rounds as the hardware has status bits that overwrite, and one more. One passing check
        /// proves nothing where a second late status write can hide the first (A-B-A). Without it there is one round
        /// fewer.
        const ROUNDS = 1 << 0;
        /// A flush waits for the status writes of its CPU that are under way.
        const DRAIN = 1 << 1;
        /// One operation at a time changes an entry.
        const EXCLUSION = 1 << 2;
        /// The target set is read after the entry (TLB-first: the flag) is written, and again in each round.
        const TARGETS_AFTER = 1 << 3;
        /// TLB-first: the tentative entry is set before the flag that makes miss handlers load it.
        const VALUE_BEFORE_FLAG = 1 << 4;
        /// A miss handler that has read an entry is not interrupted by a flush before it has loaded it.
        const MISS_MASKED = 1 << 5;
        /// TLB-first: flag and tentative entry exist per page-table entry.
        const FLAG_PER_PTE = 1 << 6;
        /// 2-phase: a CPU that has entered the algorithm counts as stopped, whatever made it enter; or (with
        /// [`Rendezvous::Serve`]) a CPU that waits serves its own queue.
        const RENDEZVOUS = 1 << 7;
        /// 2-phase: a request is in the queue before the requester looks at the replier's flag, and a replier
        /// looks into its queue once more after it has cleared the flag.
        const ENQUEUE_BEFORE_FLAG = 1 << 8;
        /// 2-phase: repliers flush after the update, not when they stop.
        const FLUSH_AFTER_UPDATE = 1 << 9;
        /// 2-phase: the requester too flushes after the update.
        const REQUESTER_FLUSHES_AFTER = 1 << 10;
        /// 2-phase: every CPU that may load the entry stops, not only those that hold it.
        const ALL_LOADERS = 1 << 11;
        /// 2-phase: interrupts whose handlers may touch the page are disabled.
        const INTERRUPTS_DISABLED = 1 << 12;
        /// Asynchronous: the count goes down in one atomic step, and the value that this step returned is tested.
        const ATOMIC_COUNT = 1 << 13;
        /// Asynchronous: if no CPU has to reply, the requester completes the operation itself.
        const ZERO_REPLIERS = 1 << 14;
        /// Asynchronous: a CPU that raises the rights again while replies are outstanding says so, and the operation
        /// ends without touching the entry again.
        const RAISE_SUPERSEDES = 1 << 15;
        /// Remote flush: the flush waits for walks, miss handlers and status writes under way on its target.
        const REMOTE_DRAIN = 1 << 16;
        /// The entry is exchanged, so that a dirty bit set at the last moment comes back.
        const EXCHANGE = 1 << 17;
        /// Remote flush: the acknowledgement of this very flush is awaited, not one more of any.
        const GENERATION = 1 << 18;
    }
}

/// How 2-phase avoids the deadlock of two requesters that wait for each other (3.3.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rendezvous {
    /// A requester waits until every replier has entered the algorithm, for whatever reason. A replier finishes all
    /// its requests before it leaves. The text's first way.
    #[default]
    Flag,
    /// A requester waits for an acknowledgement of its own request, and serves its queue while it waits. The text's
    /// second way.
    Serve,
}

/// What a kernel wants of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Want {
    /// From when on the new rights must hold.
    pub consistency: Consistency,
    /// Whether the caller can go on before the operation is done, and take the payload later.
    pub asynchronous: bool,
    /// What entries with the new rights do.
    pub low: LowRights,
}

/// An algorithm that has been checked against the hardware, with what the hardware makes it do.
///
/// Every operation names its plan; a [`System`](crate::System) runs operations of different plans side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    algorithm: Algorithm,
    low: LowRights,
    rounds: u8,
    overwrites: bool,
    rendezvous: Rendezvous,
    conditional: bool,
    #[cfg(any(test, feature = "hazards"))]
    off: Repair,
}

impl Plan {
    /// Returns the plan to run `algorithm` on `hardware` for changes to rights of the kind `low`.
    ///
    /// # Errors
    ///
    /// [`Unsuitable`]: the algorithm would not keep its promise there.
    pub const fn new(algorithm: Algorithm, hardware: &Hardware, low: LowRights) -> Result<Self, Unsuitable> {
        match algorithm.suits(hardware, low) {
            Ok(()) => Ok(Self::unchecked(algorithm, hardware, low)),
            Err(why) => Err(why),
        }
    }

    pub(crate) const fn unchecked(algorithm: Algorithm, hardware: &Hardware, low: LowRights) -> Self {
        // A late write puts the old rights back with at least one status bit more than the word that it was made from:
        // `suits` refuses hardware of which that is not so. A round flushes every copy that was loaded before it, and
        // waits for every write, so each round in which the old rights reappear uses up one more bit; in the round after
        // the last bit they cannot. Another late write, of the new rights, can cover a reappearance up even if the new
        // rights allow nothing: a stale copy is used, the hardware reads the new entry to set the bit in it, and writes
        // that back. If nothing but copies of the new rights can write those, and they never do, one passing check
        // is proof enough.
        let covered = hardware.reads_entry_on_hit() || matches!(low, LowRights::MayWriteBack);
        let rounds = if covered { hardware.bits_that_overwrite() + 1 } else { 1 };
        Self {
            algorithm,
            low,
            rounds,
            overwrites: hardware.status_overwrites(),
            rendezvous: Rendezvous::Flag,
            conditional: false,
            #[cfg(any(test, feature = "hazards"))]
            off: Repair::empty(),
        }
    }

    /// Returns the plan with the cheapest algorithm that gives what is wanted.
    ///
    /// Cheapest by the work on all CPUs together: flushing remotely interrupts no CPU; waiting is worse than not
    /// waiting; looking at the entry again costs more than not looking; a miss handler that looks at a flag costs
    /// every miss; stopping every CPU costs most (Tzou 4.4).
    ///
    /// # Errors
    ///
    /// [`Unsuitable`] of 2-phase, the algorithm that suits most, if none suits.
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
            A::TlbFirst,
            A::Optimistic,
            A::TwoPhase,
        ];
        CHEAPEST_FIRST
            .into_iter()
            .filter(|a| a.consistency() >= want.consistency)
            .filter(|a| want.asynchronous || a.style() != Style::Asynchronous)
            .find_map(|a| Self::new(a, hardware, want.low).ok())
            .map_or_else(|| Self::new(A::TwoPhase, hardware, want.low), Ok)
    }

    /// Returns the plan with 2-phase's other way around its deadlock.
    #[must_use]
    pub const fn with_rendezvous(self, rendezvous: Rendezvous) -> Self {
        Self { rendezvous, ..self }
    }

    /// Returns the plan with the `conditional` hint of Table 5.2: an optimistic operation whose check fails ends as
    /// [`Outcome::Overwritten`](crate::Outcome) instead of starting over.
    #[must_use]
    pub const fn conditional(self) -> Self {
        Self { conditional: true, ..self }
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

    /// Tells whether `repair` is in force: always, except in an explorer.
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

    /// Returns how many rounds an operation makes at least.
    #[inline]
    pub const fn rounds(&self) -> u8 {
        if self.has(Repair::ROUNDS) || self.rounds == 1 { self.rounds } else { self.rounds - 1 }
    }

    /// Tells whether a status write that lands late can undo the change: a CPU that stops for one waits for its own first.
    #[inline]
    pub const fn status_overwrites(&self) -> bool {
        self.overwrites
    }

    /// Tells whether the plan is right for changes to rights of the kind `low`. One that was made for unmapping is not, for
    /// rights that the hardware may write back, where such a write can undo a change.
    #[inline]
    pub const fn allows(&self, low: LowRights) -> bool {
        !self.overwrites
            || matches!(low, LowRights::NeverWriteBack)
            || matches!(self.low, LowRights::MayWriteBack)
    }

    /// Tells whether an operation gives up after a failed check.
    #[inline]
    pub const fn is_conditional(&self) -> bool {
        self.conditional
    }

    /// Returns how 2-phase avoids its deadlock.
    #[inline]
    pub const fn rendezvous(&self) -> Rendezvous {
        self.rendezvous
    }

    /// Returns the plan with the same algorithm's synchronous form, if it is asynchronous: the requester waits for its
    /// end. What suits the one suits the other.
    #[must_use]
    pub const fn waited_for(self) -> Self {
        let algorithm = match self.algorithm {
            Algorithm::PteFirstAsync => Algorithm::PteFirst,
            Algorithm::TlbFirstAsync => Algorithm::TlbFirst,
            Algorithm::OptimisticAsync => Algorithm::Optimistic,
            synchronous => synchronous,
        };
        Self { algorithm, ..self }
    }

    /// Returns what the algorithm asks of a replier.
    #[inline]
    pub const fn duty(&self) -> Duty {
        match (self.algorithm.order(), self.algorithm.style()) {
            (Order::TwoPhase, _) => Duty::Stop,
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
