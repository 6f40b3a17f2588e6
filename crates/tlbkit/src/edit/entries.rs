//! What an edit finds in the table: leaves, marks and holes.

use core::ops::ControlFlow;

use tlbkit_addr::{Pages, VirtAddr, Vpn};
use tlbkit_pagetable::{Entry, Error, Leaf, Pinned, Space, Table as _};

use super::Edit;
use crate::block::Handle;
use crate::counted::counted;
use crate::{Kernel, PagesOf};

impl<K: Kernel, const CPUS: usize> Edit<'_, K, CPUS> {
    /// Returns the leaf that maps `at`.
    #[inline(never)]
    pub(super) fn find(&self, at: VirtAddr) -> Option<Leaf> {
        self.walk(Pages::one(at.vpn(self.space.base())), |pinned| self.space.table.lookup(pinned, at))
    }

    /// Calls `walk`, which cannot use `self` to change anything, for a walk of the table to `pages`.
    #[inline(always)]
    pub(super) fn walk<R>(&self, pages: Pages, walk: impl FnOnce(Pinned<'_>) -> R) -> R {
        let _section = self.space.section_of_shared(pages);
        // With one CPU there is no other writer.
        let _visit =
            if CPUS == 1 || self.writer.may_write(pages) { None } else { Some(self.space.visit_beside()) };
        // SAFETY: `walk` changes nothing and serves no shootdown. This is the one writer of these pages, of those that are its own; or other
        // CPUs, which may write them, wait for this one because of the visit. The walk is in a section if it comes to shared pages. So no
        // node is freed meanwhile, neither one of the table's own nor one of the pages that it shares.
        walk(unsafe { Pinned::by(self) })
    }

    /// Returns the first address of `pages` that is in use: mapped, or marked. See
    /// [`AddressSpace::first_used`](crate::AddressSpace::first_used).
    pub fn first_used(&self, pages: PagesOf<K>) -> Option<VirtAddr> {
        let pages = counted::<K>(pages);
        let (at, _) = self.first_entry(pages)?;
        // A larger page may begin before the range.
        Some(at.max(pages.first().address(self.space.base())))
    }

    /// Returns the address of the first page of `pages` that is a hole: neither mapped nor marked. See
    /// [`AddressSpace::first_hole`](crate::AddressSpace::first_hole).
    pub fn first_hole(&self, pages: PagesOf<K>) -> Option<VirtAddr> {
        self.hole_of(counted::<K>(pages))
    }

    fn hole_of(&self, pages: Pages) -> Option<VirtAddr> {
        let mut whole = Whole::new(self.space, pages);
        let _ = self.visit_entries(pages, &mut |at, entry| whole.visit(at, entry));
        whole.hole()
    }

    /// Checks that every page of `pages` is mapped or marked.
    pub(crate) fn check_whole(&self, pages: Pages) -> Result<(), Error> {
        self.space.check_own(pages)?;
        self.hole_of(pages).map_or(Ok(()), |at| Err(Error::NotMapped { at }))
    }

    /// Returns the first page of `pages` that is mapped or marked, and what its entry holds.
    pub(super) fn first_entry(&self, pages: Pages) -> Option<(VirtAddr, Entry)> {
        let mut first = None;
        let _ = self.visit_entries(pages, &mut |at, entry| {
            first = Some((at, entry));
            ControlFlow::Break(())
        });
        first
    }

    /// Visits the leaves and marks of `pages`, in ascending order.
    pub(super) fn visit_entries(
        &self,
        pages: Pages,
        visit: &mut dyn FnMut(VirtAddr, Entry) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.walk(pages, |pinned| self.space.table.for_each_entry(pinned, pages, visit))
    }

    /// Visits the leaves that map a page of `pages`, in ascending order.
    pub(crate) fn visit(
        &self,
        pages: Pages,
        visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.visit_entries(pages, &mut |_, entry| entry.leaf().map_or(ControlFlow::Continue(()), &mut *visit))
    }
}

/// How far a range is known to be whole: in use without a hole. It visits the entries of the range in ascending order.
pub(crate) struct Whole {
    shape: Space,
    last: Vpn,
    /// The first page that is not known to be in use. `None` after the last page of all.
    next: Option<Vpn>,
}

impl Whole {
    pub(crate) fn new<K: Kernel, const CPUS: usize>(space: &Handle<K, CPUS>, pages: Pages) -> Self {
        Self { shape: space.table.space(), last: pages.last(), next: Some(pages.first()) }
    }

    /// Visits an entry, which is in use; breaks if there is a hole before it.
    pub(crate) fn visit(&mut self, at: VirtAddr, entry: Entry) -> ControlFlow<()> {
        let pages = match entry {
            Entry::Leaf(leaf) => self.shape.pages_of(&leaf),
            Entry::Mark(_) | Entry::Empty => Pages::one(at.vpn(self.shape.base())),
        };
        if self.next.is_none_or(|next| pages.first() > next) {
            return ControlFlow::Break(());
        }
        self.next = pages.last().checked_add(1);
        ControlFlow::Continue(())
    }

    /// Returns the address of the first hole, after the visit.
    pub(crate) fn hole(&self) -> Option<VirtAddr> {
        self.next.filter(|&next| next <= self.last).map(|next| next.address(self.shape.base()))
    }
}
