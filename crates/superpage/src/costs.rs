//! The cost of a promotion in TLB misses, and the number of charges at which a promotion pays.

use core::fmt;

use crate::PageSizes;
use crate::page_sizes::MAX_LEVELS;

/// The cost of a promotion, and the shares of it at which a superpage's charges make it a candidate.
///
/// `R` of a superpage is the cost of copying it in units of the cost of a TLB miss: [`r_per_kb`](Self::r_per_kb)
/// times its kilobytes. The default is the paper's: 3000 cycles to copy 1 KB against 30 for a miss (section 8.1), and
/// thresholds of 0.125 R for prefetch and 0.625 R for capacity charges (section 7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Cost of copying 1 KB (1024 bytes), in units of the cost of one TLB miss.
    pub r_per_kb: u32,
    /// Threshold on prefetch charges, in thousandths of R.
    pub prefetch: u32,
    /// Threshold on capacity charges, in thousandths of R.
    pub capacity: u32,
}

impl Costs {
    /// The paper's values: 100 misses a KB, 0.125 R and 0.625 R.
    pub const PAPER: Self = Self { r_per_kb: 100, prefetch: 125, capacity: 625 };
}

impl Default for Costs {
    fn default() -> Self {
        Self::PAPER
    }
}

/// Why [`Costs`] cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostError {
    /// `r_per_kb` is zero: every promotion would be free.
    ZeroR,
    /// A threshold is zero: every superpage would be promoted at its first miss.
    ZeroThreshold,
    /// A threshold does not fit its counter: it must be below 65280 for superpages of up to 16 units (64 KB), and have at most 32
    /// bits for larger ones.
    TooLarge,
}

impl fmt::Display for CostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ZeroR => "R, the cost of copying 1 KB in TLB misses, must be at least 1",
            Self::ZeroThreshold => "a threshold must be at least a thousandth of R",
            Self::TooLarge => {
                "a threshold does not fit its counter of 16 bits (32 beyond 16 pages): lower R or the share of it"
            }
        })
    }
}

impl core::error::Error for CostError {}

/// The comparison by which a count makes its superpage a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// The count is at least the threshold (APPROX-ONLINE).
    Reaches,
    /// The count is more than the threshold (ONLINE).
    Exceeds,
}

/// Returns for every level the count, in charges, at which a superpage of this level becomes a candidate: `thousandths`
/// thousandths of its R.
pub(crate) fn thresholds(
    page_sizes: &PageSizes,
    costs: Costs,
    thousandths: u32,
    when: When,
) -> Result<[u32; MAX_LEVELS], CostError> {
    if costs.r_per_kb == 0 {
        return Err(CostError::ZeroR);
    }
    if thousandths == 0 {
        return Err(CostError::ZeroThreshold);
    }
    let mut counts = [u32::MAX; MAX_LEVELS];
    for (level, count) in counts.iter_mut().enumerate().take(page_sizes.levels()) {
        let bytes = page_sizes.size(level).map_or(u64::MAX, |size| size.bytes() as u64);
        let scaled = u64::from(costs.r_per_kb)
            .checked_mul(u64::from(thousandths))
            .and_then(|r| r.checked_mul(bytes))
            .ok_or(CostError::TooLarge)?;
        let one = 1024 * 1000;
        let least = match when {
            When::Reaches => scaled.div_ceil(one).max(1),
            When::Exceeds => scaled / one + 1,
        };
        *count = u32::try_from(least).map_err(|_| CostError::TooLarge)?;
    }
    Ok(counts)
}
