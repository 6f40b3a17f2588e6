//! The batch that owns what a change took out: it is reclaimed, carried to another CPU, or lost and counted.

use tlbkit_addr::{Attr, Flush, FlushScope, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::format::Compact32;
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::hpt::{Buckets, Hashed};
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, Reclaim, Slab};
use tlbkit_pagetable::{Change, Error, Holes, Local, Mode, Retired, Shared, Solo, Table, Writer, destroy};

/// Calls `test` with the nodes of a table of two: its root, and one in which a page is mapped.
fn taken_apart<M: Mode>(test: impl FnOnce(&Slab<'_, u32, M>, Retired<'_>)) {
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Slab::<u32, M>::new(&mut memory, 0).unwrap();
    let table = Mpt::<Va32, Compact32, _>::new(&slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    writer.map(Pages::one(Vpn::new(7)), Pfn::new(9), PageSize::K4, Attr::READ).unwrap();
    // SAFETY: no other code has the table.
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
        // They wait for nothing any more, but no code may have them again: some CPU may still walk them.
        assert_eq!((slab.held().pending(), slab.held().lost(), slab.usage().nodes), (0, 2, 2));
        drop(Retired::new(slab));
        assert_eq!((slab.held().pending(), slab.held().lost()), (0, 2));
    });
}

/// A writer beside a `Local` would leave debts that the `Local` never takes up.
#[test]
fn a_local_is_its_tables_only_writer() {
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let mut local = Local::new(Mpt::<Va32, Compact32, _>::new(&slab).unwrap(), |_: &Flush| ());
    assert_eq!(Writer::new(local.table()).err(), Some(Error::Busy));
    local.map(Pages::one(Vpn::new(7)), Pfn::new(9), PageSize::K4, Attr::READ).unwrap();
    assert_eq!(Writer::new(local.table()).err(), Some(Error::Busy));
    local.destroy();
    assert_eq!(slab.usage().nodes, 0);
}

#[test]
fn another_cpu_reclaims_what_was_carried_to_it() {
    taken_apart::<Shared>(|slab, batch| {
        let carried = batch.across_cpus().unwrap();
        std::thread::scope(|scope| {
            // SAFETY: no other code has the table.
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
        // SAFETY: no other code has the table.
        unsafe { batch.reclaim() };
        assert_eq!((slab.held().pending(), slab.held().lost(), slab.usage().nodes), (0, 0, 0));
    });
}

/// Unmaps pages of a table of two levels, one node each, and returns the batch.
fn unmapped<'n>(table: &Mpt<'n, Va32, Compact32, Slab<'n, u32, Shared>>, page: usize) -> Retired<'n> {
    let mut writer = Writer::new(table).unwrap();
    let pages = Pages::one(Vpn::new(page));
    writer.map(pages, Pfn::new(9), PageSize::K4, Attr::READ).unwrap();
    // SAFETY: no other CPU walks the table.
    unsafe { writer.pending().unwrap().take().reclaim() };
    writer.unmap(pages, Holes::Refuse).unwrap();
    writer.finish()
}

/// What must be there after an obligation of a table was dropped: it is counted, and the next writer takes it up.
fn is_taken_up<'n, T: Table<'n>>(slab: &Slab<'n, u32, Shared>, table: &T, nodes: usize) {
    assert_eq!((slab.held().pending(), slab.held().lost()), (nodes, 0));
    let batch = Writer::new(table).unwrap().finish();
    assert_eq!((batch.nodes(), batch.is_empty()), (nodes, false));
    assert!(batch.flush().is_all() && batch.flush().scope() == FlushScope::Everywhere);
    // SAFETY: no other CPU walks the table.
    unsafe { batch.reclaim() };
    assert_eq!((slab.held().pending(), slab.held().lost()), (0, 0));
    assert!(Writer::new(table).unwrap().finish().is_empty(), "once");
}

#[test]
fn a_writer_that_an_early_return_drops_leaves_its_obligation_to_the_next() {
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Slab::<u32, Shared>::new(&mut memory, 0).unwrap();
    let table = Mpt::<Va32, Compact32, _>::new(&slab).unwrap();
    let early = |fails: bool| -> Result<Retired<'_>, Error> {
        let mut writer = Writer::new(&table)?;
        let pages = Pages::one(Vpn::new(7));
        writer.map(pages, Pfn::new(9), PageSize::K4, Attr::READ)?;
        writer.unmap(pages, Holes::Refuse)?;
        if fails { Err(Error::Busy) } else { Ok(writer.finish()) }
    };
    assert!(early(true).is_err());
    assert_eq!(slab.held().dropped(), 1);
    is_taken_up(&slab, &table, 1);
    // A flush alone is owed, too.
    let mut writer = Writer::new(&table).unwrap();
    writer.map(Pages::one(Vpn::new(7)), Pfn::new(9), PageSize::K4, Attr::READ | Attr::WRITE).unwrap();
    // SAFETY: no other CPU walks the table.
    unsafe { writer.pending().unwrap().take().reclaim() };
    writer.protect(Pages::one(Vpn::new(7)), Holes::Refuse, Change::clear(Attr::WRITE)).unwrap();
    drop(writer.finish());
    assert_eq!(slab.held().dropped(), 2);
    is_taken_up(&slab, &table, 0);
    // SAFETY: no other CPU walks the table.
    unsafe { destroy(table).reclaim() };
    assert_eq!((slab.usage().nodes, slab.held().dropped()), (0, 2));
}

#[test]
fn a_table_takes_up_its_own_obligations_and_no_others() {
    let mut memory = vec![Chunk::ZERO; 16];
    let slab = Slab::<u32, Shared>::new(&mut memory, 0).unwrap();
    let tables: [Mpt<'_, Va32, Compact32, _>; 5] = std::array::from_fn(|_| Mpt::new(&slab).unwrap());
    for table in &tables[..4] {
        // Two batches become one list.
        let (first, second) = (unmapped(table, 7), unmapped(table, 9));
        std::thread::scope(|scope| {
            let first = first.across_cpus().unwrap();
            scope.spawn(move || drop(first));
        });
        drop(second);
    }
    assert_eq!((slab.held().dropped(), slab.held().pending(), slab.held().lost()), (8, 8, 0));
    // There is room for four; the fifth loses its node, but not its flush.
    drop(unmapped(&tables[4], 7));
    assert_eq!((slab.held().pending(), slab.held().lost()), (8, 1));
    let batch = Writer::new(&tables[4]).unwrap().finish();
    assert!(batch.nodes() == 0 && batch.flush().is_all() && batch.flush().scope() == FlushScope::Everywhere);
    // SAFETY: no other CPU walks the table.
    unsafe { batch.reclaim() };
    assert!(Writer::new(&tables[4]).unwrap().finish().is_empty(), "it has flushed");
    let [first, second, third, fourth, fifth] = tables;
    let batch = Writer::new(&first).unwrap().finish();
    assert_eq!(batch.nodes(), 2);
    // SAFETY: no other CPU walks the tables.
    unsafe {
        batch.reclaim();
        // One that is taken apart takes up, too; one that is dropped loses it with the rest.
        let batch = destroy(second);
        assert_eq!(batch.nodes(), 3);
        batch.reclaim();
        drop(third);
        assert_eq!((slab.held().pending(), slab.held().lost()), (2, 1 + 3));
        for table in [first, fourth, fifth] {
            destroy(table).reclaim();
        }
    }
    assert_eq!((slab.usage().nodes, slab.held().pending(), slab.held().lost()), (4, 0, 4));
}

/// A table of one first bucket, for blocks of eight pages.
type Chain<'n> = Hashed<'n, Va32, Compact32, Slab<'n, u32, Shared>, Buckets<3, 0, 0>>;

/// Maps a page and unmaps it again; that kills the first bucket.
fn killed<'n>(table: &Chain<'n>, page: usize) -> Retired<'n> {
    let mut writer = Writer::new(table).unwrap();
    let pages = Pages::one(Vpn::new(page));
    writer.map(pages, Pfn::new(9), PageSize::K4, Attr::READ).unwrap();
    writer.unmap(pages, Holes::Refuse).unwrap();
    writer.finish()
}

/// Maps a page, and tells whether that took an overflow bucket.
fn overflows(table: &Chain<'_>, page: usize) -> bool {
    let before = table.footprint().nodes;
    let mut writer = Writer::new(table).unwrap();
    writer.map(Pages::one(Vpn::new(page)), Pfn::new(9), PageSize::K4, Attr::READ).unwrap();
    // SAFETY: no other CPU walks the table.
    unsafe { writer.finish().reclaim() };
    table.footprint().nodes > before
}

#[test]
fn a_dropped_quarantine_holds_up_its_own_table_until_the_next_batch_completes() {
    let mut memory = vec![Chunk::ZERO; 16];
    let slab = Slab::<u32, Shared>::new(&mut memory, 0).unwrap();
    let (mine, other) = (Chain::new(&slab).unwrap(), Chain::new(&slab).unwrap());
    // SAFETY: no other CPU walks the tables.
    unsafe { killed(&other, 16).reclaim() };
    let late = killed(&mine, 16);
    let mut writer = Writer::new(&mine).unwrap();
    // With its first change the writer takes up what is owed: nothing yet.
    writer.unmap(Pages::one(Vpn::new(7)), Holes::Skip).unwrap();
    drop(late);
    assert_eq!(slab.held().dropped(), 1);
    // Its bucket may have a walker yet, whichever writer asks.
    writer.map(Pages::one(Vpn::new(32)), Pfn::new(9), PageSize::K4, Attr::READ).unwrap();
    assert_eq!(mine.footprint().nodes, 2, "an overflow bucket");
    // SAFETY: no other CPU walks the tables.
    unsafe { writer.finish().reclaim() };
    assert!(!overflows(&other, 32), "the other table's bucket was free all the time");
    // The next writer takes it up, and when that has completed the bucket is free.
    let batch = Writer::new(&mine).unwrap().finish();
    assert!(batch.flush().is_all());
    // SAFETY: no other CPU walks the tables.
    unsafe { batch.reclaim() };
    assert!(!overflows(&mine, 48));
    // SAFETY: no other CPU walks the tables.
    unsafe {
        destroy(mine).reclaim();
        destroy(other).reclaim();
    }
    assert_eq!((slab.usage().nodes, slab.held().lost()), (0, 0));
}

#[test]
fn one_batch_has_what_several_tables_have_retired() {
    let mut memory = vec![Chunk::ZERO; 32];
    let (own, rest) = memory.split_at_mut(16);
    let slab = Slab::<u32, Shared>::new(own, 0).unwrap();
    let elsewhere = Slab::<u32, Shared>::new(rest, 0).unwrap();
    let tables: [Chain<'_>; 2] = std::array::from_fn(|_| Chain::new(&slab).unwrap());
    let foreign = Chain::new(&elsewhere).unwrap();
    let mut all = Retired::new(&slab).across_cpus().unwrap();
    let mut first = killed(&tables[0], 16);
    all.append(first.pending()).unwrap();
    assert!(first.is_empty());
    let mut back = killed(&foreign, 16);
    assert!(all.append(back.pending()).is_err());
    let mut all = all.into_retired();
    all.append(killed(&tables[1], 16)).unwrap();
    let back = all.append(back).unwrap_err();
    assert!(all.flush().is_all());
    assert!(overflows(&tables[0], 32), "its bucket is held back");
    // SAFETY: no other CPU walks the tables.
    unsafe {
        all.reclaim();
        back.reclaim();
    }
    assert!(!overflows(&tables[1], 32), "each quarantine has been released once");
    for table in tables.into_iter().chain([foreign]) {
        // SAFETY: no other CPU walks the tables.
        unsafe { destroy(table).reclaim() };
    }
    assert_eq!((slab.held().lost(), elsewhere.held().lost()), (0, 0));
}
