//! The flush that a kernel executes: addresses, and no page numbers.

use tlbkit_addr::{FlushScope, PageSize, VirtAddr, WalkCache};
use tlbkit_pagetable::Geometry;
use tlbkit_pagetable::format::Format;

use crate::{Base, Machine};

/// The translations that [`Kernel::flush`](crate::Kernel::flush) removes from a CPU's TLB.
///
/// It knows the machine's page size, and which flush evicts links: it names addresses, which mean the same with every granule.
#[derive(Clone, Copy, Debug)]
pub struct Flush<'f> {
    named: &'f tlbkit_addr::Flush,
    base: PageSize,
    cache: WalkCache,
    most: usize,
}

impl<'f> Flush<'f> {
    /// Returns a flush of a machine's translations, of pages of 4 KiB that `named` counts: for a kernel that calls its own
    /// [`flush`](crate::Kernel::flush).
    #[inline(always)]
    pub const fn of<M: Machine<Base = Base<12>>>(named: &'f tlbkit_addr::Flush) -> Self {
        Self::counted::<M>(named)
    }

    /// Returns a flush of a machine's translations, which `named` counts in the machine's base pages.
    #[inline(always)]
    pub(crate) const fn counted<M: Machine>(named: &'f tlbkit_addr::Flush) -> Self {
        Self { named, base: M::Geometry::BASE, cache: M::Format::WALK_CACHE, most: M::BY_ADDRESS }
    }

    /// Returns the address of each page to flush, one at a time. Returns `None` if the flush must name no address: it is of the whole
    /// address space, it has more than [`Machine::BY_ADDRESS`] pages, a link changed and the machine evicts links only without an address
    /// (RISC-V), or the machine has no flush by address.
    ///
    /// The address is that of the page's first byte. No page is returned twice, and none for a [`FlushScope::Barrier`]. A page larger
    /// than the machine's base page is returned as all its base pages, although one of them would be enough. Costs a few additions
    /// for each range.
    #[inline(always)]
    pub fn by_address(&self) -> Option<impl Iterator<Item = VirtAddr> + Clone + use<'f>> {
        self.by_address_up_to(self.most)
    }

    /// Returns what [`by_address`](Self::by_address) returns, with a limit of `most` pages in place of [`Machine::BY_ADDRESS`]: for a
    /// kernel that knows from how many pages on a flush of everything costs its cores less than single ones.
    #[inline(always)]
    pub fn by_address_up_to(&self, most: usize) -> Option<impl Iterator<Item = VirtAddr> + Clone + use<'f>> {
        let base = self.base;
        Some(self.named.by_address(self.cache, most)?.map(move |page| page.address(base)))
    }

    /// Tells whether links changed that hardware may have cached, so that a flush of only leaf entries is not enough.
    #[inline(always)]
    pub const fn links(&self) -> bool {
        self.named.links()
    }

    /// Returns the scope of the flush.
    #[inline(always)]
    pub const fn scope(&self) -> FlushScope {
        self.named.scope()
    }

    /// Tells whether the whole address space is to be flushed.
    #[inline(always)]
    pub const fn is_all(&self) -> bool {
        self.named.is_all()
    }
}
