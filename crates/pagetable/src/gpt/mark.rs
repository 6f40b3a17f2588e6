//! Entries that hold a mark instead of a PTE. A mark is a word in a leaf of base pages. It counts as a PTE when the size of a leaf
//! is chosen.

use tlbkit_addr::{FlushScope, Pages, Pfn, VirtAddr};

use super::job::{Order, Ptes};
use super::node::{View, Writing};
use super::shape::Shape;
use crate::format::{Format, entry_word, fill_word, is_taken};
use crate::{Entry, Error, Mark};

impl<T: Shape> Writing<'_, '_, T> {
    /// See [`Table::mark`](crate::Table::mark).
    pub(super) fn mark(mut self, at: VirtAddr, mark: Option<Mark>) -> Result<Entry, Error> {
        let word = entry_word::<T::F>(mark)?;
        let page = Pages::one(at.vpn(T::PAGE));
        T::SPACE.check_pages(page)?;
        let old = self.find_entry(at.get());
        let reach = match old {
            Entry::Leaf(occupant) if occupant.size != T::PAGE => return Err(Error::partial(&occupant)),
            Entry::Leaf(_) => FlushScope::Everywhere,
            Entry::Mark(_) => FlushScope::Nowhere,
            Entry::Empty if mark.is_none() => return Ok(old),
            Entry::Empty => return self.mark_empty(page, word).map(|()| old),
        };
        if mark.is_some() {
            self.touch(reach, page);
            self.store_over(at, word);
        } else if !self.unmap_one(page, is_taken::<T::F>, reach) {
            self.touch(reach, page);
            self.remove(page);
        }
        Ok(old)
    }

    /// Stores a mark in an empty entry, with the leaf and the nodes that it needs.
    #[inline(never)]
    fn mark_empty(&mut self, page: Pages, word: T::W) -> Result<(), Error> {
        if let Some(done) = self.map_one(page, word, FlushScope::Nowhere) {
            return done;
        }
        let span = T::span(page);
        self.insert_span(span, Order::new(T::PAGE, Ptes::Frames(span.first, word), &mut |_| ()))
    }

    /// See [`Table::fill`](crate::Table::fill).
    pub(super) fn fill(mut self, at: VirtAddr, payload: u64, frame: Pfn) -> Result<(), Error> {
        let page = Pages::one(at.vpn(T::PAGE));
        T::SPACE.check_pages(page)?;
        T::SPACE.check_frames(frame, 1, T::PAGE)?;
        let word = fill_word::<T::F>(at, self.find_entry(at.get()), payload, frame)?;
        self.touch(T::F::APPEARS, page);
        self.store_over(at, word);
        Ok(())
    }
}

impl<T: Shape> View<'_, T> {
    /// Stores the word of a base page in the leaf that covers it.
    fn store_over(self, at: VirtAddr, word: T::W) {
        if let Some(pte) = self.seek(at.get()) {
            pte.publish(word);
        }
    }
}
