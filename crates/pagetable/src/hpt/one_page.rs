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

use super::Sizes;
use super::node::{Bucket, Chain, Span, Writing};
use super::shape::Shape as _;
use super::tag::Tags as _;
use crate::format::{Format, is_taken};
use crate::mode::Mode;
use crate::nodes::Nodes;
use crate::{Error, Geometry, Word};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Writing<'_, 'n, G, F, N, S> {
    /// Maps one base page. Returns false if larger pages are mapped and the block has no bucket: then the caller must use
    /// [`map_range`](Self::map_range), which searches for a larger page in the way.
    #[inline(always)]
    pub(super) fn map_one(&mut self, page: Vpn, word: F::Word) -> Result<bool, Error> {
        let at = page.address(G::BASE);
        let block = Self::block(0, at);
        let chain = self.chain(block);
        let Some(bucket) = chain.find(Self::tag_of(0, block)) else {
            if !chain.is_finest() {
                return Ok(false);
            }
            return chain.begin_page(at, word).map(|()| true);
        };
        let old = bucket.read(at);
        if is_taken::<F>(old) {
            return Err(Error::taken(at, Self::decode(old, 0, at)));
        }
        bucket.occupy(0);
        bucket.publish(at, word);
        chain.tally.ptes(1);
        Ok(true)
    }

    /// Clears the slot of one page in its bucket of base pages, if `wanted` returns true for its word. Returns whether it
    /// did.
    #[inline(always)]
    pub(super) fn empty_one(&mut self, page: Vpn, wanted: impl Fn(F::Word) -> bool) -> bool {
        let at = page.address(G::BASE);
        let block = Self::block(0, at);
        let tag = Self::tag_of(0, block);
        let mut chain = self.chain(block);
        // Only a bucket that is taken out at once needs the one before. And most pages are unmapped in a run, so that the pages of a
        // block take the same branches.
        let found = if !Self::keeps(0) || Self::SLOTS > 1 {
            chain.seek(tag).then(|| chain.here())
        } else {
            chain.find(tag)
        };
        let Some(bucket) = found.filter(|bucket| wanted(bucket.read(at))) else { return false };
        bucket.publish(at, F::Word::ZERO);
        chain.tally.ptes(-1);
        if bucket.is_vacant() {
            if Self::keeps(0) {
                self.vacate(block);
            } else {
                chain.take_out();
                self.adapt(1);
            }
        }
        true
    }

    /// Returns the bucket of base pages whose block `at` is in.
    #[inline(always)]
    pub(super) fn bucket_at(&self, at: VirtAddr) -> Option<Bucket<'_, 'n, G, F, N, S>> {
        let block = Self::block(0, at);
        self.head(block).find(Self::tag_of(0, block))
    }

    /// Returns the bucket of the page at `at`, if it is mapped as a base page.
    #[inline(always)]
    pub(super) fn find_one(&self, at: VirtAddr) -> Option<Bucket<'_, 'n, G, F, N, S>> {
        let is_base = |word| F::is_leaf(word, true) && Self::size(word, 0) == G::BASE;
        self.bucket_at(at).filter(|bucket| is_base(bucket.read(at)))
    }
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Chain<'_, 'n, G, F, N, S> {
    /// Assigns a bucket, with the entry `word` for the page at `at`, to a block of base pages that has none, and whose chain this is.
    #[inline(always)]
    pub(super) fn begin_page(mut self, at: VirtAddr, word: F::Word) -> Result<(), Error> {
        let block = Self::block(0, at);
        let span = Span { grain: 0, block, slot: Self::slot(0, at), count: 1 };
        let is_free = self.head().is_free(Self::tag_of(0, block));
        N::Mode::release();
        if !self.begin(is_free, None, span, |_| word) {
            return Err(self.no_memory(1));
        }
        self.tally.ptes(1);
        self.into_writing().adapt(1);
        Ok(())
    }
}
