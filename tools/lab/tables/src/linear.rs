//! The linear page table's place in virtual memory.

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::geometry::Va64;
use tlbkit_pagetable::lpt::Lpt;
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Geometry, Local, NestedMissObserver, Pinned, Radix, Solo, Table};

/// Where linear tables begin: 2^56 bytes below the top.
pub(crate) const AT: usize = 0xff00_0000_0000_0000;

/// The 64-bit space in six levels whose nodes below the root are pages of 32-bit words.
#[derive(Debug)]
pub(crate) struct PageNodes;

impl Geometry for PageNodes {
    const VA_BITS: u32 = Va64::VA_BITS;
    const BASE: PageSize = Va64::BASE;
    const SIZES: &'static [PageSize] = Va64::SIZES;
}

impl Radix for PageNodes {
    const WIDTHS: &'static [u32] = &[2, 10, 10, 10, 10, 10];
}

/// Returns the pages of a linear table that lead to the PTE of `page`, the one that holds it first: what a walk in a
/// table of that one page asks for.
pub(crate) fn way<G: Radix, F: Format>(page: Vpn) -> Vec<Vpn> {
    // A page for each of the six levels, one for the slab's descriptors, one to spare.
    let mut memory = [Chunk::ZERO; 8];
    let mut cold = Cold(Vec::new());
    if let Ok(slab) = Slab::<F::Word, Solo>::new(&mut memory, 0)
        && let Ok(table) = Lpt::<G, F, _, AT>::new(&slab)
    {
        let mut table = Local::new(table, |_| ());
        let mapped = table.map(Pages::one(page), Pfn::new(0), PageSize::K4, F::IMPLIED | Attr::READ);
        debug_assert!(mapped.is_ok());
        // SAFETY: nothing is reclaimed while the table is borrowed.
        let pinned = unsafe { Pinned::by(&table) };
        let _ = table.table().walk(pinned, page.address(PageSize::K4), &mut cold);
        table.destroy();
    }
    cold.0
}

/// A TLB that holds nothing, and remembers what it was asked for.
struct Cold(Vec<Vpn>);

impl NestedMissObserver for Cold {
    fn translates(&mut self, _level: usize, page: VirtAddr) -> bool {
        self.0.push(page.vpn(PageSize::K4));
        false
    }
}
