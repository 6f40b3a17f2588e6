//! Table 5.3's IPC region: pages that move between address spaces by ownership, mapped only when they are used.
//!
//! There are two maps. The *high* map says which spaces own a page, and how many ownerships each has: if a page has one
//! ownership in all, its owner may read and write; if it has more, its owners may read. The *low* map is the page table,
//! which follows lazily. It may allow less than the high map (safe, because the fault handler maps the page), and for some
//! time, or among spaces that trust each other, more.
//!
//! ```text
//!   send                     start_transfer --------> ownership moves; the sender's mapping is being removed
//!                              ownership only ------> ownership moves; the sender's mapping stays, and is stale
//!   receive, no trust        finish_transfer -------> called for each space that unfinished_in returns: no
//!                                                     mapping allows more than its space owns
//!   receive, immediate use   mapin -----------------> the receiver's mapping is there before it faults
//! ```
//!
//! Invariant ([`IpcRegion::check`]): a low mapping that allows more than the high map is being reduced, or is marked as
//! stale with the space that trusts it. After [`IpcRegion::finish_transfer`] for a space, that space has no such mapping.
//! Not only the last sender may have one: a receiver that trusted an earlier sender left that sender's mapping unchanged,
//! and sent the page on.
//!
//! No call waits. A call returns the work that the kernel has to finish as a [`LowAction`]. A reduction under way delays
//! neither the next send of the page nor a duplicate of it (5.3.4.6): ownerships may move during the reduction, and
//! [`IpcRegion::reduced`] returns a further reduction if one is needed. Two calls need the reduction to be finished: a
//! receive without trust, and [`IpcRegion::mapin`] for writing. A space becomes the only owner when the other owners release
//! the page or take copies of it, and may then write to the page in place. That space has not declared that it trusts the
//! others, so their mappings are removed first (guarantee 2 of 5.3.4.5: no other space reads more than it had already read).

use core::fmt;

/// The rights of a space to an IPC page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// None.
    #[default]
    None,
    /// Loads.
    Read,
    /// Loads and stores.
    Write,
}

/// A change of the low map that the kernel has to make, before it continues or in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "the region counts on it"]
pub enum LowAction {
    /// Nothing.
    Nothing,
    /// Map the page for this access. The change raises rights, so it needs no flush.
    Map {
        /// The space.
        space: usize,
        /// The page.
        page: usize,
        /// The access.
        access: Access,
    },
    /// Start to reduce the mapping to this access, without waiting; call [`IpcRegion::reduced`] when it is done.
    Reduce {
        /// The space.
        space: usize,
        /// The page.
        page: usize,
        /// The access that stays allowed.
        access: Access,
    },
    /// Wait until [`IpcRegion::reduced`] has been called for the reduction under way, and call again. Nothing has changed.
    Wait {
        /// The space.
        space: usize,
        /// The page.
        page: usize,
    },
    /// Copy the page to the new page `copy`, which only this space owns, and map `copy` for writing. Then, if `reduce` is
    /// not `None`, start to reduce the mapping of the old page, as for [`Reduce`](Self::Reduce).
    Copy {
        /// The space.
        space: usize,
        /// The page.
        page: usize,
        /// The new page.
        copy: usize,
        /// The access that the space's mapping of the old page keeps; `None` if the mapping need not be reduced.
        reduce: Option<Access>,
    },
}

/// The error of a call that the ownerships do not allow. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpcError {
    /// There is no such page or space.
    OutOfRange,
    /// No page is free.
    NoPage,
    /// The space does not own the page.
    NotOwner,
    /// The access exceeds what the ownerships allow.
    Denied,
    /// No reduction of this mapping is under way.
    NotReducing,
    /// The space would have more ownerships of the page than 16 bits can count.
    TooMany,
}

impl fmt::Display for IpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OutOfRange => "there is no such page or space",
            Self::NoPage => "no IPC page is free",
            Self::NotOwner => "the space does not own the page",
            Self::Denied => "the ownerships do not give this access",
            Self::NotReducing => "no reduction of this mapping is under way",
            Self::TooMany => "the page has too many ownerships",
        })
    }
}

impl core::error::Error for IpcError {}

/// The state of one page in one space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seat {
    /// The number of ownerships.
    owned: u16,
    /// The access that the low map allows.
    low: Access,
    /// The access to which the low map is being reduced, if a reduction is under way.
    reducing: Option<Access>,
    /// If the low map may allow more than the ownerships: the space that trusts this space not to use the excess.
    trusted_by: Option<u16>,
}

/// A region of `PAGES` IPC pages, shared by up to `SPACES` address spaces. `SPACES` is at most 65,536.
///
/// ```compile_fail,E0080
/// use tlbkit_dash::ipc::IpcRegion;
///
/// const REGION: IpcRegion<1, 65_537> = IpcRegion::new();
/// ```
#[derive(Clone, Debug)]
pub struct IpcRegion<const PAGES: usize, const SPACES: usize> {
    seats: [[Seat; SPACES]; PAGES],
}

impl<const PAGES: usize, const SPACES: usize> Default for IpcRegion<PAGES, SPACES> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const PAGES: usize, const SPACES: usize> IpcRegion<PAGES, SPACES> {
    /// Returns a region in which no space owns a page.
    pub const fn new() -> Self {
        const { assert!(SPACES <= 1 << 16, "a seat has room for every space's number") };
        let seat = Seat { owned: 0, low: Access::None, reducing: None, trusted_by: None };
        Self { seats: [[seat; SPACES]; PAGES] }
    }

    fn seat(&mut self, space: usize, page: usize) -> Result<&mut Seat, IpcError> {
        self.seats.get_mut(page).and_then(|seats| seats.get_mut(space)).ok_or(IpcError::OutOfRange)
    }

    fn owner(&mut self, space: usize, page: usize) -> Result<&mut Seat, IpcError> {
        let seat = self.seat(space, page)?;
        if seat.owned == 0 { Err(IpcError::NotOwner) } else { Ok(seat) }
    }

    /// Returns the number of ownerships of a page in all spaces.
    pub fn ownerships(&self, page: usize) -> usize {
        self.seats.get(page).map_or(0, |seats| seats.iter().map(|seat| usize::from(seat.owned)).sum())
    }

    /// Returns the access that the high map allows.
    pub fn high(&self, space: usize, page: usize) -> Access {
        match self.seats.get(page).and_then(|seats| seats.get(space)) {
            Some(seat) if seat.owned == 0 => Access::None,
            Some(_) if self.ownerships(page) == 1 => Access::Write,
            Some(_) => Access::Read,
            None => Access::None,
        }
    }

    /// Returns the access that the low map allows.
    pub fn low(&self, space: usize, page: usize) -> Access {
        self.seats.get(page).and_then(|seats| seats.get(space)).map_or(Access::None, |seat| seat.low)
    }

    /// Handles a low mapping that allows more than the high map: starts a reduction, or marks the mapping as stale if
    /// `trusted_by` names a space that trusts it.
    fn follow(&mut self, space: usize, page: usize, trusted_by: Option<u16>) -> Result<LowAction, IpcError> {
        let access = self.high(space, page);
        let seat = self.seat(space, page)?;
        if seat.low <= access {
            return Ok(LowAction::Nothing);
        }
        seat.trusted_by = trusted_by;
        // If a reduction is under way, `reduced` checks at its end whether the mapping still allows too much.
        if trusted_by.is_some() || seat.reducing.is_some() {
            return Ok(LowAction::Nothing);
        }
        seat.reducing = Some(access);
        Ok(LowAction::Reduce { space, page, access })
    }

    /// Returns another space whose mapping of the page allows more than that space owns, and which `space` does not trust.
    fn untrusted(&self, space: usize, page: usize) -> Option<usize> {
        let seats = self.seats.get(page)?.iter().enumerate();
        let trusts = |seat: &Seat| seat.reducing.is_none() && seat.trusted_by == Some(space as u16);
        let mut others = seats.filter(|&(of, seat)| of != space && !trusts(seat)).map(|(of, _)| of);
        others.find(|&of| self.low(of, page) > self.high(of, page))
    }

    /// `get_ownership(vas, virt_addr p)`: gives a new page to a space.
    ///
    /// # Errors
    ///
    /// [`IpcError::NoPage`] if no page is free; a page is free if no space owns or maps it. [`IpcError::OutOfRange`].
    pub fn get_ownership(&mut self, space: usize) -> Result<usize, IpcError> {
        let is_idle = |seat: &Seat| seat.owned == 0 && seat.low == Access::None && seat.reducing.is_none();
        let free = |(_, seats): &(usize, &mut [Seat; SPACES])| seats.iter().all(is_idle);
        let (page, seats) = self.seats.iter_mut().enumerate().find(free).ok_or(IpcError::NoPage)?;
        let mut new = [Seat::default(); SPACES];
        new.get_mut(space).ok_or(IpcError::OutOfRange)?.owned = 1;
        // This also removes the marks of trust from the page's former use.
        *seats = new;
        Ok(page)
    }

    /// `release_ownership(vas, virt_addr)`: gives up one ownership. A page that no space owns is free when no space maps it.
    ///
    /// # Errors
    ///
    /// [`IpcError::NotOwner`], [`IpcError::OutOfRange`].
    pub fn release_ownership(&mut self, space: usize, page: usize) -> Result<LowAction, IpcError> {
        self.owner(space, page)?.owned -= 1;
        self.follow(space, page, None)
    }

    /// Returns a space whose mapping of the page is marked as stale. A page that no space owns becomes free only after
    /// [`finish_transfer`](Self::finish_transfer) has been called for each such space.
    pub fn stale_in(&self, page: usize) -> Option<usize> {
        // A mapping that was marked as stale is correct again if the other owners have released the page.
        let exceeds = |space| self.low(space, page) > self.high(space, page);
        let seats = self.seats.get(page)?.iter().enumerate();
        seats
            .filter(|(_, seat)| seat.trusted_by.is_some() && seat.reducing.is_none())
            .map(|(space, _)| space)
            .find(|&space| exceeds(space))
    }

    /// Returns a space whose mapping of the page allows more than the space owns: it is marked as stale, or a reduction is
    /// under way. A caller that calls [`finish_transfer`](Self::finish_transfer) for each such space until there is none is
    /// safe from all of them.
    pub fn unfinished_in(&self, page: usize) -> Option<usize> {
        (0..SPACES).find(|&space| self.low(space, page) > self.high(space, page))
    }

    /// `start_transfer(source_vas, dest_vas, virt_addr, ownership_only_fg)`: moves one ownership. With `ownership_only` the
    /// source's mapping does not change: the receiver trusts the source, and the spaces that the source has trusted.
    ///
    /// # Errors
    ///
    /// [`IpcError::NotOwner`], [`IpcError::TooMany`], [`IpcError::OutOfRange`].
    pub fn start_transfer(
        &mut self,
        from: usize,
        to: usize,
        page: usize,
        ownership_only: bool,
    ) -> Result<LowAction, IpcError> {
        self.owner(from, page)?;
        let receiver = self.seat(to, page)?;
        receiver.owned = receiver.owned.checked_add(1).ok_or(IpcError::TooMany)?;
        self.seat(from, page)?.owned -= 1;
        let trusted_by = ownership_only.then_some(to as u16);
        if ownership_only && let Some(seats) = self.seats.get_mut(page) {
            let passed_on = seats.iter_mut().filter(|seat| seat.trusted_by == Some(from as u16));
            passed_on.for_each(|seat| seat.trusted_by = trusted_by);
        }
        self.follow(from, page, trusted_by)
    }

    /// `finish_transfer(source_vas, virt_addr)`: reduces the source's mapping to what the source owns. The caller repeats
    /// the call after a [`LowAction::Wait`], and after [`reduced`](Self::reduced) has been called for a
    /// [`LowAction::Reduce`].
    ///
    /// # Errors
    ///
    /// [`IpcError::OutOfRange`].
    pub fn finish_transfer(&mut self, from: usize, page: usize) -> Result<LowAction, IpcError> {
        if self.seat(from, page)?.reducing.is_some() {
            return Ok(LowAction::Wait { space: from, page });
        }
        self.follow(from, page, None)
    }

    /// Records that the kernel has reduced a mapping, and that every TLB is consistent with it. Returns a further reduction
    /// if the space has lost ownerships since the reduction began, and no other space trusts this one not to use the excess.
    ///
    /// # Errors
    ///
    /// [`IpcError::NotReducing`]; [`IpcError::OutOfRange`].
    pub fn reduced(&mut self, space: usize, page: usize) -> Result<LowAction, IpcError> {
        let seat = self.seat(space, page)?;
        seat.low = seat.reducing.take().ok_or(IpcError::NotReducing)?;
        let trusted_by = seat.trusted_by;
        self.follow(space, page, trusted_by)
    }

    /// `duplicate(vas, virt_addr, flags)`: adds one ownership; a page that was writable is read-only from now on. With
    /// `ownership_only` the mapping does not change: the space that gets the ownership next trusts this one.
    ///
    /// # Errors
    ///
    /// As [`start_transfer`](Self::start_transfer).
    pub fn duplicate(
        &mut self,
        space: usize,
        page: usize,
        ownership_only: bool,
    ) -> Result<LowAction, IpcError> {
        let seat = self.owner(space, page)?;
        seat.owned = seat.owned.checked_add(1).ok_or(IpcError::TooMany)?;
        self.follow(space, page, ownership_only.then_some(space as u16))
    }

    /// `make_writable(vas, virt_addr, new_addr p)`: makes a page writable. If the page has one ownership, the call has the
    /// effect of [`mapin`](Self::mapin) for writing. Otherwise the space gets a copy of the page instead of its ownership,
    /// and its mapping of the old page is reduced. The call is explicit, unlike copy on write: no space relies on a fault
    /// (5.3.5).
    ///
    /// # Errors
    ///
    /// [`IpcError::NotOwner`], [`IpcError::NoPage`], [`IpcError::OutOfRange`].
    pub fn make_writable(&mut self, space: usize, page: usize) -> Result<LowAction, IpcError> {
        self.owner(space, page)?;
        if self.ownerships(page) == 1 {
            return self.mapin(space, page, Access::Write);
        }
        let copy = self.get_ownership(space)?;
        self.seat(space, copy)?.low = Access::Write;
        let seat = self.seat(space, page)?;
        seat.owned -= 1;
        // If the space has another ownership of the page, its rights do not change.
        let rest = if seat.owned > 0 { LowAction::Nothing } else { self.follow(space, page, None)? };
        let reduce = if let LowAction::Reduce { access, .. } = rest { Some(access) } else { None };
        Ok(LowAction::Copy { space, page, copy, reduce })
    }

    /// `mapin(vas, virt_addr, access)`: maps the page for an access that the high map allows. The fault handler calls it, or
    /// a receiver before its first access.
    ///
    /// For writing, no mapping of another space may allow more than that space owns, unless this space trusts it. Otherwise
    /// the result is [`LowAction::Reduce`] or [`LowAction::Wait`] for the other space, and the caller repeats the call when
    /// that reduction is done. The result is also [`LowAction::Wait`] while this space's own mapping is being reduced.
    ///
    /// # Errors
    ///
    /// [`IpcError::Denied`], [`IpcError::OutOfRange`].
    pub fn mapin(&mut self, space: usize, page: usize, access: Access) -> Result<LowAction, IpcError> {
        if access > self.high(space, page) {
            return Err(IpcError::Denied);
        }
        if self.seat(space, page)?.reducing.is_some() {
            return Ok(LowAction::Wait { space, page });
        }
        if access == Access::Write
            && let Some(other) = self.untrusted(space, page)
        {
            return self.finish_transfer(other, page);
        }
        let seat = self.seat(space, page)?;
        if seat.low >= access {
            return Ok(LowAction::Nothing);
        }
        seat.low = access;
        Ok(LowAction::Map { space, page, access })
    }

    /// Tells whether the invariant of this module holds.
    pub fn check(&self) -> bool {
        (0..PAGES).all(|page| {
            (0..SPACES).all(|space| {
                let high = self.high(space, page);
                let seat =
                    self.seats.get(page).and_then(|seats| seats.get(space)).copied().unwrap_or_default();
                // A reduction that leaves too much is followed by another, so it does not matter to which access it reduces.
                seat.low <= high || seat.trusted_by.is_some() || seat.reducing.is_some()
            })
        })
    }
}

/// The options of a sender (5.3.4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Send {
    /// Whether sender and receiver both keep read access to the page.
    pub duplicate: bool,
    /// Whether the sender expects that the receiver trusts it.
    pub trust_hint: bool,
}

/// The options of a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Receive {
    /// Whether the receiver trusts the sender not to use stale translations.
    pub trust: bool,
    /// The access with which the receiver will use the data at once.
    pub immediate_use: Access,
}

/// An operation on the region for the page of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageStep {
    /// [`IpcRegion::duplicate`] in the sender's space.
    Duplicate {
        /// Whether the low map stays unchanged.
        ownership_only: bool,
    },
    /// [`IpcRegion::start_transfer`].
    StartTransfer {
        /// Whether the low map stays unchanged.
        ownership_only: bool,
    },
    /// [`IpcRegion::finish_transfer`] for each space that [`IpcRegion::unfinished_in`] returns, until it returns none: the
    /// sender, and earlier senders that another space has trusted.
    FinishTransfer,
    /// [`IpcRegion::mapin`] in the receiver's space, repeated after each [`LowAction::Reduce`] or [`LowAction::Wait`] that
    /// it returns. If other spaces also own the page, as after a duplicate, `mapin` for writing returns
    /// [`IpcError::Denied`]; then the caller maps nothing.
    Mapin(Access),
}

/// The state of a message, which may be sent first or asked for first (5.3.4.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Passing {
    sent: Option<Send>,
    received: Option<Receive>,
    at: u8,
}

impl Passing {
    /// Returns the state of a message that has been neither sent nor asked for.
    pub const fn new() -> Self {
        Self { sent: None, received: None, at: 0 }
    }

    /// Records the send. The low map stays unchanged if the receiver already waits and trusts the sender or, if no receiver
    /// waits, if the sender gives its hint. Returns whether the send was accepted: a message is sent once.
    pub fn send(&mut self, send: Send) -> bool {
        self.sent.is_none() && {
            // The decision is kept: a receive that comes later cannot change the effect of `start_transfer`.
            let trust = self.received.map_or(send.trust_hint, |receive| receive.trust);
            self.sent = Some(Send { trust_hint: trust, ..send });
            true
        }
    }

    /// Records the receive. Returns whether it was accepted: a message is received once.
    pub fn receive(&mut self, receive: Receive) -> bool {
        self.received.is_none() && {
            self.received = Some(receive);
            true
        }
    }

    /// Returns the next step that is possible now, and counts it as done. The caller must carry it out before any CPU calls
    /// this again, for instance under the lock of the region. Otherwise a receiver could rely on steps of the send that are
    /// not done yet.
    pub fn step(&mut self) -> Option<MessageStep> {
        loop {
            let send = self.sent?;
            // The steps of the send need no receiver. The steps of the receive come after those of the send.
            let receive = if self.at >= 2 { self.received? } else { Receive::default() };
            self.at += 1;
            return Some(match self.at {
                1 if send.duplicate => MessageStep::Duplicate { ownership_only: send.trust_hint },
                2 => MessageStep::StartTransfer { ownership_only: send.trust_hint },
                3 if !receive.trust => MessageStep::FinishTransfer,
                4 if receive.immediate_use > Access::None => MessageStep::Mapin(receive.immediate_use),
                1 | 3 | 4 => continue,
                _ => {
                    self.at = 4;
                    return None;
                }
            });
        }
    }

    /// Tells whether the receive operation may return.
    pub const fn is_received(&self) -> bool {
        self.at >= 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The states of this test are not reachable by calls.
    #[test]
    fn check_finds_a_mapping_that_allows_too_much() {
        let check = |seat| IpcRegion { seats: [[Seat { owned: 1, ..Seat::default() }, seat]] }.check();
        let seat = Seat { owned: 1, low: Access::Read, ..Seat::default() };
        assert!(check(seat), "two own it and may read");
        let seat = Seat { low: Access::Write, ..seat };
        assert!(!check(seat));
        assert!(check(Seat { trusted_by: Some(0), ..seat }), "it is known");
        assert!(check(Seat { reducing: Some(Access::Read), ..seat }), "it will not for long");
    }
}
