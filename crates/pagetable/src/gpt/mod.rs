//! The guarded page table (GPT): a radix tree without nodes of a single entry (Elphinstone et al. 2.3).
//!
//! ```text
//!   address    | guard | digit | guard | digit |  guard  |  page in leaf  | offset |
//!                 skip     |      skip     |      skip           |
//!   root ------------> +------+        +------+          +-----+-----+-----+-----+
//!   (in the handle)    |      |   .--> |      |   .----> | tag | PTE | PTE | PTE | ...
//!                      | link |---'    | link |---'      +-----+-----+-----+-----+
//!                      | link |        | link |                    leaf
//!                      +------+        +------+
//! ```
//!
//! (The drawing shows the layout [`OneWord`].) [`Link`] draws a link: the address of a node, the position of its lowest index bit
//! (`shift`), its number of slots, and a bit `I`, which is set if the node has links, not PTEs. A lookup of the address `at` takes
//! these steps:
//!
//! 1. Load the root link.
//! 2. While the link has the bit `I`, load the link in slot `(at >> shift) & (slots - 1)` of its node.
//! 3. If the link is zero, nothing is mapped.
//! 4. Load the tag of the leaf, the address at which its region begins. If `at` differs from it above the bits that index
//!    the leaf, nothing is mapped. This one comparison checks all guards on the path.
//! 5. Load the PTE. If it is invalid, nothing is mapped.
//!
//! Where an MPT has a chain of nodes with one entry each, a GPT has a guard: the address bits of the chain. ([`TwoWords`] stores
//! each guard in a slot. The other layouts store no guard: the tag of the leaf has the bits of all guards on the path.) So
//! every node has at least two entries, there are fewer nodes than leaves, and the length of a walk grows with the local
//! density of mappings, not with the width of the address. Nodes have 2 to 4096 slots (2 to 256 with 64-bit links), and one
//! tree may have nodes of several sizes: see [`Fixed`] (G2, G4, ..) and [`Adaptive`] (GA). The leaf of a larger page is higher
//! in the tree, because its offset takes more bits of the address.
//!
//! # Layouts
//!
//! [`OneWord`], which the paper does not have: **one word a slot**, which holds a node's address, the position of its digit and its
//! size ([`Link`] draws it). No slot holds a guard: the walk skips the guards' bits and compares the tag of the leaf at the end.
//! The tag is the first address of the leaf's region. All base pages in a region of 16 are in one leaf. It has room for one PTE at
//! first, grows to 4 and then to 16, and shrinks when one PTE of four or more is left (`leaf_size.rs`).
//!
//! ```text
//!   G4 node                       leaf of 4 pages
//!   +------+------+------+------+     +-----+-------+-------+-------+-------+
//!   | link |   0  | link | link |     | tag | PTE 0 | PTE 1 |   0   | PTE 3 |
//!   +------+------+------+------+     +-----+-------+-------+-------+-------+
//! ```
//!
//! [`Kseg0`], for MIPS32 refill handlers: the same with 32-bit links that need no masking. Each leaf is one TLB entry: a pair
//! of pages of any size.
//!
//! [`TwoWords`], the layout of the paper to the byte (3.2): a slot is a 64-bit guard and a 64-bit pointer, a walk compares the
//! guard's value at each level, in as many bits as the guard's length says, and a leaf is 16 bytes: the PTEs of a page pair and
//! two mapping-tree words. It is for comparison, on one CPU.
//!
//! # Publication
//!
//! In the layout [`OneWord`] every change of the tree is one store: insert, split, merge and resize build new nodes where no walker
//! can reach them, link the uppermost one with one store and retire the nodes that it replaces. A node's region, digit and size
//! never change while the node lives, nor does a leaf's tag, so a walker that entered the old nodes finishes in a tree that was
//! valid when it entered. A leaf that grows or shrinks is copied with the PTEs in use. No PTE is live in two copies: the writer changes
//! only the new one. A walker in the old leaf does not see such a change; the change's shootdown waits until the walker has left.
//! Hardware must not set bits in a PTE, because it might set them in the old copy: formats with hardware status bits do not
//! compile. If a format wants break before make between two sizes of a page ([`Format::BREAK`]), the old PTEs are emptied and every
//! TLB is flushed before the store that links the new ones.
//!
//! # Cost
//!
//! | operation | loads and stores of table words |
//! |-|-|
//! | lookup, `OneWord` | one load a node, then the tag (two words where the address is wider than a word) and the PTE |
//! | lookup, `TwoWords` | guard and pointer (two words of 64 bits) a node, then the PTE |
//! | map, unmap, protect, replace, mark, fill of one page whose leaf stays | the walk, one load and one store |
//! | map of a page whose leaf grows | two walks, a copy of the leaf's PTEs, and one store; a leaf grows twice, from 1 PTE to 4 and to 16 |
//! | unmap of a page whose leaf shrinks | two walks, a copy of the PTE that is left, and one store |
//! | a new leaf, or the last page of a leaf | two or three walks, at most one node more or less, and one store of the slot above; an adaptive table also reads the slots of the node above after every eighth of so many changes as it has slots, and of a new node that may take bits from the node below |
//! | in the layouts with pairs, another new or emptied leaf | a dry run, the same once more, at most one node more or less, and one store; in an adaptive table also a read of the nodes' slots |
//! | unmap, protect of a range | two loads and one store a page, and a walk a leaf |
//! | [`detach`](crate::Writer::detach) of a range, with pairs | a load a page, and a walk and one store a leaf; needs no memory |
//! | map of a superpage in a node of smaller slots | the node is divided; in the layout with pairs, built anew |
//! | promote, split a superpage | one store for each node that changes |
//!
//! With `n` single pages at random addresses G2 has `n - 1` nodes: `48 - 32/n` bytes a PTE in the paper's layout with
//! leaves counted, `32 - 32/n` without (5.3, Figure 8).
//!
//! ```
//! use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr};
//! use tlbkit_pagetable::nodes::{Chunk, Slab};
//! use tlbkit_pagetable::{Holes, Local, Solo, gpt};
//!
//! let mut memory = vec![Chunk::ZERO; 16];
//! let slab = Slab::<u64, Solo>::new(&mut memory, 0)?;
//! let mut table = Local::new(gpt::Gpt48::new(&slab)?, |_stale| ());
//!
//! // Two pages at opposite ends of the space: two leaves and one node above them.
//! for at in [0x1000, 0xffff_8123_4567_8000] {
//!     let page = Pages::one(VirtAddr::new(at).vpn(PageSize::K4));
//!     table.map(page, Pfn::new(7), PageSize::K4, Attr::READ)?;
//! }
//! assert_eq!((table.footprint().nodes, table.footprint().leaves), (1, 2));
//! assert_eq!(table.footprint().total(), 48);
//!
//! // Without the second page the node would have one entry, so the table retires it.
//! let page = Pages::one(VirtAddr::new(0xffff_8123_4567_8000).vpn(PageSize::K4));
//! table.unmap(page, Holes::Refuse)?;
//! assert_eq!((table.footprint().nodes, table.footprint().leaves), (0, 1));
//! table.destroy();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits
//!
//! Walks, visits and changes are loops over a path of bounded length. Two things recurse: the tuning of the nodes that a step has
//! made, by one level; and the mending of a table after a change that unwound, by the depth of the tree. On x86-64 a change takes at most 2 KiB of stack,
//! and a visit 1 KiB, in every layout, node size and mode. `cargo xtask stack` measures that for pages at powers of two, fails
//! above the limit, and prints the figures: `resize` takes up to 1928 bytes, `map` 1928, `unmap` 1640.
//!
//! A guarded table has one writer at a time: an insert may put a node between one and the node above it, and the tuning after it rebuilds
//! the node above, so there is no node from which a writer could work without another one.
//!
//! With a pair format ([`Format::PAIRED`]) both halves of a pair of base pages are in one leaf. A larger page has a leaf of its
//! own, in which the other half of its pair is empty. In the layout [`Kseg0`] pages of all sizes are in pairs.

mod build;
mod census;
mod detach;
mod divide;
mod guard;
mod insert;
mod job;
mod kseg0;
mod layout;
mod leaf_size;
mod link;
mod map;
mod mark;
mod mend;
mod node;
mod node_size;
mod one_page;
mod path;
mod protect;
mod rebuild;
mod replace;
mod resize;
mod shape;
mod table;
mod tune;
mod tune_steps;
#[cfg(target_pointer_width = "64")]
mod two_words;
mod unmap;
mod visit;
mod walk;

#[cfg(all(test, not(tlbkit_loom), target_pointer_width = "64"))]
mod tests;

use core::fmt;
use core::marker::PhantomData;

use crate::footprint::Tally;
use crate::format::Format;
use crate::nodes::{Nodes, check_range};
use crate::{Error, Geometry, Pinned, Word, WriterFlag};

use node::View;

pub use detach::Detached;
pub use kseg0::{Digits, Kseg0};
pub use layout::{Layout, OneWord};
pub use link::Link;
pub use node_size::{Adaptive, Fixed, NodeSize};
#[cfg(target_pointer_width = "64")]
pub use two_words::TwoWords;

/// The largest logarithm of a node's slots that any layout has.
pub const MAX_WIDTH: usize = 12;

/// A guarded page table of geometry `G` with PTEs of format `F` in nodes from `N`, with the layout `L` and the node sizes `P`.
///
/// The value itself is a handle of a few words, and begins with the root slot. All entries are in the nodes; an empty table has no
/// node.
#[repr(C)]
pub struct Gpt<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize = Adaptive> {
    root: L::Root,
    nodes: &'n N,
    flag: WriterFlag,
    tally: Tally,
    shape: PhantomData<(G, F, P)>,
}

/// A table of 32-bit addresses whose leaves are TLB entries, for MIPS32 refill handlers. `Gpt32<_, Fixed<4>>` is G16, and
/// `Gpt32<_>` is GA. Node addresses are physical.
pub type Gpt32<'n, N, P = Adaptive> = Gpt<'n, crate::geometry::Va32, crate::format::EntryLo, N, Kseg0<P>, P>;

/// An adaptive table of 48-bit addresses in the [`Compact`](crate::format::Compact) format.
#[cfg(target_pointer_width = "64")]
pub type Gpt48<'n, N> = Gpt<'n, crate::geometry::Va48, crate::format::Compact, N, OneWord>;

/// The table of Elphinstone et al. 3.2, to the byte: `PaperGpt<_, Fixed<4>>` is their G16.
#[cfg(target_pointer_width = "64")]
pub type PaperGpt<'n, N, P> = Gpt<'n, crate::geometry::Va64, crate::format::Paper, N, TwoWords, P>;

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'n, G, F, N, L, P> {
    /// Returns an empty table, which takes no memory. With one page mapped it takes one leaf.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfReach`] if a link cannot hold the lowest address of the storage: [`Layout::REACH`] says what it holds.
    pub fn new(nodes: &'n N) -> Result<Self, Error> {
        const { assert!(G::BASE.shift() == F::BASE.shift(), "the format counts frames of another size") };
        check_range(nodes, L::REACH)?;
        Ok(Self {
            root: L::Root::default(),
            nodes,
            flag: WriterFlag::new(nodes.held()),
            tally: Tally::default(),
            shape: PhantomData,
        })
    }

    /// Returns how many indexing nodes there are of each size: element `w` counts those of `2^w` slots.
    ///
    /// Costs a visit of all of them.
    pub fn node_sizes(&self, pinned: Pinned<'_>) -> [usize; MAX_WIDTH + 1] {
        let mut sizes = [0; MAX_WIDTH + 1];
        View::pinned(self, pinned).count_sizes(&mut sizes);
        sizes
    }
}

impl<G, F, N, P> Gpt<'_, G, F, N, Kseg0<P>, P>
where
    G: Geometry,
    F: Format<Word = u32>,
    N: Nodes<Word = u32>,
    P: Digits,
{
    /// Returns the root link, for a refill handler. Every change of the table may change it. The table itself begins with this
    /// word, so a handler that knows the address of the table can load the link from there.
    pub fn root(&self) -> usize {
        u32::follow(&self.root) as usize
    }
}

#[cfg(target_pointer_width = "64")]
impl<G, F, N, P> Gpt<'_, G, F, N, TwoWords, P>
where
    G: Geometry,
    F: Format<Word = u32>,
    N: Nodes<Word = u32, Mode = crate::Solo>,
    P: NodeSize,
{
    /// Returns the root slot, guard and pointer, for a refill handler. Every change of the table may change it.
    pub fn root_slot(&self) -> [u32; 4] {
        self.root.each_ref().map(u32::follow)
    }
}

impl<G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Drop
    for Gpt<'_, G, F, N, L, P>
{
    fn drop(&mut self) {
        let left = self.tally.footprint();
        // SAFETY: this is the drop of the table that the flag belongs to.
        unsafe { self.nodes.held().count_dropped_table(&self.flag, left.nodes + left.leaves) };
    }
}

impl<G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> fmt::Debug
    for Gpt<'_, G, F, N, L, P>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpt").field("footprint", &self.tally.footprint()).finish_non_exhaustive()
    }
}
