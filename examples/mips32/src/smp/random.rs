//! George Marsaglia's xorshift: the same numbers in every run.

/// A sequence of numbers.
pub(super) struct Random(u32);

impl Random {
    /// Returns the sequence of a CPU.
    pub(super) const fn of(cpu: usize) -> Self {
        Self(0x9e37_79b9 ^ (cpu as u32 + 1).wrapping_mul(0x85eb_ca6b))
    }

    /// Returns a number below `end`.
    pub(super) const fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        (self.0 >> 3) as usize % end
    }
}
