//! Marks: kernel data in the entries of pages that are not mapped.

use core::fmt;

use tlbkit_addr::{Attr, Pfn};

use crate::Leaf;

/// A value that the kernel stores in the entry of a page that is not mapped.
///
/// To hardware and to a lookup such a page is not mapped, as with an empty entry. A mark takes one entry of the base size. The
/// entry format limits the number of bits of a payload ([`payload_bits`](crate::format::payload_bits),
/// [`Table::payload_bits`](crate::Table::payload_bits)).
///
/// A mark with a payload keeps the page's attributes: its rights, and the kernel's own bits ([`Mark::KEPT`]). A
/// [`protect`](crate::Table::protect) changes them as it changes those of a leaf, and a [`fill`](crate::Table::fill) gives them to
/// the page that it maps.
///
/// A page that keeps its frame and allows no access (`PROT_NONE`) has no mark: it is a [`Leaf`] without
/// [`READ`](tlbkit_addr::Attr::READ), [`WRITE`](tlbkit_addr::Attr::WRITE) and [`EXEC`](tlbkit_addr::Attr::EXEC).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mark {
    /// A number that the kernel chooses, for example the slot of a swap device that has the contents of the page; and the
    /// attributes that the page has when it is mapped again.
    Payload(u64, Attr),
    /// A guard page: an access is an error and not a request for a page.
    Guard,
}

impl Mark {
    /// The attributes that a mark keeps, of those that the entry format has: the rights, the protection key, and the bits of the
    /// kernel. A mark keeps no status bit, no memory type and no [`Attr::GLOBAL`].
    pub const KEPT: Attr = Attr::RIGHTS.union(Attr::SOFTWARE).union(Attr::KEY);
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Payload(payload, attr) => write!(f, "payload {payload:#x} with {attr:?}"),
            Self::Guard => f.write_str("a guard page"),
        }
    }
}

/// What the entry for a page holds. `F` numbers frames, as in a [`Leaf`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<F = Pfn> {
    /// Nothing.
    Empty,
    /// A leaf, which maps the page.
    Leaf(Leaf<F>),
    /// A mark: the page is not mapped.
    Mark(Mark),
}

impl<F: Copy> Entry<F> {
    /// Returns the leaf, if there is one.
    pub const fn leaf(self) -> Option<Leaf<F>> {
        if let Self::Leaf(leaf) = self { Some(leaf) } else { None }
    }

    /// Returns the mark, if there is one.
    pub const fn mark(self) -> Option<Mark> {
        if let Self::Mark(mark) = self { Some(mark) } else { None }
    }
}

impl<F> From<Option<Mark>> for Entry<F> {
    fn from(mark: Option<Mark>) -> Self {
        mark.map_or(Self::Empty, Self::Mark)
    }
}
