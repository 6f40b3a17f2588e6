//! What a miss costs, in cycles of the 40 MHz R3000: thesis, Tables 2.1 and 3.2, sections 3.1.5, 3.2.1 and 4.3.1.

use super::level::Level;

/// The R3000 as the thesis measured it.
///
/// Two cells contradict each other. An L3 miss under plain Mach is 407 cycles in Table 2.1 and 338 in Table 3.2, where
/// 338 is what Table 2.1 gives for a TLB-invalid miss, and so is the 408 of an L3 miss that the STLB misses as well
/// (338 + 70). Table 2.1 is used, and 407 + 70.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    /// L1U, page table entry in the processor's cache.
    pub(crate) l1u_cached: u64,
    /// L1U, page table entry not in the processor's cache: "30-40".
    pub(crate) l1u_uncached: u64,
    pub(crate) l1k: u64,
    pub(crate) l2: u64,
    pub(crate) l3: u64,
    /// A hit in the STLB on an L1K or L3 miss.
    pub(crate) hit: u64,
    /// A hit on an L2 miss taken in user mode ("Path 1"), and in kernel mode ("Path 2").
    pub(crate) hit_l2_user: u64,
    pub(crate) hit_l2_kernel: u64,
    /// What an STLB miss adds to the generic handler.
    pub(crate) stlb_miss: u64,
    /// What each further way adds, to a hit in it or to a miss: 170 cycles for the second way less 105 for the first.
    /// For the third and fourth this is an extrapolation.
    pub(crate) way: u64,
    /// What each victim adds. An extrapolation: load, compare and branch of one entry in the processor's cache, after
    /// `way` cycles for turning to the victims at all.
    pub(crate) victim: u64,
    /// What the STLB's branch adds to every system call, and to the rarer traps (which the model takes none of).
    pub(crate) syscall: u64,
    /// Prefetching an entry, and finding that the TLB holds it.
    pub(crate) prefetch: u64,
    pub(crate) probe: u64,
    /// The kernel's part of one message: the middle of "3500-4000 cycles".
    pub(crate) ipc: u64,
    /// A user's access to a word: one cycle and a cache miss of 24 (thesis 5.4).
    pub(crate) word: u64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            l1u_cached: 10,
            l1u_uncached: 35,
            l1k: 512,
            l2: 555,
            l3: 407,
            hit: 105,
            hit_l2_user: 114,
            hit_l2_kernel: 160,
            stlb_miss: 70,
            way: 65,
            victim: 10,
            syscall: 4,
            prefetch: 60,
            probe: 25,
            ipc: 3750,
            word: 25,
        }
    }
}

impl Costs {
    /// Returns the cost of a kernel miss that the generic handler resolves.
    pub(crate) fn generic(&self, level: Level) -> u64 {
        match level {
            Level::L1K => self.l1k,
            Level::L2 { .. } => self.l2,
            Level::L3 => self.l3,
        }
    }

    /// Returns the cost of a kernel miss that the STLB resolves after this many cycles of further search.
    pub(crate) fn hit(&self, level: Level, search: u64) -> u64 {
        search
            + match level {
                Level::L1K | Level::L3 => self.hit,
                Level::L2 { in_kernel: false } => self.hit_l2_user,
                Level::L2 { in_kernel: true } => self.hit_l2_kernel,
            }
    }
}
