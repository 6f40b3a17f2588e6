//! Visits beside a writer: every page that does not change is visited, in every table.
//!
//! `at_every_load` makes the writer's change between any two loads of a visit (of forty, where nodes are wide), which is
//! every interleaving of one change with one visit that a single preemption makes. `batches` makes several changes before
//! random loads of one visit. `race` lets both run, for a number of changes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::common::kinds;
use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_conformance::{Instrumented, Instruments};
use tlbkit_pagetable::format::{Compact32, EntryLo, Format};
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::gpt::{self, Adaptive, Fixed, Gpt, Gpt32};
use tlbkit_pagetable::hpt::{Buckets, Hashed};
use tlbkit_pagetable::nodes::{Chunk, Held, Reclaim, Slab, Usage};
use tlbkit_pagetable::{Change, FlushAll, Holes, Leaf, Pinned, Retired, Shared, Table, Writer, destroy};

/// No load is the last before a change.
const NEVER: usize = usize::MAX;

/// The pages that stay: near each other, far apart, and the last of all.
const STAY: [usize; 15] = [
    0x40, 0x43, 0x61, 0x80, 0xe0, 0xf0, 0x3_0020, 0x3_0030, 0x3_0040, 0x3_0050, 0x3_0060, 0x3_0070, 0x3_0400,
    0x8_0000, 0xf_ffff,
];
/// The pages that come and go: before, between and behind those, in a leaf with some, or in a node. 0xd0 and 0x3_0010 are the
/// first of their nodes, whose first slots are empty.
const COME: [usize; 9] = [0, 0x41, 0x44, 0x60, 0xd0, 0x100, 0x3_0010, 0x4_0000, 0xf_fffe];
/// Four pages that become one, beside one that stays.
const BLOCK: usize = 0x2_0000;

/// What the writer does during a visit.
#[derive(Clone, Copy, Debug)]
enum Act {
    Map(usize),
    Unmap(usize),
    Protect,
    Promote,
    Split,
}

const ATTR: Attr = Attr::READ.union(Attr::WRITE).union(Attr::DIRTY);

/// The second page size that all tables here have.
const LARGE: PageSize = PageSize::K16;

fn one(page: usize) -> Pages {
    Pages::one(Vpn::new(page))
}

fn block() -> Pages {
    Pages::count(Vpn::new(BLOCK), 4).unwrap()
}

/// The writer of a table of any kind.
type Pen<'t, 'n> = Writer<'t, 'n, dyn Table<'n> + 't>;

/// A table of any kind, to be destroyed.
trait Visited<'n>: Table<'n> + Sync {
    fn destroy(self: Box<Self>);
}

impl<'n, T: Table<'n> + Sync> Visited<'n> for T {
    fn destroy(self: Box<Self>) {
        reclaim(destroy(*self));
    }
}

/// Makes a table.
type New<'f, 'n> = &'f dyn Fn() -> Box<dyn Visited<'n> + 'n>;

/// Checks that nothing is left of a table.
fn ended(usage: Usage, held: &Held) {
    assert_eq!((usage.nodes, held.pending(), held.lost()), (0, 0, 0));
}

fn set(writer: &mut Pen<'_, '_>, page: usize) {
    writer.map(one(page), Pfn::new(page), PageSize::K4, ATTR).unwrap();
}

impl Act {
    /// Maps what is there before the visit.
    fn before(self, writer: &mut Pen<'_, '_>) {
        for page in STAY {
            set(writer, page);
        }
        match self {
            Act::Map(new) => COME.iter().filter(|&&page| page != new).for_each(|&page| set(writer, page)),
            Act::Unmap(_) => COME.iter().for_each(|&page| set(writer, page)),
            Act::Protect | Act::Promote => {
                writer.map(block(), Pfn::new(BLOCK), PageSize::K4, ATTR).unwrap();
            }
            Act::Split => writer.map(block(), Pfn::new(BLOCK), LARGE, ATTR).unwrap(),
        }
    }

    fn make(self, writer: &mut Pen<'_, '_>) {
        match self {
            Act::Map(page) => set(writer, page),
            Act::Unmap(page) => assert_eq!(writer.unmap(one(page), Holes::Refuse), Ok(1)),
            Act::Protect => {
                let change = Change::clear(Attr::WRITE);
                assert_eq!(writer.protect(block(), Holes::Refuse, change), Ok(4));
            }
            Act::Promote => {
                // SAFETY: no code uses the pages.
                unsafe { writer.resize(block(), LARGE, FlushAll::breaking(&mut |_| ())) }.unwrap();
            }
            Act::Split => {
                // SAFETY: no code uses the pages.
                unsafe { writer.resize(block(), PageSize::K4, FlushAll::breaking(&mut |_| ())) }.unwrap();
            }
        }
    }
}

/// Visits a range, and returns how often each leaf was visited.
fn visit(table: &dyn Table<'_>, pages: Pages) -> Vec<(Leaf, usize)> {
    let mut seen: Vec<(Leaf, usize)> = Vec::new();
    // SAFETY: this thread acknowledges no shootdown during the visit.
    let _ = table.for_each(unsafe { Pinned::by(&()) }, pages, &mut |leaf| {
        match seen.iter_mut().find(|(other, _)| *other == leaf) {
            Some((_, times)) => *times += 1,
            None => seen.push((leaf, 1)),
        }
        ControlFlow::Continue(())
    });
    seen
}

/// Tells what is wrong with a visit of a range, in which the pages of `STAY` must be and else what was there before or
/// after the change.
fn judge(
    seen: &[(Leaf, usize)],
    pages: Pages,
    before: &[(Leaf, usize)],
    after: &[(Leaf, usize)],
    most: usize,
) {
    for (leaf, times) in seen {
        assert!(before.iter().chain(after).any(|(known, _)| known == leaf), "{leaf:?} was never there");
        assert!(*times <= most, "{leaf:?} is visited {times} times");
    }
    for page in STAY {
        let visited = seen.iter().any(|(leaf, _)| leaf.at.vpn(PageSize::K4).get() == page);
        assert_eq!(visited, pages.contains(Vpn::new(page)), "page {page:#x} stays: {seen:x?}");
    }
}

/// The ranges: everything, and pieces that begin and end within nodes.
fn ranges() -> [Pages; 4] {
    let range = |first, last| Pages::new(Vpn::new(first), Vpn::new(last)).unwrap();
    [range(0, 0xf_ffff), range(0x42, 0xe0), range(0x61, 0x3_0020), range(0x4_0001, 0xf_ffff)]
}

/// Makes every change between any two loads of visits of several ranges. No leaf is visited more than `most` times.
fn at_every_load(nodes: &Instruments, most: usize, new: New<'_, '_>) {
    let moves = if cfg!(miri) { 2 } else { COME.len() };
    let acts = COME[..moves].iter().flat_map(|&page| [Act::Map(page), Act::Unmap(page)]);
    for act in acts.chain([Act::Protect, Act::Promote, Act::Split]) {
        for pages in ranges() {
            let mut stop = 0;
            loop {
                let table = new();
                reclaim(write(&*table, |writer| act.before(writer)));
                let (before, loads) = nodes.loads_of(|| visit(&*table, pages));
                let batch = RefCell::new(None);
                let make = || {
                    batch.replace(Some(write(&*table, |writer| act.make(writer))));
                    NEVER
                };
                let seen = nodes.at_loads(stop, &make, || visit(&*table, pages));
                let batch = batch.take();
                let is_made = batch.is_some();
                batch.into_iter().for_each(reclaim);
                let after = visit(&*table, pages);
                table.destroy();
                if !is_made {
                    break;
                }
                let outcome = std::panic::catch_unwind(|| judge(&seen, pages, &before, &after, most));
                assert!(outcome.is_ok(), "{act:x?} before load {stop} of a visit of {pages:?}");
                // Nodes of a thousand slots are mostly empty ones: there, some of the loads.
                stop += 1 + loads / 40;
            }
        }
    }
}

/// Maps and unmaps pages of `COME` in a random order, always the same.
struct Storm {
    random: usize,
    mapped: BTreeSet<usize>,
}

impl Storm {
    const NEW: Self = Self { random: 1, mapped: BTreeSet::new() };

    /// Returns a number below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        self.random = self.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) & 0xffff_ffff;
        (self.random >> 8) % bound
    }

    /// Maps one of the pages, or unmaps it.
    fn step(&mut self, writer: &mut Pen<'_, '_>) {
        let page = COME[self.below(COME.len())];
        if self.mapped.remove(&page) {
            assert_eq!(writer.unmap(one(page), Holes::Refuse), Ok(1));
        } else {
            set(writer, page);
            self.mapped.insert(page);
        }
    }
}

/// Returns how often each page of `STAY` is visited, with the page.
fn stays(seen: &[(Leaf, usize)]) -> [(usize, usize); STAY.len()] {
    STAY.map(|page| {
        let of = |(leaf, _): &&(Leaf, usize)| leaf.at.vpn(PageSize::K4).get() == page;
        (page, seen.iter().filter(of).map(|(_, times)| times).sum())
    })
}

/// How many changes a batch has.
const BATCH: usize = 8;

/// Returns the most times that a page may be visited beside so many changes, if it is `most` beside one. Where that is one, it
/// stays so. A hashed table visits a segment again that has been changed, as often as that happens.
fn most_beside(changes: usize, most: usize) -> usize {
    if most == 1 { 1 } else { most + changes }
}

/// Makes a batch of changes during each of many visits, each change before a random load.
fn batches(nodes: &Instruments, most: usize, new: New<'_, '_>) {
    const VISITS: usize = if cfg!(miri) { 4 } else { 2_000 };
    let table = new();
    reclaim(write(&*table, |writer| STAY.iter().for_each(|&page| set(writer, page))));
    let storm = RefCell::new(Storm::NEW);
    for number in 0..VISITS {
        let writer = RefCell::new(Pen::new(&*table).unwrap());
        let changes = Cell::new(0);
        let gap = storm.borrow_mut().below(100) + 1;
        let make = || {
            let mut storm = storm.borrow_mut();
            storm.step(&mut writer.borrow_mut());
            changes.set(changes.get() + 1);
            if changes.get() < BATCH { storm.below(gap) } else { NEVER }
        };
        let first = storm.borrow_mut().below(gap);
        let seen = nodes.at_loads(first, &make, || visit(&*table, ranges()[0]));
        for (page, times) in stays(&seen) {
            let most = most_beside(changes.get(), most);
            assert!(
                (1..=most).contains(&times),
                "visit {number} beside {} changes comes {times} times to page {page:#x}, which stays",
                changes.get(),
            );
        }
        reclaim(writer.into_inner().finish());
    }
    table.destroy();
}

fn write<'n>(table: &dyn Table<'n>, change: impl FnOnce(&mut Pen<'_, 'n>)) -> Retired<'n> {
    let mut writer = Pen::new(table).unwrap();
    change(&mut writer);
    writer.finish()
}

fn reclaim(batch: Retired<'_>) {
    // SAFETY: no thread visits the table.
    unsafe { batch.reclaim() };
}

/// One visitor beside one writer, for a number of changes.
fn race(_: &Instruments, most: usize, new: New<'_, '_>) {
    const CHANGES: usize = if cfg!(miri) { 40 } else { 2_000 };
    let owned = new();
    let table = &*owned;
    reclaim(write(table, |writer| STAY.iter().for_each(|&page| set(writer, page))));
    let (request, acknowledged) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let over = AtomicBool::new(false);
    // The writer waits for the visitor after each batch, so a visit is beside the changes of two at the most.
    let most = most_beside(2 * BATCH, most);
    std::thread::scope(|scope| {
        let visitor = scope.spawn(|| {
            let mut wrong = 0;
            let mut visits = 0;
            while !over.load(Ordering::Relaxed) {
                acknowledged.store(request.load(Ordering::Acquire), Ordering::Release);
                let seen = visit(table, ranges()[0]);
                visits += 1;
                wrong += usize::from(!stays(&seen).iter().all(|(_, times)| (1..=most).contains(times)));
            }
            acknowledged.store(usize::MAX, Ordering::Release);
            (wrong, visits)
        });
        let mut storm = Storm::NEW;
        for _ in 0..CHANGES / BATCH {
            let batch = write(table, |writer| (0..BATCH).for_each(|_| storm.step(writer)));
            let wanted = request.fetch_add(1, Ordering::AcqRel) + 1;
            while acknowledged.load(Ordering::Acquire) < wanted {
                std::thread::yield_now();
            }
            reclaim(batch);
        }
        over.store(true, Ordering::Relaxed);
        let (wrong, visits) = visitor.join().unwrap();
        assert_eq!(wrong, 0, "of {visits} visits");
    });
    owned.destroy();
}

/// Writes the tests of one table.
macro_rules! visits {
    ($name:ident, $format:ty, $most:expr, |$nodes:ident| $new:expr) => {
        mod $name {
            use super::*;

            fn with(test: fn(&Instruments, usize, New<'_, '_>)) {
                let mut memory = vec![Chunk::ZERO; 512];
                let slab = Slab::<<$format as Format>::Word, Shared>::new(&mut memory, 0).unwrap();
                let nodes = Instrumented::new(slab);
                let $nodes = &nodes;
                test($nodes, $most, &|| Box::new($new.unwrap()));
                ended(nodes.slab().usage(), nodes.held());
            }

            #[test]
            fn at_every_load() {
                with(super::at_every_load);
            }

            #[test]
            fn batches() {
                with(super::batches);
            }

            #[test]
            fn race() {
                with(super::race);
            }
        }
    };
}

/// How often a visit beside one change comes to a page at the most. A bucket that takes another's place in its chain stands in both
/// until every walker has left the old one.
macro_rules! most {
    (stays) => {
        1
    };
    ($moves:ident) => {
        2
    };
}

macro_rules! kind {
    ($name:ident, $kind:ident, $change:ident) => {
        visits!($name, Compact32, most!($change), |nodes| kinds::$kind::<Va32, Compact32, _>::new(nodes));
    };
}

each_kind!(kind);
// Nodes with many slots, and leaves with many PTEs.
visits!(g16, Compact32, 1, |nodes| Gpt::<Va32, Compact32, _, gpt::OneWord, Fixed<4>>::new(nodes));
visits!(g256, Compact32, 1, |nodes| Gpt::<Va32, Compact32, _, gpt::OneWord, Fixed<8>>::new(nodes));
// What MIPS32 handlers walk.
visits!(mpt_entrylo, EntryLo, 1, |nodes| kinds::Mpt::<Va32, EntryLo, _>::new(nodes));
visits!(lpt_mips, EntryLo, 1, |nodes| kinds::Lpt::<Va32, EntryLo, _>::new(nodes));
visits!(g2_kseg0, EntryLo, 1, |nodes| Gpt32::<_, Fixed<1>>::new(nodes));
visits!(g16_kseg0, EntryLo, 1, |nodes| Gpt32::<_, Fixed<4>>::new(nodes));
visits!(ga_kseg0, EntryLo, 1, |nodes| Gpt32::<_, Adaptive>::new(nodes));
// A page in a bucket.
visits!(hr_pages, Compact32, 2, |nodes| Hashed::<Va32, Compact32, _, Buckets<0, 1, 75>>::new(nodes));
