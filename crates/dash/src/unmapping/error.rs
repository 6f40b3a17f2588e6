//! The error of a call that cannot be carried out.

use core::fmt;

use super::Ticket;
use crate::tolerance::Entry;

/// The error of a call that cannot be carried out. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DashError {
    /// No page is mapped there.
    NotMapped,
    /// The page is being unmapped already.
    BeingUnmapped(Ticket),
    /// Another page is mapped there.
    Occupied(Entry),
    /// The page is writable, so a TLB could write the dirty bit back at any time (2.4.2.1).
    Writable,
    /// There are too many unmappings in flight, or too many shared segments.
    Full,
    /// The space shares none of these pages.
    NotShared,
    /// No such unmapping is in flight in that space.
    UnknownTicket(Ticket),
    /// The plan was made for unmapping, and the hardware may write status bits to the entry of a page that stays readable.
    OtherRights,
}

impl fmt::Display for DashError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMapped => f.write_str("no page is mapped there"),
            Self::BeingUnmapped(_) => f.write_str("the page is being unmapped"),
            Self::Occupied(entry) => write!(f, "frame {} is mapped there", entry.frame),
            Self::Writable => f.write_str("the page is writable, so its dirty bit cannot be cleared"),
            Self::Full => f.write_str("too many unmappings in flight or segments shared"),
            Self::NotShared => f.write_str("the space shares none of these pages"),
            Self::UnknownTicket(_) => f.write_str("no such unmapping is in flight there"),
            Self::OtherRights => {
                f.write_str("the plan is for unmapping: make one with `LowRights::MayWriteBack`")
            }
        }
    }
}

impl core::error::Error for DashError {}
