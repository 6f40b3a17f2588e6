//! Superpages: policies that decide when to bring pages together so that one TLB entry maps them all.
//!
//! A kernel that refills its TLB by software, or samples its misses, tells a [`Policy`] of every TLB miss and what the
//! TLB evicted for it. The policy answers with at most one [`Action`]: promote this aligned range. The kernel copies
//! the pages together and says so, or refuses for want of contiguous memory. Policies do no I/O and have no heap:
//! memory for their counters is handed over, and used by segment (the largest page size, 8 MB) as segments are touched.
//!
//! ```
//! use tlbkit_addr::Vpn;
//! use tlbkit_superpage::{Action, ApproxOnline, Miss, Policy, PolicyMemory, SegmentMemory, Setup, Slot, Tlb};
//!
//! // Memory for four segments, at the paper's settings: 4 KB to 8 MB, two TLBs, R of 100 a KB.
//! let setup = Setup::PAPER;
//! let each = ApproxOnline::segment_memory(&setup)?;
//! let mut directory = vec![Slot::default(); 4 * SegmentMemory::SLOTS];
//! let mut bits = vec![0; 4 * each.bits];
//! let mut counters = vec![0; 4 * each.counters];
//! let memory = PolicyMemory { directory: &mut directory, bits: &mut bits, counters: &mut counters };
//! let mut policy = ApproxOnline::new(&setup, memory)?;
//!
//! // Pages 6 and 7 push each other out of a TLB that has one entry to spare.
//! let (mut page, mut evicted) = (Vpn::new(6), Vpn::new(7));
//! let range = loop {
//!     let miss = Miss { tlb: Tlb::Data, page, evicted: Some(evicted), now: 0 };
//!     if let Some(Action::Promote { range, copy: true }) = policy.on_miss(miss) {
//!         break range;
//!     }
//!     (page, evicted) = (evicted, page);
//! };
//! // After 100 misses that {6, 7} would have prevented (0.125 R for 8 KB) it is worth its copy.
//! assert_eq!((range.first, range.size.bytes()), (Vpn::new(6), 8192));
//! policy.promoted(range);
//!
//! // Copy-on-write of page 7: the kernel maps the two pages apart again.
//! assert_eq!(policy.demote(Vpn::new(7)), Some(range));
//! # Ok::<(), tlbkit_superpage::CostError>(())
//! ```
//!
//! | policy | promotes | from |
//! |-|-|-|
//! | [`ApproxOnline`] | when the misses that a superpage would have prevented by prefetch reach a share of its cost | Romer et al. 1995, 7.3 |
//! | [`Online`] | the same by prefetch or by capacity, from the LRU stack | 7.2 |
//! | [`Asap`], [`Asap464`] | what is fully populated; 64 KB that is half populated | 7.4 |
//! | [`Reservation`] | without copying, what a reservation has filled | Talluri and Hill 1994, Navarro et al. 2002, FreeBSD |
//! | [`Background`] | at most one well-used region a period; demotes the least used | Linux khugepaged and its shrinker, Ingens 2016 |
//! | [`Thrift`] | like APPROX-ONLINE, but without copying where a reservation stands, and there at once what is full | this project |
//!
//! # Readings
//!
//! Where the paper is silent or contradicts itself:
//!
//! - On a miss to `p`: charges go by what was resident before, the page about to be evicted included; then refill and
//!   evict; then promote. Candidates are strictly larger than what maps `p`; of several the smallest is promoted.
//! - APPROX-ONLINE promotes when a count reaches its threshold, and lowers larger superpages by the threshold; ONLINE
//!   when it exceeds it, and lowers by the count. A promoted superpage and its parts start again at zero.
//! - A promotion makes the entries of the parts one, at the most recently used place, in every TLB that had any. An
//!   LRU stack that has them, but not resident, gets it as the most recent of what is not resident.
//! - Each TLB has its own resident set. The charges of both TLBs go to one count for each superpage.
//! - `tlbcount` is kept as the set it is a function of: one bit a unit for each TLB. [`ApproxOnline::tlbcount`] computes
//!   the number, -1 included, for any radix; the tests hold it against Appendix A's increments and decrements.
//! - A capacity charge needs two entries at the least (with a TLB that is not full, `depth - T + 1` can be less).
//! - ONLINE's promotion by capacity of something that has no resident part brings no entry into the TLB.
//! - After a refusal for want of memory, that size and larger ones wait for the refused superpage's threshold in misses,
//!   then twice that, and so on, until one is granted. Counts stay at their threshold meanwhile. A refusal because the
//!   range cannot be one mapping concerns that range alone, whose charges begin anew.
//!
//! # Not here
//!
//! Address-space identifiers: a kernel has one policy an address space, and tells it of evictions by others with
//! [`Policy::evicted`]. Locks: a policy is driven by one CPU at a time.
#![no_std]
#![cfg_attr(not(test), warn(unused_crate_dependencies))]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable))]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod block;
mod capacity;
mod costs;
mod deferred;
mod directory;
mod ledger;
mod occupied;
mod page_sizes;
mod policy;
mod population;
mod prefetch_charge;
mod recent;
mod segments;
mod setup;
#[cfg(test)]
mod testing;
mod units;

pub use capacity::StackEntry;
pub use costs::{CostError, Costs};
pub use directory::Slot;
pub use page_sizes::{MAX_LEVELS, PageSizes, PageSizesError};
pub use policy::{
    Action, Activity, ApproxOnline, Asap, Asap464, Background, Miss, Online, OnlineMemory, Policy, Refusal,
    Reservation, Superpage, Thrift, Tlb, Utilization,
};
pub use segments::{PolicyMemory, SegmentMemory};
pub use setup::Setup;
