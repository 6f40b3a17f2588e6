//! Table 5.3's IPC region: pages that move between address spaces by ownership, mapped only when they are used.
//!
//! Two maps. The *high* one says which spaces own a page, and how often: one ownership in all means read and write,
//! more mean read. The *low* one is the page table, which follows lazily: it may allow less (safe: the fault maps it
//! in), and for a while, or among spaces that trust each other, more.
//!
//! ```text
//!   send                     start_transfer --------> ownership moves; the sender's mapping is being removed
//!                              ownership only ------> ownership moves; the sender's mapping stays, and is stale
//!   receive, no trust        finish_transfer -------> called wherever unfinished_in says: no other mapping
//!                                                     allows anything any more
//!   receive, immediate use   mapin -----------------> the receiver's mapping is there before it faults
//! ```
//!
//! Invariant ([`IpcRegion::check`]): a low mapping that allows more than the high one is being removed, or is known
//! as stale by the trust of one space; and [`IpcRegion::finish_transfer`] leaves none in the space it is called for. The
//! sender's is not the only one: a receiver that has trusted an earlier sender has left the sender's mapping as it was, and
//! passed it on with the page.
//!
//! No call waits. What a call leaves to be finished is in its [`LowAction`], and a reduction under way holds up neither
//! the next send of the page nor a duplicate of it (5.3.4.6): ownerships move meanwhile, and [`IpcRegion::reduced`] says
//! whether more is to be reduced. Two calls want it finished: a receive that does not trust, and [`IpcRegion::mapin`] for
//! writing. A space becomes the only owner when the others release the page or take copies of it, and may then write to it
//! in place. It has not been asked whether it trusts the others, so their mappings go first (guarantee 2 of 5.3.4.5: no
//! other space reads beyond what it had already read).

use core::fmt;

/// Rights of a space to an IPC page.
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

/// What the kernel has to do to the low map before it goes on, or in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "the region counts on it"]
pub enum LowAction {
    /// Nothing.
    Nothing,
    /// Map the page for this access. Raising rights is safe: no flush.
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
        /// What may stay.
        access: Access,
    },
    /// Wait until the reduction that is under way has been told by [`IpcRegion::reduced`], and call again: nothing has
    /// changed.
    Wait {
        /// The space.
        space: usize,
        /// The page.
        page: usize,
    },
    /// Copy the page to the new one, which the space owns alone, and map that for writing. Then start to reduce the mapping
    /// of the old one, if `reduce` says so, as for [`Reduce`](Self::Reduce).
    Copy {
        /// The space.
        space: usize,
        /// The page.
        page: usize,
        /// The copy.
        copy: usize,
        /// What may stay of the space's mapping of the old page.
        reduce: Option<Access>,
    },
}

/// A call that the ownerships do not allow. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpcError {
    /// There is no such page or space.
    OutOfRange,
    /// No page is free.
    NoPage,
    /// The space does not own the page.
    NotOwner,
    /// The access is more than the ownerships give.
    Denied,
    /// No reduction of this mapping is under way.
    NotReducing,
    /// More ownerships than can be counted.
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seat {
    owned: u16,
    /// What the low map allows.
    low: Access,
    /// What it is being reduced to.
    reducing: Option<Access>,
    /// It may allow more than the ownerships do: this space trusts its own not to use that.
    trusted_by: Option<u16>,
}

/// `PAGES` IPC pages in up to `SPACES` address spaces, of which there are 65,536 at the most.
///
/// ```compile_fail,E0080
/// use tlbkit_shootdown::ipc::IpcRegion;
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
    /// Returns a region of which no space owns a page.
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

    /// Returns how many ownerships of a page there are.
    pub fn ownerships(&self, page: usize) -> usize {
        self.seats.get(page).map_or(0, |seats| seats.iter().map(|seat| usize::from(seat.owned)).sum())
    }

    /// Returns what the high map allows.
    pub fn high(&self, space: usize, page: usize) -> Access {
        match self.seats.get(page).and_then(|seats| seats.get(space)) {
            Some(seat) if seat.owned == 0 => Access::None,
            Some(_) if self.ownerships(page) == 1 => Access::Write,
            Some(_) => Access::Read,
            None => Access::None,
        }
    }

    /// Returns what the low map allows.
    pub fn low(&self, space: usize, page: usize) -> Access {
        self.seats.get(page).and_then(|seats| seats.get(space)).map_or(Access::None, |seat| seat.low)
    }

    /// Brings a low mapping down to what the high map allows: by a reduction, or by being known as stale by the trust of
    /// a space.
    fn follow(&mut self, space: usize, page: usize, trusted_by: Option<u16>) -> Result<LowAction, IpcError> {
        let access = self.high(space, page);
        let seat = self.seat(space, page)?;
        if seat.low <= access {
            return Ok(LowAction::Nothing);
        }
        seat.trusted_by = trusted_by;
        // A reduction that is under way goes on; what it leaves too much, `reduced` finds.
        if trusted_by.is_some() || seat.reducing.is_some() {
            return Ok(LowAction::Nothing);
        }
        seat.reducing = Some(access);
        Ok(LowAction::Reduce { space, page, access })
    }

    /// Returns a space whose mapping of the page allows too much, and which `space` does not trust.
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
    /// [`IpcError::NoPage`]: none is free, which means neither owned nor mapped by any space; [`IpcError::OutOfRange`].
    pub fn get_ownership(&mut self, space: usize) -> Result<usize, IpcError> {
        let is_idle = |seat: &Seat| seat.owned == 0 && seat.low == Access::None && seat.reducing.is_none();
        let free = |(_, seats): &(usize, &mut [Seat; SPACES])| seats.iter().all(is_idle);
        let (page, seats) = self.seats.iter_mut().enumerate().find(free).ok_or(IpcError::NoPage)?;
        let mut new = [Seat::default(); SPACES];
        new.get_mut(space).ok_or(IpcError::OutOfRange)?.owned = 1;
        // Trust that was left over ends with what it was about.
        *seats = new;
        Ok(page)
    }

    /// `release_ownership(vas, virt_addr)`. A page that no space owns is free when its mappings are gone.
    ///
    /// # Errors
    ///
    /// [`IpcError::NotOwner`], [`IpcError::OutOfRange`].
    pub fn release_ownership(&mut self, space: usize, page: usize) -> Result<LowAction, IpcError> {
        self.owner(space, page)?.owned -= 1;
        self.follow(space, page, None)
    }

    /// Returns a space whose mapping of the page is known as stale. A page that no space owns is not free before
    /// [`finish_transfer`](Self::finish_transfer) has been called for each.
    pub fn stale_in(&self, page: usize) -> Option<usize> {
        // What had gone stale is good again if the others have given their ownerships up.
        let exceeds = |space| self.low(space, page) > self.high(space, page);
        let seats = self.seats.get(page)?.iter().enumerate();
        seats
            .filter(|(_, seat)| seat.trusted_by.is_some() && seat.reducing.is_none())
            .map(|(space, _)| space)
            .find(|&space| exceeds(space))
    }

    /// Returns a space whose mapping of the page allows more than it owns, as stale or as still being reduced. A caller
    /// that calls [`finish_transfer`](Self::finish_transfer) for one after the other until there is none is safe from
    /// all of them.
    pub fn unfinished_in(&self, page: usize) -> Option<usize> {
        (0..SPACES).find(|&space| self.low(space, page) > self.high(space, page))
    }

    /// `start_transfer(source_vas, dest_vas, virt_addr, ownership_only_fg)`: moves one ownership. With
    /// `ownership_only` the source's mapping is left as it is: the receiver trusts the source, and the spaces that the source
    /// has trusted.
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

    /// `finish_transfer(source_vas, virt_addr)`: after it, the source's mapping allows no more than it owns. Call it
    /// again after a [`LowAction::Wait`], and after a [`LowAction::Reduce`] has been told done.
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

    /// The kernel has reduced a mapping, and every TLB knows. Returns a further reduction, if ownerships have gone meanwhile
    /// that the first one did not know of, and no other space trusts this one not to use the rest.
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

    /// `duplicate(vas, virt_addr, flags)`: one more ownership; if the page was writable it is read-only from now. With
    /// `ownership_only` the mapping is left as it is: the space that gets the ownership next trusts this one.
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

    /// `make_writable(vas, virt_addr, new_addr p)`: the page itself if this is its only ownership, as
    /// [`mapin`](Self::mapin) for writing; otherwise a copy of it, to which this ownership moves, and a reduction of the
    /// mapping of the page that the space gives up. Explicit, unlike copy-on-write: no space relies on a fault (5.3.5).
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
        // A space that owns the page once more may do what it might before.
        let rest = if seat.owned > 0 { LowAction::Nothing } else { self.follow(space, page, None)? };
        let reduce = if let LowAction::Reduce { access, .. } = rest { Some(access) } else { None };
        Ok(LowAction::Copy { space, page, copy, reduce })
    }

    /// `mapin(vas, virt_addr, access)`: maps the page for a use that the high map allows; by the fault handler, or
    /// ahead of it.
    ///
    /// If it is to be written to, no mapping of another space may allow more than that space owns, unless this one trusts it.
    /// Otherwise the answer is [`LowAction::Reduce`] or [`LowAction::Wait`] for the other space, and the call is to be
    /// repeated when that reduction is done. The same holds while this space's own mapping is being reduced.
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

    /// Tells whether the invariants hold: the low map allows more than the high one only where that is known.
    pub fn check(&self) -> bool {
        (0..PAGES).all(|page| {
            (0..SPACES).all(|space| {
                let high = self.high(space, page);
                let seat =
                    self.seats.get(page).and_then(|seats| seats.get(space)).copied().unwrap_or_default();
                // A reduction that stops short is followed by another.
                seat.low <= high || seat.trusted_by.is_some() || seat.reducing.is_some()
            })
        })
    }
}

/// What a sender says of a message (5.3.4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Send {
    /// Sender and receiver both keep a read-only copy.
    pub duplicate: bool,
    /// The sender believes that the receiver trusts it.
    pub trust_hint: bool,
}

/// What a receiver says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Receive {
    /// It trusts the sender not to use stale translations.
    pub trust: bool,
    /// It will use the data at once, in this way.
    pub immediate_use: Access,
}

/// One operation on the region, for a message's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageStep {
    /// [`IpcRegion::duplicate`] in the sender's space.
    Duplicate {
        /// Leave the low map.
        ownership_only: bool,
    },
    /// [`IpcRegion::start_transfer`].
    StartTransfer {
        /// Leave the low map.
        ownership_only: bool,
    },
    /// [`IpcRegion::finish_transfer`], in each space that [`IpcRegion::unfinished_in`] names, until it names none: the
    /// sender's, and those of earlier senders that another space has trusted.
    FinishTransfer,
    /// [`IpcRegion::mapin`] in the receiver's space, again after each [`LowAction::Reduce`] or [`LowAction::Wait`] that it
    /// answers. Of a page that others own, too, such as a duplicate, writing is [`IpcError::Denied`]: then there is nothing to
    /// be mapped ahead.
    Mapin(Access),
}

/// The passing of a message, send first or receive first (5.3.4.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Passing {
    sent: Option<Send>,
    received: Option<Receive>,
    at: u8,
}

impl Passing {
    /// Returns a message that has been neither sent nor asked for.
    pub const fn new() -> Self {
        Self { sent: None, received: None, at: 0 }
    }

    /// The sender sends. Whether the low map is left alone is the receiver's trust if it waits already, and the
    /// sender's hint otherwise. Tells whether that was accepted: a message is sent once.
    pub fn send(&mut self, send: Send) -> bool {
        self.sent.is_none() && {
            // What was decided stays: a receive that comes later cannot change what start_transfer did.
            let trust = self.received.map_or(send.trust_hint, |receive| receive.trust);
            self.sent = Some(Send { trust_hint: trust, ..send });
            true
        }
    }

    /// The receiver asks. Tells whether that was accepted.
    pub fn receive(&mut self, receive: Receive) -> bool {
        self.received.is_none() && {
            self.received = Some(receive);
            true
        }
    }

    /// Returns the next step that can be taken now, and takes it. The caller carries it out before any CPU takes
    /// another one: the lock of the region also guards its messages, or a receiver finds steps of the send that were
    /// taken and are not done yet.
    pub fn step(&mut self) -> Option<MessageStep> {
        loop {
            let send = self.sent?;
            // A send's steps need no receiver; a receive's wait for the send's.
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

    /// No sequence of calls leads there.
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
