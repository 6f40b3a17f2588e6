//! Mapping, from where the pages come in: what needs no change of the tree is done here, the rest is a graft.

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn};

use super::Gpt;
use super::graft::{Job, Supply};
use super::layout::Layout;
use super::policy::Policy;
use super::slots::{Place, leaf_kind};
use super::sweep::Span;
use crate::format::{Format, check_attr};
use crate::geometry::Checked as _;
use crate::mode::Mode;
use crate::nodes::{NodeAddr, Nodes, take_within};
use crate::pairs::stale;
use crate::{Error, Geometry, Retired, Word};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: Policy> Gpt<'n, G, F, N, L, P> {
    /// See [`Table::map`](crate::Table::map).
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table; so for all that follow.
    #[inline(always)]
    pub(super) unsafe fn map_pages(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        frame: Pfn,
        size: PageSize,
        attr: Attr,
    ) -> Result<(), Error> {
        G::SPACE.check_sized(pages, size)?;
        G::SPACE.check_frames(frame, pages.len(), size)?;
        check_attr::<F>(attr)?;
        let word = F::leaf(frame, size, attr, true)?;
        if pages.len() == 1 {
            let at = pages.first().address(G::BASE).get();
            // SAFETY: the caller is the writer.
            if let Some(done) = unsafe { self.map_one(batch, pages, at, word) } {
                return done;
            }
        }
        // SAFETY: the caller is the writer.
        unsafe { self.map_range(batch, pages, frame, size, attr, word) }
    }

    /// Maps one base page if that needs no change of the tree: into a leaf with room, or an empty table.
    #[inline(always)]
    unsafe fn map_one(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        at: usize,
        word: F::Word,
    ) -> Option<Result<(), Error>> {
        // SAFETY: the caller is the writer; the leaf is live and the index below its slots.
        unsafe {
            let Some(found) = L::seek(self.nodes, &self.root, G::VA_BITS, Self::TAG, at) else {
                return self.look_root().is_empty().then(|| self.map_first(batch, pages, at, word));
            };
            let place = Self::pte_at(found.shift, found.index, at);
            let old = self.nodes.read(found.leaf, place);
            if F::is_leaf(old, true) {
                return Some(Err(Error::occupied(&Self::leaf(old, found.shift, at))));
            }
            if found.shift != Self::BASE || L::TAGGED && found.width < Self::LEAF_MAX {
                // The page is in the empty half of a larger one's pair; or the leaf may be worth joining with a neighbour.
                return None;
            }
            let edge = found.edge();
            self.nodes.publish(found.leaf, place, word);
            self.settle_pair(edge, at);
            self.set_live(edge, self.live(edge) + 1);
        }
        self.tally.ptes(1);
        batch.touch(F::APPEARS, pages);
        Some(Ok(()))
    }

    /// Maps the first page of an empty table.
    unsafe fn map_first(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        at: usize,
        word: F::Word,
    ) -> Result<(), Error> {
        let kind = leaf_kind(Self::LEAF_MIN);
        let refused = || Error::no_memory(1, self.nodes.held());
        let mut supply = One(Some(self.take(Self::WORDS[kind]).ok_or_else(refused)?));
        N::Mode::release();
        let broken = &mut |_: &Flush| ();
        let mut job =
            Job { supply: &mut supply, batch, page: Self::BASE, over: false, word: |_| word, broken };
        // SAFETY: the root slot is empty; a leaf for one page is all that is taken.
        unsafe {
            let leaf =
                self.plant(&mut job, Self::LEAF_MIN, Span { first: Self::key(at), last: Self::key(at) });
            self.publish(Place::Root, G::VA_BITS, leaf);
        }
        batch.touch(F::APPEARS, pages);
        Ok(())
    }

    /// Takes a node that a slot can lead to.
    pub(super) fn take(&self, words: usize) -> Option<NodeAddr> {
        take_within(self.nodes, words, L::REACH)
    }

    /// Maps a range, with whatever nodes that needs.
    #[inline(never)]
    unsafe fn map_range(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        frame: Pfn,
        size: PageSize,
        attr: Attr,
        word: F::Word,
    ) -> Result<(), Error> {
        let size_pages = size.pages(G::BASE).unwrap_or(1);
        // The highest frame must fit too; `check_frames` has seen that it exists.
        F::leaf(Pfn::new(frame.get() + (pages.len() - size_pages)), size, attr, true)?;
        let span = Self::span(pages);
        // A format's step is that of a base frame's number; the low bits of a larger page's stay what they are.
        let word = |at: usize| word.advance(F::STEP, (at - span.first) >> Self::BASE);
        // SAFETY: the caller is the writer.
        unsafe {
            self.check_vacant(span)?;
            self.grow(batch, span, size.shift(), false, word, &mut |_| ())?;
        }
        batch.touch(F::APPEARS, stale::<G, F>(pages, |_| Some(size)));
        Ok(())
    }
}

/// A supply of one leaf for the first page of a table.
struct One(Option<NodeAddr>);

impl Supply for One {
    const REAL: bool = true;

    fn take(&mut self, _kind: usize) -> NodeAddr {
        self.0.take().unwrap_or(NodeAddr::new(0))
    }
}
