//! The wait after a refusal for lack of contiguous memory.

use crate::page_sizes::MAX_LEVELS;

/// The waits of all sizes, in misses. After a refusal of a size for lack of memory, promotions to that size and to larger
/// sizes wait. The wait starts at the number of misses given to [`refused`](Self::refused), and doubles with every further
/// refusal of that size until a promotion to that size or a larger one is granted.
///
/// Each size has a wait of its own: refusals of a large size do not make smaller ones wait longer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackOff {
    misses: u64,
    waits: [Wait; MAX_LEVELS],
}

/// For how many misses promotions to a size and to larger sizes have to wait, and until which miss. Both are zero if there
/// is no wait.
#[derive(Clone, Copy, Debug, Default)]
struct Wait {
    misses: u64,
    until: u64,
}

impl BackOff {
    /// The longest wait, in misses.
    const LONGEST: u64 = 1 << 32;

    pub(crate) const fn new() -> Self {
        Self { misses: 0, waits: [Wait { misses: 0, until: 0 }; MAX_LEVELS] }
    }

    #[inline]
    pub(crate) fn miss(&mut self) {
        self.misses += 1;
    }

    /// Tells whether the policy may ask for a superpage of `level`.
    #[inline]
    pub(crate) fn allows(&self, level: usize) -> bool {
        self.waits.iter().take(level + 1).all(|wait| self.misses >= wait.until)
    }

    /// Records a refusal of a superpage of `level` for lack of memory. The first wait is `threshold` misses.
    pub(crate) fn refused(&mut self, level: usize, threshold: u32) {
        if let Some(wait) = self.waits.get_mut(level) {
            wait.misses = (wait.misses * 2).max(u64::from(threshold)).min(Self::LONGEST);
            wait.until = self.misses + wait.misses;
        }
    }

    /// Ends the waits of this size and of all smaller sizes: there was contiguous memory of this size, and so of every
    /// smaller size.
    pub(crate) fn granted(&mut self, level: usize) {
        for wait in self.waits.iter_mut().take(level + 1) {
            *wait = Wait::default();
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
        assert!(back_off.allows(0));
        back_off.refused(3, 10);
        // Smaller sizes do not wait, larger sizes wait as long.
        assert!(back_off.allows(2) && !back_off.allows(3) && !back_off.allows(4));
        assert_eq!(waits_for(&mut back_off, 4), 10);
        back_off.refused(3, 10);
        assert_eq!(waits_for(&mut back_off, 3), 20);
        // A threshold that is larger than twice the wait determines the wait.
        back_off.refused(3, 100);
        assert_eq!(waits_for(&mut back_off, 3), 100);
        back_off.refused(3, 1);
        // A grant of a smaller size, which does not wait, ends no wait.
        back_off.granted(2);
        assert!(!back_off.allows(3));
        // A grant of a larger size ends the wait.
        back_off.granted(4);
        assert!(back_off.allows(3));
        back_off.refused(3, 10);
        assert_eq!(waits_for(&mut back_off, 3), 10);
    }

    /// Refusals of a large size do not make a smaller size wait longer.
    #[test]
    fn sizes_wait_apart() {
        let mut back_off = BackOff::new();
        back_off.refused(2, 10);
        for _ in 0..10 {
            back_off.refused(5, 100);
        }
        assert_eq!(waits_for(&mut back_off, 2), 10);
        assert!(back_off.allows(4) && !back_off.allows(5));
        back_off.granted(2);
        assert!(!back_off.allows(5));
    }

    #[test]
    fn no_wait_is_longer_than_the_longest() {
        let mut back_off = BackOff::new();
        for _ in 0..40 {
            back_off.refused(1, u32::MAX);
        }
        assert_eq!(back_off.waits[1].until, BackOff::LONGEST);
    }
}
