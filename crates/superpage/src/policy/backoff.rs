//! Not asking for contiguous memory where there was none.

/// After a refusal, promotions of that level and up wait; the wait starts at the refused superpage's threshold and
/// doubles with every further refusal, until one is granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackOff {
    misses: u64,
    until: u64,
    wait: u64,
    level: usize,
}

impl BackOff {
    /// The wait stops doubling here.
    const LONGEST: u64 = 1 << 32;

    pub(crate) const fn new() -> Self {
        Self { misses: 0, until: 0, wait: 0, level: usize::MAX }
    }

    /// Tells whether something may not be asked for, so that misses have to be counted.
    pub(crate) const fn waits(&self) -> bool {
        self.level != usize::MAX
    }

    #[inline]
    pub(crate) fn miss(&mut self) {
        self.misses += 1;
    }

    /// Tells whether a superpage of `level` may be asked for.
    #[inline]
    pub(crate) const fn allows(&self, level: usize) -> bool {
        level < self.level || self.misses >= self.until
    }

    pub(crate) fn refused(&mut self, level: usize, threshold: u32) {
        self.wait = (self.wait * 2).max(u64::from(threshold)).min(Self::LONGEST);
        self.until = self.misses + self.wait;
        self.level = self.level.min(level);
    }

    pub(crate) fn granted(&mut self, level: usize) {
        if level >= self.level {
            (self.wait, self.until, self.level) = (0, 0, usize::MAX);
        }
    }
}
