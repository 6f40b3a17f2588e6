//! The operation of an unmapping in one of the spaces: each hook is a call of `Dash`.

use core::sync::atomic::Ordering;

use tlbkit::pagetable::format::{EntryLo, Format};
use tlbkit::shootdown::{Edit, LowRights, OpId, SharedSpace};
use tlbkit::{Asid, PageSize, addr::Flush};
use tlbkit_dash::unmapping::{DashError, Ticket, Unmapping};

use super::spaces::{Nodes, asid, join};
use super::vm::Interface;
use super::{CHANGING, Run, Tentative, wrong};

/// The operation.
pub(super) struct Unmap {
    pub(super) run: &'static Run,
    pub(super) space: usize,
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
        let (ticket, space) = (self.unmapping.ticket, asid(self.space));
        call(&mut self.run.vm.lock().dash, ticket, space).unwrap_or_else(|why| {
            wrong(format_args!("{ticket:?} in space {}: {why}", self.space));
            otherwise
        })
    }

    fn tentative(&self) -> &Tentative {
        &self.run.tentative[self.space][self.page]
    }
}

impl Edit for Unmap {
    type Payload = Nodes;

    fn begin(&mut self, op: OpId) {
        if self.run.vm.lock().flights.push((op, self.unmapping.ticket, self.space)).is_err() {
            wrong(format_args!("too many operations are in flight"));
        }
    }

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

    fn update(&mut self) -> Nodes {
        self.dash((), Interface::update);
        self.run.vm.lock().dash.tables().retired(self.space)
    }

    fn update_again(&mut self, nodes: &mut Nodes) {
        self.dash((), Interface::update);
        join(nodes, self.run.vm.lock().dash.tables().retired(self.space));
    }

    fn check(&mut self) -> bool {
        self.dash(true, Interface::is_lowered)
    }

    fn low_rights(&self) -> LowRights {
        self.unmapping.low_rights
    }

    fn is_walked(&self, nodes: &Nodes) -> bool {
        nodes.is_some()
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
