//! The ten algorithms of Table 3.1: their names, the consistency that they provide, and the hardware that they need.

use core::fmt;

use crate::{Hardware, Loader};

/// The order of the two halves of an update: the change of the entry, and the flush of the TLBs (Tzou 3.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The entry changes first, then the TLBs are flushed.
    PteFirst,
    /// The TLBs are flushed first, then the entry changes.
    TlbFirst,
    /// All CPUs of the address space stop, the entry changes, then all CPUs flush and continue.
    TwoPhase,
    /// As PTE-first; then the requester checks the entry. It starts over in two cases: a status write has overwritten the entry, or
    /// the requester has made fewer rounds than [`Plan::rounds`](crate::Plan::rounds).
    Optimistic,
}

/// Which CPU does the work, and which CPUs wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Style {
    /// The requester waits for the repliers.
    Synchronous,
    /// The requester leaves; the last replier completes the operation (one prime).
    Asynchronous,
    /// The requester flushes the other CPUs' TLBs itself (two primes).
    Remote,
}

/// The time from which the new rights hold (Tzou 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Consistency {
    /// From the end of the operation on. Until then the old rights may be used, and even reappear in the entry.
    WhenDone,
    /// From the change of the entry on.
    Always,
}

macro_rules! algorithms {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $order:ident, $style:ident;)*) => {
        /// The ten algorithms of Table 3.1.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Algorithm {
            $($(#[$doc])* $variant,)*
        }

        impl Algorithm {
            /// All ten, in the order of Table 3.1.
            pub const ALL: [Self; 10] = [$(Self::$variant),*];

            /// Returns the name in Table 3.1, with its primes.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Returns the order in which the algorithm changes the entry and flushes the TLBs.
            pub const fn order(self) -> Order {
                match self { $(Self::$variant => Order::$order,)* }
            }

            /// Returns which CPU does the work.
            pub const fn style(self) -> Style {
                match self { $(Self::$variant => Style::$style,)* }
            }
        }
    };
}

algorithms! {
    /// Changes the entry, then has every CPU flush.
    PteFirst = "PTE-first", PteFirst, Synchronous;
    /// Has every CPU flush, then changes the entry. TLB misses in between load the new value.
    TlbFirst = "TLB-first", TlbFirst, Synchronous;
    /// Stops every CPU while the entry changes (Mach's shootdown).
    TwoPhase = "2-phase", TwoPhase, Synchronous;
    /// PTE-first, repeated until the entry keeps the new rights.
    Optimistic = "optimistic", Optimistic, Synchronous;
    /// PTE-first; no CPU waits for its end.
    PteFirstAsync = "PTE-first'", PteFirst, Asynchronous;
    /// TLB-first; no CPU waits for its end.
    TlbFirstAsync = "TLB-first'", TlbFirst, Asynchronous;
    /// Optimistic; no CPU waits for its end.
    OptimisticAsync = "optimistic'", Optimistic, Asynchronous;
    /// PTE-first; the requester flushes the other CPUs' TLBs.
    PteFirstRemote = "PTE-first''", PteFirst, Remote;
    /// TLB-first; the requester flushes the other CPUs' TLBs.
    TlbFirstRemote = "TLB-first''", TlbFirst, Remote;
    /// Optimistic; the requester flushes the other CPUs' TLBs.
    OptimisticRemote = "optimistic''", Optimistic, Remote;
}

/// Why an algorithm does not suit a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unsuitable {
    /// A status write could restore the old entry, and the algorithm would not notice.
    StatusOverwrites,
    /// The hardware would load the old entry again after the flush and before the change.
    LoadedByHardware,
    /// No CPU of this machine can flush another CPU's TLB.
    NoRemoteFlush,
    /// TLB entries are loaded by software, whose miss handler is in no [section](crate::SectionWord).
    LoadedBySoftware,
    /// Status writes may reach memory arbitrarily late, and no flush waits for them: no algorithm is correct.
    StatusNeverDrains,
    /// The write-back of a dirty cache line needs the old entry, which the algorithm changes before the flush.
    WriteBackNeedsEntry,
    /// TLB entries with the new rights set status bits by reading the old entry, and write that entry back.
    NewRightsWriteBack,
    /// Status writes may write a word back with no new bit, so the old entry may reappear in every round, and be overwritten
    /// before each check.
    RewritesSetBits,
    /// The algorithm has no such [form](crate::Form).
    NoSuchForm,
}

impl fmt::Display for Unsuitable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StatusOverwrites => {
                "status bits are not set atomically, so the new entry may be overwritten"
            }
            Self::LoadedByHardware => {
                "TLB entries are loaded by hardware, so the old entry may be loaded again"
            }
            Self::NoRemoteFlush => "no CPU can flush another one's TLB",
            Self::LoadedBySoftware => {
                "TLB entries are loaded by software, and no flush waits for another CPU's miss handler"
            }
            Self::StatusNeverDrains => "status writes under way outlive a flush",
            Self::WriteBackNeedsEntry => "a dirty cache line cannot be written back without the old entry",
            Self::NewRightsWriteBack => "entries with the new rights write status bits back non-atomically",
            Self::RewritesSetBits => {
                "status bits that are set already are written back, in any number of rounds"
            }
            Self::NoSuchForm => "the algorithm has no such form",
        })
    }
}

impl core::error::Error for Unsuitable {}

/// Whether the hardware writes status bits to an entry that has the new, lower rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LowRights {
    /// The hardware never writes the entry: the page is unmapped, or every status bit is set already and the hardware does
    /// not [write such a bit again](Hardware::rewrites_set_bits).
    NeverWriteBack,
    /// The hardware may set a status bit in the entry: the page stays readable and has a referenced bit.
    MayWriteBack,
}

impl Algorithm {
    /// Returns the time from which the new rights hold (Table 3.1).
    pub const fn consistency(self) -> Consistency {
        match self.order() {
            Order::TlbFirst | Order::TwoPhase => Consistency::Always,
            Order::PteFirst | Order::Optimistic => Consistency::WhenDone,
        }
    }

    /// Checks whether the algorithm provides its [consistency](Self::consistency) on `hardware`, for a change to rights of
    /// the kind `low`.
    ///
    /// The rules are Table 3.1's last column; two for hardware that the table does not have, whose flushes do not wait for status
    /// writes, or whose cache lines need the entry to be written back; and two that the explorer of all interleavings found:
    ///
    /// - With TLB-first, the old entry is in memory while TLB entries with the new rights are in use. A status write for
    ///   such a TLB entry may read the old entry, and write it back after the change.
    /// - The check of the optimistic algorithms can miss a reappearance of the old entry if another late write has overwritten the
    ///   old entry before the check. The number of rounds is sufficient only if each late write sets one more status bit. On
    ///   hardware that [rewrites set bits](Hardware::rewrites_set_bits) a late write may set none, so no late write of the new
    ///   entry may exist: neither from TLB entries with the new rights nor, after the first round, from stale ones. If the hardware
    ///   has only one such status bit, no stale TLB entry lacks the bit after the first round.
    ///
    /// # Errors
    ///
    /// The first of the reasons for which the algorithm does not suit the hardware.
    pub const fn suits(self, hardware: &Hardware, low: LowRights) -> Result<(), Unsuitable> {
        let overwrites = hardware.status_overwrites();
        let writes_back = matches!(low, LowRights::MayWriteBack);
        if matches!(self.style(), Style::Remote) && !hardware.remote_flush {
            return Err(Unsuitable::NoRemoteFlush);
        }
        if overwrites && !hardware.drains {
            return Err(Unsuitable::StatusNeverDrains);
        }
        match self.order() {
            Order::PteFirst | Order::TwoPhase if hardware.lines_need_entry => {
                Err(Unsuitable::WriteBackNeedsEntry)
            }
            Order::PteFirst if overwrites => Err(Unsuitable::StatusOverwrites),
            Order::TlbFirst if matches!(hardware.loader, Loader::Hardware) => {
                Err(Unsuitable::LoadedByHardware)
            }
            Order::TlbFirst if hardware.reads_entry_on_hit() && writes_back => {
                Err(Unsuitable::NewRightsWriteBack)
            }
            Order::Optimistic
                if hardware.rewrites()
                    && (writes_back
                        || hardware.reads_entry_on_hit() && hardware.bits_that_overwrite() > 1) =>
            {
                Err(Unsuitable::RewritesSetBits)
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
