//! Move to front: a hit in an overflow bucket swaps that bucket with the first of its chain.
//!
//! The swap takes several stores, and a walker on another CPU could see it half done. So a table moves to front only in
//! [`Solo`](crate::Solo) mode, only if its array does not grow, and not while a visit is under way.

use super::shape::Spot;
use super::{Hashed, Sizes};
use crate::Geometry;
use crate::format::Format;
use crate::nodes::Nodes;

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// Swaps a bucket with the first bucket of its chain: tags and PTEs, but not the links.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the table is in solo mode, and no visit is under way;
    /// - both buckets are in the table.
    #[inline(never)]
    pub(super) unsafe fn move_to_front(&self, first: Spot, hit: Spot) {
        // SAFETY: by this function's contract the table is in solo mode, so no CPU walks or writes during the swap, and both
        // buckets are in the table.
        unsafe {
            if self.read_tag(first) & Self::LIVE == 0 {
                return;
            }
            for (first_unit, hit_unit) in Self::units(first).zip(Self::units(hit)) {
                for word in 0..Self::LINK {
                    let front = self.nodes.read(first.node, first_unit + word);
                    self.nodes.store_relaxed(
                        first.node,
                        first_unit + word,
                        self.nodes.read(hit.node, hit_unit + word),
                    );
                    self.nodes.store_relaxed(hit.node, hit_unit + word, front);
                }
            }
        }
    }
}
