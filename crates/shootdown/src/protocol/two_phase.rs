//! 2-phase: all CPUs of the space stop, the entry changes, all flush and go on. Always consistent. It does not suit a virtually
//! tagged cache that needs the entry to write a line back, or status writes for which no flush waits
//! ([`Algorithm::suits`](crate::Algorithm::suits)).
//!
//! ```text
//! Requester()                                             Replier()
//!     if (requester in target_set)                            acknowledge;
//!         flush hot_TLBes locally;                            wait for the continuing signal;
//!     for each processor in (target_set - requester)          flush hot_TLBes locally;
//!         send an interprocessor request;
//!     for each processor in (target_set - requester)
//!         wait for an acknowledgement;
//!     PTE = new_PTE;
//!     for each processor in (target_set - requester)
//!         send a continuing signal;
//! ```
//!
//! As printed, the requester flushes before the update and the repliers after it. A TLB that hardware loads
//! speculatively may load the old entry again in between, so the requester too flushes after the update.
//!
//! Every CPU that runs the address space stops, not only those that hold the entry: a CPU that does not hold it may
//! load it, and write it back, in the midst of the update. A CPU that starts to run the address space in the meantime
//! waits at its gate, for which `changing_PTE_flag` serves here.
//!
//! The line that waits for the acknowledgements is [`Line::WaitStopped`]: the requester asks
//! [`Action::IsStopped`](crate::Action::IsStopped) for each replier, and the loop of [`System::run`](crate::System::run) waits
//! (`system/request.rs`, `wait`). By default ([`Rendezvous::Flag`](crate::Rendezvous::Flag)) the repliers count down no
//! acknowledgements: the requester waits until the stop flag of each replier is set. After the last line
//! [`System::run`](crate::System::run) waits until each replier has gone on, and so has flushed (`wait_until_flushed`).

use super::Line::{self, *};

pub(super) const SYNCHRONOUS: &[Line] = &[
    Exclude,
    Enter,
    Changing,
    Targets,
    Defer,
    Count,
    Request,
    WaitStopped,
    Update,
    Unchanging,
    Continue,
    FlushLocally,
    Release,
    Serve,
    Done,
];

/// The printed place of the requester's own flush.
pub(super) const REQUESTER_AS_PRINTED: &[Line] = &[
    Exclude,
    Enter,
    Changing,
    Targets,
    FlushLocally,
    Defer,
    Count,
    Request,
    WaitStopped,
    Update,
    Unchanging,
    Continue,
    Release,
    Serve,
    Done,
];
