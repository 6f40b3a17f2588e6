//! 2-phase: all CPUs of the space stop, the entry changes, all flush and go on. Always consistent. It does not suit a
//! virtually tagged cache that needs the entry to write a line back, or status writes for which no flush waits
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
//! As printed, the requester flushes before the update and the repliers after it. Hardware that loads TLBs speculatively may load
//! the old entry into the requester's TLB between its flush and the update. So here the requester flushes once, after the update
//! and the continuing signals.
//!
//! Every CPU that runs the address space stops, not only every CPU that holds the entry: a CPU that does not hold the entry
//! may load it, and write it back, during the update. A CPU that starts to run the address space during the operation waits
//! until the flag `changing_PTE_flag` is clear (the gate in [`Switch`](crate::Switch)).
//!
//! The line that waits for the acknowledgements is [`Line::WaitStopped`]: by default the requester asks
//! [`Action::IsStopped`](crate::Action::IsStopped) for each replier (with [`Rendezvous::Serve`](crate::Rendezvous::Serve) it asks
//! [`Action::AllAcknowledged`](crate::Action::AllAcknowledged)), and the loop of [`System::run`](crate::System::run) waits
//! (`system/request.rs`, `wait`). By default ([`Rendezvous::Flag`](crate::Rendezvous::Flag)) the repliers count down no
//! acknowledgements: the requester waits until the stop flag of each replier is set, perhaps for another operation. After the last
//! line [`System::run`](crate::System::run) waits until each replier has taken this operation's request and then has continued, and
//! so has flushed (`wait_until_flushed`).

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

/// 2-phase with the requester's own flush where it is printed.
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
