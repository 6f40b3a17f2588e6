//! What is no page table: software TLBs, promotion policies, shootdowns, and what the machine can do at best.

use crate::Case;

mod algorithms;
mod shootdown;
mod stlb;
mod superpage;
mod yardsticks;

/// Returns their cases.
pub fn cases() -> Vec<Case> {
    [stlb::cases(), superpage::cases(), shootdown::cases(), algorithms::cases(), yardsticks::cases()]
        .into_iter()
        .flatten()
        .collect()
}
