//! The hash that chooses a cache's set: [`EntryLayout::index`](crate::EntryLayout::index), which is the unit's number unless a
//! layout overrides it. [`folded`] is a hash that puts the same pages of different address spaces in different sets.

/// Mixes the unit's higher bits and the ASID into the low bits that choose a set; for
/// [`EntryLayout::index`](crate::EntryLayout::index).
///
/// Neighbouring units still take different sets. The thesis's benchmark needs such a hash: the user page tables of Mach are
/// 2 MiB apart, so with the unit's number and 4096 sets the ninth process uses the same sets as the first.
#[inline]
pub const fn folded(unit: usize, asid: usize) -> usize {
    unit ^ (unit >> 6) ^ (unit >> 11) ^ asid.wrapping_mul(0x95)
}
