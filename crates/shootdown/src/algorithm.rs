//! The ten algorithms of Table 3.1 by name, with what they promise and what they need.

use core::fmt;

use crate::{Hardware, Loader};

/// The order of the two halves of an update: changing the entry, and flushing the TLBs (Tzou 3.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The entry, then the TLBs.
    PteFirst,
    /// The TLBs, then the entry.
    TlbFirst,
    /// All CPUs of the address space stop, the entry changes, all flush and go on.
    TwoPhase,
    /// As PTE-first, then a look whether the entry has been overwritten, and again if so.
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

/// From when on the new rights hold (Tzou 3.1).
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

            /// Returns the name in Table 3.1, primes and all.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Returns in which order it changes the entry and flushes the TLBs.
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
    /// Has every CPU flush, then changes the entry; misses meanwhile load the new value.
    TlbFirst = "TLB-first", TlbFirst, Synchronous;
    /// Stops every CPU while the entry changes (Mach's shootdown).
    TwoPhase = "2-phase", TwoPhase, Synchronous;
    /// PTE-first, repeated until the entry stays what it should be.
    Optimistic = "optimistic", Optimistic, Synchronous;
    /// PTE-first for which no CPU waits.
    PteFirstAsync = "PTE-first'", PteFirst, Asynchronous;
    /// TLB-first for which no CPU waits.
    TlbFirstAsync = "TLB-first'", TlbFirst, Asynchronous;
    /// Optimistic for which no CPU waits.
    OptimisticAsync = "optimistic'", Optimistic, Asynchronous;
    /// PTE-first by one CPU alone.
    PteFirstRemote = "PTE-first''", PteFirst, Remote;
    /// TLB-first by one CPU alone.
    TlbFirstRemote = "TLB-first''", TlbFirst, Remote;
    /// Optimistic by one CPU alone.
    OptimisticRemote = "optimistic''", Optimistic, Remote;
}

/// Why an algorithm does not suit a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unsuitable {
    /// A status write could put the old entry back unnoticed.
    StatusOverwrites,
    /// The hardware would reload the old entry behind the algorithm's back.
    LoadedByHardware,
    /// No CPU can flush another one's TLB here.
    NoRemoteFlush,
    /// Status writes may land arbitrarily late, and no flush waits for them: no software helps.
    StatusNeverDrains,
    /// Flushing a dirty cache line puts the old entry back.
    WriteBackNeedsEntry,
    /// The new rights allow entries that write status bits back, by reading the old entry.
    NewRightsWriteBack,
    /// Status writes may add no bit to what they write back, so the old entry may come back in every round, and be
    /// covered up before each check.
    RewritesSetBits,
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
            Self::StatusNeverDrains => "status writes under way outlive a flush",
            Self::WriteBackNeedsEntry => "a dirty cache line cannot be written back without the old entry",
            Self::NewRightsWriteBack => "entries with the new rights write status bits back non-atomically",
            Self::RewritesSetBits => {
                "status bits that are set already are written back, in any number of rounds"
            }
        })
    }
}

impl core::error::Error for Unsuitable {}

/// What the hardware does with an entry that has the new, lower rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LowRights {
    /// It never writes it back: the page is unmapped, or every status bit is set already, by hardware that does not
    /// [write such a bit again](Hardware::rewrites_set_bits).
    NeverWriteBack,
    /// It may set a status bit in it: the page stays readable and has a referenced bit.
    MayWriteBack,
}

impl Algorithm {
    /// Returns from when on the new rights hold (Table 3.1).
    pub const fn consistency(self) -> Consistency {
        match self.order() {
            Order::TlbFirst | Order::TwoPhase => Consistency::Always,
            Order::PteFirst | Order::Optimistic => Consistency::WhenDone,
        }
    }

    /// Checks whether the algorithm keeps its promise on `hardware`, for a change to rights of the kind `low`.
    ///
    /// It is Table 3.1's last column, and what the explorer adds to it. TLB-first leaves the old entry in memory while
    /// entries with the new rights are in use, so a status write that reads the old entry for one of those puts it back
    /// later. A check of optimistic proves something where nothing covers the old entry up, or where each late write of the
    /// old entry uses a status bit up. On hardware that [rewrites set bits](Hardware::rewrites_set_bits) the second does not
    /// hold, so the new rights must never be written back: not by copies of the new entry, nor, after the first round, by
    /// stale copies, of which none lacks a bit then if there is only one.
    ///
    /// # Errors
    ///
    /// What stands in the way; the first of the reasons where there are several.
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
