//! Marks: kernel data in the entries of pages that are not mapped.

use core::fmt;

use crate::Leaf;

/// A value that the kernel stores in the entry of a page that is not mapped.
///
/// To hardware and to a lookup such a page is not mapped, as with an empty entry. A mark takes one entry of the base size. The
/// entry format limits the number of bits of a payload ([`payload_bits`](crate::format::payload_bits),
/// [`Table::payload_bits`](crate::Table::payload_bits)).
///
/// A page that keeps its frame and allows no access (`PROT_NONE`) has no mark: it is a [`Leaf`] without
/// [`READ`](tlbkit_addr::Attr::READ), [`WRITE`](tlbkit_addr::Attr::WRITE) and [`EXEC`](tlbkit_addr::Attr::EXEC).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mark {
    /// A number that the kernel chooses, for example the slot of a swap device that has the contents of the page.
    Payload(u64),
    /// A guard page: an access is an error and not a request for a page.
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
    /// A leaf, which maps the page.
    Leaf(Leaf),
    /// A mark: the page is not mapped.
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
