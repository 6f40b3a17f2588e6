//! What words are made of.

use core::ops::{BitAnd, BitOr};

/// A word that is made field by field.
pub(crate) trait Fields: Copy {
    /// Returns the word with one more field.
    ///
    /// No two fields share a bit. One that does not fit its place (a frame that is not aligned to its page, an address
    /// with bits where the format keeps rights) would change its neighbour, and the word would look as good as any
    /// other. So builds with debug assertions stop at it.
    fn with(self, field: Self) -> Self;
}

impl<W> Fields for W
where
    W: Copy + Default + PartialEq + BitAnd<Output = W> + BitOr<Output = W>,
{
    #[inline(always)]
    fn with(self, field: W) -> W {
        debug_assert!(
            self & field == W::default(),
            "a field does not fit its place in a word, and overflows into another: a frame, or an address, that is not aligned or too large"
        );
        self | field
    }
}
