//! What the policy is told and what it answers, line by line, for a host that asks its own policy the same.
//!
//! ```text
//!   + setup sizes=13,15,17 r_per_kb=4      the page sizes (as shifts) and the costs
//!   + m 4000 4012                          a miss of page 0x4000, which replaced the entry of page 0x4012 (or -)
//!   + p 4000 15                            the answer: promote 2^15 bytes at page 0x4000; it was done
//!   + r 4000 17                            the same, but there is no memory for it
//!   + n 4000 17                            the same, but the range cannot be one mapping
//!   + d 4003 4000 15                       page 0x4003 is needed alone; the policy gave up what it was in
//! ```

use core::fmt::{self, Display};

use tlbkit_addr::{PageSize, Vpn};
use tlbkit_superpage::{PageSizes, Refusal, Superpage};

use crate::println;

/// A line.
#[derive(Clone, Copy, Debug)]
pub(super) enum Line {
    Setup(PageSizes, u32),
    Miss(Vpn, Option<Vpn>),
    Promoted(Superpage),
    Refused(Superpage, Refusal),
    Demoted(Vpn, Superpage),
}

impl Line {
    /// Prints it.
    pub(super) fn write(self) {
        println!("+ {self}");
    }
}

impl Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Setup(page_sizes, r_per_kb) => {
                f.write_str("setup sizes=")?;
                let sizes =
                    (0..page_sizes.levels()).filter_map(|level| page_sizes.size(level)).map(PageSize::shift);
                for (level, shift) in sizes.enumerate() {
                    write!(f, "{}{shift}", if level > 0 { "," } else { "" })?;
                }
                write!(f, " r_per_kb={r_per_kb}")
            }
            Self::Miss(page, Some(evicted)) => write!(f, "m {:x} {:x}", page.get(), evicted.get()),
            Self::Miss(page, None) => write!(f, "m {:x} -", page.get()),
            Self::Promoted(range) => write!(f, "p {:x} {}", range.first.get(), range.size.shift()),
            Self::Refused(range, why) => {
                let why = if why == Refusal::NoMemory { "r" } else { "n" };
                write!(f, "{why} {:x} {}", range.first.get(), range.size.shift())
            }
            Self::Demoted(page, range) => {
                write!(f, "d {:x} {:x} {}", page.get(), range.first.get(), range.size.shift())
            }
        }
    }
}
