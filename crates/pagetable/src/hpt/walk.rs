//! The walk: a probe of the first bucket, and the slow path behind it.

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
    /// Whether a walker may be led astray by growing, see [`grow`](super::grow).
    const TURNS: bool = LOAD > 0 && N::Mode::SHARED;

    /// No leaf and no mark.
    const NOTHING: Found<F> = (F::Word::ZERO, G::BASE);

    /// Finds the leaf that maps `at`. The one walk of readers.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the writer; so for all that follow.
    #[inline(always)]
    pub(super) unsafe fn find(&self, at: VirtAddr) -> Option<Leaf> {
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        unsafe { self.find_with(at, Self::leaf_of) }
    }

    /// Finds the leaf that maps `at`, and decodes what is asked of it.
    ///
    /// This function probes the first bucket, and ends in a call of the function that probes the rest. Each of the three
    /// decodes what it has found itself, so the calls are jumps: the hit in the first bucket saves no register and uses no
    /// stack.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the writer.
    #[inline(always)]
    pub(super) unsafe fn find_with<T>(
        &self,
        at: VirtAddr,
        decode: impl Fn(F::Word, PageSize, VirtAddr) -> T,
    ) -> Option<T> {
        let key = Self::key(0, at);
        // SAFETY: the array is live or retired, and pinned walkers are waited for; the hash is below its buckets.
        unsafe {
            let first = self.first(self.root(), key);
            let tag = self.follow_tag(first);
            if tag != Self::tag(0, key) {
                return self.find_behind(first, Self::tag(0, key), at, decode);
            }
            // Hardware may load the PTE before the tag. All that the two can belong to is the owner of then and the owner
            // of now, and no bucket changes hands while a walker that saw the old owner is pinned.
            let (word, size) = self.load(first, 0, at);
            if F::is_leaf(word, true) {
                return Some(decode(word, size, at));
            }
            self.find_again(at, decode)
        }
    }

    /// Loads the PTE of a unit that `at` falls into, and says which size it has if it is a leaf.
    #[inline(always)]
    unsafe fn load(&self, unit: Spot, grain: usize, at: VirtAddr) -> Found<F> {
        // SAFETY: this function's contract; the word is within the unit.
        let word = unsafe { self.nodes.follow(unit.node, Self::pte(unit, grain, at)) };
        (word, Self::size(word, grain))
    }

    /// Finds the leaf that maps `at` where the first bucket's tag is another's: behind it, or in another grain.
    #[inline(never)]
    unsafe fn find_behind<T>(
        &self,
        first: Spot,
        wanted: usize,
        at: VirtAddr,
        decode: impl Fn(F::Word, PageSize, VirtAddr) -> T,
    ) -> Option<T> {
        // SAFETY: by the contract of `find_with`, which is this function's too, the caller is pinned, or the writer.
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

    /// Finds the leaf that maps `at`, once the first look at the finest grain has failed.
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
        // SAFETY: by the contract of `find_with`, which is this function's too, the caller is pinned, or the writer.
        unsafe { self.find_slowly(at, decode) }
    }

    /// Finds the leaf that maps `at` in any grain, by walks that cannot be led astray.
    #[inline(never)]
    unsafe fn find_slowly<T>(
        &self,
        at: VirtAddr,
        decode: impl Fn(F::Word, PageSize, VirtAddr) -> T,
    ) -> Option<T> {
        // SAFETY: by the contract of `find_with`, which is this function's too, the caller is pinned, or the writer.
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

    /// Finds the leaf that maps `at`, whatever its grain, once the finest has failed; or the mark that has come meanwhile.
    #[inline]
    unsafe fn find_coarse(&self, at: VirtAddr) -> Found<F> {
        loop {
            if N::Mode::SHARED {
                // A walker that saw a page's small leaves gone must see the large one, which was there before they
                // went.
                fence(Ordering::Acquire);
            }
            let before = self.grains.load(Ordering::Acquire);
            if before == 0 {
                return Self::NOTHING;
            }
            // SAFETY: by the contract of `find_with`, which is this function's too, the caller is pinned, or the writer.
            let found = unsafe { self.find_grains(at, before) };
            // A split puts small leaves where we had looked, counts, and takes away the large one before we look
            // there.
            let is_sure = !N::Mode::SHARED || self.grains.load(Ordering::Relaxed) == before;
            if is_taken::<F>(found.0) || is_sure {
                return found;
            }
        }
    }

    /// Probes every grain that is in use.
    #[inline(never)]
    unsafe fn find_grains(&self, at: VirtAddr, grains: usize) -> Found<F> {
        for grain in 0..Self::GRAINS {
            // The finest has been tried; a split that is under way makes a second try necessary.
            if grain == 0 && !N::Mode::SHARED || grain > 0 && grains >> grain & 1 == 0 {
                continue;
            }
            // SAFETY: by the contract of `find_with`, which is this function's too, the caller is pinned, or the writer.
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

    /// Finds the entry of the page at `at`: a leaf of any size, a mark, or nothing.
    pub(super) unsafe fn find_entry(&self, at: VirtAddr) -> Entry {
        // SAFETY: by the contract of `find_with`, which is this function's too, the caller is pinned, or the writer.
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

    /// Finds the unit of a key as a walker does.
    ///
    /// A walker that finds nothing walks again if it may have been led astray. That takes a change of the same segment's
    /// chains while it walked, and those come to an end.
    pub(super) unsafe fn follow(&self, grain: usize, key: usize) -> Option<Spot> {
        let wanted = Self::tag(grain, key);
        loop {
            // SAFETY: by the contract of `find_with`, which is this function's too, the caller is pinned, or the writer.
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

    /// Goes on from the first unit, which has another tag, to the one with the tag wanted.
    #[inline(always)]
    unsafe fn follow_chain(&self, first: Spot, wanted: usize) -> Option<Spot> {
        let mut spot = first;
        // SAFETY: this function's contract; a node that a link leads to is live or retired.
        unsafe {
            loop {
                spot = self.follow_link(spot)?;
                if self.follow_tag(spot) == wanted {
                    return Some(spot);
                }
            }
        }
    }

    /// Returns the unit behind a unit, in an overflow bucket.
    #[inline(always)]
    pub(super) unsafe fn follow_link(&self, spot: Spot) -> Option<Spot> {
        // SAFETY: by the contract of `find_with`, which is this function's too, the caller is pinned, or the writer.
        let link = unsafe { self.nodes.follow(spot.node, spot.at + Self::LINK) };
        // It has the same number there.
        let at = if Self::UNITS == 1 { 0 } else { spot.at & (Self::STRIDE - 1) };
        let node = || NodeAddr::new(link.to_usize() - at * F::Word::BYTES);
        (link != F::Word::ZERO).then(|| Spot { node: node(), at })
    }
}

/// The grains word has a bit for each.
const _: () = assert!(MAX <= 8);
