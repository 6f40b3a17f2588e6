//! The walk: a probe of the first bucket, and the slow path for other buckets and grains.

use core::sync::atomic::Ordering;

use tlbkit_addr::{PageSize, VirtAddr};

use super::Hashed;
use super::shape::{MAX, Spot};
use crate::format::{Format, entry_of, is_taken};
use crate::mode::Mode;
use crate::nodes::{NodeAddr, Nodes};
use crate::word::atomics::fence;
use crate::{Entry, Geometry, Leaf, Word};

/// A word, and the size of the page that it maps if it is a leaf entry.
type Found<F> = (<F as Format>::Word, PageSize);

impl<'n, G, F, N, const CLUSTER: u32, const BUCKETS: u32, const LOAD: usize>
    Hashed<'n, G, F, N, CLUSTER, BUCKETS, LOAD>
where
    G: Geometry,
    F: Format,
    N: Nodes<Word = F::Word>,
{
    /// Whether a walk may miss a bucket because the table grows, see [`grow`](super::grow).
    const TURNS: bool = LOAD > 0 && N::Mode::SHARED;

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
    /// This function probes the first bucket, and ends with a call of the function that probes the rest. Each function of
    /// the walk decodes the leaf that it has found itself, so the calls are jumps: a hit in the first bucket saves no
    /// register and uses no stack.
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
        let key = Self::key(0, at);
        // SAFETY: by this function's contract the caller is pinned, or is the only writer, so no node that it reaches is
        // freed.
        unsafe {
            let first = self.first(self.root(), key);
            let tag = self.follow_tag(first);
            if tag != Self::tag(0, key) {
                return self.find_behind(first, Self::tag(0, key), at, decode);
            }
            // The CPU may load the PTE before the tag. Both still belong to the same block, because no bucket is assigned to
            // another block while a walker that saw the old tag is pinned.
            let (word, size) = self.load(first, 0, at);
            if F::is_leaf(word, true) {
                return Some(decode(word, size, at));
            }
            self.find_again(at, decode)
        }
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

    /// As [`find_with`](Self::find_with), after the first bucket had another tag: searches the chain, then the other grains.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is pinned, or is the only writer;
    /// - `first` is the first unit of the chain for `at`, or was when the caller was already pinned.
    #[inline(never)]
    unsafe fn find_behind<T>(
        &self,
        first: Spot,
        wanted: usize,
        at: VirtAddr,
        decode: impl Fn(F::Word, PageSize, VirtAddr) -> T,
    ) -> Option<T> {
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        unsafe {
            if let Some(unit) = self.follow_chain(first, wanted) {
                let (word, size) = self.load(unit, 0, at);
                if F::is_leaf(word, true) {
                    let may_write = !N::Mode::SHARED && LOAD == 0 && self.visits.load(Ordering::Relaxed) == 0;
                    if may_write {
                        self.move_to_front(Self::bucket(first), Self::bucket(unit));
                    }
                    return Some(decode(word, size, at));
                }
            }
            self.find_again(at, decode)
        }
    }

    /// As [`find_with`](Self::find_with), after the first search of the finest grain has found no leaf.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or is the only writer.
    #[inline(always)]
    unsafe fn find_again<T>(
        &self,
        at: VirtAddr,
        decode: impl Fn(F::Word, PageSize, VirtAddr) -> T,
    ) -> Option<T> {
        let is_only = Self::GRAINS == 1 || !N::Mode::SHARED && self.grains.load(Ordering::Relaxed) == 0;
        if is_only && !Self::TURNS {
            return None;
        }
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        unsafe { self.find_slowly(at, decode) }
    }

    /// As [`find_with`](Self::find_with), in all grains, by walks that check for missed buckets.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or is the only writer.
    #[inline(never)]
    unsafe fn find_slowly<T>(
        &self,
        at: VirtAddr,
        decode: impl Fn(F::Word, PageSize, VirtAddr) -> T,
    ) -> Option<T> {
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        unsafe {
            if Self::TURNS
                && let Some(unit) = self.follow(0, Self::key(0, at))
            {
                let (word, size) = self.load(unit, 0, at);
                if F::is_leaf(word, true) {
                    return Some(decode(word, size, at));
                }
            }
            let (word, size) = if Self::GRAINS == 1 { Self::NOTHING } else { self.find_coarse(at) };
            F::is_leaf(word, true).then(|| decode(word, size, at))
        }
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
                let before = if Self::TURNS { self.version(first.node) } else { 0 };
                if self.follow_tag(first) == wanted {
                    return Some(first);
                }
                let found = self.follow_chain(first, wanted);
                if found.is_some() || !Self::TURNS {
                    return found;
                }
                fence(Ordering::Acquire);
                if self.first(self.root(), key) == first && self.version(first.node) == before {
                    return None;
                }
            }
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
        // The unit has the same number in the overflow bucket.
        let at = if Self::UNITS == 1 { 0 } else { spot.at & (Self::STRIDE - 1) };
        let node = || NodeAddr::new(link.to_usize() - at * F::Word::BYTES);
        (link != F::Word::ZERO).then(|| Spot { node: node(), at })
    }
}

/// The grains word has a bit for each grain.
const _: () = assert!(MAX <= 8);
