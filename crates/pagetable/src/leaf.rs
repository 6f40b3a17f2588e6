//! Leaf entries, decoded.

use core::fmt;

use tlbkit_addr::{Attr, PageSize, Pfn, PhysAddr, VirtAddr};

use crate::Run;

/// A mapped page, as a lookup finds it.
///
/// `F` numbers frames: a table counts them in its base pages ([`Pfn`]). A type that knows the size of its frames can take its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf<F = Pfn> {
    /// The first address of the page.
    pub at: VirtAddr,
    /// The page's size.
    pub size: PageSize,
    /// The first frame of the page, in base frames.
    pub frame: F,
    /// The rights, cacheability and status bits.
    pub attr: Attr,
}

impl Leaf {
    /// Returns the physical address of `at`, which is an address in the page. `base` is the table's base page size, in which
    /// frames are counted.
    #[inline]
    pub fn phys(&self, at: VirtAddr, base: PageSize) -> PhysAddr {
        phys(self.frame, self.size, at, base)
    }

    /// Returns the part of the page that is the base page of `at`, which is an address in the page: its address and its own frame.
    /// `base` is the table's base page size.
    #[inline(always)]
    #[must_use]
    pub fn part(&self, at: VirtAddr, base: PageSize) -> Self {
        let at = VirtAddr::new(at.get() & !base.mask());
        Self { at, size: base, frame: self.phys(at, base).pfn(base), attr: self.attr }
    }

    /// Returns the frames of the page. `base` is the table's base page size.
    #[inline(always)]
    pub fn run(&self, base: PageSize) -> Run {
        let len = self.size.pages(base).unwrap_or(1);
        Run { first: self.frame, len, dirty: self.attr.contains(Attr::DIRTY) }
    }
}

/// Returns the physical address of `at`, which is an address in a page of `size` that begins at `frame`.
#[inline(always)]
pub(crate) fn phys(frame: Pfn, size: PageSize, at: VirtAddr, base: PageSize) -> PhysAddr {
    PhysAddr::new(frame.address(base).get() | at.offset(size))
}

impl<F: fmt::Display> fmt::Display for Leaf<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} page at {} -> frame {} ({:?})", self.size, self.at, self.frame, self.attr)
    }
}
