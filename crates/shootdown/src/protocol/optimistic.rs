//! Optimistic: PTE-first, and again if a status write has overwritten the entry. Consistent when done.
//!
//! ```text
//! Requester()                                             Replier()
//!     do {                                                    flush hot_TLBes locally;
//!         PTE = new_PTE;                                      acknowledge;
//!         if (requester in target_set)
//!             flush hot_TLBes locally;
//!         for each processor in (target_set - requester)
//!             send an interprocessor request;
//!         for each processor in (target_set - requester)
//!             wait for an acknowledgement;
//!     } while (PTE.access_rights != new_PTE.access_rights);
//! ```
//!
//! The printed check is not enough where the hardware reads the entry and writes it later: one CPU's late write puts
//! the old rights back, a third CPU loads them, and another CPU's late write of the new rights covers it all up before
//! the check. [`Plan::rounds`](crate::Plan::rounds) says how many rounds rule that out.

use super::Line::{self, *};

pub(super) const SYNCHRONOUS: &[Line] =
    &[Exclude, Update, Targets, FlushLocally, Defer, Count, Request, Wait, Check, Release, Done];

/// optimistic': the last replier goes on at `Close`, and starts over as the requester if need be.
pub(super) const ASYNCHRONOUS: &[Line] = &[
    Exclude,
    Update,
    Targets,
    FlushLocally,
    Defer,
    Open,
    Count,
    RequestAndLeave,
    Close,
    Check,
    Release,
    Done,
];

/// optimistic''.
pub(super) const REMOTE: &[Line] =
    &[Exclude, Update, Targets, FlushLocally, FlushRemotely, Check, Release, Done];

/// What [`Repair::TARGETS_AFTER`](crate::Repair::TARGETS_AFTER) is for: the set is read once, before the update.
pub(super) const TARGETS_TOO_EARLY: &[Line] =
    &[Exclude, Targets, Update, FlushLocally, Defer, Count, Request, Wait, Check, Release, Done];
