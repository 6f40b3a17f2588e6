//! Removal: pages are unmapped leaf by leaf, and a node that has one entry left is replaced by that entry. Removal needs no memory.

use core::ops::ControlFlow;

use tlbkit_addr::{FlushScope, Pages, Vpn};

use super::guard::{agree, low};
use super::node::{Node, Sole, View, Writing};
use super::shape::Shape;
use super::tune::Which;
use super::visit::{Covering, Leaves, Span};
use super::walk::End;
use crate::format::{Format, is_taken};
use crate::{Entry, Error, Holes, Leaf, Rest, Run, Uncovered};

impl<'w, T: Shape> Writing<'w, '_, T> {
    /// See [`Table::unmap`](crate::Table::unmap).
    #[inline(always)]
    pub(super) fn unmap(mut self, pages: Pages, holes: Holes) -> Result<usize, Error> {
        T::SPACE.check_pages(pages)?;
        if pages.len() == 1 && self.unmap_one(pages, |old| T::F::is_leaf(old, true), FlushScope::Everywhere) {
            return Ok(1);
        }
        self.unmap_range(pages, holes)
    }

    /// Unmaps a range after a dry run.
    #[inline(never)]
    fn unmap_range(&mut self, pages: Pages, holes: Holes) -> Result<usize, Error> {
        let census = self.census(pages, holes)?;
        if census.pages > 0 {
            let stale = self.stale(pages);
            self.touch(FlushScope::Everywhere, stale);
        } else if census.marks == 0 {
            return Ok(0);
        }
        self.remove(pages);
        Ok(census.pages)
    }

    /// See [`Table::take_next`](crate::Table::take_next).
    #[inline(never)]
    pub(super) fn take_next(mut self, rest: &mut Rest) -> Result<Option<(Vpn, Uncovered)>, Error> {
        let Some(pages) = rest.pages() else { return Ok(None) };
        T::SPACE.check_pages(pages)?;
        let Some((taken, uncovered)) = self.first_entry(pages)? else {
            rest.end();
            return Ok(None);
        };
        if let Uncovered::Frames(_) = uncovered {
            let stale = self.stale(taken);
            self.touch(FlushScope::Everywhere, stale);
        }
        self.remove(taken);
        rest.go_past(taken.last());
        Ok(Some((taken.first(), uncovered)))
    }

    /// Removes the leaf entries and marks of a range from the tree.
    pub(super) fn remove(&mut self, pages: Pages) {
        let span = T::span(pages);
        let mut next = Some(span.first);
        while let Some(at) = next {
            next = self.remove_next(Span { first: at, last: span.last });
        }
        self.tune_ends(span);
    }

    /// Tunes the nodes that have lost only some of their pages: the region of each contains one end of the span.
    #[inline(always)]
    pub(super) fn tune_ends(&mut self, span: Span) {
        // A node of a fixed size is not tuned.
        if !T::ADAPTIVE {
            return;
        }
        let all = span.first != span.last;
        self.tune_path(span.first, if all { Which::All } else { Which::Lowest(2) }, false);
        if all {
            self.tune_path(span.last, Which::NotOf(span.first), false);
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
    #[inline(never)]
    fn remove_next(&mut self, span: Span) -> Option<usize> {
        let next = self.leaf_at(span).or_else(|| self.first_leaf(span));
        let Covering { slot, leaf, base, part } = next?;
        let gone = leaf.empty(part);
        self.table().tally().ptes(-(gone as isize));
        let live = leaf.sub_live(gone);
        match slot.run(leaf) {
            // The other page of the pair, if it is mapped, has slots of its own.
            Some((node, run)) => run.for_each(|index| node.slot(index).publish(None)),
            None if live == 0 => slot.publish(None),
            None => self.shrink(slot, leaf, base, live),
        }
        if live == 0 {
            // SAFETY: the slots of the leaf's last page led to it, and they are empty.
            unsafe { self.retire(leaf) };
        }
        self.left_empty(slot.node()?, live, part.first);
        (part.last | low(T::BASE)).checked_add(1).filter(|&next| next <= span.last)
    }

    /// Counts a leaf out of its node if it has no `live` entries. If the node has one entry left then, this takes the node's place.
    pub(super) fn left_empty(&mut self, node: Node<'w, T>, live: usize, at: usize) {
        if live == 0 && node.sub_live(1) < 2 {
            self.close_up(at);
        }
    }

    /// Walks for `at` to a node that has one entry and whose slot for `at` is empty, publishes this entry in the node's place, and
    /// retires the node.
    #[inline(never)]
    fn close_up(&mut self, at: usize) {
        let mut slot = self.root();
        let mut next = slot.read();
        while let Some(node) = next.filter(|node| !node.is_leaf()) {
            let below = node.slot_at(at);
            next = below.read();
            if next.is_none() {
                slot.publish(node.last_entry());
                // SAFETY: only the slot led to the node, and now it leads to the node's entry.
                return unsafe { self.retire(node) };
            }
            slot = below;
        }
    }

    /// Retires all nodes and leaves of the table.
    pub(super) fn take_apart(mut self) {
        let slot = self.root();
        if let Some(root) = slot.read() {
            slot.publish(None);
            // SAFETY: only the root slot led to the node, and so to everything below.
            unsafe { self.discard(root) };
        }
    }
}

impl<'w, T: Shape> View<'w, T> {
    /// Returns the first leaf or mark of a range, and its pages. With a leaf come the neighbours that map the next frames with the
    /// same attributes.
    ///
    /// # Errors
    ///
    /// [`Error::Partial`] if the first leaf extends beyond the range.
    fn first_entry(self, pages: Pages) -> Result<Option<(Pages, Uncovered)>, Error> {
        let mut found: Option<(Pages, Leaf, Run)> = None;
        let mut outcome = Ok(None);
        let _ = self.visit_entries(T::span(pages), &mut |at, entry| {
            let Entry::Leaf(leaf) = entry else {
                if let (None, Entry::Mark(mark)) = (&found, entry) {
                    outcome = Ok(Some((Pages::one(at.vpn(T::PAGE)), Uncovered::Mark(mark))));
                }
                return ControlFlow::Break(());
            };
            let (whole, run) = (T::SPACE.pages_of(&leaf), leaf.run(T::PAGE));
            let is_whole = T::SPACE.check_whole(leaf, pages);
            match &mut found {
                None => {
                    outcome = is_whole.map(|()| None);
                    found = Some((whole, leaf, run));
                }
                Some((before, first, frames))
                    if is_whole.is_ok()
                        && before.last().checked_add(1) == Some(whole.first())
                        && frames.first.checked_add(frames.len) == Some(run.first)
                        && first.attr == leaf.attr =>
                {
                    frames.len += run.len;
                    *before = before.merge(whole).unwrap_or(*before);
                }
                Some(_) => return ControlFlow::Break(()),
            }
            if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        let marked = outcome?;
        Ok(found.map(|(pages, _, run)| (pages, Uncovered::Frames(run))).or(marked))
    }

    /// Finds the leaf that covers the first page of a span, if there is one, by one walk. Returns `None` in tables in which several
    /// slots may lead to a leaf of base pages ([`PLAIN`](Shape::PLAIN)).
    #[inline(always)]
    fn leaf_at(self, span: Span) -> Option<Covering<'w, T, Sole>> {
        if !T::PLAIN {
            return None;
        }
        let End { slot, held, .. } = self.walk(span.first);
        let leaf = held?;
        let base = leaf.start();
        let part = agree(base, span.first, leaf.top()).then(|| span.within(base, leaf.top(), 0));
        Some(Covering { slot, leaf, base, part: part?? })
    }

    /// Finds the first leaf that covers pages of a span. A function of its own, so that its path is not on the stack while the leaf
    /// is changed.
    #[inline(never)]
    pub(super) fn first_leaf(self, span: Span) -> Option<Covering<'w, T, Sole>> {
        let mut leaves = Leaves::new(self, span);
        leaves.enter(self.root());
        leaves.next()
    }
}

impl<T: Shape> Node<'_, T> {
    /// Returns the last entry of a node: its only entry, if it has one.
    pub(super) fn last_entry(self) -> Option<Self> {
        self.children().rev().flatten().next()
    }

    /// Empties the slots of a leaf that a span covers, and returns how many were in use.
    #[inline(never)]
    fn empty(self, span: Span) -> usize {
        if T::IN_A_ROW {
            let gone = self.count(span, is_taken::<T::F>);
            self.clear(span);
            return gone;
        }
        self.ptes(span).filter(|pte| is_taken::<T::F>(pte.read())).map(|pte| pte.store(T::ZERO)).count()
    }
}
