//! A run of operations on a [`Foreign`] mapper, which the suite's runner compares with the model, and the checks of its nodes.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Change, Holes, Leaf, Solo, Table};

use super::adapter::{Adapter, is_said};
use super::{Foreign, Want, frames};
use crate::hang::{self, Step};
use crate::words::words;
use crate::{Mismatch, Op, Outcome, Profile, Runner};

/// The largest number of pages of one operation.
const MOST: usize = 24;

/// The largest number of places that are looked up in a large page: every 4 KiB page of 2 MiB.
const PLACES: usize = if cfg!(miri) { 8 } else { 512 };

/// The largest number of places that are looked up once in a run: every 4 KiB page of 1 GiB.
const ALL_PLACES: usize = if cfg!(miri) { 64 } else { 1 << 18 };

/// The number of maps of a case that are repeated before the mapper is dropped with these pages mapped.
const LEFT: usize = 4;

/// The number of attempts of a map without memory: more than the nodes that any page needs.
const TRIES: usize = 8;

/// The number of operations from one comparison of all pages to the next.
const EVERY: usize = 8;

type Checked = Result<(), Mismatch>;

/// Checks a mapper with one sequence of operations. Returns the checks that were not made.
pub(super) fn check(new: fn() -> Box<dyn Foreign>, ops: &[Op]) -> Result<BTreeSet<Want>, Mismatch> {
    frames::reset();
    let protects = {
        let mut mapper = new();
        let space = mapper.space();
        let first = space.halves()[0].map_or(0, |low| low.first().address(space.base()).get());
        mapper.protect(first, space.base(), false).is_some()
    };
    let frees_all = frames::out() == Some(0);
    frames::reset();
    let mut memory = [Chunk::ZERO; 2];
    let nodes = Slab::<u32, Solo>::new(&mut memory, 0).expect("memory for a slab");
    let table = Adapter::new(new(), &nodes);
    let mut left = 0;
    // The calls before a panic of the mapper are part of the failure, too.
    let done = catch_unwind(AssertUnwindSafe(|| {
        let mut runner = Runner::new(&table, Profile::plain(), 0).comparing(EVERY);
        let done = Run { table: &table, runner: &mut runner, protects, kept: BTreeSet::new() }.all(ops);
        left = runner.model().len();
        done
    }));
    let (unchecked, calls) = table.parts();
    // The drop of a mapper that has failed may panic again.
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(table.into_mapper())));
    let done = match (done, dropped, frames::out()) {
        (Ok(Ok(())), Ok(()), Some(out)) if out > 0 && frees_all => Ok(Err(Mismatch::of(format!(
            "the mapper was dropped with {left} pages mapped, and {out} of its frames were not given back; a new one gives back \
             all that it has"
        )))),
        (Ok(Ok(())), dropped, _) => dropped.map(Ok),
        (done, ..) => done,
    };
    let panicked = |panic: Box<dyn std::any::Any + Send>| {
        Err(Mismatch::of(format!("the mapper panicked: {}", words(&*panic))))
    };
    match done.unwrap_or_else(panicked) {
        Ok(()) => Ok(unchecked),
        Err(Mismatch { what, .. }) => Err(Mismatch::of(format!("{what}\n  after:\n{}", calls.join("\n")))),
    }
}

/// A mapper under test.
struct Run<'r, 'n> {
    table: &'r Adapter<'n>,
    runner: &'r mut Runner<'n>,
    /// Whether the mapper has the function to protect.
    protects: bool,
    /// The ranges that may have empty nodes, by first address and size.
    kept: BTreeSet<(usize, PageSize)>,
}

/// Makes a [`Mismatch`].
macro_rules! mismatch {
    ($($what:tt)*) => { Err(Mismatch::of(format!($($what)*))) };
}

impl Run<'_, '_> {
    fn all(&mut self, ops: &[Op]) -> Checked {
        let mut counts = [None; 2];
        for count in &mut counts {
            ops.iter().try_for_each(|op| self.one(op))?;
            self.runner.compare(self.table, None)?;
            let space = self.table.space();
            let leaves: Vec<_> = self.runner.model().leaves().collect();
            for leaf in leaves {
                self.step(&Op::Unmap { pages: space.pages_of(&leaf), holes: Holes::Refuse })?;
            }
            *count = self.table.mapper().nodes();
        }
        // Maps pages again, so that the mapper is dropped with mapped pages.
        for op in ops.iter().filter(|op| matches!(op, Op::Map { .. })).take(LEFT) {
            self.one(op)?;
        }
        let leaf = self.runner.model().leaves().next().filter(|_| ops.len() == 1);
        if let Some(leaf) = leaf {
            self.look_within(leaf, ALL_PLACES)?;
        }
        match counts {
            [Some(before), Some(after)] if after > before => mismatch!(
                "emptied, it holds {after} nodes; emptied before the same operations it held {before}"
            ),
            [None, _] => {
                self.table.lacks(Want::Nodes);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn one(&mut self, op: &Op) -> Checked {
        hang::step(|| Step::Op(*op));
        let base = self.runner.model().space().base();
        match *op {
            Op::Map { pages, frame, size, attr } => {
                let Some(units) =
                    size.pages(base).filter(|_| self.runner.model().space().sizes().contains(&size))
                else {
                    return Ok(());
                };
                // Physical addresses have 40 bits.
                let frame = frame.get() & ((1 << (40 - base.shift())) - 1) & !(units - 1);
                for page in 0..(pages.len() / units).min(MOST) {
                    let Some(pages) =
                        pages.first().checked_add(page * units).and_then(|at| Pages::count(at, units))
                    else {
                        break;
                    };
                    let frame = Pfn::new((frame + page * units) & ((1 << (40 - base.shift())) - 1));
                    let attr = Attr::READ | Attr::EXEC | attr & Attr::WRITE;
                    self.step(&Op::Map { pages, frame, size, attr })?;
                    if page == 0 && units > 1 {
                        self.large(pages)?;
                    }
                }
                Ok(())
            }
            Op::Unmap { pages, .. } | Op::Drain { pages, .. } => {
                self.each(pages, |pages| Op::Unmap { pages, holes: Holes::Refuse })
            }
            Op::Protect { pages, change, .. } => {
                // A change that does not affect the right to write inverts that right.
                let first = self.runner.model().overlap(pages).next();
                let is_writable = first.is_some_and(|leaf| leaf.attr.contains(Attr::WRITE));
                let writable =
                    change.set.contains(Attr::WRITE) || !change.clear.contains(Attr::WRITE) && !is_writable;
                let change = if writable { Change::set(Attr::WRITE) } else { Change::clear(Attr::WRITE) };
                self.each(pages, |pages| Op::Protect { pages, holes: Holes::Refuse, change })
            }
            Op::Lookup { .. } | Op::ForEach { .. } => self.runner.step(self.table, op).map(drop),
            Op::Move { .. } | Op::Resize { .. } | Op::Replace { .. } | Op::Mark { .. } | Op::Fill { .. } => {
                Ok(())
            }
        }
    }

    /// Looks up addresses inside a large page, inverts its right to write, and restores the right.
    fn large(&mut self, pages: Pages) -> Checked {
        let Some(leaf) = self
            .runner
            .model()
            .overlap(pages)
            .next()
            .filter(|leaf| self.runner.model().space().pages_of(leaf) == pages)
        else {
            return Ok(());
        };
        self.look_within(leaf, PLACES)?;
        let is_writable = leaf.attr.contains(Attr::WRITE);
        for writable in [!is_writable, is_writable] {
            let change = if writable { Change::set(Attr::WRITE) } else { Change::clear(Attr::WRITE) };
            self.step(&Op::Protect { pages, holes: Holes::Refuse, change })?;
            self.look_within(leaf, PLACES / 8)?;
        }
        Ok(())
    }

    /// Looks up at most `most` base pages of a page, at equal distances.
    fn look_within(&mut self, leaf: Leaf, most: usize) -> Checked {
        let base = self.runner.model().space().base();
        let units = leaf.size.pages(base).unwrap_or(1);
        let step = units.div_ceil(most);
        // Each call looks up other pages.
        for page in (self.table.calls() * 7 % step..units).step_by(step) {
            let at = leaf.at.get() + page * base.bytes() + self.table.calls() % base.bytes();
            self.runner.check_lookup(self.table, VirtAddr::new(at))?;
        }
        Ok(())
    }

    /// Performs an operation on every mapped page that overlaps a range, or on the first page of the range if none does.
    fn each(&mut self, pages: Pages, op: impl Fn(Pages) -> Op) -> Checked {
        let space = *self.runner.model().space();
        let mut leaves: Vec<_> =
            self.runner.model().overlap(pages).take(MOST).map(|leaf| space.pages_of(&leaf)).collect();
        if leaves.is_empty() {
            leaves.push(Pages::one(pages.first()));
        }
        for pages in leaves {
            self.others(pages, &op)?;
            self.step(&op(pages))?;
        }
        Ok(())
    }

    /// Tries an operation on a page with every other page size of the space. The mapper must refuse it.
    fn others(&mut self, pages: Pages, op: &impl Fn(Pages) -> Op) -> Checked {
        let space = *self.runner.model().space();
        let base = space.base();
        for size in space.sizes() {
            let units = size.pages(base).unwrap_or(1);
            let first = Vpn::new(pages.first().get() & !(units - 1));
            let Some(other) = Pages::count(first, units).filter(|other| other.len() != pages.len()) else {
                continue;
            };
            let Some(leaf) = self.runner.model().overlap(other).next() else { continue };
            if !self.table.mapper().refuses_other_sizes() {
                self.table.lacks(Want::OtherSizes);
                continue;
            }
            let at = first.address(base).get();
            let done = match op(other) {
                Op::Protect { .. } if !self.protects => continue,
                Op::Protect { change, .. } => {
                    self.table.protect_page(at, *size, change.set.contains(Attr::WRITE))
                }
                _ => self.table.unmap_page(at, *size),
            };
            if done {
                return mismatch!(
                    "it was done, and should have been refused: no page of {size} is mapped at {at:#x}, but the {leaf}"
                );
            }
            self.runner.compare_near(self.table, Some(other))?;
        }
        Ok(())
    }

    /// Performs an operation on one page, and repeats a map without memory before, and with a page in the way.
    fn step(&mut self, op: &Op) -> Checked {
        let refusals = self.runner.model().refusals(op);
        let Some(pages) = op.pages().filter(|_| refusals.iter().all(is_said)) else { return Ok(()) };
        match op {
            Op::Map { .. } => {
                let (at, size) = self.table.page(pages);
                if self.kept.contains(&(at, size)) {
                    self.table.lacks(Want::KeepsEmpty);
                    return Ok(());
                }
                let keeps = self.table.mapper().keeps_empty();
                if keeps {
                    let space = self.table.space();
                    let larger = space.sizes().iter().filter(|larger| **larger > size);
                    self.kept.extend(larger.map(|larger| (at & !larger.mask(), *larger)));
                }
                if !refusals.is_empty() {
                    return self.map_in_the_way(op);
                }
                let failed = self.fail(op, pages)?;
                self.runner.step(self.table, op)?;
                // The frames of a mapper that takes its first node in this call can be limited from the next map on.
                if !failed && !self.table.limit(None) {
                    self.table.lacks(Want::FailAfter);
                }
                Ok(())
            }
            Op::Protect { .. } if !self.protects => {
                self.table.lacks(Want::Protect);
                Ok(())
            }
            _ => self.runner.step(self.table, op).map(drop),
        }
    }

    /// Returns the number of nodes of the mapper, if it frees empty nodes at once.
    fn nodes(&self) -> Option<usize> {
        let mut mapper = self.table.mapper();
        if mapper.keeps_empty() { None } else { mapper.nodes() }
    }

    /// Checks that the mapper has as many nodes as before `what`.
    fn check_nodes(&self, before: Option<usize>, what: &str) -> Checked {
        match (before, self.nodes()) {
            (Some(before), Some(after)) if before != after => mismatch!(
                "{what}: the mapper holds {after} nodes, and before it held {before} (one that keeps empty nodes says so by \
                 `keeps_empty`)"
            ),
            _ => Ok(()),
        }
    }

    /// Tries to map a page that is mapped already. The refused map must keep no node.
    fn map_in_the_way(&mut self, op: &Op) -> Checked {
        const WAY: &str = "a page was in the way, and the map was refused";
        let before = self.nodes();
        self.runner.step(self.table, op)?;
        self.check_nodes(before, &format!("{WAY}, which gives back what it took"))?;
        // A mapper that keeps empty nodes reuses them at the second attempt.
        let kept = frames::out();
        self.runner.step(self.table, op)?;
        if frames::out() > kept {
            return mismatch!(
                "{WAY}; asked once more, it keeps more nodes: {:?} frames are out, and {kept:?} were",
                frames::out()
            );
        }
        Ok(())
    }

    /// Makes each allocation of a map fail in turn. Tells whether the mapper supports that.
    fn fail(&mut self, op: &Op, pages: Pages) -> Result<bool, Mismatch> {
        let Op::Map { frame, size, .. } = *op else { return Ok(true) };
        let before = self.nodes();
        // The frame number decides whether the refused map is repeated, which detects nodes that it keeps. Not every map is
        // repeated, because such nodes stay taken for the rest of the test.
        let number = frame.get() / size.pages(self.table.space().base()).unwrap_or(1);
        let most = if number.is_multiple_of(2) { TRIES } else { 1 };
        for takes in 0..TRIES {
            let had = frames::out().unwrap_or(0);
            for tries in 1..=most {
                let limits = self.table.limit(Some(takes));
                let outcome =
                    if limits { self.runner.perform_only(self.table, op) } else { Ok(Outcome::TooLarge) };
                self.table.limit(None);
                if !limits {
                    return Ok(false);
                }
                let failed = format!("allocation {takes} failed, and the map with it");
                if outcome? == Outcome::Done {
                    // All allocations have succeeded, so the map is undone before the real one.
                    self.runner.compare_near(self.table, Some(pages))?;
                    self.runner.step(self.table, &Op::Unmap { pages, holes: Holes::Refuse })?;
                    self.check_nodes(
                        before,
                        "the page was mapped and unmapped, and `keeps_empty` says that no empty node stays",
                    )?;
                    return Ok(true);
                }
                self.runner.compare_near(self.table, Some(pages)).map_err(|mismatch| Mismatch {
                    what: format!("{failed}: {}", mismatch.what),
                    ..mismatch
                })?;
                self.check_nodes(before, &format!("{failed}, which gives back what it took"))?;
                let has = frames::out().unwrap_or(0);
                if has <= had {
                    break;
                }
                if tries == TRIES {
                    return mismatch!(
                        "{failed}, {TRIES} times: {} more frames are out than before, and the next map does not use what the \
                         refused ones have kept",
                        has - had
                    );
                }
            }
        }
        // It could take more nodes than any page needs, and was refused: the runner says so of the real map.
        Ok(true)
    }
}
