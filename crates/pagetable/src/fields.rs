//! What words are made of.

use core::ops::{BitAnd, BitOr};

/// Returns the word that has each of `fields` in its place.
///
/// No two of them share a bit. One that does not fit its place (a frame that is not aligned to its page, an address with
/// bits where the format keeps rights) would change its neighbour, and the word would look as good as any other. So
/// builds with debug assertions stop at it.
#[inline(always)]
pub(crate) fn fields<W, const FIELDS: usize>(fields: [W; FIELDS]) -> W
where
    W: Copy + Default + PartialEq + BitAnd<Output = W> + BitOr<Output = W>,
{
    fields.into_iter().fold(W::default(), |word, field| {
        debug_assert!(word & field == W::default(), "a field overflows into another");
        word | field
    })
}
