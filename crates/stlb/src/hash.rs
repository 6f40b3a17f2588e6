//! The hash that chooses a cache's set: [`EntryLayout::index`](crate::EntryLayout::index) is the unit's own number unless a layout
//! says otherwise, and [`folded`] is the hash that keeps similar address spaces apart.

/// Mixes the unit's higher bits and the ASID into the low bits that choose a set; for [`EntryLayout::index`](crate::EntryLayout::index).
///
/// Neighbouring units still take different sets. The thesis's benchmark shows what it is for: the user page tables of
/// Mach lie 2 MiB apart, so that with the unit's own number and 4096 sets the ninth process takes the sets of the
/// first.
#[inline]
pub const fn folded(unit: usize, asid: usize) -> usize {
    unit ^ (unit >> 6) ^ (unit >> 11) ^ asid.wrapping_mul(0x95)
}
