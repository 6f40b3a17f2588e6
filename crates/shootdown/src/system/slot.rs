//! An operation in shared memory.

use tlbkit_addr::{CpuSet, Flush};

use crate::operation::Hold;
use crate::sync::{AtomicU32, AtomicUsize, Cell, constructor};
use crate::{OpId, Operation, Outcome};

/// A value of [`Slot::state`]: the slot is free.
pub(super) const FREE: u32 = 0;
/// A value of [`Slot::state`]: the slot has a 2-phase operation, and a CPU that has stopped for it must wait.
pub(super) const TAKEN: u32 = 1;
/// A value of [`Slot::state`]: the slot has an operation, and a CPU that has stopped for it may continue. Synchronous
/// operations that stop no CPU have this state from the start.
pub(super) const CONTINUED: u32 = 2;
/// A value of [`Slot::state`]: the slot's operation has ended, and its payload waits for another operation.
pub(super) const CARRIES: u32 = 3;

/// A value of [`Slot::state`]: the slot has an asynchronous operation, which the last replier finishes.
pub(super) const LEFT: u32 = 4;
/// A value of [`Slot::state`]: a CPU is taking the payload that the slot carries, and waits for nothing before it stores the
/// next state.
pub(super) const CLAIMED: u32 = 5;

/// A value of the lower half of [`Slot::rights`]: a CPU may raise the rights.
pub(super) const OPEN: u32 = 1;
/// A value of the lower half of [`Slot::rights`]: a CPU has raised the rights.
pub(super) const SUPERSEDED: u32 = 2;

/// Returns a word with the generation in its upper half and `half` in its lower half.
pub(super) const fn tagged(generation: u32, half: u32) -> u32 {
    generation << 16 | half
}

/// A payload, and the name and outcome of its operation.
#[derive(Debug)]
pub(super) struct Kept<P> {
    pub(super) op: OpId,
    pub(super) outcome: Outcome,
    pub(super) payload: P,
}

/// A payload that a walk may still reach after its operation has ended.
#[derive(Debug)]
pub(super) struct Deferred<P, const W: usize> {
    pub(super) kept: Hold<Kept<P>>,
    /// The CPUs that ran the space after the update: a CPU that began later has walked only the updated table.
    pub(super) walkers: CpuSet<W>,
}

/// The content of a slot's cell.
#[derive(Debug)]
pub(super) enum Cargo<P, E, const W: usize> {
    /// Nothing; or the slot has a synchronous operation, which is on its requester's stack.
    Nothing,
    /// An asynchronous operation, which a replier may take over.
    Flight(Operation<Kept<P>, W>, E),
    /// The payload of an operation that has ended.
    Deferred(Deferred<P, W>),
}

/// An operation in flight.
///
/// The requester owns the cell of an asynchronous operation until it sends the last request. From then on the count of
/// acknowledgements says which CPU owns it: no CPU while the count is not zero, and then the CPU whose decrement returned
/// zero. The requester owns the cell of a synchronous operation. A replier of a synchronous operation writes only `word`, so
/// the cache line that the requester reads moves to the replier once and back once.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Slot<P, E, const W: usize> {
    /// The generation in the upper half, the number of outstanding acknowledgements in the lower half.
    pub(super) word: AtomicU32,
    /// [`FREE`] to [`CLAIMED`]. Written by the cell's owner, and by a CPU that claims the payload that the slot carries.
    pub(super) state: AtomicU32,
    /// The generation in the upper half; 0, [`OPEN`] or [`SUPERSEDED`] in the lower half. Any CPU may write it while it is
    /// [`OPEN`], otherwise only the cell's owner.
    pub(super) rights: AtomicU32,
    /// The name of the address space whose payload the slot carries.
    pub(super) space: AtomicUsize,
    pub(super) cell: Cell<Cargo<P, E, W>>,
    /// The operation's flush, if it does not fit a request. Written by the cell's owner while no request is outstanding;
    /// read by repliers before they acknowledge or, in 2-phase, continue.
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
