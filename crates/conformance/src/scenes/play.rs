//! One writer, one or two walkers, and a shootdown between them.

use std::fmt;
use std::ops::{ControlFlow, Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use loom::sync::atomic::{AtomicBool, Ordering};
use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::{Error, FlushAll, Footprint, Leaf, Pinned, Retired, Table, Word, Writer, destroy};

use super::storage::Watched;

/// A change that a writer makes.
pub type Step = for<'t> fn(&mut Pen<'t>);

/// The writer of a scene, and the properties of its table.
pub struct Pen<'t> {
    writer: Writer<'t, 'static, dyn Table<'static> + 't>,
    table: &'t (dyn Table<'static> + 't),
    /// Whether a step was skipped: a join or split in a table with one page size.
    idle: bool,
}

impl<'t> Deref for Pen<'t> {
    type Target = Writer<'t, 'static, dyn Table<'static> + 't>;

    fn deref(&self) -> &Self::Target {
        &self.writer
    }
}

impl DerefMut for Pen<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.writer
    }
}

impl fmt::Debug for Pen<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pen").field("space", &self.table.space()).finish_non_exhaustive()
    }
}

impl Pen<'_> {
    fn size(&self, index: usize) -> PageSize {
        let space = self.table.space();
        let size = space.sizes().get(index.min(space.sizes().len() - 1)).copied();
        let is_double =
            |size: &PageSize| size.pages(space.base()) == Some(1 << index) || space.sizes().len() == 1;
        size.filter(is_double).unwrap_or_else(|| {
            panic!("scenes want pages of one size and of twice that, as `Tiny` has: {space:?}")
        })
    }

    /// Returns the memory that the table takes, for a scene that relies on the shape of its table.
    pub fn footprint(&self) -> Footprint {
        self.table.footprint()
    }

    /// Maps one page.
    ///
    /// # Panics
    ///
    /// If the table refuses the change.
    pub fn set(&mut self, page: usize, frame: usize, attr: Attr) {
        self.small(Pages::one(Vpn::new(page)), frame, attr);
    }

    /// Maps small pages.
    pub fn small(&mut self, pages: Pages, frame: usize, attr: Attr) {
        self.writer.map(pages, Pfn::new(frame), self.size(0), attr).unwrap();
    }

    /// Maps pages of the second size, or small ones if there is no other.
    pub fn large(&mut self, pages: Pages, frame: usize, attr: Attr) {
        self.writer.map(pages, Pfn::new(frame), self.size(1), attr).unwrap();
    }

    /// Splits or joins pages: `size` is the index of the new size. Does nothing in a table with one page size.
    pub fn reshape(&mut self, pages: Pages, size: usize) {
        if self.table.space().sizes().len() == 1 {
            self.idle = true;
            return;
        }
        let to = self.size(size);
        // SAFETY: no code uses these pages.
        unsafe { self.writer.resize(pages, to, FlushAll::breaking(&mut |_| ())) }.unwrap();
    }
}

/// A scene: the changes of the writer, and the pages that the walkers look up.
#[derive(Debug)]
pub struct Scene {
    /// The change before the walkers start.
    pub before: Step,
    /// The changes.
    pub steps: &'static [Step],
    /// More changes, made only if the shootdown of the first ones completes before the walkers end.
    pub then: &'static [Step],
    /// The pages to look up.
    pub probe: &'static [usize],
    /// The probed pages that may be absent in between, where the format requires break-before-make.
    pub broken: &'static [usize],
}

/// The bound on the interleavings of a scene. Few bugs need more preemptions, and their number of interleavings is large.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// The number of walkers.
    pub walkers: usize,
    /// The number of preemptions of a thread that could continue.
    pub preemptions: usize,
}

/// Two walkers, for scenes of a few stores.
pub const TWO: Bound = Bound { walkers: 2, preemptions: 2 };
/// One walker.
pub const ONE: Bound = Bound { walkers: 1, preemptions: 3 };
/// One walker, for tables that grow, whose changes take many stores. A walk may begin after any store, be interrupted once, and
/// continue after any other store.
pub const GROWING: Bound = Bound { walkers: 1, preemptions: 2 };

/// Storage that outlives every thread of one execution.
struct Stage<W: Word>(*mut Watched<W>);

impl<W: Word> Stage<W> {
    fn new() -> (Self, &'static Watched<W>) {
        let storage = Box::into_raw(Box::default());
        // SAFETY: the storage lives until `self` is dropped, and no code uses it afterwards: see `play`.
        (Self(storage), unsafe { &*storage })
    }
}

impl<W: Word> Drop for Stage<W> {
    fn drop(&mut self) {
        // While a panic unwinds, other threads may still hold the table.
        if !std::thread::panicking() {
            // SAFETY: the pointer came from a `Box`, and no code uses the storage any more.
            drop(unsafe { Box::from_raw(self.0) });
        }
    }
}

/// Makes a table in the storage.
pub type Build<W, T> = fn(&'static Watched<W>) -> Result<T, Error>;

fn new<W: Word, T: Table<'static>>(build: Build<W, T>, storage: &'static Watched<W>) -> T {
    let table = build(storage).expect("a new table");
    let space = table.space();
    assert!(
        space.halves()[0].is_some_and(|low| low.len() >= 8),
        "scenes want a space of eight pages or more, as `Tiny` is: {space:?}"
    );
    table
}

/// The function by which a walker finds a page.
type Look = fn(&dyn Table<'static>, usize) -> Option<Leaf>;

/// Visits a page.
fn visit_page(table: &dyn Table<'static>, page: usize) -> Option<Leaf> {
    let mut found = None;
    let page = Pages::one(Vpn::new(page));
    // SAFETY: the caller acknowledges no shootdown during the call.
    let _ = table.for_each(unsafe { Pinned::by(&()) }, page, &mut |leaf| {
        let before = found.replace(leaf);
        assert!(before.is_none(), "a page is visited twice: {before:?}, then {leaf:?}");
        ControlFlow::Continue(())
    });
    found
}

fn look(table: &dyn Table<'static>, page: usize) -> Option<Leaf> {
    // SAFETY: the caller acknowledges no shootdown during the call.
    table.lookup(unsafe { Pinned::by(&()) }, Vpn::new(page).address(table.space().base()))
}

fn write(table: &dyn Table<'static>, steps: &[Step]) -> Retired<'static> {
    write_some(table, steps).0
}

/// Makes changes, and tells whether one of them was skipped.
fn write_some(table: &dyn Table<'static>, steps: &[Step]) -> (Retired<'static>, bool) {
    let mut pen = Pen { writer: Writer::new(table).unwrap(), table, idle: false };
    for step in steps {
        step(&mut pen);
    }
    (pen.writer.finish(), pen.idle)
}

/// Returns the expected result of each probe before and after every step, from a separate table.
fn expected<W: Word, T: Table<'static>>(scene: &Scene, build: Build<W, T>) -> Vec<Vec<Option<Leaf>>> {
    let (_stage, storage) = Stage::new();
    let table = new(build, storage);
    // SAFETY: no other thread uses this table.
    unsafe { write(&table, &[scene.before]).reclaim() };
    let find = |table: &T| scene.probe.iter().map(|&page| look(table, page)).collect();
    let mut states = vec![find(&table)];
    let mut is_idle = false;
    for step in scene.steps.iter().chain(scene.then) {
        let (batch, idle) = write_some(&table, &[*step]);
        is_idle |= idle;
        // SAFETY: no other thread uses this table.
        unsafe { batch.reclaim() };
        states.push(find(&table));
    }
    // SAFETY: no other thread uses this table.
    unsafe { destroy(table).reclaim() };
    // The expected results come from the table itself, so a table that does nothing must be detected here.
    assert!(is_idle || states.first() != states.last(), "the steps have changed nothing");
    states
}

/// Checks that walkers find only results that were true at some moment, before and after their acknowledgement, and that no
/// walker meets a freed node.
pub fn check<W: Word, T>(bound: Bound, scene: &'static Scene, build: Build<W, T>)
where
    T: Table<'static> + Send + Sync + 'static,
{
    explore(Some(bound.preemptions), move || play(bound.walkers, look, scene, build, true));
}

/// Checks what [`check`] checks, with walkers that visit the pages one by one.
pub fn check_visits<W: Word, T>(bound: Bound, scene: &'static Scene, build: Build<W, T>)
where
    T: Table<'static> + Send + Sync + 'static,
{
    explore(Some(bound.preemptions), move || play(bound.walkers, visit_page, scene, build, true));
}

/// Checks one visitor of the whole table. It must find every page of `stay`, which no step changes, once, and for the probed
/// pages only results that were true at some moment.
pub fn check_visit<W: Word, T>(scene: &'static Scene, stay: &'static [usize], build: Build<W, T>)
where
    T: Table<'static> + Send + Sync + 'static,
{
    explore(Some(3), move || {
        let states = expected(scene, build);
        let (stage, storage) = Stage::new();
        let table = Arc::new(new(build, storage));
        // SAFETY: there is no walker yet.
        unsafe { write(&*table, &[scene.before]).reclaim() };
        let visitor = {
            let table = Arc::clone(&table);
            loom::thread::spawn(move || visit(&*table))
        };
        let batch = write(&*table, scene.steps);
        let seen = visitor.join().unwrap();
        let base = table.space().base();
        for &page in stay {
            let times = seen.iter().filter(|leaf| leaf.at.vpn(base).get() == page).count();
            assert!(times == 1, "page {page} stays, and the visit met it {times} times: {seen:?}");
        }
        for leaf in seen.iter().filter(|leaf| !stay.contains(&leaf.at.vpn(base).get())) {
            let ever = states.iter().flatten().any(|known| *known == Some(*leaf));
            assert!(ever, "{leaf:?} was never there: {states:?}");
        }
        // SAFETY: the visitor has ended.
        unsafe { batch.reclaim() };
        let table = Arc::into_inner(table).expect("the visitor is gone");
        // SAFETY: the visitor has ended.
        unsafe { destroy(table).reclaim() };
        drop(stage);
    });
}

/// Returns the leaves that a visit of the whole table finds.
fn visit(table: &dyn Table<'static>) -> Vec<Leaf> {
    let mut seen = Vec::new();
    let whole = table.space().halves()[0].unwrap();
    // SAFETY: the caller acknowledges no shootdown during the call.
    let _ = table.for_each(unsafe { Pinned::by(&()) }, whole, &mut |leaf| {
        seen.push(leaf);
        ControlFlow::Continue(())
    });
    seen
}

/// Checks with one walker and a writer that does not wait for acknowledgements, to test that the check can fail.
pub fn check_early<W: Word, T>(scene: &'static Scene, build: Build<W, T>)
where
    T: Table<'static> + Send + Sync + 'static,
{
    explore(None, move || play(1, look, scene, build, false));
}

/// Runs `play` in every interleaving with at most `preemptions` preemptions, and prints the number of interleavings.
fn explore(preemptions: Option<usize>, play: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    // The lookups for the expected results also count as steps in loom.
    model.max_branches = 20_000;
    let played = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&played);
    model.check(move || {
        play();
        count.fetch_add(1, Relaxed);
    });
    println!("{} interleavings", played.load(Relaxed));
}

/// Runs one execution.
fn play<W: Word, T>(walkers: usize, look: Look, scene: &'static Scene, build: Build<W, T>, wait: bool)
where
    T: Table<'static> + Send + Sync + 'static,
{
    let states = expected(scene, build);
    let (stage, storage) = Stage::new();
    let table = Arc::new(new(build, storage));
    // SAFETY: there is no walker yet.
    unsafe { write(&*table, &[scene.before]).reclaim() };
    let breaks = table.breaks();
    let shootdown = Arc::new(AtomicBool::new(false));

    let walking: Vec<_> = (0..walkers)
        .map(|_| {
            let (table, shootdown) = (Arc::clone(&table), Arc::clone(&shootdown));
            let acknowledged = Arc::new(AtomicBool::new(false));
            let ours = Arc::clone(&acknowledged);
            let walk = move || -> Vec<_> {
                let look_around = || scene.probe.iter().map(|&page| look(&*table, page)).collect::<Vec<_>>();
                let mut seen = vec![look_around()];
                // The interrupt, between two walks.
                if shootdown.load(Ordering::Acquire) {
                    ours.store(true, Ordering::Release);
                    seen.push(look_around());
                }
                seen
            };
            (loom::thread::spawn(walk), acknowledged)
        })
        .collect();

    let mut batch = Some(write(&*table, scene.steps));
    shootdown.store(true, Ordering::Release);
    let mut again = None;
    let all = || walking.iter().all(|(_, acknowledged)| acknowledged.load(Ordering::Acquire));
    if (!wait || all())
        && let Some(batch) = batch.take()
    {
        // SAFETY: every walker has acknowledged. `check_early` reclaims earlier on purpose: its storage is never reused.
        unsafe { batch.reclaim() };
        again = (!scene.then.is_empty()).then(|| write(&*table, scene.then));
    }

    for (walker, _) in walking {
        let seen = walker.join().unwrap();
        for (place, page) in scene.probe.iter().enumerate() {
            let found = seen[0][place];
            let broken = found.is_none() && breaks && scene.broken.contains(page);
            let ever = broken || states.iter().any(|state| state[place] == found);
            assert!(ever, "page {page}: {found:?} was never there: {states:?}");
            // A larger page appears and disappears with one store, so the result for one of its pages holds for the next lookup.
            for (later, _) in scene.probe.iter().enumerate().skip(place + 1) {
                let together = states.iter().all(|state| state[place] == state[later]);
                if together && !broken && seen[0][later].is_some() == seen[0][place].is_none() {
                    let moment = |found| states.iter().position(|state| state[place] == found);
                    let newer = moment(seen[0][later]) > moment(found);
                    assert!(newer, "page {page} was {found:?}, then a part of it {:?}", seen[0][later]);
                }
            }
            // A walker that has acknowledged finds the last state of the first changes or a later one.
            if let Some(after) = seen.get(1) {
                let found = after[place];
                let later = states[scene.steps.len()..].iter().any(|state| state[place] == found);
                assert!(later, "page {page} after acknowledging: {found:?} of {states:?}");
            }
        }
    }
    for batch in batch.into_iter().chain(again) {
        // SAFETY: every walker has ended.
        unsafe { batch.reclaim() };
    }
    let table = Arc::into_inner(table).expect("every walker is gone");
    // SAFETY: every walker has ended.
    unsafe { destroy(table).reclaim() };
    assert!(storage.out() == 0, "the table is gone, and {} of its nodes were not freed", storage.out());

    drop(stage);
}
