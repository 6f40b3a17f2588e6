//! The split of a segment, and the steps that part the chains which the split has joined, as [`grow`](super) describes.

use core::sync::atomic::Ordering;

use crate::Geometry;
use crate::format::Format;
use crate::hpt::Sizes;
use crate::hpt::node::{Array, Bucket, Only, Writing};
use crate::hpt::shape::Shape as _;
use crate::hpt::tag::Tags as _;
use crate::nodes::Nodes;

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Writing<'_, 'n, G, F, N, S> {
    /// Makes up to `steps` steps, which part chains that the last split has joined. There must be such chains.
    #[inline(never)]
    pub(super) fn unzip(mut self, steps: usize) {
        let heads = self.buckets();
        let (_, apart) = Self::split_of(Self::before(heads));
        let mut high = self.growth.joined.load(Ordering::Relaxed);
        let first = |writing: &Self, high| [high - apart, high].map(|number| writing.numbered(number).spot());
        // The first buckets of the two chains, and the last one of each that the other does not have.
        let (mut owners, mut tails) = (first(&self, high), self.growth.tails());
        let mut moved = 0;
        for _ in 0..steps {
            // SAFETY: these are buckets of the table: first ones, and overflow buckets; one that is taken out is no tail.
            let at = |spot| unsafe { self.bucket(spot) };
            let ends = [at(tails[0]), at(tails[1])];
            let Some(bucket) = ends[0].behind() else {
                high += 1;
                self.growth.joined.store(high, Ordering::Relaxed);
                if high == heads {
                    break;
                }
                owners = first(&self, high);
                tails = owners;
                continue;
            };
            let behind = bucket.behind();
            let side = usize::from(self.bucket_hash(Self::key_of(bucket.tag())) & apart != 0);
            let owner = at(owners[side]);
            let is_free = owner.tag() == 0;
            if is_free {
                owner.move_contents(bucket);
                moved += 1;
            }
            // The count changes before the store by which a walk under way may miss a bucket.
            for owner in owners {
                self.count_change(at(owner));
            }
            let spot = bucket.spot();
            // SAFETY: the bucket is in both chains, and each tail in one. What is behind the bucket stays in both. The bucket stays in
            // that of its hash, or it is in none, because its contents have another place.
            unsafe {
                ends[1 - side].publish_link(behind);
                if is_free {
                    ends[side].publish_link(behind);
                    self.again().retire(spot.node);
                } else {
                    tails[side] = spot;
                }
            }
        }
        self.growth.set_tails(tails);
        self.growth.note_moved(moved);
    }

    /// Splits the next segment in turn, after the chains of the last split have all been parted. Returns whether it did: there was
    /// memory, and the table had not its largest size.
    #[inline(never)]
    pub(super) fn split(mut self) -> bool {
        let heads = self.buckets();
        let (added, apart) = Self::split_of(heads);
        let old = self.numbered(heads - apart).spot().node;
        let moved = if heads < 1 << Self::SEGMENT_LOG {
            let Some(only) = Only::again(self.table(), 2 * heads) else { return false };
            let moved = self.split_into(|side, at| only.segment.head(at + side * added));
            // SAFETY: the segment has a copy of each first bucket, with its chain or with the chain of which it has a half.
            unsafe { self.publish_only(only, 2 * heads) };
            moved
        } else {
            if heads >= Self::MOST || !self.widen(heads >> Self::SEGMENT_LOG) {
                return false;
            }
            let Some(new) = Array::segments(self.table(), added) else { return false };
            let moved = self.split_into(|side, at| new[side].head(at));
            for (segment, number) in new.into_iter().zip([heads - apart, heads]) {
                // SAFETY: as above, for the two segments together.
                unsafe { self.publish_segment(number >> Self::SEGMENT_LOG, 2 * apart, segment, 0) };
            }
            moved
        };
        self.growth.heads.store(heads + added, Ordering::Relaxed);
        self.growth.joined.store(heads, Ordering::Relaxed);
        self.growth.set_tails([heads - apart, heads].map(|number| self.numbered(number).spot()));
        self.growth.note_moved(moved);
        // SAFETY: all entries that led to the old segment lead to a new one.
        unsafe { self.retire_array(old, added * Self::STRIDE) };
        true
    }

    /// Copies each first bucket of the segment that is to be split into the bucket that `to` returns for its side and number, and links
    /// the buckets of both sides to its chain. Returns how many buckets were in use.
    fn split_into<'b>(&self, to: impl Fn(usize, usize) -> Bucket<'b, 'n, G, F, N, S>) -> usize
    where
        'n: 'b,
    {
        let heads = self.buckets();
        let (added, apart) = Self::split_of(heads);
        let mut moved = 0;
        for (at, from) in self.heads(heads - apart, added).enumerate() {
            let tag = from.tag();
            // A dead tag is not copied: it matters only for walkers that saw it live in the old bucket, and no walker
            // has seen the new one.
            if tag & (Self::LIVE | Self::CLAIMED) != 0 {
                let side = usize::from(self.bucket_hash(Self::key_of(tag)) & apart != 0);
                to(side, at).copy_contents(from);
                moved += 1;
            }
            if let Some(behind) = from.behind() {
                for side in [0, 1] {
                    // SAFETY: the two chains are joined until they are parted, and the old first bucket is retired.
                    unsafe { to(side, at).publish_link(Some(behind)) };
                }
            }
        }
        moved
    }
}
