//! Taking over what the table of a bootloader, or of an earlier stage of the boot, maps.

use tlbkit_addr::{Attr, Pages, PhysAddr};
use tlbkit_pagetable::mpt::ForeignTable;
use tlbkit_pagetable::nodes::NodeAddr;
use tlbkit_pagetable::{Error, Leaf, Run, Table as _, Word};

use crate::block::Block;
use crate::counted::{counted, typed};
use crate::storage::Format;
use crate::{AddressSpace, BasePage, Edit, FrameOf, Kernel, Machine, MultiLevel, PagesOf};

impl<K: Kernel<Machine: Machine<Table = MultiLevel>>, const CPUS: usize> AddressSpace<K, CPUS> {
    /// Maps what the table with the root node at `root` maps of `pages`: a table in the machine's own format that a bootloader, or an
    /// earlier stage of the boot, has left. The frames and attributes are the same, [`Attr::GLOBAL`], memory types and status bits
    /// included, and so are the sizes of the pages. A page for which the machine has no size here, that extends beyond `pages`, or that
    /// would fill a top-level slot that is [lent](Self::lending), is mapped in the largest pages that can map it. Returns how many base
    /// pages that is. (`root` is `CR3` without its low 12 bits, the PPN of `satp` times 4096, or the address in `TTBR1_EL1`.)
    ///
    /// A right that a link above the pages takes away is taken from the pages, because links of an address space allow everything. Bits
    /// that hardware leaves to software are left out.
    ///
    /// The pages are copied, and the other table stays as it is: `tlbkit` neither changes nor frees its nodes, which
    /// [`Kernel::take_frame`] has not returned, and to which several links may lead. When each CPU has loaded another root than `root`
    /// and has flushed, the kernel may use the memory of these nodes for something else.
    ///
    /// # The frames
    ///
    /// `share` is called with each run of frames before it is mapped, when nothing can fail any more. From then on the pages are as those
    /// of [`map`](Self::map): when a page is unmapped, or the address space ends, [`Kernel::release`] gets its frame, also one that the
    /// kernel has never given out, as those of its own image and of devices are. So either [`Kernel::release`] leaves such frames alone;
    /// or `share` counts one more use of the frame, as [`Kernel::share`] does, beside the use by the owner, and the release takes that one
    /// away. `share` runs with interrupts masked, and must not call back into the [`Mmu`](crate::Mmu) or an address space.
    ///
    /// Costs two walks of the other table for each of its entries in `pages`, and what [`map`](Self::map) costs; all of it with
    /// interrupts masked. Whatever the other table's words are, the call reads at most four million entries, and its stack does not
    /// grow with the table.
    ///
    /// # Errors
    ///
    /// [`Error::Foreign`] with the first page whose entry the machine's format here cannot express, or that is global where
    /// [`map`](Self::map) refuses that; [`Error::Endless`] if `pages` include a slot whose links lead back to a node above it, as those of
    /// a recursive mapping do, or more than four million entries; [`Error::Occupied`], [`Error::Marked`], [`Error::OutOfRange`],
    /// [`Error::Borrowed`], [`Error::NoMemory`]; those of [`edit`](Self::edit). Nothing has changed then.
    ///
    /// # Safety
    ///
    /// Until the call returns,
    ///
    /// - no code changes the words of the table whose root node is at `root` (hardware may set status bits);
    /// - [`Kernel::memory`] maps, for reading, each node of that table on the way to one of `pages`;
    /// - the registers that give entries their meaning have the values which [`Kernel::Machine`] asks for: MAIR_EL1, IA32_PAT, and those
    ///   of the table's shape.
    pub unsafe fn take_over(
        &self,
        root: PhysAddr,
        pages: PagesOf<K>,
        share: impl FnMut(Run<FrameOf<K>>),
    ) -> Result<usize, Error> {
        let pages = counted::<K>(pages);
        let boot = BootTable { root, pages, space: &*self.0 };
        self.edit(|edit| edit.take_over(&boot, share))
    }
}

impl<K: Kernel<Machine: Machine<Table = MultiLevel>>, const CPUS: usize> Edit<'_, K, CPUS> {
    /// Maps what `boot` maps of its pages.
    fn take_over(
        &mut self,
        boot: &BootTable<'_, K, CPUS>,
        mut share: impl FnMut(Run<FrameOf<K>>),
    ) -> Result<usize, Error> {
        let (mut changes, writer) = self.parts();
        changes.make_way(writer.pending(), boot.pages);
        let mapped = writer.take_over(boot.pages, boot, |run| share(typed::<K, _>(run)))?;
        // Some pages may be the kernel's.
        changes.put_in_force(writer.pending(), boot.pages, Attr::empty());
        Ok(mapped)
    }
}

/// A table whose nodes [`Kernel::memory`] maps for reading, on the way to `pages`, and whose words no code changes: by the contract of
/// [`AddressSpace::take_over`], which alone makes it.
struct BootTable<'s, K: Kernel, const CPUS: usize> {
    root: PhysAddr,
    pages: Pages,
    space: &'s Block<K, CPUS>,
}

impl<K: Kernel, const CPUS: usize> ForeignTable<Format<K>> for BootTable<'_, K, CPUS> {
    fn root(&self) -> NodeAddr {
        NodeAddr::new(self.root.get())
    }

    fn word(&self, node: NodeAddr, index: usize) -> WordOf<K> {
        let mask = <<K::Machine as Machine>::Base as BasePage>::SIZE.mask();
        let at = node.get() + index * WordOf::<K>::BYTES;
        let frame = self.space.mmu.kernel().memory(PhysAddr::new(at & !mask));
        // SAFETY: by the contract of `take_over` the frame's memory is mapped for reading, and no code writes it but hardware, whose
        // stores are atomic. `ForeignTable` asks for words of the root, whose address `take_over`'s caller has from the machine's root
        // register, and of nodes to which links lead: both are aligned to a node, and no node is larger than a frame.
        let cell = unsafe { &*frame.add(at & mask).cast::<<WordOf<K> as Word>::Cell>() };
        Word::follow(cell)
    }

    fn check(&self, leaf: &Leaf) -> Result<(), Error> {
        let pages = self.space.table.space().pages_of(leaf).intersect(self.pages).unwrap_or(self.pages);
        self.space.check_global(leaf.attr, pages).map_err(|_| Error::Foreign { at: leaf.at })
    }
}

/// The words of a kernel's page tables.
type WordOf<K> = <Format<K> as tlbkit_pagetable::format::Format>::Word;
