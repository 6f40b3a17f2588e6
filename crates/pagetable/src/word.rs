//! The words of page tables, and the memory ordering of every access to a word.
//!
//! A node is an array of words that walkers on other CPUs may read at any moment, so in [`Shared`](crate::Shared) mode
//! every store is atomic, and so is every load of a walker. Only this file chooses an ordering:
//!
//! | access | by | ordering | why |
//! |-|-|-|-|
//! | [`follow`](Word::follow) | a walker | relaxed | the next address depends on the loaded word, and hardware orders dependent loads; an acquire would be a `sync` per level on MIPS |
//! | [`publish`](Word::publish) | the writer | release | the node or frame that the word leads to is complete before the word is visible |
//! | [`store_relaxed`](Word::store_relaxed) | the writer | relaxed | a word that no walker can reach yet, or one that leads to no node: a range of leaves is stored so, after a release fence |
//! | [`swap`](Word::swap), [`exchange`](Word::exchange) | the writer | sequentially consistent | hardware may set a status bit between a load and a store; and the access stands for a fence ([`Stale`](crate::mpt::Stale)). On no machine does it take more than acquire-release |
//! | [`flip`](Word::flip) | the writer | acquire-release | hardware may set a status bit between a load and a store |
//!
//! The writer's loads are plain, because no other code writes at the same time; in [`Solo`](crate::Solo) mode its stores are
//! plain, too, because no other code reads at the same time. [`CellMut`](crate::mode::CellMut) makes these accesses: it is the proof
//! that they are sound. Where hardware walks the table, it may walk at any moment, by speculation, so the accesses are those of the
//! table above also in solo mode. This crate has no barrier instruction. The kernel executes the barrier that a machine needs after the last store
//! ([`FlushScope::Barrier`](tlbkit_addr::FlushScope::Barrier)): in the function that it gives to [`Local`](crate::Local), or
//! before it uses the pages that a [`Writer`](crate::Writer) has mapped.
//!
//! Rust's memory model has no dependent loads: a relaxed `follow` during a writer's change is correct only because the compiler
//! cannot know the next address before the word is loaded. Under loom, Miri and the thread sanitizer, which check the model,
//! `follow` is an acquire.

use core::fmt::Debug;
use core::ops::{BitAnd, BitOr, BitXor, Not};
use core::sync::atomic::Ordering;

#[cfg(tlbkit_loom)]
pub(crate) use loom::sync::atomic as atomics;

#[cfg(not(tlbkit_loom))]
pub(crate) use core::sync::atomic as atomics;

/// The ordering of a walker's load.
const FOLLOW: Ordering =
    if cfg!(any(tlbkit_loom, miri, tsan)) { Ordering::Acquire } else { Ordering::Relaxed };

/// The ordering of the writer's store of a word that links no new node. A release under the thread sanitizer, which does not
/// support the fence that may precede such stores ([`Mode::release`](crate::mode::Mode::release)).
const PUT: Ordering = if cfg!(tsan) { Ordering::Release } else { Ordering::Relaxed };

/// An unsigned integer that hardware, or a refill handler, loads and stores in one access: `u32` or `u64`.
///
/// The trait is sealed, because tables rely on these implementations for soundness: except under loom, a cell has the layout of its
/// word. A reference to a cell says no more of the memory than that it is mapped for as long as the reference lives, because
/// a cell is interior mutable.
pub trait Word:
    sealed::Sealed
    + Copy
    + Debug
    + Default
    + Eq
    + Ord
    + BitAnd<Output = Self>
    + BitOr<Output = Self>
    + BitXor<Output = Self>
    + Not<Output = Self>
    + Send
    + Sync
    + 'static
{
    /// The atomic cell that holds such a word, zero by default.
    type Cell: Default + Send + Sync + Debug;

    /// The word's width in bits.
    const BITS: u32;
    /// The word's width in bytes.
    const BYTES: usize = (Self::BITS / 8) as usize;
    /// The word with no bit set, which is an empty entry in every format.
    const ZERO: Self;

    /// Returns the low bits of `bits` as a word.
    fn from_usize(bits: usize) -> Self;

    /// Returns the low bits of the word as a `usize`.
    fn to_usize(self) -> usize;

    /// Returns the low bits of `bits` as a word.
    fn from_u64(bits: u64) -> Self;

    /// Returns the word as 64 bits.
    fn to_u64(self) -> u64;

    /// Returns `self + step * times`, wrapping.
    #[must_use]
    fn advance(self, step: Self, times: usize) -> Self;

    /// Returns a cell that holds `self`.
    fn cell(self) -> Self::Cell;

    /// Loads a word as a walker, to follow the address in it.
    fn follow(cell: &Self::Cell) -> Self;

    /// Stores a word with release ordering: a walker that follows it sees everything that was stored before.
    fn publish(cell: &Self::Cell, word: Self);

    /// Stores a word with relaxed ordering.
    fn store_relaxed(cell: &Self::Cell, word: Self);

    /// Stores a word and returns the old word, in one atomic step.
    fn swap(cell: &Self::Cell, word: Self) -> Self;

    /// Inverts the bits of a word that are set in `bits`, and returns the old word, in one atomic step.
    fn flip(cell: &Self::Cell, bits: Self) -> Self;

    /// Stores `word` if the cell still holds `old`, in one atomic step.
    ///
    /// # Errors
    ///
    /// The word that the cell holds instead of `old`.
    fn exchange(cell: &Self::Cell, old: Self, word: Self) -> Result<(), Self>;

    /// Loads a word that no other thread writes: the model checker reports a store that is not ordered with the load.
    #[cfg(tlbkit_loom)]
    #[doc(hidden)]
    fn load_checked(cell: &Self::Cell) -> Self;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! word {
    ($word:ident, $cell:ident) => {
        impl sealed::Sealed for $word {}

        impl Word for $word {
            type Cell = atomics::$cell;

            const BITS: u32 = $word::BITS;
            const ZERO: Self = 0;

            #[inline(always)]
            fn from_usize(bits: usize) -> Self {
                bits as Self
            }

            #[inline(always)]
            fn to_usize(self) -> usize {
                self as usize
            }

            #[inline(always)]
            fn from_u64(bits: u64) -> Self {
                bits as Self
            }

            #[inline(always)]
            fn to_u64(self) -> u64 {
                u64::from(self)
            }

            #[inline(always)]
            fn advance(self, step: Self, times: usize) -> Self {
                self.wrapping_add(step.wrapping_mul(times as Self))
            }

            fn cell(self) -> Self::Cell {
                atomics::$cell::new(self)
            }

            #[inline(always)]
            fn follow(cell: &Self::Cell) -> Self {
                cell.load(FOLLOW)
            }

            #[inline(always)]
            fn publish(cell: &Self::Cell, word: Self) {
                cell.store(word, Ordering::Release);
            }

            #[inline(always)]
            fn store_relaxed(cell: &Self::Cell, word: Self) {
                cell.store(word, PUT);
            }

            #[inline(always)]
            fn swap(cell: &Self::Cell, word: Self) -> Self {
                cell.swap(word, Ordering::SeqCst)
            }

            #[inline(always)]
            fn flip(cell: &Self::Cell, bits: Self) -> Self {
                cell.fetch_xor(bits, Ordering::AcqRel)
            }

            #[inline(always)]
            fn exchange(cell: &Self::Cell, old: Self, word: Self) -> Result<(), Self> {
                cell.compare_exchange(old, word, Ordering::SeqCst, Ordering::Acquire).map(drop)
            }

            #[cfg(tlbkit_loom)]
            fn load_checked(cell: &Self::Cell) -> Self {
                // SAFETY: loom's atomics are locked, and a concurrent store fails the model.
                unsafe { cell.unsync_load() }
            }
        }
    };
}

word!(u32, AtomicU32);
#[cfg(target_has_atomic = "64")]
word!(u64, AtomicU64);
