//! Splitting a page into smaller ones, and promoting small ones to a larger.
//!
//! Both are an insertion over what is there: the leaf or subtree that maps a piece gives its slot to one that maps the
//! same frames in pages of the other size.
//!
//! Where the hardware wants break before make ([`Format::BREAK`]), the new subtree is complete and not linked yet when
//! the PTEs of the old one are emptied; then every TLB is told; then the one store links the new.

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, Flush, FlushScope, PageSize, Pages, Pfn, VirtAddr, Vpn};

use super::Gpt;
use super::guard::low;
use super::job::Job;
use super::layout::{Edge, Layout};
use super::node_size::NodeSize;
use super::visit::Span;
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::{Error, Geometry, Leaf, Retired, Word};

/// What is noted in a leaf and does not keep pages from being one.
const STATUS: Attr = Attr::ACCESSED.union(Attr::DIRTY);

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'n, G, F, N, L, P> {
    /// See [`Table::resize`](crate::Table::resize).
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table; so for all that follow.
    pub(super) unsafe fn resize_pages(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        to: PageSize,
        broken: &mut dyn FnMut(&Flush),
    ) -> Result<(), Error> {
        // SAFETY: the caller is the writer.
        unsafe {
            let Some(stale) = self.check_resize(pages, to)? else { return Ok(()) };
            // The old leaves can be found until the new ones are linked.
            self.insert_span(
                batch,
                Self::span(pages),
                to.shift(),
                true,
                |at| self.resized_pte(at, to),
                broken,
            )?;
            batch.touch(FlushScope::Everywhere, stale);
            Ok(())
        }
    }

    /// Checks that pages can be resized, and returns what that makes stale if it changes anything.
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

    /// Cuts a range into pieces: a leaf larger than `to` is one, else whatever fills a page of `to`. Passes the leaf
    /// that begins each.
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

    /// Checks that the leaves of a piece continue each other and agree in their rights.
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

    /// Empties the PTEs of a subtree that a slot is about to stop leading to, where it maps the pages of a span with
    /// another size, and makes that known: what replaces them is complete, and not linked.
    #[inline(never)]
    pub(super) unsafe fn break_old<S, W>(&self, job: &mut Job<'_, 'n, S, W>, old: Edge, span: Span) {
        if !F::BREAK || !job.replaces {
            return;
        }
        // A span names its last page by that page's first byte; what maps it now may be smaller.
        let span = Span { first: span.first, last: span.last | low(job.page) & !low(Self::BASE) };
        let page = job.page;
        let mut tell = |(base, bits): (usize, u32)| {
            let at = |key| VirtAddr::new(Self::address(key)).vpn(G::BASE);
            if let Some(piece) = Pages::new(at(base), at(base | low(bits))) {
                let piece = stale::<G, F>(piece, |_| PageSize::from_shift(bits));
                let mut flush = Flush::none();
                flush.add(FlushScope::Everywhere, piece);
                (job.broken)(&flush);
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

    /// Returns all attributes that some page of a span has, whose pages are all mapped. Goes from leaf to leaf by walks from the
    /// root, for it is called where new nodes are filled, and a path would lie on the stack above theirs.
    unsafe fn attributes(&self, span: Span) -> Attr {
        let (mut attr, mut at) = (Attr::empty(), span.first);
        // SAFETY: the caller is the writer; the PTE is in its leaf.
        unsafe {
            while let Some(found) = L::seek(self.nodes, &self.root, G::VA_BITS, Self::TAG, Self::address(at))
            {
                let leaf = found.edge();
                // The other page of a pair may have given its place to smaller ones, which have leaves of their own.
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

    /// Returns the PTE of size `to` for the page at `key`, from what maps it now.
    unsafe fn resized_pte(&self, key: usize, to: PageSize) -> F::Word {
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
        // The dry run, or the leaf that is being split, had these attributes and frames.
        F::leaf(frame, to, attr, true).unwrap_or(F::Word::ZERO)
    }
}
