//! Splitting a page into smaller ones, and promoting small ones to a larger.
//!
//! Both are an insertion that replaces pages: a new leaf or subtree, which maps the same frames in pages of the other size, takes
//! the slot of the old one.
//!
//! If the hardware requires break before make ([`Format::BREAK`]), the writer builds the new subtree, empties the PTEs of the old
//! one, flushes every TLB, and then links the new subtree with one store.

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, Flush, FlushScope, PageSize, Pages, Pfn, VirtAddr, Vpn};

use super::Gpt;
use super::guard::low;
use super::job::{Job, Ptes};
use super::layout::{Edge, Layout};
use super::node_size::NodeSize;
use super::visit::Span;
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::{Error, Geometry, Leaf, Retired, Word};

/// The status bits of a leaf. Pages that differ only in these can be promoted to one page.
const STATUS: Attr = Attr::ACCESSED.union(Attr::DIRTY);

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'n, G, F, N, L, P> {
    /// See [`Table::resize`](crate::Table::resize).
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
    pub(super) unsafe fn resize_pages(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        to: PageSize,
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) -> Result<(), Error> {
        // SAFETY: the caller is the writer.
        unsafe {
            let Some(stale) = self.check_resize(pages, to)? else { return Ok(()) };
            // Lookups find the old leaves until the new ones are linked.
            self.insert_span(batch, Self::span(pages), to.shift(), true, Ptes::Resized(to), flush_all_cpus)?;
            batch.touch(FlushScope::Everywhere, stale);
            Ok(())
        }
    }

    /// Checks that pages can be resized. Returns the pages whose translations become stale, or `None` if all pages have this size.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[inline(never)]
    unsafe fn check_resize(&self, pages: Pages, to: PageSize) -> Result<Option<Pages>, Error> {
        G::SPACE.check_sized(pages, to)?;
        // SAFETY: the caller is the writer.
        unsafe {
            let mut changes = false;
            self.each_piece(pages, to, |piece, leaf| {
                changes |= leaf.size != to;
                if leaf.size > to {
                    return G::SPACE.check_whole(leaf, pages);
                }
                if leaf.size < to { self.check_uniform(piece, leaf, to) } else { Ok(()) }
            })?;
            let stale = || {
                stale::<G, F>(pages, |page| {
                    self.find(page.address(G::BASE).get()).map(|leaf| leaf.size.max(to))
                })
            };
            Ok(changes.then(stale))
        }
    }

    /// Divides a range into pieces and passes each to `visit`, with its first leaf. A piece is a leaf larger than `to`, or the
    /// pages that one page of size `to` will replace.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    unsafe fn each_piece(
        &self,
        pages: Pages,
        to: PageSize,
        mut visit: impl FnMut(Pages, Leaf) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut first = pages.first();
        loop {
            let at = first.address(G::BASE);
            // SAFETY: the caller is the writer.
            let leaf = unsafe { self.find(at.get()) }.ok_or(Error::NotMapped { at })?;
            let size = leaf.size.max(to);
            let piece = G::SPACE.pages_of(&Leaf { at: at.align_down(size), size, ..leaf });
            visit(piece, leaf)?;
            if piece.last() >= pages.last() {
                return Ok(());
            }
            first = Vpn::new(piece.last().get() + 1);
        }
    }

    /// Checks that the frames of a piece are contiguous and its leaves have the same rights.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    unsafe fn check_uniform(&self, piece: Pages, first: Leaf, to: PageSize) -> Result<(), Error> {
        if !first.frame.is_aligned(to, G::BASE) {
            return Err(Error::NotUniform { at: first.at });
        }
        F::leaf(first.frame, to, first.attr, true)?;
        let mut seen = 0;
        let mut outcome = Ok(());
        // SAFETY: the caller is the writer.
        let _ = unsafe {
            self.visit(Self::span(piece), &mut |leaf| {
                let offset = leaf.at.vpn(G::BASE).get() - piece.first().get();
                if offset != seen {
                    return ControlFlow::Break(());
                }
                if leaf.frame.get() != first.frame.get() + offset
                    || leaf.attr.difference(STATUS) != first.attr.difference(STATUS)
                {
                    outcome = Err(Error::NotUniform { at: leaf.at });
                    return ControlFlow::Break(());
                }
                seen += G::SPACE.pages_of(&leaf).len();
                ControlFlow::Continue(())
            })
        };
        outcome?;
        if seen == piece.len() {
            Ok(())
        } else {
            Err(Error::NotMapped { at: Vpn::new(piece.first().get() + seen).address(G::BASE) })
        }
    }

    /// Break before make: empties the PTEs of a subtree that map the pages of a span with another size, and flushes those pages on
    /// every CPU. The subtree that replaces them is complete, and not linked yet.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the job's batch came from this table, and a slot of this table leads to `old`.
    #[inline(never)]
    pub(super) unsafe fn break_old<S>(&self, job: &mut Job<'_, 'n, S, F::Word>, old: Edge, span: Span) {
        if !F::BREAK || !job.replaces {
            return;
        }
        // A span holds the first byte of its last page, which smaller pages may map now.
        let span = Span { first: span.first, last: span.last | low(job.page) & !low(Self::BASE) };
        let page = job.page;
        let mut tell = |(base, bits): (usize, u32)| {
            let at = |key| VirtAddr::new(Self::address(key)).vpn(G::BASE);
            if let Some(piece) = Pages::new(at(base), at(base | low(bits))) {
                let piece = stale::<G, F>(piece, |_| PageSize::from_shift(bits));
                let mut flush = Flush::none();
                flush.add(FlushScope::Everywhere, piece);
                (job.flush_all_cpus)(&flush);
            }
        };
        let mut piece = None;
        // SAFETY: the caller is the writer; what was retired meanwhile is not freed before the batch completes.
        let _ = unsafe {
            self.sweep_from(old, span, &mut |leaf, at, _| {
                if leaf.shift != page {
                    let bits = leaf.shift.max(page);
                    let now = (at & !low(bits), bits);
                    if let Some(done) = piece.replace(now).filter(|&before| before != now) {
                        tell(done);
                    }
                    self.nodes.publish(leaf.node, Self::pte_of(leaf, at), F::Word::ZERO);
                    self.settle_pair(leaf, at);
                }
                ControlFlow::Continue(())
            })
        };
        if let Some(done) = piece {
            tell(done);
        }
    }

    /// Returns the union of the attributes of all pages of a span. Finds each leaf by a walk from the root, because a path would
    /// add to the stack of the functions that fill new nodes, which call this.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and all pages of the span are mapped.
    unsafe fn attributes(&self, span: Span) -> Attr {
        let (mut attr, mut at) = (Attr::empty(), span.first);
        // SAFETY: the caller is the writer; the PTE is in its leaf.
        unsafe {
            while let Some(found) = L::seek(self.nodes, &self.root, G::VA_BITS, Self::TAG, Self::address(at))
            {
                let leaf = found.edge();
                // Smaller pages, which have leaves of their own, may have replaced the other page of a pair.
                let end = at | low(if L::PAIRS { leaf.shift } else { leaf.top() });
                let pages = (end.min(span.last) - at) >> leaf.shift;
                for page in 0..=pages {
                    let word = self.nodes.read(leaf.node, Self::pte_of(leaf, at + (page << leaf.shift)));
                    if F::is_leaf(word, true) {
                        attr |= F::attr(word, true);
                    }
                }
                match end.checked_add(1).filter(|&next| next <= span.last) {
                    Some(next) => at = next,
                    None => break,
                }
            }
        }
        attr
    }

    /// Returns the PTE of size `to` for the page at `key`, computed from the leaf that maps it now.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[inline(never)]
    pub(super) unsafe fn resized_pte(&self, key: usize, to: PageSize) -> F::Word {
        // SAFETY: the caller is the writer.
        let Some(leaf) = (unsafe { self.find(Self::address(key)) }) else { return F::Word::ZERO };
        let offset = Self::address(key) - leaf.at.get();
        let frame = Pfn::new(leaf.frame.get() + (offset >> Self::BASE));
        let mut attr = leaf.attr;
        if leaf.size < to {
            let span = Span { first: key, last: key | low(to.shift()) & !low(Self::BASE) };
            // SAFETY: the caller is the writer, and every page of the span is mapped: see `check_uniform`.
            attr |= unsafe { self.attributes(span) } & STATUS;
        }
        // The format can encode this leaf: `check_uniform` has checked that for a larger page, and a smaller page has the attributes
        // of the page that is split and some of its frames.
        F::leaf(frame, to, attr, true).unwrap_or(F::Word::ZERO)
    }
}
