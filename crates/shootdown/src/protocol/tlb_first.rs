//! TLB-first: flush the TLBs, then change the entry. Always consistent.
//!
//! ```text
//! Requester()                                             Replier()
//!     changing_PTE_flag = true;                               flush hot_TLBes locally;
//!     tentative_PTE = new_PTE;                                acknowledge;
//!     if (requester in target_set)
//!         flush hot_TLBes locally;                        Load_TLB_trap_handler()
//!     for each processor in (target_set - requester)          if (changing_PTE_flag)
//!         send an interprocessor request;                         load tentative_PTE into TLB;
//!     for each processor in (target_set - requester)          else
//!         wait for an acknowledgement;                            load PTE into TLB;
//!     PTE = new_PTE;
//!     changing_PTE_flag = false;
//! ```
//!
//! In the printed order of the first two lines, a miss handler can load an old tentative entry between them; here the
//! requester writes the tentative entry first. The algorithm is correct only if software loads the TLB, because hardware
//! does not read the flag.

use super::Line::{self, *};

pub(super) const SYNCHRONOUS: &[Line] = &[
    Exclude,
    Tentative,
    Changing,
    Targets,
    FlushLocally,
    Defer,
    Count,
    Request,
    Wait,
    Update,
    Unchanging,
    Release,
    Done,
];

/// TLB-first': the last replier continues at `Close`. If a CPU has raised the rights since `Open`, they stay raised: `Close`
/// skips the update.
pub(super) const ASYNCHRONOUS: &[Line] = &[
    Exclude,
    Tentative,
    Changing,
    Targets,
    FlushLocally,
    Defer,
    Open,
    Count,
    RequestAndLeave,
    Close,
    Update,
    Unchanging,
    Release,
    Done,
];

/// TLB-first''.
pub(super) const REMOTE: &[Line] =
    &[Exclude, Tentative, Changing, Targets, FlushLocally, FlushRemotely, Update, Unchanging, Release, Done];

/// The printed order of the first two lines.
pub(super) const FLAG_BEFORE_VALUE: &[Line] = &[
    Exclude,
    Changing,
    Tentative,
    Targets,
    FlushLocally,
    Defer,
    Count,
    Request,
    Wait,
    Update,
    Unchanging,
    Release,
    Done,
];

/// TLB-first without [`Repair::TARGETS_AFTER`](crate::Repair::TARGETS_AFTER): a CPU that joins before the flag is set gets
/// no request.
pub(super) const TARGETS_TOO_EARLY: &[Line] = &[
    Exclude,
    Targets,
    Tentative,
    Changing,
    FlushLocally,
    Defer,
    Count,
    Request,
    Wait,
    Update,
    Unchanging,
    Release,
    Done,
];
