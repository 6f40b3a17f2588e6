//! An operation in shared memory.

use tlbkit_addr::{CpuSet, Flush};

use crate::operation::Hold;
use crate::sync::{AtomicU32, AtomicUsize, Cell, constructor};
use crate::{OpId, Operation, Outcome};

/// Of [`Slot::state`]: there is nothing.
pub(super) const FREE: u32 = 0;
/// There is an operation, and a CPU that stops for it waits.
pub(super) const TAKEN: u32 = 1;
/// There is an operation, and a CPU that stops for it goes on. One that asks no CPU to stop is here from the start.
pub(super) const CONTINUED: u32 = 2;
/// Its last operation has ended, and the payload waits for another one.
pub(super) const CARRIES: u32 = 3;

/// There is one that the repliers finish.
pub(super) const LEFT: u32 = 4;

/// Of [`Slot::rights`], in its lower half: they may be raised; they have been.
pub(super) const OPEN: u32 = 1;
pub(super) const SUPERSEDED: u32 = 2;

/// Returns what is in a slot's word under the operation's generation.
pub(super) const fn tagged(generation: u32, half: u32) -> u32 {
    generation << 16 | half
}

/// A payload, and the operation that it is of.
#[derive(Debug)]
pub(super) struct Kept<P> {
    pub(super) op: OpId,
    pub(super) outcome: Outcome,
    pub(super) payload: P,
}

/// What an operation uncovered after its acknowledgements.
#[derive(Debug)]
pub(super) struct Carried<P, const W: usize> {
    pub(super) kept: Hold<Kept<P>>,
    /// CPUs that ran the space when the entry had changed: a CPU that began later has walked only the new table.
    pub(super) walkers: CpuSet<W>,
}

/// What is in a slot.
#[derive(Debug)]
pub(super) enum Cargo<P, E, const W: usize> {
    /// Nothing, or an operation that is its requester's alone.
    Nothing,
    /// An operation that may become a replier's.
    Flight(Operation<Kept<P>, W>, E),
    /// The payload of one that has ended.
    Carried(Carried<P, W>),
}

/// An operation in flight. Its count says which CPU owns the cell: the repliers while it is not zero, and then the one that made it
/// zero. (In 2-phase with [`Rendezvous::Flag`](crate::Rendezvous::Flag) the cell stays the requester's.) A replier of a synchronous
/// operation touches `word` alone: the cache line that the requester looks at goes to the replier once, and comes back.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Slot<P, E, const W: usize> {
    /// Generation in the upper half, acknowledgements to come in the lower.
    pub(super) word: AtomicU32,
    /// Written by the cell's owner, and by a CPU that claims what the slot carries.
    pub(super) state: AtomicU32,
    /// Generation in the upper half. Written by any CPU while it is [`OPEN`], otherwise by the cell's owner.
    pub(super) rights: AtomicU32,
    /// The name of the address space that the slot carries something for.
    pub(super) space: AtomicUsize,
    pub(super) cell: Cell<Cargo<P, E, W>>,
    /// What the operation asks to flush, where a request has no room for it. Written by the cell's owner while no
    /// request is out; read by repliers until they acknowledge.
    pub(super) flush: Cell<Flush>,
}

impl<P, E, const W: usize> Slot<P, E, W> {
    constructor! {
        pub(super) fn new() -> Self {
            Self {
                word: AtomicU32::new(0),
                state: AtomicU32::new(FREE),
                rights: AtomicU32::new(0),
                space: AtomicUsize::new(0),
                cell: Cell::new(Cargo::Nothing),
                flush: Cell::new(Flush::none()),
            }
        }
    }
}
