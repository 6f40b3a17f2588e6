//! Taking a range out of a table before its frames are known: the frames wait for the shootdown in the leaves.
//!
//! ```text
//!   node       | link | 0 | 0 | link |        a leaf of which nothing stays: its slots are emptied, and it keeps its PTEs
//!                      \   \
//!                       \   `-> | tag | PTE | PTE |   a list of such leaves, in the order of the pages, through their records
//!                        `----> | tag | PTE |  0  |
//!   shootdown
//!   release    the frames of the leaves, then the leaves: the table is not needed for that
//! ```
//!
//! So a range of any length needs one shootdown and no memory. A leaf is a pair of pages. At each end of the range a pair may have
//! its other page outside: that leaf stays, and what its page has held waits beside the list.

use core::fmt;
use core::marker::PhantomData;

use tlbkit_addr::{FlushScope, Pages};

use super::Gpt;
use super::guard::low;
use super::kseg0::{Digits, Kseg0};
use super::layout::{Edge, Holds, Layout};
use super::node::Writing;
use super::shape::Shape;
use super::visit::{Covering, Span};
use crate::format::{Format, is_taken};
use crate::frames::Joined;
use crate::geometry::Checked as _;
use crate::nodes::{Freed, ListLink, NodeAddr, Nodes};
use crate::word::atomics::Ordering;
use crate::{Entry, Error, Geometry, Holes, Mode as _, Uncovered, Word, Writer};

/// Leaves that [`Writer::detach`] has taken out of a guarded table, with the frames and marks in them.
///
/// If it is dropped before [`release`](Self::release) has returned `true`, the leaves are leaked, and counted as
/// [lost](crate::nodes::Held::lost); their frames are leaked, too.
#[must_use = "its leaves hold frames: flush, then release it"]
pub struct Detached<'n, G: Geometry, F: Format<Word = u32>, N: Nodes<Word = u32>, P: Digits> {
    nodes: &'n N,
    /// The first and the last leaf. The records of the leaves link the list.
    ends: Option<(NodeAddr, NodeAddr)>,
    /// The next slot to read in the first leaf.
    next: usize,
    /// The number of leaves in the list.
    count: usize,
    /// What pairs have held of which one page stays: at most one at each end of the range.
    halves: [Option<Uncovered>; 2],
    pending: Joined,
    shape: PhantomData<(G, F, P)>,
}

/// The table whose leaves are pairs of pages.
type Pairs<'n, G, F, N, P> = Gpt<'n, G, F, N, Kseg0<P>, P>;

impl<'n, G: Geometry, F: Format<Word = u32>, N: Nodes<Word = u32>, P: Digits> Detached<'n, G, F, N, P> {
    const fn new(nodes: &'n N) -> Self {
        Self {
            nodes,
            ends: None,
            next: 0,
            count: 0,
            halves: [None; 2],
            pending: Joined::new(),
            shape: PhantomData,
        }
    }

    /// Tells whether nothing waits for its release.
    pub fn is_empty(&self) -> bool {
        self.count == 0 && self.halves.iter().all(Option::is_none)
    }

    /// Puts a leaf at the end of the list.
    ///
    /// # Safety
    ///
    /// The leaf came from the storage, and no word leads to it any more.
    unsafe fn push(&mut self, leaf: NodeAddr) {
        let link = |node, rest| {
            // SAFETY: by this function's contract the leaf is taken, and so are those of the list: their records are the list's.
            unsafe { (*self.nodes.link(node)).store(ListLink::word(rest, false), Ordering::Relaxed) };
        };
        link(leaf, 0);
        if let Some((_, last)) = self.ends {
            link(last, self.nodes.index_of(leaf));
        }
        self.nodes.held().retire(1, N::Mode::SHARED);
        self.ends = Some((self.ends.map_or(leaf, |(first, _)| first), leaf));
        self.count += 1;
    }

    /// Hands over the frames and marks in about `slots` slots of leaves, and frees these leaves. Returns `true` if nothing is left.
    /// Neighbouring frames are handed over as one run. If `hand_over` unwinds, the call can be repeated: it continues after what `hand_over`
    /// was called with.
    ///
    /// # Safety
    ///
    /// As for [`Retired::reclaim`](crate::Retired::reclaim): since the call of [`Writer::detach`] every CPU that may hold a translation of the table, or walk
    /// it, has left its walks and flushed what the writer's obligation names.
    pub unsafe fn release(&mut self, slots: usize, hand_over: &mut dyn FnMut(Uncovered)) -> bool {
        while let Some(half) = self.halves.iter_mut().find_map(Option::take) {
            hand_over(half);
        }
        for _ in 0..slots.div_ceil(2) {
            let Some((leaf, last)) = self.ends else { break };
            // SAFETY: the leaf is in the list, so it is not free, and it has its tag and two PTEs.
            let word = |at| unsafe { self.nodes.word(leaf, at) }.follow();
            let edge = Edge { node: leaf, shift: 0, width: 1, holds: Holds::Ptes };
            let edge = <Kseg0<P> as Layout<N>>::sized(edge, || word(0));
            while self.next < edge.slots() {
                let at = self.next << edge.shift;
                let entry =
                    Pairs::<G, F, N, P>::entry(word(Pairs::<G, F, N, P>::pte_of(edge, at)), edge.shift, at);
                self.next += 1;
                match entry {
                    Entry::Leaf(page) => self.pending.add(page.run(G::BASE), hand_over),
                    Entry::Mark(mark) => hand_over(Uncovered::Mark(mark)),
                    Entry::Empty => {}
                }
            }
            // SAFETY: the leaf is in the list, so its record is the list's. Then it is in no list, and by this function's contract no
            // walker can reach it.
            unsafe {
                let (rest, _) = ListLink::read((*self.nodes.link(leaf)).load(Ordering::Relaxed));
                self.ends = (rest != 0).then(|| (self.nodes.node_of(rest), last));
                self.next = 0;
                self.count -= 1;
                self.nodes.held().reclaim(1, N::Mode::SHARED);
                let freed = Freed::new(self.nodes.held(), 0);
                self.nodes.free(leaf, false);
                freed.done();
            }
        }
        self.pending.end(hand_over);
        self.count == 0
    }
}

impl<G: Geometry, F: Format<Word = u32>, N: Nodes<Word = u32>, P: Digits> Drop for Detached<'_, G, F, N, P> {
    fn drop(&mut self) {
        if self.count > 0 {
            self.nodes.held().count_lost(self.count);
            self.nodes.held().reclaim(self.count, N::Mode::SHARED);
        }
    }
}

impl<G: Geometry, F: Format<Word = u32>, N: Nodes<Word = u32>, P: Digits> fmt::Debug
    for Detached<'_, G, F, N, P>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detached").field("leaves", &self.count).finish_non_exhaustive()
    }
}

impl<'n, G: Geometry, F: Format<Word = u32>, N: Nodes<Word = u32>, P: Digits>
    Writer<'_, 'n, Pairs<'n, G, F, N, P>>
{
    /// Takes the leaves and marks of `pages` out of the table. Returns the leaves of the table that hold them.
    ///
    /// The frames belong to the caller after the flush that the writer's obligation asks for: [`Detached::release`] hands them over.
    ///
    /// Costs a dry run, and for each leaf of the table a walk and a store of its slot. Needs no memory.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`], or [`Error::Partial`] if a leaf extends beyond the range. Nothing has changed then.
    pub fn detach(&mut self, pages: Pages) -> Result<Detached<'n, G, F, N, P>, Error> {
        let (table, batch) = self.parts();
        G::SPACE.check_pages(pages)?;
        let mut detached = Detached::new(table.nodes);
        // SAFETY: this is the table's only writer, and its batch came from the table.
        let mut writing = unsafe { Writing::new(table, batch) };
        let census = writing.census(pages, Holes::Skip)?;
        if census.leaves + census.marks > 0 {
            // Also if there are only marks: a CPU may be in a leaf.
            let stale = writing.stale(pages);
            writing.touch(FlushScope::Everywhere, stale);
            // By the census no leaf extends beyond the pages.
            writing.or_mend(|mut writing| {
                let span = Pairs::<G, F, N, P>::span(pages);
                let mut next = Some(span.first);
                while let Some(at) = next {
                    next = writing.detach_next(&mut detached, Span { first: at, last: span.last });
                }
                writing.tune_ends(span);
            });
        }
        Ok(detached)
    }
}

impl<'n, G: Geometry, F: Format<Word = u32>, N: Nodes<Word = u32>, P: Digits>
    Writing<'_, 'n, Pairs<'n, G, F, N, P>>
{
    /// Takes the entries of a span in the first leaf that has any out of the table. No leaf extends beyond the span. Returns the first
    /// key to look at next.
    #[inline(never)]
    fn detach_next(&mut self, detached: &mut Detached<'n, G, F, N, P>, span: Span) -> Option<usize> {
        let Covering { slot, leaf, base, part } = self.first_leaf(span)?;
        let whole = span.within(base, leaf.top(), 0)?;
        // Larger pages of a pair have slots of their own.
        let shared = slot.node().filter(|node| node.shares(&leaf));
        let (live, gone) = (leaf.live(), leaf.count(whole, is_taken::<F>));
        for pte in leaf.ptes(whole) {
            let word = pte.read();
            if !is_taken::<F>(word) {
                continue;
            }
            if let Some(node) = shared {
                for slot in node.run(node.index(pte.at()), &leaf) {
                    node.slot(slot).publish(None);
                }
            }
            if gone < live {
                let half = match pte.entry() {
                    Entry::Leaf(page) => Some(Uncovered::Frames(page.run(G::BASE))),
                    Entry::Mark(mark) => Some(Uncovered::Mark(mark)),
                    Entry::Empty => None,
                };
                if let Some(free) = detached.halves.iter_mut().find(|half| half.is_none()) {
                    *free = half;
                }
                pte.store(u32::ZERO);
            }
        }
        self.table().tally.ptes(-(gone as isize));
        if gone < live {
            leaf.set_live(live - gone);
        } else {
            if shared.is_none() {
                slot.publish(None);
            }
            self.table().tally.leaf(-1, Pairs::<G, F, N, P>::words(*leaf) * u32::BYTES);
            // SAFETY: the slots of the leaf's pages led to it, and they are empty.
            unsafe { detached.push(leaf.addr()) };
        }
        if let Some(node) = slot.node() {
            self.left_empty(node, live - gone, part.first);
        }
        // Where a page of a larger pair is not mapped, smaller pages may be.
        (part.last | low(Pairs::<G, F, N, P>::BASE)).checked_add(1).filter(|&next| next <= span.last)
    }
}
