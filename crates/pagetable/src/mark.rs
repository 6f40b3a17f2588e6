//! What an entry says of a page that is not mapped.

use core::fmt;

use crate::Leaf;

/// What stands in an entry that maps nothing, and that the kernel has put there.
///
/// Walkers and hardware find such a page not mapped, as one with an empty entry; the table keeps the mark for the kernel. A
/// mark takes one entry of the base size. How many bits a payload may have is the entry format's
/// ([`payload_bits`](crate::format::payload_bits), [`Table::payload_bits`](crate::Table::payload_bits)).
///
/// A page that keeps its frame and allows nothing (`PROT_NONE`) is no mark: it is a [`Leaf`] without
/// [`READ`](tlbkit_addr::Attr::READ), [`WRITE`](tlbkit_addr::Attr::WRITE) and [`EXEC`](tlbkit_addr::Attr::EXEC).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mark {
    /// A number of the kernel's: where the contents of the page are, a slot of a swap device for example.
    Payload(u64),
    /// Nothing is to be mapped here: an access is an error, and not a request for a page.
    Guard,
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Payload(payload) => write!(f, "payload {payload:#x}"),
            Self::Guard => f.write_str("a guard page"),
        }
    }
}

/// What the entry for a page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Nothing.
    Empty,
    /// A page that is mapped.
    Leaf(Leaf),
    /// A page that is not mapped, and what the kernel says of it.
    Mark(Mark),
}

impl Entry {
    /// Returns the leaf, if there is one.
    pub const fn leaf(self) -> Option<Leaf> {
        if let Self::Leaf(leaf) = self { Some(leaf) } else { None }
    }

    /// Returns the mark, if there is one.
    pub const fn mark(self) -> Option<Mark> {
        if let Self::Mark(mark) = self { Some(mark) } else { None }
    }
}

impl From<Option<Mark>> for Entry {
    fn from(mark: Option<Mark>) -> Self {
        mark.map_or(Self::Empty, Self::Mark)
    }
}
