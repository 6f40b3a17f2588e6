//! Nodes that wait for a shootdown with the frames in them.

use core::fmt;
use core::marker::PhantomData;

use tlbkit_addr::VirtAddr;

use super::Subtree;
#[cfg(doc)]
use crate::Writer;
use crate::format::{Format, gone_of};
use crate::frames::Joined;
use crate::mpt::leaf::Decode as _;
use crate::mpt::shape::{MAX, Shape};
use crate::nodes::{Freed, ListLink, NodeAddr, Nodes};
use crate::word::atomics::Ordering;
use crate::{Mode as _, Radix, Run, Uncovered, Word as _};

/// See [`Detached::LOOSE`].
const LOOSE: usize = 8;

/// Nodes that [`Writer::detach`] has taken out of tables, with the frames and marks in them.
///
/// If it is dropped before [`release`](Self::release) has returned `true`, the nodes are leaked, and counted as
/// [lost](crate::nodes::Held::lost); their frames are leaked, too.
#[must_use = "its nodes hold frames: flush, then release it"]
pub struct Detached<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> {
    nodes: &'n N,
    /// The number of the first node in each level's list, or 0. The records of the nodes link the lists.
    heads: [u32; MAX],
    /// The next slot to read in the first node of each list.
    next: [u32; MAX],
    /// The number of nodes in the lists, and below them.
    count: usize,
    pub(in crate::mpt) pending: Joined,
    /// Frames of entries that were emptied, because the format has no bits for them. The free places come last.
    loose: [Option<Run>; LOOSE],
    shape: PhantomData<(G, F)>,
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Detached<'n, G, F, N> {
    /// The most runs of frames that wait neither in a node nor in an entry.
    pub const LOOSE: usize = LOOSE;

    /// Returns an empty list for the nodes of a storage.
    pub const fn new(nodes: &'n N) -> Self {
        Self {
            nodes,
            heads: [0; MAX],
            next: [0; MAX],
            count: 0,
            pending: Joined::new(),
            loose: [None; LOOSE],
            shape: PhantomData,
        }
    }

    /// Tells whether the list is one for the nodes of a storage.
    pub(crate) fn is_for(&self, nodes: &N) -> bool {
        core::ptr::eq(self.nodes, nodes)
    }

    /// Returns the number of nodes that wait for their release.
    pub const fn nodes(&self) -> usize {
        self.count
    }

    /// Returns the last of the loose runs if `run` continues it, or a free place.
    fn place_for(&mut self, run: Run) -> Option<&mut Option<Run>> {
        let used = self.loose.iter().take_while(|run| run.is_some()).count();
        let continues = |last: &Run| last.first.checked_add(last.len) == Some(run.first);
        let last = used.checked_sub(1).filter(|&last| self.loose[last].as_ref().is_some_and(continues));
        self.loose.get_mut(last.unwrap_or(used))
    }

    /// Tells whether there is room for the frames of an entry that is to be emptied.
    pub(crate) fn has_room(&mut self, run: Run) -> bool {
        self.place_for(run).is_some()
    }

    /// Keeps the frames of an entry that was emptied, for which there [is room](Self::has_room).
    pub(crate) fn keep(&mut self, run: Run) {
        if let Some(place) = self.place_for(run) {
            let before = place.unwrap_or(Run { len: 0, dirty: false, ..run });
            *place = Some(Run { len: before.len + run.len, dirty: before.dirty || run.dirty, ..before });
        }
    }

    /// Adds the node that an entry links. It and those below it are `count` nodes.
    pub(crate) fn push(&mut self, gone: Subtree<'_, 'n, G, F, N>, count: usize) {
        let seen = gone.into_seen();
        if self.is_for(seen.node.table.nodes)
            && let Some(node) = seen.link()
        {
            // SAFETY: the entry was the only link to the node.
            unsafe { self.add(node.addr, node.level, count) };
        }
    }

    /// Adds a node of `level` that has not been counted, or that with those below it is `count` nodes.
    ///
    /// # Safety
    ///
    /// The node is one of the storage. Nothing else leads to it, but slots of nodes that this list has had, and those were read.
    pub(crate) unsafe fn add(&mut self, node: NodeAddr, level: usize, count: usize) {
        let (head, index) = (&mut self.heads[level % MAX], self.nodes.index_of(node));
        let mut rest = *head;
        if self.next[level % MAX] == 0 {
            *head = index;
        } else {
            // The first node has been read in part, so it stays the first.
            let first = self.nodes.node_of(rest);
            // SAFETY: the node is in the list, so its record is the list's.
            let link = unsafe { &*self.nodes.link(first) };
            rest = ListLink::read(link.load(Ordering::Relaxed)).0;
            link.store(ListLink::word(index, false), Ordering::Relaxed);
        }
        // SAFETY: by this function's contract the node is taken, and nobody else uses its record.
        unsafe { (*self.nodes.link(node)).store(ListLink::word(rest, false), Ordering::Relaxed) };
        self.nodes.held().retire(count, N::Mode::SHARED);
        self.count += count;
    }

    /// Hands over the frames and marks in up to `slots` slots, and frees the nodes that have been read. Returns `true` if nothing
    /// is left. Neighbouring frames are handed over as one run. If `hand_over` unwinds, the call can be repeated: it continues after
    /// what `hand_over` was called with.
    ///
    /// # Safety
    ///
    /// As for [`Retired::reclaim`](crate::Retired::reclaim): since the call of [`Writer::detach`] every CPU that may hold a
    /// translation of the table, or walk it, has left its walks and flushed what the writer's obligation names.
    pub unsafe fn release(&mut self, slots: usize, hand_over: &mut dyn FnMut(Uncovered)) -> bool {
        while let Some(run) = self.loose.iter_mut().find_map(Option::take) {
            self.pending.add(run, hand_over);
        }
        let mut left = slots;
        // The lists of the lower levels come first, so that a node's list is empty when a node above it is read.
        while let Some(level) = (0..Self::LEVELS).rev().find(|&level| self.heads[level] != 0) {
            let node = self.nodes.node_of(self.heads[level]);
            if (self.next[level] as usize) < Self::slots(level) {
                if left == 0 {
                    break;
                }
                left -= self.read(node, level, left, hand_over);
                continue;
            }
            // SAFETY: the node is in the list, so its record is the list's.
            let link = unsafe { (*self.nodes.link(node)).load(Ordering::Relaxed) };
            (self.heads[level], self.next[level]) = (ListLink::read(link).0, 0);
            self.count -= 1;
            self.nodes.held().reclaim(1, N::Mode::SHARED);
            let freed = Freed::new(self.nodes.held(), 0);
            // SAFETY: by this function's contract no walker can reach the node, which is in no list any more.
            unsafe { self.nodes.free(node, false) };
            freed.done();
        }
        self.pending.end(hand_over);
        let is_over = self.heads == [0; MAX];
        if is_over && self.count > 0 {
            // The table has counted nodes that no word leads to: a change of a part that unwound has lost them.
            self.nodes.held().count_lost(self.count);
            self.nodes.held().reclaim(self.count, N::Mode::SHARED);
            self.count = 0;
        }
        is_over
    }

    /// Reads the slots of a last-level node from `first` on, as long as they are empty or hold leaves. Returns the slot after them.
    #[inline(always)]
    fn read_last(
        &mut self,
        node: NodeAddr,
        first: usize,
        end: usize,
        hand_over: &mut dyn FnMut(Uncovered),
    ) -> usize {
        let level = Self::LEVELS - 1;
        for index in first..end {
            // SAFETY: the place is in the node, which is not free.
            let word = unsafe { self.nodes.word(node, Self::place(level, index)) }.follow();
            if word == F::Word::ZERO {
                continue;
            }
            if !Self::is_leaf(word, level) {
                return index;
            }
            // Before the slot's frames are handed over, which may unwind.
            self.next[level % MAX] = index as u32 + 1;
            self.pending.add(Self::run_of(word, level, index), hand_over);
        }
        end
    }

    /// Reads up to `most` slots of `node`, the first of the list of `level`, from the next slot on, but no further than to a link.
    /// Returns how many slots it has read.
    fn read(
        &mut self,
        node: NodeAddr,
        level: usize,
        most: usize,
        hand_over: &mut dyn FnMut(Uncovered),
    ) -> usize {
        let first = self.next[level % MAX] as usize;
        let end = Self::slots(level).min(first.saturating_add(most));
        let mut index = first;
        if Self::is_last(level) {
            // The common case: no link, and the level is known.
            index = self.read_last(node, first, end, hand_over);
        }
        for index in index..end {
            // SAFETY: the place is in the node, which is not free.
            let word = unsafe { self.nodes.word(node, Self::place(level, index)) }.follow();
            if word == F::Word::ZERO {
                continue;
            }
            // Before the slot's frames are handed over, which may unwind.
            self.next[level % MAX] = index as u32 + 1;
            if Self::is_leaf(word, level) {
                self.pending.add(Self::run_of(word, level, index), hand_over);
            } else if Self::is_link(word, level) {
                // SAFETY: only the node led to the node below, and its slot has been read. It was counted with this one.
                unsafe { self.add(F::node(word), level + 1, 0) };
                return index + 1 - first;
            } else if let Some((first, dirty)) = gone_of::<F>(word) {
                // An earlier detachment has left the frame here.
                self.pending.add(Run { first, len: Self::slot_pages(level), dirty }, hand_over);
            } else if let Some(mark) = Self::entry(word, level, VirtAddr::new(0)).mark() {
                hand_over(Uncovered::Mark(mark));
            }
        }
        self.next[level % MAX] = end as u32;
        end - first
    }
}

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Drop for Detached<'_, G, F, N> {
    fn drop(&mut self) {
        if self.count > 0 {
            self.nodes.held().count_lost(self.count);
            self.nodes.held().reclaim(self.count, N::Mode::SHARED);
        }
    }
}

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> fmt::Debug for Detached<'_, G, F, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detached").field("nodes", &self.count).finish_non_exhaustive()
    }
}
