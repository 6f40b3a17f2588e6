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
//! The algorithm is correct if the hardware sets status bits atomically or not at all, so that no status write overwrites
//! the new entry. The requester reads the target set after the change, so that a CPU that joins the space later can load
//! only the new entry.

use super::Line::{self, *};

pub(super) const SYNCHRONOUS: &[Line] =
    &[Exclude, Update, Targets, FlushLocally, Defer, Count, Request, Wait, Release, Done];

/// PTE-first whose requester flushes while the repliers do ([`Form::Concurrent`](crate::Form::Concurrent)).
pub(super) const CONCURRENT: &[Line] =
    &[Exclude, Update, Targets, Defer, Count, Request, FlushLocally, Wait, Release, Done];

/// PTE-first': the last replier continues at `Close`.
pub(super) const ASYNCHRONOUS: &[Line] =
    &[Exclude, Update, Targets, FlushLocally, Defer, Open, Count, RequestAndLeave, Close, Release, Done];

/// PTE-first''.
pub(super) const REMOTE: &[Line] = &[Exclude, Update, Targets, FlushLocally, FlushRemotely, Release, Done];

/// PTE-first without [`Repair::TARGETS_AFTER`](crate::Repair::TARGETS_AFTER): a CPU that joins before the update gets no
/// request.
pub(super) const TARGETS_TOO_EARLY: &[Line] =
    &[Exclude, Targets, Update, FlushLocally, Defer, Count, Request, Wait, Release, Done];
