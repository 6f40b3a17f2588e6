//! The merge of two segments, which [`grow`](super) describes.

use core::sync::atomic::Ordering;

use super::SHORT;
use crate::Geometry;
use crate::format::Format;
use crate::hpt::Sizes;
use crate::hpt::node::{Array, Bucket, Fresh, Only, Supply, Writing};
use crate::hpt::shape::Shape as _;
use crate::hpt::tag::Tags as _;
use crate::nodes::Nodes;

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Writing<'_, 'n, G, F, N, S> {
    /// Merges the segment that was split last with the segment from which it was split, after the chains of that split have all been
    /// parted. Returns whether it did.
    #[inline(never)]
    pub(super) fn merge(mut self) -> bool {
        let heads = self.buckets();
        let before = Self::before(heads);
        let (added, apart) = Self::split_of(before);
        let Some(want) = self.want_for_merge() else { return false };
        let Ok(mut supply) = Supply::take(self.table(), want, 0) else { return false };
        let old = [before - apart, before].map(|number| self.numbered(number).spot().node);
        if heads <= 1 << Self::SEGMENT_LOG {
            let Some(only) = Only::again(self.table(), added) else { return false };
            self.merge_into(&only.segment, &mut supply);
            // SAFETY: the segment has a copy of each first bucket in use, and the joined chains.
            unsafe { self.publish_only(only, before) };
        } else {
            let Some(new) = Array::segment(self.table(), added) else { return false };
            self.merge_into(&new, &mut supply);
            // SAFETY: as above.
            unsafe { self.publish_segment((before - apart) >> Self::SEGMENT_LOG, apart, new, 0) };
        }
        self.growth.heads.store(before, Ordering::Relaxed);
        self.growth.joined.store(before, Ordering::Relaxed);
        self.growth.note_moved(2 * added);
        // SAFETY: all entries that led to an old segment lead to the new one.
        unsafe {
            if heads <= 1 << Self::SEGMENT_LOG {
                self.retire_array(old[0], heads * Self::STRIDE);
                return true;
            }
            for old in old {
                self.retire_array(old, added * Self::STRIDE);
            }
        }
        self.narrow(before >> Self::SEGMENT_LOG);
        true
    }

    /// Returns how many overflow buckets a merge needs: one for each pair of first buckets in use. Returns `None` if the search for the
    /// end of a chain would take too long.
    fn want_for_merge(&self) -> Option<usize> {
        let heads = self.buckets();
        let before = Self::before(heads);
        let (_, apart) = Self::split_of(before);
        let mut want = 0;
        let lower = self.heads(before - apart, heads - before);
        for pair in lower.zip(self.heads(before, heads - before)).map(<[_; 2]>::from) {
            if pair.iter().all(|head| head.short_end().is_none()) {
                return None;
            }
            want += usize::from(pair.iter().all(|head| head.tag() & Self::LIVE != 0));
        }
        Some(want)
    }

    /// Copies each pair of first buckets into a first bucket of the new segment and an overflow bucket, and joins their chains.
    fn merge_into(&self, new: &Array<'_, 'n, G, F, N, S>, supply: &mut Supply<'n, G, F, N, S>) {
        let before = Self::before(self.buckets());
        let (added, apart) = Self::split_of(before);
        let lower = self.heads(before - apart, added);
        for (at, pair) in lower.zip(self.heads(before, added)).map(<[_; 2]>::from).enumerate() {
            let (to, mut second) = (new.head(at), None);
            for from in pair {
                if from.tag() & Self::LIVE == 0 {
                    continue;
                }
                if to.tag() == 0 {
                    to.copy_contents(from);
                } else if let Some(fresh) = Fresh::take(self.table(), Some(&mut *supply)) {
                    let fresh = fresh.into_bucket();
                    self.count_node(1);
                    fresh.copy_contents(from);
                    second = Some(fresh);
                }
            }
            let mut first = Self::join(pair);
            // SAFETY: the chain gets another first bucket, and perhaps an overflow bucket behind it; the old first ones are retired.
            unsafe {
                if let Some(second) = second {
                    second.publish_link(first);
                    first = Some(second);
                }
                to.publish_link(first);
            }
        }
    }

    /// Joins the chains behind two first buckets, at least one of which is short, and returns the first overflow bucket.
    fn join<'b>(pair: [Bucket<'b, 'n, G, F, N, S>; 2]) -> Option<Bucket<'b, 'n, G, F, N, S>> {
        let [one, other] = pair.map(Bucket::behind);
        let (Some(_), Some(_)) = (one, other) else { return one.or(other) };
        let (end, first, last) = match pair[0].short_end() {
            Some(end) => (end, one, other),
            None => (pair[1].short_end()?, other, one),
        };
        // SAFETY: the two chains become one.
        unsafe { end.publish_link(last) };
        first
    }
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Bucket<'_, 'n, G, F, N, S> {
    /// Returns the last bucket of the chain that begins here, or `None` if the chain has [`SHORT`] or more overflow buckets.
    fn short_end(self) -> Option<Self> {
        let mut end = self;
        for _ in 0..SHORT {
            match end.behind() {
                Some(next) => end = next,
                None => return Some(end),
            }
        }
        None
    }
}
