//! The interface of a policy: the events that the kernel reports, and the actions that the policy asks for.

use core::fmt;

use tlbkit_addr::{PageSize, Pages, Vpn};

mod approx;
mod asap;
mod background;
mod backoff;
mod coverage;
mod gate;
mod online;
mod reserve;
mod runs;
mod thrift;

pub use approx::ApproxOnline;
pub use asap::{Asap, Asap464};
pub use background::{Background, Utilization};
pub use coverage::Coverage;
pub use gate::Activity;
pub use online::{Online, OnlineMemory};
pub use reserve::Reservation;
pub use runs::Runs;
pub use thrift::Thrift;

/// Names one of the machine's TLBs.
///
/// A policy that was made for one TLB takes both names for this TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tlb {
    /// The TLB for data, or the only TLB.
    Data,
    /// The TLB for instructions, if the machine has a separate one.
    Instruction,
}

/// An aligned range of pages that one TLB entry can map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Superpage {
    /// Its first page.
    pub first: Vpn,
    /// Its size.
    pub size: PageSize,
}

impl Superpage {
    /// Returns its pages of size `page`.
    pub fn pages(self, page: PageSize) -> Pages {
        let more = self.size.pages(page).unwrap_or(1) - 1;
        // An aligned superpage cannot pass the top of the address space.
        Pages::new(self.first, Vpn::new(self.first.get() | more)).unwrap_or(Pages::one(self.first))
    }
}

impl fmt::Display for Superpage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at page {}", self.size, self.first)
    }
}

/// A TLB miss that the kernel has just served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    /// The TLB that missed.
    pub tlb: Tlb,
    /// The page that was accessed. The TLB now holds its entry, of the size of its mapping.
    pub page: Vpn,
    /// The first page of the entry that the TLB evicted for the refill, if it evicted one.
    pub evicted: Option<Vpn>,
    /// The time of the miss, which [`Activity`] uses: in instructions or in cycles. Other policies ignore it.
    pub now: u64,
}

/// A request of a policy. The caller answers a promotion with [`Policy::promoted`] or [`Policy::refused`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Map this range with one entry. If `copy`, the kernel must first copy its pages into contiguous memory.
    Promote {
        /// The range.
        range: Superpage,
        /// Whether its pages are not contiguous yet.
        copy: bool,
    },
    /// There is no memory for the counters of this page's segment, so the policy will promote nothing there until another
    /// segment is unmapped. The policy reports this once in its lifetime.
    OutOfSegments {
        /// The page that missed.
        page: Vpn,
    },
}

/// Why a promotion was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no contiguous memory of this size now. The refusal concerns every range of this size and of larger sizes:
    /// the policy asks for none during a wait. The wait doubles with each refusal of this size, until a promotion to this
    /// size or a larger one succeeds.
    NoMemory,
    /// This range cannot be one mapping, however much memory there is: part of it is not mapped, its pages differ in
    /// rights, or one of them cannot be moved. The range's charges, or its population, start at zero again, and the policy asks
    /// again when they have reached the threshold again. Charges of other ranges stay. A population is that of pages: superpages
    /// around the range, and within it, have lost those pages, too.
    NotHere,
}

/// A promotion policy: the kernel reports TLB misses, and the policy asks for promotions.
///
/// On a miss, the TLB first refills `page` and may evict an entry. Then the kernel calls [`on_miss`](Self::on_miss), and
/// acts on the answer before it reports the next miss.
pub trait Policy: fmt::Debug {
    /// Records a miss. Returns at most one action.
    fn on_miss(&mut self, miss: Miss) -> Option<Action>;

    /// Tells whether [`Activity`] let the policy charge the last miss.
    fn is_active(&self) -> bool {
        true
    }

    /// Records that the kernel has done the promotion that the policy asked for: no TLB holds an entry of the superpage's
    /// parts, and each TLB that held one holds the superpage's entry instead.
    fn promoted(&mut self, range: Superpage);

    /// Records that the kernel has not done the promotion that the policy asked for, and why. For a policy that reserves
    /// memory, [`Refusal::NoMemory`] for a range that the policy did not ask to copy means that the kernel could not make
    /// the reservation, or has broken it.
    fn refused(&mut self, range: Superpage, why: Refusal);

    /// Records that one page of a superpage needs a mapping of its own (page-out, copy on write, other rights). Returns the
    /// superpage that the caller must now map as base pages and flush, or `None` if `page` is in no superpage.
    fn demote(&mut self, page: Vpn) -> Option<Superpage>;

    /// Records that a TLB dropped the entry whose first page is `page`, for another reason than a refill.
    fn evicted(&mut self, tlb: Tlb, page: Vpn);

    /// Records that a TLB was flushed. The time is at most proportional to the number of entries that the TLB held.
    fn flushed(&mut self, tlb: Tlb);

    /// Records that the kernel has unmapped and flushed `pages`: no TLB holds an entry for them, and no superpage is there.
    /// The policy frees the counters of segments that are wholly within `pages`; in other segments charges stay. A superpage
    /// that is only partly within `pages` counts as demoted: the kernel maps its remaining pages as base pages, and no TLB
    /// holds an entry for them.
    fn unmapped(&mut self, pages: Pages);
}
