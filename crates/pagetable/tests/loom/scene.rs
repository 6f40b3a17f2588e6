//! One writer, one or two walkers, and a shootdown between them.

use loom::sync::atomic::{AtomicBool, Ordering};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tlbkit_addr::{Pages, Vpn};
use tlbkit_pagetable::{Leaf, Pinned, Retired, Table, Word, Writer, destroy};

use crate::storage::Watched;

/// What a writer does.
pub(crate) type Step = for<'t> fn(&mut Writer<'t, 'static, dyn Table<'static> + 't>);

/// What the writer does while others walk, and where they look.
pub(crate) struct Scene {
    /// What is mapped before.
    pub(crate) before: Step,
    /// The changes.
    pub(crate) steps: &'static [Step],
    /// More of them, once the shootdown of the first has completed, if it has before the walkers are done.
    pub(crate) then: &'static [Step],
    /// The pages to look up.
    pub(crate) probe: &'static [usize],
    /// Those of them that may be absent for a moment: a break before what is made.
    pub(crate) broken: &'static [usize],
}

/// How many of a scene's interleavings are played. Bugs that need more preemptions are rare, and schedules are many.
#[derive(Clone, Copy)]
pub(crate) struct Bound {
    pub(crate) walkers: usize,
    pub(crate) preemptions: usize,
}

/// Two walkers, for scenes of a few stores.
pub(crate) const TWO: Bound = Bound { walkers: 2, preemptions: 2 };
/// One walker.
pub(crate) const ONE: Bound = Bound { walkers: 1, preemptions: 3 };
/// One walker, for tables that grow, whose changes are many stores: a walk begins at any of them, is interrupted anywhere, and
/// goes on after any other.
pub(crate) const GROWING: Bound = Bound { walkers: 1, preemptions: 2 };

/// Storage that outlives every thread of one execution.
struct Stage<W: Word>(*mut Watched<W>);

impl<W: Word> Stage<W> {
    fn new() -> (Self, &'static Watched<W>) {
        let storage = Box::into_raw(Box::default());
        // SAFETY: it lives until `self` is dropped, and every user of it is gone by then: see `play`.
        (Self(storage), unsafe { &*storage })
    }
}

impl<W: Word> Drop for Stage<W> {
    fn drop(&mut self) {
        // While a panic unwinds, other threads may still hold the table.
        if !std::thread::panicking() {
            // SAFETY: it came from a box, and nobody uses it any more.
            drop(unsafe { Box::from_raw(self.0) });
        }
    }
}

/// How a walker asks for a page.
type Look = fn(&dyn Table<'static>, usize) -> Option<Leaf>;

/// Visits a page, which is one walk in every table. A lookup in a hashed table that finds nothing walks a second time.
fn visit_page(table: &dyn Table<'static>, page: usize) -> Option<Leaf> {
    let mut found = None;
    let page = Pages::one(Vpn::new(page));
    // SAFETY: the caller acknowledges no shootdown during the call.
    let _ = table.for_each(unsafe { Pinned::by(&()) }, page, &mut |leaf| {
        assert_eq!(found.replace(leaf), None, "a page is visited twice");
        ControlFlow::Continue(())
    });
    found
}

fn look(table: &dyn Table<'static>, page: usize) -> Option<Leaf> {
    // SAFETY: the caller acknowledges no shootdown during the call.
    table.lookup(unsafe { Pinned::by(&()) }, Vpn::new(page).address(table.space().base()))
}

fn write(table: &dyn Table<'static>, steps: &[Step]) -> Retired<'static> {
    let mut writer = Writer::new(table).unwrap();
    for step in steps {
        step(&mut writer);
    }
    writer.finish()
}

/// Returns what each probe finds before and after every step, on a table of its own.
fn expected<W: Word, T: Table<'static>>(
    scene: &Scene,
    build: impl Fn(&'static Watched<W>) -> T,
) -> Vec<Vec<Option<Leaf>>> {
    let (_stage, storage) = Stage::new();
    let table = build(storage);
    // SAFETY: nobody walks this table; likewise below.
    unsafe { write(&table, &[scene.before]).reclaim() };
    let find = |table: &T| scene.probe.iter().map(|&page| look(table, page)).collect();
    let mut states = vec![find(&table)];
    for step in scene.steps.iter().chain(scene.then) {
        // SAFETY: as above.
        unsafe { write(&table, &[*step]).reclaim() };
        states.push(find(&table));
    }
    // SAFETY: as above.
    unsafe { destroy(table).reclaim() };
    // What is expected comes from the table itself: one that does nothing would agree with that.
    assert_ne!(states.first(), states.last(), "the steps have changed nothing");
    states
}

/// Checks that walkers see nothing but what was there at some moment, before and after they have
/// acknowledged, and that nobody meets a freed node.
pub(crate) fn check<W: Word, T>(bound: Bound, scene: &'static Scene, build: fn(&'static Watched<W>) -> T)
where
    T: Table<'static> + Send + Sync + 'static,
{
    explore(Some(bound.preemptions), move || play(bound.walkers, look, scene, build, true));
}

/// The same with walkers that visit the pages one by one.
pub(crate) fn check_visits<W: Word, T>(
    bound: Bound,
    scene: &'static Scene,
    build: fn(&'static Watched<W>) -> T,
) where
    T: Table<'static> + Send + Sync + 'static,
{
    explore(Some(bound.preemptions), move || play(bound.walkers, visit_page, scene, build, true));
}

/// Checks that one visitor of the whole table meets every page of `stay` once, which no step changes, and of the probes what
/// was there at some moment.
pub(crate) fn check_visit<W: Word, T>(
    scene: &'static Scene,
    stay: &'static [usize],
    build: fn(&'static Watched<W>) -> T,
) where
    T: Table<'static> + Send + Sync + 'static,
{
    explore(Some(3), move || {
        let states = expected(scene, build);
        let (stage, storage) = Stage::new();
        let table = Arc::new(build(storage));
        // SAFETY: nobody walks yet.
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
            assert_eq!(times, 1, "page {page} stays: {seen:?}");
        }
        for leaf in seen.iter().filter(|leaf| !stay.contains(&leaf.at.vpn(base).get())) {
            let ever = states.iter().flatten().any(|known| *known == Some(*leaf));
            assert!(ever, "{leaf:?} was never there: {states:?}");
        }
        // SAFETY: the visitor is gone.
        unsafe { batch.reclaim() };
        let table = Arc::into_inner(table).expect("the visitor is gone");
        // SAFETY: as above.
        unsafe { destroy(table).reclaim() };
        drop(stage);
    });
}

/// Returns the leaves that a visit of the whole table meets.
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

/// The same with one walker and a writer that does not wait.
pub(crate) fn check_early<W: Word, T>(scene: &'static Scene, build: fn(&'static Watched<W>) -> T)
where
    T: Table<'static> + Send + Sync + 'static,
{
    explore(None, move || play(1, look, scene, build, false));
}

/// Plays in every interleaving with so many preemptions at the most, and prints how many those are.
fn explore(preemptions: Option<usize>, play: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    // The lookups that say what to expect are steps of the model too.
    model.max_branches = 20_000;
    let played = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&played);
    model.check(move || {
        play();
        count.fetch_add(1, Relaxed);
    });
    println!("{} interleavings", played.load(Relaxed));
}

/// One execution.
fn play<W: Word, T>(
    walkers: usize,
    look: Look,
    scene: &'static Scene,
    build: fn(&'static Watched<W>) -> T,
    wait: bool,
) where
    T: Table<'static> + Send + Sync + 'static,
{
    let states = expected(scene, build);
    let (stage, storage) = Stage::new();
    let table = Arc::new(build(storage));
    // SAFETY: nobody walks yet.
    unsafe { write(&*table, &[scene.before]).reclaim() };
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
        // SAFETY: every walker has acknowledged, or that it has not is what the test is about.
        unsafe { batch.reclaim() };
        again = (!scene.then.is_empty()).then(|| write(&*table, scene.then));
    }

    for (walker, _) in walking {
        let seen = walker.join().unwrap();
        for (place, page) in scene.probe.iter().enumerate() {
            let found = seen[0][place];
            let broken = found.is_none() && scene.broken.contains(page);
            let ever = broken || states.iter().any(|state| state[place] == found);
            assert!(ever, "page {page}: {found:?} was never there: {states:?}");
            // A larger page appears and disappears with one store: what was seen of it is there for the next look.
            for (later, _) in scene.probe.iter().enumerate().skip(place + 1) {
                let together = states.iter().all(|state| state[place] == state[later]);
                if together && !broken && seen[0][later].is_some() == seen[0][place].is_none() {
                    let moment = |found| states.iter().position(|state| state[place] == found);
                    let newer = moment(seen[0][later]) > moment(found);
                    assert!(newer, "page {page} was {found:?}, then a part of it {:?}", seen[0][later]);
                }
            }
            // Whoever has acknowledged sees the end of it, and what came then.
            if let Some(after) = seen.get(1) {
                let found = after[place];
                let later = states[scene.steps.len()..].iter().any(|state| state[place] == found);
                assert!(later, "page {page} after acknowledging: {found:?} of {states:?}");
            }
        }
    }
    for batch in batch.into_iter().chain(again) {
        // SAFETY: every walker is gone.
        unsafe { batch.reclaim() };
    }
    let table = Arc::into_inner(table).expect("every walker is gone");
    // SAFETY: as above.
    unsafe { destroy(table).reclaim() };
    assert_eq!(storage.out(), 0, "the storage is not empty");

    drop(stage);
}
