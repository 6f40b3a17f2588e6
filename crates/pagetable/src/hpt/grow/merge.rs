//! The merge of two segments, which [`grow`](super) describes.

use core::sync::atomic::Ordering;

use super::SHORT;
use crate::format::Format;
use crate::hpt::chain::Spare;
use crate::hpt::shape::Spot;
use crate::hpt::{Hashed, Sizes};
use crate::nodes::{NodeAddr, Nodes};
use crate::{Geometry, Retired};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// Merges the segment that was split last with the segment from which it was split. Returns whether it did.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table;
    /// - the chains of the last split have all been parted.
    #[inline(never)]
    pub(super) unsafe fn merge(&self, batch: &mut Retired<'n>) -> bool {
        let heads = self.buckets();
        let before = Self::before(heads);
        let (added, apart) = Self::split_of(before);
        let is_small = heads <= 1 << Self::SEGMENT_LOG;
        // SAFETY: by this function's contract the caller is the only writer; no walker can reach the new segment before it
        // is published.
        unsafe {
            let mut want = 0;
            for high in before..heads {
                let pair = [self.numbered(high - apart), self.numbered(high)];
                if pair.iter().all(|&head| self.short_end(head).is_none()) {
                    return false;
                }
                want += usize::from(pair.iter().all(|&head| self.read_tag(head) & Self::LIVE != 0));
            }
            let Ok(mut spare) = Spare::take(self.nodes, &[Self::NODE], [want]) else { return false };
            let words = added * Self::STRIDE;
            let taken = if is_small {
                self.take_only(words)
            } else {
                self.take_array(words).map(|new| (NodeAddr::new(0), new))
            };
            let Some((directory, new)) = taken else { return false };
            let old = [self.numbered(before - apart), self.numbered(before)];
            for at in 0..added {
                let pair = [self.numbered(before - apart + at), self.numbered(before + at)];
                let mut first = self.join(pair);
                let to = Spot { node: new, at: at * Self::STRIDE };
                for from in pair {
                    if self.read_tag(from) & Self::LIVE == 0 {
                        continue;
                    }
                    if self.read_tag(to) == 0 {
                        self.copy_contents(to, from);
                    } else if let Some(node) = spare.next(0) {
                        self.copy_contents(Spot::node(node), from);
                        self.publish_link(Spot::node(node), first);
                        first = Some(Spot::node(node));
                        self.count_node(1);
                    }
                }
                self.publish_link(to, first);
            }
            if is_small {
                self.publish_only(batch, directory, new, before);
            } else {
                self.publish_segment((before - apart) >> Self::SEGMENT_LOG, apart, new, 0);
            }
            self.growth.heads.store(before, Ordering::Relaxed);
            self.growth.joined.store(before, Ordering::Relaxed);
            self.growth.note_moved(2 * added);
            if is_small {
                self.retire_array(batch, old[0].node, heads * Self::STRIDE);
            } else {
                for old in old {
                    self.retire_array(batch, old.node, added * Self::STRIDE);
                }
                self.narrow(batch, before >> Self::SEGMENT_LOG);
            }
        }
        true
    }

    /// Returns the last bucket of a chain, or `None` if the chain has [`SHORT`] or more overflow buckets.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - `head` is the first bucket of a chain of the table.
    unsafe fn short_end(&self, head: Spot) -> Option<Spot> {
        let mut end = head;
        for _ in 0..SHORT {
            // SAFETY: by this function's contract the caller is the only writer.
            match unsafe { self.behind(end) } {
                Some(next) => end = next,
                None => return Some(end),
            }
        }
        None
    }

    /// Joins the chains behind two first buckets, at least one of which is short, and returns the first overflow bucket.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - `pair` are two first buckets of the table.
    unsafe fn join(&self, pair: [Spot; 2]) -> Option<Spot> {
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe {
            let [one, other] = pair.map(|head| self.behind(head));
            let (Some(_), Some(_)) = (one, other) else { return one.or(other) };
            if let Some(end) = self.short_end(pair[0]) {
                self.publish_link(end, other);
                return one;
            }
            if let Some(end) = self.short_end(pair[1]) {
                self.publish_link(end, one);
            }
            other
        }
    }
}
