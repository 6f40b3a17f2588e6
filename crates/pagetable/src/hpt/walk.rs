//! The walk: a [probe](super::node::Probe) of the near buckets of a chain, and the slow path for other buckets and grains.

use core::sync::atomic::Ordering;

use tlbkit_addr::{PageSize, VirtAddr};

use super::Sizes;
use super::node::{Unit, Walk};
use super::shape::{MAX, Shape as _, Spot};
use super::tag::Tags as _;
use crate::format::{Format, entry_of, is_taken};
use crate::mode::Mode;
use crate::nodes::Nodes;
use crate::word::atomics::fence;
use crate::{Entry, Geometry, Leaf, Word};

/// A word, and the size of the page that it maps if it is a leaf entry.
type Found<F> = (<F as Format>::Word, PageSize);

impl<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Walk<'a, 'n, G, F, N, S> {
    /// Whether a walk may miss a bucket because the table grows, see [`grow`](super::grow).
    const MISSES: bool = S::LOAD > 0 && N::Mode::SHARED;

    /// The result of a search that finds neither a leaf nor a mark.
    const NOTHING: Found<F> = (F::Word::ZERO, G::BASE);

    /// Returns the leaf that maps `at`.
    #[inline(always)]
    pub(super) fn find(self, at: VirtAddr) -> Option<Leaf> {
        self.find_with(at, Self::leaf_of)
    }

    /// Finds the leaf that maps `at`, and returns the result of `decode` for it.
    ///
    /// This function probes the [near](super::shape::Shape::NEAR) buckets of the chain, and ends with a call of the function that probes
    /// the rest. Each function of the walk decodes the leaf that it has found itself, so no value has to survive a call.
    #[inline(always)]
    pub(super) fn find_with<T>(
        self,
        at: VirtAddr,
        decode: impl Fn(F::Word, PageSize, VirtAddr) -> T,
    ) -> Option<T> {
        let steps = if Self::MISSES { self.growth.steps() } else { 0 };
        let key = Self::key(0, at);
        let wanted = Self::tag(0, key);
        let unit = self.probe(key).pass_near(wanted).unit();
        if unit.tag() != wanted {
            // SAFETY: the unit is one of this walk.
            return unsafe { self.find_behind(unit.spot(), steps, at, decode) };
        }
        // The CPU may load the PTE before the tag. Both still belong to the same block, because no bucket is assigned to
        // another block while a walker that saw the old tag is pinned.
        let (word, size) = unit.load(0, at);
        if F::is_leaf(word, true) {
            return Some(decode(word, size, at));
        }
        self.find_larger(at, decode)
    }

    /// As [`find_with`](Self::find_with), after the near buckets had other tags: searches the rest of the chain, then the other
    /// grains. `last` is the last near unit, and `steps` the [count of steps](super::grow::Growth::steps) before the walk.
    ///
    /// # Safety
    ///
    /// `last` is a unit of this walk, in the chain for `at`.
    #[inline(never)]
    unsafe fn find_behind<T>(
        self,
        last: Spot,
        steps: usize,
        at: VirtAddr,
        decode: impl Fn(F::Word, PageSize, VirtAddr) -> T,
    ) -> Option<T> {
        let key = Self::key(0, at);
        // SAFETY: by this function's contract the unit is one of this walk.
        let last = unsafe { self.unit(last) };
        let mut probe = last.probe();
        let mut found = (probe.advance() && probe.seek(Self::tag(0, key))).then(|| probe.unit());
        if Self::MISSES && found.is_none() && self.growth.has_stepped(steps) {
            found = self.search(0, key);
        }
        if let Some(unit) = found {
            let (word, size) = unit.load(0, at);
            if F::is_leaf(word, true) {
                let may_write = !N::Mode::SHARED && S::LOAD == 0 && self.visits.load(Ordering::Relaxed) == 0;
                if may_write {
                    // SAFETY: in solo mode no other CPU walks or writes, and no visit is under way.
                    unsafe { last.move_to_front(unit) };
                }
                return Some(decode(word, size, at));
            }
        }
        self.find_larger(at, decode)
    }

    /// As [`find_with`](Self::find_with), after the search of the finest grain has found no leaf.
    #[inline(always)]
    fn find_larger<T>(self, at: VirtAddr, decode: impl Fn(F::Word, PageSize, VirtAddr) -> T) -> Option<T> {
        if Self::GRAINS == 1 || !N::Mode::SHARED && self.grains.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.find_large(at, decode)
    }

    /// As [`find_with`](Self::find_with), in the grains of larger pages.
    #[inline(never)]
    fn find_large<T>(self, at: VirtAddr, decode: impl Fn(F::Word, PageSize, VirtAddr) -> T) -> Option<T> {
        let (word, size) = self.find_coarse(at);
        F::is_leaf(word, true).then(|| decode(word, size, at))
    }

    /// Returns the leaf that maps `at`, of any grain, after the search of the finest grain has failed; or a mark that has
    /// been stored in between.
    #[inline]
    fn find_coarse(self, at: VirtAddr) -> Found<F> {
        loop {
            if N::Mode::SHARED {
                // A walker that saw cleared small leaves must see the large leaf, which was stored before they were cleared.
                fence(Ordering::Acquire);
            }
            let before = self.grains.load(Ordering::Acquire);
            if before == 0 {
                return Self::NOTHING;
            }
            let found = self.find_grains(at, before);
            // A split may store small leaves after the search of the finest grain, increment the count, and clear the large
            // leaf before the search of its grain.
            let is_sure = !N::Mode::SHARED || self.grains.load(Ordering::Relaxed) == before;
            if is_taken::<F>(found.0) || is_sure {
                return found;
            }
        }
    }

    /// Probes every grain in the set `grains`.
    #[inline(never)]
    fn find_grains(self, at: VirtAddr, grains: usize) -> Found<F> {
        for grain in 0..Self::GRAINS {
            // The finest grain has been searched. In shared mode it is searched again, because a split may be under way.
            if grain == 0 && !N::Mode::SHARED || grain > 0 && grains >> grain & 1 == 0 {
                continue;
            }
            if let Some(unit) = self.search(grain, Self::key(grain, at)) {
                let found = unit.load(grain, at);
                if is_taken::<F>(found.0) {
                    return found;
                }
            }
            if N::Mode::SHARED {
                fence(Ordering::Acquire);
            }
        }
        Self::NOTHING
    }

    /// Returns the entry of the page at `at`: a leaf of any size, a mark, or an empty entry.
    pub(super) fn find_entry(self, at: VirtAddr) -> Entry {
        if let Some(unit) = self.search(0, Self::key(0, at)) {
            let (word, _) = unit.load(0, at);
            if is_taken::<F>(word) {
                return Self::decode(word, 0, at);
            }
        }
        let (word, size) = if Self::GRAINS == 1 { Self::NOTHING } else { self.find_coarse(at) };
        entry_of::<F>(word, |word| Self::leaf_of(word, size, at))
    }

    /// Returns the unit of a key, as a walker finds it beside the writer.
    ///
    /// A search that finds nothing starts again if it may have missed the bucket, which needs a change of the same segment's
    /// chains during the search. The number of such changes is bounded.
    pub(super) fn search(self, grain: usize, key: usize) -> Option<Unit<'a, 'n, G, F, N, S>> {
        let wanted = Self::tag(grain, key);
        loop {
            let first = self.first(key);
            let before = if Self::MISSES { first.version() } else { 0 };
            let found = first.probe().find(wanted);
            if found.is_some() || !Self::MISSES {
                return found;
            }
            fence(Ordering::Acquire);
            if self.first(key) == first && first.version() == before {
                return None;
            }
        }
    }
}

/// The grains word has a bit for each grain.
const _: () = assert!(MAX <= 8);
