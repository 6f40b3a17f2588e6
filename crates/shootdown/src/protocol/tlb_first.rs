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
//! The first two lines are printed in an order that lets a miss handler load an old tentative entry between them;
//! the value goes first here. Works where software loads the TLB, since hardware would not look at the flag.

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

/// TLB-first': the last replier goes on at `Close`. Rights that have been raised meanwhile stay raised: `Close`
/// then skips the update.
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

/// What [`Repair::TARGETS_AFTER`](crate::Repair::TARGETS_AFTER) is for.
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
