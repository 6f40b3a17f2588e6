//! The machine-dependent interface of Table 5.2, over any page table.
//!
//! The interface hides the algorithm that synchronizes TLBs, but not the synchronization: an unmapping can be asynchronous,
//! takes hints, and reports its end by a message. The interface runs no operation itself. An unmapping is a ticket and the
//! plan that the hint asks for; the kernel runs one operation for it in each space that shares the page
//! ([`Dash::spaces_of`]). The hooks of that operation's [`Edit`](tlbkit_shootdown::Edit) call this interface:
//!
//! | hook | call |
//! |-|-|
//! | `exclude`, `release` | [`Dash::exclude`], [`Dash::release`] |
//! | `set_tentative` | [`Dash::tentative`]: the entry that miss handlers load while the flag is set |
//! | `update`, `update_again` | [`Dash::update`]; the payload is the ticket and the space |
//! | `check` | [`Dash::is_lowered`] |
//! | `flush`, `low_rights` | [`Unmapping::flush`], [`Unmapping::low_rights`] |
//! | `is_walked` | `false`, because no walk reads a frame |
//! | [`LocalCpu::complete`](tlbkit_shootdown::LocalCpu::complete) | [`Dash::completed`] |
//!
//! An entry changes only when the operation calls `update`: with 2-phase after all CPUs have stopped, with TLB-first after
//! all CPUs have flushed. A dirty bit that the hardware sets until then comes back with the message.
//!
//! CPUs share a `Dash` under a lock. A CPU takes the lock for each call, with interrupts disabled, and must not hold it
//! while it waits for another CPU. The exclusion that an operation holds from its first hook to its last is not that lock.
//!
//! Invariants:
//!
//! - A page has at most one unmapping in flight in a space that has not been superseded ([`Dash::check`]).
//! - If such an unmapping has updated the entry, the entry has at most the reduced rights ([`Dash::check`]).
//! - Every message comes back exactly once.

mod dirty;
mod error;
mod pending;
mod sharing;

use heapless::Vec;
use tlbkit_addr::{Asid, Attr, Flush, FlushScope, PageSize, Pages, Vpn};

pub use self::error::DashError;
use self::pending::{Flight, Pending};
pub use self::sharing::SharingId;
use crate::tolerance::{Context, Entry, Tolerance, classify};
use tlbkit_shootdown::{LowRights, Outcome, Plan};

/// The status bits, which the hardware sets in an entry.
const STATUS: Attr = Attr::ACCESSED.union(Attr::DIRTY);

/// The operations on page tables that this interface needs.
pub trait Tables {
    /// Returns the entry of a page.
    fn entry(&self, space: Asid, at: Vpn) -> Option<Entry>;
    /// Exchanges the entry of a page.
    fn exchange(&mut self, space: Asid, at: Vpn, new: Option<Entry>) -> Option<Entry>;
}

/// The hints of `unmap_synch` and `unmap_asynch`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hint {
    /// The latency does not matter: use the plan that costs the CPUs least.
    pub slow: bool,
    /// Handle only the simple case: end as [`Outcome::Overwritten`] if the check after the last required round fails.
    pub conditional: bool,
}

/// The name of an unmapping in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(u32);

/// An unmapping that the kernel has to carry out, by one operation in each of [`Dash::spaces_of`].
#[derive(Clone, Debug)]
pub struct Unmapping {
    /// The name that the operation's hooks use.
    pub ticket: Ticket,
    /// The plan that the hint asks for.
    pub plan: Plan,
    /// The flush for each of the spaces. If it is [no flush](Flush::scope), no stale TLB entry can do harm, and the kernel
    /// may call [`Dash::update`] and [`Dash::completed`] without an operation.
    pub flush: Flush,
    /// Whether the hardware may write status bits to the new entry.
    pub low_rights: LowRights,
}

/// The result of an unmapping that has ended in all spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed<M> {
    /// The message of [`Dash::unmap_asynch`].
    pub message: Option<M>,
    /// The return code: [`Outcome::Done`] if the rights are reduced in every space.
    pub outcome: Outcome,
    /// The status bits that the page had, in any of the spaces.
    pub status: Attr,
}

/// Returns the entry that an unmapping leaves: read-only if `readonly`, otherwise none.
fn lowered(entry: Entry, readonly: bool) -> Option<Entry> {
    readonly.then_some(Entry { attr: entry.attr.difference(Attr::WRITE), ..entry })
}

/// Returns `new` with the status bits of `old` added, if both have the same frame.
fn with_status(new: Entry, old: Option<Entry>) -> Entry {
    let status = old.filter(|old| old.frame == new.frame).map_or(Attr::empty(), |old| old.attr & STATUS);
    Entry { attr: new.attr | status, ..new }
}

/// Tells whether it is safe that a TLB holds `old` while the page table has `new`.
fn is_safe(old: Entry, new: Entry) -> bool {
    classify(Some(old), Some(with_status(new, Some(old))), Context::Plain) == Tolerance::Safe
}

/// The machine's page size and plans: `config()`.
///
/// If status writes can undo a change and pages are made read-only, both plans must have been made with
/// [`LowRights::MayWriteBack`]; otherwise such a call fails with [`DashError::OtherRights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The size of a page.
    pub page: PageSize,
    /// The plan of an unmapping for which a caller waits.
    pub prompt: Plan,
    /// The plan of an unmapping for which no caller waits.
    pub cheap: Plan,
}

/// A page-fault handler, as `set_page_fault_hdr` takes it. Its arguments are the space, the page, and the rights that the
/// access needs.
pub type FaultHook = fn(Asid, Vpn, Attr);

/// The `VAS_MD` class for all address spaces of a kernel: up to `PENDING` unmappings in flight, each with a message
/// `M`, and up to `SHARES` declarations of sharing.
#[derive(Debug)]
pub struct Dash<T, M, const PENDING: usize, const SHARES: usize> {
    tables: T,
    config: Config,
    next: u32,
    pending: Vec<Pending<M, SHARES>, PENDING>,
    shares: Vec<(SharingId, Asid, Pages), SHARES>,
    hook: Option<FaultHook>,
}

impl<T: Tables, M, const PENDING: usize, const SHARES: usize> Dash<T, M, PENDING, SHARES> {
    /// Returns the interface over `tables`.
    pub const fn new(tables: T, config: Config) -> Self {
        Self { tables, config, next: 0, pending: Vec::new(), shares: Vec::new(), hook: None }
    }

    /// `config()`.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the tables.
    pub const fn tables(&self) -> &T {
        &self.tables
    }

    /// Returns the unmapping in flight that concerns the page at `at` in any of the spaces that share it.
    fn pending(&mut self, space: Asid, at: Vpn) -> Option<&mut Pending<M, SHARES>> {
        let mut spaces = self.spaces(space, at);
        let nth = spaces.find_map(|of| self.pending.iter().position(|p| p.concerns(of, at)))?;
        self.pending.get_mut(nth)
    }

    /// Returns the spaces in which an unmapping needs an operation, each once: those that shared the page when it began.
    ///
    /// # Errors
    ///
    /// [`DashError::UnknownTicket`].
    pub fn spaces_of(&self, ticket: Ticket) -> Result<impl Iterator<Item = Asid>, DashError> {
        let pending = self.pending.iter().find(|p| p.ticket == ticket);
        Ok(pending.ok_or(DashError::UnknownTicket(ticket))?.spaces())
    }

    /// Returns the unmapping of this ticket, if its operation in `space` has not ended.
    fn of(&mut self, ticket: Ticket, space: Asid) -> Result<&mut Pending<M, SHARES>, DashError> {
        let flies = |flight: &Flight| flight.space == space && !flight.ended;
        let mut all = self.pending.iter_mut();
        let pending = all.find(|p| p.ticket == ticket && p.flights().any(flies));
        pending.ok_or(DashError::UnknownTicket(ticket))
    }

    /// Takes the exclusion for the operation of an unmapping in `space`, if no other operation on that page has it: an
    /// operation that a `map` has superseded may still be under way. Returns whether the operation has the exclusion.
    ///
    /// # Errors
    ///
    /// [`DashError::UnknownTicket`].
    pub fn exclude(&mut self, ticket: Ticket, space: Asid) -> Result<bool, DashError> {
        let at = self.of(ticket, space)?.at;
        let free = !self.pending.iter().any(|p| p.excludes(ticket, space, at));
        if let Some(flight) = self.of(ticket, space)?.flight(space) {
            flight.excludes = free;
        }
        Ok(free)
    }

    /// Releases the exclusion.
    ///
    /// # Errors
    ///
    /// [`DashError::UnknownTicket`].
    pub fn release(&mut self, ticket: Ticket, space: Asid) -> Result<(), DashError> {
        if let Some(flight) = self.of(ticket, space)?.flight(space) {
            flight.excludes = false;
        }
        Ok(())
    }

    /// Returns the entry that the operation will write in `space`. TLB-first's miss handlers load it until then.
    ///
    /// # Errors
    ///
    /// [`DashError::UnknownTicket`].
    pub fn tentative(&mut self, ticket: Ticket, space: Asid) -> Result<Option<Entry>, DashError> {
        let Pending { at, readonly, superseded, .. } = *self.of(ticket, space)?;
        let entry = self.tables.entry(space, at);
        Ok(entry.and_then(|entry| if superseded { Some(entry) } else { lowered(entry, readonly) }))
    }

    /// Exchanges the entry in `space` for one with the reduced rights, and keeps the status bits of the old entry. The
    /// kernel calls it in each round of the operation. If a `map` has superseded the unmapping, the entry does not change.
    ///
    /// # Errors
    ///
    /// [`DashError::UnknownTicket`].
    pub fn update(&mut self, ticket: Ticket, space: Asid) -> Result<(), DashError> {
        let Pending { at, readonly, superseded, .. } = *self.of(ticket, space)?;
        if superseded {
            return Ok(());
        }
        let last = self.tables.entry(space, at).and_then(|seen| match lowered(seen, readonly) {
            Some(new) => self.replace(space, at, new),
            None => self.tables.exchange(space, at, None),
        });
        let pending = self.of(ticket, space)?;
        pending.status |= last.map_or(Attr::empty(), |last| last.attr & STATUS);
        if let Some(flight) = pending.flight(space) {
            flight.updated = true;
        }
        Ok(())
    }

    /// Tells whether the entry in `space` has the reduced rights, or a `map` has superseded the unmapping. Returns `false`
    /// if a late status write has restored the old rights.
    ///
    /// # Errors
    ///
    /// [`DashError::UnknownTicket`].
    pub fn is_lowered(&mut self, ticket: Ticket, space: Asid) -> Result<bool, DashError> {
        let Pending { at, readonly, superseded, .. } = *self.of(ticket, space)?;
        Ok(superseded || self.has_lowered(space, at, readonly))
    }

    fn has_lowered(&self, space: Asid, at: Vpn, readonly: bool) -> bool {
        let denied = if readonly { Attr::WRITE } else { Attr::RIGHTS };
        self.tables.entry(space, at).is_none_or(|entry| !entry.attr.intersects(denied))
    }

    /// `map(virt_addr, phys_addr, access_type)`: maps a page, or raises its rights, in every space that shares it. The
    /// page's status bits stay. The call causes safe inconsistency only. If the page is being unmapped, and the entries that
    /// TLBs may still hold are correct again, the call supersedes the unmapping.
    ///
    /// # Errors
    ///
    /// [`DashError::Occupied`] if another frame is mapped, or the mapped entry has rights that this call would take away;
    /// [`DashError::BeingUnmapped`] if a TLB may still hold such an entry, or may hold the page in a space that has stopped
    /// sharing it.
    pub fn map(&mut self, space: Asid, at: Vpn, mut new: Entry) -> Result<(), DashError> {
        let spaces = self.spaces(space, at);
        if let Some(old) =
            spaces.clone().filter_map(|of| self.tables.entry(of, at)).find(|&old| !is_safe(old, new))
        {
            return Err(DashError::Occupied(old));
        }
        let here = |of: Asid| spaces.clone().any(|space| space == of);
        let stale = |p: &Pending<M, SHARES>| spaces.clone().any(|of| p.concerns(of, at));
        let wrong = |p: &&Pending<M, SHARES>| stale(p) && !(p.spaces().all(here) && is_safe(p.old, new));
        if let Some(pending) = self.pending.iter().find(wrong) {
            return Err(DashError::BeingUnmapped(pending.ticket));
        }
        for pending in self.pending.iter_mut().filter(|p| stale(p)) {
            pending.superseded = true;
            // The page is in use as before the unmapping, so it keeps the status bits that the unmapping has found.
            new.attr |= pending.status;
        }
        for of in spaces {
            self.replace(of, at, new);
        }
        Ok(())
    }

    /// Exchanges an entry for one that keeps the old entry's status bits, including bits that the hardware sets during the
    /// call. Returns the old entry with all of these bits.
    fn replace(&mut self, of: Asid, at: Vpn, mut new: Entry) -> Option<Entry> {
        let old = self.tables.exchange(of, at, Some(new));
        let mut last = old;
        // The entry is written again if the exchange returned status bits that the new entry lacks: at most once for each
        // status bit.
        while with_status(new, last) != new {
            new = with_status(new, last);
            last = self.tables.exchange(of, at, Some(new));
        }
        old.map(|old| with_status(old, Some(new)))
    }

    /// `unmap_synch(virt_addr, readonly_flag, hint)`: unmaps a page or makes it read-only. The kernel runs the
    /// operations to their end before it returns to its caller.
    ///
    /// # Errors
    ///
    /// As [`unmap_asynch`](Self::unmap_asynch).
    pub fn unmap_synch(
        &mut self,
        space: Asid,
        at: Vpn,
        readonly: bool,
        hint: Hint,
    ) -> Result<Unmapping, DashError> {
        self.unmap(space, at, readonly, None, Hint { slow: false, ..hint }).map_err(|(why, _)| why)
    }

    /// `unmap_asynch(virt_addr, readonly_flag, stream_mpo, message, hint)`: unmaps a page or makes it read-only, and returns
    /// `message` when the unmapping has ended ([`completed`](Self::completed)).
    ///
    /// # Errors
    ///
    /// The message, with [`DashError::NotMapped`] if no space that shares the page has it, [`DashError::BeingUnmapped`],
    /// [`DashError::Full`], or [`DashError::OtherRights`].
    pub fn unmap_asynch(
        &mut self,
        space: Asid,
        at: Vpn,
        readonly: bool,
        message: M,
        hint: Hint,
    ) -> Result<Unmapping, (DashError, Option<M>)> {
        self.unmap(space, at, readonly, Some(message), hint)
    }

    fn unmap(
        &mut self,
        space: Asid,
        at: Vpn,
        readonly: bool,
        message: Option<M>,
        hint: Hint,
    ) -> Result<Unmapping, (DashError, Option<M>)> {
        if let Some(pending) = self.pending(space, at) {
            return Err((DashError::BeingUnmapped(pending.ticket), message));
        }
        let (mut old, mut flush) = (None::<Entry>, Flush::none());
        for seen in self.spaces(space, at).filter_map(|of| self.tables.entry(of, at)) {
            let rights = old.map_or(Attr::empty(), |old| old.attr & Attr::RIGHTS);
            old = Some(Entry { attr: seen.attr | rights, ..old.unwrap_or(seen) });
            if classify(Some(seen), lowered(seen, readonly), Context::Plain) != Tolerance::Safe {
                flush.add(FlushScope::Everywhere, Pages::one(at));
            }
        }
        let Some(old) = old else { return Err((DashError::NotMapped, message)) };
        let plan = if hint.slow { self.config.cheap } else { self.config.prompt };
        let plan = if hint.conditional { plan.conditional() } else { plan };
        let low_rights = if readonly { LowRights::MayWriteBack } else { LowRights::NeverWriteBack };
        if !plan.allows(low_rights) {
            return Err((DashError::OtherRights, message));
        }
        let ticket = Ticket(self.next);
        let pending = Pending {
            ticket,
            own: Flight::new(space),
            others: self.sharers(space, at).into_iter().map(Flight::new).collect(),
            at,
            readonly,
            old,
            status: Attr::empty(),
            superseded: false,
            outcome: Outcome::Done,
            message,
        };
        if let Err(pending) = self.pending.push(pending) {
            return Err((DashError::Full, pending.message));
        }
        self.next = self.next.wrapping_add(1);
        Ok(Unmapping { ticket, plan, flush, low_rights })
    }

    /// Records that the operation of an unmapping in `space` has ended. The call for the last operation returns the result
    /// of the unmapping, which is [`Outcome::Superseded`] if a `map` has superseded it. If the kernel could not start an
    /// operation, it calls this with [`Outcome::Superseded`]: the page is in use as before.
    ///
    /// # Errors
    ///
    /// [`DashError::UnknownTicket`], also when the operation has ended before.
    pub fn completed(
        &mut self,
        ticket: Ticket,
        space: Asid,
        outcome: Outcome,
    ) -> Result<Option<Completed<M>>, DashError> {
        let pending = self.of(ticket, space)?;
        if let Some(flight) = pending.flight(space) {
            // If the operation did not update the entry, the entry still has its old rights.
            let done = flight.updated || outcome != Outcome::Done;
            let outcome = if done { outcome } else { Outcome::Superseded };
            *flight = Flight { ended: true, updated: outcome == Outcome::Done, ..Flight::new(space) };
            pending.outcome = if pending.outcome == Outcome::Done { outcome } else { pending.outcome };
        }
        if pending.flights().any(|flight| !flight.ended) {
            return Ok(None);
        }
        let nth = self.pending.iter().position(|p| p.ticket == ticket);
        let Some(ended) = nth.map(|nth| self.pending.swap_remove(nth)) else {
            return Err(DashError::UnknownTicket(ticket));
        };
        // A page that stays mapped may have been written to until the last TLB was flushed, so its entries may have new
        // status bits.
        let here = ended.spaces().filter_map(|of| self.tables.entry(of, ended.at));
        let here = here.filter(|entry| entry.frame == ended.old.frame);
        let status = here.fold(ended.status, |status, entry| status | entry.attr & STATUS);
        let outcome = if ended.superseded { Outcome::Superseded } else { ended.outcome };
        Ok(Some(Completed { message: ended.message, outcome, status }))
    }

    /// `set_page_fault_hdr(handler)`.
    pub fn set_page_fault_hdr(&mut self, hook: FaultHook) {
        self.hook = Some(hook);
    }

    /// Handles a page fault. Returns true if the entry allows the access, so that the cause was a stale TLB entry, which the
    /// CPU's own flush removes. Otherwise calls the hook and returns false.
    pub fn fault(&self, space: Asid, at: Vpn, wanted: Attr) -> bool {
        let allowed = self.tables.entry(space, at).is_some_and(|entry| entry.attr.contains(wanted));
        if let (false, Some(hook)) = (allowed, self.hook) {
            hook(space, at, wanted);
        }
        allowed
    }

    /// Tells whether the first two invariants of this module hold. They do not hold between a late status write that
    /// restores an old entry and the check of the optimistic operation that finds it.
    pub fn check(&self) -> bool {
        self.pending.iter().enumerate().all(|(nth, p)| {
            let alone = self.pending.iter().skip(nth + 1).all(|q| {
                q.ticket != p.ticket && (p.superseded || !p.spaces().any(|of| q.concerns(of, p.at)))
            });
            let low = |flight: &Flight| !flight.updated || self.has_lowered(flight.space, p.at, p.readonly);
            alone && (p.superseded || p.flights().all(low))
        })
    }
}

#[cfg(test)]
mod tests {
    use tlbkit_addr::Pfn;

    use super::*;

    struct Nowhere;

    impl Tables for Nowhere {
        fn entry(&self, _space: Asid, _at: Vpn) -> Option<Entry> {
            None
        }
        fn exchange(&mut self, _space: Asid, _at: Vpn, _new: Option<Entry>) -> Option<Entry> {
            None
        }
    }

    /// The states of this test are not reachable by calls, except after 2^32 tickets.
    #[test]
    fn check_finds_two_unmappings_of_one_page_and_two_of_one_ticket() {
        let plan = Plan::new(
            tlbkit_shootdown::Algorithm::TwoPhase,
            &tlbkit_shootdown::Hardware::RP3,
            LowRights::NeverWriteBack,
        );
        let Ok(plan) = plan else { panic!("2-phase suits any hardware") };
        let of = |ticket, page, superseded| {
            let (space, at) = (Asid::default(), Vpn::new(page));
            Pending {
                ticket: Ticket(ticket),
                own: Flight::new(space),
                others: Vec::new(),
                at,
                readonly: false,
                old: Entry { frame: Pfn::new(3), attr: Attr::READ },
                status: Attr::empty(),
                superseded,
                outcome: Outcome::Done,
                message: None::<()>,
            }
        };
        let check = |pending: [Pending<(), 0>; 2]| {
            let config = Config { page: PageSize::K4, prompt: plan, cheap: plan };
            let mut dash = Dash::<_, _, 2, 0>::new(Nowhere, config);
            dash.pending.extend(pending);
            dash.check()
        };
        assert!(check([of(0, 4, false), of(1, 5, false)]));
        assert!(check([of(0, 4, true), of(1, 4, false)]) && check([of(0, 4, false), of(1, 4, true)]));
        assert!(!check([of(0, 4, false), of(1, 4, false)]), "two unmappings of a page");
        assert!(!check([of(0, 4, false), of(0, 5, false)]), "two unmappings of a ticket");
    }
}
