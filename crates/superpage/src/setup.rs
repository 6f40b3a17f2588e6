//! The construction parameters of the policies that count misses.

use crate::{Activity, Costs, PageSizes};

/// The machine and the parameters of a policy that counts misses. [`Setup::PAPER`] has those of the paper.
///
/// ```
/// use tlbkit_superpage::{Costs, Setup};
///
/// let cheap_copies = Setup { costs: Costs { r_per_kb: 25, ..Costs::PAPER }, ..Setup::PAPER };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The sizes that a TLB entry can have.
    pub page_sizes: PageSizes,
    /// Whether the machine has a separate TLB for instructions.
    pub split: bool,
    /// Costs and thresholds.
    pub costs: Costs,
    /// The miss rate at and above which the policy is active.
    pub activity: Activity,
}

impl Setup {
    /// 4 KB to 8 MB, two TLBs, R of 100 misses a KB, thresholds of 0.125 R (prefetch) and 0.625 R (capacity), always active.
    pub const PAPER: Self =
        Self { page_sizes: PageSizes::PAPER, split: true, costs: Costs::PAPER, activity: Activity::ALWAYS };

    pub(crate) const fn tlbs(&self) -> usize {
        if self.split { 2 } else { 1 }
    }
}

impl Default for Setup {
    fn default() -> Self {
        Self::PAPER
    }
}
