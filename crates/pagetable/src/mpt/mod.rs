//! The multi-level page table (MPT): one indexed load a level.
//!
//! ```text
//!  virtual address   | index 0 | index 1 | ... | index n | offset |
//!                        |         |               |
//!   root ---> +------+   |   +------+          +------+
//!             |      |   v   |      |   v      |      |   v
//!             | link |------>| link |--- .. -->| leaf |-----> frame
//!             |      |       | leaf |------------------------> frame of a larger page
//!             +------+       +------+          +------+
//! ```
//!
//! Any number of levels up to eight, each with an index width of its own ([`Radix::WIDTHS`]): two levels of ten bits for MIPS32,
//! four of nine, or the six that Elphinstone et al. 3.2 need for 64 bits. A node is an array of one word per slot. The word is
//! empty, a link to a node of the next level, or a leaf. A page of the size of a slot is one leaf at that level. A page whose
//! size is between those of two levels is a leaf repeated in all slots that the page covers. To hardware such a page is a
//! contiguous run: hardware sets status bits in any of its slots, so a lookup loads all of them. In a format with
//! [`EXTRA`](Format::EXTRA) words, a last-level node holds two leaf words for each pair of pages, followed by that pair's extra
//! words, which belong to the kernel.
//!
//! The record of each node counts the node's slots in use. So an unmap that empties a node retires it without loading the other
//! slots, and then retires the node above it if that one is empty now. The root is never retired. Above the last level the record
//! also tells which sixteenths of the node have had an entry: a copy of the table skips the others.
//!
//! | operation | cost in loads and stores of table words |
//! |-|-|
//! | lookup | one load a level down to the leaf |
//! | mark, fill | the walk, one load and one store |
//! | map, unmap, protect a range | the walk once for each node at the bottom, then one load and one store a page (twice the loads: a dry run comes first) |
//! | move a range | the walk once for each pair of nodes at the bottom, then two stores a page; two stores for a node that moves as a whole, after a load of each of its entries |
//! | new or emptied nodes | one store and one count a level |
//! | promote, split | one store that exchanges a leaf and a subtree, which is built before or retired after; two, with a flush between, in formats that [break](Format::BREAK) |
//!
//! A table [with locks](Mpt::with_locks) has several writers at a time: each stores in the node that covers its pages, and in those below
//! it ([`NodeLocks`]).
//!
//! On x86-64 every operation takes at most 2 KiB of stack in the geometries of this crate; `cargo xtask stack` prints
//! the figures.
//!
//! A wide space that is used sparsely wastes almost a page per level for each page mapped: about two orders of
//! magnitude more than a [guarded table](crate::gpt) (Elphinstone et al. 4.2, Figure 8).

mod census;
mod cursor;
mod detach;
mod dismantle;
mod fork;
mod leaf;
mod linear;
mod map;
mod mark;
mod mend;
mod moving;
mod node;
mod part;
mod pieces;
mod protect;
mod replace;
mod resize;
mod run;
mod shape;
mod share;
mod slot;
mod sweep;
mod table;
mod take_over;
mod unmap;
mod visit;
mod walk;

use core::fmt;
use core::marker::PhantomData;

use tlbkit_addr::VirtAddr;

use crate::footprint::Tally;
use crate::format::Format;
use crate::nodes::{NodeAddr, Nodes, check_range, take_within};
use crate::{Error, Mode as _, NodeLocks, Radix, Table, Word, WriterFlag};

pub use cursor::Cursor;
pub use fork::Copying;
pub(crate) use linear::{own_pages, region};
pub use node::Detached;
use shape::Shape;
use share::{Borrowed, Loan};
pub use slot::{Encoded, Slot, Stale};
pub use take_over::ForeignTable;

/// A multi-level page table of geometry `G` with entries of format `F` in nodes from `N`.
///
/// The value itself is a handle of a few words; the table is its nodes.
pub struct Mpt<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> {
    nodes: &'n N,
    root: NodeAddr,
    flag: WriterFlag,
    /// By which several writers share the table; `None`: it has one at a time.
    locks: Option<&'n NodeLocks>,
    tally: Tally,
    /// The slots of the root below this one are in the lower half, and the table's own.
    plain: usize,
    /// The pages whose top-level slots belong to another table.
    borrowed: Option<Borrowed<'n>>,
    /// The pages whose top-level slots other tables may borrow.
    lent: Option<Loan>,
    shape: PhantomData<(G, F)>,
}

/// Four levels of nine bits in the [`Compact`](crate::format::Compact) format.
#[cfg(target_pointer_width = "64")]
pub type Mpt4<'n, N> = Mpt<'n, crate::geometry::Va48, crate::format::Compact, N>;

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// Returns an empty table, which has only a root node.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`] if there is no node for the root; [`Error::OutOfReach`] if a link cannot hold the lowest address
    /// of the storage.
    pub fn new(nodes: &'n N) -> Result<Self, Error> {
        const {
            assert!(G::BASE.shift() == F::BASE.shift(), "the format counts frames of another size");
            assert!(
                G::STAGE as u8 == F::STAGE as u8,
                "the format and the geometry are for different walkers"
            );
        };
        let words = Self::words(0);
        check_range(nodes, F::REACH)?;
        let root = take_within(nodes, words, F::REACH);
        let root = root.ok_or_else(|| Error::no_memory(1, nodes.held()))?;
        let tally = Tally::default();
        tally.node(1, words * F::Word::BYTES);
        Ok(Self {
            nodes,
            root,
            flag: WriterFlag::new(nodes.held()),
            locks: None,
            tally,
            plain: Self::LOWER,
            borrowed: None,
            lent: None,
            shape: PhantomData,
        })
    }

    /// Returns the table, which has several writers from now on: one of each last-level node, and of each larger part that
    /// [`Writer::over`](crate::Writer::over) asks for. A table that [borrows](Self::sharing) a part has its own locks, and the borrowed part
    /// those of its lender.
    #[must_use]
    pub fn with_locks(mut self, locks: &'n mut NodeLocks) -> Self {
        const {
            assert!(N::Mode::SHARED, "a table of one CPU has one writer");
            assert!(G::LINEAR.is_none(), "the node of a page of the table is in its lowest level");
        }
        // Another table may have had them, and a right to write it may have been forgotten.
        locks.free();
        self.locks = Some(locks);
        self
    }

    /// Returns the root node's address, in the form that a page-table base register or a refill handler takes.
    pub const fn root(&self) -> NodeAddr {
        self.root
    }

    /// Returns the offset of the PTE of `at` in its last-level node, in words.
    pub(crate) fn leaf_place(&self, at: VirtAddr) -> usize {
        Self::place(Self::LEVELS - 1, Self::index(Self::LEVELS - 1, at))
    }
}

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Drop for Mpt<'_, G, F, N> {
    fn drop(&mut self) {
        // SAFETY: this is the drop of the table that the flag belongs to.
        unsafe { self.nodes.held().count_dropped_table(&self.flag, self.tally.footprint().nodes) };
    }
}

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> fmt::Debug for Mpt<'_, G, F, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mpt")
            .field("root", &self.root)
            .field("footprint", &Table::footprint(self))
            .finish_non_exhaustive()
    }
}
