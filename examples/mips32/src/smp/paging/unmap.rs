//! The operation of an unmapping in one of the spaces: each hook is a call of `Dash`.

use core::sync::atomic::Ordering;

use tlbkit_addr::{Asid, Flush, PageSize};
use tlbkit_dash::unmapping::{DashError, Ticket, Unmapping};
use tlbkit_pagetable::format::{EntryLo, Format};
use tlbkit_shootdown::{Edit, LowRights, SharedSpace};

use super::spaces::asid;
use super::vm::{Ended, Interface};
use super::{Paging, Tentative, wrong};
use crate::smp::masked::Masked;
use crate::smp::run::CHANGING;

/// The operation.
pub(super) struct Unmap {
    pub(super) run: &'static Paging,
    pub(super) space: usize,
    /// The page.
    pub(super) page: usize,
    pub(super) unmapping: Unmapping,
}

impl Unmap {
    /// Calls `Dash`, which knows the ticket while the operation is in flight; if it does not, the answer is `otherwise`.
    fn dash<T>(
        &self,
        otherwise: T,
        call: impl FnOnce(&mut Interface, Ticket, Asid) -> Result<T, DashError>,
    ) -> T {
        // SAFETY: an operation runs with interrupts off, except where it sleeps.
        let masked = unsafe { Masked::assume() };
        let (ticket, space) = (self.unmapping.ticket, asid(self.space));
        self.run.vm.with(&masked, |vm| call(&mut vm.dash, ticket, space)).unwrap_or_else(|why| {
            wrong(format_args!("{ticket:?} in space {}: {why}", self.space));
            otherwise
        })
    }

    fn tentative(&self) -> &Tentative {
        &self.run.tentative[self.space][self.page]
    }
}

impl Edit for Unmap {
    type Payload = Ended;

    fn exclude(&mut self) -> bool {
        self.dash(true, Interface::exclude)
    }

    fn release(&mut self) {
        self.dash((), Interface::release);
    }

    fn set_tentative(&mut self) {
        let entry = self.dash(None, Interface::tentative);
        let word = entry.and_then(|entry| EntryLo::leaf(entry.frame, PageSize::K4, entry.attr, true).ok());
        self.tentative().entry.store(word.unwrap_or(0), Ordering::SeqCst);
    }

    fn set_changing(&mut self, on: bool) {
        self.tentative().changing.store(on, Ordering::SeqCst);
        if on {
            CHANGING.fetch_add(1, Ordering::SeqCst);
        } else {
            CHANGING.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn update(&mut self) -> Ended {
        self.dash((), Interface::update);
        Ended { ticket: self.unmapping.ticket, space: self.space }
    }

    fn update_again(&mut self, _payload: &mut Ended) {
        self.dash((), Interface::update);
    }

    fn check(&mut self) -> bool {
        self.dash(true, Interface::is_lowered)
    }

    fn low_rights(&self) -> LowRights {
        self.unmapping.low_rights
    }

    fn is_walked(&self, _payload: &Ended) -> bool {
        false
    }

    fn space(&self) -> &SharedSpace {
        &self.run.spaces[self.space]
    }

    fn asid(&self) -> Asid {
        asid(self.space)
    }

    fn flush(&self) -> &Flush {
        &self.unmapping.flush
    }
}
