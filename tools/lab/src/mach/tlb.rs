//! The R3000's TLB as Mach divides it: 56 entries replaced at random, 8 for L2 first in, first out.

use tlbkit_addr::VirtAddr;
use tlbkit_stlb::{AsidTag, EntryLayout, Probe};

use super::rng::Rng;

const UPPER: usize = 56;
const LOWER: usize = 8;
const NOTHING: u64 = u64::MAX;

/// A TLB entry's tag: an address space (0 for the kernel's, which every process shares) and a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Page(u64);

impl Page {
    pub(crate) fn of_kernel(page: usize) -> Self {
        Self(page as u64)
    }

    pub(crate) fn of_user(process: usize, page: usize) -> Self {
        Self((process as u64 + 1) << 32 | page as u64)
    }
}

/// What the TLB remembers of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loaded {
    pub(crate) data: u64,
    /// Loaded ahead of its use, and not used yet.
    pub(crate) ahead: bool,
}

/// Fully associative, so searched from end to end; the tags lie together to make that quick.
#[derive(Debug)]
pub(crate) struct Tlb {
    tags: [u64; UPPER + LOWER],
    entries: [Loaded; UPPER + LOWER],
    next_lower: usize,
    random: Rng,
}

impl Tlb {
    pub(crate) fn new(random: Rng) -> Self {
        let entries = [Loaded { data: 0, ahead: false }; UPPER + LOWER];
        Self { tags: [NOTHING; UPPER + LOWER], entries, next_lower: 0, random }
    }

    fn position(&self, page: Page) -> Option<usize> {
        self.tags.iter().position(|&tag| tag == page.0)
    }

    /// Returns the entry of `page`.
    pub(crate) fn lookup(&mut self, page: Page) -> Option<&mut Loaded> {
        self.position(page).map(|at| &mut self.entries[at])
    }

    /// Loads an entry into the partition for L2 or into the other, and returns the one that had to leave.
    pub(crate) fn load(&mut self, page: Page, is_l2: bool, loaded: Loaded) -> Option<(Page, u64)> {
        assert!(self.position(page).is_none(), "two entries that match are a machine check");
        let slot = if is_l2 {
            self.next_lower = (self.next_lower + 1) % LOWER;
            UPPER + self.next_lower
        } else {
            self.random.below(UPPER)
        };
        let old = (Page(self.tags[slot]), self.entries[slot].data);
        self.tags[slot] = page.0;
        self.entries[slot] = loaded;
        (old.0.0 != NOTHING).then_some(old)
    }

    /// Drops what matches.
    pub(crate) fn flush(&mut self, stale: impl Fn(Page) -> bool) {
        for tag in &mut self.tags {
            if *tag != NOTHING && stale(Page(*tag)) {
                *tag = NOTHING;
            }
        }
    }
}

impl Page {
    /// Returns the page number if this is a page of the kernel.
    pub(crate) fn in_kernel(self) -> Option<usize> {
        (self.0 >> 32 == 0).then_some(self.0 as usize)
    }

    pub(crate) fn is_of(self, process: usize) -> bool {
        self.0 >> 32 == process as u64 + 1
    }
}

/// Software caches hold pages of the kernel only.
impl<L: EntryLayout<Data = u64>> Probe<L> for Tlb {
    fn probe(&mut self, at: VirtAddr, _: AsidTag<L>) -> Option<u64> {
        self.lookup(Page::of_kernel(at.get() >> 12)).map(|entry| entry.data)
    }
}
