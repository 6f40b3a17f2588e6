//! The sizes of leaves of base pages, in layouts in which a leaf is not a pair ([`PLAIN`](Shape::PLAIN)).
//!
//! ```text
//!   region of the largest leaf:    | 0   1   2   3 | 4   5   6   7 | 8   9   a   b | c   d   e   f |
//!   page 5 is mapped                                 (5)                                              a leaf of 1
//!   page 7                                         (  5       7  )                                    of 4
//!   page 8                         (                  5       7     8                            )    of 16
//! ```
//!
//! All base pages in the region of the largest leaf, 16 pages, are in one leaf. A new leaf has one PTE, or the PTEs of a pair in a
//! format with pairs. If a page is mapped in the region and outside of the leaf, a larger leaf replaces the leaf: of four PTEs if
//! those are enough, and otherwise of 16. So a PTE is copied at most twice while leaves grow, in whatever order pages and ranges are
//! mapped. Where the page before is mapped in a leaf of 16, a new leaf has 16 PTEs at once, because runs of pages go on. A range that
//! is mapped by one call where the region has no leaf gets the smallest leaf that covers it.
//!
//! A leaf of four or more PTEs of which one is left in use is replaced by a new leaf of the smallest size, if there is memory. So a
//! page that is mapped and unmapped again and again does not change the leaf while two others are in it; beside only one other, each
//! map and each unmap takes a leaf and copies one PTE. Pages that are unmapped one after the other, as most are, leave nothing for a
//! smaller leaf before the last one.

use super::guard::low;
use super::node::{Node, Slot, Writing};
use super::shape::Shape;
use crate::format::is_taken;

impl<'w, T: Shape> Writing<'w, '_, T> {
    /// Returns the width of a new leaf for the page with a key: the largest if the page before is mapped, in a leaf of that size, and
    /// otherwise the smallest.
    ///
    /// Costs a walk.
    #[inline(always)]
    pub(super) fn new_width(&self, key: usize) -> u32 {
        let before = T::address(key.wrapping_sub(1) & low(T::BITS));
        match self.seek(before) {
            Some(pte) if pte.leaf().is_largest() && is_taken::<T::F>(pte.read()) => T::MAX_LEAF_WIDTH,
            _ => T::MIN_LEAF_WIDTH,
        }
    }

    /// Returns the width of the leaf that replaces one that has become too small. `2^least` PTEs are enough.
    #[inline(always)]
    pub(super) fn grown_width(least: u32) -> u32 {
        least.next_multiple_of(2).min(T::MAX_LEAF_WIDTH)
    }

    /// Replaces a leaf that has lost PTEs and has `live` left by a new leaf of the smallest size, if the leaf is
    /// [sparse](Self::sparse) and there is memory. The leaf begins at `base`, and only `slot` leads to it.
    #[inline(never)]
    pub(super) fn shrink(&mut self, slot: Slot<'w, T>, leaf: Node<'w, T>, base: usize, live: usize) {
        if !Self::sparse(leaf.width, live) {
            return;
        }
        let mut entries = leaf.all_ptes(base).map(|pte| (pte.at(), pte.read()));
        let Some((at, word)) = entries.find(|&(_, word)| is_taken::<T::F>(word)) else { return };
        let Some((new, _)) = self.take(at, T::MIN_LEAF_WIDTH, None) else { return };
        new.pte(at).store(word);
        new.set_live(live);
        slot.publish(Some(new.node()));
        // SAFETY: only the slot led to the leaf, and now it leads to the new one.
        unsafe { self.retire(leaf) };
    }

    /// Tells whether a leaf of `2^width` PTEs, of which `live` are in use, is too large: one of four or more is in use.
    pub(super) const fn sparse(width: u32, live: usize) -> bool {
        live == 1 && width > 1
    }
}

impl<T: Shape> Node<'_, T> {
    /// Tells whether a node or leaf is a leaf of base pages of the largest size.
    #[inline(always)]
    pub(super) fn is_largest(self) -> bool {
        T::PLAIN && self.is_leaf() && self.shift == T::BASE && self.width == T::MAX_LEAF_WIDTH
    }
}
