//! The comparison of a table with its model: leaves, marks, visits, the footprint.

use std::ops::ControlFlow;

use tlbkit_addr::{Pages, VirtAddr, Vpn};
use tlbkit_pagetable::{Entry, Leaf, Mark, NestedMissObserver, Pinned, Table};

use super::{Mismatch, Runner, meet};
use crate::hang::ENDLESS;
use crate::words::{place, show, show_entry};

/// A TLB that translates every page of a table in virtual memory, or none.
struct Tlb(bool);

impl NestedMissObserver for Tlb {
    fn translates(&mut self, _level: usize, _page: VirtAddr) -> bool {
        self.0
    }
}

impl<'n> Runner<'n> {
    /// Returns every leaf of the table, in ascending order.
    pub(super) fn all(&self, table: &dyn Table<'n>) -> Vec<Leaf> {
        let mut found = Vec::new();
        for pages in self.model.space().halves().into_iter().flatten() {
            // SAFETY: only the runner reclaims nodes, and it does not do so during the call.
            let _ = table.for_each(unsafe { Pinned::by(self) }, pages, &mut |leaf| {
                meet(&mut found, leaf);
                ControlFlow::Continue(())
            });
        }
        found.sort_unstable_by_key(|leaf| leaf.at);
        found
    }

    /// Returns every mark of the table, in ascending order, and the number of entries that a visit of all pages finds.
    pub(super) fn all_marks(&self, table: &dyn Table<'n>) -> (Vec<(VirtAddr, Mark)>, usize) {
        let (mut found, mut met) = (Vec::new(), 0);
        for pages in self.model.space().halves().into_iter().flatten() {
            // SAFETY: only the runner reclaims nodes, and it does not do so during the call.
            let _ = table.for_each_entry(unsafe { Pinned::by(self) }, pages, &mut |at, entry| {
                met += 1;
                assert!(
                    met < ENDLESS,
                    "a visit has met {ENDLESS} entries, and does not end: fewer are there"
                );
                found.extend(entry.mark().map(|mark| (at, mark)));
                ControlFlow::Continue(())
            });
        }
        found.sort_unstable();
        (found, met)
    }

    /// Compares the table with the model: leaves, their neighbours, the ends of `around`, and the footprint.
    ///
    /// # Errors
    ///
    /// The first thing that differs.
    pub fn compare(&self, table: &dyn Table<'n>, around: Option<Pages>) -> Result<(), Mismatch> {
        // Of many leaves only some are looked up, and other ones the next time. The visits below find all of them.
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
        let (found, met) = self.all_marks(table);
        if found != wanted {
            return mismatch!("the marks are {found:?}, not {wanted:?}{}", payloads(table));
        }
        if met != leaves + marks {
            return mismatch!(
                "a visit of all entries (`for_each_entry`) met {met} of them, and there are {leaves} leaves and {marks} marks"
            );
        }
        for (at, mark) in wanted {
            // SAFETY: only the runner reclaims nodes, and it does not do so during the call.
            let entry = table.entry(unsafe { Pinned::by(self) }, at);
            if entry != Entry::Mark(mark) {
                return mismatch!("the entry at {at} is {entry:?}, not {mark:?}{}", payloads(table));
            }
            self.check_lookup(table, at)?;
        }
        Ok(())
    }

    /// Compares the ends of a range with the model, and a visit of it.
    pub(crate) fn compare_near(&self, table: &dyn Table<'n>, around: Option<Pages>) -> Result<(), Mismatch> {
        let Some(pages) = around else { return Ok(()) };
        let base = self.model.space().base();
        if let [Some(low), Some(high)] = self.model.space().halves()
            && (pages.contains(low.last()) || pages.contains(high.first()))
        {
            // The ends of the hole: what has their bits in the halves may be mapped.
            let first = low.last().address(base).get() + base.bytes();
            self.check_lookup(table, VirtAddr::new(first))?;
            self.check_lookup(table, VirtAddr::new(high.first().address(base).get() - 1))?;
        }
        for end in [pages.first(), pages.last()] {
            let at = end.address(base).get();
            for at in [at, at.wrapping_sub(1), at.wrapping_add(base.bytes())] {
                self.check_lookup(table, VirtAddr::new(at))?;
            }
        }
        self.check_for_each(table, pages, usize::MAX)?;
        // A visit that stops in the middle.
        let entries = self.model.overlap(pages).count();
        if entries > 0 {
            self.check_for_each(table, pages, entries.div_ceil(2))?;
        }
        if self.model.has_marks() {
            let entries = entries + self.model.marks(pages).count();
            for stop in [usize::MAX, entries.div_ceil(2)].into_iter().take(entries) {
                self.check_for_each_entry(table, pages, stop)?;
            }
        }
        Ok(())
    }

    /// Looks a page up as a walker.
    pub(super) fn look(&self, table: &dyn Table<'n>, page: Vpn) -> Option<Leaf> {
        // SAFETY: only the runner reclaims nodes, and it does not do so during the call.
        table.lookup(unsafe { Pinned::by(self) }, page.address(self.model.space().base()))
    }

    pub(crate) fn check_lookup(&self, table: &dyn Table<'n>, at: VirtAddr) -> Result<(), Mismatch> {
        // SAFETY: only the runner reclaims nodes, and it does not do so during the call.
        let pinned = unsafe { Pinned::by(self) };
        let (found, wanted) = (table.lookup(pinned, at), self.model.lookup(at));
        if found != wanted {
            return mismatch!("{at} is {}; it should be {}", show(found), show(wanted));
        }
        for holds in [false, true] {
            let found = table.walk(pinned, at, &mut Tlb(holds));
            if found != wanted {
                let of = if holds { "every page" } else { "no page" };
                return mismatch!(
                    "to a walk whose TLB holds {of} of the table {at} is {}; it should be {}",
                    show(found),
                    show(wanted)
                );
            }
        }
        let base = self.model.space().base();
        let phys = |leaf: Leaf| leaf.frame.address(base).get() + (at.get() - leaf.at.get());
        let (found, wanted) = (table.translate(pinned, at).map(|phys| phys.get()), wanted.map(phys));
        if found != wanted {
            return mismatch!("{at} is translated {}, not {}", place(found), place(wanted));
        }
        Ok(())
    }

    /// Compares a visit of a range by `for_each`, which stops after `stop` leaves, with the model.
    pub(super) fn check_for_each(
        &self,
        table: &dyn Table<'n>,
        pages: Pages,
        stop: usize,
    ) -> Result<(), Mismatch> {
        let mut found = Vec::new();
        // SAFETY: only the runner reclaims nodes, and it does not do so during the call.
        let flow = table.for_each(unsafe { Pinned::by(self) }, pages, &mut |leaf| {
            meet(&mut found, (leaf.at, Entry::Leaf(leaf)));
            if found.len() == stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let wanted = self.model.overlap(pages).map(|leaf| (leaf.at, Entry::Leaf(leaf))).collect();
        judge_visit(&Visit { of: "", met: "leaves", are: "are mapped", pages, stop }, found, wanted, flow)
    }

    /// Compares a visit of a range by `for_each_entry`, which stops after `stop` entries, with the model.
    fn check_for_each_entry(&self, table: &dyn Table<'n>, pages: Pages, stop: usize) -> Result<(), Mismatch> {
        let mut found = Vec::new();
        // SAFETY: only the runner reclaims nodes, and it does not do so during the call.
        let flow = table.for_each_entry(unsafe { Pinned::by(self) }, pages, &mut |at, entry| {
            meet(&mut found, (at, entry));
            if found.len() == stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let leaves = self.model.overlap(pages).map(|leaf| (leaf.at, Entry::Leaf(leaf)));
        let marks = self.model.marks(pages).map(|(at, mark)| (at, Entry::Mark(mark)));
        let mut wanted: Vec<_> = leaves.chain(marks).collect();
        wanted.sort_unstable_by_key(|&(at, _)| at);
        judge_visit(
            &Visit { of: "the entries of ", met: "entries", are: "are there", pages, stop },
            found,
            wanted,
            flow,
        )
    }
}

/// The words that describe a visit in messages.
struct Visit {
    of: &'static str,
    met: &'static str,
    are: &'static str,
    pages: Pages,
    stop: usize,
}

/// Compares the result of a visit with the expected result, which is in ascending order.
fn judge_visit(
    &Visit { of, met, are, pages, stop }: &Visit,
    mut found: Vec<(VirtAddr, Entry)>,
    mut wanted: Vec<(VirtAddr, Entry)>,
    flow: ControlFlow<()>,
) -> Result<(), Mismatch> {
    if found.len() > stop {
        return mismatch!(
            "a visit of {of}{pages} was told to stop after {stop} {met}, and went on to number {}",
            found.len()
        );
    }
    let (count, of_all) = (found.len(), wanted.len());
    found.sort_unstable_by_key(|&(at, _)| at);
    if let Some(twice) = found.windows(2).find(|pair| pair[0] == pair[1]) {
        let (at, entry) = twice[0];
        return mismatch!(
            "a visit of {of}{pages} met {count} {met}, and {of_all} {are}: it met what is at {at} twice, {}",
            show_entry(entry)
        );
    }
    if count != of_all.min(stop) {
        return mismatch!("a visit of {of}{pages} met {count} {met}, and {of_all} {are}");
    }
    let stopped = of_all >= stop;
    if flow.is_break() != stopped {
        let told = if stopped { "told to stop" } else { "not told to stop" };
        return mismatch!(
            "a visit of {of}{pages} was {told} at number {count} of {of_all} {met}, and returned {flow:?}"
        );
    }
    if count < of_all {
        let is_found = |(at, entry): &(VirtAddr, Entry)| {
            found.binary_search_by_key(at, |&(at, _)| at).is_ok_and(|number| found[number].1 == *entry)
        };
        wanted.retain(is_found);
    }
    let odd = found.iter().zip(&wanted).find(|(found, wanted)| found != wanted);
    match (odd, found.len() == wanted.len()) {
        (None, true) => Ok(()),
        (Some((&(at, found), &(place, wanted))), _) => mismatch!(
            "a visit of {of}{pages} met what is at {at}, {}, and not what is at {place}, {}",
            show_entry(found),
            show_entry(wanted)
        ),
        (None, false) => {
            let odd = found.iter().find(|entry| !wanted.contains(entry));
            let (at, entry) = odd.copied().unwrap_or((VirtAddr::new(0), Entry::Empty));
            mismatch!("a visit of {of}{pages} met what is at {at}, {}, which is not there", show_entry(entry))
        }
    }
}

/// Describes the number of bits of a payload, for messages about marks.
pub(super) fn payloads<'n>(table: &dyn Table<'n>) -> String {
    match table.payload_bits() {
        Some(bits) => format!("; `payload_bits` says that a payload may have {bits} bits"),
        None => "; `payload_bits` says that the table holds no marks".to_owned(),
    }
}
