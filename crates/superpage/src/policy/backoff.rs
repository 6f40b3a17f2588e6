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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many misses it takes until a level is allowed.
    fn waits_for(back_off: &mut BackOff, level: usize) -> u64 {
        let start = back_off.misses;
        while !back_off.allows(level) {
            back_off.miss();
        }
        back_off.misses - start
    }

    #[test]
    fn waits_double_until_a_grant() {
        let mut back_off = BackOff::new();
        assert!(!back_off.waits() && back_off.allows(0));
        back_off.refused(3, 10);
        assert!(back_off.waits());
        // Smaller ones need not wait, larger ones as long.
        assert!(back_off.allows(2) && !back_off.allows(3) && !back_off.allows(4));
        assert_eq!(waits_for(&mut back_off, 3), 10);
        back_off.refused(5, 10);
        assert_eq!(waits_for(&mut back_off, 3), 20);
        // A larger threshold than twice the wait.
        back_off.refused(2, 100);
        assert!(back_off.allows(1));
        assert_eq!(waits_for(&mut back_off, 2), 100);
        back_off.refused(2, 1);
        // One that need not wait ends nothing.
        back_off.granted(1);
        assert!(back_off.waits() && !back_off.allows(2));
        back_off.granted(2);
        assert!(!back_off.waits() && back_off.allows(2));
        back_off.refused(2, 10);
        assert_eq!(waits_for(&mut back_off, 2), 10);
    }

    #[test]
    fn no_wait_is_longer_than_the_longest() {
        let mut back_off = BackOff::new();
        for _ in 0..40 {
            back_off.refused(1, u32::MAX);
        }
        assert_eq!(back_off.until, BackOff::LONGEST);
    }
}
