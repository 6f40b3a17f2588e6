//! Mapping: [`map_one`](super::one_page) maps one base page if the change of one slot can; [`insert`](super::insert) maps all other
//! pages and ranges.

use tlbkit_addr::{Attr, PageSize, Pages, Pfn};

use super::job::{Order, Ptes};
use super::node::Writing;
use super::shape::{Shape, leaf_kind};
use crate::Error;
use crate::format::{Format, appears, check_attr, first_leaf};
use crate::nodes::{Nodes, Reclaim as _};
use crate::pairs::stale;

impl<T: Shape> Writing<'_, '_, T> {
    /// See [`Table::map`](crate::Table::map).
    #[inline(always)]
    pub(super) fn map(mut self, pages: Pages, frame: Pfn, size: PageSize, attr: Attr) -> Result<(), Error> {
        T::SPACE.check_sized(pages, size)?;
        T::SPACE.check_frames(frame, pages.len(), size)?;
        check_attr::<T::F>(attr)?;
        let word = T::F::leaf(frame, size, attr, true)?;
        if pages.len() == 1
            && let Some(done) = self.map_one(pages, word, T::F::APPEARS)
        {
            return done;
        }
        self.map_range(pages, frame, size, attr)
    }

    /// Maps a range with all nodes that it needs.
    #[inline(never)]
    fn map_range(&mut self, pages: Pages, frame: Pfn, size: PageSize, attr: Attr) -> Result<(), Error> {
        // The format must be able to encode the highest frame, too.
        let word = first_leaf::<T::F>(frame, pages.len(), size, attr, true)?;
        let span = T::span(pages);
        // For one page, `map_one` has checked it.
        if pages.len() > 1 {
            self.check_room(pages.len() / size.pages(T::PAGE).unwrap_or(1))?;
            self.check_vacant(span)?;
        }
        self.insert_span(span, Order::new(size, Ptes::Frames(span.first, word), &mut |_| ()))?;
        self.touch(appears::<T::F>(size), stale::<T::G, T::F>(pages, |_| Some(size)));
        Ok(())
    }

    /// Refuses a range of `count` pages that needs more leaves than the storage can provide, without a dry run.
    fn check_room(&self, count: usize) -> Result<(), Error> {
        let table = self.table();
        // The leaves at the ends of the range may have other pages, too.
        let there = table.tally().footprint().leaves + 2;
        let wanted = (count >> T::MAX_LEAF_WIDTH).saturating_sub(there);
        if wanted > 0 && wanted > table.nodes().room(T::WORDS[leaf_kind(T::MIN_LEAF_WIDTH)]) {
            return Err(Error::no_memory(wanted, table.nodes().held()));
        }
        Ok(())
    }
}
