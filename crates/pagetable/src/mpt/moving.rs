//! Moving a range to another place: a dry run that can fail, then a commit that cannot.
//!
//! ```text
//!   a run of slots    from: | leaf | mark | leaf |     to: |      |      |      |     each word is taken, then stored
//!   a larger page     from: | leaf |                   to: | leaf | or smaller ones   taken as a whole, then mapped again
//!   a node            from: | link |                   to: |      |                   the link, and what is below it stays
//! ```
//!
//! *The commit finds what the dry run has found.* A link moves only if its slot has no page of the new place, and the slot that it moves
//! to none of the old one, so no other step changes what is below these slots. The nodes that the range empties stay until the last
//! entry has moved, because some may be nodes of the new place; so the dry run counts exactly the nodes that are missing.
//!
//! *A link that moves.* Until the flush a walker may come to the node by the old link: a walk that has begun, or one by a link that
//! hardware has cached. It finds there the pages that have moved, as they were before the move, and status bits that it sets are set
//! in the words that have moved. So the old place translates to nothing that it has not translated to before. A later change may
//! map other pages in the node, and free the node in the end: the flush comes before any such change.

use tlbkit_addr::{Attr, Flush, FlushScope, Pages, Vpn};

use super::leaf::Decode as _;
use super::map::PageRun;
use super::node::{NodeRef, Supply, Writing};
use super::own_pages;
use super::pieces::{InPieces as _, after};
use super::shape::{MAX, Shape};
use crate::format::{Format, appears, first_leaf, walked};
use crate::geometry::Checked as _;
use crate::moving::Places;
use crate::nodes::Nodes;
use crate::{Entry, Error, FlushAll, Leaf, Radix, Word};

/// What one step moves.
enum Step {
    /// The link in the slot of `level` for `page`, below which are leaves of so many base pages.
    Link { level: usize, page: Vpn, mapped: usize },
    /// A leaf that is larger than a base page.
    Larger(Leaf),
    /// A run of last-level slots of one node, whose new place is in one node, too. The first holds a leaf of a base page or a mark, and
    /// none holds a larger leaf.
    Slots(Pages),
}

/// The part of a range that has not been visited.
struct Visit {
    rest: Option<Pages>,
    /// The first page of the last slot of each level whose link does not move, or [`NONE`].
    kept: [usize; MAX],
}

/// No page's number, and no node's.
const NONE: usize = usize::MAX;

impl Visit {
    const fn new(pages: Pages) -> Self {
        Self { rest: Some(pages), kept: [NONE; MAX] }
    }
}

/// What has moved, or is to move.
struct Moved {
    /// Base pages that are mapped.
    mapped: usize,
    links: usize,
    /// Whether new nodes are linked at the new place.
    grows: bool,
    /// The flush scope of the leaves at their new place.
    appears: FlushScope,
    /// The pages that are stale at the old place, with those that share TLB entries with them.
    stale: Pages,
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Writing<'_, 'n, G, F, N> {
    /// See [`Table::move_pages`](crate::Table::move_pages).
    #[inline(never)]
    pub(super) fn move_pages(
        self,
        from: Pages,
        to: Vpn,
        flush_all_cpus: FlushAll<'_>,
    ) -> Result<usize, Error> {
        let flush_all_cpus = flush_all_cpus.of(false)?;
        self.or_mend(|mut writing| {
            let places = Places::new(G::SPACE, from, to)?;
            let mut supply = Supply::empty(writing.table());
            let grows = writing.plan_move(&mut supply, &places)?;
            let moved = writing.commit_move(&mut supply, &places, grows)?;
            writing.flush_move(&places, &moved, flush_all_cpus);
            Ok(moved.mapped)
        })
    }

    /// Checks a move, as the dry run, and takes the nodes that the new place needs. Tells whether it needs any.
    #[inline(never)]
    fn plan_move(&mut self, supply: &mut Supply<'n, G, F, N>, places: &Places) -> Result<bool, Error> {
        let table = self.table();
        self.check(places.from)?;
        self.check(places.to)?;
        let root = self.view();
        for end in [places.from.first(), places.from.last()] {
            if let Some(leaf) = root.leaf_for(end) {
                G::SPACE.check_whole(leaf, places.from)?;
            }
        }
        root.check_vacant(places.to)?;
        let (mut want, mut newest) = ([0; MAX], [NONE; MAX]);
        // The steps come in ascending order, so each missing node is met in one run of steps.
        let mut need = |page: Vpn, level: usize| {
            let at = page.address(G::BASE);
            let there = root.down_to(level, at).level();
            for missing in there + 1..=level {
                let node = page.get() / Self::slot_pages(missing - 1);
                want[missing] += usize::from(newest[missing] != node);
                newest[missing] = node;
            }
        };
        let mut visit = Visit::new(places.from);
        while let Some(step) = root.next_step(&mut visit, places) {
            match step {
                Step::Link { level, page, .. } => need(places.of_page(page), level),
                Step::Slots(pages) => need(places.of_page(pages.first()), Self::LEVELS - 1),
                Step::Larger(leaf) => {
                    let to = places.of(G::SPACE.pages_of(&leaf));
                    let size = places.size_of(G::SPACE, &leaf);
                    let level = Self::level_of(size);
                    table.check_lent(to, size)?;
                    first_leaf::<F>(leaf.frame, to.len(), size, leaf.attr, Self::is_last(level))?;
                    Self::by_node(level, to).for_each(|part| need(part.first(), level));
                }
            }
        }
        supply.take(&want)?;
        Ok(want.iter().any(|&nodes| nodes > 0))
    }

    /// Makes a move, which the dry run has accepted. Returns what has moved.
    #[inline(never)]
    fn commit_move(
        &mut self,
        supply: &mut Supply<'n, G, F, N>,
        places: &Places,
        grows: bool,
    ) -> Result<Moved, Error> {
        let (table, last) = (self.table(), Self::LEVELS - 1);
        let stale = self.view().stale(places.from);
        let mut moved = Moved { mapped: 0, links: 0, grows, appears: F::APPEARS, stale };
        // What walkers have found so far is visible before the words that lead there from the new place.
        table.release();
        let mut visit = Visit::new(places.from);
        while let Some(step) = self.view().next_step(&mut visit, places) {
            match step {
                Step::Link { level, page, mapped } => {
                    let (from, to) = (page.address(G::BASE), places.of_page(page).address(G::BASE));
                    self.reach(supply, to, level);
                    self.move_link(level, from, to);
                    moved.mapped += mapped;
                    moved.links += 1;
                }
                Step::Larger(leaf) => {
                    let pages = G::SPACE.pages_of(&leaf);
                    let size = places.size_of(G::SPACE, &leaf);
                    let attr = self.take_larger(pages, leaf.attr);
                    self.store(supply, PageRun { pages: places.of(pages), frame: leaf.frame, size, attr })?;
                    moved.mapped += pages.len();
                    moved.appears = moved.appears.max(appears::<F>(size));
                }
                Step::Slots(pages) => {
                    let (from, to) = (pages.first(), places.of_page(pages.first()));
                    self.reach(supply, to.address(G::BASE), last);
                    moved.mapped += self.move_slots([from, to], pages.len());
                }
            }
        }
        // Retires the nodes that are empty now.
        self.sweep(places.from, &mut |part| {
            part.emptied = part.node.live() == 0 && part.node.level() > 0;
            Ok(())
        })?;
        Ok(moved)
    }

    /// Moves the leaves and marks of `slots` last-level slots, in the nodes of the old and the new page, both of which exist. Returns how
    /// many pages they map.
    fn move_slots(&mut self, [from, to]: [Vpn; 2], slots: usize) -> usize {
        let last = Self::LEVELS - 1;
        let [old, new] = [from, to].map(|page| Self::index(last, page.address(G::BASE)));
        let (mut leaves, mut marks) = (0, 0);
        let Some([source, target]) = self.last_nodes([from, to]) else { return 0 };
        for (old, new) in source.slots(old, slots).zip(target.slots(new, slots)) {
            let seen = old.read();
            if Self::is_leaf(seen, last) {
                let word = old.take(seen);
                old.settle_pair();
                new.publish(word);
                leaves += 1;
            } else if Self::is_mark(seen, last) {
                old.store_relaxed(F::Word::ZERO);
                old.settle_pair();
                // Of the bits beside the mark, those that the other word of its pair asks for do not move.
                new.store_relaxed(F::absent(F::absent_bits(seen)));
                marks += 1;
            } else {
                continue;
            }
            new.settle_pair();
        }
        self.node_for(to.address(G::BASE), last).add_live(new, leaves + marks);
        self.node_for(from.address(G::BASE), last).sub_live(leaves + marks);
        leaves
    }

    /// Takes out a leaf of several slots, or above the last level. The node stays, also if it is empty. Returns `attr` with the status bits
    /// that hardware set before the stores.
    fn take_larger(&mut self, pages: Pages, mut attr: Attr) -> Attr {
        let _ = self.sweep(pages, &mut |part| {
            attr |= part.empty(part.slots, attr);
            part.emptied = false;
            Ok(())
        });
        attr
    }

    /// Adds the flush of a move, apart from that of the nodes that it has emptied, to the batch. If links have moved, calls
    /// `flush_all_cpus`.
    #[inline(never)]
    fn flush_move(&mut self, places: &Places, moved: &Moved, flush_all_cpus: &mut dyn FnMut(&Flush)) {
        let mut flush = Flush::none();
        if moved.links > 0 && walked::<F>() {
            flush.add_links(FlushScope::Everywhere, moved.stale);
        } else if moved.mapped > 0 || moved.links > 0 {
            flush.add(FlushScope::Everywhere, moved.stale);
        }
        let new = self.view().stale(places.to);
        if walked::<F>() && (moved.links > 0 || moved.grows) {
            flush.add_links(moved.appears, new);
        } else if moved.mapped > 0 {
            flush.add(moved.appears, new);
        }
        if moved.grows {
            (1..Self::LEVELS)
                .filter_map(|level| own_pages::<G>(level, places.to))
                .for_each(|own| flush.add(F::APPEARS, own));
        }
        self.flush().merge(&flush);
        if moved.links > 0 {
            flush_all_cpus(&flush);
        }
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodeRef<'_, 'n, G, F, N> {
    /// Returns the next step of a move. The node is the root.
    fn next_step(self, visit: &mut Visit, places: &Places) -> Option<Step> {
        let pages = visit.rest?;
        let step = self.step_in(pages, visit, places);
        let end = match &step {
            Some(Step::Link { level, page, .. }) => Self::slot_end(*level, *page),
            Some(Step::Larger(leaf)) => G::SPACE.pages_of(leaf).last(),
            Some(Step::Slots(pages)) => pages.last(),
            None => pages.last(),
        };
        visit.rest = after(pages, end);
        step
    }

    /// Returns the first step of a move in `pages`, which this node covers.
    fn step_in(self, pages: Pages, visit: &mut Visit, places: &Places) -> Option<Step> {
        let level = self.level();
        for (index, span) in Self::by_slot(level, pages) {
            let (seen, page) = (self.read(index), span.first());
            if let Some(below) = seen.link() {
                let slot = page.get() & !(Self::slot_pages(level) - 1);
                if visit.kept[level % MAX] != slot {
                    if let Some(mapped) = self.moves(index, below, span, places) {
                        return Some(Step::Link { level, page, mapped });
                    }
                    visit.kept[level % MAX] = slot;
                }
                if let Some(step) = below.step_in(span, visit, places) {
                    return Some(step);
                }
                continue;
            }
            match seen.content(page.address(G::BASE)) {
                Entry::Leaf(leaf) if leaf.size != G::BASE => return Some(Step::Larger(leaf)),
                Entry::Leaf(_) | Entry::Mark(_) => {
                    return Some(Step::Slots(self.run_from(page, pages.last(), places)));
                }
                Entry::Empty => {}
            }
        }
        None
    }

    /// Returns the run of last-level slots of this node from `first` to `last` at most that can move in one step.
    fn run_from(self, first: Vpn, last: Vpn, places: &Places) -> Pages {
        let to = places.of_page(first);
        let room = Self::node_end(self.level(), to).get() - to.get();
        let most = last.get().min(first.get().saturating_add(room));
        let is_larger = |page: &usize| {
            let at = Vpn::new(*page).address(G::BASE);
            let word = self.read(self.index_of(at)).word();
            Self::is_leaf(word, self.level()) && Self::leaf(word, self.level(), at).size != G::BASE
        };
        let end =
            if Self::REPLICATED { (first.get()..=most).find(is_larger).map(|page| page - 1) } else { None };
        Pages::new(first, Vpn::new(end.unwrap_or(most))).unwrap_or(Pages::one(first))
    }

    /// Tells whether the link in a slot of this node, to the node `below`, moves as it is. `span` is the part of the range that the slot
    /// covers. Returns how many base pages are mapped below it.
    fn moves(self, index: usize, below: Self, span: Pages, places: &Places) -> Option<usize> {
        // Extra words beside the leaves are the kernel's, and the nodes of a linear table have addresses of their own.
        if F::EXTRA > 0 || G::LINEAR.is_some() {
            return None;
        }
        let (level, cover) = (self.level(), Self::slot_pages(self.level()));
        let to = places.of_page(span.first());
        let slot_of = |page: Vpn| Pages::count(Vpn::new(page.get() & !(cover - 1)), cover);
        let is_aligned = (to.get() ^ span.first().get()) & (cover - 1) == 0;
        let is_apart = slot_of(span.first())?.intersect(places.to).is_none()
            && slot_of(to)?.intersect(places.from).is_none();
        if !is_aligned || !is_apart {
            return None;
        }
        let at = to.address(G::BASE);
        let node = self.down_to(level, at);
        let is_free = node.level() < level || !Self::is_link(node.read(node.index_of(at)).word(), level);
        let is_lent =
            level == 0 && [index, Self::index(0, at)].iter().any(|&slot| self.table().is_lent(slot));
        if is_free && !is_lent { below.mapped_in(span) } else { None }
    }

    /// Returns how many base pages are mapped below this node, if it and the nodes below it have no entry outside of `span`, which it
    /// covers, and no frame that waits for its flush.
    fn mapped_in(self, span: Pages) -> Option<usize> {
        let (level, mut taken, mut mapped) = (self.level(), 0, 0);
        for (index, span) in Self::by_slot(level, span) {
            let seen = self.read(index);
            if let Some(below) = seen.link() {
                mapped += below.mapped_in(span)?;
                taken += 1;
            } else if Self::is_leaf(seen.word(), level) {
                mapped += Self::slot_pages(level);
                taken += 1;
            } else if Self::is_mark(seen.word(), level) {
                taken += 1;
            }
        }
        (taken == self.live()).then_some(mapped)
    }
}

#[cfg(test)]
#[cfg(target_pointer_width = "64")]
mod tests {
    use super::*;

    #[test]
    fn pages_have_their_new_place() {
        let space = crate::geometry::Va48::SPACE;
        let pages = |first, count| Pages::count(Vpn::new(first), count).unwrap();
        let places = Places::new(space, pages(8, 4), Vpn::new(2)).unwrap();
        assert_eq!(places.of(pages(9, 2)), pages(3, 2));
        let at = tlbkit_addr::VirtAddr::new(10 << 12);
        assert_eq!(Places::new(space, pages(8, 4), Vpn::new(10)).err(), Some(Error::Overlap { at }));
    }
}
