//! What every software TLB cache can do.

use tlbkit_addr::{Pages, VirtAddr, Vpn};

use crate::{AsidTag, EntryLayout};

/// Forgets translations that a page table no longer gives.
///
/// **The rule.** Whenever a translation changes or goes away, name *all* its pages: of a superpage that is split,
/// unmapped or moved every page, of small pages that become a superpage likewise (a page table's
/// [`Flush`](tlbkit_addr::Flush) does). A superpage is cached unit by unit, and each of its entries gives the hardware
/// the whole of it.
///
/// **The order.** First the page table, then the hardware TLB, then these caches, with no refill and no IPC of this CPU
/// in between: a prefetch TLB records what the hardware TLB holds.
///
/// A tuple of caches forgets in each of them, and so does `&mut` of one.
pub trait Invalidate<L: EntryLayout> {
    /// Forgets these pages of one address space.
    ///
    /// Costs one set for each unit of `pages`, or one pass over the cache if that is less.
    fn invalidate_pages(&mut self, space: AsidTag<L>, pages: Pages);

    /// Forgets these pages in every address space: what a change to a page with
    /// [`Attr::GLOBAL`](tlbkit_addr::Attr::GLOBAL) needs. Costs one pass over the cache.
    fn invalidate_global(&mut self, pages: Pages);

    /// Forgets an address space. Needed before its ASID is given to another one. Costs one pass over the cache.
    fn invalidate_space(&mut self, space: AsidTag<L>);

    /// Forgets everything. Costs one pass over the cache.
    fn invalidate_all(&mut self);

    /// Forgets one page of one address space. Costs one set: at most two cache lines.
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

/// A software TLB cache of one CPU, whatever its organization.
pub trait Cache<L: EntryLayout>: Invalidate<L> {
    /// Returns what is known of `at`, and after how many probes, and counts a hit or a miss.
    fn find(&mut self, at: VirtAddr, space: AsidTag<L>) -> Option<Hit<L::Data>>;

    /// Returns what is known of `at`, and counts and moves nothing.
    fn peek(&self, at: VirtAddr, space: AsidTag<L>) -> Option<L::Data>;

    /// Remembers the translation of the unit around `at`, in place of what was known of it.
    ///
    /// May push out any other entry. An address for which the tag has no room is not remembered.
    fn fill(&mut self, at: VirtAddr, space: AsidTag<L>, data: L::Data);

    /// Returns the counters.
    fn count(&self) -> &L::Count;
}

/// A hit, and what it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit<D> {
    /// The datum that was filled in.
    pub data: D,
    /// How many slots were compared, 1 for the first.
    pub probes: usize,
}
