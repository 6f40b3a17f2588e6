//! Mapping, unmapping and protecting ranges: a dry run that can fail, then a commit that cannot.

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Reach, VirtAddr, Vpn};

use super::shape::{MAX, Shape};
use super::{Mpt, own_pages};
use crate::format::{Format, check_attr, check_change};
use crate::mode::Mode;
use crate::nodes::{NodeAddr, Nodes, Stock};
use crate::word::atomics::Ordering;
use crate::{Change, Error, Frames, Holes, Leaf, Radix, Retired, Word};

/// Where a walk down as the writer ended: the nodes passed by level, and the slot it stopped at.
#[derive(Clone, Copy)]
pub(super) struct Path {
    pub(super) nodes: [NodeAddr; MAX],
    pub(super) level: usize,
}

/// A run of slots of one node that a range covers.
struct Part {
    path: Path,
    /// The first slot.
    index: usize,
    slots: usize,
    /// The first page of the first slot.
    first: Vpn,
}

/// What a range holds.
struct Census {
    pages: usize,
    leaves: usize,
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// See [`Table::map`](crate::Table::map).
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table; so for all that follow.
    #[inline(always)]
    pub(super) unsafe fn map_pages(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        frame: Pfn,
        size: PageSize,
        attr: Attr,
    ) -> Result<(), Error> {
        G::SPACE.check_sized(pages, size)?;
        G::SPACE.check_frames(frame, pages.len(), size)?;
        self.check_own(pages)?;
        check_attr::<F>(attr)?;
        let level = Self::level_of(size);
        let word = F::leaf(frame, size, attr, level + 1 == Self::LEVELS)?;
        if pages.len() == 1
            // SAFETY: the caller is the writer.
            && let Some((node, old)) = unsafe { self.bottom(pages.first().address(G::BASE)) }
        {
            // SAFETY: as above, and it is the node that holds the page.
            return unsafe { self.map_one(batch, node, old, pages, word) };
        }
        // SAFETY: the caller is the writer.
        unsafe { self.map_range(batch, pages, frame, size, attr) }
    }

    /// Returns the last-level node for `at`, if there is one, and the word in it.
    #[inline(always)]
    unsafe fn bottom(&self, at: VirtAddr) -> Option<(NodeAddr, F::Word)> {
        // SAFETY: the caller is the writer.
        unsafe { self.descend(at, |word, level, node| (level + 1 == Self::LEVELS).then_some((node, word))) }
    }

    /// Maps one base page whose node exists.
    #[inline(always)]
    unsafe fn map_one(
        &self,
        batch: &mut Retired<'n>,
        node: NodeAddr,
        old: F::Word,
        pages: Pages,
        word: F::Word,
    ) -> Result<(), Error> {
        let at = pages.first().address(G::BASE);
        let last = Self::LEVELS - 1;
        let index = Self::index(last, at);
        if F::is_leaf(old, true) {
            return Err(Error::Occupied { occupant: Self::leaf(old, last, at) });
        }
        // SAFETY: the node is ours to write and the index within it.
        unsafe {
            self.nodes.publish(node, Self::place(last, index), word);
            self.settle_pair(node, last, index);
            self.count(node, last, 1);
        }
        self.tally.ptes(1);
        batch.touch(F::APPEARS, pages);
        Ok(())
    }

    /// Maps a range, with whatever nodes that needs.
    unsafe fn map_range(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        frame: Pfn,
        size: PageSize,
        attr: Attr,
    ) -> Result<(), Error> {
        let level = Self::level_of(size);
        let last = level + 1 == Self::LEVELS;
        let span = pages.len();
        let size_pages = size.pages(G::BASE).unwrap_or(1);
        // The highest frame must fit too; `check_frames` has seen that it exists.
        F::leaf(Pfn::new(frame.get() + (span - size_pages)), size, attr, last)?;
        // SAFETY: the caller is the writer.
        let want = unsafe { self.survey(pages, level) }?;
        let mut stock = Stock::take(self.nodes, &Self::WORDS, want)?;
        for level in 1..Self::LEVELS {
            if want[level] > 0
                && let Some(own) = own_pages::<G>(level, pages)
            {
                batch.touch(F::APPEARS, own);
            }
        }

        // Frames are whole before the table leads to them.
        N::Mode::release();
        let repeat = size_pages / Self::slot_pages(level).min(size_pages);
        let mut at = pages.first();
        loop {
            let end = self.node_end(level, at).min(pages.last());
            let slots = (end.get() - at.get()) / Self::slot_pages(level) + 1;
            let va = at.address(G::BASE);
            let first = Pfn::new(frame.get() + (at.get() - pages.first().get()));
            // A page that fills several slots may have begun in the node before.
            let aligned = Pfn::new(first.get() & !(size_pages - 1));
            let word = F::leaf(aligned, size, attr, last)?;
            // SAFETY: the caller is the writer; the survey reserved every node on the way, and found the slots
            // vacant.
            unsafe {
                let node = self.reach(&mut stock, va, level);
                let index = Self::index(level, va);
                if repeat == 1 {
                    let step = F::Word::ZERO.advance(F::STEP, Self::slot_pages(level));
                    self.fill(node, level, index, slots, word, step);
                } else {
                    // Whole pages of `repeat` slots, or a part of one that is larger than a node.
                    for (page, slot) in (0..slots).step_by(repeat).enumerate() {
                        let word = word.advance(F::STEP, page * size_pages);
                        self.fill(node, level, index + slot, repeat.min(slots), word, F::Word::ZERO);
                    }
                }
                self.settle_pair(node, level, index);
                self.settle_pair(node, level, index + slots - 1);
                self.count(node, level, slots as i32);
            }
            self.tally.ptes(slots as isize);
            if end == pages.last() {
                break;
            }
            at = Vpn::new(end.get() + 1);
        }
        batch.touch(F::APPEARS, pages);
        Ok(())
    }

    /// Returns the last page that the node of `level` around `at` covers.
    pub(super) fn node_end(&self, level: usize, at: Vpn) -> Vpn {
        let cover = Self::slot_pages(level) << G::WIDTHS[level];
        Vpn::new(at.get() | (cover - 1))
    }

    /// The dry run of a map: finds what is in the way, and counts the missing nodes by level.
    unsafe fn survey(&self, pages: Pages, level: usize) -> Result<[usize; MAX], Error> {
        let mut want = [0; MAX];
        let mut at = pages.first();
        loop {
            let end = self.node_end(level, at).min(pages.last());
            let va = at.address(G::BASE);
            // SAFETY: the caller is the writer.
            let path = unsafe { self.path(va, level) };
            let node = path.nodes[path.level];
            if path.level < level {
                let place = Self::place(path.level, Self::index(path.level, va));
                // SAFETY: the path's last node, within its slots.
                let word = unsafe { self.nodes.read(node, place) };
                if F::is_leaf(word, false) {
                    return Err(Error::Occupied { occupant: Self::leaf(word, path.level, va) });
                }
                for missing in path.level + 1..=level {
                    // A node is new at the first page of the range that it covers.
                    let cover = Self::slot_pages(missing - 1);
                    want[missing] += usize::from(at == pages.first() || at.get() & (cover - 1) == 0);
                }
            } else {
                let index = Self::index(level, va);
                let slots = (end.get() - at.get()) / Self::slot_pages(level) + 1;
                // SAFETY: the path's last node, within its slots.
                if unsafe { self.any_taken(node, level, index, slots) } {
                    // SAFETY: the caller is the writer.
                    return Err(unsafe { self.occupied(at, end) });
                }
            }
            if end == pages.last() {
                return Ok(want);
            }
            at = Vpn::new(end.get() + 1);
        }
    }

    /// Names the first leaf between two pages of which some are mapped.
    #[cold]
    unsafe fn occupied(&self, first: Vpn, last: Vpn) -> Error {
        let mut found = None;
        if let Some(pages) = Pages::new(first, last) {
            // SAFETY: the caller is the writer.
            let _ = unsafe {
                self.visit(self.root, 0, pages, &mut |leaf| {
                    found = Some(leaf);
                    ControlFlow::Break(())
                })
            };
        }
        match found {
            Some(occupant) => Error::Occupied { occupant },
            // A link is there only while something below it is mapped; but lent nodes may be empty.
            None => Error::WrongSize { size: G::BASE },
        }
    }

    /// Walks down towards `level`.
    #[inline(always)]
    pub(super) unsafe fn path(&self, at: VirtAddr, level: usize) -> Path {
        let mut path = Path { nodes: [self.root; MAX], level: 0 };
        while path.level < level {
            let place = Self::place(path.level, Self::index(path.level, at));
            // SAFETY: the node is linked, and the caller is the writer.
            let word = unsafe { self.nodes.read(path.nodes[path.level], place) };
            if !F::is_link(word) {
                break;
            }
            path.level += 1;
            path.nodes[path.level] = F::node(word);
        }
        path
    }

    /// Walks down to the node of `level`, and links nodes from the stock where there are none.
    pub(super) unsafe fn reach(&self, stock: &mut Stock<'n, N, MAX>, at: VirtAddr, level: usize) -> NodeAddr {
        // SAFETY: the caller is the writer.
        let mut path = unsafe { self.path(at, level) };
        while path.level < level
            && let Some(node) = stock.next(path.level + 1)
        {
            let (parent, index) = (path.nodes[path.level], Self::index(path.level, at));
            // SAFETY: the slot is vacant; an empty node is complete.
            unsafe {
                self.nodes.publish(parent, Self::place(path.level, index), F::link(node));
                self.count(parent, path.level, 1);
            }
            path.level += 1;
            path.nodes[path.level] = node;
            self.tally.node(1, Self::WORDS[path.level] * F::Word::BYTES);
        }
        path.nodes[level]
    }

    /// Adds to the live count of a node and returns the result.
    #[inline(always)]
    pub(super) unsafe fn count(&self, node: NodeAddr, level: usize, by: i32) -> u32 {
        // SAFETY: the node is in the table, and only its writer changes its record.
        let record = unsafe { &*self.nodes.record(node, Self::WORDS[level]) };
        let live = record.load(Ordering::Relaxed).wrapping_add_signed(by);
        record.store(live, Ordering::Relaxed);
        live
    }

    /// Makes the two words of a TLB entry agree after one of them has changed.
    #[inline(always)]
    pub(super) unsafe fn settle_pair(&self, node: NodeAddr, level: usize, index: usize) {
        if F::PAIRED {
            for (a, b) in [(index, index ^ 1), (index ^ 1, index)] {
                // SAFETY: both slots are in the node: it has an even number of them.
                unsafe {
                    let other = self.nodes.read(node, Self::place(level, b));
                    let wanted = F::beside(self.nodes.read(node, Self::place(level, a)), other);
                    if wanted != other {
                        self.nodes.publish(node, Self::place(level, b), wanted);
                    }
                }
            }
        }
    }

    /// Visits the runs of slots that a range covers, node by node. The visitor may empty them.
    #[inline(always)]
    unsafe fn sweep(
        &self,
        pages: Pages,
        mut visit: impl FnMut(Part) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut at = pages.first();
        loop {
            let va = at.address(G::BASE);
            // SAFETY: the caller is the writer.
            let path = unsafe { self.path(va, Self::LEVELS - 1) };
            let slot_pages = Self::slot_pages(path.level);
            let first = Vpn::new(at.get() & !(slot_pages - 1));
            // Above the last level the next slot may be of another kind.
            let end = if path.level + 1 == Self::LEVELS {
                self.node_end(path.level, at).min(pages.last())
            } else {
                Vpn::new(at.get() | (slot_pages - 1))
            };
            let slots = (end.get() - first.get()) / slot_pages + 1;
            visit(Part { path, index: Self::index(path.level, va), slots, first })?;
            if end >= pages.last() {
                return Ok(());
            }
            at = Vpn::new(end.get() + 1);
        }
    }

    /// Stores a run of slots: `word`, `word + step`, ...
    #[inline(always)]
    unsafe fn fill(
        &self,
        node: NodeAddr,
        level: usize,
        index: usize,
        slots: usize,
        word: F::Word,
        step: F::Word,
    ) {
        // SAFETY: the caller's promise: the slots are in the node.
        unsafe {
            if F::EXTRA == 0 {
                self.nodes.fill(node, index, slots, word, step);
            } else {
                for slot in 0..slots {
                    self.nodes.put(node, Self::place(level, index + slot), word.advance(step, slot));
                }
            }
        }
    }

    /// Folds a run of slots.
    #[inline(always)]
    unsafe fn fold(
        &self,
        node: NodeAddr,
        level: usize,
        index: usize,
        slots: usize,
        start: F::Word,
        with: impl Fn(F::Word, F::Word) -> F::Word,
    ) -> F::Word {
        // SAFETY: the caller's promise: the slots are in the node.
        unsafe {
            if F::EXTRA == 0 {
                self.nodes.fold(node, index, slots, start, with)
            } else {
                (0..slots).fold(start, |all, slot| {
                    with(all, self.nodes.read(node, Self::place(level, index + slot)))
                })
            }
        }
    }

    /// Tells whether a run of slots holds a leaf or a link.
    #[inline(always)]
    unsafe fn any_taken(&self, node: NodeAddr, level: usize, index: usize, slots: usize) -> bool {
        let last = level + 1 == Self::LEVELS;
        // SAFETY: the caller's promise: the slots are in the node.
        unsafe {
            // Nothing but zeroes is the common case, and found a few words at a time.
            self.fold(node, level, index, slots, F::Word::ZERO, |all, word| all | word) != F::Word::ZERO
                && (0..slots).any(|slot| {
                    let word = self.nodes.read(node, Self::place(level, index + slot));
                    F::is_leaf(word, last) || (!last && F::is_link(word))
                })
        }
    }

    /// Counts the leaves of a part.
    #[inline(always)]
    unsafe fn leaves(&self, part: &Part) -> usize {
        let level = part.path.level;
        let last = level + 1 == Self::LEVELS;
        // SAFETY: the slots of a part are in its node.
        unsafe {
            // Leaves are told by bits that are set, so what all words have in common is a leaf only if all are.
            let all =
                self.fold(part.path.nodes[level], level, part.index, part.slots, !F::Word::ZERO, |a, b| {
                    a & b
                });
            if (last || !F::is_link(all)) && F::is_leaf(all, last) {
                part.slots
            } else {
                (0..part.slots).filter(|&slot| F::is_leaf(self.slot(part, slot), last)).count()
            }
        }
    }

    /// Reads a slot of a part.
    #[inline(always)]
    unsafe fn slot(&self, part: &Part, slot: usize) -> F::Word {
        let level = part.path.level;
        // SAFETY: the slots of a part are in its node.
        unsafe { self.nodes.read(part.path.nodes[level], Self::place(level, part.index + slot)) }
    }

    /// The dry run of an unmap or protect: counts what is mapped, and finds holes and pages cut by the ends.
    #[inline(always)]
    unsafe fn census(&self, pages: Pages, holes: Holes) -> Result<Census, Error> {
        let mut census = Census { pages: 0, leaves: 0 };
        if Self::REPLICATED {
            // A page that stands in several slots can be cut within a node.
            for end in [pages.first(), pages.last()] {
                let at = end.address(G::BASE);
                // SAFETY: the caller is the writer.
                let (word, level) = unsafe { self.descend(at, |word, level, _| (word, level)) };
                if F::is_leaf(word, level + 1 == Self::LEVELS) {
                    self.check_whole(Self::leaf(word, level, at), pages)?;
                }
            }
        }
        // SAFETY: the caller is the writer.
        let swept = unsafe {
            self.sweep(pages, |part| {
                let level = part.path.level;
                let last = level + 1 == Self::LEVELS;
                let leaves = self.leaves(&part);
                if !last && leaves == 1 {
                    let word = self.slot(&part, 0);
                    self.check_whole(Self::leaf(word, level, part.first.address(G::BASE)), pages)?;
                }
                if leaves < part.slots && holes == Holes::Refuse {
                    let hole = (0..part.slots).find(|&slot| !F::is_leaf(self.slot(&part, slot), last));
                    let at = Vpn::new(part.first.get() + hole.unwrap_or(0) * Self::slot_pages(level));
                    return Err(Error::NotMapped { at: at.max(pages.first()).address(G::BASE) });
                }
                census.leaves += leaves;
                census.pages += leaves * Self::slot_pages(level);
                Ok(())
            })
        };
        swept.map(|()| census)
    }

    /// Checks that a leaf does not reach out of a range.
    pub(super) fn check_whole(&self, leaf: Leaf, pages: Pages) -> Result<(), Error> {
        let whole = G::SPACE.pages_of(&leaf);
        if whole.intersect(pages) == Some(whole) { Ok(()) } else { Err(Error::Partial { occupant: leaf }) }
    }

    /// See [`Table::unmap`](crate::Table::unmap).
    #[inline(always)]
    pub(super) unsafe fn unmap_pages(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        holes: Holes,
        frames: Option<&mut dyn Frames>,
    ) -> Result<usize, Error> {
        // SAFETY: the caller is the writer.
        unsafe {
            if pages.first() == pages.last() && frames.is_none() && self.unmap_one(batch, pages) {
                return Ok(1);
            }
            self.unmap_range(batch, pages, holes, frames)
        }
    }

    /// Unmaps one base page, or returns false if it is not mapped as one, or anything else is out of the ordinary.
    #[inline(always)]
    unsafe fn unmap_one(&self, batch: &mut Retired<'n>, pages: Pages) -> bool {
        let (last, va) = (Self::LEVELS - 1, pages.first().address(G::BASE));
        let index = Self::index(last, va);
        if F::STATUS
            || G::SPACE.check_pages(Pages::one(pages.first())).is_err()
            || self.check_own(pages).is_err()
        {
            return false;
        }
        // SAFETY: the caller is the writer.
        let Some((node, word)) = (unsafe { self.bottom(va) }) else { return false };
        if !F::is_leaf(word, true) || Self::leaf(word, last, va).size != G::BASE {
            return false;
        }
        self.tally.ptes(-1);
        batch.touch(Reach::Everywhere, pages);
        // SAFETY: the caller is the writer, and the slot is a leaf of the range.
        unsafe {
            self.nodes.put(node, Self::place(last, index), F::Word::ZERO);
            self.settle_pair(node, last, index);
            if self.count(node, last, -1) == 0 && last > 0 {
                self.prune(batch, last, va);
            }
        }
        true
    }

    unsafe fn unmap_range(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        holes: Holes,
        mut frames: Option<&mut dyn Frames>,
    ) -> Result<usize, Error> {
        G::SPACE.check_pages(pages)?;
        self.check_own(pages)?;
        // SAFETY: the caller is the writer.
        let census = unsafe { self.census(pages, holes) }?;
        if let Some(frames) = &mut frames {
            // SAFETY: as above, and the range is in the space.
            frames.reserve(if Self::REPLICATED { unsafe { self.distinct(pages) } } else { census.leaves })?;
        }
        if census.pages == 0 {
            return Ok(0);
        }
        // SAFETY: as above; every leaf of the range is whole.
        unsafe {
            self.sweep(pages, |part| {
                // Where holes are refused there are none.
                let leaves = if holes == Holes::Refuse { part.slots } else { self.leaves(&part) };
                if leaves == 0 {
                    return Ok(());
                }
                if frames.is_some() || F::STATUS {
                    for slot in 0..part.slots {
                        self.uncover(&part, slot, &mut frames);
                    }
                }
                self.empty(batch, &part, leaves);
                Ok(())
            })?;
        }
        batch.touch(Reach::Everywhere, pages);
        Ok(census.pages)
    }

    /// Counts the pages of a range, each of them once however many slots it stands in.
    unsafe fn distinct(&self, pages: Pages) -> usize {
        let mut leaves = 0;
        // SAFETY: the caller is the writer.
        let _ = unsafe {
            self.visit(self.root, 0, pages, &mut |_| {
                leaves += 1;
                ControlFlow::Continue(())
            })
        };
        leaves
    }

    /// Takes a leaf out of its slot and hands its frame over.
    unsafe fn uncover(&self, part: &Part, slot: usize, frames: &mut Option<&mut dyn Frames>) {
        let level = part.path.level;
        let place = Self::place(level, part.index + slot);
        // SAFETY: the slot is in the node, and the caller is the writer.
        let word = unsafe {
            if F::STATUS {
                // Hardware may set the dirty bit up to this moment.
                F::Word::swap(self.nodes.at(part.path.nodes[level]).add(place), F::Word::ZERO)
            } else {
                self.slot(part, slot)
            }
        };
        if F::is_leaf(word, level + 1 == Self::LEVELS)
            && let Some(frames) = frames
        {
            let at = Vpn::new(part.first.get() + slot * Self::slot_pages(level)).address(G::BASE);
            let leaf = Self::leaf(word, level, at);
            // A page in several slots has one run of frames.
            if leaf.at == at {
                frames.push(leaf.frame, leaf.size, G::BASE, leaf.attr);
            }
        }
    }

    /// Clears the slots of a part, of which `leaves` hold leaves, and retires the nodes that this empties.
    #[inline(always)]
    unsafe fn empty(&self, batch: &mut Retired<'n>, part: &Part, leaves: usize) {
        let level = part.path.level;
        let node = part.path.nodes[level];
        // SAFETY: the slots are in the node, and the caller is the writer.
        unsafe {
            self.fill(node, level, part.index, part.slots, F::Word::ZERO, F::Word::ZERO);
            self.settle_pair(node, level, part.index);
            self.settle_pair(node, level, part.index + part.slots - 1);
            self.tally.ptes(-(leaves as isize));
            if self.count(node, level, -(leaves as i32)) == 0 && level > 0 {
                self.prune(batch, level, part.first.address(G::BASE));
            }
        }
    }

    /// Unlinks the node of `level` on the way to `at`, which is empty, and whatever that empties in turn.
    #[inline(never)]
    unsafe fn prune(&self, batch: &mut Retired<'n>, level: usize, at: VirtAddr) {
        // SAFETY: the caller is the writer.
        let mut path = unsafe { self.path(at, level) };
        loop {
            let node = path.nodes[path.level];
            path.level -= 1;
            let (parent, index) = (path.nodes[path.level], Self::index(path.level, at));
            // SAFETY: the caller is the writer; the node has no entries, and after the store no way in.
            let live = unsafe {
                self.nodes.put(parent, Self::place(path.level, index), F::Word::ZERO);
                self.settle_pair(parent, path.level, index);
                self.retire(batch, node, path.level + 1, true);
                if let Some(own) = own_pages::<G>(path.level + 1, Pages::one(at.vpn(G::BASE))) {
                    batch.touch(Reach::Everywhere, own);
                }
                self.count(parent, path.level, -1)
            };
            if live > 0 || path.level == 0 {
                return;
            }
        }
    }

    /// Hands an unlinked node over. `clean` if its slots are all empty.
    pub(super) unsafe fn retire(&self, batch: &mut Retired<'n>, node: NodeAddr, level: usize, clean: bool) {
        // The kernel may have written its own words beside the leaves.
        let clean = clean && (F::EXTRA == 0 || level + 1 < Self::LEVELS);
        self.tally.node(-1, Self::WORDS[level] * F::Word::BYTES);
        // SAFETY: the caller has unlinked it; it came from the table's storage.
        unsafe { batch.push(node, clean) };
    }

    /// See [`Table::protect`](crate::Table::protect).
    #[inline(always)]
    pub(super) unsafe fn protect_pages(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        holes: Holes,
        change: Change,
    ) -> Result<usize, Error> {
        G::SPACE.check_pages(pages)?;
        self.check_own(pages)?;
        check_change::<F>(change)?;
        // SAFETY: the caller is the writer.
        let census = unsafe { self.census(pages, holes) }?;
        if census.pages == 0 {
            return Ok(0);
        }
        // SAFETY: as above.
        unsafe {
            self.sweep(pages, |part| {
                let level = part.path.level;
                let (node, last) = (part.path.nodes[level], level + 1 == Self::LEVELS);
                // Where holes are refused there are none.
                let all = holes == Holes::Refuse;
                let changed =
                    |word| if all || F::is_leaf(word, last) { F::change(word, change) } else { word };
                if F::STATUS {
                    for slot in 0..part.slots {
                        self.change_live(node, Self::place(level, part.index + slot), last, change);
                    }
                } else if F::EXTRA == 0 {
                    self.nodes.edit(node, part.index, part.slots, changed);
                } else {
                    for slot in 0..part.slots {
                        self.nodes.edit(node, Self::place(level, part.index + slot), 1, changed);
                    }
                }
                if F::PAIRED && change.set.union(change.clear).contains(Attr::GLOBAL) {
                    // Any slot of the range may have an absent one beside it, not only those at its ends.
                    for slot in 0..part.slots {
                        self.settle_pair(node, level, part.index + slot);
                    }
                }
                Ok(())
            })?;
        }
        batch.touch(change.reach(), pages);
        Ok(census.pages)
    }

    /// Changes a leaf whose status bits hardware may be setting.
    unsafe fn change_live(&self, node: NodeAddr, place: usize, last: bool, change: Change) {
        // SAFETY: the place is in the node, and the caller is the only writer but hardware.
        unsafe {
            let cell = self.nodes.at(node).add(place);
            let mut old = F::Word::follow(cell);
            while F::is_leaf(old, last)
                && let Err(now) = F::Word::exchange(cell, old, F::change(old, change))
            {
                old = now;
            }
        }
    }
}
