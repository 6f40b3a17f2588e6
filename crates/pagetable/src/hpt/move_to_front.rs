//! Move to front: a hit in an overflow bucket swaps that bucket with the first of its chain.
//!
//! The swap takes several stores, and a walker on another CPU could see it half done. So a table moves to front only in
//! [`Solo`](crate::Solo) mode, only if its array does not grow, and not while a visit is under way.

use super::Sizes;
use super::node::{Bucket, Unit};
use super::tag::Tags as _;
use crate::Geometry;
use crate::format::Format;
use crate::nodes::Nodes;

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Unit<'_, 'n, G, F, N, S> {
    /// Swaps the bucket of this unit, which is the first of its chain, with the one of another unit of the chain: tags and PTEs, but not
    /// the links.
    ///
    /// # Safety
    ///
    /// No other code reads or writes buckets of the table during the call.
    #[inline(never)]
    pub(super) unsafe fn move_to_front(self, hit: Self) {
        // SAFETY: both are buckets of the table, and by this function's contract this is their only writer.
        let [first, hit] = [self, hit].map(|unit| unsafe { Bucket::new(unit.table(), unit.bucket().spot()) });
        if first.tag() & Self::LIVE != 0 {
            first.swap_contents(hit);
        }
    }
}
