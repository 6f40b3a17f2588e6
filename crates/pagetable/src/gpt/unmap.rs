//! Removal: pages are unmapped leaf by leaf, and a node that has one entry left is replaced by that entry. Removal needs no memory.

use tlbkit_addr::{FlushScope, Pages, VirtAddr};

use super::Gpt;
use super::guard::{agree, low};
use super::layout::{Edge, Layout};
use super::node_size::NodeSize;
use super::path::Path;
use super::slots::Place;
use super::tune::Which;
use super::visit::Span;
use super::walk::End;
use crate::format::{Format, is_taken};
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Entry, Error, Frames, Geometry, Holes, Retired, Word};

/// A leaf that covers pages of a span, and the slot that leads to it.
pub(super) struct FirstLeaf {
    /// The node that has the slot, empty if that is the root slot.
    pub(super) node: Edge,
    pub(super) slot: usize,
    pub(super) leaf: Edge,
    /// The first key that the leaf covers.
    pub(super) base: usize,
    /// The pages of the span that it covers, of those to which the slot leads.
    pub(super) part: Span,
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'n, G, F, N, L, P> {
    /// See [`Table::unmap`](crate::Table::unmap).
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
    #[inline(always)]
    pub(super) unsafe fn unmap_pages(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        holes: Holes,
        frames: Option<&mut dyn Frames>,
    ) -> Result<usize, Error> {
        G::SPACE.check_pages(pages)?;
        if pages.len() == 1 && frames.is_none() {
            // SAFETY: the caller is the writer.
            let done =
                unsafe { self.unmap_one(batch, pages, |old| F::is_leaf(old, true), FlushScope::Everywhere) };
            if done {
                return Ok(1);
            }
        }
        // SAFETY: the caller is the writer.
        unsafe { self.unmap_range(batch, pages, holes, frames) }
    }

    /// Unmaps a range after a dry run.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
    #[inline(never)]
    unsafe fn unmap_range(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        holes: Holes,
        mut frames: Option<&mut dyn Frames>,
    ) -> Result<usize, Error> {
        // SAFETY: the caller is the writer.
        unsafe {
            let census = self.census(pages, holes)?;
            if let Some(frames) = &mut frames {
                frames.reserve(census.leaves)?;
            }
            if census.pages > 0 {
                batch.touch(FlushScope::Everywhere, self.stale(pages));
            } else if census.marks == 0 {
                return Ok(0);
            }
            self.remove(batch, pages, &mut frames);
            Ok(census.pages)
        }
    }

    /// Removes the leaf entries and marks of a range from the tree.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
    pub(super) unsafe fn remove(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        frames: &mut Option<&mut dyn Frames>,
    ) {
        let span = Self::span(pages);
        // SAFETY: the caller is the writer.
        unsafe {
            let mut next = Some(span.first);
            while let Some(at) = next {
                next = self.remove_next(batch, Span { first: at, last: span.last }, frames);
            }
            self.tune_ends(batch, span, pages.len() > 1);
        }
    }

    /// Tunes the nodes that have lost only some of their pages: the region of each contains one end of the span.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
    #[inline(always)]
    pub(super) unsafe fn tune_ends(&self, batch: &mut Retired<'n>, span: Span, all: bool) {
        // A node of a fixed size is not tuned.
        if !P::ADAPTIVE {
            return;
        }
        // SAFETY: this function's contract.
        unsafe {
            self.tune_path(batch, span.first, if all { Which::All } else { Which::Lowest(2) }, false);
            if all {
                self.tune_path(batch, span.last, Which::NotOf(span.first), false);
            }
        }
    }

    /// Unmaps the pages of a span in the first leaf that has any. A leaf that is empty then is retired, and so is its node if the
    /// node has one entry left. Returns the first key that is not removed yet.
    ///
    /// ```text
    ///   slot -> | X | leaf |      slot -> | X |  0  |       slot -> X         if X was the node's only other entry; the
    ///                               the leaf is empty                         node's digit is now a part of X's guard
    /// ```
    ///
    /// Needs no memory: if there is no memory for a small leaf, the large one stays.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
    #[inline(never)]
    unsafe fn remove_next(
        &self,
        batch: &mut Retired<'n>,
        span: Span,
        frames: &mut Option<&mut dyn Frames>,
    ) -> Option<usize> {
        // SAFETY: the caller is the writer; slots are within their nodes.
        unsafe {
            let next = self.leaf_at(span).or_else(|| self.first_leaf(span));
            let FirstLeaf { node, slot, leaf, base, part } = next?;
            let new = self.empty_leaf(batch, leaf, part, base, frames);
            if node.is_empty() {
                if new != leaf {
                    self.publish(Place::Root, G::VA_BITS, new);
                }
                return None;
            }
            if node.shares(leaf) {
                // The other page of the pair, if it is mapped, has slots of its own.
                for slot in node.run(slot, leaf) {
                    self.publish(Place::In(node.node, slot), node.shift, Edge::EMPTY);
                }
            } else if new != leaf {
                self.publish(Place::In(node.node, slot), node.shift, new);
            }
            if new.is_empty() {
                let live = self.live(node) - 1;
                self.set_live(node, live);
                if live < 2 {
                    self.close_up(batch, part.first);
                }
            }
            (part.last | low(Self::BASE)).checked_add(1).filter(|&next| next <= span.last)
        }
    }

    /// Finds the leaf that covers the first page of a span, if there is one, by one walk. Returns `None` in tables in which several
    /// slots may lead to a leaf of base pages ([`PLAIN`](Self::PLAIN)).
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[inline(always)]
    unsafe fn leaf_at(&self, span: Span) -> Option<FirstLeaf> {
        if !Self::PLAIN {
            return None;
        }
        // SAFETY: the caller is the writer; the walk ends at a live leaf, or nowhere.
        unsafe {
            let End { above: node, edge: leaf, .. } = self.walk(span.first);
            if leaf.is_empty() {
                return None;
            }
            let base = self.base_of(leaf);
            let slot = if node.is_empty() { 0 } else { node.index(span.first) };
            let part = agree(base, span.first, leaf.top()).then(|| span.within(base, leaf.top(), 0));
            Some(FirstLeaf { node, slot, leaf, base, part: part?? })
        }
    }

    /// Finds the first leaf that covers pages of a span. A function of its own, so that its path is not on the stack while the leaf
    /// is changed.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[inline(never)]
    pub(super) unsafe fn first_leaf(&self, span: Span) -> Option<FirstLeaf> {
        // SAFETY: the caller is the writer; slots are within their nodes.
        unsafe {
            let root = self.edge(Place::Root, G::VA_BITS, 0);
            if root.is_empty() {
                return None;
            }
            if root.is_leaf() {
                let base = self.base_of(root);
                let part = span.within(base, root.top(), 0)?;
                return Some(FirstLeaf { node: Edge::EMPTY, slot: 0, leaf: root, base, part });
            }
            let mut path = Path::new();
            self.enter(&mut path, root, span.first);
            loop {
                let level = path.levels().last_mut()?;
                let (node, slot) = (level.edge(self.nodes), level.slot as usize);
                if slot >= node.slots() {
                    path.pop();
                    continue;
                }
                level.slot += 1;
                let leaf = self.edge(Place::In(node.node, slot), node.shift, 0);
                if leaf.is_empty() {
                    continue;
                }
                if !leaf.is_leaf() {
                    path.push(self.nodes, leaf, 0);
                    continue;
                }
                let base = self.base_of(leaf);
                if base > span.last {
                    return None;
                }
                let run = node.run(slot, leaf);
                level.slot = run.end as u16;
                let start = base & !low(node.top()) | run.start << node.shift;
                let part = if node.shares(leaf) {
                    span.within(start, leaf.shift, 0)
                } else {
                    span.within(base, leaf.top(), 0)
                };
                if let Some(part) = part {
                    return Some(FirstLeaf { node, slot, leaf, base, part });
                }
            }
        }
    }

    /// Walks for `at` to a node that has one entry, publishes this entry in the node's place, and retires the node.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and the walk for `at` ends at an empty slot, of a node with
    /// one entry.
    #[inline(never)]
    pub(super) unsafe fn close_up(&self, batch: &mut Retired<'n>, at: usize) {
        // SAFETY: the caller is the writer; slots are within their nodes, and the walk ends at an empty one.
        unsafe {
            let mut place = Place::Root;
            let mut node = self.edge(place, G::VA_BITS, at);
            while !node.is_empty() && !node.is_leaf() {
                let next = Place::In(node.node, node.index(at));
                let child = self.edge(next, node.shift, at);
                if child.is_empty() {
                    let only = self.last_entry(node, at & !low(node.top()));
                    self.publish(place, G::VA_BITS, only);
                    self.retire(batch, node);
                    return;
                }
                (place, node) = (next, child);
            }
        }
    }

    /// Returns the last entry of a node: its only entry, if it has one.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and `node` is a node of this table that begins at `base`.
    pub(super) unsafe fn last_entry(&self, node: Edge, base: usize) -> Edge {
        (0..node.slots())
            .rev()
            // SAFETY: the caller is the writer; the slots are within the node.
            .map(|slot| unsafe {
                self.edge(Place::In(node.node, slot), node.shift, base | slot << node.shift)
            })
            .find(|child| !child.is_empty())
            .unwrap_or(Edge::EMPTY)
    }

    /// Empties the slots of a leaf that a span covers. Returns the edge that replaces the edge to the leaf, as
    /// [`emptied`](Self::emptied) does.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and `leaf` is a leaf of this table that begins at `base` and
    /// covers the span. The caller publishes the result in its place.
    #[inline(never)]
    unsafe fn empty_leaf(
        &self,
        batch: &mut Retired<'n>,
        leaf: Edge,
        span: Span,
        base: usize,
        frames: &mut Option<&mut dyn Frames>,
    ) -> Edge {
        // SAFETY: the caller is the writer; the slots are within the leaf.
        unsafe {
            if Self::IN_A_ROW && frames.is_none() {
                let pages = Self::pages_in(span, leaf.shift);
                let gone = self.count_part(leaf, span, is_taken::<F>);
                let first = Self::pte_of(leaf, span.first);
                self.nodes.fill(leaf.node, first, pages, F::Word::ZERO, F::Word::ZERO);
                return self.emptied(batch, leaf, base, gone);
            }
            let mut gone = 0;
            for slot in leaf.index(span.first)..=leaf.index(span.last) {
                let at = base | slot << leaf.shift;
                let place = Self::pte_of(leaf, at);
                let word = self.nodes.read(leaf.node, place);
                if is_taken::<F>(word) {
                    self.nodes.store_relaxed(leaf.node, place, F::Word::ZERO);
                    self.settle_pair(leaf, at);
                    gone += 1;
                    if let Some(frames) = frames {
                        // The PTE is empty by now, so the table is consistent even if this call unwinds.
                        match Self::entry(word, leaf.shift, at) {
                            Entry::Leaf(page) => frames.push(page.frame, page.size, G::BASE, page.attr),
                            Entry::Mark(mark) => {
                                frames.marked(VirtAddr::new(Self::address(at)), mark);
                            }
                            Entry::Empty => {}
                        }
                    }
                }
            }
            self.emptied(batch, leaf, base, gone)
        }
    }

    /// Returns the edge that replaces the edge to a leaf in which `gone` PTEs have been emptied: to the same leaf, to one of the
    /// smallest size, or empty.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and `leaf` is a leaf of this table that begins at `base`. The
    /// caller publishes the result in its place.
    #[inline(always)]
    unsafe fn emptied(&self, batch: &mut Retired<'n>, leaf: Edge, base: usize, gone: usize) -> Edge {
        self.tally.ptes(-(gone as isize));
        // SAFETY: by this function's contract the caller is the writer, and the leaf is in the table.
        unsafe {
            let live = self.live(leaf) - gone;
            if live == 0 {
                self.retire(batch, leaf);
                return Edge::EMPTY;
            }
            self.set_live(leaf, live);
            self.shrink(batch, leaf, base, live)
        }
    }

    /// Retires all nodes and leaves of the table.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and the table is not used any more.
    pub(super) unsafe fn take_apart(&mut self, batch: &mut Retired<'n>) {
        // SAFETY: no code but the caller uses the table any more.
        unsafe {
            let root = self.edge(Place::Root, G::VA_BITS, 0);
            if !root.is_empty() {
                self.publish(Place::Root, G::VA_BITS, Edge::EMPTY);
                self.discard(batch, root);
            }
        }
    }
}
