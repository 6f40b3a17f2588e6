//! Copy on write: a copy of a table that maps the same frames. A user's page that was writable before is writable in neither table
//! afterwards. Supervisor pages are passed over: the code that runs a fork cannot wait for a fault of its own stores.

use core::fmt;
use core::ops::ControlFlow;

use tlbkit_addr::{Attr, FlushScope, Pages, Pfn, VirtAddr, Vpn};

use super::Mpt;
use super::shape::{MAX, Shape};
use crate::cursor::without;
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::{LinkRange, NodeAddr, Nodes, Stock, Store};
use crate::{Change, Entry, Error, Half, Leaf, Mark, Pinned, Radix, Retired, Run, Table as _, Word, Writer};

/// The attributes that a page also loses in the copy: the entry in the copied table already records that the page is dirty, and
/// no page of a copy is global.
const FORGOTTEN: Attr = Attr::DIRTY.union(Attr::GLOBAL);

/// Tells whether a page with these attributes is a user's.
fn is_users<F: Format>(attr: Attr) -> bool {
    !F::OPTIONAL.contains(Attr::USER) || attr.contains(Attr::USER)
}

/// The caller's functions that a copy calls, and the obligation for changes of the copy.
struct Calls<'b, 'n, S: FnMut(Run), C: FnMut(u64)> {
    share: S,
    copy: C,
    born: &'b mut Retired<'n>,
}

/// A copy under way, from [`Writer::begin_copy`].
pub struct Copying<'n, N: Nodes> {
    /// Nodes for the copy.
    stock: Stock<'n, N, MAX>,
    /// How many nodes the copy needs, and how many of them have been taken.
    wanted: usize,
    taken: usize,
    reach: LinkRange,
    /// The first page that has not been copied, counted from the table's first slot.
    next: Vpn,
    /// How many more entries may be visited.
    left: usize,
    /// Whether a node was missing, because the table has grown since the copy began.
    is_short: bool,
}

impl<N: Nodes> Copying<'_, N> {
    /// Takes up to `most` nodes for the copy, and tells whether it has all that it needs.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`].
    pub fn reserve(&mut self, most: usize) -> Result<bool, Error> {
        let more = most.min(self.wanted - self.taken);
        // All nodes below the root have the size of the second level's.
        self.stock.add(1, more, || self.wanted, self.reach)?;
        self.taken += more;
        Ok(self.taken == self.wanted)
    }
}

impl<N: Nodes> fmt::Debug for Copying<'_, N> {
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
    ) -> Result<Copying<'n, N>, Error> {
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
        // SAFETY: the caller is the only writer of both tables.
        unsafe {
            table.check_room(copy, Vpn::new(0))?;
            table.check_apart(copy)?;
        }
        Ok(Copying {
            stock: Stock::empty(copy.nodes, &Mpt::<'n, G, F, N>::WORDS),
            // The copy has no node where this table has none.
            wanted: table.footprint().nodes.saturating_sub(copy.footprint().nodes),
            taken: 0,
            reach: F::REACH,
            next: Vpn::new(0),
            left: 0,
            is_short: false,
        })
    }

    /// Copies about `most` more entries, in ascending order from the first slot on. Returns the first page that is still to be
    /// copied, or `None` if all are. Between two parts this table may change: a later part copies what it finds. But no leaf may
    /// extend over the page that was returned; split it first. The child must not change.
    ///
    /// Each part must be flushed before this table changes otherwise.
    ///
    /// # Errors
    ///
    /// [`Error::Partial`] if a leaf extends over the next page, and [`Error::NoMemory`] for a child of another node storage than the one
    /// that the copy began with: this part has changed nothing then. [`Error::Occupied`] if the child has a page in the place of a supervisor page that has changed its size since, or is not
    /// mapped any more: this part has changed nothing then. [`Error::NoMemory`] if the table has got nodes since the copy began.
    /// The pages before this part are copied then, and some of this part.
    pub fn copy_part(
        &mut self,
        child: &mut Writer<'_, 'n, Mpt<'n, G, F, N>>,
        copying: &mut Copying<'n, N>,
        most: usize,
        share: impl FnMut(Run),
        payload: impl FnMut(u64),
    ) -> Result<Option<Vpn>, Error> {
        let ((table, batch), (copy, born)) = (self.parts(), child.parts());
        // SAFETY: the caller is the only writer of both tables.
        unsafe {
            table.check_next(copying.next)?;
            table.check_room(copy, copying.next)?;
        }
        if !core::ptr::eq(copying.stock.nodes(), copy.nodes) {
            // The nodes that were taken are not of the child's storage.
            return Err(Error::no_memory(1, copy.nodes.held()));
        }
        copying.left = most;
        copying.is_short = false;
        let (root, new) = (table.root, copy.root);
        // SAFETY: the caller is the only writer of both tables, and the batches are theirs.
        let stop = unsafe {
            born.change(
                |born| {
                    born.touch_all(F::APPEARS);
                    let mut calls = Calls { share, copy: payload, born };
                    batch.change(
                        |batch| {
                            table.fork_node(copy, copying, batch, (root, new), 0, Vpn::new(0), &mut calls)
                        },
                        |batch| table.mend(batch),
                    )
                },
                |born| copy.mend(born),
            )
        };
        if copying.is_short {
            return Err(Error::no_memory(1, copy.nodes.held()));
        }
        copying.next = stop.unwrap_or(copying.next);
        Ok(stop.map(|stop| Mpt::<'n, G, F, N>::canonical(Pages::one(stop)).first()))
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// Checks that `copy` maps and marks no page of its own, from the page `next` on, but those that are supervisor pages of the
    /// same size here, and lends nothing. So each of its nodes there is in the place of one of this table. `next` is counted from
    /// the table's first slot.
    ///
    /// # Errors
    ///
    /// [`Error::Occupied`] or [`Error::Marked`] with the first such page, or [`Error::WrongSize`].
    ///
    /// # Safety
    ///
    /// The caller is the only writer of both tables.
    unsafe fn check_room(&self, copy: &Self, next: Vpn) -> Result<(), Error> {
        if copy.lent.is_some() {
            return Err(Error::WrongSize { size: G::BASE });
        }
        if copy.footprint().ptes == 0 {
            return Ok(());
        }
        let mut done = Ok(());
        let mut check = |at: VirtAddr, entry: Entry| {
            // SAFETY: by this function's contract the caller is the only writer.
            let here = unsafe { self.find(at) };
            let alike = |leaf: &Leaf, here: &Leaf| here.size == leaf.size && !is_users::<F>(here.attr);
            match (entry, here) {
                (Entry::Empty, _) => return ControlFlow::Continue(()),
                (Entry::Leaf(leaf), Some(here)) if alike(&leaf, &here) => return ControlFlow::Continue(()),
                _ => done = Err(Error::taken(at, entry)),
            }
            ControlFlow::Break(())
        };
        let next = Self::canonical(Pages::one(next)).first();
        let halves = G::SPACE.halves().into_iter().flatten();
        for own in halves.flat_map(|half| without(half, copy.borrowed)).flatten() {
            let Some(own) = Pages::new(own.first().max(next), own.last()) else { continue };
            // SAFETY: by this function's contract the caller is the only writer, and frees nothing during the visit; no page of the
            // range is borrowed.
            let flow = copy.for_each_entry(unsafe { Pinned::by(copy) }, own, &mut check);
            if flow.is_break() {
                break;
            }
        }
        done
    }

    /// Checks that no leaf of this table extends over the page `next`, which is counted from the table's first slot.
    ///
    /// # Errors
    ///
    /// [`Error::Partial`].
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    unsafe fn check_next(&self, next: Vpn) -> Result<(), Error> {
        let page = Self::canonical(Pages::one(next)).first();
        let at = page.address(G::BASE);
        if self.is_borrowed(Self::index(0, at)) {
            return Ok(());
        }
        // SAFETY: by this function's contract the caller is the only writer, and the page is not borrowed.
        match unsafe { self.find(at) } {
            Some(leaf) if G::SPACE.pages_of(&leaf).first() < page => {
                Err(Error::Partial { at: leaf.at, size: leaf.size })
            }
            _ => Ok(()),
        }
    }

    /// Checks the top-level slots that `copy` borrows: this table's slot is empty or has the same link.
    ///
    /// # Errors
    ///
    /// [`Error::Borrowed`] with the first page of a slot in which this table has another entry.
    ///
    /// # Safety
    ///
    /// The caller is the only writer of both tables.
    unsafe fn check_apart(&self, copy: &Self) -> Result<(), Error> {
        let Some(pages) = copy.borrowed else { return Ok(()) };
        // Each table borrows from one lender, so one slot tells whether both borrow the same pages from the same lender.
        let most = if self.borrowed == copy.borrowed { 1 } else { usize::MAX };
        let index = |page: Vpn| Self::index(0, page.address(G::BASE));
        for slot in (index(pages.first())..=index(pages.last())).take(most) {
            // SAFETY: the slots are in the roots.
            let (own, borrowed) = unsafe { (self.read(self.root, slot), copy.read(copy.root, slot)) };
            // Nodes of two storages may have the same address.
            let is_one = core::ptr::eq(self.nodes, copy.nodes) && F::node(own) == F::node(borrowed);
            let shared = F::is_link(own) && is_one;
            let taken = F::is_link(own) || F::is_leaf(own, Self::LEVELS == 1) || Self::is_mark(own, 0);
            if taken && !shared {
                let page = Self::canonical(Pages::one(Vpn::new(slot * Self::slot_pages(0))));
                return Err(Error::Borrowed { at: page.first().address(G::BASE) });
            }
        }
        Ok(())
    }

    /// Copies a node, whose range begins with the page `first`, and all nodes below it, from the next page of `copying` on. Returns
    /// the page at which it stopped, if it did.
    ///
    /// # Safety
    ///
    /// The caller is the only writer of both tables, and [`check_room`](Self::check_room) has found that `copy` has room from the
    /// next page on. `from` is a node of `level` in this table, and `to` one of `level` in `copy`. No leaf of this table extends
    /// over the next page.
    #[expect(clippy::too_many_arguments, reason = "two tables, and where they are")]
    unsafe fn fork_node(
        &self,
        copy: &Self,
        copying: &mut Copying<'n, N>,
        batch: &mut Retired<'n>,
        (from, to): (NodeAddr, NodeAddr),
        level: usize,
        first: Vpn,
        calls: &mut Calls<'_, 'n, impl FnMut(Run), impl FnMut(u64)>,
    ) -> Option<Vpn> {
        let (last, slots, cover) = (level + 1 == Self::LEVELS, Self::slots(level), Self::slot_pages(level));
        if last && !Self::REPLICATED {
            // SAFETY: by this function's contract the caller is the only writer of both tables; both nodes are of `level`, which
            // is the last, and the node `to` is empty.
            let entries = unsafe { self.fork_last(copy, batch, (from, to), first, calls) };
            copying.left = copying.left.saturating_sub(entries);
            return None;
        }
        let page = |slot: usize| Vpn::new(first.get() + slot * cover);
        let mut stop = None;
        let shift = Self::part_shift(level);
        // SAFETY: by this function's contract both nodes are of this level, and every index is below the number of its slots.
        unsafe {
            let (here, there) = (self.cell(from, 0), copy.cell(to, 0));
            let (mut live, mut parts) = (self.live(from, level), self.parts(from, level));
            // The slots before the next page are copied already.
            let (mut index, mut leaves) = (copying.next.get().saturating_sub(first.get()) / cover, 0);
            // The first and the last slot whose leaf has lost a right.
            let mut lost: Option<(usize, usize)> = None;
            // The loop ends when the count of slots in use is 0. The count of a lent node is higher by one for each loan.
            while live > 0 && parts != 0 && stop.is_none() {
                let part = parts.trailing_zeros() as usize;
                parts &= parts - 1;
                index = index.max(part << shift);
                while live > 0 && index >> shift == part {
                    let word = F::Word::follow(here.add(index));
                    if copying.left == 0 {
                        stop = Some(page(index).max(copying.next));
                        break;
                    }
                    if F::is_leaf(word, last) {
                        let size = Self::leaf(word, level, VirtAddr::new(0)).size;
                        let frame = F::frame(word, size);
                        // A page larger than a slot occupies several slots, and the loop meets the first of them first.
                        let each = size.pages(G::BASE).map_or(1, |pages| pages.div_ceil(cover));
                        // Extends the run over the following slots, as long as they map the next frames with the same attributes.
                        let first = index;
                        let mut next = word;
                        (index, live) = (index + each, live.saturating_sub(each as u32));
                        while each == 1 && live > 0 && index < slots {
                            next = next.advance(F::STEP, cover);
                            let continues =
                                F::Word::follow(here.add(index)) == next && F::is_leaf(next, last);
                            // After the last frame that a word can hold, one more step yields frame 0 with other attributes.
                            if !continues || F::frame(next, size) == Pfn::new(0) {
                                break;
                            }
                            (index, live) = (index + 1, live - 1);
                        }
                        copying.left = copying.left.saturating_sub(index - first);
                        if !Self::is_users(word, last) {
                            continue;
                        }
                        (calls.share)(Run { first: frame, len: (index - first) * cover, dirty: false });
                        for slot in first..index {
                            let word = F::Word::follow(here.add(slot));
                            if self.copy_leaf(copy, (here, there), (from, to), slot, word, last) {
                                lost = Some((lost.map_or(slot, |(first, _)| first), slot));
                            }
                        }
                        copy.add_live(to, level, first, index - first);
                        leaves += index - first;
                        continue;
                    }
                    if Self::is_mark(word, level)
                        && let Some(mark) = Self::entry(word, level, VirtAddr::new(0)).mark()
                    {
                        if let Mark::Payload(payload, _) = mark {
                            (calls.copy)(payload);
                        }
                        copy.store_relaxed(to, index, F::absent(F::absent_bits(word)));
                        copy.add_live(to, level, index, 1);
                        copying.left = copying.left.saturating_sub(1);
                        (leaves, live) = (leaves + 1, live - 1);
                    }
                    if !last && F::is_link(word) {
                        live -= 1;
                        let below = F::node(word);
                        let lent = level == 0 && self.is_lent(index);
                        let empty = self.live(below, level + 1) == u32::from(lent);
                        let borrowed = level == 0 && (self.is_borrowed(index) || copy.is_borrowed(index));
                        if !borrowed && !empty {
                            let Some(new) = copy.node_for(&mut copying.stock, to, level, index) else {
                                copying.is_short = true;
                                stop = Some(page(index).max(copying.next));
                                break;
                            };
                            let nodes = (below, new);
                            stop = self.fork_node(copy, copying, batch, nodes, level + 1, page(index), calls);
                            if stop.is_some() {
                                // The next part continues in that node.
                                break;
                            }
                            if copy.live(new, level + 1) == 0 {
                                // All that is below is the supervisor's.
                                copy.store_relaxed(to, index, F::Word::ZERO);
                                copy.sub_live(to, level, 1);
                                copy.retire(calls.born, new, level + 1, true);
                            }
                        }
                    }
                    index += 1;
                    // Skips empty slots four at a time.
                    let word = |slot: usize| F::Word::follow(here.add(slot));
                    while live > 0
                        && (index + 3) >> shift == part
                        && word(index) | word(index + 1) | word(index + 2) | word(index + 3) == F::Word::ZERO
                    {
                        index += 4;
                    }
                }
            }
            copy.tally.ptes(leaves as isize);
            if let Some((begin, end)) = lost
                && let Some(pages) = Pages::new(page(begin), Vpn::new(page(end).get() + (cover - 1)))
            {
                batch.touch(FlushScope::Everywhere, self.stale(Self::canonical(pages)));
            }
        }
        stop
    }

    /// Returns the node in slot `index` of `to`, a node of `level`. If there is none, links one from the stock.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and no CPU walks this table yet. The slot is in the node, and holds a link or nothing.
    unsafe fn node_for(
        &self,
        stock: &mut Stock<'n, N, MAX>,
        to: NodeAddr,
        level: usize,
        index: usize,
    ) -> Option<NodeAddr> {
        // SAFETY: by this function's contract the caller is the only writer, and the slot is in the node.
        unsafe {
            let word = self.read(to, index);
            if F::is_link(word) {
                return Some(F::node(word));
            }
            let new = stock.next(1)?;
            self.tally.node(1, Self::words(level + 1) * F::Word::BYTES);
            // The node is linked now, so that the repair finds it if `share` unwinds.
            self.publish(to, index, F::link(new));
            self.add_live(to, level, index, 1);
            Some(new)
        }
    }

    /// Copies the leaf in the slot `start` of a last-level node, whose word was loaded as `first`, and the leaves after it that
    /// map the next frames with the same attributes. Returns the slot after the last of them.
    ///
    /// # Safety
    ///
    /// The caller is the only writer of both tables. `from` is a last-level node of this table, and `to` one of `copy`.
    #[inline(never)]
    unsafe fn fork_run(
        &self,
        copy: &Self,
        (from, to): (NodeAddr, NodeAddr),
        start: usize,
        first: F::Word,
        calls: &mut Calls<'_, 'n, impl FnMut(Run), impl FnMut(u64)>,
    ) -> usize {
        // SAFETY: by this function's contract both nodes are of this level, and every index is below the number of its slots.
        unsafe {
            let (here, there) = (self.cell(from, 0), copy.cell(to, 0));
            let (mut end, mut next) = (start + 1, first.advance(F::STEP, 1));
            while end < Self::slots(Self::LEVELS - 1) && F::Word::follow(here.add(end)) == next {
                next = next.advance(F::STEP, 1);
                end += 1;
            }
            // After the last frame that a word can hold, one more step yields frame 0 with other attributes, which begins another
            // run.
            let last = F::frame(F::Word::follow(here.add(end - 1)), G::BASE).get();
            if last < end - start - 1 {
                end -= last + 1;
            }
            (calls.share)(Run { first: F::frame(first, G::BASE), len: end - start, dirty: false });
            self.copy_leaf(copy, (here, there), (from, to), start, first, true);
            for slot in start + 1..end {
                let word = F::Word::follow(here.add(slot));
                self.copy_leaf(copy, (here, there), (from, to), slot, word, true);
            }
            end
        }
    }

    /// Tells whether a leaf maps a user's page. Hardware does not change that bit.
    #[inline(always)]
    fn is_users(leaf: F::Word, last: bool) -> bool {
        !F::OPTIONAL.contains(Attr::USER) || Self::without(leaf, Attr::USER, last) != leaf
    }

    /// Tells whether a leaf loses a right when it is shared: whether it maps writable memory. Hardware changes neither of these
    /// bits.
    #[inline(always)]
    fn loses(leaf: F::Word, last: bool) -> bool {
        // No change touches a memory type that is fixed, so `attr` tells that.
        Self::without(leaf, Attr::WRITE, last) != leaf && !F::attr(leaf, last).intersects(Attr::MEMORY)
    }

    /// Returns a leaf without some attributes.
    #[inline(always)]
    fn without(leaf: F::Word, attr: Attr, last: bool) -> F::Word {
        F::change(leaf, Change::clear(attr.intersection(F::OPTIONAL)), last)
    }

    /// Copies a last-level node in which each leaf occupies one slot. In one pass each leaf is passed to `share`, loses its right
    /// in this table and is stored in the copy.
    ///
    /// # Safety
    ///
    /// The caller is the only writer of both tables. `from` is a last-level node of this table, and `to` one of `copy`.
    #[inline(never)]
    unsafe fn fork_last(
        &self,
        copy: &Self,
        batch: &mut Retired<'n>,
        (from, to): (NodeAddr, NodeAddr),
        first: Vpn,
        calls: &mut Calls<'_, 'n, impl FnMut(Run), impl FnMut(u64)>,
    ) -> usize {
        let (level, slots) = (Self::LEVELS - 1, Self::slots(Self::LEVELS - 1));
        // SAFETY: by this function's contract both nodes are of this level, and every index is below the number of its slots.
        unsafe {
            let (here, there) = (self.cell(from, 0), copy.cell(to, 0));
            let all = self.live(from, level) as usize;
            let (mut index, mut live) = (0, all);
            // The first slot whose leaf has lost a right, and the slot after the last such slot; how many leaves are passed over.
            let (mut begin, mut end, mut passed) = (slots, 0, 0);
            let mut word = F::Word::follow(here);
            // The loop ends when the count of slots in use is 0.
            while live > 0 && index < slots {
                let slot = index;
                // The common case: leaves that lose a right and do not continue the leaf before. The last slot is left to the
                // code below, because this loop loads the slot after each leaf.
                let limit = index + live.min(slots - 1 - index);
                while index < limit
                    && F::is_leaf(word, true)
                    && Self::loses(word, true)
                    && Self::is_users(word, true)
                {
                    let behind = F::Word::follow(here.add(index + 1));
                    if behind == word.advance(F::STEP, 1) {
                        break;
                    }
                    (calls.share)(Run { first: F::frame(word, G::BASE), len: 1, dirty: false });
                    self.copy_leaf(copy, (here, there), (from, to), index, word, true);
                    (index, word) = (index + 1, behind);
                }
                live -= index - slot;
                if index > slot {
                    (begin, end) = (begin.min(slot), index);
                    continue;
                }
                if F::is_leaf(word, true) && !Self::is_users(word, true) {
                    (index, live, passed) = (index + 1, live - 1, passed + 1);
                } else if F::is_leaf(word, true) {
                    index = self.fork_run(copy, (from, to), slot, word, calls);
                    live = live.saturating_sub(index - slot);
                    if Self::loses(word, true) {
                        (begin, end) = (begin.min(slot), index);
                    }
                } else {
                    index += 1;
                    if word != F::Word::ZERO
                        && let Some(mark) = Self::entry(word, level, VirtAddr::new(0)).mark()
                    {
                        if let Mark::Payload(payload, _) = mark {
                            (calls.copy)(payload);
                        }
                        copy.store_relaxed(to, slot, F::absent(F::absent_bits(word)));
                        live -= 1;
                    }
                }
                // After the last slot this loads the first slot again. The loop then ends, and the word is not used.
                word = F::Word::follow(here.add(index & (slots - 1)));
            }
            let copied = all - live - passed;
            copy.add_live(to, level, 0, copied);
            copy.tally.ptes(copied as isize);
            let page = |slot: usize| Vpn::new(first.get() + slot);
            if begin < end
                && let Some(pages) = Pages::new(page(begin), page(end - 1))
            {
                batch.touch(FlushScope::Everywhere, self.stale(Self::canonical(pages)));
            }
            all - live
        }
    }

    /// Returns the page numbers, with the bits above those that the table translates, of a range that was counted from the table's first slot.
    fn canonical(pages: Pages) -> Pages {
        let page = |page: Vpn| {
            let bits = G::VA_BITS - G::BASE.shift();
            let high = match G::HALF {
                Half::Lower => false,
                Half::Upper => true,
                Half::Both => page.get() >> (bits - 1) & 1 == 1,
            };
            // The bits of a page number above those that the table translates.
            let above = if high { (usize::MAX >> G::BASE.shift()) & !((1 << bits) - 1) } else { 0 };
            Vpn::new(page.get() | above)
        };
        Pages::new(page(pages.first()), page(pages.last())).unwrap_or(pages)
    }

    /// Copies a leaf, whose word was loaded as `old`, and tells whether the leaf has lost a right in this table.
    ///
    /// # Safety
    ///
    /// `here` and `there` are the first cells of the nodes `from` and `to`, which are live. The caller is the nodes' only writer
    /// but hardware. `slot` is in both nodes.
    #[inline(always)]
    unsafe fn copy_leaf(
        &self,
        copy: &Self,
        (here, there): (*const <F::Word as Word>::Cell, *const <F::Word as Word>::Cell),
        (from, to): (NodeAddr, NodeAddr),
        slot: usize,
        mut old: F::Word,
        last: bool,
    ) -> bool {
        // SAFETY: by this function's contract the cells are those of live nodes, which have the slot, and the caller is the
        // nodes' only writer but hardware.
        unsafe {
            let (here, there) = (here.add(slot), there.add(slot));
            let mut word = Self::without(old, FORGOTTEN, last);
            let shared = Self::loses(old, last);
            if shared {
                if F::FLIPS {
                    old = F::Word::flip(here, old ^ F::change(old, Change::COPY_ON_WRITE, last));
                } else {
                    // Hardware only sets A and D, each once, so the loop ends and the leaf stays a leaf.
                    while let Err(now) =
                        F::Word::exchange(here, old, F::change(old, Change::COPY_ON_WRITE, last))
                    {
                        old = now;
                    }
                }
                self.exchanged(from, slot, old, F::change(old, Change::COPY_ON_WRITE, last));
                word = F::change(word, Change::COPY_ON_WRITE, last);
            }
            F::Word::publish(there, word);
            copy.nodes.stored(Store::Release);
            copy.nodes.stored(Store::word(to, slot, word));
            shared
        }
    }
}
