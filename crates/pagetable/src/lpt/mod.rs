//! The linear page table (LPT): one array of PTEs for the whole address space, in virtual memory.
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
//!    one load, if the TLB holds this page                              highest level
//! ```
//!
//! PTEs also map the table's own pages: the PTEs of level 1 map the pages of level 0, which hold the PTEs of the program's
//! pages, and so on; the root, in physical memory, maps the pages of the highest level. Every level is a separate array, one
//! after the other from `AT` on. So index widths may differ by level, the root needs no slot that maps the table to itself,
//! and one formula for each level gives the address of a PTE. Only pages with at least one entry exist.
//!
//! A linear table is a [multi-level table](crate::mpt) in which a node is one page, and a link is the leaf word that maps
//! this page ([`Linear`]). So an LPT takes the memory of an MPT with page-sized nodes, and the same code edits both.
//!
//! # Cost
//!
//! A lookup is **one load** if the TLB translates the page of level 0. If it does not, there is a nested miss: the handler
//! loads the PTE of that page, which may miss on a page of level 1, and so on, with 64 bits up to five times ("six cascaded
//! faults", Elphinstone et al. 2.1). Each of these misses also takes a TLB entry. Elphinstone et al. (5.5) estimate that an
//! LPT is faster than the multi-level table if at least four of five of these loads hit in the TLB.
//!
//! [`Table::walk`] asks a [`NestedMissObserver`] about each of those pages, from level 0 up, and then makes the loads, from
//! the root down. In the terms of Bala et al. (1994, 2), a miss on a user's page is an L1U miss, an answer "no" at level 0
//! an L2 miss, and one at level 1 an L3 miss; the page's address distinguishes the kernel's part (L1K) from the user's.
//! [`Table::lookup`] assumes that the TLB translates every page. In both, a storage that counts [`Nodes::walked_at`] counts
//! exactly the machine's loads. The kernel's own lookup cannot rely on the TLB: it finds the page of level 0 from the root,
//! in physical memory, by loads that are not counted.
//!
//! The leaf of a larger page is repeated in all its slots. A page may be as large as the range that one page of the table
//! maps; larger pages are refused with [`Error::WrongSize`].
//!
//! On x86-64 every operation takes at most 2 KiB of stack; `cargo xtask stack` prints the figures.
//!
//! # Flushes
//!
//! A page of the table that becomes empty is retired, and **the flush of the change includes its own translation**: its
//! virtual page in the array of its level. Otherwise a handler on another CPU could load PTEs from a page that has a new
//! owner. The dismantling of the table flushes its whole [`region`](Lpt::region). A new page of the table needs the flush
//! that [`APPEARS`](crate::format::Format::APPEARS) says, because a TLB may hold the other half of its pair.
//!
//! `AT` is in the kernel's part of virtual memory. If the table also maps that part, the kernel must not map other pages in
//! the region.
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

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};

pub use linear::Linear;

use crate::Word;
use crate::format::{EntryLo, Format};
use crate::geometry::Checked as _;
use crate::geometry::Va32;
use crate::mpt::{Mpt, own_pages, region};
use crate::nodes::{NodeAddr, Nodes};
use crate::{
    Change, Error, FlushAll, Footprint, Holes, Leaf, NestedMissObserver, Pinned, Private, Radix, Rest,
    Retired, Right, Space, Table, Uncovered, WriterFlag,
};

/// A linear page table at virtual address `AT`, of geometry `G`, with entries of format `F`. The addresses of nodes from `N`
/// must be physical addresses, because the table's own PTEs hold them.
///
/// Every node below the root is one base page; other shapes do not compile.
#[derive(Debug)]
pub struct Lpt<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>, const AT: usize> {
    tree: Mpt<'n, Linear<G, F, AT>, Linear<G, F, AT>, N>,
}

/// The linear table of a MIPS32 kernel: 4 MiB at the bottom of kseg2, its 1024 pages mapped by a root of 4 KiB.
pub type MipsLpt<'n, N> = Lpt<'n, Va32, EntryLo, N, 0xc000_0000>;

/// The linear table of Elphinstone et al., in their format: page-sized nodes of PTE pairs with mapping-tree words at the
/// last level, and of 1024 words above. Its 2^55 bytes begin 2^56 bytes below the top of the address space.
#[cfg(target_pointer_width = "64")]
pub type PaperLpt<'n, N> = Lpt<'n, crate::geometry::Va64, crate::format::Paper, N, 0xff00_0000_0000_0000>;

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>, const AT: usize> Lpt<'n, G, F, N, AT> {
    /// Returns an empty table, which consists of its root.
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

    /// Returns the virtual pages that the table can occupy, whether they exist or not.
    pub fn region(&self) -> Pages {
        region::<Linear<G, F, AT>>().unwrap_or(Pages::one(VirtAddr::new(AT).vpn(G::BASE)))
    }

    /// Returns the virtual address of the PTE of `at`, from which a refill handler loads. A table of one level consists of
    /// its root, at `AT`.
    pub fn pte(&self, at: VirtAddr) -> VirtAddr {
        let last = G::WIDTHS.len() - 1;
        let page = own_pages::<Linear<G, F, AT>>(last, Pages::one(at.vpn(G::BASE)));
        let start = page.map_or(AT, |page| page.first().address(G::BASE).get());
        VirtAddr::new(start + self.tree.leaf_place(at) * F::Word::BYTES)
    }
}

// SAFETY: every function calls that of the radix table `tree`, which implements `Table`, and the flag and the batches are
// those of `tree`.
unsafe impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>, const AT: usize> Table<'n>
    for Lpt<'n, G, F, N, AT>
{
    fn space(&self) -> Space {
        self.tree.space()
    }

    #[inline(always)]
    fn lookup(&self, pinned: Pinned<'_>, at: VirtAddr) -> Option<Leaf> {
        self.tree.find_translated(pinned, at)
    }

    fn walk(&self, pinned: Pinned<'_>, at: VirtAddr, observe: &mut dyn NestedMissObserver) -> Option<Leaf> {
        if !G::SPACE.holds(at) {
            return None;
        }
        self.tree.climb(pinned, at, |level, page| observe.translates(level, page))
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
    fn map(
        &self,
        right: Right<'_, 'n>,
        pages: Pages,
        frame: Pfn,
        size: PageSize,
        attr: Attr,
    ) -> Result<(), Error> {
        self.tree.map(right, pages, frame, size, attr)
    }

    #[inline]
    fn unmap(&self, right: Right<'_, 'n>, pages: Pages, holes: Holes) -> Result<usize, Error> {
        self.tree.unmap(right, pages, holes)
    }

    fn take_next(&self, right: Right<'_, 'n>, rest: &mut Rest) -> Result<Option<(Vpn, Uncovered)>, Error> {
        self.tree.take_next(right, rest)
    }

    fn move_pages(
        &self,
        right: Right<'_, 'n>,
        from: Pages,
        to: Vpn,
        flush_all_cpus: FlushAll<'_>,
    ) -> Result<usize, Error> {
        self.tree.move_pages(right, from, to, flush_all_cpus)
    }

    #[inline]
    fn protect(
        &self,
        right: Right<'_, 'n>,
        pages: Pages,
        holes: Holes,
        change: Change,
    ) -> Result<usize, Error> {
        self.tree.protect(right, pages, holes, change)
    }

    fn replace(
        &self,
        right: Right<'_, 'n>,
        at: VirtAddr,
        frame: Pfn,
        attr: Attr,
        flush_all_cpus: FlushAll<'_>,
    ) -> Result<Leaf, Error> {
        self.tree.replace(right, at, frame, attr, flush_all_cpus)
    }

    fn breaks_frames(&self) -> bool {
        self.tree.breaks_frames()
    }

    fn resize(
        &self,
        right: Right<'_, 'n>,
        pages: Pages,
        to: PageSize,
        flush_all_cpus: FlushAll<'_>,
    ) -> Result<(), Error> {
        self.tree.resize(right, pages, to, flush_all_cpus)
    }

    fn breaks(&self) -> bool {
        F::BREAK
    }

    unsafe fn dismantle(&mut self, batch: &mut Retired<'n>) {
        // SAFETY: the contract of `Table::dismantle`, which the caller keeps for this table, whose writer flag and batches
        // are those of `tree`, is the contract of the call.
        unsafe { self.tree.dismantle(batch) }
    }
}

// SAFETY: the table has no method that links another table's nodes.
unsafe impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>, const AT: usize> Private<'n>
    for Lpt<'n, G, F, N, AT>
{
}
