//! Planted bugs that need more than a line.

use std::ops::ControlFlow;

use tlbkit_addr::{Attr, FlushScope, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::{Compact, Format};
use tlbkit_pagetable::geometry::Geometry;
use tlbkit_pagetable::nodes::{NodeAddr, Nodes};
use tlbkit_pagetable::{Change, Error, Leaf, Rest, Retired, Run, Table, Uncovered};

use super::{Own, slots, units};
use crate::LINKED;

/// Returns frames as if none of them was dirty.
pub(super) fn clean(run: Run) -> Run {
    Run { dirty: false, ..run }
}

/// Returns frames of a page of 1 GiB as if it had 2 MiB.
pub(super) fn cut(run: Run) -> Run {
    Run { len: run.len.min(512), ..run }
}

/// Returns a leaf as if every page of a range had the frames of the first.
pub(super) fn shifted(leaf: Leaf, part: Pages, pages: Pages) -> Leaf {
    let behind = part.first().get() - pages.first().get();
    Leaf { frame: Pfn::new(leaf.frame.get() - behind), ..leaf }
}

/// Returns a change that leaves pages of the topmost level as they are.
pub(super) fn but_huge(change: Change, level: usize, word: u64) -> Change {
    if level == 0 && !Compact::is_link(word) {
        Change { clear: Attr::empty(), set: Attr::empty() }
    } else {
        change
    }
}

/// Returns a change that takes from pages that they are global, too, if it takes the right to write.
pub(super) fn and_not_global(change: Change) -> Change {
    let is_lost = change.clear.contains(Attr::WRITE) && !change.set.contains(Attr::WRITE);
    if is_lost { Change { clear: change.clear | Attr::GLOBAL, ..change } } else { change }
}

/// Returns how far a change must be made known, without a thought of the right to execute.
pub(super) fn but_for_exec(change: Change, scope: FlushScope) -> FlushScope {
    if change == Change::clear(Attr::EXEC) { FlushScope::Nowhere } else { scope }
}

/// Returns the whole 2 MiB of a range, counted from its first page, or a range of less.
pub(super) fn strided(pages: Pages) -> Pages {
    Pages::count(pages.first(), pages.len() & !511).unwrap_or(pages)
}

/// Notes the first page of a range, before anything is taken out of it.
pub(super) fn note(rest: &mut Rest) {
    if let (0, Some(pages)) = (rest.place(), rest.pages()) {
        rest.set_place(pages.first().get() + 1);
    }
}

/// Tells whether a leaf is in the whole 2 MiB of the range of which `rest` is left, counted from the page that was noted.
pub(super) fn is_in_stride(rest: &Rest, left: Pages, leaf: Pages) -> bool {
    let first = Vpn::new(rest.place() - 1);
    Pages::new(first, left.last()).is_none_or(|range| strided(range).contains(leaf.first()))
}

/// Returns the part of a new last-level node without its first page, if it is not the first node of the range.
pub(super) fn late(part: Pages, pages: Pages, level: usize) -> Pages {
    let is_first = part.first() == pages.first() || level != 1;
    let late = Pages::new(Vpn::new(part.first().get() + 1), part.last());
    if is_first { part } else { late.unwrap_or(part) }
}

/// Returns the frame of a size in which a frame lies.
pub(super) fn rounded(frame: Pfn, size: PageSize) -> Pfn {
    Pfn::new(frame.get() & !(size.bytes() / PageSize::K4.bytes() - 1))
}

/// Refuses the last page of the space.
pub(super) fn refuse_last(pages: Pages) -> Result<(), Error> {
    let is_last = pages.last().get() == usize::MAX >> 12;
    if is_last { Err(Error::OutOfRange { at: VirtAddr::new(usize::MAX & !0xfff) }) } else { Ok(()) }
}

/// Forgets what the table of an earlier case has linked.
pub(super) fn forget(root: NodeAddr) {
    if LINKED.get().is_some_and(|(_, other, _)| other == root) {
        LINKED.set(None);
    }
}

impl<'n, G: Geometry, N: Nodes<Word = u64>> Own<'n, G, N> {
    pub(super) fn free_at_once(&self, node: NodeAddr, clean: bool) {
        // SAFETY: there is none: this is the bug.
        unsafe { self.nodes.free(node, clean) };
    }

    pub(super) fn retire_again(&self, batch: &mut Retired<'n>, node: NodeAddr) {
        // SAFETY: there is none: this is the bug.
        unsafe { batch.push(node, true) };
    }

    pub(super) fn again(&self, node: NodeAddr, index: usize) -> u64 {
        // SAFETY: the caller is pinned.
        unsafe { self.nodes.word(node, index) }.follow()
    }

    /// Says, of a map that gets too few nodes, that it wants one more than it does.
    pub(super) fn map_wanting_more(
        &self,
        pages: Pages,
        frame: Pfn,
        size: PageSize,
        attr: Attr,
    ) -> Result<(), Error> {
        self.map_range(pages, frame, size, attr).map_err(|error| match error {
            Error::NoMemory { wanted, pending } => Error::NoMemory { wanted: wanted + 1, pending },
            error => error,
        })
    }

    /// Stores a word as it is, again and again.
    pub(super) fn store_endlessly(&self) -> ! {
        loop {
            self.publish(self.root, 0, self.word(self.root, 0));
        }
    }

    /// Visits the first leaf of a range again and again.
    pub(super) fn visit_endlessly(&self, pages: Pages, visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>) {
        let mut is_any = true;
        while is_any {
            is_any = false;
            let _ = self.visit_first(pages, &mut |leaf| {
                is_any = true;
                visit(leaf)
            });
        }
    }

    /// Visits the first leaf of a range.
    pub(super) fn visit_first(
        &self,
        pages: Pages,
        visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let Some(pages) = self.space().parts(pages).next() else {
            return ControlFlow::Continue(());
        };
        let mut flow = None;
        let _ = self.visit(self.root, 0, pages, &mut |leaf| {
            flow = Some(visit(leaf));
            ControlFlow::Break(())
        });
        flow.unwrap_or(ControlFlow::Continue(()))
    }

    /// Visits a range, and says that it has gone to the end.
    pub(super) fn visit_and_lie(
        &self,
        pages: Pages,
        visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let _ = self.space().parts(pages).try_for_each(|part| self.visit(self.root, 0, part, visit));
        ControlFlow::Continue(())
    }

    /// Visits a range to the end, whatever the visitor says.
    pub(super) fn visit_on(
        &self,
        pages: Pages,
        visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut flow = ControlFlow::Continue(());
        for part in self.space().parts(pages) {
            let _ = self.visit(self.root, 0, part, &mut |leaf| {
                let told = visit(leaf);
                flow = if flow.is_break() { flow } else { told };
                ControlFlow::Continue(())
            });
        }
        flow
    }

    /// Links an empty node before it is known that the others can be had.
    pub(super) fn link_early(&self, pages: Pages, wanted: usize) -> Result<(), Error> {
        let index = pages.first().get() / units::<G>(0) % slots::<G>();
        if wanted > 1 && self.link(self.root, index).is_none() {
            let node =
                self.nodes.take(slots::<G>()).ok_or_else(|| Error::no_memory(wanted, self.nodes.held()))?;
            self.publish(self.root, index, Compact::link(node));
            self.live(self.root, 1);
            self.tally.node(1, Self::BYTES);
        }
        Ok(())
    }

    /// Exchanges the frame of a page for one that may begin in the midst of such.
    pub(super) fn replace_askew(
        &self,
        batch: &mut Retired<'n>,
        node: NodeAddr,
        index: usize,
        old: Leaf,
        frame: Pfn,
        attr: Attr,
    ) -> Result<Leaf, Error> {
        let frame = rounded(frame, old.size);
        self.publish(node, index, Compact::leaf(frame, old.size, attr, old.size == PageSize::K4)?);
        batch.touch(FlushScope::Everywhere, self.space().pages_of(&old));
        Ok(old)
    }

    /// Takes the nodes of a split once more before it does, and loses them where they are not all to be had.
    pub(super) fn leak_if_refused(&self, wanted: usize) -> Result<(), Error> {
        let take =
            || self.nodes.take(slots::<G>()).ok_or_else(|| Error::no_memory(wanted, self.nodes.held()));
        let taken = (0..wanted).map(|_| take()).collect::<Result<Vec<_>, _>>()?;
        taken.into_iter().for_each(|node| self.free_at_once(node, true));
        Ok(())
    }

    /// Links a node before its last entry is stored.
    pub(super) fn link_unfilled(&self, node: NodeAddr, index: usize, below: NodeAddr) {
        let last = slots::<G>() - 1;
        let word = self.word(below, last);
        self.publish(below, last, 0);
        self.publish(node, index, Compact::link(below));
        self.publish(below, last, word);
    }

    /// Returns a node that another table of the same storage has linked, if one has, else the node.
    pub(super) fn others(&self, node: NodeAddr) -> NodeAddr {
        let storage = std::ptr::from_ref(self.nodes).addr();
        match LINKED.get() {
            Some((place, root, other)) if place == storage && root != self.root => other,
            _ => {
                LINKED.set(Some((storage, self.root, node)));
                node
            }
        }
    }

    /// Returns once more what a range has given last, which the range has noted.
    pub(super) fn hand_again(&self, rest: &mut Rest) -> Option<(Vpn, Uncovered)> {
        let first = Pfn::new(rest.place().checked_sub(1)?);
        rest.set_place(0);
        let page = rest.pages()?.first();
        Some((page, Uncovered::Frames(Run { first, len: 1, dirty: false })))
    }

    /// Zeroes a node that a walker may be in.
    pub(super) fn wipe(&self, node: NodeAddr) {
        (0..slots::<G>()).for_each(|index| self.publish(node, index, 0));
    }
}
