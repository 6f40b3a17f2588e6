//! Nodes whose addresses a table's links cannot hold: they are refused like memory that is exhausted.
#![cfg(not(tlbkit_loom))]

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr};
#[cfg(target_pointer_width = "64")]
use tlbkit_pagetable::format::{Aarch64, Sv39, X86};
use tlbkit_pagetable::format::{EntryLo, Format};
#[cfg(target_pointer_width = "64")]
use tlbkit_pagetable::geometry::{Va39, Va48};
use tlbkit_pagetable::gpt::{Adaptive, Fixed, Gpt32};
use tlbkit_pagetable::nodes::{Chunk, Reclaim, Slab};
use tlbkit_pagetable::{Error, Local, Solo};
#[cfg(target_pointer_width = "64")]
use tlbkit_pagetable::{Radix, mpt::Mpt};

const CHUNKS: usize = 16;

/// Maps pages all over the address space of a table of which nodes begin at `base`, until one is refused.
macro_rules! mapped {
    ($policy:ty, $base:expr) => {{
        let mut memory = vec![Chunk::ZERO; CHUNKS];
        let slab = Slab::<u32, Solo>::new(&mut memory, $base).unwrap();
        let mut table = Local::new(Gpt32::<_, $policy>::new(&slab), |_stale| ());
        let page = |at: usize| VirtAddr::new(at << 25 | at << 14);
        let mut mapped = 0;
        let result: Result<(), Error> = (0..64).try_for_each(|at| {
            let page = Pages::one(page(at).vpn(PageSize::K4));
            table.map(page, Pfn::new(at), PageSize::K4, EntryLo::IMPLIED)?;
            mapped += 1;
            Ok(())
        });
        for at in 0..64 {
            let frame = table.lookup(page(at)).map(|leaf| leaf.frame);
            assert_eq!(
                frame,
                (at < mapped).then_some(Pfn::new(at)),
                "page {at} with nodes from {:#x}",
                $base
            );
        }
        table.destroy();
        assert_eq!((slab.usage().nodes, slab.held().lost()), (0, 0));
        (mapped, result)
    }};
}

#[test]
fn nodes_that_links_cannot_name_are_refused() {
    let all = (64, Ok::<(), Error>(()));
    // In kseg0 are the lowest 512 MiB of physical memory.
    let reach = 1 << 29;
    assert_eq!(mapped!(Fixed<4>, reach - CHUNKS * 4096), all);
    let (mapped, result) = mapped!(Fixed<4>, reach);
    assert!(mapped == 0 && matches!(result, Err(Error::NoMemory { pending: 0, .. })), "{mapped}, {result:?}");
    // Links of adaptive tables have room for an address in the lowest 8 MiB.
    let reach = 1 << 23;
    assert_eq!(mapped!(Adaptive, reach - CHUNKS * 4096), all);
    let (mapped, result) = mapped!(Adaptive, reach);
    assert!(mapped == 0 && matches!(result, Err(Error::NoMemory { pending: 0, .. })), "{mapped}, {result:?}");
}

#[test]
fn a_table_uses_the_nodes_that_it_can_name() {
    // Two chunks of the memory lie below, of which the first has the descriptors.
    let (mapped, result) = mapped!(Fixed<4>, (1 << 29) - 2 * 4096);
    assert!(
        0 < mapped && mapped < 64 && matches!(result, Err(Error::NoMemory { .. })),
        "{mapped}, {result:?}"
    );
}

/// What hardware reads of a link is narrower than the word.
#[test]
#[cfg(target_pointer_width = "64")]
fn no_node_lies_beyond_what_hardware_reads_of_a_link() {
    fn check<G: Radix, F: Format<Word = u64>>(bits: u32) {
        let page = Pages::one(VirtAddr::new(0x5000).vpn(PageSize::K4));
        let below = |chunks: usize| {
            let mut memory = vec![Chunk::ZERO; CHUNKS];
            let slab = Slab::<u64, Solo>::new(&mut memory, (1 << bits) - chunks * 4096).unwrap();
            let outcome = Mpt::<G, F, _>::new(&slab).and_then(|table| {
                let mut table = Local::new(table, |_stale| ());
                let outcome = table.map(page, Pfn::new(7), PageSize::K4, F::IMPLIED.union(Attr::READ));
                let found = table.lookup(VirtAddr::new(0x5000)).map(|leaf| leaf.frame);
                assert_eq!(found, outcome.is_ok().then_some(Pfn::new(7)));
                table.destroy();
                outcome
            });
            assert_eq!((slab.usage().nodes, slab.held().lost()), (0, 0));
            outcome
        };
        let levels = G::WIDTHS.len();
        assert_eq!(below(CHUNKS), Ok(()));
        // The first chunk has the descriptors: there is room for the root.
        assert_eq!(below(2), Err(Error::NoMemory { wanted: levels - 1, pending: 0 }));
        assert_eq!(below(0), Err(Error::NoMemory { wanted: 1, pending: 0 }));
    }
    check::<Va39, Sv39>(56);
    check::<Va48, X86>(52);
    check::<Va48, Aarch64>(48);
}
