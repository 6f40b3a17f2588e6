//! Building entry words from fields.

use core::ops::{BitAnd, BitOr};

/// A word that is built field by field.
pub(crate) trait Fields: Copy {
    /// Returns the word with one more field.
    ///
    /// No two fields share a bit. A field that is too wide (a frame that is not aligned to its page, an address with bits where
    /// the format has rights) would change another field, and the result would look like a valid word. So builds with debug
    /// assertions panic.
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
