//! What a log consists of: what a CPU did that concerns translations.

/// The most CPUs that a log speaks of.
pub const CPUS: usize = 64;

/// An event of one CPU. Addresses are physical byte addresses unless they are called virtual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A store to a word of a table.
    Write {
        /// The word's physical address.
        at: u64,
        /// What it holds from here on.
        value: u64,
    },
    /// An atomic exchange of a word of a table: status bits that hardware has set are in `old`.
    Swap {
        /// The word's physical address.
        at: u64,
        /// What came out.
        old: u64,
        /// What the word holds from here on.
        new: u64,
    },
    /// The root register was loaded.
    Root {
        /// The register's value: `satp`, `CR3`, `TTBR0_EL1` or `TTBR1_EL1`; on MIPS32, which has none,
        /// the root node's address with the ASID in its low 8 bits.
        value: u64,
        /// Tells that the register is AArch64's second one, that of the upper half.
        high: bool,
    },
    /// The CPU executed an invalidation of its own TLB, or of every CPU's.
    Fence(Fence),
    /// The CPU executed a barrier.
    Barrier(Barrier),
    /// Memory for a node of a table was taken and filled with zeros, or was given back.
    Node(Memory),
    /// Memory for data was taken, or was given back: from here on it may be used for something else.
    Frame(Memory),
    /// An interrupt was sent. What the sender stored before is visible to the CPU that takes it.
    IpiSend {
        /// The CPUs that it was sent to, one bit each.
        cpus: u64,
        /// Names the interrupt.
        id: u64,
    },
    /// An interrupt was taken.
    IpiTake {
        /// The name that it was sent under.
        id: u64,
    },
    /// A change begins that takes rights or pages away.
    Lower {
        /// Names the change.
        id: u64,
        /// The first virtual address that it concerns.
        first: u64,
        /// The last virtual address that it concerns.
        last: u64,
        /// The root of the table that it is made in, as [`Root`](Self::Root) has it, or none if the CPU has loaded it.
        root: Option<u64>,
    },
    /// The change is promised to be in force on every CPU.
    Done {
        /// The name under which it began.
        id: u64,
    },
    /// An access, with what it must do.
    Access {
        /// The virtual address.
        at: u64,
        /// What is done there.
        kind: Access,
        /// Tells that it is done in user mode.
        user: bool,
        /// The physical address that it must reach, or none if it must fault.
        reaches: Option<u64>,
    },
    /// MIPS32: software wrote a pair of pages in the CPU's TLB, under the ASID that the CPU runs.
    Refill {
        /// A virtual address in the pair.
        at: u64,
        /// What was written to `EntryLo0` and to `EntryLo1`.
        words: [u64; 2],
        /// The size of one page in bytes, as `PageMask` says it.
        bytes: u64,
        /// Tells that nothing said that the TLB had no entry there: neither a miss nor a probe.
        blind: bool,
    },
    /// From here on hardware sets the accessed and dirty bits, and the kernel relies on them.
    UsesDirty,
    /// MIPS32: refill handlers load a page of more than 4 KiB by a pair within it, and never together with the one beside it.
    UsesHalves,
    /// AArch64, `TCR_EL1.A1`: one root register has the ASID of both halves.
    UsesAsid {
        /// Tells that it is the second one, that of the upper half: A1 is 1.
        high: bool,
    },
    /// A recorder had no room for the next event: nothing is known of what follows.
    Full,
    /// The next event has a number and is not in the record: nothing is known of it, or of what follows.
    Gap,
}

/// An invalidation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fence {
    /// The first and last virtual address that it names, or none if it names none.
    pub pages: Option<(u64, u64)>,
    /// The address space that it names, or none if it names none.
    pub asid: Option<u16>,
    /// Tells that it names the last level alone: cached links stay.
    pub leaf: bool,
    /// Tells that it reaches every CPU.
    pub broadcast: bool,
}

/// A range of physical memory that changes hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The physical address.
    pub at: u64,
    /// How many bytes.
    pub bytes: u64,
    /// Tells that it was given back, not taken.
    pub free: bool,
}

/// A barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// Stores before it are seen before stores after it: `fence w,w`, a store-release, `dmb ishst`.
    Release,
    /// Stores before it are visible to every CPU when it has completed: `fence rw,rw`, `mfence`, `dsb ish`,
    /// `sync`.
    ///
    /// On AArch64, `dsb ish`: what the CPU invalidated before it has been invalidated, too.
    Complete,
    /// AArch64's `isb`: what the CPU has begun to execute is begun anew.
    Context,
    /// AArch64's `dsb ishst`: stores before it are visible to every CPU's walks when it has completed. It completes no invalidation.
    Stores,
    /// AArch64's `dsb nsh`: the CPU's own walks see its stores before it, and what the CPU invalidated for itself has been
    /// invalidated.
    Local,
    /// AArch64's `dsb nshst`: the CPU's own walks see its stores before it. It completes no invalidation.
    LocalStores,
    /// x86-64's `tlbsync`: what the CPU invalidated by broadcast has been invalidated.
    TlbSync,
}

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A load.
    Load,
    /// A store.
    Store,
    /// An instruction fetch.
    Fetch,
}
