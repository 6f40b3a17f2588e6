//! The check of the guards, and the fields of an address that guards and nodes divide it into.
//!
//! ```text
//!   address   | bits above | guard of the node | digit (width) | bits below (shift) |
//!             `---------------v---------------'
//!                the node covers the address if these bits are equal to those of its base
//! ```
//!
//! A node or leaf **covers** an address if the address agrees with the first address of the node's region (`base`) in all bits
//! above the node's digit. This implies that the address agrees with every guard on the path. So a walk needs one comparison in
//! all, at the leaf, if the leaf holds its base:
//!
//! | layout | the walk compares | function |
//! |-|-|-|
//! | [`OneWord`](super::OneWord) | the tag of the leaf, once | [`leaf_covers`], by way of [`Link::covers`](super::Link::covers) |
//! | [`Kseg0`](super::Kseg0) | the tag of the leaf, which is a TLB entry, once | [`pair_covers`] |
//! | [`TwoWords`](super::TwoWords) | the guard of every slot on its path, that of the root and that of the leaf included | [`agree`] |
//!
//! The writer uses [`agree`]. The **digit** of a node is the field of the address that is the index of one of its slots.

/// Tells whether a leaf of the layout [`OneWord`](super::OneWord) that begins at `base` covers `at`: the check of all guards on
/// the path. The low bits of `shift` are the position of the leaf's digit. The caller may pass a whole link, whose bits above
/// these are ignored. `last` is the index of the leaf's last slot.
#[inline(always)]
pub(super) const fn leaf_covers(at: usize, base: usize, shift: u32, last: usize) -> bool {
    (at ^ base).wrapping_shr(shift) <= last
}

/// Tells whether a leaf of the layout [`Kseg0`](super::Kseg0) covers the pair of small pages with the number `pair`: the check of
/// all guards on the path. The leaf's tag holds the number of its first pair, `first`, and its size: it covers `2^size` pairs.
#[inline(always)]
pub(super) const fn pair_covers(pair: usize, first: usize, size: u32) -> bool {
    (pair ^ first) >> size == 0
}

/// Tells whether two addresses agree in every bit from `bit` up: the check of one guard, and the writer's test whether a node
/// covers an address. If `bit` is `usize::BITS` or more, they agree.
#[inline(always)]
pub(super) const fn agree(a: usize, b: usize, bit: u32) -> bool {
    (a ^ b) & !low(bit) == 0
}

/// Returns a word whose lowest `bits` bits are set. If `bits` is `usize::BITS` or more, all bits are set.
#[inline(always)]
pub(super) const fn low(bits: u32) -> usize {
    if bits >= usize::BITS { usize::MAX } else { (1 << bits) - 1 }
}

/// Returns the `width` bits of an address from `shift` up, as an index: fewer than all bits of a word.
#[inline(always)]
pub(super) const fn digit(at: usize, shift: u32, width: u32) -> usize {
    at >> shift & ((1 << width) - 1)
}
