//! The state of an unmapping in flight: one operation in each space that shares the page.

use heapless::Vec;
use tlbkit_addr::{Asid, Attr, Vpn};
use tlbkit_shootdown::Outcome;

use super::Ticket;
use crate::tolerance::Entry;

/// The operation of an unmapping in one space.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) space: Asid,
    /// Whether the operation has the exclusion.
    pub(super) excludes: bool,
    /// Whether the operation has changed the entry, or found none.
    pub(super) updated: bool,
    /// Whether the operation has ended.
    pub(super) ended: bool,
}

impl Flight {
    pub(super) const fn new(space: Asid) -> Self {
        Self { space, excludes: false, updated: false, ended: false }
    }
}

/// An unmapping in flight.
#[derive(Clone, Debug)]
pub(super) struct Pending<M, const SHARES: usize> {
    pub(super) ticket: Ticket,
    /// The operation in the space that the caller named.
    pub(super) own: Flight,
    /// The operations in the other spaces that shared the page when the unmapping began. TLBs may keep stale entries of a
    /// space that stops sharing the page.
    pub(super) others: Vec<Flight, SHARES>,
    pub(super) at: Vpn,
    pub(super) readonly: bool,
    /// The entry that a TLB may still hold, with the union of the rights in all spaces that shared the page.
    pub(super) old: Entry,
    /// The status bits that the updates have found.
    pub(super) status: Attr,
    pub(super) superseded: bool,
    /// [`Outcome::Done`], or the first other outcome of its operations.
    pub(super) outcome: Outcome,
    pub(super) message: Option<M>,
}

impl<M, const SHARES: usize> Pending<M, SHARES> {
    pub(super) fn flights(&self) -> impl Iterator<Item = &Flight> {
        self.others.iter().chain([&self.own])
    }

    pub(super) fn flight(&mut self, space: Asid) -> Option<&mut Flight> {
        self.others.iter_mut().chain([&mut self.own]).find(|flight| flight.space == space && !flight.ended)
    }

    pub(super) fn spaces(&self) -> impl Iterator<Item = Asid> {
        self.flights().map(|flight| flight.space)
    }

    /// Tells whether the unmapping is of the page at `at` in this space, and has not been superseded.
    pub(super) fn concerns(&self, space: Asid, at: Vpn) -> bool {
        self.at == at && !self.superseded && self.spaces().any(|of| of == space)
    }

    /// Tells whether this unmapping is not `ticket`, and its operation on the page at `at` of `space` has the exclusion.
    pub(super) fn excludes(&self, ticket: Ticket, space: Asid, at: Vpn) -> bool {
        let has = |flight: &Flight| flight.space == space && flight.excludes;
        self.ticket != ticket && self.at == at && self.flights().any(has)
    }
}
