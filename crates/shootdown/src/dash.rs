//! The machine-dependent interface of Table 5.2, over any page table.
//!
//! It hides how TLBs are synchronized, but not *that* they are: unmapping can be asynchronous, with hints, and says
//! by a message when it is through. It runs no operation itself. It edits entries, decides which plan a hint asks
//! for, and hands out tickets; the kernel runs the operation, in each space that shares the page ([`Dash::stale_in`]),
//! and calls [`Dash::completed`].
//!
//! Invariants, which [`Dash::check`] tests: a page has at most one unmapping in flight in a space; a page whose unmapping has
//! not been superseded has an entry with no more than the reduced rights; every message comes back exactly once.

use core::fmt;

use heapless::Vec;
use tlbkit_addr::{Asid, Attr, Flush, PageSize, Pages, Reach, Vpn};

use crate::tolerance::{Context, Entry, Tolerance, classify};
use crate::{Outcome, Plan};

/// What the hardware sets in an entry.
const STATUS: Attr = Attr::ACCESSED.union(Attr::DIRTY);

/// Page tables, as far as this interface needs them.
pub trait Tables {
    /// Returns the entry of a page.
    fn entry(&self, space: Asid, at: Vpn) -> Option<Entry>;
    /// Exchanges the entry of a page.
    fn exchange(&mut self, space: Asid, at: Vpn, new: Option<Entry>) -> Option<Entry>;
}

/// The hints of `unmap_synch` and `unmap_asynch`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hint {
    /// The latency does not matter: take what costs the CPUs least.
    pub slow: bool,
    /// Handle only the simple case: give up after one round.
    pub conditional: bool,
}

/// An unmapping in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(u32);

/// What an unmapping asks of the kernel.
#[derive(Clone, Debug)]
pub struct Unmapping {
    /// For [`Dash::completed`].
    pub ticket: Ticket,
    /// The plan that the hint asks for.
    pub plan: Plan,
    /// What the entry was, with its status bits in all spaces that share the page.
    pub old: Entry,
    /// What is stale, and for whom; in all spaces that share the page ([`Dash::stale_in`]).
    pub flush: Flush,
}

/// Who shares a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SharingId {
    /// Every address space (the text's 0).
    Everybody,
    /// Those that have said the same number.
    Group(u32),
}

/// A call that cannot be done. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DashError {
    /// There is no page.
    NotMapped,
    /// The page is being unmapped already.
    BeingUnmapped(Ticket),
    /// Another page is there.
    Occupied(Entry),
    /// The page is writable: a TLB could write the dirty bit back at any time (2.4.2.1).
    Writable,
    /// Too many unmappings in flight, or segments shared.
    Full,
    /// The space shares none of these pages.
    NotShared,
    /// No such unmapping is in flight.
    UnknownTicket(Ticket),
}

impl fmt::Display for DashError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMapped => f.write_str("no page is mapped there"),
            Self::BeingUnmapped(_) => f.write_str("the page is being unmapped"),
            Self::Occupied(entry) => write!(f, "frame {} is mapped there", entry.frame),
            Self::Writable => f.write_str("the page is writable, so its dirty bit cannot be cleared"),
            Self::Full => f.write_str("too many unmappings in flight or segments shared"),
            Self::NotShared => f.write_str("the space shares none of these pages"),
            Self::UnknownTicket(_) => f.write_str("no such unmapping is in flight"),
        }
    }
}

impl core::error::Error for DashError {}

#[derive(Clone, Debug)]
struct Pending<M, const SHARES: usize> {
    ticket: Ticket,
    space: Asid,
    /// Who shared the page when it began. Who stops sharing it is not rid of its stale copies.
    sharers: Vec<Asid, SHARES>,
    at: Vpn,
    /// What a TLB may still have: the entry as it was, with the rights of all who shared the page.
    old: Entry,
    limit: Attr,
    superseded: bool,
    message: Option<M>,
}

impl<M, const SHARES: usize> Pending<M, SHARES> {
    fn spaces(&self) -> impl Iterator<Item = Asid> {
        self.sharers.iter().copied().chain([self.space])
    }

    /// Tells whether some TLB may have the page at `at` of this space as it was.
    fn concerns(&self, space: Asid, at: Vpn) -> bool {
        self.at == at && !self.superseded && self.spaces().any(|of| of == space)
    }
}

/// Returns `new` with the status bits of `old`, if that is the same frame.
fn with_status(new: Entry, old: Option<Entry>) -> Entry {
    let status = old.filter(|old| old.frame == new.frame).map_or(Attr::empty(), |old| old.attr & STATUS);
    Entry { attr: new.attr | status, ..new }
}

/// Tells whether a TLB may have `old` where `new` is mapped.
fn is_safe(old: Entry, new: Entry) -> bool {
    classify(Some(old), Some(with_status(new, Some(old))), Context::Plain) == Tolerance::Safe
}

/// What the machine is like: `config()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The size of a page.
    pub page: PageSize,
    /// The plan of an unmapping that somebody waits for.
    pub prompt: Plan,
    /// The plan of one that nobody waits for.
    pub cheap: Plan,
}

/// A page-fault handler, as `set_page_fault_hdr` takes it: the space, the page, and what was wanted of it.
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

    /// The other spaces that see the same segment at `at`: those that have said the same as `space`, and those that have said
    /// the same as one of these, for a page is unmapped from every space that shares it with one from which it is unmapped.
    ///
    /// Costs the square of the declarations.
    fn sharers(&self, space: Asid, at: Vpn) -> Vec<Asid, SHARES> {
        let here = || self.shares.iter().filter(|(.., pages)| pages.contains(at));
        let mut others: Vec<Asid, SHARES> = Vec::new();
        let (mut next, mut done) = (Some(space), 0);
        while let Some(of) = next {
            let ids = here().filter(|(_, whose, _)| *whose == of).map(|(id, ..)| id);
            for (_, other, _) in ids.flat_map(|id| here().filter(move |(same, ..)| same == id)) {
                if *other != space && !others.contains(other) {
                    // As many as there are declarations: it fits.
                    let _ = others.push(*other);
                }
            }
            next = others.get(done).copied();
            done += 1;
        }
        others
    }

    /// All spaces that see it.
    fn spaces(
        &self,
        space: Asid,
        at: Vpn,
    ) -> impl Iterator<Item = Asid> + Clone + use<T, M, PENDING, SHARES> {
        self.sharers(space, at).into_iter().chain([space])
    }

    /// The unmapping in flight of the page at `at` that has made it stale in any of the spaces that share it.
    fn pending(&mut self, space: Asid, at: Vpn) -> Option<&mut Pending<M, SHARES>> {
        let mut spaces = self.spaces(space, at);
        let nth = spaces.find_map(|of| self.pending.iter().position(|p| p.concerns(of, at)))?;
        self.pending.get_mut(nth)
    }

    /// Returns the spaces in which an unmapping has made its page stale, each once: those that shared the page when
    /// it began. The kernel runs the operation for each of them.
    ///
    /// # Errors
    ///
    /// [`DashError::UnknownTicket`].
    pub fn stale_in(&self, ticket: Ticket) -> Result<impl Iterator<Item = Asid>, DashError> {
        let pending = self.pending.iter().find(|p| p.ticket == ticket);
        Ok(pending.ok_or(DashError::UnknownTicket(ticket))?.spaces())
    }

    /// `map(virt_addr, phys_addr, access_type)`: maps a page, or raises its rights, in every space that shares it. Its
    /// status bits stay. It causes safe inconsistency only. If the page is being unmapped, and whatever a TLB still has
    /// of it is right again, that operation is superseded.
    ///
    /// # Errors
    ///
    /// [`DashError::Occupied`] by another frame, or with rights that this call would take away;
    /// [`DashError::BeingUnmapped`] if a TLB may still have one of these, or has the page in a space that has stopped
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
            // The page is as if it had never been unmapped.
            new = with_status(new, Some(pending.old));
        }
        for of in spaces {
            self.replace(of, at, new);
        }
        Ok(())
    }

    /// Exchanges an entry for one that keeps the status bits, those of the last moment too. Returns what was there.
    fn replace(&mut self, of: Asid, at: Vpn, mut new: Entry) -> Option<Entry> {
        let old = self.tables.exchange(of, at, Some(new));
        let mut last = old;
        // Once more for what comes back, and for what is set meanwhile: as often as there are status bits, at most.
        while with_status(new, last) != new {
            new = with_status(new, last);
            last = self.tables.exchange(of, at, Some(new));
        }
        old.map(|old| with_status(old, Some(new)))
    }

    /// `unmap_synch(virt_addr, readonly_flag, hint)`: unmaps a page or makes it read-only. The kernel runs the
    /// operation to its end before it returns to its caller.
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

    /// `unmap_asynch(virt_addr, readonly_flag, stream_mpo, message, hint)`: the same, and `message` comes back when
    /// it is through.
    ///
    /// # Errors
    ///
    /// The message, with [`DashError::NotMapped`], [`DashError::BeingUnmapped`] or [`DashError::Full`].
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
        let Some(mut old) = self.tables.entry(space, at) else { return Err((DashError::NotMapped, message)) };
        if self.pending.is_full() {
            return Err((DashError::Full, message));
        }
        let lowered = |attr: Attr| if readonly { attr.difference(Attr::WRITE) } else { Attr::empty() };
        let limit = lowered(old.attr);
        let mut rights = Attr::empty();
        let mut flush = Flush::none();
        let sharers = self.sharers(space, at);
        for of in sharers.iter().copied().chain([space]) {
            let Some(seen) = self.tables.entry(of, at) else { continue };
            let new = readonly.then_some(Entry { attr: lowered(seen.attr), ..seen });
            // What comes back has the status bits of the last moment, and those that others have set.
            let last = match new {
                Some(new) => self.replace(of, at, new),
                None => self.tables.exchange(of, at, None),
            };
            let last = last.unwrap_or(seen);
            old.attr |= last.attr.intersection(STATUS);
            rights |= last.attr.intersection(Attr::RIGHTS);
            if classify(Some(last), new, Context::Plain) != Tolerance::Safe {
                flush.add(Reach::Everywhere, Pages::one(at));
            }
        }
        let ticket = Ticket(self.next);
        self.next = self.next.wrapping_add(1);
        let held = Entry { attr: old.attr | rights, ..old };
        let pending = Pending { ticket, space, sharers, at, old: held, limit, superseded: false, message };
        // There is room: it was looked for above.
        let _ = self.pending.push(pending);
        let plan = if hint.slow { self.config.cheap } else { self.config.prompt };
        let plan = if hint.conditional { plan.conditional() } else { plan };
        Ok(Unmapping { ticket, plan, old, flush })
    }

    /// Tells that the operation of an unmapping has ended. Returns its message and its return code: an operation
    /// that a `map` has superseded failed.
    ///
    /// # Errors
    ///
    /// [`DashError::UnknownTicket`], also when it has completed before.
    pub fn completed(&mut self, ticket: Ticket, outcome: Outcome) -> Result<(Option<M>, Outcome), DashError> {
        let at =
            self.pending.iter().position(|p| p.ticket == ticket).ok_or(DashError::UnknownTicket(ticket))?;
        let ended = self.pending.swap_remove(at);
        Ok((ended.message, if ended.superseded { Outcome::Superseded } else { outcome }))
    }

    /// `is_dirty(virt_addr)`: tells whether anybody who shares the page has written to it.
    ///
    /// # Errors
    ///
    /// [`DashError::NotMapped`].
    pub fn is_dirty(&self, space: Asid, at: Vpn) -> Result<bool, DashError> {
        Ok(self.everybodys(space, at)?.contains(Attr::DIRTY))
    }

    /// What the entries of a page allow and say in all spaces that share it.
    fn everybodys(&self, space: Asid, at: Vpn) -> Result<Attr, DashError> {
        let mine = self.tables.entry(space, at).ok_or(DashError::NotMapped)?;
        let entries = self.spaces(space, at).filter_map(|of| self.tables.entry(of, at));
        Ok(entries.fold(mine.attr, |attr, entry| attr | entry.attr))
    }

    /// `clear_dirty(virt_addr)`, in all spaces that share the page.
    ///
    /// # Errors
    ///
    /// [`DashError::NotMapped`]; [`DashError::Writable`]; [`DashError::BeingUnmapped`] while a TLB may still have it
    /// writable.
    pub fn clear_dirty(&mut self, space: Asid, at: Vpn) -> Result<(), DashError> {
        if self.everybodys(space, at)?.contains(Attr::WRITE) {
            return Err(DashError::Writable);
        }
        if let Some(pending) = self.pending(space, at) {
            return Err(DashError::BeingUnmapped(pending.ticket));
        }
        for of in self.spaces(space, at) {
            if let Some(entry) = self.tables.entry(of, at) {
                let clean = Entry { attr: entry.attr.difference(Attr::DIRTY), ..entry };
                self.tables.exchange(of, at, Some(clean));
            }
        }
        Ok(())
    }

    /// `share(sharing_id, seg_start, seg_end)`: from now on, mapping and unmapping in these pages affects every
    /// space that has said the same. Spaces that share something for everybody have all to say so. What is mapped
    /// there already stays as it is: let it be the same frames.
    ///
    /// # Errors
    ///
    /// [`DashError::Full`].
    pub fn share(&mut self, space: Asid, id: SharingId, segment: Pages) -> Result<(), DashError> {
        self.shares.push((id, space, segment)).map_err(|_| DashError::Full)
    }

    /// `share(-1, seg_start, seg_end)`: ends this space's sharing of these pages, whatever segments they are in. Of a segment
    /// that reaches beyond them, the rest stays shared.
    ///
    /// # Errors
    ///
    /// [`DashError::NotShared`] if the space shares none of them; [`DashError::Full`] if there is no room for the pieces that
    /// are left.
    pub fn unshare(&mut self, space: Asid, segment: Pages) -> Result<(), DashError> {
        let ends =
            |(_, of, pages): &&(SharingId, Asid, Pages)| *of == space && pages.intersect(segment).is_some();
        if !self.shares.iter().any(|share| ends(&share)) {
            return Err(DashError::NotShared);
        }
        let mut rest = Vec::new();
        for share in &self.shares {
            if !ends(&share) {
                rest.push(*share).map_err(|_| DashError::Full)?;
                continue;
            }
            let (id, of, pages) = *share;
            let below = segment.first().checked_sub(1).and_then(|last| Pages::new(pages.first(), last));
            let above = segment.last().checked_add(1).and_then(|first| Pages::new(first, pages.last()));
            for piece in below.into_iter().chain(above) {
                rest.push((id, of, piece)).map_err(|_| DashError::Full)?;
            }
        }
        self.shares = rest;
        Ok(())
    }

    /// `set_page_fault_hdr(handler)`.
    pub fn set_page_fault_hdr(&mut self, hook: FaultHook) {
        self.hook = Some(hook);
    }

    /// A page fault: tells whether it was only a stale copy (the entry allows what was wanted, so that the CPU's
    /// own flush repairs it); otherwise the hook is called.
    pub fn fault(&self, space: Asid, at: Vpn, wanted: Attr) -> bool {
        let allowed = self.tables.entry(space, at).is_some_and(|entry| entry.attr.contains(wanted));
        if let (false, Some(hook)) = (allowed, self.hook) {
            hook(space, at, wanted);
        }
        allowed
    }

    /// Tells whether the invariants hold.
    pub fn check(&self) -> bool {
        self.pending.iter().enumerate().all(|(nth, p)| {
            let alone = self.pending.iter().skip(nth + 1).all(|q| {
                q.ticket != p.ticket && (p.superseded || !p.spaces().any(|of| q.concerns(of, p.at)))
            });
            let rights = self.tables.entry(p.space, p.at).map_or(Attr::empty(), |entry| entry.attr);
            alone && (p.superseded || p.limit.contains(rights.intersection(Attr::RIGHTS)))
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

    /// No sequence of calls leads there, short of 2^32 tickets.
    #[test]
    fn check_finds_two_unmappings_of_one_page_and_two_of_one_ticket() {
        let plan =
            Plan::new(crate::Algorithm::TwoPhase, &crate::Hardware::RP3, crate::LowRights::NeverWriteBack);
        let Ok(plan) = plan else { panic!("2-phase suits any hardware") };
        let of = |ticket, page, superseded| {
            let (space, at) = (Asid::default(), Vpn::new(page));
            Pending {
                ticket: Ticket(ticket),
                space,
                sharers: Vec::new(),
                at,
                old: Entry { frame: Pfn::new(3), attr: Attr::READ },
                limit: Attr::empty(),
                superseded,
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
