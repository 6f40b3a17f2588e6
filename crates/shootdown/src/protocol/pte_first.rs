//! PTE-first: change the entry, then flush the TLBs. Consistent when done.
//!
//! ```text
//! Requester()                                             Replier()
//!     PTE = new_PTE;                                          flush hot_TLBes locally;
//!     if (requester in target_set)                            acknowledge;
//!         flush hot_TLBes locally;
//!     for each processor in (target_set - requester)
//!         send an interprocessor request;
//!     for each processor in (target_set - requester)
//!         wait for an acknowledgement;
//! ```
//!
//! Works where the new entry cannot be overwritten: status bits set atomically, or not at all. The target set is
//! read after the entry has changed, so that a CPU that joins the space later can only load the new entry.

use super::Line::{self, *};

pub(super) const SYNCHRONOUS: &[Line] =
    &[Exclude, Update, Targets, FlushLocally, Defer, Count, Request, Wait, Release, Done];

/// PTE-first': the last replier goes on at `Close`.
pub(super) const ASYNCHRONOUS: &[Line] =
    &[Exclude, Update, Targets, FlushLocally, Defer, Open, Count, RequestAndLeave, Close, Release, Done];

/// PTE-first''.
pub(super) const REMOTE: &[Line] = &[Exclude, Update, Targets, FlushLocally, FlushRemotely, Release, Done];

/// What [`Repair::TARGETS_AFTER`](crate::Repair::TARGETS_AFTER) is for: a CPU that joins in between is missed.
pub(super) const TARGETS_TOO_EARLY: &[Line] =
    &[Exclude, Targets, Update, FlushLocally, Defer, Count, Request, Wait, Release, Done];
