//! What a policy is told and what it answers.

use core::fmt;

use tlbkit_addr::{PageSize, Pages, Vpn};

mod approx;
mod asap;
mod background;
mod backoff;
mod gate;
mod online;
mod reserve;
mod thrift;

pub use approx::ApproxOnline;
pub use asap::{Asap, Asap464};
pub use background::{Background, Utilization};
pub use gate::Activity;
pub use online::{Online, OnlineMemory};
pub use reserve::Reservation;
pub use thrift::Thrift;

/// Which of the machine's TLBs.
///
/// A policy made for one TLB takes both names for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tlb {
    /// The TLB for data, or for everything.
    Data,
    /// The TLB for instructions, where it is apart.
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
    /// The page that was wanted. It is in the TLB now, at the size it is mapped with.
    pub page: Vpn,
    /// The first page of the entry that had to go for it, if one had to.
    pub evicted: Option<Vpn>,
    /// The clock that [`Activity`] goes by: instructions or cycles so far. Policies without one ignore it.
    pub now: u64,
}

/// What a policy wants done. The caller answers a promotion with [`Policy::promoted`] or [`Policy::refused`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Map this range with one entry. If `copy`, its pages have to be brought together first.
    Promote {
        /// The range.
        range: Superpage,
        /// Whether its pages are not contiguous yet.
        copy: bool,
    },
    /// There is no memory to count this page's segment: nothing will be promoted there. Said once for the life of
    /// the policy.
    OutOfSegments {
        /// The page that missed.
        page: Vpn,
    },
}

/// Why a promotion was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no contiguous memory of this size now. It concerns every range of this size and of larger ones: none is
    /// asked for during a wait, which doubles with each refusal of this size until a promotion to it or to a larger one
    /// succeeds.
    NoMemory,
    /// This range cannot be one mapping, however much memory there is: part of it is not mapped, its pages differ in
    /// rights, or one of them has to stay where it is. It concerns this range alone, whose charges (or whose population)
    /// begin anew. So the policy asks again, but no sooner than its charges (or its population) reach the threshold again.
    NotHere,
}

/// A promotion policy: takes TLB misses, asks for promotions.
///
/// The order of events on a miss is the machine's: the TLB refills `page` and evicts something, the kernel calls
/// [`on_miss`](Self::on_miss), and acts on the answer before the next miss.
pub trait Policy: fmt::Debug {
    /// Takes a miss. Returns at most one action.
    fn on_miss(&mut self, miss: Miss) -> Option<Action>;

    /// Tells whether the last miss was charged: it was not while [`Activity`] keeps the policy out of the way.
    fn is_active(&self) -> bool {
        true
    }

    /// Records that the promotion asked for was done: entries for its parts are gone from all TLBs, and each TLB that
    /// held one holds the superpage instead.
    fn promoted(&mut self, range: Superpage);

    /// Records that the promotion asked for was not done, and why. To a policy that reserves memory,
    /// [`Refusal::NoMemory`] for a range that it has not asked to copy says that a reservation was not to be had or is
    /// broken.
    fn refused(&mut self, range: Superpage, why: Refusal);

    /// Records that one page of a superpage is needed alone (page-out, copy-on-write, another protection). Returns
    /// the superpage that the caller must now map as base pages and flush, or `None` if `page` is in none.
    fn demote(&mut self, page: Vpn) -> Option<Superpage>;

    /// Records that a TLB dropped the entry whose first page is `page`, other than for a refill.
    fn evicted(&mut self, tlb: Tlb, page: Vpn);

    /// Records that a TLB was flushed. Costs a step for each entry that it held.
    fn flushed(&mut self, tlb: Tlb);

    /// Records that `pages` are mapped no longer and flushed: no TLB holds them, no superpage is there. Segments wholly
    /// within are reclaimed; in others charges stay. Superpages that `pages` cut in two count as demoted: what is left of
    /// them is mapped as base pages, and no TLB holds it.
    fn unmapped(&mut self, pages: Pages);
}
