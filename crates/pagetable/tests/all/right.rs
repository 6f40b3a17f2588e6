//! The right to change a table is that of one table.

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::Compact32;
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{
    Change, Error, FlushAll, Holes, Pinned, Rest, Retired, Right, Shared, Table, Writer, destroy, gpt, hpt,
    mpt,
};

/// Returns the right to change a table that the test does not change otherwise, with a batch of that table.
pub(crate) fn right<'w, 'n, T: Table<'n>>(table: &'w T, batch: &'w mut Retired<'n>) -> Right<'w, 'n> {
    // SAFETY: the callers are the table's only writers, and pass batches of the table.
    unsafe { Right::new(table.writer_flag(), batch) }
}

/// Each change of `table` with the right to change `other` is refused, and neither table nor batch has changed.
fn refuses<'n>(table: &impl Table<'n>, other: &impl Table<'n>) {
    let page = |vpn| Pages::one(Vpn::new(vpn));
    let at = VirtAddr::new(3 << 12);
    let mut writer = Writer::new(table).unwrap();
    writer.map(page(3), Pfn::new(9), PageSize::K4, Attr::READ).unwrap();
    let own = writer.finish();
    let mut batch = other.batch();
    let (nodes, batch) = (table.footprint().nodes, &mut batch);
    let mut never = |_: &_| panic!("a flush for a change that is refused");
    assert_eq!(
        table.map(right(other, batch), page(4), Pfn::new(9), PageSize::K4, Attr::READ),
        Err(Error::OtherTable)
    );
    assert_eq!(table.unmap(right(other, batch), page(3), Holes::Refuse), Err(Error::OtherTable));
    assert_eq!(table.take_next(right(other, batch), &mut Rest::of(page(3))), Err(Error::OtherTable));
    let change = Change::clear(Attr::READ);
    assert_eq!(table.protect(right(other, batch), page(3), Holes::Skip, change), Err(Error::OtherTable));
    assert_eq!(
        table.replace(right(other, batch), at, Pfn::new(8), Attr::READ, FlushAll::in_place(&mut never)),
        Err(Error::OtherTable)
    );
    assert_eq!(
        table.resize(right(other, batch), page(3), PageSize::K4, FlushAll::in_place(&mut never)),
        Err(Error::OtherTable)
    );
    assert!(batch.is_empty());
    assert_eq!(table.footprint().nodes, nodes);
    // SAFETY: nothing is reclaimed meanwhile.
    assert_eq!(table.lookup(unsafe { Pinned::by(&own) }, at).unwrap().frame, Pfn::new(9));
    // SAFETY: no CPU walks the table.
    unsafe { own.reclaim() };
}

#[test]
fn of_another_table_changes_nothing() {
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Slab::<u32, Shared>::new(&mut memory, 0).unwrap();
    let [multi, beside] = [(); 2].map(|()| mpt::Mpt::<Va32, Compact32, _>::new(&slab).unwrap());
    let guarded = gpt::Gpt::<Va32, Compact32, _, gpt::OneWord, gpt::Fixed<4>>::new(&slab).unwrap();
    let hashed = hpt::Hpt32::<_>::new(&slab).unwrap();
    refuses(&multi, &beside);
    refuses(&beside, &hashed);
    refuses(&guarded, &multi);
    refuses(&hashed, &guarded);
    for batch in [destroy(multi), destroy(beside), destroy(guarded), destroy(hashed)] {
        // SAFETY: no CPU walks the tables.
        unsafe { batch.reclaim() };
    }
}
