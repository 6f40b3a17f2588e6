//! Handles of a table's buckets: the modules here are the only ones of the hashed table that rely on a node to be live.
//!
//! ```text
//!   Pinned  -----> Walk --- probe ---> Probe --- unit ---> Unit           a walk: reads
//!   Writing --+--> Chain -- seek ----> Bucket -- slots --> Slots          the writer: also stores tags and PTEs
//!             |      +- begin -------> Fresh                              a bucket that no walker can reach yet
//!             |      +- take_out       retires the bucket
//!             +--> Array               a segment or a directory that no walker can reach yet
//! ```
//!
//! A handle is made only from the directory or the array, from a link that was read through a handle, or from a node that was taken
//! from the storage. A [`Span`] is reduced to the slots of a bucket, so a place that a handle names is in its bucket.
//!
//! *Every node that a handle names is live.* A pinned walker's CPU acknowledges no shootdown during the walk, so no node that the
//! walk has reached is freed. The nodes that the writer retires are freed by the batch of the [`Writing`] alone. The writing borrows
//! that batch mutably, and no code of this module completes it.
//!
//! *No node is retired twice.* An overflow bucket is in one chain, or in the two chains that [`grow`](super::grow) has joined and not
//! parted. It is retired only when it has been taken out of each chain that it is in: [`Chain`] borrows the right to write, so no other
//! code changes a chain while a cursor is in it, and only this module and `grow` store links.
//!
//! *Several writers.* The writer of one page has the right to write the chain of its block, and the one that is joined to it, while it has
//! their [`ChainLock`]. It takes no bucket out of a chain, and stores in no directory and no other chain. All else is
//! done by a writer of the whole table, while there is no other one.
//!
//! *A handle does not outlive the place of its bucket.* A [`Bucket`] borrows the writing, so it cannot be used after a change of a
//! chain or of the directory.

mod bucket;
mod chain;
mod directory;
mod part;
mod probe;
mod writing;

use core::marker::PhantomData;
use core::ops::Deref;

use tlbkit_addr::{PageSize, VirtAddr};

use super::shape::{LOG, Shape as _, Spot};
use super::{Hashed, Sizes};
use crate::format::Format;
use crate::mode::Mode;
use crate::nodes::{NodeAddr, Nodes};
use crate::word::atomics::{Ordering, fence};
use crate::{Geometry, Pinned, Word};

pub(crate) use bucket::{Bucket, ChainLock, Fresh, Supply};
pub(crate) use chain::Chain;
pub(crate) use directory::{Array, Directory, Only, Segment};
pub(crate) use part::{Slots, Span};
pub(crate) use probe::Probe;
pub(crate) use writing::Writing;

macro_rules! are_copied {
    ($($name:ident)*) => { $(
        impl<G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Clone for $name<'_, '_, G, F, N, S> {
            #[inline(always)]
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Copy for $name<'_, '_, G, F, N, S> {}
    )* };
}

are_copied!(Walk Unit Probe Directory Bucket Slots);

/// The right to walk a table: no node that a walk reaches is freed during `'a`.
///
/// This CPU is pinned, or the holder is the table's only writer and completes no batch of the table.
pub(crate) struct Walk<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> {
    table: &'a Hashed<'n, G, F, N, S>,
    /// The handle stays on this CPU.
    here: PhantomData<*const ()>,
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Deref for Walk<'_, 'n, G, F, N, S> {
    type Target = Hashed<'n, G, F, N, S>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        self.table
    }
}

/// A unit that a walk has reached.
///
/// The words of the unit, and of the bucket that it is in, are words of a node that is live during `'a`.
pub(crate) struct Unit<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> {
    walk: Walk<'a, 'n, G, F, N, S>,
    spot: Spot,
}

impl<G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> PartialEq for Unit<'_, '_, G, F, N, S> {
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        self.spot == other.spot
    }
}

impl<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Walk<'a, 'n, G, F, N, S> {
    /// Returns the right of a pinned CPU to walk `table`.
    #[inline(always)]
    pub(crate) fn new(table: &'a Hashed<'n, G, F, N, S>, _pinned: Pinned<'a>) -> Self {
        Self { table, here: PhantomData }
    }

    /// Returns the table.
    #[inline(always)]
    pub(crate) fn table(self) -> &'a Hashed<'n, G, F, N, S> {
        self.table
    }

    /// Returns the unit at which the chain of a key begins.
    #[inline(always)]
    pub(crate) fn first(self, key: usize) -> Unit<'a, 'n, G, F, N, S> {
        let (root, hash) = (self.root(), self.hash(key));
        let unit = Self::STRIDE >> Self::UNITS_LOG;
        let spot = if S::LOAD == 0 {
            let index = if Self::FOLDED {
                hash & ((Self::UNITS << S::BUCKETS_LOG) - 1)
            } else if S::BUCKETS_LOG == 0 {
                0
            } else {
                hash >> (usize::BITS - S::BUCKETS_LOG)
            };
            Spot { node: NodeAddr::new(root & !LOG), at: index * unit }
        } else {
            // SAFETY: the root was loaded during this walk. `ENTRIES_LOG`, or the mask in the directory's first word, keeps the index
            // below the number of the entries.
            unsafe {
                if Self::FOLDED {
                    let units = Self::UNITS << Self::SEGMENT_LOG;
                    let entry = self.directory_word(root, (hash / units) & ((1 << Self::ENTRIES_LOG) - 1));
                    let within = hash & ((units - 1) >> (entry & LOG));
                    Spot { node: NodeAddr::new(entry & !LOG), at: within * unit }
                } else {
                    let hash = hash >> (usize::BITS / 2) & self.directory_word(root, 0);
                    let entry = self.directory_word(root, Self::HEADER + (hash & Self::ENTRY));
                    Spot { node: NodeAddr::new(entry), at: hash >> (Self::WITHIN - Self::STRIDE.ilog2()) }
                }
            }
        };
        Unit { walk: self, spot }
    }

    /// Returns a unit that [`Unit::spot`] has named. Two numbers can be passed in registers, a unit cannot.
    ///
    /// # Safety
    ///
    /// The unit was one of this walk.
    #[inline(always)]
    pub(crate) unsafe fn unit(self, spot: Spot) -> Unit<'a, 'n, G, F, N, S> {
        Unit { walk: self, spot }
    }
}

impl<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Unit<'a, 'n, G, F, N, S> {
    /// Returns the table.
    #[inline(always)]
    pub(crate) fn table(self) -> &'a Hashed<'n, G, F, N, S> {
        self.walk.table
    }

    /// Returns the place of the unit.
    #[inline(always)]
    pub(crate) fn spot(self) -> Spot {
        self.spot
    }

    /// Returns the first unit of the bucket that contains this unit.
    #[inline(always)]
    pub(crate) fn bucket(self) -> Self {
        Self { spot: Self::bucket_of(self.spot), ..self }
    }

    /// Loads a word of the unit as a walker does.
    #[inline(always)]
    fn word(self, index: usize) -> F::Word {
        // The compiler knows that the numbers that come here are small enough.
        let index = index.min(Self::UNIT - 1);
        // SAFETY: the unit's words are words of a live node.
        unsafe { self.walk.nodes.word(self.spot.node, self.spot.at + index) }.follow()
    }

    /// Loads the tag as a walker does.
    #[inline(always)]
    pub(crate) fn tag(self) -> usize {
        if Self::TAG == 1 {
            return self.word(0).to_usize();
        }
        let high = self.word(1).to_usize();
        if N::Mode::SHARED {
            // The writer stores the half with the flags last, so a walker must load it first.
            fence(Ordering::Acquire);
        }
        // Two shifts, because one shift by 32 would not compile for a `usize` of 32 bits, which never executes this.
        self.word(0).to_usize() | high << 16 << 16
    }

    /// Loads the PTE for `at`. Returns the word, and the page size if the word is a leaf.
    #[inline(always)]
    pub(crate) fn load(self, grain: usize, at: VirtAddr) -> (F::Word, PageSize) {
        let word = self.word(Self::PTE + Self::unit_slot(grain, at));
        (word, Self::size(word, grain))
    }

    /// Loads the link to the unit that follows in the chain; zero if there is none.
    #[inline(always)]
    fn link(self) -> F::Word {
        self.word(Self::LINK)
    }

    /// Returns the unit that follows in the chain, in an overflow bucket.
    #[inline(always)]
    pub(crate) fn next(self) -> Option<Self> {
        let link = self.link();
        (link != F::Word::ZERO).then(|| Self { spot: self.linked(link), ..self })
    }

    /// Returns the place to which the unit's link leads. If the link is zero, the result is no place.
    #[inline(always)]
    fn linked(self, link: F::Word) -> Spot {
        // The unit has the same number in the overflow bucket.
        let at = if Self::UNITS == 1 { 0 } else { self.spot.at & (Self::STRIDE - 1) };
        Spot { node: NodeAddr::new(link.to_usize().wrapping_sub(at * F::Word::BYTES)), at }
    }

    /// Returns the count of the node: for one of a segment, how often the segment's chains have been changed such that a walk under
    /// way may miss a bucket.
    pub(crate) fn version(self) -> u32 {
        // SAFETY: the node is live, so its record exists.
        unsafe { (*self.walk.nodes.link(self.spot.node)).load(Ordering::Acquire) }
    }
}
