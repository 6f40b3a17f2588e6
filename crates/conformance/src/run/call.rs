//! The call that an operation stands for, and what it returns.

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Vpn};
use tlbkit_pagetable::{Entry, Error, FlushAll, Leaf, Mark, Run, Table, Uncovered, Writer};

use super::Mismatch;
use crate::hang::ENDLESS;
use crate::{Effect, Model, Op};

/// What a change returns of the pages before it.
pub(crate) enum Was {
    Nothing,
    /// The number of base pages that were mapped.
    Pages(usize),
    Leaf(Leaf),
    Entry(Entry),
}

/// Calls the function of a writer that an operation names. Walks are none of them.
pub(crate) fn call<'n>(
    writer: &mut Writer<'_, 'n, dyn Table<'n> + '_>,
    base: PageSize,
    op: &Op,
    frames: &mut Collector,
    known: &mut dyn FnMut(&Flush),
) -> Result<Was, Error> {
    match *op {
        Op::Map { pages, frame, size, attr } => writer.map(pages, frame, size, attr).map(|()| Was::Nothing),
        Op::Unmap { pages, holes } => writer.unmap(pages, holes).map(Was::Pages),
        Op::Drain { pages, most } => {
            for (page, uncovered) in writer.drain(pages)?.take(most) {
                frames.add(page, uncovered);
            }
            Ok(Was::Pages(frames.runs.iter().map(|(_, run)| run.len).sum()))
        }
        Op::Move { pages, to } => writer.move_pages(pages, to, FlushAll::in_place(known)).map(Was::Pages),
        Op::Protect { pages, holes, change } => writer.protect(pages, holes, change).map(Was::Pages),
        Op::Resize { pages, to } => {
            // SAFETY: no machine uses the table, so no code needs the pages.
            writer.resize(pages, to, unsafe { FlushAll::breaking(known) }).map(|()| Was::Nothing)
        }
        Op::Replace { at, frame, attr } => {
            // SAFETY: no machine uses the table, so no code needs the page.
            writer.replace(at, frame, attr, unsafe { FlushAll::breaking(known) }).map(Was::Leaf)
        }
        Op::Mark { page, mark } => writer.mark(page.address(base), mark).map(Was::Entry),
        Op::Fill { page, payload, frame } => {
            writer.fill(page.address(base), payload, frame).map(|()| Was::Nothing)
        }
        Op::Lookup { .. } | Op::ForEach { .. } => Ok(Was::Nothing),
    }
}

/// What a drain has returned.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    runs: Vec<(Vpn, Run)>,
    pub(super) marks: Vec<(Vpn, Mark)>,
}

impl Collector {
    pub(super) fn add(&mut self, page: Vpn, uncovered: Uncovered) {
        assert!(
            self.runs.len() + self.marks.len() < ENDLESS,
            "a drain has returned {ENDLESS} times, and does not end"
        );
        match uncovered {
            Uncovered::Frames(run) => self.runs.push((page, run)),
            Uncovered::Mark(mark) => self.marks.push((page, mark)),
        }
    }

    /// Tells whether a leaf or mark that begins at a page was handed over.
    pub(super) fn has(&self, page: Vpn) -> bool {
        let runs = self.runs.iter().filter_map(|&(first, run)| Pages::count(first, run.len));
        runs.into_iter().any(|run| run.contains(page)) || self.marks.iter().any(|&(marked, _)| marked == page)
    }

    /// Returns the effect of a drain that was to return at most `most` times, and compares the frames and marks with those of the
    /// model.
    pub(super) fn effect(&self, model: &Model, pages: Pages, most: usize) -> Result<Effect, Mismatch> {
        let base = model.space().base();
        let is_whole = self.runs.len() + self.marks.len() < most;
        let effect = model.removed(pages, |page| is_whole || self.has(page));
        let runs = effect.removed.iter().map(|leaf| (leaf.at.vpn(base), leaf.run(base)));
        let (handed, wanted) = (joined(self.runs.iter().copied()), joined(runs));
        if handed != wanted {
            let twice = handed.windows(2).find(|pair| pair[0].0 + pair[0].2 > pair[1].0);
            let twice =
                twice.map_or(String::new(), |pair| format!("; frame {:#x} was handed over twice", pair[1].1));
            let count = |runs: &[(usize, usize, usize)]| runs.iter().map(|run| run.2).sum::<usize>();
            return mismatch!(
                "{} frames were handed over and {} were uncovered{twice}: handed over {:x?}, uncovered {:?}",
                count(&handed),
                count(&wanted),
                self.runs,
                effect.removed
            );
        }
        // A run is dirty if one of its pages is.
        for &(first, run) in &self.runs {
            let pages = Pages::count(first, run.len);
            let is_in =
                |leaf: &Leaf| pages.is_some_and(|run| run.intersect(model.space().pages_of(leaf)).is_some());
            let dirty = effect.removed.iter().any(|leaf| leaf.attr.contains(Attr::DIRTY) && is_in(leaf));
            if run.dirty != dirty {
                return mismatch!(
                    "frames were handed over and said to be dirty or not, and are not so: {run:x?} of {first}"
                );
            }
        }
        let marks: Vec<_> = model
            .marks(pages)
            .map(|(at, mark)| (at.vpn(base), mark))
            .filter(|&(page, _)| is_whole || self.has(page))
            .collect();
        let mut handed = self.marks.clone();
        handed.sort_unstable();
        if handed != marks {
            return mismatch!("it handed over the marks {handed:?}, not {marks:?}");
        }
        Ok(effect)
    }
}

/// Returns runs by their first page, first frame and length, in ascending order; those that continue each other are one.
fn joined(runs: impl Iterator<Item = (Vpn, Run)>) -> Vec<(usize, usize, usize)> {
    let mut runs: Vec<_> = runs.map(|(page, run)| (page.get(), run.first.get(), run.len)).collect();
    runs.sort_unstable();
    runs.dedup_by(|next, run| {
        let continues = (run.0 + run.2, run.1 + run.2) == (next.0, next.1);
        run.2 += if continues { next.2 } else { 0 };
        continues
    });
    runs
}
