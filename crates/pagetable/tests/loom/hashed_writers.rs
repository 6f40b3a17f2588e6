//! Two writers of one hashed or clustered table, and a walker.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use loom::thread;
use tlbkit_addr::{PageSize, Pfn, Vpn};
use tlbkit_conformance::scenes::{Tiny, Watched};
use tlbkit_pagetable::format::Compact32;
use tlbkit_pagetable::hpt::{Buckets, Hashed, Sizes};
use tlbkit_pagetable::mpt::Encoded;
use tlbkit_pagetable::{Error, Geometry, Holes, NodeLocks, PageTurn, Pinned, Table as _, Writer, destroy};

use super::WRITE;
use super::writers::{complete, frame, page};

/// Tables of four buckets at first. A block is in the bucket of its number's low two bits. Pages 0, 1, 6 and 7 have one lock, and the others
/// the other one.
type Shared<G, const CLUSTER_LOG: u32> =
    Hashed<'static, G, Compact32, Watched<u32>, Buckets<CLUSTER_LOG, 2, 100>>;

/// A space whose tags have 64 bits, so that the first bucket of a clustered table has room for a lock.
#[derive(Debug)]
struct Wide;

impl Geometry for Wide {
    const VA_BITS: u32 = 40;
    const BASE: PageSize = PageSize::K4;
    const SIZES: &'static [PageSize] = &[PageSize::K4];
}

use Step::{Map, MapWhole, Unmap};

/// A change of a page; [`Error::Busy`] if another writer was in the way, and nothing has changed.
#[derive(Clone, Copy)]
enum Step {
    Map(usize),
    Unmap(usize),
    /// Maps a page as the writer of the whole table.
    MapWhole(usize),
}

impl Step {
    fn page(self) -> usize {
        let (Map(page) | Unmap(page) | MapWhole(page)) = self;
        page
    }
}

/// Makes a change: by the page's slot, if that is enough. A batch becomes a debt of the table, which `destroy` takes up after the walker
/// has ended.
fn make<G: Geometry, S: Sizes>(
    table: &Hashed<'static, G, Compact32, Watched<u32>, S>,
    step: Step,
) -> Result<(), Error> {
    let number = step.page();
    let done = !matches!(step, MapWhole(_)) && {
        let mut turn = PageTurn::new(table, Vpn::new(number))?;
        turn.slot().is_some_and(|slot| match step {
            Map(_) | MapWhole(_) => slot.map(frame(number), Encoded::new(WRITE).unwrap()).is_some(),
            Unmap(_) => slot.unmap().is_some(),
        })
    };
    if !done {
        let mut writer = Writer::over(table, page(number), &mut || false)?;
        match step {
            Map(_) | MapWhole(_) => writer.map(page(number), frame(number), PageSize::K4, WRITE).unwrap(),
            Unmap(_) => assert_eq!(writer.unmap(page(number), Holes::Refuse), Ok(1)),
        }
        drop(writer.finish());
    }
    Ok(())
}

/// Runs two writers and a walker that looks for `probe`, in a table in which `before` are mapped. Then `after` are.
fn check<G: Geometry + 'static, const CLUSTER_LOG: u32>(
    before: &'static [usize],
    steps: [Step; 2],
    probe: usize,
    after: &'static [usize],
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.max_branches = 20_000;
    let (played, both) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (Arc::clone(&played), Arc::clone(&both));
    model.check(move || {
        let storage = Box::into_raw(Box::new(Watched::<u32>::default()));
        let locks = Box::into_raw(Box::new(NodeLocks::default()));
        // SAFETY: both are freed below, after the table.
        let table =
            Shared::<G, CLUSTER_LOG>::new(unsafe { &*storage }).unwrap().with_locks(unsafe { &mut *locks });
        let table = Arc::new(table);
        let mut writer = Writer::new(&*table).unwrap();
        for &number in before {
            writer.map(page(number), frame(number), PageSize::K4, WRITE).unwrap();
        }
        complete(writer.finish());
        let look = |table: &Shared<G, CLUSTER_LOG>, number: usize| -> Option<Pfn> {
            // SAFETY: no batch is reclaimed before the walker has ended.
            let pinned = unsafe { Pinned::by(&()) };
            table.lookup(pinned, Vpn::new(number).address(PageSize::K4)).map(|leaf| leaf.frame)
        };
        let run = |step: Step| {
            let table = Arc::clone(&table);
            thread::spawn(move || make(&table, step))
        };
        let [first, second] = steps.map(run);
        let found = look(&table, probe);
        assert!(found.is_none_or(|found| found == frame(probe)));
        let changes = steps.iter().any(|step| step.page() == probe);
        assert!(changes || found.is_some() == before.contains(&probe), "a page that stays");
        let done = [first, second].map(|writer| writer.join().unwrap().is_ok());
        for (&step, _) in steps.iter().zip(done).filter(|(_, done)| !done) {
            make(&table, step).unwrap();
        }
        for number in 0..8 {
            assert_eq!(look(&table, number), after.contains(&number).then(|| frame(number)), "page {number}");
        }
        let table = Arc::into_inner(table).expect("the threads have ended");
        let footprint = table.footprint();
        let mut blocks: Vec<_> = after.iter().map(|page| page >> CLUSTER_LOG).collect();
        blocks.dedup();
        assert_eq!((footprint.ptes, table.blocks()), (after.len(), blocks.len()));
        complete(destroy(table));
        // SAFETY: nothing borrows them any more.
        let (storage, _locks) = unsafe { (Box::from_raw(storage), Box::from_raw(locks)) };
        assert_eq!(storage.out(), 0);
        counts.0.fetch_add(1, Relaxed);
        counts.1.fetch_add(usize::from(done == [true; 2]), Relaxed);
    });
    println!(
        "{} interleavings, in {} of them both writers at once",
        played.load(Relaxed),
        both.load(Relaxed)
    );
    assert!(both.load(Relaxed) > 0);
}

#[test]
fn pages_of_different_chains_appear() {
    check::<Tiny, 0>(&[1, 2], [Map(5), Map(6)], 6, &[1, 2, 5, 6]);
}

#[test]
fn pages_of_one_chain_appear() {
    check::<Tiny, 0>(&[], [Map(0), Map(4)], 4, &[0, 4]);
}

#[test]
fn a_page_appears_and_one_of_another_chain_disappears() {
    check::<Tiny, 0>(&[0, 1], [Unmap(0), Map(5)], 0, &[1, 5]);
}

/// The fifth page splits the buckets, while a page of a chain that is joined then appears. The walker looks for one that stays.
#[test]
fn a_page_appears_while_the_table_grows() {
    check::<Tiny, 0>(&[0, 4, 1, 5], [MapWhole(2), Map(3)], 4, &[0, 1, 2, 3, 4, 5]);
}

/// The chains are joined, and pages appear in two of them.
#[test]
fn pages_of_joined_chains_appear() {
    check::<Tiny, 0>(&[0, 4, 1, 5, 2], [Map(6), Map(3)], 4, &[0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn pages_of_one_block_appear_and_disappear() {
    check::<Wide, 1>(&[0], [Map(1), Unmap(0)], 0, &[1]);
}

#[test]
fn pages_of_two_blocks_appear_and_disappear() {
    check::<Wide, 1>(&[0, 1, 2], [Unmap(1), Map(3)], 1, &[0, 2, 3]);
}
