//! Optimistic: PTE-first, repeated if a status write has overwritten the entry. Consistent when done.
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
//! The printed check is not sufficient if the hardware reads the entry and writes it later: the late write of one CPU
//! restores the old rights, a second CPU loads them, and the late write of a third CPU writes the new rights again before
//! the check. [`Plan::rounds`](crate::Plan::rounds) says how many rounds exclude this.

use super::Line::{self, *};

pub(super) const SYNCHRONOUS: &[Line] =
    &[Exclude, Update, Targets, FlushLocally, Defer, Count, Request, Wait, Check, Release, Done];

/// optimistic': the last replier continues at `Close`, and starts over as the requester if the check fails.
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

/// Optimistic without [`Repair::TARGETS_AFTER`](crate::Repair::TARGETS_AFTER): the requester reads the target set once,
/// before the update.
pub(super) const TARGETS_TOO_EARLY: &[Line] =
    &[Exclude, Targets, Update, FlushLocally, Defer, Count, Request, Wait, Check, Release, Done];
