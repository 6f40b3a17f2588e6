//! What the counting policies are made with.

use crate::{Activity, Costs, PageSizes};

/// The machine and the parameters of a counting policy. [`Setup::PAPER`] is the paper's.
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
    /// Whether instructions have a TLB of their own.
    pub split: bool,
    /// Costs and thresholds.
    pub costs: Costs,
    /// The miss rate from which on the policy is active.
    pub activity: Activity,
}

impl Setup {
    /// 4 KB to 8 MB, two TLBs, R of 100 a KB, thresholds of 0.125 and 0.625 R, deferred above 64 KB, always active.
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
