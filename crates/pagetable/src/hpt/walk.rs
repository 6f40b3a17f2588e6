//! The walk: a probe of the first bucket, and the slow path behind it.

use core::sync::atomic::Ordering;

use tlbkit_addr::VirtAddr;

use super::Hashed;
use super::shape::{LOG, MAX, Spot};
use crate::format::Format;
use crate::mode::Mode;
use crate::nodes::{NodeAddr, Nodes};
use crate::word::atomics::fence;
use crate::{Geometry, Leaf, Word};

impl<'n, G, F, N, const CLUSTER: u32, const BUCKETS: u32, const LOAD: usize>
    Hashed<'n, G, F, N, CLUSTER, BUCKETS, LOAD>
where
    G: Geometry,
    F: Format,
    N: Nodes<Word = F::Word>,
{
    /// Finds the leaf that maps `at`. The one walk of readers.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the writer; so for all that follow.
    #[inline(always)]
    pub(super) unsafe fn find(&self, at: VirtAddr) -> Option<Leaf> {
        let (root, block) = (self.root(), Self::block(0, at));
        let first = Self::bucket(root, block);
        // SAFETY: the array is live or retired, and pinned walkers are waited for; the hash is below its buckets.
        unsafe {
            let tag = self.follow_tag(first);
            if tag == Self::tag_of(0, block) {
                // Hardware may load the PTE before the tag. All that the two can belong to is the owner of then and
                // the owner of now, and no bucket changes hands while somebody who saw the old owner is pinned.
                let word = self.nodes.follow(first.node, Self::place(first, Self::slot(0, at)));
                if F::is_leaf(word, true) {
                    return Some(Self::leaf(word, 0, at));
                }
            } else if let Some(leaf) = self.find_behind(root, first, tag, at) {
                return Some(leaf);
            }
            if Self::GRAINS == 1 { None } else { self.find_coarse(at) }
        }
    }

    /// Finds the leaf of the finest grain that maps `at` behind the first bucket, whose tag is another's.
    #[inline(never)]
    unsafe fn find_behind(&self, root: usize, first: Spot, tag: usize, at: VirtAddr) -> Option<Leaf> {
        // SAFETY: the caller's promise.
        unsafe {
            let spot = self.follow_chain(root, first, tag, Self::tag(0, at))?;
            let word = self.nodes.follow(spot.node, Self::place(spot, Self::slot(0, at)));
            if !F::is_leaf(word, true) {
                return None;
            }
            if !N::Mode::SHARED && LOAD == 0 && self.visits.load(Ordering::Relaxed) == 0 {
                self.move_to_front(first, spot);
            }
            Some(Self::leaf(word, 0, at))
        }
    }

    /// Finds the leaf that maps `at`, whatever its grain, once the finest has failed.
    #[inline]
    unsafe fn find_coarse(&self, at: VirtAddr) -> Option<Leaf> {
        loop {
            if N::Mode::SHARED {
                // Whoever saw a page's small leaves gone must see the large one that was there before they went.
                fence(Ordering::Acquire);
            }
            let before = self.grains.load(Ordering::Acquire);
            if before == 0 {
                return None;
            }
            // SAFETY: the caller's promise.
            if let Some(leaf) = unsafe { self.find_grains(at, before) } {
                return Some(leaf);
            }
            // A split puts small leaves where we had looked, counts, and takes away the large one before we look
            // there.
            if !N::Mode::SHARED || self.grains.load(Ordering::Relaxed) == before {
                return None;
            }
        }
    }

    /// Probes every grain that is in use.
    #[inline(never)]
    unsafe fn find_grains(&self, at: VirtAddr, grains: usize) -> Option<Leaf> {
        for grain in 0..Self::GRAINS {
            // The finest has been tried; a split that is under way makes a second try necessary.
            if grain == 0 && !N::Mode::SHARED || grain > 0 && grains >> grain & 1 == 0 {
                continue;
            }
            // SAFETY: the caller's promise.
            unsafe {
                if let Some(spot) = self.follow(grain, Self::block(grain, at)) {
                    let word = self.nodes.follow(spot.node, Self::place(spot, Self::slot(grain, at)));
                    if F::is_leaf(word, true) {
                        return Some(Self::leaf(word, grain, at));
                    }
                }
            }
            if N::Mode::SHARED {
                fence(Ordering::Acquire);
            }
        }
        None
    }

    /// Finds the bucket of a block as a walker does.
    pub(super) unsafe fn follow(&self, grain: usize, block: usize) -> Option<Spot> {
        let root = self.root();
        let first = Self::bucket(root, block);
        // SAFETY: the caller's promise.
        unsafe {
            let (tag, wanted) = (self.follow_tag(first), Self::tag_of(grain, block));
            if tag == wanted { Some(first) } else { self.follow_chain(root, first, tag, wanted) }
        }
    }

    /// Goes on from the first bucket, which has the wrong `tag`, to the one with the tag wanted.
    unsafe fn follow_chain(&self, mut root: usize, first: Spot, tag: usize, wanted: usize) -> Option<Spot> {
        let (mut spot, mut tag) = (first, tag);
        // SAFETY: the caller's promise; a node that a link leads to is live or retired.
        unsafe {
            while LOAD > 0 && tag & Self::MOVED != 0 {
                root = self.successor(root);
                spot = Self::bucket(root, Self::untag(wanted).1);
                tag = self.follow_tag(spot);
                if tag == wanted {
                    return Some(spot);
                }
            }
            loop {
                spot = self.follow_link(spot)?;
                if self.follow_tag(spot) == wanted {
                    return Some(spot);
                }
            }
        }
    }

    /// Returns the overflow bucket behind a bucket.
    #[inline(always)]
    pub(super) unsafe fn follow_link(&self, spot: Spot) -> Option<Spot> {
        // SAFETY: the caller's promise.
        let link = unsafe { self.nodes.follow(spot.node, spot.at + Self::LINK) };
        (link != F::Word::ZERO).then(|| Spot::node(NodeAddr::new(link.to_usize())))
    }

    /// Returns the root word of the array that the moved buckets of `root` are in.
    #[cold]
    pub(super) unsafe fn successor(&self, root: usize) -> usize {
        loop {
            // Whoever saw the mark must see the array that it speaks of; so for the loads below.
            fence(Ordering::Acquire);
            let now = self.root();
            if now & LOG > root & LOG {
                return now;
            }
            fence(Ordering::Acquire);
            // SAFETY: the cell is a field.
            let next = unsafe { F::Word::follow(&raw const self.next) }.to_usize();
            fence(Ordering::Acquire);
            // Arrays only grow, so the same root means that nothing has happened between.
            if self.root() == now {
                return next;
            }
        }
    }

    /// Swaps a bucket with the first of its chain: whatever they hold but their links.
    #[inline(never)]
    unsafe fn move_to_front(&self, first: Spot, hit: Spot) {
        // SAFETY: in solo mode nobody walks or writes meanwhile; both buckets are in the table.
        unsafe {
            if self.read_tag(first) & Self::LIVE == 0 {
                return;
            }
            for word in 0..Self::LINK {
                let front = self.nodes.read(first.node, first.at + word);
                self.nodes.put(first.node, first.at + word, self.nodes.read(hit.node, hit.at + word));
                self.nodes.put(hit.node, hit.at + word, front);
            }
        }
    }
}

/// The grains word has a bit for each.
const _: () = assert!(MAX <= 8);
