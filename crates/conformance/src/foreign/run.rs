//! A run of operations on a [`Foreign`] mapper, which the suite's runner compares with the model, and the checks of its nodes.

use std::collections::BTreeSet;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Change, Holes, Leaf, Solo, Table};

use super::adapter::{Adapter, is_said};
use super::{Foreign, Want, frames, watch};
use crate::hang::{self, Step};
use crate::words::words;
use crate::{Mismatch, Op, Outcome, Runner};

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

mod probe;

type Checked = Result<(), Mismatch>;

/// Checks a mapper with one sequence of operations. Returns the checks that were not made.
pub(super) fn check(new: fn() -> Box<dyn Foreign>, ops: &[Op]) -> Result<BTreeSet<Want>, Mismatch> {
    frames::reset();
    let (lacking, profile) = probe::probe(new);
    let tells = frames::tells_flushes();
    frames::reset();
    let fresh = new();
    let maps_itself = frames::cycle().is_some();
    drop(fresh);
    let frees_all = frames::out() == Some(0);
    frames::reset();
    if tells {
        frames::expect_flushes();
    }
    let mut memory = [Chunk::ZERO; 2];
    let nodes = Slab::<u32, Solo>::new(&mut memory, 0).expect("memory for a slab");
    let table = Adapter::new(new(), profile, &nodes);
    lacking.iter().for_each(|want| table.lacks(*want));
    let mut left = 0;
    watch::told();
    // The calls before a panic of the mapper are part of the failure, too.
    let done = catch_unwind(AssertUnwindSafe(|| {
        let mut runner = Runner::new(&table, profile, 0).comparing(EVERY);
        let mut run = Run { table: &table, runner: &mut runner, lacking: &lacking, kept: BTreeSet::new() };
        let done = run.all(ops);
        left = runner.model().len();
        done
    }));
    if !watch::told() || lacking.contains(&Want::Mmu) {
        table.lacks(Want::Stored);
    }
    if !frames::tells_flushes() {
        table.lacks(Want::Order);
    }
    let (unchecked, calls) = table.parts();
    let mapper = table.into_mapper();
    let cycle = frames::cycle().filter(|_| !maps_itself);
    let dropped = if cycle.is_some() {
        // The drop would follow the cycle to the end of the stack.
        mem::forget(mapper);
        Ok(())
    } else {
        // The drop of a mapper that has failed may panic again.
        catch_unwind(AssertUnwindSafe(|| drop(mapper)))
    };
    let done = match (done, dropped, frames::out()) {
        (Ok(Ok(())), Ok(()), _) if cycle.is_some() => Ok(Err(Mismatch::of(format!(
            "entries of the mapper's nodes lead from frame {:#x} back to it; the mapper is not dropped, which might not end",
            cycle.unwrap_or(0)
        )))),
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
    /// The checks that are not made.
    lacking: &'r BTreeSet<Want>,
    /// The ranges that may have empty nodes, by first address and size.
    kept: BTreeSet<(usize, PageSize)>,
}

/// Makes a [`Mismatch`].
macro_rules! mismatch {
    ($($what:tt)*) => { Err(Mismatch::of(format!($($what)*))) };
}

mod story;

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
        if !cfg!(miri) {
            self.story(ops)?;
            if let (Some(before), Some(after)) = (counts[1], self.table.mapper().nodes())
                && after > before
            {
                return mismatch!("emptied, it holds {after} nodes; emptied before it held {before}");
            }
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
                let attr = self.runner.model().profile().implied | attr & self.table.rights();
                let count = pages.len() / units;
                let fits = frame.saturating_add(pages.len()) <= 1 << (40 - base.shift());
                // Half of the ranges, and a quarter of the long ones. The frame decides, so that the choice does not depend on the
                // operations before.
                let one_in = if count > MOST { 4 } else { 2 };
                let is_drawn = || (frame / pages.len().next_power_of_two()).is_multiple_of(one_in);
                let range = Op::Map { pages, frame: Pfn::new(frame), size, attr };
                if count > 1 && fits && is_drawn() && self.takes_range(Want::MapRange, &range) {
                    return self.range(&range);
                }
                for page in 0..count.min(MOST) {
                    let Some(pages) =
                        pages.first().checked_add(page * units).and_then(|at| Pages::count(at, units))
                    else {
                        break;
                    };
                    let frame = Pfn::new((frame + page * units) & ((1 << (40 - base.shift())) - 1));
                    self.step(&Op::Map { pages, frame, size, attr })?;
                    if page == 0 && units > 1 {
                        self.large(pages)?;
                    }
                }
                Ok(())
            }
            Op::Unmap { pages, .. } | Op::Drain { pages, .. } => {
                let range = Op::Unmap { pages, holes: Holes::Refuse };
                if self.takes_range(Want::UnmapRange, &range) {
                    return self.range(&range);
                }
                self.each(pages, |pages| Op::Unmap { pages, holes: Holes::Refuse })
            }
            Op::Protect { pages, change, .. } => {
                // A change that does not affect the rights inverts that to write.
                let first = self.runner.model().overlap(pages).next().map_or(Attr::empty(), |leaf| leaf.attr);
                let rights = self.table.rights();
                let new = change.apply(first) & rights;
                let new = if new == first & rights { new ^ Attr::WRITE & rights } else { new };
                let change = self.giving(new);
                let range = Op::Protect { pages, holes: Holes::Refuse, change };
                if self.takes_range(Want::ProtectRange, &range) {
                    return self.range(&range);
                }
                self.each(pages, |pages| Op::Protect { pages, holes: Holes::Refuse, change })
            }
            Op::Resize { pages, to } => {
                let space = *self.runner.model().space();
                let Some(leaf) = self.runner.model().overlap(pages).next() else { return Ok(()) };
                let whole =
                    leaf.size.max(to).pages(base).filter(|_| leaf.size != to && space.sizes().contains(&to));
                let Some(units) = whole.filter(|units| *units <= Runner::MOST) else { return Ok(()) };
                let first = leaf.at.vpn(base).get() & !(units - 1);
                Pages::count(Vpn::new(first), units)
                    .map_or(Ok(()), |pages| self.step(&Op::Resize { pages, to }))
            }
            Op::Replace { at, frame, attr } => {
                let Some(leaf) = self.runner.model().lookup(at) else { return Ok(()) };
                let units = leaf.size.pages(base).unwrap_or(1);
                let frame = Pfn::new(frame.get() & ((1 << (40 - base.shift())) - 1) & !(units - 1));
                let attr = self.runner.model().profile().implied | attr & self.table.rights();
                self.step(&Op::Replace { at, frame, attr })
            }
            Op::Lookup { .. } | Op::ForEach { .. } => self.runner.step(self.table, op).map(drop),
            Op::Move { .. } | Op::Mark { .. } | Op::Fill { .. } => Ok(()),
        }
    }

    /// Returns the change that gives these rights and no others.
    fn giving(&self, attr: Attr) -> Change {
        Change { clear: self.table.rights() - attr, set: attr & self.table.rights() }
    }

    fn has(&self, want: Want) -> bool {
        !self.lacking.contains(&want)
    }

    /// Tells whether the mapper has a function for a range, which can take this one.
    fn takes_range(&self, want: Want, op: &Op) -> bool {
        let model = self.runner.model();
        let Some(pages) = op.pages().filter(|_| self.has(want) && !self.is_refused(op)) else { return false };
        let are_many = match *op {
            // A large page cannot be mapped where an empty node may be.
            Op::Map { size, .. } => size == model.space().base() || self.kept.is_empty(),
            _ => model.overlap(pages).nth(1).is_some(),
        };
        are_many && model.weight(op) <= Runner::MOST && model.refusals(op).is_empty()
    }

    /// Tells whether the mapper says that it refuses the operation because of its last page.
    fn is_refused(&self, op: &Op) -> bool {
        let ends = self.runner.model().space().halves().into_iter().flatten().map(|half| half.last());
        let reaches = |pages: Pages| ends.clone().any(|end| pages.contains(end));
        self.lacking.contains(&Want::RefusesLast) && op.pages().is_some_and(reaches)
    }

    /// Performs an operation on a range at once.
    fn range(&mut self, op: &Op) -> Checked {
        if let Op::Map { pages, size, .. } = *op {
            let (at, _) = self.table.page(Pages::one(pages.first()));
            let units = size.pages(self.runner.model().space().base()).unwrap_or(1);
            (0..pages.len() / units).for_each(|page| self.keep(at + page * size.bytes(), size));
        }
        self.run(op)
    }

    /// Notes that there may be a node of pages of a size, if empty ones stay.
    fn keep(&mut self, at: usize, size: PageSize) {
        if self.table.mapper().keeps_empty() {
            let space = self.table.space();
            let larger = space.sizes().iter().filter(|larger| **larger > size);
            self.kept.extend(larger.map(|larger| (at & !larger.mask(), *larger)));
        }
    }

    /// Performs an operation, and looks at what it changes as hardware does, and at the same place in the other half.
    fn run(&mut self, op: &Op) -> Checked {
        self.runner.step(self.table, op)?;
        self.sound(op)?;
        let Some(pages) = op.pages() else { return Ok(()) };
        let space = *self.runner.model().space();
        let ends = [pages.first().address(space.base()).get(), pages.last().address(space.base()).get()];
        for at in ends {
            if let [Some(low), Some(high)] = space.halves() {
                let [low, high] = [low, high].map(|half| half.first().address(space.base()).get());
                let other = if at >= high { at - high + low } else { at - low + high };
                self.runner.check_lookup(self.table, VirtAddr::new(other)).map_err(|mismatch| {
                    let what = format!("the same place in the other half, {}", mismatch.what);
                    Mismatch { what, ..mismatch }.after(op, None)
                })?;
            }
            self.walk(at).map_err(|mismatch| mismatch.after(op, None))?;
        }
        Ok(())
    }

    /// Returns as an error what was wrong in the midst of a call.
    fn sound(&self, op: &Op) -> Checked {
        self.table.fault().map_or(Ok(()), |fault| Err(Mismatch::of(fault).after(op, None)))
    }

    /// Looks up addresses inside a large page, inverts its right to write, and restores the rights.
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
        for attr in [leaf.attr ^ Attr::WRITE & self.table.rights(), leaf.attr] {
            let change = self.giving(attr);
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
                Op::Protect { .. } if !self.has(Want::Protect) => continue,
                Op::Protect { change, .. } => {
                    self.table.protect_page(at, *size, self.runner.model().profile().implied | change.set)
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
        let base = self.runner.model().space().base();
        let pages = match *op {
            Op::Replace { at, .. } => Some(Pages::one(at.vpn(base))),
            _ => op.pages(),
        };
        let Some(pages) = pages.filter(|_| refusals.iter().all(is_said)) else { return Ok(()) };
        if self.is_refused(op) {
            return Ok(());
        }
        match op {
            Op::Map { .. } => {
                let (at, size) = self.table.page(pages);
                if self.kept.contains(&(at, size)) {
                    self.table.lacks(Want::KeepsEmpty);
                    return Ok(());
                }
                self.keep(at, size);
                if !refusals.is_empty() {
                    return self.map_in_the_way(op);
                }
                let failed = self.fail(op, pages)?;
                self.run(op)?;
                // The frames of a mapper that takes its first node in this call can be limited from the next map on.
                if !failed && !self.table.limit(None) {
                    self.table.lacks(Want::FailAfter);
                }
                Ok(())
            }
            Op::Protect { .. } if !self.has(Want::Protect) => Ok(()),
            Op::Replace { .. } if !self.has(Want::Replace) => Ok(()),
            Op::Resize { to, .. } if self.has(Want::Resize) => {
                self.keep(pages.first().address(base).get(), *to);
                self.run(op)
            }
            Op::Resize { .. } => Ok(()),
            _ => self.run(op),
        }
    }

    /// Returns the number of nodes of the mapper, if it frees empty nodes at once.
    fn nodes(&self) -> Option<usize> {
        let mut mapper = self.table.mapper();
        if mapper.keeps_empty() { None } else { mapper.nodes() }
    }

    /// Returns the number of nodes of the mapper, if a refused map gives back at once what it took.
    fn refused(&self) -> Option<usize> {
        if self.table.mapper().keeps_refused() { None } else { self.nodes().or_else(frames::out) }
    }

    /// Checks that the mapper has as many nodes as before `what`. If refused maps may leave nodes, it may have fewer.
    fn check_nodes(&self, before: Option<usize>, after: Option<usize>, what: &str) -> Checked {
        let keeps = self.table.mapper().keeps_refused();
        match (before, after) {
            (Some(before), Some(after)) if before < after || before > after && !keeps => mismatch!(
                "{what}: the mapper holds {after} nodes, and before it held {before} (one that keeps empty nodes says so by \
                 `keeps_empty`, one that keeps those of a refused map by `keeps_refused`)"
            ),
            _ => Ok(()),
        }
    }

    /// Tries to map a page that is mapped already. The refused map must keep no node.
    fn map_in_the_way(&mut self, op: &Op) -> Checked {
        const WAY: &str = "a page was in the way, and the map was refused";
        let before = self.refused();
        self.runner.step(self.table, op)?;
        self.check_nodes(before, self.refused(), &format!("{WAY}, which gives back what it took"))?;
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
        let (before, refused) = (self.nodes(), self.refused());
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
                        self.nodes(),
                        "the page was mapped and unmapped, and `keeps_empty` says that no empty node stays",
                    )?;
                    return Ok(true);
                }
                self.runner.compare_near(self.table, Some(pages)).map_err(|mismatch| Mismatch {
                    what: format!("{failed}: {}", mismatch.what),
                    ..mismatch
                })?;
                self.check_nodes(
                    refused,
                    self.refused(),
                    &format!("{failed}, which gives back what it took"),
                )?;
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
