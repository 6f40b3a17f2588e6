//! The limit on the miss rate below which a policy is inactive.

/// The miss rate below which a policy is inactive (the last remark of section 8.2).
///
/// The rate of each 256 misses decides on the last of them and the 255 that follow: if it is below the limit, they charge
/// nothing. With a limit, the first 255 misses charge nothing either. The policy always records which entries the TLBs
/// hold, so that charges are correct as soon as it becomes active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// The policy is active at this many misses or more per million ticks of the clock, the unit of [`Miss::now`]; zero
    /// means always.
    ///
    /// [`Miss::now`]: crate::Miss::now
    pub misses_per_million: u32,
}

impl Activity {
    /// Active at any miss rate, as in the paper's measurements.
    pub const ALWAYS: Self = Self { misses_per_million: 0 };
}

impl Default for Activity {
    fn default() -> Self {
        Self::ALWAYS
    }
}

/// The number of misses over which the rate is measured.
const WINDOW: u32 = 256;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Gate {
    limit: Activity,
    left: u32,
    /// The time at which the window began: that of the last miss of the window before, or of the first miss of all.
    since: Option<u64>,
    active: bool,
}

impl Gate {
    pub(crate) const fn new(limit: Activity) -> Self {
        Self { limit, left: WINDOW, since: None, active: limit.misses_per_million == 0 }
    }

    /// Tells whether the last miss had to be charged.
    pub(crate) const fn was_active(&self) -> bool {
        self.active
    }

    /// Records a miss at time `now`, and tells whether the policy must charge it.
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
