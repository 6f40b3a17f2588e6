//! The walk: a probe of the near buckets of a chain, and the slow path for other buckets and grains.

use core::hint::select_unpredictable;
use core::sync::atomic::Ordering;

use tlbkit_addr::{PageSize, VirtAddr};

use super::shape::{MAX, Spot};
use super::{Hashed, Sizes};
use crate::format::{Format, entry_of, is_taken};
use crate::mode::Mode;
use crate::nodes::{NodeAddr, Nodes};
use crate::word::atomics::fence;
use crate::{Entry, Geometry, Leaf, Word};

/// A word, and the size of the page that it maps if it is a leaf entry.
type Found<F> = (<F as Format>::Word, PageSize);

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// Whether a walk may miss a bucket because the table grows, see [`grow`](super::grow).
    const MISSES: bool = S::LOAD > 0 && N::Mode::SHARED;

    /// The number of buckets of a chain that a lookup reads without a branch.
    ///
    /// With 150 blocks for each 100 first buckets, 52 of 100 blocks are in the first bucket of their chain, 30 in the second and 12
    /// in the third. No CPU can predict which, and a mispredicted branch costs more than the loads of the second and the third
    /// bucket. A table for refill handlers is for machines that predict little, and in a table with tags of two words the loads
    /// would cost twice as much.
    const NEAR: usize = if S::LOAD > 0 && !Self::FOLDED && Self::TAG == 1 { 3 } else { 1 };

    /// The result of a search that finds neither a leaf nor a mark.
    const NOTHING: Found<F> = (F::Word::ZERO, G::BASE);

    /// Returns the leaf that maps `at`.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or is the only writer.
    #[inline(always)]
    pub(super) unsafe fn find(&self, at: VirtAddr) -> Option<Leaf> {
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        unsafe { self.find_with(at, Self::leaf_of) }
    }

    /// Finds the leaf that maps `at`, and returns the result of `decode` for it.
    ///
    /// This function probes the [near](Self::NEAR) buckets of the chain, and ends with a call of the function that probes the
    /// rest. Each function of the walk decodes the leaf that it has found itself, so no value has to survive a call.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or is the only writer.
    #[inline(always)]
    pub(super) unsafe fn find_with<T>(
        &self,
        at: VirtAddr,
        decode: impl Fn(F::Word, PageSize, VirtAddr) -> T,
    ) -> Option<T> {
        let steps = if Self::MISSES { self.growth.steps() } else { 0 };
        let key = Self::key(0, at);
        let wanted = Self::tag(0, key);
        // SAFETY: by this function's contract the caller is pinned, or is the only writer, so no node that it reaches is
        // freed.
        unsafe {
            let unit = self.near(self.first(self.root(), key), wanted);
            if self.follow_tag(unit) != wanted {
                return self.find_behind(unit, steps, at, decode);
            }
            // The CPU may load the PTE before the tag. Both still belong to the same block, because no bucket is assigned to
            // another block while a walker that saw the old tag is pinned.
            let (word, size) = self.load(unit, 0, at);
            if F::is_leaf(word, true) {
                return Some(decode(word, size, at));
            }
            self.find_larger(at, decode)
        }
    }

    /// Returns the unit with the tag `wanted` if it is one of the [near](Self::NEAR) units of the chain that begins at `first`, and
    /// the last of the near units if not.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is pinned, or is the only writer;
    /// - `first` is a unit of the table, or was when the caller was already pinned.
    #[inline(always)]
    pub(super) unsafe fn near(&self, first: Spot, wanted: usize) -> Spot {
        let mut unit = first;
        for _ in 1..Self::NEAR {
            // SAFETY: by this function's contract the caller is pinned, or is the only writer, so a node that a link leads to is
            // not freed.
            unsafe {
                let link = self.nodes.follow(unit.node, unit.at + Self::LINK);
                let stays = (self.follow_tag(unit) == wanted) | (link == F::Word::ZERO);
                let next = Self::linked(link, unit);
                // A selection of each number, because that of a struct would be one in memory.
                unit = Spot {
                    node: NodeAddr::new(select_unpredictable(stays, unit.node.get(), next.node.get())),
                    at: select_unpredictable(stays, unit.at, next.at),
                };
            }
        }
        unit
    }

    /// Loads the PTE for `at` in a unit. Returns the word, and the page size if the word is a leaf.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is pinned, or is the only writer;
    /// - `unit` is a unit of the table, or was when the caller was already pinned.
    #[inline(always)]
    unsafe fn load(&self, unit: Spot, grain: usize, at: VirtAddr) -> Found<F> {
        // SAFETY: by this function's contract the caller is pinned, or is the only writer; the word is within the unit.
        let word = unsafe { self.nodes.follow(unit.node, Self::pte(unit, grain, at)) };
        (word, Self::size(word, grain))
    }

    /// As [`find_with`](Self::find_with), after the near buckets had other tags: searches the rest of the chain, then the other
    /// grains. `unit` is the last near one, and `steps` the [count of steps](super::grow::Growth::steps) before the walk.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is pinned, or is the only writer;
    /// - `unit` is a unit of the chain for `at`, or was when the caller was already pinned.
    #[inline(never)]
    unsafe fn find_behind<T>(
        &self,
        unit: Spot,
        steps: usize,
        at: VirtAddr,
        decode: impl Fn(F::Word, PageSize, VirtAddr) -> T,
    ) -> Option<T> {
        let key = Self::key(0, at);
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        unsafe {
            let mut found = self.follow_chain(unit, Self::tag(0, key));
            if Self::MISSES && found.is_none() && self.growth.has_stepped(steps) {
                found = self.follow(0, key);
            }
            if let Some(spot) = found {
                let (word, size) = self.load(spot, 0, at);
                if F::is_leaf(word, true) {
                    let may_write =
                        !N::Mode::SHARED && S::LOAD == 0 && self.visits.load(Ordering::Relaxed) == 0;
                    if may_write {
                        self.move_to_front(Self::bucket(unit), Self::bucket(spot));
                    }
                    return Some(decode(word, size, at));
                }
            }
            self.find_larger(at, decode)
        }
    }

    /// As [`find_with`](Self::find_with), after the search of the finest grain has found no leaf.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or is the only writer.
    #[inline(always)]
    unsafe fn find_larger<T>(
        &self,
        at: VirtAddr,
        decode: impl Fn(F::Word, PageSize, VirtAddr) -> T,
    ) -> Option<T> {
        if Self::GRAINS == 1 || !N::Mode::SHARED && self.grains.load(Ordering::Relaxed) == 0 {
            return None;
        }
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        unsafe { self.find_large(at, decode) }
    }

    /// As [`find_with`](Self::find_with), in the grains of larger pages.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or is the only writer.
    #[inline(never)]
    unsafe fn find_large<T>(
        &self,
        at: VirtAddr,
        decode: impl Fn(F::Word, PageSize, VirtAddr) -> T,
    ) -> Option<T> {
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        let (word, size) = unsafe { self.find_coarse(at) };
        F::is_leaf(word, true).then(|| decode(word, size, at))
    }

    /// Returns the leaf that maps `at`, of any grain, after the search of the finest grain has failed; or a mark that has
    /// been stored in between.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or is the only writer.
    #[inline]
    unsafe fn find_coarse(&self, at: VirtAddr) -> Found<F> {
        loop {
            if N::Mode::SHARED {
                // A walker that saw cleared small leaves must see the large leaf, which was stored before they were cleared.
                fence(Ordering::Acquire);
            }
            let before = self.grains.load(Ordering::Acquire);
            if before == 0 {
                return Self::NOTHING;
            }
            // SAFETY: by this function's contract the caller is pinned, or the writer.
            let found = unsafe { self.find_grains(at, before) };
            // A split may store small leaves after the search of the finest grain, increment the count, and clear the large
            // leaf before the search of its grain.
            let is_sure = !N::Mode::SHARED || self.grains.load(Ordering::Relaxed) == before;
            if is_taken::<F>(found.0) || is_sure {
                return found;
            }
        }
    }

    /// Probes every grain in the set `grains`.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or is the only writer.
    #[inline(never)]
    unsafe fn find_grains(&self, at: VirtAddr, grains: usize) -> Found<F> {
        for grain in 0..Self::GRAINS {
            // The finest grain has been searched. In shared mode it is searched again, because a split may be under way.
            if grain == 0 && !N::Mode::SHARED || grain > 0 && grains >> grain & 1 == 0 {
                continue;
            }
            // SAFETY: by this function's contract the caller is pinned, or the writer.
            unsafe {
                if let Some(unit) = self.follow(grain, Self::key(grain, at)) {
                    let found = self.load(unit, grain, at);
                    if is_taken::<F>(found.0) {
                        return found;
                    }
                }
            }
            if N::Mode::SHARED {
                fence(Ordering::Acquire);
            }
        }
        Self::NOTHING
    }

    /// Returns the entry of the page at `at`: a leaf of any size, a mark, or an empty entry.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or is the only writer.
    pub(super) unsafe fn find_entry(&self, at: VirtAddr) -> Entry {
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        unsafe {
            if let Some(unit) = self.follow(0, Self::key(0, at)) {
                let (word, _) = self.load(unit, 0, at);
                if is_taken::<F>(word) {
                    return Self::decode(word, 0, at);
                }
            }
            let (word, size) = if Self::GRAINS == 1 { Self::NOTHING } else { self.find_coarse(at) };
            entry_of::<F>(word, |word| Self::leaf_of(word, size, at))
        }
    }

    /// Returns the unit of a key, as a walker finds it.
    ///
    /// A walk that finds nothing starts again if it may have missed the bucket, which needs a change of the same segment's
    /// chains during the walk. The number of such changes is bounded.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or is the only writer.
    pub(super) unsafe fn follow(&self, grain: usize, key: usize) -> Option<Spot> {
        let wanted = Self::tag(grain, key);
        loop {
            // SAFETY: by this function's contract the caller is pinned, or the writer.
            unsafe {
                let first = self.first(self.root(), key);
                let before = if Self::MISSES { self.version(first.node) } else { 0 };
                let found = self.probe(first, wanted);
                if found.is_some() || !Self::MISSES {
                    return found;
                }
                fence(Ordering::Acquire);
                if self.first(self.root(), key) == first && self.version(first.node) == before {
                    return None;
                }
            }
        }
    }

    /// Returns the unit with the tag `wanted` in the chain that begins at the unit `first`: the search for one page, which reads the
    /// [near](Self::NEAR) units without a branch.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is pinned, or is the only writer;
    /// - `first` is a unit of the table, or was when the caller was already pinned.
    #[inline(always)]
    pub(super) unsafe fn probe(&self, first: Spot, wanted: usize) -> Option<Spot> {
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        unsafe {
            let unit = self.near(first, wanted);
            if self.follow_tag(unit) == wanted { Some(unit) } else { self.follow_chain(unit, wanted) }
        }
    }

    /// Returns the unit with the tag `wanted` in the chain behind the unit `first`.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is pinned, or is the only writer;
    /// - `first` is a unit of the table, or was when the caller was already pinned.
    #[inline(always)]
    unsafe fn follow_chain(&self, first: Spot, wanted: usize) -> Option<Spot> {
        let mut spot = first;
        // SAFETY: by this function's contract the caller is pinned, or is the only writer, so a node that a link leads to is
        // not freed.
        unsafe {
            loop {
                spot = self.follow_link(spot)?;
                if self.follow_tag(spot) == wanted {
                    return Some(spot);
                }
            }
        }
    }

    /// Returns the unit that follows `spot` in its chain, in an overflow bucket.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is pinned, or is the only writer;
    /// - `spot` is a unit of the table, or was when the caller was already pinned.
    #[inline(always)]
    pub(super) unsafe fn follow_link(&self, spot: Spot) -> Option<Spot> {
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        let link = unsafe { self.nodes.follow(spot.node, spot.at + Self::LINK) };
        (link != F::Word::ZERO).then(|| Self::linked(link, spot))
    }

    /// Returns the unit to which the link of `spot` leads. If the link is zero, the result is no unit.
    #[inline(always)]
    fn linked(link: F::Word, spot: Spot) -> Spot {
        // The unit has the same number in the overflow bucket.
        let at = if Self::UNITS == 1 { 0 } else { spot.at & (Self::STRIDE - 1) };
        Spot { node: NodeAddr::new(link.to_usize().wrapping_sub(at * F::Word::BYTES)), at }
    }
}

/// The grains word has a bit for each grain.
const _: () = assert!(MAX <= 8);
