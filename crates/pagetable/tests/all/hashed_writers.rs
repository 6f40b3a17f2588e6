//! Several writers of one hashed or clustered table: which of them exclude each other, when the table grows, and what they leave behind.
#![cfg(target_pointer_width = "64")]

mod history;

use std::collections::BTreeSet;
use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::format::{Compact, Format, Paper};
use tlbkit_pagetable::geometry::{Va48, Va64};
use tlbkit_pagetable::hpt::{Buckets, Hashed, Hr, Sizes};
use tlbkit_pagetable::mpt::Encoded;
use tlbkit_pagetable::nodes::{Chunk, Nodes, Reclaim as _, Slab};
use tlbkit_pagetable::{
    Change, Entry, Error, FlushAll, Geometry, Holes, Local, Mark, NodeLocks, PageTurn, Shared, Table, Turn,
    Writer, destroy,
};

use self::history::{Call, Changed, by_range, have_an_order};
use super::several_writers::{Left, WRITERS, beside_each_other, busy, frame};
use crate::common::numbers::Numbers;
use crate::common::writers::{RIGHTS, complete, page, pages};

/// A table that begins with 64 first buckets.
type Large<'n, const CLUSTER_LOG: u32> =
    Hashed<'n, Va48, Compact, Slab<'n, u64, Shared>, Buckets<CLUSTER_LOG, 6, 150>>;

macro_rules! table {
    ($table:ident: $kind:ty, $slab:ident: $word:ty) => {
        let mut memory = vec![Chunk::ZERO; 512];
        let ($slab, mut locks) = (Slab::<$word, Shared>::new(&mut memory, 0).unwrap(), NodeLocks::new());
        let $table = <$kind>::new(&$slab).unwrap().with_locks(&mut locks);
    };
}

/// Maps a page by its slot, and tells whether that was enough.
fn map_slot<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes>(
    table: &Hashed<'n, G, F, N, S>,
    page: usize,
    frame: Pfn,
) -> bool {
    let mut turn = busy(|| PageTurn::new(table, Vpn::new(page)));
    turn.slot().is_some_and(|slot| slot.map(frame, Encoded::new(RIGHTS).unwrap()).is_some())
}

/// Maps a page as the writer of the whole table.
fn map_whole<'n>(table: &impl Table<'n>, page: usize, frame: Pfn) {
    let mut writer = whole(table, page);
    writer.map(pages(page, 1), frame, PageSize::K4, RIGHTS).unwrap();
    complete(writer.finish());
}

/// Becomes the writer of the whole table, which the writer of a page is if a slot is not enough.
fn whole<'t, 'n, T: Table<'n>>(table: &'t T, number: usize) -> Writer<'t, 'n, T> {
    let mut waits = 0;
    busy(|| {
        Writer::over(table, page(number), &mut || {
            waits += 1;
            thread::yield_now();
            waits % 64 != 0
        })
    })
}

/// The pages that have one lock.
const REGION: usize = 512;

#[test]
fn writers_of_pages_with_one_lock_exclude_each_other_and_nobody_else() {
    table!(table: Large<'_, 0>, slab: u64);
    let first = PageTurn::new(&table, Vpn::new(3)).unwrap();
    assert!((0..REGION).all(|page| PageTurn::new(&table, Vpn::new(page)).is_err()));
    assert!((1..32).all(|region| PageTurn::new(&table, Vpn::new(region * REGION)).is_ok()));
    assert_eq!(Turn::new(&table).unwrap_err(), Error::Busy);
    assert_eq!(Writer::over(&table, page(REGION), &mut || false).map(drop), Err(Error::Busy));
    drop(first);
    let range = Writer::over(&table, page(1), &mut || false).unwrap();
    assert!(range.may_write(pages(0, 1024)), "a range is the whole table");
    assert!((0..64).all(|region| PageTurn::new(&table, Vpn::new(region * REGION)).is_err()));
    drop(range);
    complete(destroy(table));
    assert_eq!(slab.usage().nodes, 0);
}

/// Of pages in one chain there is one slot at a time, wherever they are.
#[test]
fn a_chain_has_one_slot_at_a_time() {
    table!(table: Hr<'_, _>, slab: u64);
    let mut first = PageTurn::new(&table, Vpn::new(0)).unwrap();
    let slot = first.slot().unwrap();
    let free = |region: &usize| PageTurn::new(&table, Vpn::new(region * REGION)).unwrap().slot().is_some();
    let others = (1..32).filter(free).count();
    assert!((4..28).contains(&others), "about half are in the other chain: {others}");
    assert!(slot.map(Pfn::new(1), Encoded::new(RIGHTS).unwrap()).is_some());
    assert_eq!((1..32).filter(free).count(), 31);
    std::mem::forget(first.slot());
    drop(first);
    // The lock of the chain is lost, and the writer of the table does not need it.
    assert!(PageTurn::new(&table, Vpn::new(0)).unwrap().slot().is_none());
    (1..200).for_each(|page| map_whole(&table, page, frame(page, 0)));
    assert!(PageTurn::new(&table, Vpn::new(0)).unwrap().slot().is_some(), "the table has grown");
    complete(destroy(table));
    assert_eq!(slab.usage().nodes, 0);
}

/// Two chains have one lock until they have been parted.
#[test]
fn chains_that_are_joined_have_one_slot_at_a_time() {
    table!(table: Large<'_, 0>, slab: u64);
    let refused = || -> Vec<usize> {
        let mut turn = PageTurn::new(&table, Vpn::new(0)).unwrap();
        let _slot = turn.slot().unwrap();
        let is_refused = |&page: &usize| {
            PageTurn::new(&table, Vpn::new(page)).is_ok_and(|mut other| other.slot().is_none())
        };
        (1..if cfg!(miri) { 500 } else { 4000 }).map(|region| region * REGION).filter(is_refused).collect()
    };
    (0..96).for_each(|page| map_whole(&table, page, frame(page, 0)));
    let (before, buckets) = (refused(), table.buckets());
    map_whole(&table, 96, frame(96, 0));
    assert_eq!((table.buckets(), refused()), (2 * buckets, before.clone()), "split, and still joined");
    (97..180).for_each(|page| map_whole(&table, page, frame(page, 0)));
    let apart = refused();
    assert!(apart.len() < before.len() && apart.iter().all(|page| before.contains(page)));
    complete(destroy(table));
    assert_eq!(slab.usage().nodes, 0);
}

/// A [`Local`] is a writer of the whole table, and begins with what those of single pages have counted.
#[test]
fn a_local_table_has_one_writer() {
    table!(table: Hr<'_, _>, slab: u64);
    assert!(map_slot(&table, 1, Pfn::new(1)));
    let mut table = Local::new(table, |_flush: &Flush| ());
    assert_eq!(PageTurn::new(table.table(), Vpn::new(1)).map(drop), Err(Error::Busy));
    assert_eq!(table.unmap(page(1), Holes::Refuse), Ok(1));
    assert_eq!((table.table().blocks(), table.footprint().ptes), (0, 0));
    table.destroy();
    assert_eq!(slab.usage().nodes, 0);
}

/// The table grows and shrinks as with one writer, if a little later.
#[test]
fn a_table_grows_and_shrinks_in_time() {
    fn check<const CLUSTER_LOG: u32>(step: usize) {
        table!(table: Large<'_, CLUSTER_LOG>, slab: u64);
        let blocks = if cfg!(miri) { 150 } else { 3000 };
        let mut slow = 0;
        for block in 0..blocks {
            let page = block * step;
            if !map_slot(&table, page, frame(page, 0)) {
                slow += 1;
                map_whole(&table, page, frame(page, 0));
            }
            assert_eq!(table.blocks(), block + 1);
            // What all locks may put off.
            let late = (table.buckets() / 4).max(32);
            assert!(table.blocks() <= table.buckets() * 3 / 2 + late, "{block} blocks");
        }
        assert!(cfg!(miri) || slow < blocks / 6, "{slow} of {blocks} changes took the whole table");
        let most = table.buckets();
        for block in 0..blocks {
            let page = block * step;
            let done = {
                let mut turn = PageTurn::new(&table, Vpn::new(page)).unwrap();
                turn.slot().unwrap().unmap().is_some()
            };
            if !done {
                let mut writer = whole(&table, page);
                assert_eq!(writer.unmap(pages(page, 1), Holes::Refuse), Ok(1));
                complete(writer.finish());
            }
            assert_eq!((table.blocks(), table.footprint().ptes), (blocks - block - 1, blocks - block - 1));
        }
        assert!(cfg!(miri) || table.buckets() < most / 2, "{} of {most} buckets", table.buckets());
        let nodes = table.footprint().nodes;
        let dead = destroy(table);
        assert_eq!(dead.nodes(), nodes);
        complete(dead);
        assert_eq!((slab.usage().nodes, slab.held().lost()), (0, 0));
    }
    check::<0>(1);
    check::<3>(8);
}

#[test]
fn a_slot_makes_every_change_of_a_page() {
    fn check<const CLUSTER_LOG: u32>() {
        table!(table: Large<'_, CLUSTER_LOG>, slab: u64);
        let encoded = Encoded::new(RIGHTS).unwrap();
        let turn = || PageTurn::new(&table, Vpn::new(5)).unwrap();
        assert!(map_slot(&table, 5, Pfn::new(1)) && !map_slot(&table, 5, Pfn::new(2)));
        map_whole(&table, 6, Pfn::new(6));
        assert_eq!(turn().slot().unwrap().look().map(|leaf| leaf.frame), Some(Pfn::new(1)));
        let (old, _) = turn().slot().unwrap().protect(Change::READ_ONLY).unwrap();
        assert_eq!(old.attr, RIGHTS);
        let mut no_flush = |_: &Flush| ();
        let (old, _) =
            turn().slot().unwrap().replace(Pfn::new(3), encoded, FlushAll::in_place(&mut no_flush)).unwrap();
        assert_eq!((old.frame, old.attr), (Pfn::new(1), Attr::READ));
        let (old, stale) = turn().slot().unwrap().unmap().unwrap();
        assert_eq!((old.frame, stale.pages), (Pfn::new(3), page(5)));
        assert!(turn().slot().unwrap().unmap().is_none());
        let mark = Mark::Payload(7, RIGHTS);
        assert_eq!(turn().slot().unwrap().mark(mark).unwrap().0, Entry::Empty);
        assert_eq!(turn().slot().unwrap().entry(), Some(Entry::Mark(mark)));
        assert!(turn().slot().unwrap().fill(8, Pfn::new(4)).is_none());
        assert!(turn().slot().unwrap().fill(7, Pfn::new(4)).is_some());
        assert_eq!(turn().slot().unwrap().look().map(|leaf| leaf.frame), Some(Pfn::new(4)));
        assert!(matches!(turn().slot().unwrap().mark(mark).unwrap().0, Entry::Leaf(_)));
        assert_eq!((table.footprint().ptes, table.blocks()), (2, if CLUSTER_LOG == 0 { 2 } else { 1 }));
        complete(destroy(table));
        assert_eq!(slab.usage().nodes, 0);
    }
    check::<0>();
    check::<3>();
}

#[test]
fn a_slot_leaves_what_it_cannot_do_to_the_writer_of_the_table() {
    // A larger page may be in the way of a page whose block has no bucket.
    table!(table: Large<'_, 0>, slab: u64);
    let mut writer = whole(&table, 0);
    writer.map(pages(512, 512), Pfn::new(512), PageSize::M2, RIGHTS).unwrap();
    complete(writer.finish());
    for page in [1, 600] {
        let mut turn = PageTurn::new(&table, Vpn::new(page)).unwrap();
        assert_eq!(turn.slot().unwrap().entry(), None);
        drop(turn);
        assert!(!map_slot(&table, page, Pfn::new(1)));
    }
    assert_eq!(table.blocks(), 1);
    assert!(PageTurn::new(&table, Vpn::new(usize::MAX)).unwrap().slot().is_none(), "no page of the space");
    complete(destroy(table));
    // The storage has no node: nothing has changed, and the writer says so.
    let mut memory = vec![Chunk::ZERO; 8];
    let (small, mut locks) = (Slab::<u64, Shared>::new(&mut memory, 0).unwrap(), NodeLocks::new());
    let table = Large::<'_, 0>::new(&small).unwrap().with_locks(&mut locks);
    let mut mapped = 0;
    let refused = loop {
        if !map_slot(&table, mapped, Pfn::new(1)) {
            let before = (table.footprint(), table.blocks());
            let mut writer = whole(&table, mapped);
            let result = writer.map(page(mapped), Pfn::new(1), PageSize::K4, RIGHTS);
            complete(writer.finish());
            if let Err(error) = result {
                assert_eq!((table.footprint(), table.blocks()), before);
                break error;
            }
        }
        mapped += 1;
    };
    assert!(matches!(refused, Error::NoMemory { .. }) && table.footprint().ptes == mapped);
    assert!(
        PageTurn::new(&table, Vpn::new(0)).unwrap().slot().unwrap().unmap().is_none(),
        "no vacant buckets"
    );
    complete(destroy(table));
    assert_eq!((slab.usage().nodes, small.usage().nodes), (0, 0));
}

/// Makes a change of a page or of a few: that of a page by its slot, if that is enough.
fn call<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes>(
    table: &Hashed<'n, G, F, N, S>,
    numbers: &mut Numbers,
    clock: &AtomicUsize,
) -> Call {
    let pages = pages(place(numbers.below(CALLED)), [1, 1, 1, 1 + numbers.below(12)][numbers.below(4)]);
    let holes = if numbers.below(2) == 0 { Holes::Refuse } else { Holes::Skip };
    let change = match numbers.below(5) {
        0 | 1 => Changed::Map(Pfn::new(1 + numbers.below(1 << 12))),
        2 | 3 => Changed::Unmap(holes),
        _ => Changed::Protect(holes),
    };
    if pages.len() == 1 {
        let mut turn = busy(|| PageTurn::new(table, pages.first()));
        let moment = clock.fetch_add(1, Ordering::Relaxed);
        let result = turn.slot().and_then(|slot| match change {
            Changed::Map(frame) => slot.map(frame, Encoded::new(RIGHTS)?).map(|_| 0),
            Changed::Unmap(_) => slot.unmap().map(|_| 1),
            Changed::Protect(_) => slot.protect(Change::READ_ONLY).map(|_| 1),
        });
        if let Some(result) = result {
            return Call { moment, pages, change, result: Ok(result) };
        }
    }
    by_range(table, pages, change, clock)
}

/// The places at which calls begin.
const CALLED: usize = if cfg!(miri) { 24 } else { 160 };

/// Writers of the same pages, in few chains and blocks.
#[test]
fn what_writers_of_the_same_pages_do_has_an_order() {
    fn check<const CLUSTER_LOG: u32>() {
        table!(table: Hashed<'_, Va48, Compact, _, Buckets<CLUSTER_LOG, 1, 150>>, slab: u64);
        let calls = if cfg!(miri) { 30 } else { 6_000 };
        let model = have_an_order(&table, calls, call, (0..CALLED + 12).map(place));
        let blocks: BTreeSet<_> = model.0.keys().map(|page| page >> CLUSTER_LOG).collect();
        let footprint = table.footprint();
        assert_eq!((footprint.ptes, table.blocks()), (model.0.len(), blocks.len()));
        let dead = destroy(table);
        assert_eq!(dead.nodes(), footprint.nodes);
        complete(dead);
        assert_eq!((slab.usage().nodes, slab.held().lost(), slab.held().pending()), (0, 0, 0));
    }
    check::<0>();
    check::<3>();
}

/// The storage has no node for a change, whichever that is, while another writer changes a page of another chain.
#[test]
#[cfg_attr(miri, ignore = "a storage has room for hundreds of buckets")]
fn a_change_without_memory_beside_another_writer_changes_nothing() {
    fn check<const CLUSTER_LOG: u32>() {
        let mut refused = 0;
        for chunks in 8..40 {
            let mut memory = vec![Chunk::ZERO; chunks];
            let (slab, mut locks) = (Slab::<u64, Shared>::new(&mut memory, 0).unwrap(), NodeLocks::new());
            let Ok(table) = Hashed::<Va48, Compact, _, Buckets<CLUSTER_LOG, 2, 150>>::new(&slab) else {
                continue;
            };
            let table = table.with_locks(&mut locks);
            let encoded = Encoded::new(RIGHTS).unwrap();
            let mut mapped = 0;
            loop {
                let page = mapped << CLUSTER_LOG;
                // The other writer is in the middle of its change, in one of the two chains.
                let mut beside = PageTurn::new(&table, Vpn::new(page + 32 * REGION)).unwrap();
                let other = beside.slot();
                let before = (table.footprint(), table.blocks());
                if !map_slot(&table, page, frame(page, 0)) {
                    assert_eq!((table.footprint(), table.blocks()), before);
                    drop(other);
                    drop(beside);
                    let mut writer = whole(&table, page);
                    let result = writer.map(pages(page, 1), frame(page, 0), PageSize::K4, RIGHTS);
                    complete(writer.finish());
                    if let Err(why) = result {
                        assert!(matches!(why, Error::NoMemory { .. }));
                        assert_eq!((table.footprint(), table.blocks()), before);
                        refused += 1;
                        break;
                    }
                }
                mapped += 1;
            }
            // Nothing of what there is needs memory.
            for page in (0..mapped).map(|block| block << CLUSTER_LOG) {
                let replace = || {
                    let mut turn = PageTurn::new(&table, Vpn::new(page)).unwrap();
                    let slot = turn.slot().unwrap();
                    let (old, _) =
                        slot.replace(frame(page, 1), encoded, FlushAll::in_place(&mut |_| ())).unwrap();
                    old.frame
                };
                assert_eq!([replace(), replace()], [frame(page, 0), frame(page, 1)]);
            }
            let footprint = table.footprint();
            assert_eq!((footprint.ptes, table.blocks()), (mapped, mapped));
            let dead = destroy(table);
            assert_eq!(dead.nodes(), footprint.nodes);
            complete(dead);
            assert_eq!((slab.usage().nodes, slab.held().lost()), (0, 0));
        }
        assert!(refused > 2);
    }
    check::<0>();
    check::<3>();
}

const STEPS: usize = if cfg!(miri) { 80 } else { 30_000 };
/// The number of the pages of all writers: each has every third one, so they have blocks and chains in common.
const PAGES: usize = if cfg!(miri) { 120 } else { 1200 };

/// Returns a page of the writers: they have runs of eight pages, four runs in those with one lock.
fn place(number: usize) -> usize {
    (number >> 3) * (REGION / 4) + (number & 7)
}

/// Writers of neighbouring pages change them page by page, while the table grows and shrinks and a walker looks on. What a writer has done
/// stays until it changes the page again.
fn race<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word> + Sync, S: Sizes>(table: Hashed<'n, G, F, N, S>)
where
    Hashed<'n, G, F, N, S>: Sync,
{
    beside_each_other(
        table,
        write,
        |numbers| place(numbers.below(PAGES)),
        |table, mapped| {
            let blocks: BTreeSet<_> = mapped.iter().map(|page| page >> S::CLUSTER_LOG).collect();
            assert_eq!(table.blocks(), blocks.len());
        },
    );
}

/// Changes the pages of a writer, and returns what they are mapped to. Some of its slots are enough.
fn write<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes>(
    table: &Hashed<'n, G, F, N, S>,
    number: usize,
    walks: &RwLock<()>,
) -> Left {
    let mut numbers = Numbers(0x9e37_79b9 + number as u64);
    let mut left: Left = (number..PAGES).step_by(WRITERS).map(|number| (place(number), None)).collect();
    let mut by_slot = 0;
    for step in 0..STEPS {
        // Most pages are mapped in a part of the steps, and few in the next part: so the table grows and shrinks.
        let grows = (step / (left.len() * 3)).is_multiple_of(2);
        let chosen = numbers.below(left.len());
        let (page, mapped) = &mut left[chosen];
        let change = numbers.below(4);
        if change > 0 && mapped.is_some() == grows {
            continue;
        }
        let (pages, new) = (Pages::one(Vpn::new(*page)), frame(*page, step));
        let done = {
            let mut turn = busy(|| PageTurn::new(table, pages.first()));
            turn.slot().is_some_and(|slot| match mapped {
                Some(_) if change == 1 => slot.protect(Change::READ_ONLY).is_some(),
                Some(_) => slot.unmap().is_some_and(|(leaf, _)| Some(leaf.frame) == *mapped),
                None => slot.map(new, Encoded::new(RIGHTS).unwrap()).is_some(),
            })
        };
        by_slot += usize::from(done);
        if !done {
            let mut writer = whole(table, *page);
            match *mapped {
                None => writer.map(pages, new, PageSize::K4, RIGHTS).unwrap(),
                Some(_) if change == 1 => {
                    assert_eq!(writer.protect(pages, Holes::Refuse, Change::READ_ONLY), Ok(1));
                }
                Some(_) => assert_eq!(writer.unmap(pages, Holes::Refuse), Ok(1)),
            }
            let batch = writer.finish();
            let _walks = (!batch.is_empty()).then(|| walks.write().unwrap());
            complete(batch);
        }
        match *mapped {
            None => *mapped = Some(new),
            Some(_) if change == 1 => {}
            Some(_) => *mapped = None,
        }
    }
    assert!(by_slot > 0);
    left
}

macro_rules! races {
    ($($name:ident: $word:ty, $kind:ty;)*) => { $(
        #[test]
        fn $name() {
            table!(table: $kind, slab: $word);
            race(table);
            assert_eq!((slab.usage().nodes, slab.held().lost(), slab.held().pending()), (0, 0, 0));
        }
    )* };
}

races! {
    writers_of_a_hashed_table: u64, Large<'_, 0>;
    writers_of_a_clustered_table: u64, Large<'_, 3>;
    writers_of_a_table_of_a_fixed_size: u32, Hashed<'_, Va64, Paper, _, Buckets<3, 6, 0>>;
}
