//! Copy on write: a copy of a table that maps the same frames. A user's page that was writable before is writable in neither table
//! afterwards. Supervisor pages are passed over: the code that runs a fork cannot wait for a fault of its own stores.

use core::fmt;
use core::ops::ControlFlow;

use tlbkit_addr::{Attr, FlushScope, Pages, Pfn, VirtAddr, Vpn};

use super::Mpt;
use super::leaf::Decode as _;
use super::node::{LastNode, NodeMut, NodeRef, Place, Subtree, Supply};
use super::shape::Shape;
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Change, Entry, Error, Leaf, Mark, Radix, Run, Table as _, Word, Writer};

/// The attributes that a page also loses in the copy: the entry in the copied table already records that the page is dirty, and
/// no page of a copy is global.
const FORGOTTEN: Attr = Attr::DIRTY.union(Attr::GLOBAL);

/// Tells whether a page with these attributes is a user's.
fn is_users<F: Format>(attr: Attr) -> bool {
    !F::OPTIONAL.contains(Attr::USER) || attr.contains(Attr::USER)
}

/// The caller's functions that a copy calls.
struct Calls<S: FnMut(Run), C: FnMut(u64)> {
    share: S,
    copy: C,
}

/// A copy under way, from [`Writer::begin_copy`].
pub struct Copying<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> {
    /// Nodes for the copy.
    supply: Supply<'n, G, F, N>,
    /// How many nodes the copy needs, and how many of them have been taken.
    wanted: usize,
    taken: usize,
    /// The first page that has not been copied, counted from the table's first slot.
    next: Vpn,
    /// How many more entries may be visited.
    left: usize,
    /// Whether a node was missing, because the table has grown since the copy began.
    is_short: bool,
}

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Copying<'_, G, F, N> {
    /// Takes up to `most` nodes for the copy, and tells whether it has all that it needs.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`].
    pub fn reserve(&mut self, most: usize) -> Result<bool, Error> {
        let more = most.min(self.wanted - self.taken);
        // All nodes below the root have the size of the second level's.
        self.supply.add(1, more, self.wanted)?;
        self.taken += more;
        Ok(self.taken == self.wanted)
    }
}

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> fmt::Debug for Copying<'_, G, F, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Copying").field("next", &self.next).finish_non_exhaustive()
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Writer<'_, 'n, Mpt<'n, G, F, N>> {
    /// Maps in `child` every user's page that this table maps to the same frame, except the pages of a part that this table lends
    /// to the child, or borrows. A page of writable memory loses [`Attr::WRITE`] and gets [`Attr::COPY_ON_WRITE`] in both tables.
    /// Device pages and uncached pages are copied unchanged. Marks are copied. `share` is called with each run of frames, and
    /// `payload` with each payload, before the child has it.
    ///
    /// Supervisor pages, without [`Attr::USER`], keep their rights here and are not copied. The child may have pages of the same
    /// size at their addresses already, and is empty otherwise. (In a format that has no bit for [`Attr::USER`] every page is a
    /// user's.)
    ///
    /// Costs a load of each slot of each node, except the empty slots after the node's last entry and, above the last level, the
    /// sixteenths of a node that have had no entry.
    ///
    /// # Errors
    ///
    /// [`Error::WrongAttr`] if the format has no bit for [`Attr::COPY_ON_WRITE`]; [`Error::Occupied`] or [`Error::Marked`] if the
    /// child has a leaf or a mark where this table has no supervisor page; [`Error::WrongSize`] if the child lends a part;
    /// [`Error::Borrowed`] if this table maps or borrows pages where the child borrows others; [`Error::NoMemory`]. After an error
    /// nothing has changed.
    pub fn copy_on_write(
        &mut self,
        child: &mut Writer<'_, 'n, Mpt<'n, G, F, N>>,
        share: impl FnMut(Run),
        payload: impl FnMut(u64),
    ) -> Result<(), Error> {
        let mut copying = self.begin_copy(child)?;
        copying.reserve(usize::MAX)?;
        self.copy_part(child, &mut copying, usize::MAX, share, payload).map(drop)
    }

    /// Begins what [`copy_on_write`](Self::copy_on_write) does, to be done in parts: [`Copying::reserve`], until it has all nodes,
    /// then [`copy_part`](Self::copy_part), until all pages are copied.
    ///
    /// # Errors
    ///
    /// Those of [`copy_on_write`](Self::copy_on_write), except [`Error::NoMemory`].
    pub fn begin_copy(
        &mut self,
        child: &mut Writer<'_, 'n, Mpt<'n, G, F, N>>,
    ) -> Result<Copying<'n, G, F, N>, Error> {
        const {
            let mut level = 2;
            while level < G::WIDTHS.len() {
                assert!(G::WIDTHS[level] == G::WIDTHS[1], "nodes below the root are of one size");
                level += 1;
            }
            assert!(F::EXTRA == 0 && G::LINEAR.is_none(), "a node is its entries");
        }
        if !F::OPTIONAL.contains(Attr::COPY_ON_WRITE) {
            return Err(Error::WrongAttr { attr: Attr::COPY_ON_WRITE });
        }
        let (table, copy) = (self.table(), child.table());
        let (writing, copied) = (self.writing(), child.writing());
        writing.check_whole()?;
        copied.check_whole()?;
        check_room(writing.view(), copied.view(), Vpn::new(0))?;
        check_apart(writing.view(), copied.view())?;
        Ok(Copying {
            supply: Supply::empty(copy),
            // The copy has no node where this table has none.
            wanted: table.footprint().nodes.saturating_sub(copy.footprint().nodes),
            taken: 0,
            next: Vpn::new(0),
            left: 0,
            is_short: false,
        })
    }

    /// Copies about `most` more entries, of which four empty slots are one, in ascending order from the first slot on. Returns the first page that is still to be
    /// copied, or `None` if all are. Between two parts this table may change: a later part copies what it finds. But no leaf may
    /// extend over the page that was returned; split it first. The child must not change.
    ///
    /// Each part must be flushed before this table changes otherwise.
    ///
    /// # Errors
    ///
    /// [`Error::Partial`] if a leaf extends over the next page; [`Error::Borrowed`] if this table has a page by now where the child
    /// borrows others; [`Error::Occupied`] if the child has a page in the place of a supervisor page that has changed its size since,
    /// or is not mapped any more; [`Error::NoMemory`] for a child of another node storage than the one that the copy began with: this
    /// part has changed nothing then. [`Error::NoMemory`] if the table has got nodes since the copy began. The pages before this part
    /// are copied then, and some of this part.
    pub fn copy_part(
        &mut self,
        child: &mut Writer<'_, 'n, Mpt<'n, G, F, N>>,
        copying: &mut Copying<'n, G, F, N>,
        most: usize,
        share: impl FnMut(Run),
        payload: impl FnMut(u64),
    ) -> Result<Option<Vpn>, Error> {
        let (writing, copied) = (self.writing(), child.writing());
        writing.check_whole()?;
        copied.check_whole()?;
        check_next(writing.view(), copying.next)?;
        check_apart(writing.view(), copied.view())?;
        check_room(writing.view(), copied.view(), copying.next)?;
        let copy = copied.table();
        if !copying.supply.is_for(copy) {
            // The nodes that were taken are not of the child's storage.
            return Err(Error::no_memory(1, copy.nodes.held()));
        }
        copying.left = most;
        copying.is_short = false;
        let mut calls = Calls { share, copy: payload };
        let stop = copied.or_mend(|mut copied| {
            copied.flush().add_all(F::APPEARS);
            let mut to = copied.root();
            writing.or_mend(|mut writing| writing.root().fork(&mut to, copying, Vpn::new(0), &mut calls))
        });
        if copying.is_short {
            return Err(Error::no_memory(1, copy.nodes.held()));
        }
        copying.next = stop.unwrap_or(copying.next);
        Ok(stop.map(|stop| Mpt::<'n, G, F, N>::canonical(Pages::one(stop)).first()))
    }
}

/// The number of empty slots that take about as long to pass over as an entry takes to copy.
const EMPTY: usize = 4;

/// Checks that `copy` maps and marks no page of its own, from the page `next` on, but those that are supervisor pages of the
/// same size in `table`, and lends nothing. So each of its nodes there is in the place of one of the table. `next` is counted from
/// the table's first slot. Both are roots.
///
/// # Errors
///
/// [`Error::Occupied`] or [`Error::Marked`] with the first such page, or [`Error::WrongSize`].
fn check_room<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>>(
    table: NodeRef<'_, 'n, G, F, N>,
    copy: NodeRef<'_, 'n, G, F, N>,
    next: Vpn,
) -> Result<(), Error> {
    if copy.table().lent.is_some() {
        return Err(Error::WrongSize { size: G::BASE });
    }
    if copy.table().footprint().ptes == 0 {
        return Ok(());
    }
    let mut done = Ok(());
    let mut check = |at: VirtAddr, entry: Entry| {
        let here = table.leaf_for(at.vpn(G::BASE));
        let alike = |leaf: &Leaf, here: &Leaf| here.size == leaf.size && !is_users::<F>(here.attr);
        match (entry, here) {
            (Entry::Empty, _) => return ControlFlow::Continue(()),
            (Entry::Leaf(leaf), Some(here)) if alike(&leaf, &here) => return ControlFlow::Continue(()),
            _ => done = Err(Error::taken(at, entry)),
        }
        ControlFlow::Break(())
    };
    let next = Mpt::<'n, G, F, N>::canonical(Pages::one(next)).first();
    for half in G::SPACE.halves().into_iter().flatten() {
        // The visit passes over the pages that the copy borrows.
        let Some(own) = Pages::new(half.first().max(next), half.last()) else { continue };
        if copy.visit_entries(own, &mut check).is_break() {
            break;
        }
        if let Some(at) = copy.first_gone(own) {
            return Err(Error::Marked { at });
        }
    }
    done
}

/// Checks that no leaf of a table extends over the page `next`, which is counted from the table's first slot.
///
/// # Errors
///
/// [`Error::Partial`].
fn check_next<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>>(
    root: NodeRef<'_, 'n, G, F, N>,
    next: Vpn,
) -> Result<(), Error> {
    let page = Mpt::<'n, G, F, N>::canonical(Pages::one(next)).first();
    match root.leaf_for(page) {
        Some(leaf) if G::SPACE.pages_of(&leaf).first() < page => {
            Err(Error::Partial { at: leaf.at, size: leaf.size })
        }
        _ => Ok(()),
    }
}

/// Checks the top-level slots that `copy` borrows: the slot of `table` is empty or has the same link. Both are roots.
///
/// # Errors
///
/// [`Error::Borrowed`] with the first page of a slot in which the table has another entry.
fn check_apart<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>>(
    table: NodeRef<'_, 'n, G, F, N>,
    copy: NodeRef<'_, 'n, G, F, N>,
) -> Result<(), Error> {
    let Some(borrowed) = copy.table().borrowed else { return Ok(()) };
    if table.table().borrowed.is_some_and(|own| own.is(borrowed)) {
        return Ok(());
    }
    for slot in copy.table().borrowed_slots() {
        let (own, borrowed) = (table.read(slot).word(), copy.read(slot).word());
        // Nodes of two storages may have the same address.
        let is_one =
            core::ptr::eq(table.table().nodes, copy.table().nodes) && F::node(own) == F::node(borrowed);
        let is_link = F::is_link(own);
        let taken = is_link || Mpt::<'n, G, F, N>::is_leaf(own, 0) || Mpt::<'n, G, F, N>::is_mark(own, 0);
        if taken && !(is_link && is_one) {
            let page = Vpn::new(slot * Mpt::<'n, G, F, N>::slot_pages(0));
            let page = Mpt::<'n, G, F, N>::canonical(Pages::one(page)).first();
            return Err(Error::Borrowed { at: page.address(G::BASE) });
        }
    }
    Ok(())
}

/// Tells whether a leaf maps a user's page. Hardware does not change that bit.
#[inline(always)]
fn is_users_leaf<F: Format>(leaf: F::Word, last: bool) -> bool {
    !F::OPTIONAL.contains(Attr::USER) || without::<F>(leaf, Attr::USER, last) != leaf
}

/// Tells whether a leaf loses a right when it is shared: whether it maps writable memory. Hardware changes neither of these
/// bits.
#[inline(always)]
fn loses<F: Format>(leaf: F::Word, last: bool) -> bool {
    // No change touches a memory type that is fixed, so `attr` tells that.
    without::<F>(leaf, Attr::WRITE, last) != leaf && !F::attr(leaf, last).intersects(Attr::MEMORY)
}

/// Returns a leaf without some attributes.
#[inline(always)]
fn without<F: Format>(leaf: F::Word, attr: Attr, last: bool) -> F::Word {
    F::change(leaf, Change::clear(attr.intersection(F::OPTIONAL)), last)
}

/// Copies the leaf in the slot `from`, whose word was loaded as `old`, to the slot `to`, and tells whether the leaf has lost a right
/// in its own table.
#[inline(always)]
fn copy_leaf<G: Radix, F: Format, N: Nodes<Word = F::Word>>(
    from: Place<'_, '_, G, F, N>,
    to: Place<'_, '_, G, F, N>,
    old: F::Word,
    last: bool,
) -> bool {
    let mut word = without::<F>(old, FORGOTTEN, last);
    let shared = loses::<F>(old, last);
    if shared {
        from.flip(old, |leaf| F::change(leaf, Change::COPY_ON_WRITE, last));
        word = F::change(word, Change::COPY_ON_WRITE, last);
    }
    to.publish(word);
    shared
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodeMut<'_, 'n, G, F, N> {
    /// Copies the node, whose range begins with the page `first`, and all nodes below it to the node `to` of another table, from the
    /// next page of `copying` on. Returns the page at which it stopped, if it did.
    ///
    /// [`check_room`] has found that the other table has room from the next page on, and no leaf of this table extends over the
    /// next page.
    fn fork(
        &mut self,
        to: &mut NodeMut<'_, 'n, G, F, N>,
        copying: &mut Copying<'n, G, F, N>,
        first: Vpn,
        calls: &mut Calls<impl FnMut(Run), impl FnMut(u64)>,
    ) -> Option<Vpn> {
        let level = self.level();
        let (last, cover) = (Self::is_last(level), Self::slot_pages(level));
        if last && !Self::REPLICATED {
            let entries = self.fork_last(to, first, calls);
            copying.left = copying.left.saturating_sub(entries);
            return None;
        }
        let page = |slot: usize| Vpn::new(first.get() + slot * cover);
        let mut stop = None;
        let shift = self.part_shift();
        let (mut live, mut parts) = (self.live(), self.parts());
        // The slots before the next page are copied already.
        let mut index = copying.next.get().saturating_sub(first.get()) / cover;
        // The first and the last slot whose leaf has lost a right.
        let mut lost = None;
        // The loop ends when the count of slots in use is 0. The count of a lent node is higher by one for each loan.
        while live > 0 && parts != 0 && stop.is_none() {
            let part = parts.trailing_zeros() as usize;
            parts &= parts - 1;
            index = index.max(part << shift);
            while live > 0 && index >> shift == part {
                let seen = self.peek(index);
                let word = seen.word();
                if copying.left == 0 {
                    stop = Some(page(index).max(copying.next));
                    break;
                }
                if F::is_leaf(word, last) {
                    let end = self.fork_leaves(to, index, live, &mut lost, calls);
                    copying.left = copying.left.saturating_sub(end - index);
                    live = live.saturating_sub((end - index) as u32);
                    index = end;
                    continue;
                }
                // Marks are in last-level nodes.
                if Self::REPLICATED && copy_mark(word, to.at(index), calls) {
                    to.add_live(index, 1);
                    to.table().count_ptes(1);
                    copying.left = copying.left.saturating_sub(1);
                    live -= 1;
                }
                if Self::is_link(word, level) {
                    live -= 1;
                    let lent = level == 0 && self.table().is_lent(index);
                    let borrowed = level == 0 && to.table().is_borrowed(index);
                    if !borrowed
                        && let Some(mut below) = self.child(index)
                        && below.live() != u32::from(lent)
                    {
                        let Some(mut new) = to.child_or_new(&mut copying.supply, index) else {
                            copying.is_short = true;
                            stop = Some(page(index).max(copying.next));
                            break;
                        };
                        stop = below.fork(&mut new, copying, page(index), calls);
                        if stop.is_some() {
                            // The next part continues in that node.
                            break;
                        }
                        if new.live() == 0 {
                            // All that is below is the supervisor's.
                            // SAFETY: no slot of the node is in use.
                            unsafe { to.retire_child(index, true) };
                        }
                    }
                }
                index += 1;
                // Skips empty slots four at a time.
                let word = |slot: usize| self.peek(slot).word();
                while live > 0
                    && (index + 3) >> shift == part
                    && word(index) | word(index + 1) | word(index + 2) | word(index + 3) == F::Word::ZERO
                {
                    index += 4;
                    copying.left = copying.left.saturating_sub(1);
                }
            }
        }
        if let Some((begin, end)) = lost {
            self.touch_lost(page(begin), Vpn::new(page(end).get() + (cover - 1)));
        }
        stop
    }

    /// Copies the leaf in a slot, and those in the next slots that map the next frames with the same attributes, but no more than `live`.
    /// Extends `lost`, the first and the last slot whose leaf has lost a right. Returns the slot after the last one.
    #[inline(never)]
    fn fork_leaves(
        &mut self,
        to: &mut NodeMut<'_, 'n, G, F, N>,
        first: usize,
        live: u32,
        lost: &mut Option<(usize, usize)>,
        calls: &mut Calls<impl FnMut(Run), impl FnMut(u64)>,
    ) -> usize {
        let level = self.level();
        let (last, slots, cover) = (Self::is_last(level), Self::slots(level), Self::slot_pages(level));
        let word = self.peek(first).word();
        let size = Self::leaf(word, level, VirtAddr::new(0)).size;
        let frame = F::frame(word, size);
        // A page larger than a slot occupies several slots, and the first of them comes first.
        let each = match size.pages(G::BASE) {
            Some(pages) if Self::REPLICATED => pages.div_ceil(cover),
            _ => 1,
        };
        let mut end = first + each;
        let most = slots.min(first + live as usize);
        let mut next = word;
        while each == 1 && end < most {
            next = next.advance(F::STEP, cover);
            let continues = self.peek(end).word() == next && F::is_leaf(next, last);
            // After the last frame that a word can hold, one more step yields frame 0 with other attributes.
            if !continues || F::frame(next, size) == Pfn::new(0) {
                break;
            }
            end += 1;
        }
        if is_users_leaf::<F>(word, last) {
            (calls.share)(Run { first: frame, len: (end - first) * cover, dirty: false });
            for slot in first..end {
                if copy_leaf(self.at(slot), to.at(slot), self.peek(slot).word(), last) {
                    *lost = Some((lost.map_or(slot, |(first, _)| first), slot));
                }
            }
            to.add_live(first, end - first);
            to.table().count_ptes((end - first) as isize);
        }
        end
    }

    /// Adds the pages whose leaves have lost a right, counted from the table's first slot, to the flush.
    fn touch_lost(&mut self, first: Vpn, last: Vpn) {
        if let Some(pages) = Pages::new(first, last) {
            let stale = self.stale(Self::canonical(pages));
            self.touch(FlushScope::Everywhere, stale, false);
        }
    }

    /// Returns the node in a slot. If there is none, links one from the supply, whose nodes are all of the second level's size. It is
    /// linked at once, so that the repair finds it if the copy unwinds.
    fn child_or_new(
        &mut self,
        supply: &mut Supply<'n, G, F, N>,
        index: usize,
    ) -> Option<NodeMut<'_, 'n, G, F, N>> {
        if !Self::is_link(self.read(index).word(), self.level()) {
            let new = Subtree::take(**self, index, supply, 1)?;
            self.link(index, new);
        }
        self.child(index)
    }

    /// Copies a last-level node in which each leaf occupies one slot to an empty one. In one pass each leaf is passed to `share`, loses
    /// its right in this table and is stored in the copy. Returns the work in entries: [`EMPTY`] slots count as one.
    #[inline(never)]
    fn fork_last(
        &mut self,
        to: &mut NodeMut<'_, 'n, G, F, N>,
        first: Vpn,
        calls: &mut Calls<impl FnMut(Run), impl FnMut(u64)>,
    ) -> usize {
        let (Some(from), Some(copy)) = (self.last(), to.last()) else { return 0 };
        let slots = LastNode::<'_, 'n, G, F, N>::SLOTS;
        let all = self.live() as usize;
        let (mut index, mut live) = (0, all);
        // The first slot whose leaf has lost a right, and the slot after the last such slot; how many leaves are passed over.
        let (mut begin, mut end, mut passed) = (slots, 0, 0);
        let mut word = from.at(0).read();
        // The loop ends when the count of slots in use is 0.
        while live > 0 && index < slots {
            let slot = index;
            // The common case: leaves that lose a right and do not continue the leaf before. The last slot is left to the
            // code below, because this loop loads the slot after each leaf.
            let most = live.min(slots - 1 - index);
            let behind = from.slots(index + 1, most);
            for ((here, there), behind) in from.slots(index, most).zip(copy.slots(index, most)).zip(behind) {
                let behind = behind.read();
                if !F::is_leaf(word, true)
                    || !loses::<F>(word, true)
                    || !is_users_leaf::<F>(word, true)
                    || behind == word.advance(F::STEP, 1)
                {
                    break;
                }
                (calls.share)(Run { first: F::frame(word, G::BASE), len: 1, dirty: false });
                copy_leaf(here, there, word, true);
                (index, word) = (index + 1, behind);
            }
            live -= index - slot;
            if index > slot {
                (begin, end) = (begin.min(slot), index);
                continue;
            }
            if F::is_leaf(word, true) && !is_users_leaf::<F>(word, true) {
                (index, live, passed) = (index + 1, live - 1, passed + 1);
            } else if F::is_leaf(word, true) {
                index = from.fork_run(copy, slot, word, calls);
                live = live.saturating_sub(index - slot);
                if loses::<F>(word, true) {
                    (begin, end) = (begin.min(slot), index);
                }
            } else {
                index += 1;
                live -= usize::from(copy_mark(word, copy.at(slot), calls));
            }
            // After the last slot this loads the first slot again. The loop then ends, and the word is not used.
            word = from.at(index).read();
        }
        let copied = all - live - passed;
        to.add_live(0, copied);
        to.table().count_ptes(copied as isize);
        if begin < end {
            self.touch_lost(Vpn::new(first.get() + begin), Vpn::new(first.get() + end - 1));
        }
        (all - live).max(index / EMPTY)
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> LastNode<'_, 'n, G, F, N> {
    /// Copies the leaf in the slot `start`, whose word was loaded as `first`, and the leaves after it that
    /// map the next frames with the same attributes. Returns the slot after the last of them.
    #[inline(never)]
    fn fork_run(
        self,
        to: Self,
        start: usize,
        first: F::Word,
        calls: &mut Calls<impl FnMut(Run), impl FnMut(u64)>,
    ) -> usize {
        let (mut end, mut next) = (start + 1, first.advance(F::STEP, 1));
        while end < Self::SLOTS && self.at(end).read() == next {
            next = next.advance(F::STEP, 1);
            end += 1;
        }
        // After the last frame that a word can hold, one more step yields frame 0 with other attributes, which begins another
        // run.
        let last = F::frame(self.at(end - 1).read(), G::BASE).get();
        if last < end - start - 1 {
            end -= last + 1;
        }
        (calls.share)(Run { first: F::frame(first, G::BASE), len: end - start, dirty: false });
        copy_leaf(self.at(start), to.at(start), first, true);
        for slot in start + 1..end {
            copy_leaf(self.at(slot), to.at(slot), self.at(slot).read(), true);
        }
        end
    }
}

/// Copies a mark to the slot `to`, if the word is one, and tells whether it is.
#[inline(always)]
fn copy_mark<G: Radix, F: Format, N: Nodes<Word = F::Word>>(
    word: F::Word,
    to: Place<'_, '_, G, F, N>,
    calls: &mut Calls<impl FnMut(Run), impl FnMut(u64)>,
) -> bool {
    if word == F::Word::ZERO {
        return false;
    }
    let Some(mark) = Place::<'_, '_, G, F, N>::entry(word, to.node().level(), VirtAddr::new(0)).mark() else {
        return false;
    };
    if let Mark::Payload(payload, _) = mark {
        (calls.copy)(payload);
    }
    to.store_relaxed(F::absent(F::absent_bits(word)));
    true
}
