//! The errors of changes.

use core::fmt;

use tlbkit_addr::{Attr, PageSize, Pfn, PhysAddr, VirtAddr};

use crate::nodes::{Held, NodeAddr};
use crate::{Entry, Leaf};

/// The reason why a table refused a change. The table is then exactly as it was before the call.
///
/// If several reasons hold, a table returns one of them, which may be another one when the call is repeated: where memory is short, it
/// may refuse a range before it has looked for pages that are mapped already.
///
/// An error takes two words, so that a result is returned in registers. It names the page that caused the error; a lookup of that
/// page returns the details.
// The tag has four bytes, and small fields come first, so that a copy is of whole words. With a tag of one byte a machine without
// unaligned accesses (RISC-V) copies the bytes beside it one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u32)]
pub enum Error {
    /// The address lies outside what the table's geometry can map, or in the hole between the halves of a
    /// sign-extended address space.
    OutOfRange {
        /// The address of the first page if it is outside, else the address of the last page.
        at: VirtAddr,
    },
    /// An end of the range is not aligned to the page size.
    Misaligned {
        /// The page size asked for.
        size: PageSize,
        /// The misaligned end.
        at: VirtAddr,
    },
    /// A frame is not aligned to the page size.
    MisalignedFrame {
        /// The page size asked for.
        size: PageSize,
        /// The first frame.
        frame: Pfn,
    },
    /// No frame begins at a physical address.
    MisalignedAddress {
        /// The size of frames.
        size: PageSize,
        /// The address.
        at: PhysAddr,
    },
    /// There is no such frame, or its number is beyond what the entry format can hold. From a new address space: the kernel's frame
    /// is beyond those that can be nodes.
    FrameTooLarge {
        /// The first frame of the range, or of its last page.
        frame: Pfn,
    },
    /// The table cannot map pages of this size.
    WrongSize {
        /// The size asked for.
        size: PageSize,
    },
    /// The entry format cannot express these attributes.
    WrongAttr {
        /// The attributes asked for.
        attr: Attr,
    },
    /// Something is mapped there already.
    Occupied {
        /// Its size.
        size: PageSize,
        /// The first address of the page that is mapped.
        at: VirtAddr,
    },
    /// The page has a [`Mark`](crate::Mark): remove the mark first, or [fill](crate::Table::fill) the entry. Or its entry holds a frame
    /// that waits for [`Writer::clear_detached`](crate::Writer::clear_detached).
    Marked {
        /// The first such address.
        at: VirtAddr,
    },
    /// The entries of this table have too few bits for the mark.
    WrongMark,
    /// Nothing is mapped there.
    NotMapped {
        /// The first unmapped address.
        at: VirtAddr,
    },
    /// The page is outside of the range that the writer has the right to write: see [`Writer::over`](crate::Writer::over).
    OutsideRight {
        /// The first address of the range that was to be changed.
        at: VirtAddr,
    },
    /// The range covers only a part of a larger page: split that first.
    Partial {
        /// Its size.
        size: PageSize,
        /// The first address of the larger page.
        at: VirtAddr,
    },
    /// The pages and the place that they are to [move](crate::Table::move_pages) to overlap.
    Overlap {
        /// The first address that both have.
        at: VirtAddr,
    },
    /// The pages cannot become one larger page: their frames are not contiguous and aligned, or their attributes
    /// differ.
    NotUniform {
        /// The first page that does not fit.
        at: VirtAddr,
    },
    /// Node storage has no free node, or none whose address the table's links can hold.
    NoMemory {
        /// The least number of nodes that the change needs. A guarded or hashed table learns the exact number only while it takes
        /// nodes.
        wanted: u32,
        /// The number of nodes that wait for a shootdown: complete one and try again.
        pending: u32,
    },
    /// The table's links cannot hold the addresses of the storage's nodes, so the table could never map a page.
    OutOfReach {
        /// The storage's lowest address.
        lowest: NodeAddr,
    },
    /// The page belongs to a part that another table lends to this one: change it in that table.
    Borrowed {
        /// The first such address.
        at: VirtAddr,
    },
    /// The table lends a part to others, and a fork would take the right to write from pages that all of them map. No table returns
    /// this error; the code that forks whole address spaces does.
    Lent {
        /// The first address that the table lends.
        at: VirtAddr,
    },
    /// The address space lends no pages that another one could share. No table returns this error; address spaces do.
    NothingLent,
    /// There is no room for what the caller keeps beside the table. No table returns this error; a kernel's own code may.
    NoRoom,
    /// The hardware requires break-before-make: while a page changes its size or frame, it is not mapped for a while. Use
    /// [`FlushAll::breaking`](crate::FlushAll::breaking) for pages that no code needs during the call.
    Breaks,
    /// The entry that a table of other software has for this page means something that an entry of this table cannot express: another
    /// memory type, rights that the format does not tell apart, reserved bits, a frame that is not aligned. See
    /// [`ForeignTable`](crate::mpt::ForeignTable).
    Foreign {
        /// The first address of the page.
        at: VirtAddr,
    },
    /// The links of a table of other software lead back to a node above, as those of a recursive mapping do, or the table has more
    /// entries than are [read](crate::mpt::ForeignTable).
    Endless {
        /// The first address that was not read.
        at: VirtAddr,
    },
    /// The [`Right`](crate::Right) is one to change another table, or the list one for the nodes of another storage.
    OtherTable,
    /// The page is no longer what the caller names: it has another payload, another frame, or was written.
    Changed {
        /// The page's address.
        at: VirtAddr,
    },
    /// Another writer of this table exists.
    Busy,
    /// This CPU is inside another call already: an edit, a visit, or a method of the kernel that a change has called. A CPU makes one
    /// call at a time, and a method of the kernel makes none. So the call is to be made before or after the other one. If it was to
    /// answer a fault of the kernel, such as the first use of its own heap, map that memory before the other call. No table returns this
    /// error; `tlbkit` does.
    Nested,
    /// A CPU with this number takes part in shootdowns already: the kernel gives two CPUs one number, or brings a CPU online twice. No
    /// table returns this error; `tlbkit` does.
    Online,
    /// The kernel has not said that the frame holds user memory, where its bytes can be copied: `Kernel::user_memory` of `tlbkit`, whose
    /// default says so of no frame. No table returns this error; `tlbkit` does.
    NotUserMemory {
        /// The frame.
        frame: Pfn,
    },
    /// The change is made, but its shootdown was refused: a CPU may still use an older translation. The frames and nodes that the
    /// change uncovered are not freed; the next change of the same table flushes everything. No table returns this error; the
    /// code that drives a shootdown does.
    Unflushed,
}

// Holds with addresses of 64 bits and of 32 bits.
const _: () = assert!(size_of::<Result<usize, Error>>() <= 16, "a result fits two registers");

impl Error {
    #[cold]
    pub(crate) const fn occupied(by: &Leaf) -> Self {
        Self::Occupied { at: by.at, size: by.size }
    }

    /// Returns the error of a change that needs an empty entry for the page at `at`, and found the entry `by` instead.
    #[cold]
    pub(crate) const fn taken(at: VirtAddr, by: Entry) -> Self {
        match by {
            Entry::Leaf(leaf) => Self::occupied(&leaf),
            Entry::Mark(_) | Entry::Empty => Self::Marked { at },
        }
    }

    #[cold]
    pub(crate) const fn partial(of: &Leaf) -> Self {
        Self::Partial { at: of.at, size: of.size }
    }

    /// Returns the error of an operation that needs `wanted` nodes, for which the storage of `held` had no memory.
    #[cold]
    pub fn no_memory(wanted: usize, held: &Held) -> Self {
        let count = |nodes: usize| u32::try_from(nodes).unwrap_or(u32::MAX);
        Self::NoMemory { wanted: count(wanted), pending: count(held.pending()) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange { at } => write!(f, "{at} is outside the address space of this table"),
            Self::Misaligned { at, size } => write!(f, "{at} is not aligned to {size} pages"),
            Self::MisalignedFrame { frame, size } => {
                write!(f, "frame {frame} is not aligned to {size} pages")
            }
            Self::MisalignedAddress { at, size } => write!(f, "no frame of {size} begins at {at}"),
            Self::FrameTooLarge { frame } => write!(f, "frame {frame} does not fit the entry format"),
            Self::WrongSize { size } => write!(f, "this table cannot map {size} pages"),
            Self::WrongAttr { attr } => {
                write!(f, "entries of this table cannot have {attr:?}, or not for these pages")
            }
            Self::Occupied { at, size } => write!(f, "a {size} page is already mapped at {at}"),
            Self::Marked { at } => write!(f, "the page at {at} has a mark"),
            Self::WrongMark => write!(f, "the entries of this table have no room for the mark"),
            Self::NotMapped { at } => write!(f, "nothing is mapped at {at}"),
            Self::Partial { at, size } => {
                write!(f, "the range covers only a part of the {size} page at {at}: split it first")
            }
            Self::OutsideRight { at } => write!(f, "{at} is outside of the range that the writer may change"),
            Self::Overlap { at } => write!(f, "the old and the new place of the pages both have {at}"),
            Self::NotUniform { at } => write!(f, "the page at {at} does not continue the one before it"),
            Self::NoMemory { wanted, pending } => {
                write!(f, "no memory for {wanted} nodes; {pending} wait for a shootdown to complete")
            }
            Self::OutOfReach { lowest } => {
                write!(f, "nodes from {:#x} on are beyond what a link of this table can hold", lowest.get())
            }
            Self::Borrowed { at } => {
                write!(f, "{at} is borrowed from another table: change it in that table")
            }
            Self::Lent { at } => write!(f, "the table lends the pages from {at} on to others"),
            Self::NothingLent => write!(f, "the address space lends no pages"),
            Self::NoRoom => write!(f, "no room for what is kept beside the table"),
            Self::Foreign { at } => {
                write!(f, "the other table's entry for {at} is one that this table's entries cannot express")
            }
            Self::Endless { at } => write!(f, "the other table's links have no end at {at}"),
            Self::OtherTable => write!(f, "the right is one to change another table"),
            Self::Breaks => {
                write!(
                    f,
                    "the hardware requires break-before-make: the page is not mapped during this change"
                )
            }
            Self::Changed { at } => write!(f, "the page at {at} is no longer what the call names"),
            Self::Busy => write!(f, "another writer holds the table"),
            Self::Nested => {
                write!(
                    f,
                    "this CPU is inside an edit, a visit, or a method of the kernel that one of them called: call before or after it; \
                     the memory that is used inside is to be mapped before"
                )
            }
            Self::NotUserMemory { frame } => {
                write!(f, "frame {frame} is no user memory: `Kernel::user_memory` gives no access to it")
            }
            Self::Online => write!(f, "a CPU with this number is online already"),
            Self::Unflushed => write!(
                f,
                "the change is made, but its flush was refused: a CPU may still use the old translation"
            ),
        }
    }
}

impl core::error::Error for Error {}
