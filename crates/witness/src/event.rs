//! The events of a log: each is an action of one CPU that concerns translations.

/// The largest number of CPUs in a log.
pub const CPUS: usize = 64;

/// An event of one CPU. An address is a physical byte address unless its field says that it is virtual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A store to a word of a table.
    Write {
        /// The word's physical address.
        at: u64,
        /// The value that was stored.
        value: u64,
    },
    /// An atomic exchange of a word of a table: status bits that hardware has set are in `old`.
    Swap {
        /// The word's physical address.
        at: u64,
        /// The value that the exchange returned.
        old: u64,
        /// The value that was stored.
        new: u64,
    },
    /// The root register was loaded.
    Root {
        /// The register's value: `satp`, `CR3`, `TTBR0_EL1` or `TTBR1_EL1`; on MIPS32, which has none,
        /// the root node's address with the ASID in its low 8 bits.
        value: u64,
        /// Whether the register is `TTBR1_EL1`, AArch64's root register of the upper half.
        high: bool,
    },
    /// The CPU executed an invalidation of its own TLB, or of the TLBs of all CPUs.
    Fence(Fence),
    /// The CPU executed a barrier.
    Barrier(Barrier),
    /// Memory for a node of a table was taken and filled with zeros, or was given back.
    Node(Memory),
    /// Memory for data was taken, or was given back: the kernel may use it for another purpose after this event.
    Frame(Memory),
    /// An interrupt was sent. The sender's earlier stores are visible to the CPU that takes the interrupt.
    IpiSend {
        /// The CPUs to which the interrupt was sent, one bit each.
        cpus: u64,
        /// The interrupt's identifier.
        id: u64,
    },
    /// An interrupt was taken.
    IpiTake {
        /// The identifier with which the interrupt was sent.
        id: u64,
    },
    /// A change begins that takes rights or pages away.
    Lower {
        /// The change's identifier.
        id: u64,
        /// The first virtual address of the change's range.
        first: u64,
        /// The last virtual address of the change's range.
        last: u64,
        /// The root of the table in which the change is made, as a value of [`Root`](Self::Root); `None` for the table that the
        /// CPU has loaded.
        root: Option<u64>,
    },
    /// The kernel promises that a change is in force on every CPU.
    Done {
        /// The identifier of the change's [`Lower`](Self::Lower).
        id: u64,
    },
    /// A walk of a page table by software begins on this CPU. It ends before the CPU's next walk begins.
    WalkBegin {
        /// The root of the table, as a value of [`Root`](Self::Root) with any ASID.
        root: u64,
        /// Whether the CPU uses what it finds before the walk ends. Otherwise only the nodes have to stay.
        uses: bool,
    },
    /// The walk ends.
    WalkEnd,
    /// An access, and the result that it must have.
    Access {
        /// The virtual address.
        at: u64,
        /// The kind of the access.
        kind: Access,
        /// Whether the CPU was in user mode.
        user: bool,
        /// The physical address that the access must reach, or `None` if the access must fault.
        reaches: Option<u64>,
    },
    /// MIPS32: software wrote a pair of pages to the CPU's TLB, under the ASID that the CPU runs.
    Refill {
        /// A virtual address in the pair.
        at: u64,
        /// The values of `EntryLo0` and `EntryLo1`.
        words: [u64; 2],
        /// The size of one page in bytes, which `PageMask` holds.
        bytes: u64,
        /// Whether neither a miss nor a probe has shown that the TLB has no entry there.
        blind: bool,
    },
    /// Hardware sets the accessed and dirty bits after this event, and the kernel relies on them.
    UsesDirty,
    /// MIPS32: refill handlers load a page of more than 4 KiB by a pair within it, and never in one entry with its neighbour.
    UsesHalves,
    /// AArch64, `TCR_EL1.A1`: one root register has the ASID of both halves.
    UsesAsid {
        /// Whether it is `TTBR1_EL1`, the register of the upper half: A1 is 1.
        high: bool,
    },
    /// A recorder had no room for the next event. The log does not tell what happened afterwards.
    Full,
    /// The next event has a number and is not in the record. The log does not tell what this event was, or what happened afterwards.
    Gap,
}

/// An invalidation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fence {
    /// The first and last virtual address that the invalidation names, or `None` if it names no address.
    pub pages: Option<(u64, u64)>,
    /// The ASID that the invalidation names, or `None` if it names no ASID.
    pub asid: Option<u16>,
    /// Whether the invalidation covers leaf entries only: cached links stay.
    pub leaf: bool,
    /// Whether the invalidation reaches every CPU.
    pub broadcast: bool,
}

/// A range of physical memory that changes hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The physical address.
    pub at: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// Whether the memory was given back, not taken.
    pub free: bool,
}

/// A barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// Stores before the barrier are visible before stores after it: `fence w,w`, a store-release, `dmb ishst`.
    Release,
    /// Stores before the barrier are visible to every CPU when it has completed: `fence rw,rw`, `mfence`, `dsb ish`, `sync`.
    ///
    /// On AArch64 (`dsb ish`) the CPU's earlier invalidations are complete then, too.
    Complete,
    /// AArch64's `isb`: a context synchronisation event. The CPU fetches later instructions again.
    Context,
    /// AArch64's `dsb ishst`: stores before the barrier are visible to every CPU's walks when it has completed. It completes no
    /// invalidation.
    Stores,
    /// AArch64's `dsb nsh`: the CPU's own walks see its stores before the barrier, and the invalidations that the CPU executed for
    /// itself alone are complete.
    Local,
    /// AArch64's `dsb nshst`: the CPU's own walks see its stores before the barrier. It completes no invalidation.
    LocalStores,
    /// x86-64's `tlbsync`: the CPU's broadcast invalidations are complete.
    TlbSync,
}

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A load.
    Load,
    /// A store.
    Store,
    /// An instruction fetch.
    Fetch,
}
