//! Vacant buckets: an unmap leaves them in their chains, for the page's return, and a table does not collect them.
#![cfg(target_pointer_width = "64")]

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::hpt::Hr;
use tlbkit_pagetable::nodes::Reclaim as _;
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{
    Error, FlushAll, Holes, Invalidate, Local, Pinned, Shared, Solo, Table as _, Writer, cpt::Cpt8, destroy,
};

const RW: Attr = Attr::READ.union(Attr::WRITE);

fn page(vpn: usize) -> Pages {
    Pages::one(Vpn::new(vpn))
}

fn run(vpn: usize, pages: usize) -> Pages {
    Pages::count(Vpn::new(vpn), pages).unwrap()
}

fn at(vpn: usize) -> VirtAddr {
    Vpn::new(vpn).address(PageSize::K4)
}

/// As many blocks, each of one page, in a table of either kind.
const BLOCKS: usize = if cfg!(miri) { 40 } else { 4000 };

/// The pages of a third of the blocks are unmapped and return, one by one and in runs: no bucket is retired, none is taken, and
/// nothing waits for a flush.
macro_rules! comes_and_goes {
    ($table:ty, $apart:expr) => {{
        let mut memory = vec![Chunk::ZERO; 256];
        let slab = Slab::<u64, Shared>::new(&mut memory, 0).unwrap();
        let table = <$table>::new(&slab).unwrap();
        let mut writer = Writer::new(&table).unwrap();
        for block in 0..BLOCKS {
            writer.map(page(block * $apart), Pfn::new(block), PageSize::K4, RW).unwrap();
        }
        // SAFETY: nothing walks.
        unsafe { writer.finish().reclaim() };
        let (before, nodes) = (table.footprint(), slab.usage().nodes);
        let third = (BLOCKS / 3) * $apart;
        for _ in 0..3 {
            let mut writer = Writer::new(&table).unwrap();
            for vpn in (0..third).step_by($apart) {
                writer.unmap(page(vpn), Holes::Refuse).unwrap();
            }
            assert_eq!(table.blocks(), BLOCKS - BLOCKS / 3);
            for vpn in (0..third).step_by($apart) {
                writer.map(page(vpn), Pfn::new(vpn), PageSize::K4, RW).unwrap();
            }
            writer.unmap(run(0, third), Holes::Skip).unwrap();
            assert_eq!((table.blocks(), table.footprint().nodes), (BLOCKS - BLOCKS / 3, before.nodes));
            for vpn in (0..third).step_by($apart) {
                writer.map(page(vpn), Pfn::new(vpn), PageSize::K4, RW).unwrap();
            }
            let batch = writer.finish();
            assert_eq!((batch.nodes(), table.footprint(), slab.usage().nodes), (0, before, nodes));
            assert!(slab.held().is_quiet(table.writer_flag()), "no bucket waits for the batch");
            // SAFETY: nothing walks.
            unsafe { batch.reclaim() };
        }
        // SAFETY: nothing walks.
        unsafe { destroy(table).reclaim() };
        assert_eq!(slab.usage().nodes, 0);
    }};
}

#[test]
fn pages_that_return_find_their_buckets() {
    comes_and_goes!(Hr<'_, _>, 1);
    comes_and_goes!(Cpt8<'_, _>, 8);
}

/// Pages are exchanged for others, again and again: what the table takes stays within twice of what it took for as many pages, and a little.
#[test]
fn a_table_does_not_collect_vacant_buckets() {
    let rounds = if cfg!(miri) { 4 } else { 40 };
    let mut memory = vec![Chunk::ZERO; 256];
    let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(Hr::new(&slab).unwrap(), |_: &Flush| ());
    for vpn in 0..BLOCKS {
        table.map(page(vpn), Pfn::new(vpn), PageSize::K4, RW).unwrap();
    }
    let bytes = table.footprint().bytes;
    for vpn in BLOCKS..BLOCKS * rounds {
        table.unmap(page(vpn - BLOCKS), Holes::Refuse).unwrap();
        table.map(page(vpn), Pfn::new(vpn & 0xffff), PageSize::K4, RW).unwrap();
        let now = table.footprint().bytes;
        assert!(now <= 9 * bytes / 4, "{now} bytes for {BLOCKS} pages, and {bytes} at first");
    }
    assert_eq!(table.table().blocks(), BLOCKS);
    // Nothing is left of an empty table.
    table.unmap(run(BLOCKS * (rounds - 1), BLOCKS), Holes::Refuse).unwrap();
    assert_eq!((table.table().blocks(), table.table().buckets(), table.footprint().nodes), (0, 2, 2));
    table.destroy();
}

/// A larger page covers a block whose bucket is vacant, in a range and by promotion. No page of the block can be mapped then.
#[test]
fn no_vacant_bucket_is_under_a_larger_page() {
    let mut memory = vec![Chunk::ZERO; 256];
    let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(Hr::new(&slab).unwrap(), |_: &Flush| ());
    // Enough other pages that no unmap sweeps.
    table.map(run(0x10000, 700), Pfn::new(0), PageSize::K4, RW).unwrap();
    for base in [0x200, 0x400] {
        table.map(run(base, 512), Pfn::new(base), PageSize::K4, RW).unwrap();
        let nodes = table.footprint().nodes;
        if base == 0x200 {
            table.unmap(run(base, 512), Holes::Refuse).unwrap();
            assert_eq!(table.footprint().nodes, nodes, "the buckets are vacant");
            table.map(run(base, 512), Pfn::new(base), PageSize::M2, RW).unwrap();
        } else {
            table.resize(run(base, 512), PageSize::M2, FlushAll::in_place).unwrap();
        }
        assert!(table.footprint().nodes < nodes, "the buckets are gone");
        for vpn in [base, base + 77, base + 511] {
            let occupied = Error::Occupied { at: at(base), size: PageSize::M2 };
            assert_eq!(table.map(page(vpn), Pfn::new(1), PageSize::K4, RW), Err(occupied));
            assert_eq!(table.lookup(at(vpn)).unwrap().size, PageSize::M2);
        }
        table.unmap(run(base, 512), Holes::Refuse).unwrap();
        table.map(page(base + 77), Pfn::new(1), PageSize::K4, RW).unwrap();
    }
    assert_eq!(table.table().blocks(), 702);
    table.destroy();
    assert_eq!(slab.usage().nodes, 0);
}

/// Where memory is short, one change may be refused while there are vacant buckets. After that the table sweeps them, a few with each
/// change, and an unmap gives its bucket back.
#[test]
fn a_table_without_memory_keeps_no_vacant_bucket() {
    // Enough first buckets that a sweep does not reach each of them.
    let times = if cfg!(miri) { 1 } else { 10 };
    let mut memory = vec![Chunk::ZERO; 8 * times];
    let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(Hr::new(&slab).unwrap(), |_: &Flush| ());
    macro_rules! map {
        ($vpn:expr) => {
            table.map(page($vpn), Pfn::new(1), PageSize::K4, RW)
        };
    }
    let third = 100 * times;
    (0..3 * third).for_each(|vpn| map!(vpn).unwrap());
    table.unmap(run(0, third), Holes::Refuse).unwrap();
    let mut last = 3 * third;
    while map!(last).is_ok() {
        last += 1;
    }
    assert!(last > 4 * third && table.table().blocks() == last - third, "storage for more pages than these");
    // The vacant buckets go before this many pages are unmapped.
    let before = table.footprint().nodes;
    (third..2 * third).for_each(|vpn| assert_eq!(table.unmap(page(vpn), Holes::Refuse), Ok(1)));
    assert!(before - table.footprint().nodes > third / 2, "{before} nodes, and {:?}", table.footprint());
    assert!(!trims(&mut table), "a vacant bucket is left");
    while map!(last).is_ok() {
        last += 1;
    }
    // A range gives all of its buckets back, when it is unmapped and when it is drained.
    for first in (2 * third..2 * third + 40).step_by(4) {
        table.unmap(run(first, 2), Holes::Refuse).unwrap();
        assert!(!trims(&mut table), "a vacant bucket of a range is left");
        assert_eq!(table.drain(run(first + 2, 2)).unwrap().count(), 2);
        assert!(!trims(&mut table), "a vacant bucket of a range is left");
    }
    table.destroy();
    assert_eq!(slab.usage().nodes, 0);
}

/// Tells whether a table has a vacant bucket.
fn trims<'n>(table: &mut Local<'n, Hr<'n, Slab<'n, u64, Solo>>, impl Invalidate>) -> bool {
    let before = table.footprint();
    table.trim();
    table.footprint() != before
}

/// A kernel that is short of memory has the vacant buckets, before a change is refused or after it.
#[test]
fn trim_frees_the_vacant_buckets() {
    let blocks = if cfg!(miri) { 60 } else { 400 };
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Slab::<u64, Shared>::new(&mut memory, 0).unwrap();
    let table = Cpt8::new(&slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    for block in 0..blocks {
        writer.map(run(8 * block, 2), Pfn::new(block), PageSize::K4, RW).unwrap();
    }
    // SAFETY: nothing walks.
    unsafe { writer.finish().reclaim() };
    let full = table.footprint().nodes;
    let mut writer = Writer::new(&table).unwrap();
    for block in 0..blocks / 3 {
        writer.unmap(run(8 * block, 2), Holes::Refuse).unwrap();
    }
    assert_eq!(table.footprint().nodes, full);
    writer.trim();
    let retired = full - table.footprint().nodes;
    assert!(retired > 0);
    let batch = writer.finish();
    assert_eq!((batch.nodes(), slab.held().pending()), (retired, retired));
    // SAFETY: nothing walks.
    unsafe { batch.reclaim() };
    for block in 0..blocks {
        // SAFETY: nothing is reclaimed during the walk.
        let pinned = unsafe { Pinned::by(&slab) };
        let mapped = table.lookup(pinned, at(8 * block + 1)).is_some();
        assert_eq!(mapped, block >= blocks / 3, "block {block}");
    }
    // SAFETY: nothing walks.
    unsafe { destroy(table).reclaim() };
    assert_eq!(slab.usage().nodes, 0);
}
