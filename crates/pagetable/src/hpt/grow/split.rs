//! The split of a segment, and the steps that part the chains which the split has joined, as [`grow`](super) describes.

use core::sync::atomic::Ordering;

use crate::format::Format;
use crate::hpt::shape::Spot;
use crate::hpt::{Hashed, Sizes};
use crate::nodes::{NodeAddr, Nodes};
use crate::{Geometry, Retired};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// Makes up to `steps` steps, which part chains that the last split has joined.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table;
    /// - the chains of the last split have not all been parted.
    #[inline(never)]
    pub(super) unsafe fn unzip(&self, batch: &mut Retired<'n>, steps: usize) {
        let heads = self.buckets();
        let (_, apart) = Self::split_of(Self::before(heads));
        let mut high = self.growth.joined.load(Ordering::Relaxed);
        let mut tails = self.growth.tails();
        let mut moved = 0;
        for _ in 0..steps {
            // SAFETY: by this function's contract the caller is the only writer. The bucket is in both chains, and each tail
            // is in one.
            unsafe {
                let Some(spot) = self.behind(tails[0]) else {
                    high += 1;
                    self.growth.joined.store(high, Ordering::Relaxed);
                    if high == heads {
                        break;
                    }
                    tails = [self.numbered(high - apart), self.numbered(high)];
                    continue;
                };
                let behind = self.behind(spot);
                let side = usize::from(self.bucket_hash(Self::key_of(self.read_tag(spot))) & apart != 0);
                let owner = self.numbered(high - apart + side * apart);
                let is_free = self.read_tag(owner) == 0;
                if is_free {
                    self.move_contents(owner, spot);
                    moved += 1;
                }
                // The count changes before the store by which a walk under way may miss a bucket.
                for head in [high - apart, high] {
                    self.count_change(self.numbered(head).node);
                }
                self.publish_link(tails[1 - side], behind);
                if is_free {
                    self.publish_link(tails[side], behind);
                    self.retire(batch, spot.node);
                } else {
                    tails[side] = spot;
                }
            }
        }
        self.growth.set_tails(tails);
        self.growth.note_moved(moved);
    }

    /// Copies a bucket into a free first bucket, and publishes the tag.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - both buckets are in the table, and no walker can match `to`.
    unsafe fn move_contents(&self, to: Spot, from: Spot) {
        // SAFETY: by this function's contract the caller is the only writer, and both buckets are in the table.
        unsafe {
            self.copy_entries(to, from);
            self.publish_tag(to, self.read_tag(from));
        }
    }

    /// Splits the next segment in turn. Returns whether it did: there was memory, and the table had not its largest size.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table;
    /// - the chains of the last split have all been parted.
    #[inline(never)]
    pub(super) unsafe fn split(&self, batch: &mut Retired<'n>) -> bool {
        let heads = self.buckets();
        let (added, apart) = Self::split_of(heads);
        let is_small = heads < 1 << Self::SEGMENT_LOG;
        // SAFETY: by this function's contract the caller is the only writer; no walker can reach the new segments before
        // they are published.
        unsafe {
            if heads >= Self::MOST || !is_small && !self.widen(batch, heads >> Self::SEGMENT_LOG) {
                return false;
            }
            let Some((directory, new)) = self.take_for_split(is_small, added) else { return false };
            let old = self.numbered(heads - apart);
            let mut moved = 0;
            for at in 0..added {
                let from = Spot { at: at * Self::STRIDE, ..old };
                let to = [0, 1].map(|side| Spot {
                    node: new[side],
                    at: (at + if is_small { side * added } else { 0 }) * Self::STRIDE,
                });
                let tag = self.read_tag(from);
                // A dead tag is not copied: it matters only for walkers that saw it live in the old bucket, and no walker
                // has seen the new one.
                if tag & (Self::LIVE | Self::CLAIMED) != 0 {
                    let side = usize::from(self.bucket_hash(Self::key_of(tag)) & apart != 0);
                    self.copy_contents(to[side], from);
                    moved += 1;
                }
                let behind = self.behind(from);
                if behind.is_some() {
                    self.publish_link(to[0], behind);
                    self.publish_link(to[1], behind);
                }
            }
            if is_small {
                self.publish_only(batch, directory, new[0], 2 * heads);
            } else {
                self.publish_segment((heads - apart) >> Self::SEGMENT_LOG, 2 * apart, new[0], 0);
                self.publish_segment(heads >> Self::SEGMENT_LOG, 2 * apart, new[1], 0);
            }
            self.growth.heads.store(heads + added, Ordering::Relaxed);
            self.growth.joined.store(heads, Ordering::Relaxed);
            self.growth.set_tails([self.numbered(heads - apart), self.numbered(heads)]);
            self.growth.note_moved(moved);
            self.retire_array(batch, old.node, added * Self::STRIDE);
        }
        true
    }

    /// Takes the memory for a split of `added` first buckets: two segments, or one of twice the size with its directory.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    unsafe fn take_for_split(&self, is_small: bool, added: usize) -> Option<(NodeAddr, [NodeAddr; 2])> {
        let words = Self::STRIDE * added;
        if is_small {
            let (directory, segment) = self.take_only(2 * words)?;
            return Some((directory, [segment; 2]));
        }
        let low = self.take_array(words)?;
        if let Some(high) = self.take_array(words) {
            return Some((NodeAddr::new(0), [low, high]));
        }
        // SAFETY: the segment was just taken, so no other code knows it.
        unsafe { self.give_array(low, words) };
        None
    }
}
