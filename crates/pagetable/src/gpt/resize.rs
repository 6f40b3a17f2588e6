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
use crate::format::Format;
use crate::pairs::stale;
use crate::{Error, Leaf};

/// The status bits of a leaf. Pages that differ only in these can be promoted to one page.
const STATUS: Attr = Attr::ACCESSED.union(Attr::DIRTY);

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
        let Some(stale) = self.check_resize(pages, to)? else { return Ok(()) };
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

impl<T: Shape> View<'_, T> {
    /// Checks that pages can be resized. Returns the pages whose translations become stale, or `None` if all pages have this size.
    #[inline(never)]
    fn check_resize(self, pages: Pages, to: PageSize) -> Result<Option<Pages>, Error> {
        T::SPACE.check_sized(pages, to)?;
        let mut changes = false;
        self.each_piece(pages, to, |piece, leaf| {
            changes |= leaf.size != to;
            if leaf.size > to {
                return T::SPACE.check_whole(leaf, pages);
            }
            if leaf.size < to { self.check_uniform(piece, leaf, to) } else { Ok(()) }
        })?;
        let size = |page: Vpn| self.find(page.address(T::PAGE).get()).map(|leaf| leaf.size.max(to));
        Ok(changes.then(|| stale::<T::G, T::F>(pages, size)))
    }

    /// Divides a range into pieces and passes each to `visit`, with its first leaf. A piece is a leaf larger than `to`, or the
    /// pages that one page of size `to` will replace.
    fn each_piece(
        self,
        pages: Pages,
        to: PageSize,
        mut visit: impl FnMut(Pages, Leaf) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut first = pages.first();
        loop {
            let at = first.address(T::PAGE);
            let leaf = self.find(at.get()).ok_or(Error::NotMapped { at })?;
            let size = leaf.size.max(to);
            let piece = T::SPACE.pages_of(&Leaf { at: at.align_down(size), size, ..leaf });
            visit(piece, leaf)?;
            if piece.last() >= pages.last() {
                return Ok(());
            }
            first = Vpn::new(piece.last().get() + 1);
        }
    }

    /// Checks that the frames of a piece are contiguous and its leaves have the same rights.
    fn check_uniform(self, piece: Pages, first: Leaf, to: PageSize) -> Result<(), Error> {
        if !first.frame.is_aligned(to, T::PAGE) {
            return Err(Error::NotUniform { at: first.at });
        }
        T::F::leaf(first.frame, to, first.attr, true)?;
        let mut seen = 0;
        let mut outcome = Ok(());
        let _ = self.visit(T::span(piece), &mut |leaf| {
            let offset = leaf.at.vpn(T::PAGE).get() - piece.first().get();
            if offset != seen {
                return ControlFlow::Break(());
            }
            if leaf.frame.get() != first.frame.get() + offset
                || leaf.attr.difference(STATUS) != first.attr.difference(STATUS)
            {
                outcome = Err(Error::NotUniform { at: leaf.at });
                return ControlFlow::Break(());
            }
            seen += T::SPACE.pages_of(&leaf).len();
            ControlFlow::Continue(())
        });
        outcome?;
        if seen == piece.len() {
            Ok(())
        } else {
            Err(Error::NotMapped { at: Vpn::new(piece.first().get() + seen).address(T::PAGE) })
        }
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
        // The format can encode this leaf: `check_uniform` has checked that for a larger page, and a smaller page has the attributes
        // of the page that is split and some of its frames.
        T::F::leaf(frame, to, attr, true).unwrap_or(T::ZERO)
    }
}
