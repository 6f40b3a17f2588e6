//! What no slot holds: an entry that was taken out of its slot, or that is to be stored in one; and the moves of entries.

use core::marker::PhantomData;

use tlbkit_addr::VirtAddr;

use super::{NodeMut, NodeRef, Place, Seen, Writing};
use crate::format::Format;
use crate::mpt::Mpt;
use crate::mpt::leaf::Decode as _;
use crate::mpt::shape::{MAX, MOST_LOG, Shape};
use crate::nodes::{Nodes, Stock};
use crate::{Error, Radix, Word as _};

/// An entry of a slot that no slot holds: a leaf or mark, or the only link to a subtree.
///
/// If it is dropped, its nodes are leaked.
#[must_use = "its nodes are in no table: link, retire, discard or detach it"]
pub(crate) struct Subtree<'w, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>>(Seen<'w, 'n, G, F, N>);

/// Nodes of a table's sizes that a dry run has reserved, to each of which a link can lead.
pub(crate) struct Supply<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> {
    stock: Stock<'n, N, MAX>,
    shape: PhantomData<(G, F)>,
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Supply<'n, G, F, N> {
    /// Takes `want[level]` nodes for each level.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`].
    #[inline(always)]
    pub(crate) fn take(&mut self, want: &[usize; MAX]) -> Result<(), Error> {
        self.stock.take_all(want, F::REACH)
    }

    /// Returns an empty supply for a table.
    #[inline(always)]
    pub(crate) fn empty(table: &Mpt<'n, G, F, N>) -> Self {
        Self { stock: Stock::empty(table.nodes, &Mpt::<'n, G, F, N>::WORDS), shape: PhantomData }
    }

    /// Takes `more` nodes of a level. `all` counts those of the whole change, for the error.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`].
    pub(crate) fn add(&mut self, level: usize, more: usize, all: usize) -> Result<(), Error> {
        self.stock.add(level, more, all, F::REACH)
    }

    /// Tells whether the nodes are of a table's storage.
    pub(crate) fn is_for(&self, table: &Mpt<'n, G, F, N>) -> bool {
        core::ptr::eq(self.stock.nodes(), table.nodes)
    }
}

impl<'w, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Subtree<'w, 'n, G, F, N> {
    /// Returns a leaf or mark for the slot `index` of a node. A link is none: this returns an empty entry then.
    pub(crate) fn leaf_of(node: NodeRef<'w, 'n, G, F, N>, index: usize, word: F::Word) -> Self {
        let is_link = Self::is_link(word, node.level);
        debug_assert!(!is_link, "a link is made with its subtree");
        Self(Seen { node, index, word: if is_link { F::Word::ZERO } else { word } })
    }

    /// Takes an empty node for the slot `index` of a node, from those of the level `like` in the supply. Returns `None` if there
    /// are none, or if they have another size or storage.
    pub(crate) fn take(
        node: NodeRef<'w, 'n, G, F, N>,
        index: usize,
        supply: &mut Supply<'n, G, F, N>,
        like: usize,
    ) -> Option<Self> {
        let (table, level) = (node.table, node.level + 1);
        let fits = supply.is_for(table) && level < Self::LEVELS && Self::words(like) == Self::words(level);
        let new = if fits { supply.stock.next(like)? } else { return None };
        table.tally_node(1, level);
        Some(Self(Seen { node, index, word: F::link(new) }))
    }

    /// Returns the entry, to be read.
    #[inline(always)]
    pub(crate) fn seen(&self) -> Seen<'w, 'n, G, F, N> {
        self.0
    }

    /// Fills the slots of this entry's node, which no walker can reach yet, with the entries that `each` returns.
    pub(crate) fn filled(self, mut each: impl FnMut(NodeRef<'w, 'n, G, F, N>, usize) -> Self) -> Self {
        if let Some(node) = self.0.link() {
            for index in 0..Self::slots(node.level) {
                let entry = each(node, index);
                if entry.fits(node) {
                    Place { node, index }.put_relaxed(entry.0.word);
                }
            }
            node.count_in(0, Self::slots(node.level));
        }
        self
    }

    /// Replaces each leaf of the entry, which no walker can reach yet, by the result of `change`.
    pub(crate) fn edit(&mut self, change: &impl Fn(F::Word, bool) -> F::Word) {
        let Seen { node, word, .. } = self.0;
        if Self::is_leaf(word, node.level) {
            *self = Self::leaf_of(node, self.0.index, change(word, Self::is_last(node.level)));
        } else if let Some(below) = self.0.link() {
            for index in 0..Self::slots(below.level) {
                let mut entry = Self(below.read(index));
                entry.edit(change);
                Place { node: below, index }.put_relaxed(entry.0.word);
            }
        }
    }

    /// Tells whether the entry is one for a node of the same table and level.
    fn fits(&self, node: NodeRef<'_, 'n, G, F, N>) -> bool {
        let fits = self.0.node.level == node.level && core::ptr::eq(self.0.node.table, node.table);
        debug_assert!(fits, "the entry is one of another table or level");
        fits
    }

    /// Returns the entry, of whose nodes the caller is now the owner.
    pub(super) fn into_seen(self) -> Seen<'w, 'n, G, F, N> {
        self.0
    }
}

impl<'w, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodeMut<'w, 'n, G, F, N> {
    /// Returns a slot in which an entry may be exchanged: none whose link other tables hold, too.
    fn own_place(&self, index: usize) -> Option<Place<'w, 'n, G, F, N>> {
        let index = self.within(index).0;
        let is_shared = self.level == 0 && (self.table.is_borrowed(index) || self.table.is_lent(index));
        (!is_shared).then_some(Place { node: self.node, index })
    }

    /// Stores the entry `new`, which walkers reach from now on, in a slot that holds no link.
    pub(crate) fn put(&self, index: usize, new: Subtree<'w, 'n, G, F, N>) {
        let index = self.within(index).0;
        let is_free = !Self::is_link(self.read(index).word, self.level);
        debug_assert!(is_free, "a link is in the slot");
        if is_free && new.fits(self.node) {
            Place { node: self.node, index }.put(new.0.word);
        }
    }

    /// Links a complete node in an empty slot, and counts the slot.
    pub(crate) fn link(&mut self, index: usize, new: Subtree<'w, 'n, G, F, N>) {
        self.put(index, new);
        self.add_live(index, 1);
    }

    /// Borrows the link in a slot of the root of `lender`, which never changes.
    pub(crate) fn borrow(&mut self, lender: &'n Mpt<'n, G, F, N>, index: usize) {
        let place = Place { node: self.node, index: self.within(index).0 };
        let is_lent = self.level == 0 && self.table.is_borrowed(place.index) && lender.is_lent(place.index);
        if is_lent && core::ptr::eq(self.table.nodes, lender.nodes) {
            // SAFETY: the lender is borrowed for the life of the storage, so its root is live; lent links do not change.
            place.put(unsafe { lender.nodes.word(lender.root, Self::place(0, place.index)) }.follow());
            self.node.count_in(place.index, 1);
        }
    }

    /// Empties a slot that holds a link, counts the slot out and returns the link. Returns `None` if the slot holds no link, or if other
    /// tables hold the link, too.
    pub(crate) fn unlink(&mut self, index: usize) -> Option<Subtree<'w, 'n, G, F, N>> {
        let old = self.read(index);
        if !Self::is_link(old.word, self.level) {
            return None;
        }
        let place = self.own_place(index)?;
        place.put_relaxed(F::Word::ZERO);
        place.settle_pair();
        self.sub_live(1);
        Some(Subtree(old))
    }

    /// Unlinks the node in a slot and retires it; what is below it is leaked. Does nothing if [`unlink`](Self::unlink) does. `empty` says
    /// that the node need not be cleared when it is taken again.
    ///
    /// # Safety
    ///
    /// If `empty` is set, all slots of the node are.
    #[inline(never)]
    pub(crate) unsafe fn retire_child(&mut self, index: usize, empty: bool) -> bool {
        let gone = self.unlink(index);
        let unlinked = gone.is_some();
        if let Some(gone) = gone {
            // SAFETY: the contract of this function.
            unsafe { self.retire_as(gone, empty) };
        }
        unlinked
    }

    /// Empties a slot with an exchange, and returns what the slot held.
    pub(crate) fn take_out(&self, index: usize) -> Subtree<'w, 'n, G, F, N> {
        let word = self.own_place(index).map_or(F::Word::ZERO, |place| place.swap(F::Word::ZERO));
        Subtree(Seen { node: self.node, index: self.within(index).0, word })
    }

    /// Stores the entry `new`, and returns what the slot held.
    pub(crate) fn replace(&self, index: usize, new: Subtree<'w, 'n, G, F, N>) -> Subtree<'w, 'n, G, F, N> {
        let Some(place) = self.own_place(index) else { return new };
        if !new.fits(self.node) {
            return new;
        }
        let old = self.read(index);
        place.put(new.0.word);
        Subtree(old)
    }

    /// Exchanges the entry `new` and what its slot holds, if that is still `seen`, in one atomic step. Tells whether it did. If not,
    /// `seen` is then what the slot holds. If the slot or the entry is not this table's, nothing changes, and `new` is what the caller is left
    /// with.
    pub(crate) fn swap_seen(
        &self,
        seen: &mut Seen<'w, 'n, G, F, N>,
        new: &mut Subtree<'w, 'n, G, F, N>,
    ) -> bool {
        let Some(place) = self.own_place(seen.index) else { return true };
        if !new.fits(self.node) {
            return true;
        }
        let found = place.exchange(seen.word, new.0.word);
        let now = Seen { node: self.node, index: place.index, word: found.err().unwrap_or(seen.word) };
        if found.is_ok() {
            new.0 = now;
        } else {
            *seen = now;
        }
        found.is_ok()
    }

    /// Retires the node that an entry links; what is below that node is leaked.
    #[inline(never)]
    pub(crate) fn retire(&mut self, gone: Subtree<'w, 'n, G, F, N>) {
        // SAFETY: nothing is claimed of the node's words.
        unsafe { self.retire_as(gone, false) };
    }

    /// Retires the node that an entry links. `empty` says that the node need not be cleared when it is taken again.
    ///
    /// # Safety
    ///
    /// If `empty` is set, all slots of the node are.
    #[inline(always)]
    pub(crate) unsafe fn retire_as(&mut self, gone: Subtree<'w, 'n, G, F, N>, empty: bool) {
        if core::ptr::eq(gone.0.node.table, self.table)
            && let Some(node) = gone.0.link()
        {
            // The kernel may have written to the extra words beside the leaves.
            let clean = empty && (F::EXTRA == 0 || !Self::is_last(node.level));
            // SAFETY: the entry was the only link to the node, which is one of the table's storage, and the batch is one of the
            // table. By this function's contract a clean node's slots are empty, and it has no other words.
            unsafe { self.batch.push(node.addr, clean) };
            self.table.tally_node(-1, node.level);
        }
    }

    /// Discards an entry: retires the nodes below it, whose words do not change, and subtracts its PTEs from the table's count. Until
    /// the batch is complete the entry can be read.
    pub(crate) fn discard(&mut self, gone: Subtree<'w, 'n, G, F, N>) -> Seen<'w, 'n, G, F, N> {
        let seen = gone.0;
        if Self::is_leaf(seen.word, seen.node.level) {
            self.table.count_ptes(-1);
        } else if let Some(node) = seen.link() {
            for index in 0..Self::slots(node.level) {
                // No walker finds the words of the node any more, so each of its links is the only one.
                self.discard(Subtree(node.read(index)));
            }
            self.retire(gone);
        }
        seen
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Writing<'_, 'n, G, F, N> {
    /// Moves the link in the slot of `level` for `from` to the empty slot of that level for `to`, and counts both slots. Nothing moves
    /// if there is no such link or slot, or if other tables hold a link of either slot.
    pub(crate) fn move_link(&mut self, level: usize, from: VirtAddr, to: VirtAddr) {
        let target = self.node_for(to, level);
        let place = target.own_place(target.index_of(to));
        let is_free = place.is_some_and(|place| !Self::is_link(place.read(), level));
        if target.level != level || !is_free {
            return;
        }
        let mut source = self.node_for(from, level);
        if source.level != level {
            return;
        }
        let Some(gone) = source.unlink(source.index_of(from)) else { return };
        // The link is in no slot now, and its only owner is this function.
        let word = gone.into_seen().word;
        let mut target = self.node_for(to, level);
        let index = target.index_of(to);
        Place { node: target.node, index }.put(word);
        target.add_live(index, 1);
    }
}

/// The largest number of slots of a [run](crate::mpt::run), which every table's [shape](Shape::RUNS) keeps to.
const MOST: usize = 1 << MOST_LOG;

/// Words that were seen in neighbouring slots of a node.
pub(crate) struct SeenRun<'a, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> {
    node: NodeRef<'a, 'n, G, F, N>,
    first: usize,
    words: [F::Word; MOST],
    count: usize,
}

impl<'a, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> SeenRun<'a, 'n, G, F, N> {
    /// Returns an empty list for the slots of a node from `first` on.
    pub(crate) fn new(node: NodeRef<'a, 'n, G, F, N>, first: usize) -> Self {
        Self { node, first, words: [F::Word::ZERO; MOST], count: 0 }
    }

    /// Adds what was seen in the next slot.
    pub(crate) fn push(&mut self, seen: Seen<'a, 'n, G, F, N>) {
        let is_next = seen.node.addr == self.node.addr && seen.index == self.first + self.count;
        debug_assert!(is_next && self.count < MOST, "what was seen in the next slot");
        if is_next && let Some(word) = self.words.get_mut(self.count) {
            *word = seen.word;
            self.count += 1;
        }
    }

    /// Returns what was seen, slot by slot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Seen<'a, 'n, G, F, N>> {
        (self.first..).zip(self.words.iter().take(self.count)).map(|(index, &word)| Seen {
            node: self.node,
            index,
            word,
        })
    }
}

/// The entries of neighbouring slots, which were taken out. The entries that are left when this is dropped are stored in their slots
/// again.
pub(crate) struct TakenRun<'w, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> {
    all: SeenRun<'w, 'n, G, F, N>,
    /// How many entries have another owner.
    popped: usize,
}

impl<'w, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> TakenRun<'w, 'n, G, F, N> {
    /// Returns the entries, to be read.
    pub(crate) fn seen(&self) -> impl Iterator<Item = Seen<'w, 'n, G, F, N>> {
        self.all.iter().skip(self.popped)
    }

    /// Returns the next entry.
    pub(crate) fn pop(&mut self) -> Option<Subtree<'w, 'n, G, F, N>> {
        let next = self.seen().next()?;
        self.popped += 1;
        Some(Subtree(next))
    }
}

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Drop for TakenRun<'_, '_, G, F, N> {
    fn drop(&mut self) {
        while let Some(Subtree(Seen { node, index, word })) = self.pop() {
            Place { node, index }.put(word);
        }
    }
}

impl<'w, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodeMut<'w, 'n, G, F, N> {
    /// Empties neighbouring slots, each with an exchange, and returns what they held.
    pub(crate) fn take_out_run(&self, first: usize, slots: usize) -> TakenRun<'w, 'n, G, F, N> {
        let (first, slots) = self.clamped(first, slots.min(MOST));
        let mut all = SeenRun::new(self.node, first);
        for index in first..first + slots {
            all.push(self.take_out(index).0);
        }
        TakenRun { all, popped: 0 }
    }
}
