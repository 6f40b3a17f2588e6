//! Two writers of one table and a walker, in every interleaving.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use loom::thread;
use tlbkit_addr::{PageSize, Pages, Pfn, Vpn};
use tlbkit_conformance::scenes::Watched;
use tlbkit_pagetable::{Error, NodeLocks, Pinned, Retired, Table, Writer, destroy};

use super::WRITE;

/// What two writers do to a table of eight pages, and where a walker looks meanwhile.
pub(crate) struct Scene<T, S> {
    /// Makes the table.
    pub(crate) new: fn(&'static Watched<u32>, &'static mut NodeLocks) -> T,
    /// Makes a step; [`Error::Busy`] if another writer was in the way, and nothing has changed. Loom lets a loop of exchanges fail for
    /// ever, so the writers do not wait for each other.
    pub(crate) make: fn(&T, S) -> Result<(), Error>,
    /// The pages that are mapped before.
    pub(crate) before: &'static [usize],
    /// A step of each writer.
    pub(crate) steps: [S; 2],
    /// The page that the walker looks for.
    pub(crate) probe: usize,
    /// The pages that are mapped afterwards.
    pub(crate) after: &'static [usize],
    /// Checks what the table counts, when these pages are mapped.
    pub(crate) counts: fn(&T, &'static [usize]),
}

pub(crate) fn page(page: usize) -> Pages {
    Pages::one(Vpn::new(page))
}

pub(crate) fn frame(page: usize) -> Pfn {
    Pfn::new(8 + page)
}

/// Reclaims a batch. No walker is in the table.
fn complete(retired: Retired<'_>) {
    // SAFETY: the walker has ended, or has not begun.
    unsafe { retired.reclaim() };
}

/// Returns the frame of a page.
fn look<T: Table<'static>>(table: &T, number: usize) -> Option<Pfn> {
    // SAFETY: no batch is reclaimed before the walker has ended.
    table.lookup(unsafe { Pinned::by(&()) }, Vpn::new(number).address(PageSize::K4)).map(|leaf| leaf.frame)
}

/// Plays a scene.
pub(crate) fn play<T: Table<'static> + Send + Sync + 'static, S: Copy + Send + Sync + 'static>(
    scene: Scene<T, S>,
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.max_branches = 20_000;
    let (played, both) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (Arc::clone(&played), Arc::clone(&both));
    model.check(move || {
        let Scene { new, make, before, steps, probe, after, counts: check_counts } = scene;
        let storage = Box::into_raw(Box::new(Watched::<u32>::default()));
        let locks = Box::into_raw(Box::new(NodeLocks::default()));
        // SAFETY: both are freed below, after the table.
        let table = Arc::new(new(unsafe { &*storage }, unsafe { &mut *locks }));
        let mut writer = Writer::new(&*table).unwrap();
        for &number in before {
            writer.map(page(number), frame(number), PageSize::K4, WRITE).unwrap();
        }
        complete(writer.finish());
        let run = |step: S| {
            let table = Arc::clone(&table);
            thread::spawn(move || make(&table, step))
        };
        let [first, second] = steps.map(run);
        let found = look(&*table, probe);
        assert!(found.is_none_or(|found| found == frame(probe)));
        let stays = before.contains(&probe) && after.contains(&probe);
        assert!(found.is_some() || !stays, "a page that stays");
        let done = [first, second].map(|writer| writer.join().unwrap().is_ok());
        for (&step, _) in steps.iter().zip(done).filter(|(_, done)| !done) {
            make(&table, step).unwrap();
        }
        for number in 0..8 {
            assert_eq!(
                look(&*table, number),
                after.contains(&number).then(|| frame(number)),
                "page {number}"
            );
        }
        let table = Arc::into_inner(table).expect("the threads have ended");
        assert_eq!(table.footprint().ptes, after.len());
        check_counts(&table, after);
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
