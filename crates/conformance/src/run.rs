//! The runner: performs operations on a table and on the model, and compares everything after each.

use std::fmt;
use std::mem;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, Reach, VirtAddr, Vpn, WalkCache};
use tlbkit_pagetable::{Entry, Error, Footprint, Frames, Leaf, Mark, Pinned, Retired, Table, Writer};

use crate::moments::show;
use crate::{Effect, Model, Op, Profile, Trip};

/// What a table did that the model did not predict.
#[derive(Clone, Debug)]
pub struct Mismatch {
    /// The operation after which it showed, if any.
    pub op: Option<Op>,
    /// What became of that operation, if it had been judged by then.
    pub outcome: Option<Outcome>,
    /// What was found and what was expected.
    pub what: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        let Some(op) = &self.op else { return Ok(()) };
        write!(f, "\n  after {op:?}")?;
        match &self.outcome {
            Some(Outcome::Done) => f.write_str("\n  which succeeded"),
            Some(Outcome::Refused(error)) => write!(f, "\n  which was refused: {error}"),
            Some(Outcome::NoMemory { wanted, pending }) => {
                write!(f, "\n  which was refused: no memory for {wanted} nodes, {pending} are pending")
            }
            Some(Outcome::TooLarge) | None => Ok(()),
        }
    }
}

impl std::error::Error for Mismatch {}

impl Mismatch {
    /// Returns a mismatch of no operation.
    pub(crate) fn of(what: impl Into<String>) -> Self {
        Self { op: None, outcome: None, what: what.into() }
    }

    /// Returns the mismatch as one that showed after an operation.
    pub(crate) fn after(self, op: &Op, outcome: Option<&Outcome>) -> Self {
        Self { op: self.op.or(Some(*op)), outcome: self.outcome.or(outcome.cloned()), ..self }
    }

    pub(crate) fn no_table(error: Error) -> Self {
        Self::of(format!("no new table: {error}"))
    }
}

/// What became of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did what the model predicted.
    Done,
    /// It was refused, as the model predicted, and changed nothing.
    Refused(Error),
    /// Node storage was exhausted, and nothing changed.
    NoMemory {
        /// How many nodes it wanted.
        wanted: usize,
        /// How many nodes were pending.
        pending: usize,
    },
    /// It would have made more leaves than [`Runner::MOST`], and was not performed.
    TooLarge,
}

/// A table, its model, and the batches that wait to be reclaimed.
///
/// The table must be a new one. Nobody else may use it, or reclaim what it retired.
#[derive(Debug)]
pub struct Runner<'n> {
    model: Model,
    fresh: Footprint,
    patience: usize,
    batches: Vec<Retired<'n>>,
    steps: usize,
}

/// Makes a [`Mismatch`] without its operation.
macro_rules! mismatch {
    ($($what:tt)*) => { Err(Mismatch::of(format!($($what)*))) };
}

impl<'n> Runner<'n> {
    /// The most leaves that one operation may make: single pages of gigabytes are mapped, but not split to the last.
    pub const MOST: usize = if cfg!(miri) { 16 } else { 600 };

    /// Returns a runner for `table`, which is empty. Up to `patience` batches wait, as if for a shootdown, before the
    /// oldest is reclaimed.
    pub fn new(table: &dyn Table<'n>, profile: Profile, patience: usize) -> Self {
        Self {
            model: Model::new(table.space(), profile).with_marks(table.payload_bits()),
            fresh: table.footprint(),
            patience,
            batches: Vec::new(),
            steps: 0,
        }
    }

    /// Lets up to `patience` batches wait.
    pub(crate) fn with_patience(self, patience: usize) -> Self {
        Self { patience, ..self }
    }

    /// Performs one operation, and compares nothing but its result and its flush.
    pub(crate) fn perform_only(&mut self, table: &dyn Table<'n>, op: &Op) -> Result<Outcome, Mismatch> {
        if self.model.weight(op) > Self::MOST {
            return Ok(Outcome::TooLarge);
        }
        self.perform(table, op).map_err(|mismatch| mismatch.after(op, None))
    }

    /// Returns the model.
    pub const fn model(&self) -> &Model {
        &self.model
    }

    /// Returns how many nodes wait in batches.
    pub fn pending(&self) -> usize {
        self.batches.iter().map(Retired::nodes).sum()
    }

    /// Performs one operation, and compares the result, what must be flushed, and the whole table.
    ///
    /// # Errors
    ///
    /// The first thing that differs.
    pub fn step(&mut self, table: &dyn Table<'n>, op: &Op) -> Result<Outcome, Mismatch> {
        if self.model.weight(op) > Self::MOST {
            return Ok(Outcome::TooLarge);
        }
        self.steps += 1;
        let outcome = self.perform(table, op).map_err(|mismatch| mismatch.after(op, None))?;
        self.compare(table, op.pages()).map_err(|mismatch| mismatch.after(op, Some(&outcome)))?;
        Ok(outcome)
    }

    /// Performs one operation, and compares the result, what must be flushed, and the pages around it alone: most of what
    /// [`step`](Self::step) compares is what it has compared before.
    pub(crate) fn step_near(&mut self, table: &dyn Table<'n>, op: &Op) -> Result<Outcome, Mismatch> {
        self.steps += 1;
        let outcome = self.perform_only(table, op)?;
        self.compare_near(table, op.pages()).map_err(|mismatch| mismatch.after(op, Some(&outcome)))?;
        Ok(outcome)
    }

    /// Performs all operations.
    ///
    /// # Errors
    ///
    /// The first thing that differs; that memory is exhausted is one.
    pub fn run(&mut self, table: &dyn Table<'n>, ops: &[Op]) -> Result<(), Mismatch> {
        for op in ops {
            if let Outcome::NoMemory { wanted, pending } = self.step(table, op)? {
                return mismatch!("no memory for {wanted} nodes ({pending} pending) where there is plenty");
            }
        }
        Ok(())
    }

    /// Performs all operations, and compares nothing but their results.
    pub(crate) fn replay(&mut self, table: &dyn Table<'n>, ops: &[Op]) -> Result<(), Mismatch> {
        for op in ops.iter().filter(|op| !matches!(op, Op::Lookup { .. } | Op::ForEach { .. })) {
            if self.model.weight(op) <= Self::MOST {
                self.perform(table, op).map_err(|mismatch| mismatch.after(op, None))?;
            }
        }
        Ok(())
    }

    /// Unmaps everything, one range for each half of the space, and checks that an empty table takes no more nodes
    /// than a new one if `shrinks`.
    ///
    /// # Errors
    ///
    /// The first thing that differs.
    pub fn clear(&mut self, table: &dyn Table<'n>, shrinks: bool) -> Result<(), Mismatch> {
        for pages in self.model.space().halves().into_iter().flatten() {
            let op = Op::Unmap { pages, holes: tlbkit_pagetable::Holes::Skip, room: None };
            self.step(table, &op)?;
        }
        let left = table.footprint();
        if shrinks && left != self.fresh {
            return mismatch!("an emptied table takes {left:?}, a new one {:?}", self.fresh);
        }
        self.settle();
        Ok(())
    }

    /// Reclaims all batches.
    pub fn settle(&mut self) {
        for batch in self.batches.drain(..) {
            // SAFETY: there is no TLB here, and nobody walks but the runner, which does not now.
            unsafe { batch.reclaim() };
        }
    }

    /// Performs an operation of which one call to the caller's code unwinds, the one that `trip` is set to: changes to the
    /// table that do not, and what is left is compared with the model. Every page must be as it was, as it was to
    /// become, or, of those that were to change, unmapped; what has changed must be flushed; and no frame is handed over
    /// that the table leads to. The model takes over what is there. With `keep` the writer outlives the panic, otherwise the
    /// next one takes over what it owed. Before that, `whole` counts the nodes.
    ///
    /// Returns whether a call has unwound. Without one the operation was performed.
    ///
    /// # Errors
    ///
    /// The first thing that differs.
    pub fn unwind(
        &mut self,
        table: &dyn Table<'n>,
        op: &Op,
        trip: &Trip,
        keep: bool,
        whole: &dyn Fn() -> Result<(), Mismatch>,
    ) -> Result<bool, Mismatch> {
        let may = self.model.refusals(op).is_empty();
        let effect = if may { self.model.effect(op) } else { Effect::default() };
        let Ok(mut writer) = Writer::new(table) else { return mismatch!("a writer was left behind") };
        let mut frames = Collector { trip: Some(trip), ..Collector::default() };
        let base = self.model.space().base();
        let change = AssertUnwindSafe(|| match *op {
            Op::Map { pages, frame, size, attr } => writer.map(pages, frame, size, attr).is_ok(),
            Op::Unmap { pages, holes, room: None } => writer.unmap(pages, holes, None).is_ok(),
            Op::Unmap { pages, holes, room: Some(room) } => {
                frames.room = room;
                writer.unmap(pages, holes, Some(&mut frames)).is_ok()
            }
            Op::Protect { pages, holes, change } => writer.protect(pages, holes, change).is_ok(),
            Op::Resize { pages, to } => {
                // SAFETY: nobody needs the pages.
                unsafe { writer.resize_breaking(pages, to, &mut |_| trip.call()) }.is_ok()
            }
            Op::Replace { at, frame, attr } => {
                // SAFETY: nobody needs the page.
                unsafe { writer.replace_breaking(at, frame, attr, &mut |_| trip.call()) }.is_ok()
            }
            Op::Mark { page, mark } => writer.mark(page.address(base), mark).is_ok(),
            Op::Fill { page, frame, attr } => writer.fill(page.address(base), frame, attr).is_ok(),
            Op::Lookup { .. } => true,
            Op::ForEach { pages, .. } => {
                // SAFETY: the runner is the only one who reclaims, and does not during the call.
                let pinned = unsafe { Pinned::by(&*self) };
                let visit = &mut |_: Leaf| {
                    trip.call();
                    ControlFlow::Continue(())
                };
                table.for_each(pinned, pages, visit).is_continue()
            }
        });
        let unwound = catch_unwind(change).is_err();
        if unwound != trip.tripped() {
            return mismatch!("a panic that was not planned");
        }
        if let Err(mismatch) = whole() {
            // The list of such a batch may end nowhere.
            mem::forget(writer);
            return Err(mismatch);
        }
        let batch = if keep || !unwound {
            writer.finish()
        } else {
            drop(writer);
            let Ok(writer) = Writer::new(table) else {
                return mismatch!("the writer's flag was left behind");
            };
            writer.finish()
        };
        let (found, marks) = (self.all(table), self.all_marks(table));
        let flush = batch.flush().clone();
        self.batches.push(batch);
        if unwound {
            self.check_unwound(&effect, &found, &flush, &frames)?;
            self.check_marks_unwound(&effect, &marks)?;
        }
        self.model.adopt(&found, &marks);
        Ok(unwound)
    }

    /// Returns everything that the table maps, in ascending order.
    fn all(&self, table: &dyn Table<'n>) -> Vec<Leaf> {
        let mut found = Vec::new();
        for pages in self.model.space().halves().into_iter().flatten() {
            // SAFETY: the runner is the only one who reclaims, and does not during the call.
            let _ = table.for_each(unsafe { Pinned::by(self) }, pages, &mut |leaf| {
                found.push(leaf);
                ControlFlow::Continue(())
            });
        }
        found.sort_unstable_by_key(|leaf| leaf.at);
        found
    }

    /// Returns every mark of the table, in ascending order.
    fn all_marks(&self, table: &dyn Table<'n>) -> Vec<(VirtAddr, Mark)> {
        let mut found = Vec::new();
        for pages in self.model.space().halves().into_iter().flatten() {
            // SAFETY: the runner is the only one who reclaims, and does not during the call.
            let _ = table.for_each_entry(unsafe { Pinned::by(self) }, pages, &mut |at, entry| {
                found.extend(entry.mark().map(|mark| (at, mark)));
                ControlFlow::Continue(())
            });
        }
        found
    }

    /// Checks that marks are as they were, or as an operation was to make them that unwound.
    fn check_marks_unwound(&self, effect: &Effect, found: &[(VirtAddr, Mark)]) -> Result<(), Mismatch> {
        let base = self.model.space().base();
        let planned = |at: VirtAddr| effect.marked.iter().find(|(page, _)| *page == at.vpn(base));
        for &(at, mark) in found {
            if self.model.entry(at) != Entry::Mark(mark)
                && planned(at).is_none_or(|&(_, new)| new != Some(mark))
            {
                return mismatch!("an operation that unwound left {mark:?} at {at}");
            }
        }
        for (at, mark) in
            self.model.space().halves().into_iter().flatten().flat_map(|half| self.model.marks(half))
        {
            if planned(at).is_none() && !found.contains(&(at, mark)) {
                return mismatch!("an operation that unwound lost {mark:?} at {at}");
            }
        }
        Ok(())
    }

    /// Checks what an operation has left that unwound.
    fn check_unwound(
        &self,
        effect: &Effect,
        found: &[Leaf],
        flush: &Flush,
        frames: &Collector<'_>,
    ) -> Result<(), Mismatch> {
        let base = self.model.space().base();
        let is_there = |leaf: &Leaf| {
            found.binary_search_by_key(&leaf.at, |leaf| leaf.at).is_ok_and(|at| found[at] == *leaf)
        };
        if let Some(leaf) = found
            .iter()
            .find(|leaf| self.model.lookup(leaf.at) != Some(**leaf) && !effect.added.contains(leaf))
        {
            return mismatch!("an operation that unwound left {leaf:?}");
        }
        if let Some(leaf) = self.model.leaves().find(|leaf| !effect.removed.contains(leaf) && !is_there(leaf))
        {
            return mismatch!("an operation that unwound lost {leaf:?}");
        }
        for &(reach, pages) in &effect.touched {
            let now = found
                .iter()
                .copied()
                .filter(|leaf| self.model.space().pages_of(leaf).intersect(pages).is_some());
            if reach > Reach::Nowhere
                && !now.eq(self.model.overlap(pages))
                && !(flush.reach() >= reach && flush.covers(pages))
            {
                return mismatch!("an operation that unwound changed {pages}, and asks for {flush:?}");
            }
        }
        for &(frame, size, ..) in &frames.frames {
            let same =
                |leaf: &&Leaf| leaf.frame == frame && leaf.size == size && effect.removed.contains(leaf);
            let gone = effect.removed.iter().filter(|leaf| same(leaf)).count();
            if gone > 0 && found.iter().filter(same).count() == gone {
                return mismatch!("frame {frame} was handed over ({base}), and is still mapped");
            }
        }
        Ok(())
    }

    /// Performs an operation and judges its result and its batch.
    fn perform(&mut self, table: &dyn Table<'n>, op: &Op) -> Result<Outcome, Mismatch> {
        let refusals = self.model.refusals(op);
        let Ok(mut writer) = Writer::new(table) else { return mismatch!("a writer was left behind") };
        if !matches!(Writer::new(table), Err(Error::Busy)) {
            return mismatch!("two writers at a time");
        }
        let nodes = table.footprint().nodes;
        let mut frames = Collector::default();
        let wanted = if refusals.is_empty() { self.model.effect(op).touched } else { Vec::new() };
        let mut broken = Broken::default();
        let mut was = None;
        let base = self.model.space().base();
        let result = match *op {
            Op::Map { pages, frame, size, attr } => writer.map(pages, frame, size, attr).map(|()| None),
            Op::Unmap { pages, holes, room: None } => writer.unmap(pages, holes, None).map(Some),
            Op::Unmap { pages, holes, room: Some(room) } => {
                frames.room = room;
                writer.unmap(pages, holes, Some(&mut frames)).map(Some)
            }
            Op::Protect { pages, holes, change } => writer.protect(pages, holes, change).map(Some),
            Op::Resize { pages, to } => {
                if self.model.profile().breaks
                    && writer.resize(pages, to, &mut |_| broken.times += 1) != Err(Error::Breaks)
                {
                    return mismatch!("pages changed their size though their format breaks");
                }
                let known = &mut |flush: &Flush| {
                    broken.times += 1;
                    for &(_, piece) in &wanted {
                        if flush.reach() == Reach::Everywhere && flush.covers(piece) {
                            let ends = [piece.first(), piece.last()];
                            match ends.map(|page| self.look(table, page).map(|leaf| leaf.size)) {
                                [None, None] => broken.pieces.push(piece),
                                [Some(first), Some(last)] if first == to && last == to => {
                                    broken.promoted.push(piece);
                                }
                                _ => {}
                            }
                        }
                    }
                };
                // SAFETY: nothing runs on the pages of a table that no machine uses.
                unsafe { writer.resize_breaking(pages, to, known) }.map(|()| None)
            }
            Op::Replace { at, frame, attr } => {
                if self.model.profile().breaks_frames && writer.replace(at, frame, attr) != Err(Error::Breaks)
                {
                    return mismatch!("a page changed its frame though its format breaks");
                }
                let known = &mut |flush: &Flush| {
                    broken.times += 1;
                    let page = at.vpn(self.model.space().base());
                    let pieces = wanted.iter().map(|&(_, piece)| piece).filter(|&piece| flush.covers(piece));
                    if flush.reach() == Reach::Everywhere && self.look(table, page).is_none() {
                        broken.pieces.extend(pieces);
                    }
                };
                // SAFETY: nothing runs on the pages of a table that no machine uses.
                let old = unsafe { writer.replace_breaking(at, frame, attr, known) };
                if let Ok(old) = old
                    && Some(old) != self.model.lookup(at)
                {
                    return mismatch!("it replaced {old:?}");
                }
                old.map(|_| None)
            }
            Op::Mark { page, mark } => writer.mark(page.address(base), mark).map(|entry| {
                was = Some((page.address(base), entry));
                None
            }),
            Op::Fill { page, frame, attr } => writer.fill(page.address(base), frame, attr).map(|mark| {
                was = Some((page.address(base), Entry::Mark(mark)));
                None
            }),
            Op::Lookup { at } => return self.check_lookup(table, at).map(|()| Outcome::Done),
            Op::ForEach { pages, stop } => {
                return self.check_for_each(table, pages, stop).map(|()| Outcome::Done);
            }
        };
        let batch = writer.finish();
        let outcome = match result {
            Ok(count) => {
                if let Some(refusal) = refusals.first() {
                    return mismatch!("it succeeded, but {refusal}");
                }
                let effect = self.model.effect(op);
                if let Some((at, entry)) = was
                    && entry != self.model.entry(at)
                {
                    return mismatch!("at {at} it found {entry:?}, not {:?}", self.model.entry(at));
                }
                if let Some(count) = count
                    && count != effect.pages
                {
                    return mismatch!(
                        "it returned a count of {count} base pages, and {} were mapped",
                        effect.pages
                    );
                }
                let moved = batch.nodes() > 0 || table.footprint().nodes > nodes;
                self.check_flush(op, &effect, batch.flush(), &broken, moved)?;
                self.check_links(op, nodes, table.footprint().nodes, &batch)?;
                if let Op::Unmap { room: Some(_), .. } = op {
                    frames.check(&effect, &self.model)?;
                }
                self.model.commit(&effect);
                Outcome::Done
            }
            Err(error) => {
                if !batch.is_empty() || broken.times > 0 {
                    return mismatch!("it failed ({error}) and left {batch:?}");
                }
                match error {
                    Error::NoMemory { wanted, pending } => {
                        let (wanted, pending) = (wanted as usize, pending as usize);
                        if wanted == 0 || pending != self.pending() {
                            return mismatch!("it said {error:?} with {} pending", self.pending());
                        }
                        Outcome::NoMemory { wanted, pending }
                    }
                    Error::NoRoom => {
                        let pages = op.pages();
                        let leaves = pages.map_or(0, |pages| self.model.overlap(pages).count());
                        if leaves <= frames.room {
                            return mismatch!(
                                "no room for {leaves} frames where there is room for {}",
                                frames.room
                            );
                        }
                        Outcome::Refused(error)
                    }
                    error if refusals.contains(&error) => Outcome::Refused(error),
                    error if refusals.is_empty() => return mismatch!("it failed for no reason: {error:?}"),
                    error => return mismatch!("it said {error:?}, and not one of {refusals:?}"),
                }
            }
        };
        self.batches.push(batch);
        while self.batches.len() > self.patience {
            // SAFETY: there is no TLB here, and nobody walks but the runner, which does not now.
            unsafe { self.batches.remove(0).reclaim() };
        }
        Ok(outcome)
    }

    /// Checks that a batch asks for every flush that the effect needs, and that the entries were broken if they
    /// must be.
    /// `moved` says that nodes came or went, which may be to be made known though no page was mapped.
    fn check_flush(
        &self,
        op: &Op,
        effect: &Effect,
        flush: &Flush,
        broken: &Broken,
        moved: bool,
    ) -> Result<(), Mismatch> {
        let profile = self.model.profile();
        for &(reach, pages) in &effect.touched {
            let named = flush.reach() >= reach && flush.covers(pages);
            let named = named || (reach == Reach::Barrier && flush.reach() == reach);
            if reach > Reach::Nowhere && !named {
                return mismatch!(
                    "pages {pages} must be flushed with reach {reach:?}, and the batch asks for {flush:?}"
                );
            }
            let breaks = match op {
                Op::Resize { .. } => profile.breaks,
                Op::Replace { .. } => profile.breaks_frames,
                _ => false,
            };
            if breaks && !broken.pieces.contains(&pages) {
                return mismatch!("{pages} changed without a break that everybody knows of");
            }
        }
        // In place, pages that become larger are made known where hardware notes something, each piece once.
        let breaks = if matches!(op, Op::Replace { .. }) { profile.breaks_frames } else { profile.breaks };
        if !breaks
            && (!broken.pieces.is_empty()
                || broken.times != broken.promoted.len()
                || (broken.times > 0 && !profile.notes))
        {
            return mismatch!("{broken:?} where nothing is to be broken");
        }
        if effect.touched.is_empty() && !flush.is_none() && !moved {
            return mismatch!("nothing changed, and yet the batch asks for {flush:?}");
        }
        Ok(())
    }

    /// Checks that a batch says of links what the nodes say that came and went: where hardware caches links, one that is
    /// gone or replaced, and a new one where the hardware may know that there was none; nowhere else.
    fn check_links(&self, op: &Op, before: usize, after: usize, batch: &Retired<'_>) -> Result<(), Mismatch> {
        let profile = self.model.profile();
        let gone = batch.nodes();
        let Some(new) = (after + gone).checked_sub(before) else {
            return mismatch!(
                "{} nodes have left the table's footprint, and the batch holds {gone}: where are the others?",
                before - after
            );
        };
        let seen =
            gone > 0 || (new > 0 && (profile.appears >= Reach::Local || matches!(op, Op::Resize { .. })));
        let wanted = seen && profile.cache != WalkCache::Nothing;
        if batch.flush().links() != wanted {
            return mismatch!("{gone} nodes are gone and {new} new, and the batch says {:?}", batch.flush());
        }
        Ok(())
    }

    /// Compares the table with the model: leaves, their neighbours, the ends of `around`, and the footprint.
    ///
    /// # Errors
    ///
    /// The first thing that differs.
    pub fn compare(&self, table: &dyn Table<'n>, around: Option<Pages>) -> Result<(), Mismatch> {
        // Of many leaves some, others the next time: the visits below see them all.
        let (some, turn) = (self.model.len() / 64 + 1, self.steps);
        for leaf in self.model.leaves().skip(turn % some).step_by(some) {
            let (first, last) = (leaf.at.get(), leaf.at.get() + leaf.size.mask());
            for at in [first, last, first + (last - first) / 2, first.wrapping_sub(1), last.wrapping_add(1)] {
                self.check_lookup(table, VirtAddr::new(at))?;
            }
        }
        for pages in self.model.space().halves().into_iter().flatten() {
            self.check_for_each(table, pages, usize::MAX)?;
        }
        self.compare_near(table, around)?;
        let (ptes, leaves, pages) = (table.footprint().ptes, self.model.len(), self.model.pages());
        let marks = self.model.marked();
        if !(leaves + marks..=pages + marks).contains(&ptes) {
            return mismatch!(
                "the footprint counts {ptes} PTEs for {leaves} leaves, which are {pages} base pages, and {marks} marks"
            );
        }
        let halves = self.model.space().halves().into_iter().flatten();
        let wanted: Vec<_> = halves.flat_map(|half| self.model.marks(half)).collect();
        let found = self.all_marks(table);
        if found != wanted {
            return mismatch!("the marks are {found:?}, not {wanted:?}");
        }
        for (at, mark) in wanted {
            // SAFETY: the runner is the only one who reclaims, and does not during the call.
            let entry = table.entry(unsafe { Pinned::by(self) }, at);
            if entry != Entry::Mark(mark) {
                return mismatch!("the entry at {at} is {entry:?}, not {mark:?}");
            }
            self.check_lookup(table, at)?;
        }
        Ok(())
    }

    /// Compares the ends of a range with the model, and a visit of it.
    fn compare_near(&self, table: &dyn Table<'n>, around: Option<Pages>) -> Result<(), Mismatch> {
        let Some(pages) = around else { return Ok(()) };
        let base = self.model.space().base();
        for end in [pages.first(), pages.last()] {
            let at = end.address(base).get();
            for at in [at, at.wrapping_sub(1), at.wrapping_add(base.bytes())] {
                self.check_lookup(table, VirtAddr::new(at))?;
            }
        }
        self.check_for_each(table, pages, usize::MAX)
    }

    /// Looks a page up as a walker.
    fn look(&self, table: &dyn Table<'n>, page: Vpn) -> Option<Leaf> {
        // SAFETY: the runner is the only one who reclaims, and does not during the call.
        table.lookup(unsafe { Pinned::by(self) }, page.address(self.model.space().base()))
    }

    fn check_lookup(&self, table: &dyn Table<'n>, at: VirtAddr) -> Result<(), Mismatch> {
        // SAFETY: the runner is the only one who reclaims, and does not during the call.
        let pinned = unsafe { Pinned::by(self) };
        let (found, wanted) = (table.lookup(pinned, at), self.model.lookup(at));
        if found != wanted {
            return mismatch!("{at} is {}; it should be {}", show(found), show(wanted));
        }
        let base = self.model.space().base();
        let phys = |leaf: Leaf| leaf.frame.address(base).get() + (at.get() - leaf.at.get());
        let (found, wanted) = (table.translate(pinned, at).map(|phys| phys.get()), wanted.map(phys));
        if found != wanted {
            return mismatch!("{at} is translated to {found:x?}, not {wanted:x?}");
        }
        Ok(())
    }

    fn check_for_each(&self, table: &dyn Table<'n>, pages: Pages, stop: usize) -> Result<(), Mismatch> {
        let mut found = Vec::new();
        // SAFETY: the runner is the only one who reclaims, and does not during the call.
        let flow = table.for_each(unsafe { Pinned::by(self) }, pages, &mut |leaf| {
            found.push(leaf);
            if found.len() == stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let mut wanted: Vec<_> = self.model.overlap(pages).collect();
        let stopped = wanted.len() >= stop;
        if found.len() == wanted.len().min(stop) && flow.is_break() != stopped {
            let told = if stopped { "told to stop" } else { "not told to stop" };
            return mismatch!(
                "a visit of {pages} was {told} at leaf {} of {}, and returned {flow:?}",
                found.len(),
                wanted.len()
            );
        }
        if found.len() != wanted.len().min(stop) {
            return mismatch!(
                "a visit of {pages} met {} leaves, and {} are mapped",
                found.len(),
                wanted.len()
            );
        }
        found.sort_unstable_by_key(|leaf| leaf.at);
        if found.len() < wanted.len() {
            wanted.retain(|leaf| found.contains(leaf));
        }
        if found != wanted {
            let odd = found.iter().zip(&wanted).find(|(found, wanted)| found != wanted);
            let Some((found, wanted)) = odd else { return Ok(()) };
            return mismatch!("a visit of {pages} met the {found}, not the {wanted}");
        }
        Ok(())
    }
}

/// What became known to every CPU in the course of a change of size.
#[derive(Debug, Default)]
struct Broken {
    times: usize,
    /// What was empty then.
    pieces: Vec<Pages>,
    /// What was of the new size then.
    promoted: Vec<Pages>,
}

/// Where uncovered frames go: a list with room for some.
#[derive(Debug, Default)]
struct Collector<'t> {
    /// Counts the calls.
    trip: Option<&'t Trip>,
    room: usize,
    reserved: usize,
    frames: Vec<(Pfn, PageSize, PageSize, Attr)>,
    marks: Vec<(VirtAddr, Mark)>,
}

impl Frames for Collector<'_> {
    fn reserve(&mut self, leaves: usize) -> Result<(), Error> {
        self.trip.into_iter().for_each(Trip::call);
        if leaves > self.room - self.reserved {
            return Err(Error::NoRoom);
        }
        self.reserved += leaves;
        Ok(())
    }

    fn push(&mut self, frame: Pfn, size: PageSize, base: PageSize, attr: Attr) {
        self.frames.push((frame, size, base, attr));
        self.trip.into_iter().for_each(Trip::call);
    }

    fn marked(&mut self, at: VirtAddr, mark: Mark) {
        self.marks.push((at, mark));
        self.trip.into_iter().for_each(Trip::call);
    }
}

impl Collector<'_> {
    /// Compares what was uncovered with what was removed.
    fn check(mut self, effect: &Effect, model: &Model) -> Result<(), Mismatch> {
        let base = model.space().base();
        let mut wanted: Vec<_> =
            effect.removed.iter().map(|leaf| (leaf.frame, leaf.size, base, leaf.attr)).collect();
        self.frames.sort_unstable();
        wanted.sort_unstable();
        if self.frames != wanted {
            let show = |frames: &[_]| {
                let text = frames.iter().map(|&(frame, size, _, attr): &(Pfn, PageSize, PageSize, Attr)| {
                    format!("{frame} ({size}, {attr:?})")
                });
                text.collect::<Vec<_>>().join(", ")
            };
            return mismatch!(
                "{} frames were handed over and {} were uncovered: handed over [{}], uncovered [{}]",
                self.frames.len(),
                wanted.len(),
                show(&self.frames),
                show(&wanted)
            );
        }
        if self.reserved != wanted.len() {
            return mismatch!("it reserved room for {} frames to uncover {}", self.reserved, wanted.len());
        }
        let wanted = effect.marked.iter().flat_map(|&(page, _)| model.marks(Pages::one(page)));
        let wanted: Vec<_> = wanted.collect();
        if self.marks != wanted {
            return mismatch!("it handed over the marks {:?}, not {wanted:?}", self.marks);
        }
        Ok(())
    }
}
