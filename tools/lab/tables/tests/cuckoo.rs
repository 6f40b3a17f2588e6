//! The elastic cuckoo table passes the property suite, and grows and shrinks under walks.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_conformance::{Instrumented, conformance, threads};
use tlbkit_pagetable::format::Compact;
use tlbkit_pagetable::geometry::{Geometry, Half, Va48};
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Error, Holes, Pinned, Retired, Shared, Solo, Table, Writer, destroy};
use tlblab_tables::Cuckoo;

/// Pages of one, eight and 64 base pages, in both halves of a small space.
#[derive(Debug)]
struct Narrow;

impl Geometry for Narrow {
    const VA_BITS: u32 = 26;
    const BASE: PageSize = PageSize::K4;
    const HALF: Half = Half::Both;
    const SIZES: &'static [PageSize] =
        &[PageSize::K4, PageSize::from_shift(15).unwrap(), PageSize::from_shift(18).unwrap()];
}

conformance!(shared, Compact, Shared, |nodes| Ok::<_, Error>(Cuckoo::<Narrow, _>::new(nodes)));
conformance!(@cases 8, solo, Compact, Solo, |nodes| Ok::<_, Error>(Cuckoo::<Narrow, _>::new(nodes)));
threads!(beside_a_writer, Compact, |nodes| Ok::<_, Error>(Cuckoo::<Narrow, _>::new(nodes)));

/// Pages of lines that are far from each other.
fn scattered(number: usize) -> Vpn {
    Vpn::new(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 30)
}

/// Maps page `number`, or unmaps it.
fn change<'n>(table: &impl Table<'n>, number: usize, maps: bool) -> Retired<'n> {
    let (mut writer, pages) = (Writer::new(table).unwrap(), Pages::one(scattered(number)));
    if maps {
        writer.map(pages, Pfn::new(number), PageSize::K4, Attr::READ).unwrap();
    } else {
        assert_eq!(writer.unmap(pages, Holes::Refuse), Ok(1));
    }
    writer.finish()
}

/// Looks page `number` up.
fn frame<'n>(table: &impl Table<'n>, number: usize) -> Option<usize> {
    // SAFETY: the callers reclaim nothing during the call.
    let pinned = unsafe { Pinned::by(table) };
    Some(table.lookup(pinned, scattered(number).address(PageSize::K4))?.frame.get())
}

/// The lines of the tests below that grow and shrink.
const LINES: usize = if cfg!(miri) { 50 } else { 300 };

#[test]
fn every_page_is_found_after_every_store_of_growing_and_shrinking() {
    let mut memory = vec![Chunk::ZERO; 64];
    let nodes = Instrumented::<u64, Shared>::new(Slab::new(&mut memory, 0).unwrap());
    let table = Cuckoo::<Va48, _>::new(&nodes);
    let (mut most, lost) = (0, Cell::new(None));
    let all = (0..LINES).map(|number| (number, true)).chain((0..LINES).rev().map(|number| (number, false)));
    for (number, maps) in all {
        // The pages but `number`, which appears or goes.
        let look = || {
            let other = (0..number).find(|&other| frame(&table, other) != Some(other));
            lost.set(lost.get().or(other));
        };
        let batch = nodes.at_stores(&look, || change(&table, number, maps));
        // SAFETY: no walker is in the table.
        unsafe { batch.reclaim() };
        assert_eq!(
            (lost.get(), frame(&table, number)),
            (None, maps.then_some(number)),
            "page {number}, {maps}"
        );
        most = most.max(table.footprint().bytes);
    }
    // 21 lines in 1.5 KiB at first.
    assert!(most >= LINES * 8 * 9 && table.footprint().bytes == 0, "{most} {:?}", table.footprint());
    assert!((1..=16).contains(&table.most_moved()), "{}", table.most_moved());
    // SAFETY: no walker is in the table.
    unsafe { destroy(table).reclaim() };
}

/// Of 21 places, so many have lines: insertions displace others, and the table does not grow.
const CROWD: usize = 12;

#[test]
fn a_page_is_found_by_a_walk_between_whose_loads_its_line_moves() {
    let mut memory = vec![Chunk::ZERO; 64];
    let nodes = Instrumented::<u64, Shared>::new(Slab::new(&mut memory, 0).unwrap());
    let table = Cuckoo::<Va48, _>::new(&nodes);
    let batches: RefCell<Vec<_>> =
        RefCell::new((1..CROWD).map(|number| change(&table, number, true)).collect());
    let rounds = if cfg!(miri) { 8 } else { 4000 };
    for number in CROWD..CROWD + rounds {
        // The oldest page goes after the walk. Before one of the loads another comes.
        let (oldest, looked) = (number + 1 - CROWD, number + 2 - CROWD + number % (CROWD - 2));
        let comes = Cell::new(false);
        let come = || {
            batches.borrow_mut().push(change(&table, number, true));
            comes.set(true);
            usize::MAX
        };
        let found = nodes.at_loads(number / 7 % 4, &come, || frame(&table, looked));
        assert_eq!(found, Some(looked), "{number}");
        if !comes.get() {
            come();
        }
        batches.borrow_mut().push(change(&table, oldest, false));
        // SAFETY: no walker is in the table.
        batches.take().into_iter().for_each(|batch| unsafe { batch.reclaim() });
    }
    // SAFETY: no walker is in the table.
    unsafe { destroy(table).reclaim() };
}

/// Ends the walkers, also if the writer panics.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn pages_that_stay_are_found_by_walkers_on_other_threads() {
    // Nothing is reclaimed before the walkers are gone.
    let mut memory = vec![Chunk::ZERO; if cfg!(miri) { 64 } else { 2048 }];
    let slab = Slab::<u64, Shared>::new(&mut memory, 0).unwrap();
    // The pages that stay, those that come and go at a time, and how many do: a crowd whose lines displace each other, and one that
    // grows and shrinks.
    for (stay, at_a_time, rounds) in [(6, CROWD - 6, 8000), (40, LINES - 40, 10)] {
        let rounds = if cfg!(miri) { 1 } else { rounds };
        let table = Cuckoo::<Va48, _>::new(&slab);
        let done = AtomicBool::new(false);
        let mut batches: Vec<_> = (0..stay).map(|number| change(&table, number, true)).collect();
        thread::scope(|scope| {
            let _done = Done(&done);
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        (0..stay).for_each(|number| assert_eq!(frame(&table, number), Some(number)));
                    }
                });
            }
            for round in 0..rounds {
                for maps in [true, false] {
                    let come = (0..at_a_time).map(|number| stay + round * at_a_time + number);
                    batches.extend(come.map(|number| change(&table, number, maps)));
                }
            }
        });
        // SAFETY: the walkers are gone.
        batches.into_iter().for_each(|batch| unsafe { batch.reclaim() });
        // SAFETY: no walker is in the table.
        unsafe { destroy(table).reclaim() };
    }
    assert_eq!(slab.usage().nodes, 0);
}

#[test]
fn a_page_size_that_is_not_in_use_costs_no_probe() {
    let mut memory = vec![Chunk::ZERO; 64];
    let nodes = Instrumented::<u64, Solo>::new(Slab::new(&mut memory, 0).unwrap());
    let table = Cuckoo::<Va48, _>::new(&nodes);
    let loads = |page: usize| {
        // SAFETY: nothing is reclaimed during the walk.
        let pinned = unsafe { Pinned::by(&table) };
        nodes.loads_of(|| table.lookup(pinned, Vpn::new(page).address(PageSize::K4))).1
    };
    let mut writer = Writer::new(&table).unwrap();
    assert_eq!((loads(0), table.footprint().bytes), (0, 0));
    writer.map(Pages::one(Vpn::new(0)), Pfn::new(0), PageSize::K4, Attr::READ).unwrap();
    assert_eq!((loads(0), loads(1), loads(8)), (2, 2, 3));
    let large = Pages::count(Vpn::new(512), 512).unwrap();
    writer.map(large, Pfn::new(512), PageSize::M2, Attr::READ).unwrap();
    assert_eq!((loads(0), loads(1), loads(512), loads(1024)), (2, 2 + 2, 3 + 2, 3 + 2));
    assert_eq!(writer.unmap(large, Holes::Refuse), Ok(512));
    assert_eq!((loads(0), loads(8)), (2, 3));
    // SAFETY: no walker is in the table.
    unsafe { writer.finish().reclaim() };
    // SAFETY: no walker is in the table.
    unsafe { destroy(table).reclaim() };
    assert_eq!(nodes.out(), 0);
}
