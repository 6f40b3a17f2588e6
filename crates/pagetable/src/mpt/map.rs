//! Mapping a range: a dry run that can fail, then a commit that cannot.

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr};

use super::leaf::Decode as _;
use super::node::{NodeMut, NodeRef, Subtree, Supply, Writing};
use super::pieces::{InPieces as _, after};
use super::shape::{MAX, Shape};
use super::{Encoded, own_pages};
use crate::format::{Format, appears, check_attr, first_leaf, is_gone};
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::{Entry, Error, Radix, Word};

/// Pages of one size, mapped to consecutive frames with the same attributes.
#[derive(Clone, Copy)]
pub(super) struct PageRun {
    pub(super) pages: Pages,
    pub(super) frame: Pfn,
    pub(super) size: PageSize,
    pub(super) attr: Attr,
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Writing<'_, 'n, G, F, N> {
    /// See [`Table::map`](crate::Table::map).
    #[inline(always)]
    pub(super) fn map(mut self, pages: Pages, frame: Pfn, size: PageSize, attr: Attr) -> Result<(), Error> {
        if size == G::BASE
            && let Some(slot) = self.slot_of(pages)
            && let Some(stale) = Encoded::new(attr).and_then(|attr| slot.map(frame, attr))
        {
            self.flush().add(stale.scope, stale.pages);
            return Ok(());
        }
        self.map_range(pages, frame, size, attr)
    }

    /// Maps a range of any length.
    #[inline(never)]
    pub(super) fn map_range(self, pages: Pages, frame: Pfn, size: PageSize, attr: Attr) -> Result<(), Error> {
        self.or_mend(|writing| writing.map_slots(pages, frame, size, attr))
    }

    #[inline(never)]
    fn map_slots(mut self, pages: Pages, frame: Pfn, size: PageSize, attr: Attr) -> Result<(), Error> {
        let table = self.table();
        G::SPACE.check_sized(pages, size)?;
        G::SPACE.check_frames(frame, pages.len(), size)?;
        self.check(pages)?;
        check_attr::<F>(attr)?;
        let level = Self::level_of(size);
        let last = Self::is_last(level);
        first_leaf::<F>(frame, pages.len(), size, attr, last)?;
        let want = self.survey(pages, size)?;
        let mut supply = Supply::empty(table);
        supply.take(&want)?;
        for level in 1..Self::LEVELS {
            if want[level] > 0
                && let Some(own) = own_pages::<G>(level, pages)
            {
                self.touch(F::APPEARS, own, false);
            }
        }
        let stale = stale::<G, F>(pages, |_| Some(size));
        self.touch(appears::<F>(size), stale, want.iter().any(|&nodes| nodes > 0));

        // The contents of the frames are visible before the entries that lead to them.
        table.release();
        self.store(&mut supply, PageRun { pages, frame, size, attr })
    }

    /// Stores the leaves of a range whose entries a survey has found vacant. The supply has the nodes that are missing.
    ///
    /// # Errors
    ///
    /// Those of [`Format::leaf`]; none after [`first_leaf`] has returned none for the same pages.
    #[inline(always)]
    pub(super) fn store(&mut self, supply: &mut Supply<'n, G, F, N>, run: PageRun) -> Result<(), Error> {
        let PageRun { pages, frame, size, attr } = run;
        let level = Self::level_of(size);
        let last = Self::is_last(level);
        let size_pages = size.pages(G::BASE).unwrap_or(1);
        let repeat = size_pages / Self::slot_pages(level).min(size_pages);
        for piece in Self::by_node(level, pages) {
            let at = piece.first();
            let slots = (piece.len() - 1) / Self::slot_pages(level) + 1;
            let first = Pfn::new(frame.get() + (at.get() - pages.first().get()));
            // A page that occupies several slots may begin in the node before this one.
            let aligned = Pfn::new(first.get() & !(size_pages - 1));
            let word = F::leaf(aligned, size, attr, last)?;
            // The survey has found the slots vacant, and the supply has every node that is missing.
            let mut node = self.reach(supply, at.address(G::BASE), level);
            let index = node.index_of(at.address(G::BASE));
            if !Self::REPLICATED || repeat == 1 {
                let step = F::Word::ZERO.advance(F::STEP, Self::slot_pages(level));
                node.fill(index, slots, word, step);
            } else {
                // Whole pages of `repeat` slots each, or the part in this node of a page that is larger than the node.
                let each = if F::SPREAD { Self::slot_pages(level) } else { 0 };
                let step = F::Word::ZERO.advance(F::STEP, each);
                for (page, slot) in (0..slots).step_by(repeat).enumerate() {
                    let word = word.advance(F::STEP, page * size_pages);
                    node.fill(index + slot, repeat.min(slots), word, step);
                }
            }
            node.settle_ends(index, slots);
            node.add_live(index, slots);
            self.table().count_ptes(slots as isize);
        }
        Ok(())
    }

    /// Walks down to the node of `level` for `at`, and links a node from the supply wherever one is missing. The slot at which the
    /// walk ends is empty, or is one of `level`.
    pub(super) fn reach(
        &mut self,
        supply: &mut Supply<'n, G, F, N>,
        at: VirtAddr,
        level: usize,
    ) -> NodeMut<'_, 'n, G, F, N> {
        let mut node = self.node_for(at, level);
        while node.level() < level {
            let (index, below) = (node.index_of(at), node.level() + 1);
            let Some(new) = Subtree::take(*node, index, supply, below) else { return node };
            node.link(index, new);
            node = match node.into_child(index) {
                Ok(child) => child,
                Err(node) => return node,
            };
        }
        node
    }

    /// Counts the missing nodes by level, as the dry run of a map. Returns an error if a page of the range has a leaf, a mark
    /// or a frame that waits for its flush.
    /// The pages are in the space and not borrowed.
    ///
    /// Costs a walk for each node that exists and each empty slot above the last level that the range has: so a range of any length
    /// is refused soon.
    pub(super) fn survey(&mut self, pages: Pages, size: PageSize) -> Result<[usize; MAX], Error> {
        let level = Self::level_of(size);
        let mut want = [0; MAX];
        let mut rest = Some(pages);
        while let Some(pages) = rest {
            let at = pages.first();
            let va = at.address(G::BASE);
            let node = self.node_for(va, level);
            let index = node.index_of(va);
            let end = if node.level() < level {
                let word = node.read(index).word();
                if F::is_leaf(word, false) {
                    return Err(Error::occupied(&Self::leaf(word, node.level(), va)));
                }
                if !F::is_link(word) && is_gone::<F>(word) {
                    return Err(Error::Marked { at: va });
                }
                // No node below the slot exists.
                let end = Self::slot_end(node.level(), at).min(pages.last());
                for missing in node.level() + 1..=level {
                    let cover = Self::slot_pages(missing - 1).ilog2();
                    want[missing] += (end.get() >> cover) - (at.get() >> cover) + 1;
                }
                end
            } else {
                let end = Self::node_end(level, at).min(pages.last());
                let slots = (end.get() - at.get()) / Self::slot_pages(level) + 1;
                if node.any_taken(index, slots) {
                    let pages = Pages::new(at, end).unwrap_or(pages);
                    return Err(Self::occupied(self.view(), pages, size));
                }
                end
            };
            rest = after(pages, end);
        }
        Ok(want)
    }

    /// Returns the error that names the first leaf or mark of a range in which pages of `size` were to be mapped.
    #[cold]
    fn occupied(root: NodeRef<'_, 'n, G, F, N>, pages: Pages, size: PageSize) -> Error {
        let mut found = None;
        let _ = root.visit_entries(pages, &mut |at, entry| {
            found = Some((at, entry));
            ControlFlow::Break(())
        });
        match found {
            Some((_, Entry::Leaf(occupant))) => Error::occupied(&occupant),
            Some((at, Entry::Mark(_))) => Error::Marked { at },
            // Nothing was found: a frame waits for its flush there, or the slot links an empty lent node, which a page of the slot's
            // size cannot replace.
            Some((_, Entry::Empty)) | None => {
                root.first_gone(pages).map_or(Error::WrongSize { size }, |at| Error::Marked { at })
            }
        }
    }
}
