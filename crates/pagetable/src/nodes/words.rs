//! The words of a node, as handles: how a table accesses them, and what the storage is told.
//!
//! ```text
//!   Nodes::word      ----> WordRef      a walk: loads
//!   Nodes::word_mut  ----> WordMut      the only writer: loads and stores
//!   Nodes::words_mut ----> WordsMut     the same for neighbouring words
//!      unsafe                 safe
//! ```
//!
//! The step that makes a handle is the only one with an obligation: for the lifetime of the handle the word is in a node that is
//! not free, and the holder of a [`WordMut`] is the only CPU that writes it. A handle stays on its CPU. In [`Solo`](crate::Solo)
//! mode a storage is not [`Sync`], so no other CPU has a handle of its words, and stores may be plain.

use core::fmt;
use core::marker::PhantomData;

use super::{NodeAddr, Nodes, Store};
use crate::Word;
use crate::mode::CellMut;

/// Returns the store of a word in a node.
#[inline(always)]
fn word_stored<W: Word>(node: NodeAddr, index: usize, word: W) -> Store {
    Store::Word { at: node.get() + index * W::BYTES, value: word.to_u64() }
}

macro_rules! handles {
    ($($handle:ident)*) => { $(
        impl<N: Nodes + ?Sized> Clone for $handle<'_, N> {
            #[inline(always)]
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<N: Nodes + ?Sized> Copy for $handle<'_, N> {}

        impl<N: Nodes + ?Sized> fmt::Debug for $handle<'_, N> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($handle)).field("node", &self.node).finish_non_exhaustive()
            }
        }
    )* };
}

handles!(WordRef WordMut WordsMut);

/// A word of a node that is not free for `'a`, for a walk: what [`Nodes::word`] returns.
///
/// A walk cannot store:
///
/// ```compile_fail,E0599
/// # use tlbkit_pagetable::nodes::{Nodes, WordRef};
/// fn store<N: Nodes>(word: WordRef<'_, N>, value: N::Word) {
///     word.publish(value);
/// }
/// ```
pub struct WordRef<'a, N: Nodes + ?Sized> {
    pub(super) nodes: &'a N,
    pub(super) node: NodeAddr,
    pub(super) index: usize,
    /// The handle stays on this CPU.
    pub(super) here: PhantomData<*const ()>,
}

impl<'a, N: Nodes + ?Sized> WordRef<'a, N> {
    /// Loads the word, to follow the address in it.
    #[inline(always)]
    pub fn follow(self) -> N::Word {
        self.load(true)
    }

    /// Loads the word as [`follow`](Self::follow) does, and a storage that counts the loads of walks does not count this one.
    #[inline(always)]
    pub fn peek(self) -> N::Word {
        self.load(false)
    }

    #[inline(always)]
    fn load(self, counted: bool) -> N::Word {
        let Self { nodes, node, index, .. } = self;
        let cells = if counted { nodes.walked_at(node, index) } else { nodes.at(node) };
        // SAFETY: by the contract of `Nodes::word` the node is not free, and has the word.
        N::Word::follow(unsafe { &*cells.add(index) })
    }
}

/// A word of a node that is not free for `'a`, for the only CPU that writes it during `'a`: what [`Nodes::word_mut`] returns.
///
/// Another CPU cannot get the handle:
///
/// ```compile_fail,E0277
/// # use tlbkit_pagetable::nodes::{Nodes, WordMut};
/// fn send(_: impl Send) {}
///
/// fn to_another_cpu<N: Nodes + Sync>(word: WordMut<'_, N>) {
///     send(word);
/// }
/// ```
pub struct WordMut<'a, N: Nodes + ?Sized> {
    pub(super) nodes: &'a N,
    pub(super) node: NodeAddr,
    pub(super) index: usize,
    /// The handle stays on this CPU.
    pub(super) here: PhantomData<*const ()>,
}

impl<'a, N: Nodes + ?Sized> WordMut<'a, N> {
    /// Returns the node.
    pub const fn node(self) -> NodeAddr {
        self.node
    }

    /// Returns the index of the word in its node.
    pub const fn index(self) -> usize {
        self.index
    }

    #[inline(always)]
    fn cell(self) -> &'a <N::Word as Word>::Cell {
        // SAFETY: by the contract of `Nodes::word_mut` the node is not free during `'a`, and has the word.
        unsafe { &*self.nodes.at(self.node).add(self.index) }
    }

    #[inline(always)]
    fn by_mode(self) -> CellMut<'a, N::Word, N::Mode> {
        // SAFETY: by the contract of `Nodes::word_mut` no other CPU writes the word. In solo mode the storage stays on one CPU.
        unsafe { CellMut::new(self.cell()) }
    }

    /// Reads the word, by a plain load.
    #[inline(always)]
    pub fn read(self) -> N::Word {
        self.by_mode().read()
    }

    /// Stores the word without release: a word that is no link, or any word of a node that no walker can reach yet.
    #[inline(always)]
    pub fn store_relaxed(self, word: N::Word) {
        let cell = self.by_mode();
        if let Some(word) = self.nodes.storing(self, word) {
            cell.store_relaxed(word);
            self.nodes.stored(word_stored(self.node, self.index, word));
        }
    }

    /// Publishes the word by a releasing store: a walker that follows it sees the complete node to which it links.
    #[inline(always)]
    pub fn publish(self, word: N::Word) {
        let cell = self.by_mode();
        if let Some(word) = self.nodes.storing(self, word) {
            cell.publish(word);
            self.nodes.stored(Store::Release);
            self.nodes.stored(word_stored(self.node, self.index, word));
        }
    }

    /// Returns the same word, for accesses that are atomic in every mode: hardware may access the word at the same time.
    #[inline(always)]
    pub(crate) fn atomic(self) -> AtomicWord<'a, N> {
        AtomicWord(self)
    }
}

/// A word that hardware may access at any time.
pub(crate) struct AtomicWord<'a, N: Nodes + ?Sized>(WordMut<'a, N>);

impl<N: Nodes + ?Sized> AtomicWord<'_, N> {
    /// Loads the word.
    #[inline(always)]
    pub(crate) fn load(self) -> N::Word {
        N::Word::follow(self.0.cell())
    }

    /// Stores a word that links no node, or stores any word in a node that no walker can reach yet.
    #[inline(always)]
    pub(crate) fn store_relaxed(self, word: N::Word) {
        let WordMut { nodes, node, index, .. } = self.0;
        N::Word::store_relaxed(self.0.cell(), word);
        nodes.stored(word_stored(node, index, word));
    }

    /// Stores a word that leads to a complete node or a frame.
    #[inline(always)]
    pub(crate) fn publish(self, word: N::Word) {
        let WordMut { nodes, node, index, .. } = self.0;
        N::Word::publish(self.0.cell(), word);
        nodes.stored(Store::Release);
        nodes.stored(word_stored(node, index, word));
    }

    /// Stores a word in place of `seen`, in which hardware can set no more bits.
    #[inline(always)]
    pub(crate) fn publish_over(self, seen: N::Word, word: N::Word) {
        N::Word::publish(self.0.cell(), word);
        self.exchanged(seen, word);
    }

    /// Stores a word and returns the old word, in one step.
    #[inline(always)]
    pub(crate) fn swap(self, word: N::Word) -> N::Word {
        let old = N::Word::swap(self.0.cell(), word);
        self.exchanged(old, word);
        old
    }

    /// Stores `word` if the cell still holds `old`, in one step.
    ///
    /// # Errors
    ///
    /// The word that the cell holds instead of `old`.
    #[inline(always)]
    pub(crate) fn exchange(self, old: N::Word, word: N::Word) -> Result<(), N::Word> {
        N::Word::exchange(self.0.cell(), old, word)?;
        self.exchanged(old, word);
        Ok(())
    }

    /// Inverts the bits of the word that are set in `bits`, in one step. Returns the old word.
    #[inline(always)]
    pub(crate) fn flip(self, bits: N::Word) -> N::Word {
        let old = N::Word::flip(self.0.cell(), bits);
        self.exchanged(old, old ^ bits);
        old
    }

    /// Tells the storage that an atomic exchange has replaced `old` by `new`, or a store that has the same effect.
    #[inline(always)]
    fn exchanged(self, old: N::Word, new: N::Word) {
        let WordMut { nodes, node, index, .. } = self.0;
        nodes.stored(Store::Release);
        let at = node.get() + index * N::Word::BYTES;
        nodes.stored(Store::Exchange { at, old: old.to_u64(), new: new.to_u64() });
    }
}

/// Neighbouring words of a node that is not free for `'a`, for the only CPU that writes them during `'a`: what
/// [`Nodes::words_mut`] returns.
pub struct WordsMut<'a, N: Nodes + ?Sized> {
    pub(super) nodes: &'a N,
    pub(super) node: NodeAddr,
    pub(super) first: usize,
    pub(super) count: usize,
    /// The handle stays on this CPU.
    pub(super) here: PhantomData<*const ()>,
}

impl<'a, N: Nodes + ?Sized> WordsMut<'a, N> {
    /// Returns the words one by one.
    #[inline(always)]
    pub fn iter(self) -> impl Iterator<Item = WordMut<'a, N>> {
        let Self { nodes, node, first, count, here } = self;
        (first..first + count).map(move |index| WordMut { nodes, node, index, here })
    }

    /// Returns the cells, at one place in the storage.
    #[inline(always)]
    fn cells(self) -> impl Iterator<Item = CellMut<'a, N::Word, N::Mode>> {
        let cells = self.nodes.at(self.node).wrapping_add(self.first);
        (0..self.count).map(move |at| {
            // SAFETY: by the contract of `Nodes::words_mut` the node is not free during `'a`, and has the words; no other CPU writes
            // them. In solo mode the storage stays on one CPU.
            unsafe { CellMut::new(&*cells.add(at)) }
        })
    }

    /// Folds the words, by plain loads.
    #[inline(always)]
    pub fn fold<T>(self, start: T, with: impl Fn(T, N::Word) -> T) -> T {
        self.cells().fold(start, |all, cell| with(all, cell.read()))
    }

    /// Stores words that are no links: `word`, `word + step`, ...
    #[inline(always)]
    pub fn fill(self, mut word: N::Word, step: N::Word) {
        if N::WORD_BY_WORD {
            return self.iter().enumerate().for_each(|(at, cell)| cell.store_relaxed(word.advance(step, at)));
        }
        for (at, cell) in self.cells().enumerate() {
            cell.store_relaxed(word);
            self.nodes.stored(word_stored(self.node, self.first + at, word));
            word = word.advance(step, 1);
        }
    }

    /// Replaces each word by the result of `change`, without release.
    #[inline(always)]
    pub fn edit(self, change: impl Fn(N::Word) -> N::Word) {
        if N::WORD_BY_WORD {
            return self.iter().for_each(|cell| cell.store_relaxed(change(cell.read())));
        }
        for (at, cell) in self.cells().enumerate() {
            let word = change(cell.read());
            cell.store_relaxed(word);
            self.nodes.stored(word_stored(self.node, self.first + at, word));
        }
    }
}
