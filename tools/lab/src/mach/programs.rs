//! What the processes of a run execute, where they are programs.

use std::rc::Rc;

/// What the programs of a run are, process by process: the client first.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub(crate) stretches: Rc<Vec<Stretch>>,
    /// Instructions that a client and a server run on average before they send.
    pub(crate) client: u64,
    pub(crate) service: u64,
    /// Cycles of cache misses that an instruction of theirs takes on average (24 M_A).
    pub(crate) stall: f64,
}

/// Programs that were recorded together.
#[derive(Clone, Debug)]
pub(crate) struct Talk {
    /// Their number, and what they refer to in the order in which they ran. A switch is a message.
    pub(crate) runs: Vec<(usize, Reference)>,
}

/// A program's references, folded into 2 GiB: what lay within 4 MiB of each other still does.
#[derive(Debug)]
pub(crate) struct Stretch {
    pub(crate) runs: Vec<Reference>,
    /// A page of the stack.
    pub(crate) stack: usize,
}

/// References in a row to one page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reference {
    pub(crate) page: usize,
    pub(crate) fetch: bool,
    pub(crate) store: bool,
    pub(crate) instructions: u64,
}
