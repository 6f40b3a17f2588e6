//! Splitting a page into smaller ones, and promoting small ones to a larger.
//!
//! Both are an insertion that replaces pages: a new leaf or subtree, which maps the same frames in pages of the other size, takes
//! the slot of the old one.
//!
//! If the hardware requires break before make ([`Format::BREAK`]), the writer builds the new subtree, empties the PTEs of the old
//! one, flushes every TLB, and then links the new subtree with one store.

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, Flush, FlushScope, PageSize, Pages, Pfn, VirtAddr, Vpn};

use super::guard::low;
use super::job::{Job, Order, Ptes};
use super::node::{Slot, View, Writing};
use super::shape::Shape;
use super::visit::Span;
use crate::dry_run::{Leaves, STATUS, check_resize};
use crate::format::Format;
use crate::pairs::stale;
use crate::{Error, Leaf};

impl<'w, T: Shape> Writing<'w, '_, T> {
    /// See [`Table::resize`](crate::Table::resize).
    ///
    /// # Safety
    ///
    /// If the format breaks, nothing that runs until the call returns needs the pages.
    pub(super) unsafe fn resize(
        mut self,
        pages: Pages,
        to: PageSize,
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) -> Result<(), Error> {
        let Some(stale) = self.stale_by_resize(pages, to)? else { return Ok(()) };
        // Lookups find the old leaves until the new ones are linked.
        self.insert_span(T::span(pages), Order::new(to, Ptes::Resized(to), flush_all_cpus))?;
        self.touch(FlushScope::Everywhere, stale);
        Ok(())
    }

    /// Break before make: empties the PTEs of a slot's subtree that map the pages of a span with another size, and flushes those pages
    /// on every CPU. The subtree that replaces them is complete, and not linked yet.
    #[inline(never)]
    pub(super) fn break_old<const REAL: bool>(
        &self,
        job: &mut Job<'_, 'w, T, REAL>,
        slot: Slot<'w, T>,
        span: Span,
    ) {
        if !T::F::BREAK || !job.replaces {
            return;
        }
        // A span holds the first byte of its last page, which smaller pages may map now.
        let span = Span { first: span.first, last: span.last | low(job.page) & !low(T::BASE) };
        let page = job.page;
        let mut tell = |(base, bits): (usize, u32)| {
            let at = |key| VirtAddr::new(T::address(key)).vpn(T::PAGE);
            if let Some(piece) = Pages::new(at(base), at(base | low(bits))) {
                let piece = stale::<T::G, T::F>(piece, |_| PageSize::from_shift(bits));
                let mut flush = Flush::none();
                flush.add(FlushScope::Everywhere, piece);
                (job.flush_all_cpus)(&flush);
            }
        };
        let mut piece = None;
        let _ = self.sweep(slot, span, &mut |pte, _| {
            let shift = pte.leaf().shift;
            if shift != page {
                let bits = shift.max(page);
                let now = (pte.at() & !low(bits), bits);
                if let Some(done) = piece.replace(now).filter(|&before| before != now) {
                    tell(done);
                }
                pte.publish(T::ZERO);
            }
            ControlFlow::Continue(())
        });
        if let Some(done) = piece {
            tell(done);
        }
    }
}

impl<T: Shape> Leaves for View<'_, T> {
    type G = T::G;
    type F = T::F;

    fn leaf_at(self, at: VirtAddr) -> Option<Leaf> {
        self.find(at.get())
    }

    fn each_leaf_of(self, pages: Pages, visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>) {
        let _ = self.visit(T::span(pages), visit);
    }
}

impl<T: Shape> View<'_, T> {
    /// Checks that pages can be resized. Returns the pages whose translations become stale, or `None` if all pages have this size.
    #[inline(never)]
    fn stale_by_resize(self, pages: Pages, to: PageSize) -> Result<Option<Pages>, Error> {
        T::SPACE.check_sized(pages, to)?;
        let mut changes = false;
        check_resize(self, pages, to, |_| changes = true)?;
        let size = |page: Vpn| self.leaf_at(page.address(T::PAGE)).map(|leaf| leaf.size.max(to));
        Ok(changes.then(|| stale::<T::G, T::F>(pages, size)))
    }

    /// Returns the union of the attributes of all pages of a span. Finds each leaf by a walk from the root, because a path would
    /// add to the stack of the functions that fill new nodes, which call this.
    fn attributes(self, span: Span) -> Attr {
        let (mut attr, mut at) = (Attr::empty(), span.first);
        while let Some(pte) = self.seek(T::address(at)) {
            let leaf = pte.leaf();
            // Smaller pages, which have leaves of their own, may have replaced the other page of a pair.
            let end = at | low(if T::PAIRS { leaf.shift } else { leaf.top() });
            for pte in leaf.ptes(Span { first: at, last: end.min(span.last) }) {
                let word = pte.read();
                if T::F::is_leaf(word, true) {
                    attr |= T::F::attr(word, true);
                }
            }
            match end.checked_add(1).filter(|&next| next <= span.last) {
                Some(next) => at = next,
                None => break,
            }
        }
        attr
    }

    /// Returns the PTE of size `to` for the page at `key`, computed from the leaf that maps it now.
    #[inline(never)]
    pub(super) fn resized_pte(self, key: usize, to: PageSize) -> T::W {
        let Some(leaf) = self.find(T::address(key)) else { return T::ZERO };
        let offset = T::address(key) - leaf.at.get();
        let frame = Pfn::new(leaf.frame.get() + (offset >> T::BASE));
        let mut attr = leaf.attr;
        if leaf.size < to {
            let span = Span { first: key, last: key | low(to.shift()) & !low(T::BASE) };
            attr |= self.attributes(span) & STATUS;
        }
        // The format can encode this leaf: `check_resize` has checked that for a larger page, and a smaller page has the attributes
        // of the page that is split and some of its frames.
        T::F::leaf(frame, to, attr, true).unwrap_or(T::ZERO)
    }
}
