//! Staying out of the way of programs that hardly miss.

/// Keeps a policy inactive while the TLB costs little (the last remark of section 8.2).
///
/// The miss rate is taken anew every 256 misses, from the time of the first one on; below the limit the next 256 are not
/// charged to anything. What the TLBs hold is recorded all the while, so that charges are right from the first one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// The policy is active from this many misses per million ticks of the clock on; zero is always.
    pub misses_per_million: u32,
}

impl Activity {
    /// Active whatever the miss rate: what the paper measured.
    pub const ALWAYS: Self = Self { misses_per_million: 0 };
}

impl Default for Activity {
    fn default() -> Self {
        Self::ALWAYS
    }
}

const WINDOW: u32 = 256;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Gate {
    limit: Activity,
    left: u32,
    /// When the window began: with the last miss of the one before, or the first of all.
    since: Option<u64>,
    active: bool,
}

impl Gate {
    pub(crate) const fn new(limit: Activity) -> Self {
        Self { limit, left: WINDOW, since: None, active: limit.misses_per_million == 0 }
    }

    /// Tells whether every miss is charged, whatever the rate.
    #[inline(always)]
    pub(crate) const fn is_open(&self) -> bool {
        self.limit.misses_per_million == 0
    }

    /// Tells whether the last miss was to be charged.
    pub(crate) const fn was_active(&self) -> bool {
        self.active
    }

    /// Takes a miss at time `now` and tells whether it is to be charged.
    #[inline]
    pub(crate) fn active(&mut self, now: u64) -> bool {
        if self.limit.misses_per_million != 0 {
            let since = *self.since.get_or_insert(now);
            self.left -= 1;
            if self.left == 0 {
                let ticks = now.saturating_sub(since);
                let allowed = u128::from(ticks) * u128::from(self.limit.misses_per_million);
                self.active = u128::from(WINDOW) * 1_000_000 >= allowed;
                (self.left, self.since) = (WINDOW, Some(now));
            }
        }
        self.active
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_gate_without_a_limit_is_always_open() {
        assert!(Gate::new(Activity::ALWAYS).is_open());
        assert!(!Gate::new(Activity { misses_per_million: 1 }).is_open());
    }
}
