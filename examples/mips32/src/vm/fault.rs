//! What is done about an access that the TLB refuses: a page fault.
//!
//! ```text
//!   the table has   load             store
//!   nothing         map on demand    map on demand      or refuse: no region, no frame, no node
//!   a clean page    spurious         mark it dirty      MIPS has no dirty bit: D is a write enable, so the kernel
//!   a dirty page    spurious         spurious           sets it at the first store, through the table's one writer
//!   a read-only one spurious         refuse
//! ```
//!
//! Spurious: the table allows it by now, and what the TLB has is older. Forget that and try again.

use core::fmt;

use tlbkit_addr::{Attr, PageSize, Pages, VirtAddr};
use tlbkit_pagetable::{Change, Error, Holes};
use tlbkit_stlb::Invalidate;

use super::frames;
use super::machine::Machine;
use super::space::{PLAIN, Space};
use super::structure::Structure;
use crate::arch::frame::Exception;
use crate::arch::touch::Fault;

/// Why an access was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is nothing, and nothing may be mapped there.
    NoRegion,
    /// A store to a page that may not be written.
    Protection,
    /// There is no frame for the page.
    NoFrame,
    /// There is no node for the table.
    NoNode(Error),
    /// The exception was no fault of a page.
    NoFault(Exception),
    /// The hardware, or the refill handler, names another address than the one that was used.
    Elsewhere(u32),
    /// It faults however often it is resolved.
    Again,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRegion => f.write_str("nothing is mapped there, and nothing may be"),
            Self::Protection => f.write_str("the page may not be written"),
            Self::NoFrame => f.write_str("there is no free frame"),
            Self::NoNode(error) => write!(f, "the page table: {error}"),
            Self::NoFault(exception) => write!(f, "{exception:?}"),
            Self::Again => f.write_str("it faults again and again"),
            Self::Elsewhere(at) => write!(f, "the fault is said to be at {at:#x}"),
        }
    }
}

impl<S: Structure> Machine<S> {
    /// Makes an access possible that faulted, so that it can be tried again.
    ///
    /// # Errors
    ///
    /// [`Refusal`], if it is not to be.
    pub fn resolve(&mut self, space: &mut Space<'_, S>, fault: Fault) -> Result<(), Refusal> {
        let done = self.try_resolve(space, fault);
        self.tally.refused += u32::from(done.is_err());
        done
    }

    fn try_resolve(&mut self, space: &mut Space<'_, S>, fault: Fault) -> Result<(), Refusal> {
        let at = VirtAddr::new(fault.at as usize);
        let page = Pages::one(at.vpn(PageSize::K4));
        let is_store = match fault.why {
            Exception::Load => false,
            Exception::Store | Exception::Modified => true,
            other => return Err(Refusal::NoFault(other)),
        };
        match space.lookup(at).map(|leaf| leaf.attr) {
            None => self.map_on_demand(space, page),
            Some(attr) if is_store && !attr.contains(Attr::WRITE) => Err(Refusal::Protection),
            Some(attr) if is_store && !attr.contains(Attr::DIRTY) => {
                self.tally.dirtied += 1;
                let marked = self.protect(space, page, Holes::Refuse, Change::set(Attr::DIRTY));
                marked.map(drop).map_err(Refusal::NoNode)?;
                // Whatever the kernel does about weaker translations elsewhere, this one is in its way.
                self.forget_one(space, page);
                Ok(())
            }
            Some(_) => {
                self.tally.spurious += 1;
                self.forget_one(space, page);
                Ok(())
            }
        }
    }

    fn forget_one(&mut self, space: &Space<'_, S>, page: Pages) {
        if let Some(number) = space.number {
            self.hardware.invalidate_pages(number, page);
        }
    }

    fn map_on_demand(&mut self, space: &mut Space<'_, S>, page: Pages) -> Result<(), Refusal> {
        let region = space.region(page.first()).ok_or(Refusal::NoRegion)?;
        let frame = self.frames.take().ok_or(Refusal::NoFrame)?;
        // A page begins with what its address space expects there.
        // SAFETY: the frame was just taken.
        unsafe { frames::word(frame).write_volatile(space.content(page.first())) };
        let write = if region.write { Attr::WRITE } else { Attr::empty() };
        if let Err(error) = self.map(space, page, frame, PLAIN | write) {
            // SAFETY: the map failed, so no table has the frame, and no TLB.
            unsafe { self.frames.give(frame) };
            return Err(Refusal::NoNode(error));
        }
        // The TLB may hold the pair with this page missing.
        self.forget_one(space, page);
        self.tally.mapped += 1;
        Ok(())
    }
}
