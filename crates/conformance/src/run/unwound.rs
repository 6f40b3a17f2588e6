//! Operations during which one call to the caller's code unwinds, and the checks after them.

use std::mem;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tlbkit_addr::{Flush, FlushScope, VirtAddr, Vpn};
use tlbkit_pagetable::{Entry, Leaf, Mark, Pinned, Table, Writer};

use super::{Collector, Mismatch, Runner, call};
use crate::hang::{self, Step};
use crate::{Effect, Op, Trip};

impl<'n> Runner<'n> {
    /// Performs an operation during which the call that `trip` selects unwinds, and compares the table with the model. Every page
    /// must be as before the operation, as after it, or, if the operation was to change it, unmapped. Every changed page must be
    /// flushed, and no frame that the table still maps may be handed over. The model then adopts the state of the table. With
    /// `keep` the writer outlives the panic; otherwise the next writer takes up its debt. Before that, `whole` counts the nodes.
    ///
    /// Returns whether a call has unwound. If none has, the operation was performed.
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
        hang::step(|| Step::Op(*op));
        let may = self.model.refusals(op).is_empty();
        let effect = if may { self.model.effect(op) } else { Effect::default() };
        let Ok(mut writer) = Writer::new(table) else { return mismatch!("a writer was left behind") };
        let mut frames = Collector::default();
        let base = self.model.space().base();
        let change = AssertUnwindSafe(|| {
            if let Op::ForEach { pages, .. } = *op {
                // SAFETY: only the runner reclaims, and it does not during the call.
                let pinned = unsafe { Pinned::by(&*self) };
                let _ = table.for_each(pinned, pages, &mut |_| {
                    trip.call();
                    ControlFlow::Continue(())
                });
            }
            let _ = call(&mut writer, base, op, &mut frames, &mut |_| trip.call());
        });
        let unwound = catch_unwind(change).is_err();
        if unwound != trip.tripped() {
            return mismatch!("a panic that was not planned");
        }
        if let Err(mismatch) = whole() {
            // The list of such a batch may be circular, so the batch is not dropped.
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
        let (found, (marks, _)) = (self.all(table), self.all_marks(table));
        let flush = batch.flush().clone();
        self.batches.push(batch);
        if unwound {
            self.check_unwound(&effect, &found, &flush, &frames)?;
            self.check_marks_unwound(&effect, &marks, &frames)?;
        }
        self.model.adopt(&found, &marks);
        Ok(unwound)
    }

    /// Checks that every mark is as before an operation that has unwound, or as after it.
    fn check_marks_unwound(
        &self,
        effect: &Effect,
        found: &[(VirtAddr, Mark)],
        frames: &Collector,
    ) -> Result<(), Mismatch> {
        let base = self.model.space().base();
        let there = |&&(page, mark): &&(Vpn, Mark)| found.contains(&(page.address(base), mark));
        if let Some((page, mark)) = frames.marks.iter().find(there) {
            return mismatch!("the mark of page {page}, {mark}, was handed over, and is still in the table");
        }
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

    /// Checks the table after an operation that has unwound.
    fn check_unwound(
        &self,
        effect: &Effect,
        found: &[Leaf],
        flush: &Flush,
        frames: &Collector,
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
        for &(scope, pages) in &effect.touched {
            let now = found
                .iter()
                .copied()
                .filter(|leaf| self.model.space().pages_of(leaf).intersect(pages).is_some());
            if scope > FlushScope::Nowhere
                && !now.eq(self.model.overlap(pages))
                && !(flush.scope() >= scope && flush.covers(pages))
            {
                return mismatch!("an operation that unwound changed {pages}, and asks for {flush:?}");
            }
        }
        if let Some(leaf) =
            found.iter().find(|leaf| frames.has(leaf.at.vpn(base)) && effect.removed.contains(leaf))
        {
            return mismatch!("frame {} was handed over, and is still mapped", leaf.frame);
        }
        Ok(())
    }
}
