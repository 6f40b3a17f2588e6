//! Superpages: policies that decide when to combine pages into a superpage, which one TLB entry maps.
//!
//! A kernel that refills its TLB by software, or samples its misses, reports every TLB miss to a [`Policy`], with the entry
//! that the TLB evicted. The policy answers with at most one [`Action`]: promote this aligned range. The kernel copies the
//! pages into contiguous memory and reports that, or refuses because there is none. A miss costs [`ApproxOnline`] some 150
//! instructions (`cargo xtask bookkeeping`). Policies do no I/O and have no heap: the caller provides memory for
//! their counters, which is used by segment (the largest page size, 8 MB) as segments are touched.
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
//! // Pages 6 and 7 evict each other from a TLB that has one entry for both.
//! let (mut page, mut evicted) = (Vpn::new(6), Vpn::new(7));
//! let range = loop {
//!     let miss = Miss { tlb: Tlb::Data, page, evicted: Some(evicted), now: 0 };
//!     if let Some(Action::Promote { range, copy: true }) = policy.on_miss(miss) {
//!         break range;
//!     }
//!     (page, evicted) = (evicted, page);
//! };
//! // After 100 misses that the superpage {6, 7} would have prevented (0.125 R for 8 KB), its copy is worth the cost.
//! assert_eq!((range.first, range.size.bytes()), (Vpn::new(6), 8192));
//! policy.promoted(range);
//!
//! // Copy-on-write of page 7: the kernel maps the two pages separately again.
//! assert_eq!(policy.demote(Vpn::new(7)), Some(range));
//! # Ok::<(), tlbkit_superpage::CostError>(())
//! ```
//!
//! | policy | promotes | from |
//! |-|-|-|
//! | [`ApproxOnline`] | when the misses that a superpage would have prevented by prefetch reach a share of its cost | Romer et al. 1995, 7.3 |
//! | [`Online`] | the same by prefetch or by capacity, from the LRU stack | 7.2 |
//! | [`Asap`], [`Asap464`] | a superpage when all of its pages are populated; 64 KB when half of its pages are populated | 7.4 |
//! | [`Reservation`] | a reservation that is full, without copying | Talluri and Hill 1994, Navarro et al. 2002, FreeBSD |
//! | [`Background`] | at most one well-used region a period; demotes the least used | Linux khugepaged and its shrinker, Ingens 2016 |
//! | [`Coverage`] | once a period, the region of which most pages have missed lately | HawkEye 2019 |
//! | [`Runs`] | a run at its first touch, without copying, and again after a change of one page | Linux 6.8 and 6.9: mTHP, contpte |
//! | [`Thrift`] | like APPROX-ONLINE, but within a reservation without copying, and at once when the reservation is full | this project |
//!
//! # Readings
//!
//! The choices of this crate where the paper is silent or contradicts itself:
//!
//! - On a miss to `p`, the entries that were resident before the miss determine the charges, including the entry that is
//!   about to be evicted; then the TLB refills and evicts; then the policy promotes. Candidates are strictly larger than the
//!   mapping of `p`; the smallest candidate is promoted.
//! - APPROX-ONLINE promotes when a count reaches its threshold, and lowers the counts of larger superpages by the threshold.
//!   ONLINE promotes when a count exceeds its threshold, and lowers the others by that count. The counts of a promoted
//!   superpage and its parts start at zero again.
//! - A promotion replaces the entries of the parts by one entry, at the most recently used place, in every TLB that had any.
//!   If an LRU stack has the parts only among its entries that are not resident, the superpage becomes the most recent of
//!   those.
//! - Each TLB has its own resident set. The charges of both TLBs go to one count for each superpage.
//! - `tlbcount` is stored as the resident set from which it follows: one bit for each unit and TLB.
//!   [`ApproxOnline::tlbcount`] computes the number, including -1, for any radix; the tests compare it with Appendix A's
//!   increments and decrements.
//! - A capacity charge needs at least two entries (in a TLB that is not full, `depth - T + 1` can be less).
//! - If ONLINE promotes, by capacity, a superpage without a resident part, no entry is loaded into the TLB.
//! - After a refusal for lack of memory, promotions to that size and larger sizes wait for as many misses as the refused
//!   superpage's threshold, then twice as many, and so on, until such a promotion is granted. Counts stay at their threshold
//!   during the wait. A refusal because the range cannot be one mapping concerns only that range: its charges start at zero
//!   again.
//!
//! # Limits
//!
//! There are no address-space identifiers: a kernel has one policy for each address space, and reports evictions that other
//! address spaces cause with [`Policy::evicted`]. There are no locks: one CPU at a time uses a policy.
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
    Action, Activity, ApproxOnline, Asap, Asap464, Background, Coverage, Miss, Online, OnlineMemory, Policy,
    Refusal, Reservation, Runs, Superpage, Thrift, Tlb, Utilization,
};
pub use segments::{PolicyMemory, SegmentMemory};
pub use setup::Setup;
