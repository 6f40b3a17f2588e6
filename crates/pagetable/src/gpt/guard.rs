//! The parts of an address at a node: the guard's bits, which [`agree`] checks, and the index into the node.
//!
//! ```text
//!   address   | bits above | guard of the node | index (width) | bits below (shift) |
//!             |<---- agree(address, base, shift + width) ----->|
//! ```
//!
//! A walk in the layout [`TwoWords`](super::TwoWords) compares the guard of every slot on its path, that of the root and that of
//! the leaf included. In the layouts with one word a slot, a walk
//! checks all guards together, once, at the leaf: [`OneWord`](super::OneWord) by [`Link::covers`](super::Link::covers), and
//! [`Kseg0`](super::Kseg0) by the tag of the TLB entry; the writer calls `agree`. The index is also called the **digit**. Shifts
//! and masks here are defined for the full width of the word, too.

/// Returns a word whose lowest `bits` bits are set. If `bits` is `usize::BITS` or more, all bits are set.
#[inline(always)]
pub(super) const fn low(bits: u32) -> usize {
    if bits >= usize::BITS { usize::MAX } else { (1 << bits) - 1 }
}

/// Tells whether two addresses agree in every bit from `bit` up. If `bit` is `usize::BITS` or more, they do.
#[inline(always)]
pub(super) const fn agree(a: usize, b: usize, bit: u32) -> bool {
    (a ^ b) & !low(bit) == 0
}

/// Returns the `width` bits of an address from `shift` up, as an index.
#[inline(always)]
pub(super) const fn digit(at: usize, shift: u32, width: u32) -> usize {
    at >> shift & low(width)
}
