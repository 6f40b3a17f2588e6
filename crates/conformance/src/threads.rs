//! Threads that walk a table while another thread writes it: every result must be one that was true, and no node may be reused
//! during a walk.
//!
//! Blocks of pages change in a cycle: absent, writable, read-only, one large page. A frame number encodes the page and the
//! generation of its block, so every result can be checked. Next to the blocks are pages that stay mapped: every visit must find
//! them. Walkers acknowledge between two walks, and the writer reclaims nodes when all have acknowledged.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{scope, yield_now};
use std::time::{Duration, Instant};

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::nodes::Reclaim;
use tlbkit_pagetable::{Change, FlushAll, Holes, Leaf, Pinned, Space, Table, Writer};

use crate::hang::{self, ENDLESS, Step};
use crate::subject::Made;
use crate::words::show;

/// The number of threads that look up pages. One more thread visits all pages.
const WALKERS: usize = 2;
/// The number of stages of a block, which repeat: absent, writable, read-only, one large page.
const STAGES: usize = 4;

const WRITE: Attr = Attr::READ.union(Attr::WRITE);

/// A run of pages that change together, of the second page size.
struct Block {
    pages: Pages,
    number: usize,
    /// The page size in the last stage.
    large: PageSize,
    /// The generation that every walker has acknowledged.
    oldest: AtomicUsize,
    /// The generation that is being made.
    newest: AtomicUsize,
    /// Whether entries are empty while a page changes its size.
    breaks: bool,
}

impl Block {
    /// Returns the first frame in a generation.
    fn frame(&self, generation: usize) -> Pfn {
        Pfn::new(((generation / STAGES % 64 + 1) * 4 + self.number) * self.pages.len())
    }

    /// Tells whether `found` is right for a page in a generation.
    fn looks(&self, generation: usize, page: Vpn, found: Option<Leaf>, base: PageSize) -> bool {
        let Some(leaf) = found else {
            return generation.is_multiple_of(STAGES) || self.breaks && generation % STAGES == 3;
        };
        let offset = page.get() - self.pages.first().get();
        let frame = leaf.frame.get() + (page.get() - leaf.at.vpn(base).get());
        let attr = if generation % STAGES == 1 { WRITE } else { Attr::READ };
        let size = if generation % STAGES == 3 { self.large } else { base };
        !generation.is_multiple_of(STAGES)
            && frame == self.frame(generation).get() + offset
            && leaf.attr & WRITE == attr
            && leaf.size == size
    }

    /// Returns the number of leaves of the block in a generation.
    fn leaves(&self, generation: usize, base: PageSize) -> usize {
        match generation % STAGES {
            0 => 0,
            3 if self.large != base => 1,
            _ => self.pages.len(),
        }
    }

    /// Checks the result for a page while its block changes from one generation to another.
    fn judge(
        &self,
        (oldest, newest): (usize, usize),
        page: Vpn,
        found: Option<Leaf>,
        base: PageSize,
    ) -> Result<(), String> {
        if (oldest..=newest).any(|generation| self.looks(generation, page, found, base)) {
            return Ok(());
        }
        let was = |generation: usize| match generation % STAGES {
            0 => "unmapped".to_owned(),
            stage => format!(
                "mapped to {} by {} pages{}",
                Pfn::new(self.frame(generation).get() + (page.get() - self.pages.first().get())),
                if stage == 3 { self.large } else { base },
                if stage == 1 { ", writable" } else { "" }
            ),
        };
        Err(format!(
            "a walker finds {} {}; in generations {oldest} to {newest} of its block it was {}",
            page.address(base),
            show(found),
            (oldest..=newest).map(was).collect::<Vec<_>>().join(", then ")
        ))
    }
}

/// The state that the threads share.
struct Scene {
    space: Space,
    blocks: Vec<Block>,
    /// The pages that stay mapped. Each is mapped to the frame whose number is its index in this list.
    stay: Vec<Vpn>,
    /// The number of the current shootdown, which every walker acknowledges.
    request: AtomicUsize,
    acknowledged: [AtomicUsize; WALKERS + 1],
    stop: AtomicBool,
}

impl Scene {
    /// Blocks at both ends of the space and in between, and their neighbours.
    fn new(space: Space, breaks: bool) -> Self {
        let large = space.sizes().get(1).copied().unwrap_or(space.base());
        let unit = large.pages(space.base()).unwrap_or(1);
        let halves = space.halves();
        let low = halves[0].unwrap_or(Pages::one(Vpn::new(0)));
        let high = halves[1].unwrap_or(low);
        let mut firsts =
            vec![low.first().get(), (low.last().get() / 2) & !(unit - 1), high.last().get() - (unit - 1)];
        firsts.dedup();
        let block = |(number, &first): (usize, &usize)| Block {
            pages: Pages::count(Vpn::new(first), unit).expect("the space has pages of its second size"),
            number,
            large,
            oldest: AtomicUsize::new(0),
            newest: AtomicUsize::new(0),
            breaks,
        };
        let blocks: Vec<_> = firsts.iter().enumerate().map(block).collect();
        let beside = |first: &usize| [first.checked_sub(1), first.checked_add(unit)];
        let is_free = |page: &Vpn| {
            halves.iter().flatten().any(|half| half.contains(*page))
                && !blocks.iter().any(|block| block.pages.contains(*page))
        };
        let mut stay: Vec<_> =
            firsts.iter().flat_map(beside).flatten().map(Vpn::new).filter(is_free).collect();
        stay.dedup();
        Self {
            space,
            blocks,
            stay,
            request: AtomicUsize::new(0),
            acknowledged: Default::default(),
            stop: AtomicBool::new(false),
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Acknowledges the last shootdown: the thread is in no walk that began before it.
    fn acknowledge(&self, me: usize) {
        self.acknowledged[me].store(self.request.load(Ordering::Acquire), Ordering::Release);
    }

    /// Checks the result for a page that stays mapped.
    fn judge_stay(&self, number: usize, found: Option<Leaf>) -> Result<(), String> {
        let at = self.stay[number].address(self.space.base());
        let is_right = |leaf: Leaf| {
            leaf.at == at && leaf.size == self.space.base() && leaf.frame == Pfn::new(number + 1)
        };
        if found.is_some_and(is_right) {
            return Ok(());
        }
        Err(format!(
            "a walker finds {at} {}; it is mapped to frame {} all the time",
            show(found),
            Pfn::new(number + 1)
        ))
    }

    /// Looks up pages, and returns the number of lookups.
    fn look<'n>(&self, table: &dyn Table<'n>, me: usize) -> Result<usize, String> {
        let base = self.space.base();
        let (mut random, mut walks) = (me + 1, 0);
        // SAFETY: this thread acknowledges only between walks.
        let look = |page: Vpn| table.lookup(unsafe { Pinned::by(&()) }, page.address(base));
        while !self.stopped() {
            self.acknowledge(me);
            for _ in 0..64 {
                random = random.wrapping_mul(6_364_136_223_846_793_005_u64 as usize).wrapping_add(1_442_695);
                let which = (random >> 20) % (self.blocks.len() + 1);
                if let Some(block) = self.blocks.get(which) {
                    let page = Vpn::new(block.pages.first().get() + (random >> 24) % block.pages.len());
                    let oldest = block.oldest.load(Ordering::SeqCst);
                    let found = look(page);
                    let newest = block.newest.load(Ordering::SeqCst);
                    block.judge((oldest, newest), page, found, base)?;
                } else if !self.stay.is_empty() {
                    let number = (random >> 24) % self.stay.len();
                    self.judge_stay(number, look(self.stay[number]))?;
                }
                walks += 1;
            }
            yield_now();
        }
        Ok(walks)
    }

    /// Visits all pages repeatedly, and returns the number of visits.
    fn visit<'n>(&self, table: &dyn Table<'n>) -> Result<usize, String> {
        let mut visits = 0;
        while !self.stopped() {
            self.acknowledge(WALKERS);
            let oldest: Vec<_> =
                self.blocks.iter().map(|block| block.oldest.load(Ordering::SeqCst)).collect();
            let mut seen = Vec::new();
            for half in self.space.halves().into_iter().flatten() {
                // SAFETY: this thread acknowledges only between visits.
                let _ = table.for_each(unsafe { Pinned::by(&()) }, half, &mut |leaf| {
                    assert!(seen.len() < ENDLESS, "a visit has met {ENDLESS} pages, and does not end");
                    seen.push(leaf);
                    if self.stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
            }
            if self.stopped() {
                break;
            }
            // A hashed table may visit a leaf twice.
            seen.sort_unstable_by_key(|leaf| (leaf.at, leaf.frame, leaf.size, leaf.attr));
            seen.dedup();
            self.judge_visit(&seen, &oldest).map_err(|wrong| format!("in a visit of all pages, {wrong}"))?;
            visits += 1;
            yield_now();
        }
        Ok(visits)
    }

    /// Checks the result of a visit that began when the blocks were in these generations.
    fn judge_visit(&self, seen: &[Leaf], oldest: &[usize]) -> Result<(), String> {
        let base = self.space.base();
        let mut known = 0;
        for (number, page) in self.stay.iter().enumerate() {
            let first = seen.partition_point(|leaf| leaf.at < page.address(base));
            let mut found = seen[first..].iter().take_while(|leaf| leaf.at == page.address(base)).peekable();
            if found.peek().is_none() {
                self.judge_stay(number, None)?;
            }
            for leaf in found {
                known += 1;
                self.judge_stay(number, Some(*leaf))?;
            }
        }
        for (block, &oldest) in self.blocks.iter().zip(oldest) {
            let newest = block.newest.load(Ordering::SeqCst);
            let first = seen.partition_point(|leaf| leaf.at < block.pages.first().address(base));
            let met = seen[first..].iter().take_while(|leaf| block.pages.contains(leaf.at.vpn(base)));
            for leaf in met.clone() {
                block.judge((oldest, newest), leaf.at.vpn(base), Some(*leaf), base)?;
            }
            let (met, wanted) = (met.count(), block.leaves(newest, base));
            if oldest == newest && met != wanted {
                return Err(format!(
                    "{met} pages of {} are met, and {wanted} are mapped in generation {newest} of that block, in which it \
                     was all the time",
                    block.pages
                ));
            }
            known += met;
        }
        if known != seen.len() {
            return Err(format!(
                "{} pages are met, and {known} of them were ever mapped: {seen:?}",
                seen.len()
            ));
        }
        Ok(())
    }

    /// Makes the next generation of a block, and waits until every walker has acknowledged it.
    fn change<'n>(&self, table: &dyn Table<'n>, block: &Block) -> Result<(), String> {
        let base = self.space.base();
        let generation = block.newest.fetch_add(1, Ordering::SeqCst) + 1;
        let refused =
            |error| format!("the writer is refused generation {generation} of {}: {error}", block.pages);
        let mut writer = Writer::new(table).map_err(refused)?;
        let pages = block.pages;
        hang::step(|| Step::Said(format!("the writer makes generation {generation} of {pages}")));
        match generation % STAGES {
            0 => {
                writer.unmap(pages, Holes::Refuse).map_err(refused)?;
            }
            1 => writer.map(pages, block.frame(generation), base, WRITE).map_err(refused)?,
            2 => {
                let change = Change::clear(Attr::WRITE);
                writer.protect(pages, Holes::Refuse, change).map_err(refused)?;
            }
            // SAFETY: no code uses these pages.
            _ => unsafe { writer.resize(pages, block.large, FlushAll::breaking(&mut |_| ())) }
                .map_err(refused)?,
        }
        let batch = writer.finish();
        let request = self.request.fetch_add(1, Ordering::AcqRel) + 1;
        let waits = |cpu: &AtomicUsize| cpu.load(Ordering::Acquire) < request;
        while self.acknowledged.iter().any(waits) {
            if self.stopped() {
                return Ok(());
            }
            yield_now();
        }
        block.oldest.store(generation, Ordering::SeqCst);
        // SAFETY: every walker has left the walk that it was in when the change was made.
        unsafe { batch.reclaim() };
        Ok(())
    }

    /// Changes the blocks until it is enough.
    fn write<'n>(&self, table: &dyn Table<'n>) -> Result<(), String> {
        let (seconds, least) = if cfg!(miri) { (0.0, 2 * STAGES) } else { (0.3, 8 * STAGES) };
        let begun = Instant::now();
        for round in 0.. {
            let enough = round >= least && begun.elapsed() >= Duration::from_secs_f64(seconds);
            if enough || self.stopped() {
                break;
            }
            self.blocks.iter().try_for_each(|block| self.change(table, block))?;
        }
        Ok(())
    }
}

/// Stops all threads when it goes out of scope, even by a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// For 0.3 seconds, two threads look up pages and one visits them, while one changes blocks of pages. Then destroys the table.
///
/// # Errors
///
/// A result that was never true, or an error that the table returned to its writer.
///
/// # Panics
///
/// If a thread panics in the table.
pub fn race<'n>(table: impl Table<'n> + Sync + 'n) -> Result<(), String> {
    run(Box::new(table))
}

/// A table that threads share.
type Shared<'n> = dyn Made<'n> + Sync + 'n;

fn run<'n>(table: Box<Shared<'n>>) -> Result<(), String> {
    let tell = |seconds: u64, steps: &[Step]| {
        let when = match steps.last() {
            Some(Step::Said(what)) => what,
            _ => "it is made",
        };
        format!(
            "Threads beside a writer: the table has not come back for {seconds} seconds when {when}; either the writer hangs, \
             or a walk, which then never acknowledges the change."
        )
    };
    hang::guard(tell, || raced(table))
}

fn raced<'n>(table: Box<Shared<'n>>) -> Result<(), String> {
    let space = table.space();
    let scene = Scene::new(space, table.breaks());
    let mut writer = Writer::new(&*table).map_err(|error| error.to_string())?;
    for (number, page) in scene.stay.iter().enumerate() {
        writer
            .map(Pages::one(*page), Pfn::new(number + 1), space.base(), Attr::READ)
            .map_err(|error| format!("page {page} is refused in a new table: {error}"))?;
    }
    // SAFETY: there is no walker yet.
    unsafe { writer.finish().reclaim() };
    let seen: Vec<_> = scope(|threads| {
        let (table, scene): (&Shared<'n>, _) = (&*table, &scene);
        let walker = |me: usize| {
            threads.spawn(move || {
                let _stop = Stop(&scene.stop);
                if me < WALKERS { scene.look(table, me) } else { scene.visit(table) }
            })
        };
        let walkers: Vec<_> = (0..=WALKERS).map(walker).collect();
        let written = {
            let _stop = Stop(&scene.stop);
            scene.write(table)
        };
        let walked = walkers.into_iter().map(|walker| walker.join().expect("a walk that does not panic"));
        walked.chain([written.map(|()| 1)]).collect()
    });
    // SAFETY: every walker has ended.
    unsafe { table.destroy().reclaim() };
    for walks in seen {
        if walks? == 0 {
            return Err("a walker has not come to walk once".to_owned());
        }
    }
    Ok(())
}

/// Checks that a storage of which `used` nodes are in use has nothing left of a table.
#[doc(hidden)]
pub fn ended(used: usize, storage: &dyn Reclaim) {
    let held = storage.held();
    assert!(
        (used, held.pending(), held.lost()) == (0, 0, 0),
        "the table is gone, and of its nodes {used} were not freed, {} are pending, {} lost",
        held.pending(),
        held.lost()
    );
}

/// Runs threads that walk a table while another thread writes it: one line in a test file.
///
/// `threads!(name, Format, |nodes| constructor)` writes a test. The constructor gets [`&Instrumented`](crate::Instrumented), node storage for the format's words
/// in [`Shared`](tlbkit_pagetable::Shared) mode, and returns a `Result`.
///
/// ```
/// use tlbkit_conformance::threads;
/// use tlbkit_pagetable::format::Compact;
/// use tlbkit_pagetable::geometry::Va39;
/// use tlbkit_pagetable::mpt::Mpt;
///
/// threads!(beside_a_writer, Compact, |nodes| Mpt::<Va39, Compact, _>::new(nodes));
/// threads!(several_writers, Compact, |nodes, locks| {
///     Mpt::<Va39, Compact, _>::new(nodes).map(|table| table.with_locks(locks))
/// });
/// # fn main() {}
/// ```
///
/// With a second name, that of [`NodeLocks`](tlbkit_pagetable::NodeLocks), threads write the table at a time ([`writers`](crate::writers)), and
/// the storage is a [`Slab`](tlbkit_pagetable::nodes::Slab).
#[macro_export]
macro_rules! threads {
    ($name:ident, $format:ty, |$nodes:ident, $locks:ident| $new:expr) => {
        $crate::threads!(@ $name, $format, |slab| {
            let mut locks = $crate::pagetable::NodeLocks::default();
            let ($nodes, $locks) = (&slab, &mut locks);
            let profile = $crate::Profile::of::<$format>();
            $crate::writers::race($new.expect("a new table"), profile).unwrap_or_else(|wrong| panic!("{wrong}"));
            $crate::threads::ended(slab.usage().nodes, &slab);
        });
    };
    ($name:ident, $format:ty, |$nodes:ident| $new:expr) => {
        $crate::threads!(@ $name, $format, |slab| {
            let nodes = $crate::Instrumented::new(slab);
            let $nodes = &nodes;
            $crate::threads::race($new.expect("a new table")).unwrap_or_else(|wrong| panic!("{wrong}"));
            $crate::threads::ended(nodes.slab().usage().nodes, nodes.slab());
        });
    };
    // A test with a storage in memory of its own.
    (@ $name:ident, $format:ty, |$slab:ident| $body:block) => {
        #[test]
        fn $name() {
            use $crate::pagetable::format::Format;
            use $crate::pagetable::nodes::{Chunk, Slab};

            let mut memory = vec![Chunk::ZERO; if cfg!(miri) { 64 } else { 1024 }];
            let $slab =
                Slab::<<$format as Format>::Word, $crate::pagetable::Shared>::new(&mut memory, 0).unwrap();
            $body
        }
    };
}
