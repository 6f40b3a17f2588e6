//! The runner: performs operations on a table and on the model, and compares everything after each.

use std::collections::HashSet;
use std::fmt;

use tlbkit_addr::{Flush, FlushScope, Pages, VirtAddr, WalkCache};
use tlbkit_pagetable::nodes::NodeAddr;
use tlbkit_pagetable::{Error, FlushAll, Footprint, Mark, Retired, Table, Writer};

use crate::hang::{self, ENDLESS, Step};
use crate::words::{show, show_entry};
use crate::{Effect, Model, Op, Profile};

/// A difference between a table and its model.
#[derive(Clone, Debug)]
pub struct Mismatch {
    /// The operation after which the difference was found, if any.
    pub op: Option<Op>,
    /// The outcome of that operation, if it was already known.
    pub outcome: Option<Outcome>,
    /// The description: what was found and what was expected.
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
    /// Returns a mismatch without an operation.
    pub(crate) fn of(what: impl Into<String>) -> Self {
        Self { op: None, outcome: None, what: what.into() }
    }

    /// Returns the mismatch with the operation after which it was found.
    pub(crate) fn after(self, op: &Op, outcome: Option<&Outcome>) -> Self {
        Self { op: self.op.or(Some(*op)), outcome: self.outcome.or(outcome.cloned()), ..self }
    }
}

/// Adds a page to those that a visit has found.
fn meet<T>(found: &mut Vec<T>, page: T) {
    assert!(found.len() < ENDLESS, "a visit has met {ENDLESS} pages, and does not end: fewer are mapped");
    found.push(page);
}

/// The outcome of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It had the effect that the model predicted.
    Done,
    /// It was refused, as the model predicted, and changed nothing.
    Refused(Error),
    /// Node storage was exhausted, and nothing changed.
    NoMemory {
        /// The number of nodes that the error names as wanted.
        wanted: usize,
        /// The number of nodes that the error names as pending.
        pending: usize,
    },
    /// It would have made more leaves than [`Runner::MOST`], or a resize more than 1100, and was not performed.
    TooLarge,
}

/// A table, its model, and the batches that wait to be reclaimed.
///
/// The table must be new. No other code may use it or reclaim its retired nodes.
#[derive(Debug)]
pub struct Runner<'n> {
    model: Model,
    fresh: Footprint,
    patience: usize,
    batches: Vec<Retired<'n>>,
    steps: usize,
    /// The number of steps from one comparison of the whole table to the next.
    every: usize,
    /// The number of nodes that the last operation has retired.
    retired: usize,
    /// Whether the last operation has changed the table and changed it back, because memory was short.
    is_undone: bool,
}

/// Makes a [`Mismatch`] without its operation.
macro_rules! mismatch {
    ($($what:tt)*) => { Err(Mismatch::of(format!($($what)*))) };
}

mod call;
mod compare;
mod unwound;

pub(crate) use call::{Collector, Was, call};

impl<'n> Runner<'n> {
    /// The largest number of leaves that one operation may make. Pages of gigabytes are mapped, but not split into base pages.
    pub const MOST: usize = if cfg!(miri) { 16 } else { 600 };

    /// The largest number of leaves that a resize may make: a split that takes two nodes of nine bits makes 1024.
    pub(crate) const MOST_RESIZED: usize = if cfg!(miri) { 16 } else { 1100 };

    fn is_too_large(&self, op: &Op) -> bool {
        let most = if matches!(op, Op::Resize { .. }) { Self::MOST_RESIZED } else { Self::MOST };
        self.model.weight(op) > most
    }

    /// Returns a runner for `table`, which is empty. Up to `patience` batches wait, as if for a shootdown, before one
    /// of them is reclaimed, which is not always the oldest.
    pub fn new(table: &dyn Table<'n>, profile: Profile, patience: usize) -> Self {
        Self {
            model: Model::new(table.space(), profile).with_marks(table.payload_bits()),
            fresh: table.footprint(),
            patience,
            batches: Vec::new(),
            steps: 0,
            every: 1,
            retired: 0,
            is_undone: false,
        }
    }

    /// Lets up to `patience` batches wait.
    pub(crate) fn with_patience(self, patience: usize) -> Self {
        Self { patience, ..self }
    }

    /// Makes [`step`](Self::step) compare the whole table only after every `every` operations, and otherwise only the pages
    /// around the operation.
    pub(crate) fn comparing(self, every: usize) -> Self {
        Self { every, ..self }
    }

    /// Performs one operation, and compares its result, its flush, and one address.
    pub(crate) fn perform_at(
        &mut self,
        table: &dyn Table<'n>,
        op: &Op,
        at: VirtAddr,
    ) -> Result<Outcome, Mismatch> {
        let outcome = self.perform_only(table, op)?;
        self.check_lookup(table, at).map_err(|mismatch| mismatch.after(op, Some(&outcome)))?;
        Ok(outcome)
    }

    /// Performs one operation, and compares only its result and its flush.
    pub(crate) fn perform_only(&mut self, table: &dyn Table<'n>, op: &Op) -> Result<Outcome, Mismatch> {
        if self.is_too_large(op) {
            return Ok(Outcome::TooLarge);
        }
        self.perform(table, op).map_err(|mismatch| mismatch.after(op, None))
    }

    /// Drops every other batch, so that their nodes become a debt of the table. Returns the number of these nodes.
    pub(crate) fn drop_some(&mut self) -> usize {
        let had = self.pending();
        let mut keep = false;
        self.batches.retain(|_| {
            keep = !keep;
            keep
        });
        had - self.pending()
    }

    /// Returns the model.
    pub const fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the number of nodes that wait in batches.
    pub fn pending(&self) -> usize {
        self.batches.iter().map(Retired::nodes).sum()
    }

    /// Returns the number of nodes that the last operation has retired.
    pub(crate) const fn retired(&self) -> usize {
        self.retired
    }

    /// Tells whether the last operation has changed the table and changed it back, because memory was short.
    pub(crate) const fn is_undone(&self) -> bool {
        self.is_undone
    }

    /// Performs one operation, and compares the result, the flush, and the whole table.
    ///
    /// # Errors
    ///
    /// The first difference.
    pub fn step(&mut self, table: &dyn Table<'n>, op: &Op) -> Result<Outcome, Mismatch> {
        if self.is_too_large(op) {
            return Ok(Outcome::TooLarge);
        }
        self.steps += 1;
        let outcome = self.perform(table, op).map_err(|mismatch| mismatch.after(op, None))?;
        let around = match *op {
            Op::Replace { at, .. } => Some(Pages::one(at.vpn(self.model.space().base()))),
            _ => op.pages(),
        };
        let is_far = matches!(op, Op::Move { .. });
        let same = if self.steps.is_multiple_of(self.every) || is_far {
            self.compare(table, around)
        } else {
            self.compare_near(table, around)
        };
        same.map_err(|mismatch| mismatch.after(op, Some(&outcome)))?;
        Ok(outcome)
    }

    /// Performs one operation, and compares the result, the flush, and only the pages around the operation.
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
    /// The first difference. Exhausted memory also counts as one.
    pub fn run(&mut self, table: &dyn Table<'n>, ops: &[Op]) -> Result<(), Mismatch> {
        for op in ops {
            if let Outcome::NoMemory { wanted, pending } = self.step(table, op)? {
                return mismatch!("no memory for {wanted} nodes ({pending} pending) where there is plenty");
            }
        }
        Ok(())
    }

    /// Performs all operations, and compares only their results.
    pub(crate) fn replay(&mut self, table: &dyn Table<'n>, ops: &[Op]) -> Result<(), Mismatch> {
        for op in ops.iter().filter(|op| !matches!(op, Op::Lookup { .. } | Op::ForEach { .. })) {
            if self.model.weight(op) <= Self::MOST {
                self.perform(table, op).map_err(|mismatch| mismatch.after(op, None))?;
            }
        }
        Ok(())
    }

    /// Unmaps all pages, one range for each half of the space. If `shrinks` is set, checks that the empty table has no more nodes
    /// than a new one.
    ///
    /// # Errors
    ///
    /// The first difference.
    pub fn clear(&mut self, table: &dyn Table<'n>, shrinks: bool) -> Result<(), Mismatch> {
        for pages in self.model.space().halves().into_iter().flatten() {
            let op = Op::Unmap { pages, holes: tlbkit_pagetable::Holes::Skip };
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
            // SAFETY: no TLB and no walker uses the table except the runner, which is in no walk.
            unsafe { batch.reclaim() };
        }
    }

    /// Performs an operation and checks its result and its batch.
    fn perform(&mut self, table: &dyn Table<'n>, op: &Op) -> Result<Outcome, Mismatch> {
        hang::step(|| Step::Op(*op));
        let refusals = self.model.refusals(op);
        let Ok(mut writer) = Writer::new(table) else { return mismatch!("a writer was left behind") };
        if !matches!(Writer::new(table), Err(Error::Busy)) {
            return mismatch!("two writers at a time");
        }
        let nodes = table.footprint().nodes;
        let mut frames = Collector::default();
        let wanted = if refusals.is_empty() { self.model.effect(op).touched } else { Vec::new() };
        let base = self.model.space().base();
        let refused = match *op {
            Op::Lookup { at } => return self.check_lookup(table, at).map(|()| Outcome::Done),
            Op::ForEach { pages, stop } => {
                return self.check_for_each(table, pages, stop).map(|()| Outcome::Done);
            }
            Op::Resize { pages, to } if self.model.profile().breaks => {
                writer.resize(pages, to, FlushAll::in_place(&mut |_| ())).err()
            }
            Op::Replace { at, frame, attr } if self.model.profile().breaks_frames => {
                writer.replace(at, frame, attr, FlushAll::in_place(&mut |_| ())).err()
            }
            _ => Some(Error::Breaks),
        };
        if refused != Some(Error::Breaks) {
            return mismatch!("it said {refused:?}, though its format breaks");
        }
        let mut broken = Broken::default();
        let known = &mut |flush: &Flush| {
            if let Op::Move { pages, .. } = *op {
                let is_gone =
                    || self.model.overlap(pages).all(|leaf| self.look(table, leaf.at.vpn(base)).is_none());
                let is_named = flush.scope() == FlushScope::Everywhere && flush.covers(pages);
                broken.moves.push(is_named && is_gone());
                return;
            }
            broken.times += 1;
            let covered = wanted.iter().map(|&(_, piece)| piece).filter(|&piece| flush.covers(piece));
            for piece in covered.filter(|_| flush.scope() == FlushScope::Everywhere) {
                let ends = [piece.first(), piece.last()];
                match (ends.map(|page| self.look(table, page).map(|leaf| leaf.size)), *op) {
                    ([None, None], _) => broken.pieces.push(piece),
                    ([Some(first), Some(last)], Op::Resize { to, .. }) if first == to && last == to => {
                        broken.promoted.push(piece);
                    }
                    _ => {}
                }
            }
        };
        let result = call(&mut writer, base, op, &mut frames, known);
        let batch = writer.finish();
        self.retired = batch.nodes();
        self.is_undone = false;
        if let Some(node) = self.twice(&batch) {
            return mismatch!(
                "node {:#x} was retired twice: the batches that wait hold it, and hold it again",
                node.get()
            );
        }
        let outcome = match result {
            Ok(was) => {
                if let Some(refusal) = refusals.first() {
                    let bits =
                        if *refusal == Error::WrongMark { compare::payloads(table) } else { String::new() };
                    return mismatch!("it succeeded, but {refusal}{bits}");
                }
                let effect = match *op {
                    Op::Drain { pages, most } => frames.effect(&self.model, pages, most)?,
                    _ => self.model.effect(op),
                };
                self.check_returned(op, was, &effect)?;
                let moved = batch.nodes() > 0 || table.footprint().nodes > nodes;
                self.check_flush(op, &effect, batch.flush(), &broken, moved)?;
                self.check_links(op, nodes, table.footprint().nodes, &batch, &broken)?;
                self.model.commit(&effect);
                Outcome::Done
            }
            Err(error) => {
                // A move that runs out of memory half-way has mapped pages, and unmapped them again.
                let is_undone = matches!((op, error), (Op::Move { .. }, Error::NoMemory { .. }));
                self.is_undone = is_undone && !batch.is_empty();
                if !is_undone && !batch.is_empty() || broken.times > 0 || !broken.moves.is_empty() {
                    return mismatch!("it failed ({error}) and left {batch:?}");
                }
                match (error, op) {
                    (
                        Error::NoMemory { .. },
                        Op::Unmap { .. } | Op::Drain { .. } | Op::Protect { .. } | Op::Replace { .. },
                    ) => {
                        return mismatch!(
                            "it says that there is no memory, and only other operations may need a node"
                        );
                    }
                    (Error::NoMemory { wanted, pending }, _) => {
                        let (wanted, pending) = (wanted as usize, pending as usize);
                        let counted = if is_undone { self.pending().max(pending) } else { self.pending() };
                        if wanted == 0 || pending != counted {
                            return mismatch!(
                                "it was refused for want of {wanted} nodes, of which there must be one at least, and said that \
                                 {pending} are pending, where the batches hold {}",
                                self.pending()
                            );
                        }
                        Outcome::NoMemory { wanted, pending }
                    }
                    (error, _) if refusals.contains(&error) => Outcome::Refused(error),
                    (error, _) if refusals.is_empty() => {
                        return mismatch!(
                            "it failed for no reason: {error:?}{}",
                            self.hint(table, op, error)
                        );
                    }
                    (error, _) => {
                        return mismatch!(
                            "it said {error:?}, and not one of {refusals:?}{}",
                            self.hint(table, op, error)
                        );
                    }
                }
            }
        };
        self.batches.push(batch);
        while self.batches.len() > self.patience {
            let done = self.steps % self.batches.len();
            // SAFETY: no TLB and no walker uses the table except the runner, which is in no walk.
            unsafe { self.batches.swap_remove(done).reclaim() };
        }
        Ok(outcome)
    }

    /// Compares what a change has returned with its effect and with what was there before.
    fn check_returned(&self, op: &Op, was: Was, effect: &Effect) -> Result<(), Mismatch> {
        let (said, is) = match (was, *op) {
            (Was::Pages(count), _) => (format!("{count} pages"), format!("{} pages", effect.pages)),
            (Was::Leaf(old), Op::Replace { at, .. }) => (show(Some(old)), show(self.model.lookup(at))),
            (Was::Entry(entry), Op::Mark { page, .. }) => {
                let before = self.model.entry(page.address(self.model.space().base()));
                (show_entry(entry), show_entry(before))
            }
            _ => Default::default(),
        };
        if said != is {
            return mismatch!("it returned a count or an entry of before: {said}; it was {is}");
        }
        Ok(())
    }

    /// Makes a change in the model that the table has made before, and compares what it has returned.
    pub(crate) fn follow(&mut self, op: &Op, result: Result<Was, Error>) -> Result<(), Mismatch> {
        let refusals = self.model.refusals(op);
        match result {
            Ok(was) => {
                if let Some(refusal) = refusals.first() {
                    return mismatch!("it succeeded, but {refusal}").map_err(|wrong| wrong.after(op, None));
                }
                let effect = self.model.effect(op);
                self.check_returned(op, was, &effect).map_err(|wrong| wrong.after(op, None))?;
                self.model.commit(&effect);
                Ok(())
            }
            Err(Error::NoMemory { .. }) if !matches!(op, Op::Unmap { .. } | Op::Protect { .. }) => Ok(()),
            Err(error) if refusals.contains(&error) => Ok(()),
            Err(error) => mismatch!("it said {error:?}, and not one of {refusals:?}")
                .map_err(|wrong| wrong.after(op, None)),
        }
    }

    /// Describes a likely reason why an operation was wrongly refused.
    fn hint(&self, table: &dyn Table<'n>, op: &Op, error: Error) -> String {
        let base = self.model.space().base();
        if let (Error::WrongMark, Op::Mark { mark, .. }) = (error, op) {
            let this = match mark {
                Some(Mark::Payload(payload, _)) => {
                    format!("this one has {}", u64::BITS - payload.leading_zeros())
                }
                _ => "this is none".to_owned(),
            };
            return format!("{}, and {this}", compare::payloads(table));
        }
        let pages = match *op {
            Op::Replace { at, .. } => Some(Pages::one(at.vpn(base))),
            _ => op.pages(),
        };
        let mut ends = self.model.space().halves().into_iter().flatten().map(|half| half.last());
        if pages.is_some_and(|pages| ends.any(|end| end == pages.last())) {
            "; the range ends with the last page of its half of the space, which is a page like any other"
                .to_owned()
        } else {
            String::new()
        }
    }

    /// Returns a node that a batch holds twice, or another batch too.
    fn twice(&self, batch: &Retired<'_>) -> Option<NodeAddr> {
        if batch.nodes() == 0 {
            return None;
        }
        let mut known = HashSet::new();
        self.batches.iter().flat_map(Retired::list).chain(batch.list()).find(|node| !known.insert(*node))
    }

    /// Checks that a batch names every flush that the effect needs, and that break-before-make was done where it is required.
    /// `moved` tells that nodes were linked or unlinked, which may need a flush although no page was mapped.
    fn check_flush(
        &self,
        op: &Op,
        effect: &Effect,
        flush: &Flush,
        broken: &Broken,
        moved: bool,
    ) -> Result<(), Mismatch> {
        let profile = self.model.profile();
        for &(scope, pages) in &effect.touched {
            let named = flush.scope() >= scope && flush.covers(pages);
            let named = named || (scope == FlushScope::Barrier && flush.scope() >= scope);
            if scope > FlushScope::Nowhere && !named {
                return mismatch!(
                    "pages {pages} must be flushed with scope {scope:?}, and the batch asks for {flush:?}"
                );
            }
            let breaks = match op {
                Op::Resize { .. } => profile.breaks,
                Op::Replace { .. } => profile.breaks_frames,
                _ => false,
            };
            if breaks && !broken.pieces.contains(&pages) {
                return mismatch!("{pages} changed without a break that every walker knows of");
            }
        }
        // In a promotion in place, each piece is flushed once if hardware sets status bits.
        let breaks = if matches!(op, Op::Replace { .. }) { profile.breaks_frames } else { profile.breaks };
        if !breaks
            && (!broken.pieces.is_empty()
                || broken.times != broken.promoted.len()
                || (broken.times > 0 && !profile.notes))
        {
            return mismatch!(
                "the format changes pages in place, and it asked {} times for a flush in the midst of it: {} times with the page \
                 unmapped, {} times where a larger page was there that must be known",
                broken.times,
                broken.pieces.len(),
                broken.promoted.len()
            );
        }
        if broken.moves.len() > 1 || broken.moves.contains(&false) {
            return mismatch!(
                "it asked {} times for a flush of what a whole node left behind; the flush names all pages of the old place, and comes                  when they are empty: {:?}",
                broken.moves.len(),
                broken.moves
            );
        }
        // A whole node of marks may have moved.
        let moved = moved || !broken.moves.is_empty();
        if effect.touched.is_empty() && !flush.is_none() && !moved {
            return mismatch!("nothing changed, and yet the batch asks for {flush:?}");
        }
        Ok(())
    }

    /// Checks that a batch flushes links only where nodes were linked or unlinked: where hardware caches links, a removed or
    /// replaced link, and a new link if the hardware may have cached its absence.
    fn check_links(
        &self,
        op: &Op,
        before: usize,
        after: usize,
        batch: &Retired<'_>,
        broken: &Broken,
    ) -> Result<(), Mismatch> {
        let profile = self.model.profile();
        let gone = batch.nodes();
        let Some(new) = (after + gone).checked_sub(before) else {
            return mismatch!(
                "{} nodes have left the table's footprint, and the batch holds {gone}: where are the others?",
                before - after
            );
        };
        let seen = gone > 0
            || !broken.moves.is_empty()
            || (new > 0 && (profile.appears >= FlushScope::Local || matches!(op, Op::Resize { .. })));
        let wanted = seen && profile.cache != WalkCache::Nothing;
        if batch.flush().links() != wanted {
            return mismatch!("{gone} nodes are gone and {new} new, and the batch says {:?}", batch.flush());
        }
        Ok(())
    }
}

/// The flushes during a change of size.
#[derive(Debug, Default)]
struct Broken {
    times: usize,
    /// The pieces that were empty at a flush.
    pieces: Vec<Pages>,
    /// The pieces that had the new size at a flush.
    promoted: Vec<Pages>,
    /// For each flush during a move, whether it names all pages of the old place, and they were empty.
    moves: Vec<bool>,
}
