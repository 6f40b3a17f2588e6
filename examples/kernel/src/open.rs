//! The open pages of a process: its threads map, use, protect and unmap them beside each other. No lock of the process's is held, as it is
//! for the [window](crate::window): the kernel calls the address space at once, which decides what waits for what.
//!
//! ```text
//!   state      a fault there
//!   FREE       is refused
//!   READ       maps a page of zeros to read
//!   WRITE      maps a page of zeros
//!   CHANGING   is refused: a call brings the page, or takes it away
//! ```
//!
//! A call stores the state before it changes the page. A fault looks at the state again when it has the right to change the page: so either
//! it finds what the call has stored, or the call finds what the fault has mapped.

use core::sync::atomic::{AtomicU8, Ordering};

use tlbkit::{Access, Attr, Change, Error, Fault, PageSize, Pages, Pfn, VirtAddr};

use crate::memory::{Space, give_back};
use crate::report::{Count, REPORT};
use crate::window::Refused;
use crate::{frames, witness};

/// Where the pages begin, and how many there are: they are in two nodes.
const OPEN: usize = (1 << 30) + (16 << 20) - PAGES / 2 * 4096;
const PAGES: usize = 128;

const FREE: u8 = 0;
const READ: u8 = 1;
const WRITE: u8 = 2;
const CHANGING: u8 = 3;

/// The states of the open pages.
pub(crate) struct Open([AtomicU8; PAGES]);

/// Open pages that are next to each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenRange {
    first: usize,
    len: usize,
}

impl OpenRange {
    /// Returns `len` pages from the page at `at` on, if they are open pages.
    pub(crate) fn new(at: usize, len: usize) -> Result<Self, Refused> {
        let first = at.checked_sub(OPEN).ok_or(Refused::Wrong)? >> PageSize::K4.shift();
        let fits = (1..=PAGES).contains(&len) && first <= PAGES - len;
        if fits { Ok(Self { first, len }) } else { Err(Refused::Wrong) }
    }

    fn pages(self) -> Pages {
        let page = |index: usize| VirtAddr::new(OPEN + (index << PageSize::K4.shift())).vpn(PageSize::K4);
        let first = page(self.first);
        Pages::new(first, page(self.first + self.len - 1)).unwrap_or(Pages::one(first))
    }
}

/// Returns what a page of a state allows.
fn attr(state: u8) -> Option<Attr> {
    let read = Attr::READ | Attr::USER;
    match state {
        READ => Some(read),
        WRITE => Some(read | Attr::WRITE),
        _ => None,
    }
}

fn take() -> Result<Pfn, Error> {
    frames::take().ok_or(Error::NoMemory { wanted: 1, pending: 0 })
}

impl Open {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicU8::new(FREE) }; PAGES])
    }

    fn of(&self, range: OpenRange) -> &[AtomicU8] {
        &self.0[range.first..range.first + range.len]
    }

    fn set(&self, range: OpenRange, state: u8) {
        self.of(range).iter().for_each(|page| page.store(state, Ordering::Release));
    }

    /// Tells whether a call has brought all of these pages.
    fn are_there(&self, range: OpenRange) -> Result<(), Refused> {
        let is_there = |page: &AtomicU8| attr(page.load(Ordering::Acquire)).is_some();
        if self.of(range).iter().all(is_there) { Ok(()) } else { Err(Refused::Wrong) }
    }

    /// Makes all of them free.
    pub(crate) fn clear(&self) {
        self.set(OpenRange { first: 0, len: PAGES }, FREE);
    }

    /// Tells whether a page is in use.
    pub(crate) fn in_use(&self) -> bool {
        self.0.iter().any(|page| page.load(Ordering::Acquire) != FREE)
    }

    /// Reserves pages, which are full of zeros when they are first used, or maps them at once.
    pub(crate) fn reserve(&self, space: &Space, range: OpenRange, at_once: bool) -> Result<(), Refused> {
        let take_page = |page: &AtomicU8| {
            page.compare_exchange(FREE, CHANGING, Ordering::AcqRel, Ordering::Relaxed).is_err()
        };
        if let Some(used) = self.of(range).iter().position(take_page) {
            self.of(range)[..used].iter().for_each(|page| page.store(FREE, Ordering::Release));
            return Err(Refused::Wrong);
        }
        if !at_once && let Err(why) = space.flush_deferred(range.pages()) {
            self.set(range, FREE);
            return Err(why.into());
        }
        let mapped = match attr(WRITE) {
            Some(attr) if at_once => space.map_with(range.pages(), attr, |_| take()),
            _ => Ok(()),
        };
        self.set(range, if mapped.is_ok() { WRITE } else { FREE });
        Ok(mapped?)
    }

    /// Gives pages back.
    pub(crate) fn unmap(&self, space: &Space, range: OpenRange) -> Result<(), Refused> {
        self.are_there(range)?;
        self.set(range, CHANGING);
        give_back(space, range.pages())?;
        self.set(range, FREE);
        Ok(())
    }

    /// Gives or takes the right to write.
    pub(crate) fn protect(&self, space: &Space, range: OpenRange, write: bool) -> Result<(), Refused> {
        self.are_there(range)?;
        let (state, change) =
            if write { (WRITE, Change::set(Attr::WRITE)) } else { (READ, Change::clear(Attr::WRITE)) };
        self.set(range, state);
        witness::lowering(range.pages(), || space.protect(range.pages(), change))?;
        Ok(())
    }

    /// Resolves a fault on an open page.
    pub(crate) fn fault(
        &self,
        space: &Space,
        range: OpenRange,
        at: VirtAddr,
        access: Access,
    ) -> Result<(), Refused> {
        let (state, page) = (&self.0[range.first], range.pages());
        let before = state.load(Ordering::Acquire);
        let allowed = |state| attr(state).filter(|&attr| access.allowed(attr));
        match space.fault(at, access)? {
            Fault::Retry => Ok(()),
            Fault::NotMapped => {
                let attr = allowed(before).ok_or(Refused::Wrong)?;
                let mut frame = Some(take()?);
                let mapped = space.map_with(page, attr, |at| {
                    let is_same = state.load(Ordering::Acquire) == before;
                    frame.take_if(|_| is_same).ok_or(Error::NotMapped { at })
                });
                if let Some(frame) = frame {
                    frames::release(frame, false);
                }
                match mapped {
                    Ok(()) => {
                        [Count::Operations, Count::Beside].into_iter().for_each(|count| REPORT.add(count, 1))
                    }
                    // Another thread was faster. The access is repeated.
                    Err(Error::Occupied { .. } | Error::NotMapped { .. }) => REPORT.add(Count::CameTwice, 1),
                    Err(why) => return Err(why.into()),
                }
                Ok(())
            }
            Fault::NoRight(_) => {
                allowed(before).ok_or(Refused::Wrong)?;
                // Another CPU is about to give the right.
                space.edit_in(page, |edit| match allowed(state.load(Ordering::Acquire)) {
                    Some(_) => edit.protect(page, Change::set(Attr::WRITE)).map(drop),
                    None => Ok(()),
                })?;
                Ok(())
            }
            _ => Err(Refused::Wrong),
        }
    }
}
