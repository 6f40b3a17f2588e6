//! Mapping: [`map_one`](super::one_page) maps one base page if the change of one slot can; [`insert`](super::insert) maps all other
//! pages and ranges.

use tlbkit_addr::{Attr, PageSize, Pages, Pfn};

use super::Gpt;
use super::job::Ptes;
use super::layout::Layout;
use super::node_size::NodeSize;
use super::slots::leaf_kind;
use crate::format::{Format, appears, check_attr, first_leaf};
use crate::geometry::Checked as _;
use crate::nodes::{NodeAddr, Nodes, take_within};
use crate::pairs::stale;
use crate::{Error, Geometry, Retired};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'n, G, F, N, L, P> {
    /// See [`Table::map`](crate::Table::map).
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
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
        if pages.len() == 1
            // SAFETY: the caller is the writer.
            && let Some(done) = unsafe { self.map_one(batch, pages, word, F::APPEARS) }
        {
            return done;
        }
        // SAFETY: the caller is the writer.
        unsafe { self.map_range(batch, pages, frame, size, attr, word) }
    }

    /// Takes a node whose address a slot can hold.
    pub(super) fn take(&self, words: usize) -> Option<NodeAddr> {
        take_within(self.nodes, words, L::REACH)
    }

    /// Maps a range with all nodes that it needs.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
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
        // The format must be able to encode the highest frame, too.
        first_leaf::<F>(frame, pages.len(), size, attr, true)?;
        let span = Self::span(pages);
        // SAFETY: the caller is the writer.
        unsafe {
            // For one page, `map_one` has checked it.
            if pages.len() > 1 {
                self.check_room(pages.len() / size_pages)?;
                self.check_vacant(span)?;
            }
            let ptes = Ptes::Frames(span.first, word);
            self.insert_span(batch, span, size.shift(), false, ptes, &mut |_| ())?;
        }
        batch.touch(appears::<F>(size), stale::<G, F>(pages, |_| Some(size)));
        Ok(())
    }

    /// Refuses a range of `count` pages that needs more leaves than the storage can provide, without a dry run.
    fn check_room(&self, count: usize) -> Result<(), Error> {
        // The leaves at the ends of the range may have other pages, too.
        let there = self.tally.footprint().leaves + 2;
        let wanted = (count >> Self::MAX_LEAF_WIDTH).saturating_sub(there);
        if wanted > 0 && wanted > self.nodes.room(Self::WORDS[leaf_kind(Self::MIN_LEAF_WIDTH)]) {
            return Err(Error::no_memory(wanted, self.nodes.held()));
        }
        Ok(())
    }
}
