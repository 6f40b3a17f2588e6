//! The operations of every software TLB cache.

use tlbkit_addr::{Pages, VirtAddr, Vpn};

use crate::{AsidTag, EntryLayout};

/// Invalidates entries for translations that the page table no longer has.
///
/// **The rule.** When a translation changes or is removed, the kernel invalidates *all* of its pages: every page of a
/// superpage that is split, unmapped or moved, and every page of small pages that become a superpage. A page table's
/// [`Flush`](tlbkit_addr::Flush) names all of them. A superpage is cached unit by unit, and each of its entries gives the
/// hardware the translation of the whole superpage.
///
/// **The order.** The kernel changes the page table first, then flushes the hardware TLB, then invalidates these caches.
/// This CPU does no refill and no IPC in between, because a prefetch TLB records entries that the hardware TLB holds.
///
/// An invalidation of a tuple of caches applies to each of them.
pub trait Invalidate<L: EntryLayout> {
    /// Invalidates the entries of these pages in one address space.
    ///
    /// Costs one access to a set for each unit of `pages`, or one pass over the cache if that is cheaper.
    fn invalidate_pages(&mut self, space: AsidTag<L>, pages: Pages);

    /// Invalidates the entries of these pages in every address space, as a change to a page with
    /// [`Attr::GLOBAL`](tlbkit_addr::Attr::GLOBAL) needs. Costs one pass over the cache.
    fn invalidate_global(&mut self, pages: Pages);

    /// Invalidates all entries of an address space. It is needed before another address space gets the same ASID. The time
    /// is one pass over the cache.
    fn invalidate_space(&mut self, space: AsidTag<L>);

    /// Invalidates all entries. Costs one pass over the cache.
    fn invalidate_all(&mut self);

    /// Invalidates the entry of one page in one address space. The time is one set.
    #[inline]
    fn invalidate_page(&mut self, space: AsidTag<L>, page: Vpn) {
        self.invalidate_pages(space, Pages::one(page));
    }
}

macro_rules! forward {
    ($cache:ident => $($part:expr),+) => {
        fn invalidate_pages(&mut self, space: crate::AsidTag<L>, pages: tlbkit_addr::Pages) {
            let $cache = self;
            $($part.invalidate_pages(space, pages);)+
        }
        fn invalidate_global(&mut self, pages: tlbkit_addr::Pages) {
            let $cache = self;
            $($part.invalidate_global(pages);)+
        }
        fn invalidate_space(&mut self, space: crate::AsidTag<L>) {
            let $cache = self;
            $($part.invalidate_space(space);)+
        }
        fn invalidate_all(&mut self) {
            let $cache = self;
            $($part.invalidate_all();)+
        }
    };
}
pub(crate) use forward;

impl<L: EntryLayout, C: Invalidate<L> + ?Sized> Invalidate<L> for &mut C {
    forward!(this => **this);
}

impl<L: EntryLayout, A: Invalidate<L>, B: Invalidate<L>> Invalidate<L> for (A, B) {
    forward!(this => this.0, this.1);
}

/// A software TLB cache of one CPU, of any organization.
pub trait Cache<L: EntryLayout>: Invalidate<L> {
    /// Returns the entry for `at` and the number of probes, and counts a hit or a miss.
    fn find(&mut self, at: VirtAddr, space: AsidTag<L>) -> Option<Hit<L::Data>>;

    /// Returns the datum for `at` without a count and without a move of entries.
    fn peek(&self, at: VirtAddr, space: AsidTag<L>) -> Option<L::Data>;

    /// Stores the translation of the unit around `at`, and replaces the unit's entry if there is one.
    ///
    /// The call may evict another entry. It stores nothing if the tag's word is too narrow for the address.
    fn fill(&mut self, at: VirtAddr, space: AsidTag<L>, data: L::Data);

    /// Returns the counters.
    fn count(&self) -> &L::Count;
}

/// A hit, and its cost in probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit<D> {
    /// The datum that [`Cache::fill`] stored.
    pub data: D,
    /// The number of slots that were compared: 1 for the first.
    pub probes: usize,
}
