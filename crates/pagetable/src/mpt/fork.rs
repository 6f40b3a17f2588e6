//! Copy on write: a second table that leads to the same frames, and no page that can be written by way of either.

use tlbkit_addr::{Attr, Pages, Pfn, Reach, Vpn};

use super::Mpt;
use super::shape::{MAX, Shape};
use crate::format::Format;
use crate::nodes::{NodeAddr, Nodes, Stock};
use crate::{Change, Error, Radix, Retired, Run, Table as _, Word, Writer};

/// What a page loses, and gets, in the table that is copied, if it is memory that may be written.
const SHARED: Change = Change { clear: Attr::WRITE, set: Attr::COPY_ON_WRITE };
/// What it loses in the copy beside that: that it has been written is the other table's affair, and what is global there is
/// not in a copy.
const FORGOTTEN: Attr = Attr::DIRTY.union(Attr::GLOBAL);

/// A run of slots, in a node of each of the two tables, whose frames continue each other.
struct Slots {
    from: NodeAddr,
    to: NodeAddr,
    index: usize,
    count: usize,
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Writer<'_, 'n, Mpt<'n, G, F, N>> {
    /// Maps in `child`, an empty table, what this one maps itself, to the same frames. Pages of memory that may be written lose
    /// [`Attr::WRITE`] in both, and get [`Attr::COPY_ON_WRITE`]; pages of devices and uncached pages are copied as they
    /// are. `share` gets each run of frames before the child maps it.
    ///
    /// Costs a visit of each slot of the nodes, but for the empty ones behind the last that is in use.
    ///
    /// # Errors
    ///
    /// [`Error::WrongAttr`] if the format has no room for [`Attr::COPY_ON_WRITE`]; [`Error::Occupied`] if the child maps
    /// something; [`Error::NoMemory`]. Nothing has changed then.
    pub fn copy_on_write(
        &mut self,
        child: &mut Writer<'_, 'n, Mpt<'n, G, F, N>>,
        mut share: impl FnMut(Run),
    ) -> Result<(), Error> {
        const {
            let mut level = 1;
            while level < G::WIDTHS.len() {
                assert!(G::WIDTHS[level] == G::WIDTHS[0], "nodes are of one size");
                level += 1;
            }
            assert!(F::EXTRA == 0 && !F::PAIRED && G::LINEAR.is_none(), "a slot is an entry of its own");
            assert!(!Mpt::<'n, G, F, N>::REPLICATED, "a leaf is one slot");
        }
        if !F::OPTIONAL.contains(Attr::COPY_ON_WRITE) {
            return Err(Error::WrongAttr { attr: Attr::COPY_ON_WRITE });
        }
        let ((table, batch), (copy, born)) = (self.parts(), child.parts());
        if copy.footprint().ptes > 0 || copy.footprint().nodes != 1 {
            // SAFETY: the caller is the child's writer.
            return Err(unsafe {
                copy.occupied(Vpn::new(0), Vpn::new(usize::MAX >> G::BASE.shift()), G::BASE)
            });
        }
        let mut want = [0; MAX];
        want[0] = table.footprint().nodes - 1;
        let mut stock = Stock::take_within(copy.nodes, &Mpt::<'n, G, F, N>::WORDS, want, F::REACH)?;
        let (root, new) = (table.root, copy.root);
        // SAFETY: the caller is the only writer of both tables, and the batches are theirs.
        unsafe {
            born.change(
                |born| {
                    born.touch_all(F::APPEARS);
                    batch.change(
                        |batch| {
                            table.fork_node(copy, &mut stock, batch, (root, new), 0, Vpn::new(0), &mut share);
                        },
                        |batch| table.mend(batch),
                    );
                },
                |born| copy.mend(born),
            );
        }
        Ok(())
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// Copies a node, the first page of whose range is `first`, and what is below it.
    ///
    /// # Safety
    ///
    /// The caller is the only writer of both tables, in which the nodes are of `level`; the other one is empty. The stock has
    /// as many nodes as there are.
    #[expect(clippy::too_many_arguments, reason = "two tables, and where they are")]
    unsafe fn fork_node(
        &self,
        copy: &Self,
        stock: &mut Stock<'n, N, MAX>,
        batch: &mut Retired<'n>,
        (from, to): (NodeAddr, NodeAddr),
        level: usize,
        first: Vpn,
        share: &mut impl FnMut(Run),
    ) {
        let last = level + 1 == Self::LEVELS;
        // SAFETY: the caller's promise: indices are below the node's slots.
        unsafe {
            let mut live = self.count(from, level, 0);
            let (mut index, mut leaves) = (0, 0);
            let mut lost: Option<Pages> = None;
            // The count says when the last entry has been seen. A lent node's is one too many for each loan.
            while live > 0 {
                index = self.next_used(from, level, index);
                if index >= Self::slots(level) {
                    break;
                }
                let word = self.read(from, index);
                let at = Vpn::new(first.get() + index * Self::slot_pages(level));
                if F::is_leaf(word, last) {
                    let slots = self.run(from, to, level, index, word, live as usize);
                    let frames = F::frame(word, Self::SLOTS[level]);
                    share(Run { first: frames, len: slots.count * Self::slot_pages(level), dirty: false });
                    if self.copy_run(copy, &slots)
                        && let Some(end) = at.checked_add(slots.count * Self::slot_pages(level) - 1)
                    {
                        let begin = lost.map_or(at, Pages::first);
                        lost = Pages::new(begin, end);
                    }
                    leaves += slots.count;
                    live -= slots.count as u32;
                    index += slots.count;
                    continue;
                }
                if !last && F::is_link(word) {
                    live -= 1;
                    let below = F::node(word);
                    let lent = level == 0 && self.is_lent(index);
                    let empty = self.count(below, level + 1, 0) == u32::from(lent);
                    let borrowed = level == 0 && self.is_borrowed(index);
                    if !borrowed
                        && !empty
                        && let Some(new) = stock.next(0)
                    {
                        copy.tally.node(1, Self::WORDS[level + 1] * F::Word::BYTES);
                        self.fork_node(copy, stock, batch, (below, new), level + 1, at, share);
                        copy.publish(to, index, F::link(new));
                        copy.count(to, level, 1);
                    }
                }
                index += 1;
            }
            copy.count(to, level, leaves as i32);
            copy.tally.ptes(leaves as isize);
            if let Some(lost) = lost {
                batch.touch(Reach::Everywhere, Self::canonical(lost));
            }
        }
    }

    /// Returns the pages of a range that was counted from the first page of the table on.
    fn canonical(pages: Pages) -> Pages {
        let page = |page: Vpn| {
            let bits = G::VA_BITS - G::BASE.shift();
            let high = G::SIGNED && page.get() >> (bits - 1) & 1 == 1;
            // The bits above the table's, of a page number.
            let above = if high { (usize::MAX >> G::BASE.shift()) & !((1 << bits) - 1) } else { 0 };
            Vpn::new(page.get() | above)
        };
        Pages::new(page(pages.first()), page(pages.last())).unwrap_or(pages)
    }

    /// Returns the first slot from `index` on that is not zero; empty ones are passed four at a time.
    #[inline(always)]
    unsafe fn next_used(&self, node: NodeAddr, level: usize, mut index: usize) -> usize {
        let slots = Self::slots(level);
        // SAFETY: the indices are below the node's slots.
        unsafe {
            while index + 4 <= slots
                && self.read(node, index)
                    | self.read(node, index + 1)
                    | self.read(node, index + 2)
                    | self.read(node, index + 3)
                    == F::Word::ZERO
            {
                index += 4;
            }
            while index < slots && self.read(node, index) == F::Word::ZERO {
                index += 1;
            }
        }
        index
    }

    /// Returns the slots from `index` on, `most` of them, whose frames continue that of `word`.
    #[inline(always)]
    unsafe fn run(
        &self,
        from: NodeAddr,
        to: NodeAddr,
        level: usize,
        index: usize,
        word: F::Word,
        most: usize,
    ) -> Slots {
        let (last, size) = (level + 1 == Self::LEVELS, Self::SLOTS[level]);
        let first = F::frame(word, size).get();
        let mut count = 1;
        let end = Self::slots(level) - index;
        while count < most.min(end) {
            // SAFETY: the index is below the node's slots.
            let next = unsafe { self.read(from, index + count) };
            let frame = Pfn::new(first + count * Self::slot_pages(level));
            if !F::is_leaf(next, last) || F::frame(next, size) != frame {
                break;
            }
            count += 1;
        }
        Slots { from, to, index, count }
    }

    /// Copies leaves, and tells whether any of them has lost a right here.
    #[inline(always)]
    unsafe fn copy_run(&self, copy: &Self, slots: &Slots) -> bool {
        let &Slots { from, to, index, count } = slots;
        let mut lost = false;
        for place in index..index + count {
            // SAFETY: the places are in both nodes, and the caller is the only writer of both but hardware.
            unsafe {
                let mut old = self.read(from, place);
                let mut word = F::change(old, Change::clear(FORGOTTEN.intersection(F::OPTIONAL)));
                let attr = F::attr(old);
                if attr.contains(Attr::WRITE) && !attr.intersects(Attr::MEMORY) {
                    word = F::change(word, SHARED);
                    lost = true;
                    if F::STATUS {
                        // Hardware sets bits alone: the page remains what it is.
                        while let Err(now) =
                            F::Word::exchange(self.cell(from, place), old, F::change(old, SHARED))
                        {
                            old = now;
                        }
                    } else {
                        self.put(from, place, F::change(old, SHARED));
                    }
                }
                copy.publish(to, place, word);
            }
        }
        lost
    }
}
