//! A table that is dropped, not destroyed, leaks its nodes, and the storage knows how many.
#![cfg(target_pointer_width = "64")]

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::format::Compact;
use tlbkit_pagetable::geometry::Va48;
use tlbkit_pagetable::gpt::Gpt48;
use tlbkit_pagetable::hpt::{Buckets, Hashed};
use tlbkit_pagetable::mpt::Mpt4;
use tlbkit_pagetable::nodes::{Chunk, Reclaim, Slab};
use tlbkit_pagetable::{Holes, Local, Private, Solo, Writer};

/// Maps pages in a new table, drops that, and returns how many nodes were lost.
fn lost<'n, T: Private<'n>>(slab: &'n Slab<'_, u64, Solo>, table: T, pages: &[usize]) -> usize {
    let (before, others) = (slab.held().lost(), slab.usage().nodes - table.footprint().nodes);
    let mut table = Local::new(table, |_| ());
    for &vpn in pages {
        let page = Pages::one(Vpn::new(vpn));
        table.map(page, Pfn::new(vpn), PageSize::K4, Attr::READ).unwrap();
    }
    drop(table);
    let lost = slab.held().lost() - before;
    assert_eq!(slab.usage().nodes - others, lost, "what is lost stays in use");
    lost
}

#[test]
fn a_dropped_table_counts_its_nodes_as_lost() {
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
    // Four levels; two of them again for the second page.
    assert_eq!(lost(&slab, Mpt4::new(&slab).unwrap(), &[1, 1 << 18]), 6);
    // Two leaves and the node above them.
    assert_eq!(lost(&slab, Gpt48::new(&slab).unwrap(), &[1, 1 << 18]), 3);
    // An array of one bucket, and two behind it.
    let chain = Hashed::<Va48, Compact, _, Buckets<0, 0, 0>>::new(&slab).unwrap();
    assert_eq!(lost(&slab, chain, &[1, 2, 3]), 3);
}

/// What a table has borrowed it has not lost.
#[test]
fn a_dropped_borrower_loses_its_own_nodes() {
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
    let mut kernel = Mpt4::new(&slab).unwrap();
    let top = usize::MAX >> 12;
    kernel.lend([Pages::new(Vpn::new(top - ((1 << 28) - 1)), Vpn::new(top)).unwrap()]).unwrap();
    assert_eq!(lost(&slab, Mpt4::sharing(&kernel).unwrap(), &[]), 1);
    assert_eq!(lost(&slab, Mpt4::sharing(&kernel).unwrap(), &[1]), 4);
    drop(kernel);
    assert_eq!(slab.held().lost(), 1 + 4 + 3);
}

/// What a forgotten writer has changed is flushed by the table's next owner.
#[test]
fn after_a_forgotten_writer_everything_is_flushed() {
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
    let table = Mpt4::new(&slab).unwrap();
    let page = Pages::one(Vpn::new(5));
    let mut writer = Writer::new(&table).unwrap();
    writer.map(page, Pfn::new(3), PageSize::K4, Attr::READ).unwrap();
    writer.unmap(page, Holes::Refuse).unwrap();
    std::mem::forget(writer);
    let mut flushed = false;
    let mut table = Local::new(table, |flush: &Flush| flushed |= flush.covers(page));
    table.map(page, Pfn::new(9), PageSize::K4, Attr::READ).unwrap();
    drop(table);
    assert!(flushed);
}
