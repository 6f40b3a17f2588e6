//! Nodes whose addresses a table's links cannot hold: they are refused like memory that is exhausted.
#![cfg(not(loom))]

use tlbkit_addr::{PageSize, Pages, Pfn, VirtAddr};
use tlbkit_pagetable::format::{EntryLo, Format};
use tlbkit_pagetable::gpt::{Adaptive, Fixed, Gpt32};
use tlbkit_pagetable::nodes::{Chunk, Reclaim, Slab};
use tlbkit_pagetable::{Error, Local, Solo};

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
