//! Counts what was checked and what was wrong, and says so for the first few.

/// The outcome of checks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checks {
    pub done: u32,
    pub failed: u32,
}

/// How many failures are told.
const TOLD: u32 = 5;

impl Checks {
    /// Checks something; `what` says what is wrong, if it is.
    #[inline]
    pub fn check(&mut self, holds: bool, what: impl FnOnce(&mut dyn FnMut(core::fmt::Arguments<'_>))) {
        self.done += 1;
        if !holds {
            self.failed += 1;
            if self.failed <= TOLD {
                what(&mut |text| crate::println!("    WRONG: {text}"));
            }
        }
    }
}

/// Random numbers, good enough and the same in every run (Marsaglia's xorshift).
#[derive(Clone, Debug)]
pub struct Random(u32);

impl Random {
    /// Returns the sequence of a seed.
    pub const fn new(seed: u32) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9) | 1)
    }

    /// Returns the next number below `bound`, which is at most 65536.
    pub const fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        ((self.0 >> 16) * bound) >> 16
    }
}
