//! Entries that hold a mark instead of a leaf, in slots of base pages. A block with a mark keeps its bucket, like a block
//! with a leaf.

use tlbkit_addr::{FlushScope, Pages, Pfn, VirtAddr};

use super::{Hashed, Sizes};
use crate::format::{Format, entry_word, fill_word, is_taken};
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Entry, Error, Geometry, Mark, Retired};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// Implements [`Table::mark`](crate::Table::mark).
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table.
    pub(super) unsafe fn mark_page(
        &self,
        batch: &mut Retired<'n>,
        at: VirtAddr,
        mark: Option<Mark>,
    ) -> Result<Entry, Error> {
        let word = entry_word::<F>(mark)?;
        let page = Pages::one(at.vpn(G::BASE));
        G::SPACE.check_pages(page)?;
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe {
            let old = self.find_entry(at);
            match old {
                Entry::Leaf(occupant) if occupant.size != G::BASE => return Err(Error::partial(&occupant)),
                Entry::Empty if mark.is_none() => return Ok(old),
                Entry::Empty => self.mark_empty(batch, at, word)?,
                Entry::Leaf(_) | Entry::Mark(_) if mark.is_some() => self.store_over(at, word),
                Entry::Leaf(_) | Entry::Mark(_) => {
                    self.empty_one(batch, page.first(), is_taken::<F>);
                }
            }
            if let Entry::Leaf(_) = old {
                batch.touch(FlushScope::Everywhere, page);
            }
            Ok(old)
        }
    }

    /// Stores a mark in an empty entry.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table.
    unsafe fn mark_empty(&self, batch: &mut Retired<'n>, at: VirtAddr, word: F::Word) -> Result<(), Error> {
        let block = Self::block(0, at);
        // SAFETY: by this function's contract the caller is the only writer. No larger page maps `at`, so the block may get
        // a bucket.
        unsafe {
            let head = self.head(block);
            let Some(spot) = self.probe(head, Self::tag_of(0, block)) else {
                return self.begin_block(batch, head, at, word);
            };
            self.occupy(0, spot);
            self.store_over(at, word);
        }
        self.tally.ptes(1);
        Ok(())
    }

    /// Stores the entry of a base page in the bucket of its block, which must have one.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    unsafe fn store_over(&self, at: VirtAddr, word: F::Word) {
        let block = Self::block(0, at);
        // SAFETY: by this function's contract the caller is the only writer; the slot is in the bucket.
        unsafe {
            if let Some(spot) = self.probe(self.head(block), Self::tag_of(0, block)) {
                self.nodes.publish(spot.node, Self::place(spot, block, Self::slot(0, at)), word);
                self.settle_pairs(spot, 0, block);
            }
        }
    }

    /// Implements [`Table::fill`](crate::Table::fill).
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table.
    pub(super) unsafe fn fill_page(
        &self,
        batch: &mut Retired<'n>,
        at: VirtAddr,
        payload: u64,
        frame: Pfn,
    ) -> Result<(), Error> {
        let page = Pages::one(at.vpn(G::BASE));
        G::SPACE.check_pages(page)?;
        G::SPACE.check_frames(frame, 1, G::BASE)?;
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe {
            let word = fill_word::<F>(at, self.find_entry(at), payload, frame)?;
            self.store_over(at, word);
        }
        batch.touch(F::APPEARS, page);
        Ok(())
    }
}
