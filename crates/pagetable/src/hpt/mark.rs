//! Entries that hold a mark instead of a leaf, in slots of base pages. A block with a mark keeps its bucket, like a block
//! with a leaf.

use tlbkit_addr::{FlushScope, Pages, Pfn, VirtAddr};

use super::Sizes;
use super::node::Writing;
use super::shape::Shape as _;
use super::tag::Tags as _;
use crate::format::{Format, entry_word, fill_word, is_taken};
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Entry, Error, Geometry, Mark};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Writing<'_, 'n, G, F, N, S> {
    /// Implements [`Table::mark`](crate::Table::mark).
    pub(super) fn mark_page(mut self, at: VirtAddr, mark: Option<Mark>) -> Result<Entry, Error> {
        let word = entry_word::<F>(mark)?;
        let page = Pages::one(at.vpn(G::BASE));
        G::SPACE.check_pages(page)?;
        let old = self.walk().find_entry(at);
        match old {
            Entry::Leaf(occupant) if occupant.size != G::BASE => return Err(Error::partial(&occupant)),
            Entry::Empty if mark.is_none() => return Ok(old),
            Entry::Empty => self.mark_empty(at, word)?,
            Entry::Leaf(_) | Entry::Mark(_) if mark.is_some() => self.store_over(at, word),
            Entry::Leaf(_) | Entry::Mark(_) => {
                self.empty_one(page.first(), is_taken::<F>);
            }
        }
        if let Entry::Leaf(_) = old {
            self.touch(FlushScope::Everywhere, page);
        }
        Ok(old)
    }

    /// Stores a mark in an empty entry.
    fn mark_empty(&mut self, at: VirtAddr, word: F::Word) -> Result<(), Error> {
        let block = Self::block(0, at);
        let chain = self.chain(block);
        let Some(bucket) = chain.find(Self::tag_of(0, block)) else {
            // No larger page maps `at`, so the block may get a bucket.
            return chain.begin_page(at, word);
        };
        bucket.occupy(0);
        bucket.publish(at, word);
        chain.tally.ptes(1);
        Ok(())
    }

    /// Stores the entry of a base page in the bucket of its block, which must have one.
    fn store_over(&self, at: VirtAddr, word: F::Word) {
        if let Some(bucket) = self.bucket_at(at) {
            bucket.publish(at, word);
        }
    }

    /// Implements [`Table::fill`](crate::Table::fill).
    pub(super) fn fill_page(mut self, at: VirtAddr, payload: u64, frame: Pfn) -> Result<(), Error> {
        let page = Pages::one(at.vpn(G::BASE));
        G::SPACE.check_pages(page)?;
        G::SPACE.check_frames(frame, 1, G::BASE)?;
        let word = fill_word::<F>(at, self.walk().find_entry(at), payload, frame)?;
        self.store_over(at, word);
        self.touch(F::APPEARS, page);
        Ok(())
    }
}
