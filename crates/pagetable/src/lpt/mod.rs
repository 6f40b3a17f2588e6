//! The linear page table (LPT): one array of PTEs for the whole space, in virtual memory.
//!
//! ```text
//!   virtual memory at AT                                               physical memory
//!  +------------------------------------------------+---------------+
//!  | PTEs of the space, page after page of them     | PTEs of these |      +------+
//!  | [ ][ ][ ][#][ ][ ][ ][ ][ ][#][#][ ][ ] ...    | [ ][#][ ] ... |      | root |
//!  +----------^---------------------------------------^-------------+      +------+
//!             |  level 0                              |  level 1 ...         |
//!             |                                       |                      |
//!    AT + n * word, n = page number            maps pages of level 0   maps pages of the
//!    one load, if the TLB has this page                                highest level
//! ```
//!
//! The table's own pages are mapped by PTEs too: those of level 0 (which hold the PTEs of the program's pages) by
//! the PTEs of level 1, and so on; the root, in physical memory, maps the last of them. Every level is an array of
//! its own, one after the other from `AT` on, so index widths may differ by level, no slot of the root is spent on a
//! mapping of the table to itself, and one formula a level gives the address of a PTE. Only the pages that hold
//! something exist.
//!
//! This is the [multi-level table](crate::mpt) read in another way: a node is one page, and a link is the leaf word
//! that maps that page ([`Linear`]). So an LPT takes the memory of an MPT with page-sized nodes, and is edited by the
//! same code.
//!
//! # Cost
//!
//! A lookup is **one load** if the TLB translates the page of level 0. If not, that is a nested miss: the handler loads
//! the PTE of that page, which may miss on a page of level 1, and so on, in 64 bits up to five times ("six cascaded
//! faults", Elphinstone et al. 2.1), each of which takes a TLB entry too. They reckon (5.5) that it is faster than the
//! multi-level table where the TLB hits four times in five or more.
//!
//! [`Table::walk`] asks a [`NestedMissObserver`] about each of those pages, bottom up, and then does the loads, top down. In the
//! words of Bala et al. (1994, 2), a miss on a user's page is an L1U miss, a "no" at level 0 an L2 miss, one at level 1
//! an L3 miss; the page's address tells the kernel's part (L1K) from the user's. [`Table::lookup`] takes everything
//! as translated. In either, a storage that counts [`Nodes::follow`] sees exactly the machine's loads: the kernel's
//! own lookup cannot count on the TLB, so it finds the page of level 0 from the root, in physical memory, and does
//! that past the count.
//!
//! Larger pages are repeated in all their slots, up to what one page of the table covers; larger still are refused
//! with [`Error::WrongSize`].
//!
//! On x86-64 every operation takes at most 2 KiB of stack; `cargo xtask stack` prints the figures.
//!
//! # What is flushed
//!
//! A page of the table that becomes empty is retired, and **its own translation is flushed too**: its virtual page,
//! in the array of its level, joins the pages that the change itself makes stale. A handler on another CPU could
//! otherwise go on loading PTEs from a page that has a new owner. Taking the table apart flushes its whole
//! [`region`](Lpt::region). A page that the table gains is flushed as far as
//! [`APPEARS`](crate::format::Format::APPEARS) says, for a TLB may hold the other half of its pair.
//!
//! `AT` is in the kernel's part of virtual memory. If that is a part of the space that the table maps (and not one
//! of its own), the kernel keeps the region clear of other mappings.
//!
//! ```
//! use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr};
//! use tlbkit_pagetable::nodes::{Chunk, Slab};
//! use tlbkit_pagetable::{Local, NestedMissObserver, Solo, Table, lpt};
//!
//! /// A TLB that holds no page of the table.
//! struct Cold(Vec<(usize, VirtAddr)>);
//! impl NestedMissObserver for Cold {
//!     fn translates(&mut self, level: usize, page: VirtAddr) -> bool {
//!         self.0.push((level, page));
//!         false
//!     }
//! }
//!
//! let mut memory = vec![Chunk::ZERO; 8];
//! let slab = Slab::<u32, Solo>::new(&mut memory, 0)?;
//! let mut table = Local::new(lpt::MipsLpt::new(&slab)?, |_flush| ());
//! let at = VirtAddr::new(0x0040_1000);
//! table.map(Pages::one(at.vpn(PageSize::K4)), Pfn::new(3), PageSize::K4, Attr::READ)?;
//!
//! // The PTE's address: the table begins at 0xc000_0000, and 0x401 PTEs of four bytes come before.
//! assert_eq!(table.table().pte(at), VirtAddr::new(0xc000_1004));
//! let mut cold = Cold(Vec::new());
//! // SAFETY: nothing is reclaimed during the walk.
//! let pinned = unsafe { tlbkit_pagetable::Pinned::by(&slab) };
//! assert_eq!(table.table().walk(pinned, at, &mut cold).unwrap().frame, Pfn::new(3));
//! assert_eq!(cold.0, [(0, VirtAddr::new(0xc000_1000))]);
//! table.destroy();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod linear;

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, VirtAddr};

pub use linear::Linear;

use crate::Word;
use crate::format::{EntryLo, Format};
use crate::geometry::Checked as _;
use crate::geometry::Va32;
use crate::mpt::{Mpt, own_pages, region};
use crate::nodes::{NodeAddr, Nodes};
use crate::{
    Change, Error, Footprint, Frames, Holes, Leaf, NestedMissObserver, Pinned, Private, Radix, Retired,
    Space, Table, WriterFlag,
};

/// A linear page table at virtual address `AT` of geometry `G` with entries of format `F`. `N` names nodes by their
/// physical address, which the table's own PTEs hold.
///
/// Every node below the root is one base page; other shapes do not compile.
#[derive(Debug)]
pub struct Lpt<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>, const AT: usize> {
    tree: Mpt<'n, Linear<G, F, AT>, Linear<G, F, AT>, N>,
}

/// The linear table of a MIPS32 kernel: 4 MiB at the bottom of kseg2, its 1024 pages mapped by a root of 4 KiB.
pub type MipsLpt<'n, N> = Lpt<'n, Va32, EntryLo, N, 0xc000_0000>;

/// The linear table of the space of Elphinstone et al., in their format: page-sized nodes of PTE pairs with
/// mapping-tree words, and of 1024 words above. Its 2^55 bytes begin 2^56 below the top.
#[cfg(target_pointer_width = "64")]
pub type PaperLpt<'n, N> = Lpt<'n, crate::geometry::Va64, crate::format::Paper, N, 0xff00_0000_0000_0000>;

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>, const AT: usize> Lpt<'n, G, F, N, AT> {
    /// Returns an empty table: its root.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`] if there is no node for the root.
    pub fn new(nodes: &'n N) -> Result<Self, Error> {
        Ok(Self { tree: Mpt::new(nodes)? })
    }

    /// Returns the root's physical address.
    pub const fn root(&self) -> NodeAddr {
        self.tree.root()
    }

    /// Returns the virtual pages that the table can take up, whether they exist or not.
    pub fn region(&self) -> Pages {
        region::<Linear<G, F, AT>>().unwrap_or(Pages::one(VirtAddr::new(AT).vpn(G::BASE)))
    }

    /// Returns the virtual address of the PTE of `at`: what a refill handler loads from. A table of one level is its
    /// root, at `AT`.
    pub fn pte(&self, at: VirtAddr) -> VirtAddr {
        let last = G::WIDTHS.len() - 1;
        let page = own_pages::<Linear<G, F, AT>>(last, Pages::one(at.vpn(G::BASE)));
        let start = page.map_or(AT, |page| page.first().address(G::BASE).get());
        VirtAddr::new(start + self.tree.leaf_place(at) * F::Word::BYTES)
    }
}

// SAFETY: everything is the tree's.
unsafe impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>, const AT: usize> Table<'n>
    for Lpt<'n, G, F, N, AT>
{
    fn space(&self) -> Space {
        self.tree.space()
    }

    #[inline(always)]
    fn lookup(&self, _pinned: Pinned<'_>, at: VirtAddr) -> Option<Leaf> {
        // SAFETY: the caller is pinned.
        unsafe { self.tree.find_translated(at) }
    }

    fn walk(&self, _pinned: Pinned<'_>, at: VirtAddr, observe: &mut dyn NestedMissObserver) -> Option<Leaf> {
        if !G::SPACE.holds(at) {
            return None;
        }
        // SAFETY: the caller is pinned, and the address is in the space.
        unsafe { self.tree.climb(at, |level, page| observe.translates(level, page)) }
    }

    fn for_each(
        &self,
        pinned: Pinned<'_>,
        pages: Pages,
        visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.tree.for_each(pinned, pages, visit)
    }

    fn footprint(&self) -> Footprint {
        self.tree.footprint()
    }

    fn writer_flag(&self) -> &WriterFlag {
        self.tree.writer_flag()
    }

    fn batch(&self) -> Retired<'n> {
        self.tree.batch()
    }

    #[inline]
    unsafe fn map(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        frame: Pfn,
        size: PageSize,
        attr: Attr,
    ) -> Result<(), Error> {
        // SAFETY: this function's contract.
        unsafe { self.tree.map(batch, pages, frame, size, attr) }
    }

    #[inline]
    unsafe fn unmap(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        holes: Holes,
        frames: Option<&mut dyn Frames>,
    ) -> Result<usize, Error> {
        // SAFETY: this function's contract.
        unsafe { self.tree.unmap(batch, pages, holes, frames) }
    }

    #[inline]
    unsafe fn protect(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        holes: Holes,
        change: Change,
    ) -> Result<usize, Error> {
        // SAFETY: this function's contract.
        unsafe { self.tree.protect(batch, pages, holes, change) }
    }

    unsafe fn replace(
        &self,
        batch: &mut Retired<'n>,
        at: VirtAddr,
        frame: Pfn,
        attr: Attr,
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) -> Result<Leaf, Error> {
        // SAFETY: this function's contract.
        unsafe { self.tree.replace(batch, at, frame, attr, flush_all_cpus) }
    }

    fn breaks_frames(&self) -> bool {
        self.tree.breaks_frames()
    }

    unsafe fn resize(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        to: PageSize,
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) -> Result<(), Error> {
        // SAFETY: this function's contract.
        unsafe { self.tree.resize(batch, pages, to, flush_all_cpus) }
    }

    fn breaks(&self) -> bool {
        F::BREAK
    }

    unsafe fn dismantle(&mut self, batch: &mut Retired<'n>) {
        // SAFETY: this function's contract.
        unsafe { self.tree.dismantle(batch) }
    }
}

// SAFETY: the table has no method that links another table's nodes.
unsafe impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>, const AT: usize> Private<'n>
    for Lpt<'n, G, F, N, AT>
{
}
