//! MIPS32 with several CPUs: a larger page is mapped where another CPU's TLB holds an invalid pair of small pages. The next miss of
//! that CPU must not load an entry that overlaps the pair: two entries that match one address are a machine check, or undefined.

use crate::common::kinds;
use tlbkit_addr::{Attr, Flush, FlushScope, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::{Compact32, EntryLo, EntryLoCoherent, EntryLoCowCoherent, Format};
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::gpt::{Adaptive, Gpt32};
use tlbkit_pagetable::lpt::Lpt;
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Pinned, Shared, Table, Writer, destroy};

type Nodes<'m> = Slab<'m, u32, Shared>;

const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::DIRTY);

/// A CPU's TLB: for each entry, the addresses that it matches.
#[derive(Default)]
struct Tlb(Vec<(usize, usize)>);

impl Tlb {
    /// Loads an entry that matches the `1 << log` bytes around an address.
    fn load(&mut self, at: usize, log: u32) {
        let entry = (at >> log << log, at | ((1 << log) - 1));
        for held in &self.0 {
            assert!(entry.1 < held.0 || held.1 < entry.0, "{entry:x?} and {held:x?} match one address");
        }
        self.0.push(entry);
    }

    /// Misses: what `Form::SIZED` of a refill handler with the flag `shared` loads. A page of 4 KiB, or none, is half of a pair; a
    /// larger page is loaded as a pair within the page, of a quarter of the size each.
    fn miss<'n>(&mut self, table: &impl Table<'n>, pinned: Pinned<'_>, at: usize) {
        if self.0.iter().any(|held| (held.0..=held.1).contains(&at)) {
            return;
        }
        let size = table.lookup(pinned, VirtAddr::new(at)).map_or(PageSize::K4, |leaf| leaf.size);
        self.load(at, if size == PageSize::K4 { 13 } else { size.shift() - 1 });
    }

    fn flush(&mut self, flush: &Flush) {
        assert!(!flush.is_all());
        self.0.retain(|held| {
            let pages = Pages::new(Vpn::new(held.0 >> 12), Vpn::new(held.1 >> 12)).unwrap();
            flush.ranges().iter().all(|range| range.intersect(pages).is_none())
        });
    }
}

fn check<'n>(slab: &'n Nodes<'_>, table: impl Table<'n>) {
    // SAFETY: this thread completes no batch during a lookup.
    let pinned = || unsafe { Pinned::by(slab) };
    let [mut here, mut there] = [Tlb::default(), Tlb::default()];
    for (number, shift) in [16, 18, 20, 14, 16].into_iter().enumerate() {
        let size = PageSize::from_shift(shift).unwrap();
        let first = 0x40_0000 * (number + 1);
        // Both CPUs have missed where nothing is mapped, at the beginning and in the middle.
        for at in [first, first + size.bytes() / 2] {
            here.miss(&table, pinned(), at);
            there.miss(&table, pinned(), at);
        }
        let mut writer = Writer::new(&table).unwrap();
        let pages = Pages::count(Vpn::new(first >> 12), size.bytes() >> 12).unwrap();
        writer.map(pages, Pfn::new(first >> 12), size, RW).unwrap();
        let batch = writer.finish();
        here.flush(batch.flush());
        if batch.flush().scope() == FlushScope::Everywhere {
            there.flush(batch.flush());
        }
        // SAFETY: no CPU is in a walk.
        unsafe { batch.reclaim() };
        for at in (first..first + size.bytes()).step_by(4096).rev() {
            here.miss(&table, pinned(), at);
            there.miss(&table, pinned(), at);
        }
    }
    // A page of the base size is another CPU's own affair: its pair is that of the invalid entry.
    let mut writer = Writer::new(&table).unwrap();
    writer.map(Pages::one(Vpn::new(7)), Pfn::new(7), PageSize::K4, RW).unwrap();
    let batch = writer.finish();
    assert!(batch.flush().scope() <= FlushScope::Local || batch.nodes() > 0);
    // SAFETY: no CPU is in a walk.
    unsafe {
        batch.reclaim();
        destroy(table).reclaim();
    }
}

macro_rules! check {
    ($($format:ty),+) => {$({
        let mut memory = vec![Chunk::ZERO; 64];
        let slab = Nodes::new(&mut memory, 0x10_0000).unwrap();
        check(&slab, Mpt::<Va32, $format, _>::new(&slab).unwrap());
        check(&slab, Lpt::<Va32, $format, _, 0xc000_0000>::new(&slab).unwrap());
    })+};
}

#[test]
fn no_miss_loads_a_second_entry_for_an_address() {
    check!(EntryLoCoherent, EntryLoCowCoherent);
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Nodes::new(&mut memory, 0x10_0000).unwrap();
    check(&slab, Gpt32::<_, Adaptive>::new(&slab).unwrap());
    macro_rules! kind {
        ($name:ident, $kind:ident, $change:ident) => {
            check(&slab, kinds::$kind::<Va32, EntryLo, _>::new(&slab).unwrap());
        };
    }
    each_kind!(kind);
}

/// Where no TLB caches absence, nothing is flushed.
#[test]
fn a_larger_page_is_free_where_absence_is_not_cached() {
    assert!(!Compact32::PAIRED || Compact32::APPEARS == FlushScope::Nowhere);
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Nodes::new(&mut memory, 0).unwrap();
    let table = Mpt::<Va32, Compact32, _>::new(&slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    writer.map(Pages::count(Vpn::new(16), 16).unwrap(), Pfn::new(16), PageSize::K64, RW).unwrap();
    assert!(writer.finish().flush().is_none());
    // SAFETY: no CPU is in a walk.
    unsafe { destroy(table).reclaim() };
}
