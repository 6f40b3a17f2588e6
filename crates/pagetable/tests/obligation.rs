//! The batch that owns what a change took out: it is reclaimed, carried to another CPU, or lost and counted.
#![cfg(not(tlbkit_loom))]

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::format::Compact32;
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, Reclaim, Slab};
use tlbkit_pagetable::{Mode, Retired, Shared, Solo, Writer, destroy};

/// Calls `test` with the nodes of a table of two: its root, and one in which a page is mapped.
fn taken_apart<M: Mode>(test: impl FnOnce(&Slab<'_, u32, M>, Retired<'_>)) {
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Slab::<u32, M>::new(&mut memory, 0).unwrap();
    let table = Mpt::<Va32, Compact32, _>::new(&slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    writer.map(Pages::one(Vpn::new(7)), Pfn::new(9), PageSize::K4, Attr::READ).unwrap();
    // SAFETY: nobody else has the table.
    unsafe { writer.finish().reclaim() };
    let batch = destroy(table);
    assert_eq!((batch.nodes(), batch.is_empty()), (2, false));
    assert_eq!((slab.held().pending(), slab.held().lost(), slab.usage().nodes), (2, 0, 2));
    test(&slab, batch);
}

#[test]
fn a_batch_that_is_dropped_is_a_loss_that_is_counted() {
    taken_apart::<Shared>(|slab, batch| {
        drop(batch);
        // They wait for nothing any more, but nobody may have them again: some CPU may still walk them.
        assert_eq!((slab.held().pending(), slab.held().lost(), slab.usage().nodes), (0, 2, 2));
        drop(Retired::new(slab));
        assert_eq!((slab.held().pending(), slab.held().lost()), (0, 2));
    });
}

#[test]
fn another_cpu_reclaims_what_was_carried_to_it() {
    taken_apart::<Shared>(|slab, batch| {
        let carried = batch.across_cpus().unwrap();
        std::thread::scope(|scope| {
            // SAFETY: nobody else has the table.
            scope.spawn(move || unsafe { carried.into_retired().reclaim() });
        });
        assert_eq!((slab.held().pending(), slab.held().lost(), slab.usage().nodes), (0, 0, 0));
    });
}

#[test]
fn what_one_cpu_has_alone_stays_there() {
    taken_apart::<Solo>(|slab, batch| {
        let batch = batch.across_cpus().unwrap_err();
        assert_eq!(batch.nodes(), 2, "all of it comes back");
        // SAFETY: nobody else has the table.
        unsafe { batch.reclaim() };
        assert_eq!((slab.held().pending(), slab.held().lost(), slab.usage().nodes), (0, 0, 0));
    });
}
