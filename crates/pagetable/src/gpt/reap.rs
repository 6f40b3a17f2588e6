//! Unmapping and protecting: how pages leave the tree, and what is left of it closes up.

use core::ops::ControlFlow;

use tlbkit_addr::{Pages, Reach, Vpn};

use super::Gpt;
use super::bits::low;
use super::layout::{Edge, Layout};
use super::policy::Policy;
use super::slots::Place;
use super::sweep::Span;
use crate::format::{Format, check_change};
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::{Change, Error, Frames, Geometry, Holes, Retired, Word};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: Policy> Gpt<'n, G, F, N, L, P> {
    /// See [`Table::unmap`](crate::Table::unmap).
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table; so for all that follow.
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
            if unsafe { self.unmap_one(batch, pages) } {
                return Ok(1);
            }
        }
        // SAFETY: the caller is the writer.
        unsafe { self.unmap_range(batch, pages, holes, frames) }
    }

    /// Unmaps one base page if that needs no change of the tree: from a leaf that has enough others.
    #[inline(always)]
    unsafe fn unmap_one(&self, batch: &mut Retired<'n>, pages: Pages) -> bool {
        let at = pages.first().address(G::BASE).get();
        // SAFETY: the caller is the writer; the leaf is live and the index below its slots.
        unsafe {
            let Some(found) = L::seek(self.nodes, &self.root, G::VA_BITS, Self::TAG, at) else {
                return false;
            };
            let place = Self::pte_at(found.shift, found.index, at);
            let leaf = found.edge();
            let live = self.live(leaf);
            if !F::is_leaf(self.nodes.read(found.leaf, place), true)
                || found.shift != Self::BASE
                || live == 1
                || Self::sparse(found.width, live - 1)
            {
                return false;
            }
            self.nodes.put(found.leaf, place, F::Word::ZERO);
            self.settle_pair(leaf, at);
            self.set_live(leaf, live - 1);
        }
        self.tally.ptes(-1);
        batch.touch(Reach::Everywhere, pages);
        true
    }

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
            if census.pages == 0 {
                return Ok(0);
            }
            let span = Self::span(pages);
            batch.touch(Reach::Everywhere, self.stale(pages));
            let root = self.edge(Place::Root, G::VA_BITS, 0);
            let new = self.reap(batch, root, span, &mut frames);
            if new != root {
                self.publish(Place::Root, G::VA_BITS, new);
            }
            Ok(census.pages)
        }
    }

    /// Returns what a change of the leaves in `pages`, all of them whole, makes stale.
    unsafe fn stale(&self, pages: Pages) -> Pages {
        // SAFETY: the caller is the writer.
        let find = |page: Vpn| unsafe { self.find(page.address(G::BASE).get()) };
        stale::<G, F>(pages, |page| find(page).map(|leaf| leaf.size))
    }

    /// Empties the part of a span that a subtree covers, and returns what its slot shall say then.
    unsafe fn reap(
        &self,
        batch: &mut Retired<'n>,
        old: Edge,
        span: Span,
        frames: &mut Option<&mut dyn Frames>,
    ) -> Edge {
        // SAFETY: the caller is the writer; slots are within their nodes.
        unsafe {
            let Some(near) = self.nearest(old, span.first) else { return old };
            let base = near & !low(old.top());
            let Some(span) = span.within(base, old.top(), 0) else { return old };
            if old.leaf {
                return self.reap_leaf(batch, old, span, base, frames);
            }
            let mut live = self.live(old);
            let mut changed = false;
            let mut slot = old.index(span.first);
            while slot <= old.index(span.last) {
                let child = self.edge(Place::In(old.node, slot), old.shift, base | slot << old.shift);
                let run = old.run(slot, child);
                slot = run.end;
                let Some(part) = Self::part_of_run(old, &run, base, span, child) else { continue };
                if child.is_empty() {
                    continue;
                }
                let new = self.reap(batch, child, part, frames);
                if new != child || old.shares(child) {
                    // What is left of a leaf that several slots lead to is the other page's, which has its own.
                    let new_here = if old.shares(child) { Edge::EMPTY } else { new };
                    for slot in run {
                        self.publish(Place::In(old.node, slot), old.shift, new_here);
                    }
                    live -= usize::from(new.is_empty());
                    changed = true;
                }
            }
            if live < 2 {
                // The entry that is left, if any, takes the node's place: digit and guards become one guard.
                let only = self.only(old, base);
                self.retire(batch, old);
                return only;
            }
            self.set_live(old, live);
            if changed || old.top() <= Self::LEAF_TOP {
                return self.tune(batch, old, base);
            }
            old
        }
    }

    /// Returns the last entry of a node, the only one if there is but one.
    pub(super) unsafe fn only(&self, node: Edge, base: usize) -> Edge {
        (0..node.slots())
            // SAFETY: the caller is the writer; the slots are within the node.
            .map(|slot| unsafe {
                self.edge(Place::In(node.node, slot), node.shift, base | slot << node.shift)
            })
            .filter(|child| !child.is_empty())
            .last()
            .unwrap_or(Edge::EMPTY)
    }

    /// Empties the slots of a leaf that a span covers.
    unsafe fn reap_leaf(
        &self,
        batch: &mut Retired<'n>,
        leaf: Edge,
        span: Span,
        base: usize,
        frames: &mut Option<&mut dyn Frames>,
    ) -> Edge {
        // SAFETY: the caller is the writer; the slots are within the leaf.
        unsafe {
            let mut gone = 0;
            for slot in leaf.index(span.first)..=leaf.index(span.last) {
                let at = base | slot << leaf.shift;
                let place = Self::pte_of(leaf, at);
                let word = self.nodes.read(leaf.node, place);
                if F::is_leaf(word, true) {
                    self.nodes.put(leaf.node, place, F::Word::ZERO);
                    self.settle_pair(leaf, at);
                    gone += 1;
                    if let Some(frames) = frames {
                        // Nothing leads to the frame any more, whatever this call does.
                        let page = Self::leaf(word, leaf.shift, at);
                        frames.push(page.frame, page.size, G::BASE, page.attr);
                    }
                }
            }
            self.tally.ptes(-(gone as isize));
            let live = self.live(leaf) - gone;
            self.set_live(leaf, live);
            if live == 0 {
                self.retire(batch, leaf);
                return Edge::EMPTY;
            }
            self.shrink(batch, leaf, base, live)
        }
    }

    /// See [`Table::protect`](crate::Table::protect).
    pub(super) unsafe fn protect_pages(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        holes: Holes,
        change: Change,
    ) -> Result<usize, Error> {
        G::SPACE.check_pages(pages)?;
        check_change::<F>(change)?;
        // SAFETY: the caller is the writer; a swept PTE is in the table.
        unsafe {
            let census = self.census(pages, holes)?;
            if census.pages == 0 {
                return Ok(0);
            }
            let _ = self.sweep(Self::span(pages), &mut |leaf, at, old| {
                self.nodes.put(leaf.node, Self::pte_of(leaf, at), F::change(old, change));
                self.settle_pair(leaf, at);
                ControlFlow::Continue(())
            });
            batch.touch(change.reach(), self.stale(pages));
            Ok(census.pages)
        }
    }

    /// Takes the whole table apart.
    pub(super) unsafe fn take_apart(&mut self, batch: &mut Retired<'n>) {
        // SAFETY: the caller is the only one left who uses the table.
        unsafe {
            let root = self.edge(Place::Root, G::VA_BITS, 0);
            if !root.is_empty() {
                self.publish(Place::Root, G::VA_BITS, Edge::EMPTY);
                self.discard(batch, root);
            }
        }
    }
}
