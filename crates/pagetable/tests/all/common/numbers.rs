//! A generator of numbers.

/// A sequence of numbers (xorshift) from a seed that is not 0.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    /// Returns the next number, which is less than `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}
