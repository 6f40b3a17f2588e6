//! A storage keeps the debts of four tables: dropped batches of more tables lose nodes, but no flush, however many tables there are.

use tlbkit_addr::{Attr, FlushScope, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::format::Compact32;
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::mpt::{Encoded, Mpt};
use tlbkit_pagetable::nodes::{Chunk, Reclaim, Slab};
use tlbkit_pagetable::{Change, FlushAll, Holes, PageTurn, Shared, Writer, destroy};

type Nodes<'m> = Slab<'m, u32, Shared>;
type Tree<'n, 'm> = Mpt<'n, Va32, Compact32, Nodes<'m>>;

const RW: Attr = Attr::READ.union(Attr::WRITE);
const PAGE: Pages = Pages::one(Vpn::new(7));

fn mapped<'n, 'm>(slab: &'n Nodes<'m>) -> Tree<'n, 'm> {
    let table = Mpt::new(slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    writer.map(PAGE, Pfn::new(9), PageSize::K4, RW).unwrap();
    // SAFETY: no CPU walks the table.
    unsafe { writer.finish().reclaim() };
    table
}

/// Takes the right to write away, and drops the flush.
fn protect_and_drop(table: &Tree<'_, '_>) {
    let mut writer = Writer::new(table).unwrap();
    writer.protect(PAGE, Holes::Refuse, Change::clear(Attr::WRITE)).unwrap();
    drop(writer.finish());
}

/// Tells whether the table's next batch flushes everything on every CPU, and completes it.
fn flushes(table: &Tree<'_, '_>) -> bool {
    let batch = Writer::new(table).unwrap().finish();
    let flushes = batch.flush().is_all() && batch.flush().scope() == FlushScope::Everywhere;
    // SAFETY: no CPU walks the table.
    unsafe { batch.reclaim() };
    flushes
}

#[test]
fn the_flush_of_every_table_is_remembered() {
    let mut memory = vec![Chunk::ZERO; 32];
    let slab = Nodes::new(&mut memory, 0).unwrap();
    let tables: Vec<_> = (0..9).map(|_| mapped(&slab)).collect();
    let (bystander, others) = tables.split_first().unwrap();
    others.iter().for_each(protect_and_drop);
    for table in others {
        // One store must not pass over the flush that is owed.
        assert!(PageTurn::new(table, PAGE.first()).unwrap().slot().is_none());
        assert!(flushes(table));
        assert!(!flushes(table), "once");
    }
    // Each table has flushed, so each has its fast path.
    assert!(flushes(bystander), "which table the debt was of is forgotten");
    for table in &tables {
        let mut turn = PageTurn::new(table, PAGE.first()).unwrap();
        let slot = turn.slot().unwrap();
        assert!(
            slot.replace(Pfn::new(4), Encoded::new(Attr::READ).unwrap(), FlushAll::in_place(&mut |_| ()))
                .is_some()
        );
    }
    // A table that is made later owes nothing.
    let new = mapped(&slab);
    assert!(!flushes(&new) && PageTurn::new(&new, PAGE.first()).unwrap().slot().is_some());
    // A batch that has taken up the flush and is dropped leaves it to the next one.
    others.iter().for_each(protect_and_drop);
    drop(Writer::new(&new).unwrap().finish());
    assert!(flushes(&new) && !flushes(&new));
    for table in tables.into_iter().chain([new]) {
        // SAFETY: no CPU walks the table.
        unsafe { destroy(table).reclaim() };
    }
    assert_eq!((slab.usage().nodes, slab.held().lost(), slab.held().pending()), (0, 0, 0));
}

/// The batch of a destroyed table concerns no other table.
#[test]
fn a_destroyed_tables_batch_is_nobodys_flush() {
    let mut memory = vec![Chunk::ZERO; 16];
    let slab = Nodes::new(&mut memory, 0).unwrap();
    let (table, gone) = (mapped(&slab), mapped(&slab));
    drop(destroy(gone));
    assert!(!flushes(&table) && slab.held().lost() == 2);
    // SAFETY: no CPU walks the table.
    unsafe { destroy(table).reclaim() };
}
