//! Changes of one base page: the probe of its bucket, and a store.
//!
//! | change | case | stores |
//! |-|-|-|
//! | map | the page's block has a bucket | the PTE |
//! | map | the block has no bucket, and the first bucket of its chain is free | the PTE and the tag in the first bucket |
//! | map | the block has no bucket, and the first bucket is in use | the PTE and the tag in an overflow bucket, and a link to that bucket |
//! | unmap | the bucket has other entries | the PTE |
//! | unmap | the bucket is empty then, in a table that grows | the PTE: the bucket is [vacant](super::vacant) |
//! | unmap | an overflow bucket is empty then, in a table of a fixed size | the PTE, and the link that bypasses the bucket |
//! | unmap | a first bucket is empty then, in a table of a fixed size | the PTE, and the tag; in solo mode all words of the bucket, or those of the next bucket |
//!
//! So a page needs no dry run: it takes at most one overflow bucket, before anything changes.

use tlbkit_addr::{VirtAddr, Vpn};

use super::shape::Spot;
use super::{Hashed, Sizes};
use crate::format::{Format, is_taken};
use crate::mode::Mode;
use crate::nodes::Nodes;
use crate::{Error, Geometry, Retired, Word};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// Maps one base page. Returns false if larger pages are mapped and the block has no bucket: then the caller must use
    /// [`map_range`](Self::map_range), which searches for a larger page in the way.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table.
    #[inline(always)]
    pub(super) unsafe fn map_one(
        &self,
        batch: &mut Retired<'n>,
        page: Vpn,
        word: F::Word,
    ) -> Result<bool, Error> {
        let at = page.address(G::BASE);
        let block = Self::block(0, at);
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe {
            let (head, tag) = (self.head(block), Self::tag_of(0, block));
            let Some(spot) = self.probe(head, tag) else {
                if !self.is_finest() {
                    return Ok(false);
                }
                return self.begin_block(batch, head, at, word).map(|()| true);
            };
            let place = Self::place(spot, block, Self::slot(0, at));
            let old = self.nodes.read(spot.node, place);
            if is_taken::<F>(old) {
                return Err(Error::taken(at, Self::decode(old, 0, at)));
            }
            self.occupy(0, spot);
            self.nodes.publish(spot.node, place, word);
            self.settle_pairs(spot, 0, block);
        }
        self.tally.ptes(1);
        Ok(true)
    }

    /// Assigns a bucket, with the entry `word` for the page at `at`, to a block of base pages that has none. `head` is the
    /// first bucket of its chain.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table;
    /// - `head` is the first bucket of the chain for the page at `at`, whose block has no bucket.
    #[inline(always)]
    pub(super) unsafe fn begin_block(
        &self,
        batch: &mut Retired<'n>,
        head: Spot,
        at: VirtAddr,
        word: F::Word,
    ) -> Result<(), Error> {
        let (block, slot) = (Self::block(0, at), Self::slot(0, at));
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe {
            if self.is_free(head, Self::tag_of(0, block)) {
                N::Mode::release();
                self.fit_out(head, 0, block, slot, 1, |_| word);
            } else {
                let node = self.nodes.take(Self::NODE).ok_or_else(|| self.no_memory(1))?;
                self.count_node(1);
                self.append(head, node, 0, block, slot, 1, |_| word);
            }
            self.tally.ptes(1);
            self.adapt(batch, 1);
        }
        Ok(())
    }

    /// Unmaps one page if it is mapped as a base page. Returns whether it was.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table.
    #[inline(always)]
    pub(super) unsafe fn unmap_one(&self, batch: &mut Retired<'n>, page: Vpn) -> bool {
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe { self.empty_one(batch, page, |old| F::is_leaf(old, true) && Self::size(old, 0) == G::BASE) }
    }

    /// Clears the slot of one page in its bucket of base pages, if `wanted` returns true for its word. Returns whether it
    /// did.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table.
    #[inline(always)]
    pub(super) unsafe fn empty_one(
        &self,
        batch: &mut Retired<'n>,
        page: Vpn,
        wanted: impl Fn(F::Word) -> bool,
    ) -> bool {
        let at = page.address(G::BASE);
        let block = Self::block(0, at);
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe {
            let (head, tag) = (self.head(block), Self::tag_of(0, block));
            // Only a bucket that is taken out at once needs the one before.
            let found = if !Self::keeps(0) {
                self.seek_past(head, tag)
            } else if Self::SLOTS > 1 {
                // Most pages are unmapped in a run, and the pages of a block take the same branches.
                self.seek(head, tag).map(|spot| (None, spot))
            } else {
                self.probe(head, tag).map(|spot| (None, spot))
            };
            let Some((before, spot)) = found else { return false };
            let place = Self::place(spot, block, Self::slot(0, at));
            if !wanted(self.nodes.read(spot.node, place)) {
                return false;
            }
            self.nodes.publish(spot.node, place, F::Word::ZERO);
            self.settle_pairs(spot, 0, block);
            self.tally.ptes(-1);
            if self.is_vacant(spot) {
                if Self::keeps(0) {
                    self.vacate(batch, head);
                } else {
                    self.take_out(batch, before, spot);
                    self.adapt(batch, 1);
                }
            }
        }
        true
    }

    /// Finds the word of one page that is mapped as a base page: its bucket, and the place in the bucket's node.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[inline(always)]
    pub(super) unsafe fn find_one(&self, page: Vpn) -> Option<(Spot, usize)> {
        let at = page.address(G::BASE);
        let block = Self::block(0, at);
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe {
            let spot = self.probe(self.head(block), Self::tag_of(0, block))?;
            let place = Self::place(spot, block, Self::slot(0, at));
            let word = self.nodes.read(spot.node, place);
            (F::is_leaf(word, true) && Self::size(word, 0) == G::BASE).then_some((spot, place))
        }
    }
}
