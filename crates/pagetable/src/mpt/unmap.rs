//! Unmapping a range: a dry run that can fail, then a commit that cannot, which retires the nodes that become empty. And taking the
//! entries of a range out one after the other, for a caller that does not know the frames.

use tlbkit_addr::{Attr, FlushScope, Pages, VirtAddr, Vpn};

use super::leaf::Decode as _;
use super::node::{NodeMut, Place, Writing};
use super::resize::STATUS;
use super::sweep::NodePart;
use super::{Mpt, own_pages};
use crate::format::{Format, walked};
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Entry, Error, Holes, Radix, Rest, Run, Uncovered, Word};

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Writing<'_, 'n, G, F, N> {
    /// See [`Table::unmap`](crate::Table::unmap).
    #[inline(always)]
    pub(super) fn unmap(mut self, pages: Pages, holes: Holes) -> Result<usize, Error> {
        if let Some(slot) = self.slot_of(pages)
            && let Some((_, stale)) = slot.unmap()
        {
            self.flush().add(stale.scope, stale.pages);
            return Ok(1);
        }
        self.unmap_range(pages, holes)
    }

    /// Unmaps a range of any length.
    #[inline(never)]
    fn unmap_range(self, pages: Pages, holes: Holes) -> Result<usize, Error> {
        self.or_mend(|writing| writing.unmap_slots(pages, holes))
    }

    fn unmap_slots(mut self, pages: Pages, holes: Holes) -> Result<usize, Error> {
        self.check(pages)?;
        let census = self.census(pages, holes)?;
        if census.pages > 0 {
            let stale = self.view().stale(pages);
            self.touch(FlushScope::Everywhere, stale, false);
        } else if census.marks == 0 {
            return Ok(0);
        }
        // By the census every leaf of the range is whole.
        self.sweep(pages, &mut |part| {
            // If holes are refused, the dry run has found none.
            let leaves = if holes == Holes::Refuse { part.slots } else { part.leaves() };
            let marks = if census.marks == 0 { 0 } else { part.marks_beside(leaves) };
            if leaves + marks > 0 {
                part.empty(leaves + marks, Attr::all());
            }
            Ok(())
        })?;
        Ok(census.pages)
    }

    /// See [`Table::take_next`](crate::Table::take_next).
    #[inline(never)]
    pub(super) fn take_next(self, rest: &mut Rest) -> Result<Option<(Vpn, Uncovered)>, Error> {
        let Some(pages) = rest.pages() else { return Ok(None) };
        self.check(pages)?;
        let Some((taken, entry)) = self.view().first_entry(pages) else {
            rest.end();
            return Ok(None);
        };
        let uncovered = match entry {
            Entry::Leaf(leaf) => {
                G::SPACE.check_whole(leaf, pages)?;
                let status = self.take(taken, leaf.attr);
                Uncovered::Frames(Run {
                    first: leaf.frame,
                    len: taken.len(),
                    dirty: status.contains(Attr::DIRTY),
                })
            }
            Entry::Mark(mark) => {
                self.or_mend(|mut writing| writing.take_slots(taken, Attr::all()));
                Uncovered::Mark(mark)
            }
            Entry::Empty => return Ok(None),
        };
        rest.go_past(taken.last());
        Ok(Some((taken.first(), uncovered)))
    }

    /// Takes out the leaves of `pages`, all of which are mapped as a whole by leaves with the attributes `attr`. Returns `attr` with
    /// the status bits that hardware set before the stores.
    pub(super) fn take(self, pages: Pages, attr: Attr) -> Attr {
        self.or_mend(|mut writing| {
            let stale = writing.view().stale(pages);
            writing.touch(FlushScope::Everywhere, stale, false);
            writing.take_slots(pages, attr)
        })
    }

    /// Empties the slots of `pages`, each of which holds a leaf or a mark. Adds to `attr` the status bits that it lacks and hardware
    /// set before the stores.
    fn take_slots(&mut self, pages: Pages, mut attr: Attr) -> Attr {
        let _ = self.sweep(pages, &mut |part| {
            attr |= part.empty(part.slots, attr);
            Ok(())
        });
        attr
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodePart<'_, 'n, G, F, N> {
    /// Empties the slots that hold leaves or marks, of which there are `taken`. Returns the status bits of `attr`, and those that it
    /// lacks and the leaves had.
    #[inline(never)]
    pub(super) fn empty(&mut self, taken: usize, attr: Attr) -> Attr {
        let level = self.node.level();
        let mut status = attr & STATUS;
        if taken == self.slots && !Mpt::<'n, G, F, N>::STATUS_RACES {
            self.node.fill(self.index, self.slots, F::Word::ZERO, F::Word::ZERO);
        } else if taken == self.slots && status == STATUS {
            self.each(|place| _ = place.take(place.read()));
        } else {
            self.each(|place| {
                let seen = place.read();
                // A frame that waits for its flush stays.
                let is_leaf = Self::is_leaf(seen, level);
                if !is_leaf && !Self::is_mark(seen, level) {
                    return;
                }
                let word = place.take(seen);
                // The slot beside may stay as it is, and so say of an empty pair that it is global.
                place.settle_pair();
                if is_leaf {
                    status |= F::attr(word, Self::is_last(level)) & STATUS;
                }
            });
        }
        self.node.settle_ends(self.index, self.slots);
        self.node.table().count_ptes(-(taken as isize));
        self.emptied = self.node.sub_live(taken) == 0 && level > 0;
        status
    }

    /// Visits the slots.
    #[inline(always)]
    fn each(&self, mut visit: impl FnMut(Place<'_, 'n, G, F, N>)) {
        match self.last() {
            Some(places) => places.for_each(visit),
            None => visit(self.at(0)),
        }
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodeMut<'_, 'n, G, F, N> {
    /// Unlinks and retires the empty node of `level` on the way to `at`, and each node between it and this one that becomes empty.
    #[inline(never)]
    pub(super) fn prune(&mut self, level: usize, at: VirtAddr) {
        let index = self.index_of(at);
        let Some(mut below) = self.child(index) else { return };
        let below_level = below.level();
        if below_level < level {
            below.prune(level, at);
        }
        if below.live() > 0 {
            return;
        }
        let page = Pages::one(at.vpn(G::BASE));
        if walked::<F>() {
            self.touch(FlushScope::Everywhere, page, true);
        }
        if let Some(own) = own_pages::<G>(below_level, page) {
            self.touch(FlushScope::Everywhere, own, false);
        }
        // SAFETY: no slot of the node is in use.
        unsafe { self.retire_child(index, true) };
    }
}
