//! The parts of an address at a node: the guard's bits, which [`agree`] checks, and the index into the node.
//!
//! ```text
//!   address   | bits above | guard of the node | index (width) | bits below (shift) |
//!             |<---- agree(address, base, shift + width) ----->|
//! ```
//!
//! A walk in the layout [`TwoWords`](super::TwoWords) calls [`agree`] at every node. The layouts with one word a slot check all
//! guards of the walk together, once, at the leaf: [`OneWord`](super::OneWord) by [`Link::covers`](super::Link::covers),
//! [`Kseg0`](super::Kseg0) by the tag of the TLB entry. There `agree` serves the writer. The index is also called the
//! **digit**. Shifts and masks here stay defined at the width of the word.

/// Returns a word whose lowest `bits` bits are set: all of them from `usize::BITS` on.
#[inline(always)]
pub(super) const fn low(bits: u32) -> usize {
    if bits >= usize::BITS { usize::MAX } else { (1 << bits) - 1 }
}

/// Tells whether two addresses agree in every bit from `bit` up. From `usize::BITS` on there is none to differ.
#[inline(always)]
pub(super) const fn agree(a: usize, b: usize, bit: u32) -> bool {
    (a ^ b) & !low(bit) == 0
}

/// Returns the `width` bits of an address from `shift` up, as an index.
#[inline(always)]
pub(super) const fn digit(at: usize, shift: u32, width: u32) -> usize {
    at >> shift & low(width)
}
