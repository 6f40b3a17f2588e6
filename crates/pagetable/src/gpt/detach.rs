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

use super::kseg0::{self, Digits, Kseg0};
use super::layout::Edge;
use super::slots::Place;
use super::unmap::FirstLeaf;
use super::visit::Span;
use super::{Gpt, guard};
use crate::format::{Format, is_taken};
use crate::frames::{Held, Joined};
use crate::geometry::Checked as _;
use crate::nodes::{Freed, ListLink, NodeAddr, Nodes};
use crate::word::atomics::Ordering;
use crate::{Entry, Error, Geometry, Holes, Mode as _, Retired, Word, Writer};

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
    halves: [Option<Held>; 2],
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

    /// Takes the first leaf from the list and frees it.
    ///
    /// # Safety
    ///
    /// As for [`release`](Self::release); both slots of the leaf have been read.
    unsafe fn free(&mut self, leaf: NodeAddr, last: NodeAddr) {
        // SAFETY: the leaf is in the list, so its record is the list's.
        let (rest, _) = ListLink::read(unsafe { (*self.nodes.link(leaf)).load(Ordering::Relaxed) });
        self.ends = (rest != 0).then(|| (self.nodes.node_of(rest), last));
        self.next = 0;
        self.count -= 1;
        self.nodes.held().reclaim(1, N::Mode::SHARED);
        let freed = Freed::new(self.nodes.held(), 0);
        // SAFETY: by this function's contract no walker can reach the leaf, which is in no list any more.
        unsafe { self.nodes.free(leaf, false) };
        freed.done();
    }

    /// Hands over the frames and marks in about `slots` slots of leaves, and frees these leaves. Returns `true` if nothing is left.
    /// Neighbouring frames are handed over as one run. If `held` unwinds, the call can be repeated: it continues after what `held`
    /// was called with.
    ///
    /// # Safety
    ///
    /// As for [`Retired::reclaim`]: since the call of [`Writer::detach`] every CPU that may hold a translation of the table, or walk
    /// it, has left its walks and flushed what the writer's obligation names.
    pub unsafe fn release(&mut self, slots: usize, held: &mut dyn FnMut(Held)) -> bool {
        while let Some(half) = self.halves.iter_mut().find_map(Option::take) {
            held(half);
        }
        for _ in 0..slots.div_ceil(2) {
            let Some((leaf, last)) = self.ends else { break };
            // SAFETY: this function's contract; the leaf is in the list, so it is not free, and it has two slots.
            unsafe {
                let edge = kseg0::leaf(self.nodes, leaf);
                while self.next < edge.slots() {
                    let at = self.next << edge.shift;
                    let word = self.nodes.follow(leaf, Pairs::<G, F, N, P>::pte_of(edge, at));
                    self.next += 1;
                    match Pairs::<G, F, N, P>::entry(word, edge.shift, at) {
                        Entry::Leaf(page) => self.pending.add(page.run(G::BASE), held),
                        Entry::Mark(mark) => held(Held::Mark(mark)),
                        Entry::Empty => {}
                    }
                }
                self.free(leaf, last);
            }
        }
        self.pending.end(held);
        self.count == 0
    }
}

impl<G: Geometry, F: Format<Word = u32>, N: Nodes<Word = u32>, P: Digits> Drop for Detached<'_, G, F, N, P> {
    fn drop(&mut self) {
        if self.count > 0 {
            self.nodes.held().lose(self.count);
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
        // SAFETY: the caller is the only writer, and the batch is the table's, which the change does not replace. No leaf extends
        // beyond the pages.
        unsafe {
            let census = table.census(pages, Holes::Skip)?;
            if census.leaves + census.marks > 0 {
                // Also if there are only marks: a CPU may be in a leaf.
                batch.touch(FlushScope::Everywhere, table.stale(pages));
                let span = Pairs::<G, F, N, P>::span(pages);
                batch.change_late(
                    |batch| table.detach_span(batch, &mut detached, span),
                    |batch, forgotten| table.mend(batch, forgotten),
                );
            }
        }
        Ok(detached)
    }
}

impl<'n, G: Geometry, F: Format<Word = u32>, N: Nodes<Word = u32>, P: Digits> Pairs<'n, G, F, N, P> {
    /// Takes the entries of a span out of the table.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and no leaf extends beyond the span.
    unsafe fn detach_span(
        &self,
        batch: &mut Retired<'n>,
        detached: &mut Detached<'n, G, F, N, P>,
        span: Span,
    ) {
        let mut next = Some(span.first);
        // SAFETY: this function's contract.
        unsafe {
            while let Some(at) = next {
                next = self.detach_next(batch, detached, Span { first: at, last: span.last });
            }
            self.tune_ends(batch, span, span.first != span.last);
        }
    }

    /// Takes the entries of a span in the first leaf that has any out of the table. Returns the first key to look at next.
    ///
    /// # Safety
    ///
    /// As for [`detach_span`](Self::detach_span).
    #[inline(never)]
    unsafe fn detach_next(
        &self,
        batch: &mut Retired<'n>,
        detached: &mut Detached<'n, G, F, N, P>,
        span: Span,
    ) -> Option<usize> {
        // SAFETY: the caller is the writer; slots are within their nodes and leaves.
        unsafe {
            let FirstLeaf { node, slot, leaf, base, part } = self.first_leaf(span)?;
            let whole = span.within(base, leaf.top(), 0)?;
            // Larger pages of a pair have slots of their own.
            let shares = !node.is_empty() && node.shares(leaf);
            let page = |index: usize| base | index << leaf.shift;
            let word = |index| self.nodes.read(leaf.node, Self::pte_of(leaf, page(index)));
            let taken = |index: &usize| is_taken::<F>(word(*index));
            let pages = || (leaf.index(whole.first)..=leaf.index(whole.last)).filter(taken);
            let (live, gone) = (self.live(leaf), pages().count());
            for index in pages() {
                if shares {
                    for slot in node.run(node.index(page(index)), leaf) {
                        self.publish(Place::In(node.node, slot), node.shift, Edge::EMPTY);
                    }
                }
                if gone < live {
                    let entry = Self::entry(word(index), leaf.shift, page(index));
                    let half = match entry {
                        Entry::Leaf(page) => Some(Held::Frames(page.run(G::BASE))),
                        Entry::Mark(mark) => Some(Held::Mark(mark)),
                        Entry::Empty => None,
                    };
                    if let Some(free) = detached.halves.iter_mut().find(|half| half.is_none()) {
                        *free = half;
                    }
                    self.nodes.store_relaxed(leaf.node, Self::pte_of(leaf, page(index)), u32::ZERO);
                    self.settle_pair(leaf, page(index));
                }
            }
            self.tally.ptes(-(gone as isize));
            if gone < live {
                self.set_live(leaf, live - gone);
            } else {
                if node.is_empty() {
                    self.publish(Place::Root, G::VA_BITS, Edge::EMPTY);
                } else if !shares {
                    self.publish(Place::In(node.node, slot), node.shift, Edge::EMPTY);
                }
                self.tally.leaf(-1, Self::words(Self::kind(leaf)) * u32::BYTES);
                detached.push(leaf.node);
                if !node.is_empty() {
                    let live = self.live(node) - 1;
                    self.set_live(node, live);
                    if live < 2 {
                        self.close_up(batch, part.first);
                    }
                }
            }
            // Where a page of a larger pair is not mapped, smaller pages may be.
            (part.last | guard::low(Self::BASE)).checked_add(1).filter(|&next| next <= span.last)
        }
    }
}
