//! What is done once in an empty table, because random operations seldom do it, and walks by hardware.

use tlbkit_addr::{Attr, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::{Change, Holes, Table};

use super::{Checked, Run};
use crate::foreign::adapter::STATUS;
use crate::foreign::{Want, frames, watch};
use crate::ops::block;
use crate::properties::agrees::odd_one_out;
use crate::{Mismatch, Op, Runner};

impl Run<'_, '_> {
    /// Compares a walk by hardware with the model.
    pub(super) fn walk(&self, at: usize) -> Checked {
        let Some(mmu) = self.table.mmu() else { return Ok(()) };
        let (base, attr) = (self.runner.model().space().base(), self.table.rights());
        if !self.runner.model().space().holds(VirtAddr::new(at)) {
            return Ok(());
        }
        let leaf = self.runner.model().lookup(VirtAddr::new(at));
        let wanted =
            leaf.map(|leaf| (leaf.frame.address(base).get() + (at - leaf.at.get()), leaf.attr & attr));
        match watch::walk(mmu, attr, at, false) {
            Err(word) => {
                mismatch!("a walk of {at:#x} by hardware loads the word at {word:#x}, which is in no node")
            }
            Ok(seen) if seen != wanted => {
                let [seen, wanted] = [seen, wanted].map(watch::words);
                mismatch!("hardware finds that {at:#x} is {seen}, and it should be {wanted}")
            }
            Ok(_) => Ok(()),
        }
    }

    /// Performs an operation in the midst of a walk by hardware, before each of its loads in turn, and takes it back. The walk must find
    /// what was before, or what is after.
    fn beside(&mut self, at: usize, op: &Op, back: &Op) -> Checked {
        let Some(mmu) = self.table.mmu() else { return Ok(()) };
        let attr = self.table.rights();
        for moment in 1.. {
            let before = watch::walk(mmu, attr, at, false).unwrap_or(None);
            let (mut loads, mut done) = (0, None);
            let seen = (mmu.walk)(mmu.root, at, &mut |word| {
                loads += 1;
                if loads == moment {
                    done = Some(self.runner.perform_only(self.table, op));
                }
                // The flush waits for the walk, so a node that is given back after it is as it was.
                frames::load(word, true).unwrap_or(0)
            });
            self.sound(op)?;
            let Some(done) = done else { return Ok(()) };
            done?;
            let after = watch::walk(mmu, attr, at, false).unwrap_or(None);
            let seen = seen.map(|(to, found)| (to, found & attr));
            let is_right = [before, after].contains(&seen) || seen.is_none() && self.table.mapper().breaks();
            if !is_right {
                let [seen, before, after] = [seen, before, after].map(watch::words);
                return Err(Mismatch::of(format!(
                    "a walk of {at:#x} by hardware, before whose load {moment} the operation ran, finds that it is {seen}: it was \
                     {before}, and is {after}"
                ))
                .after(op, None));
            }
            self.runner.perform_only(self.table, back)?;
            self.sound(back)?;
        }
        Ok(())
    }

    /// Does in an empty table what random operations seldom do: a range over three nodes, a join of pages of which one is odd, a join of
    /// pages of which one is dirty, and what follows from it.
    pub(super) fn story(&mut self, ops: &[Op]) -> Checked {
        let space = *self.runner.model().space();
        let profile = *self.runner.model().profile();
        let (block, base) = (block(&space), space.base());
        let number =
            ops.iter().find_map(|op| if let Op::Map { frame, .. } = op { Some(frame.get()) } else { None });
        // One case of four is enough. The first map decides, so that shrinking does not change the choice.
        let number = number.unwrap_or(0);
        if !number.is_multiple_of(4) {
            return Ok(());
        }
        let number = number / 4;
        let halves: Vec<_> = space.halves().into_iter().flatten().collect();
        let Some(half) = halves.get(number % halves.len().max(1)).filter(|half| half.len() >= 8 * block)
        else {
            return Ok(());
        };
        let attr = profile.implied | self.table.rights();
        // A range with a part of a node before and after whole nodes.
        let (head, tail) = (1 + number % 3, 1 + number / 4 % 3);
        let pages = Pages::count(Vpn::new(half.first().get() + 2 * block - head), head + block + tail);
        let frame = Pfn::new(4 * block - head);
        if let Some(pages) = pages.filter(|pages| pages.len() <= Runner::MOST) {
            let map = Op::Map { pages, frame, size: base, attr };
            if self.takes_range(Want::MapRange, &map) {
                self.range(&map)?;
                let protect = Op::Protect { pages, holes: Holes::Refuse, change: self.giving(Attr::empty()) };
                if self.takes_range(Want::ProtectRange, &protect) {
                    self.range(&protect)?;
                }
                let unmap = Op::Unmap { pages, holes: Holes::Refuse };
                if self.takes_range(Want::UnmapRange, &unmap) {
                    self.range(&unmap)?;
                }
                self.empty()?;
            }
        }
        self.joins(half.first().get() + 4 * block, number)?;
        self.empty()
    }

    /// Unmaps all pages.
    fn empty(&mut self) -> Checked {
        let space = self.table.space();
        let leaves: Vec<_> = self.runner.model().leaves().collect();
        leaves.iter().try_for_each(|leaf| {
            let unmap = Op::Unmap { pages: space.pages_of(leaf), holes: Holes::Refuse };
            self.runner.perform_only(self.table, &unmap)?;
            self.sound(&unmap)
        })
    }

    /// Joins and splits small pages, replaces one, and does so beside walks.
    fn joins(&mut self, first: usize, number: usize) -> Checked {
        let space = *self.runner.model().space();
        let profile = *self.runner.model().profile();
        let base = space.base();
        let Some((to, units)) = space.sizes().get(1).and_then(|size| Some((*size, size.pages(base)?))) else {
            return Ok(());
        };
        let first = first.next_multiple_of(units);
        let Some(pages) = Pages::count(Vpn::new(first), units).filter(|_| units <= Runner::MOST) else {
            return Ok(());
        };
        let attr = profile.implied | self.table.rights();
        let page = |page: usize| Pages::one(Vpn::new(first + page));
        let frame = |page: Pages| Pfn::new(page.first().get() & 0xff_ffff);
        let map = |page: Pages| Op::Map { pages: page, frame: frame(page), size: base, attr };
        let all = Op::Map { pages, frame: frame(pages), size: base, attr };
        let one_by_one = (0..units).map(|number| map(page(number)));
        let maps = if self.takes_range(Want::MapRange, &all) { vec![all] } else { one_by_one.collect() };
        for map in maps {
            self.runner.perform_only(self.table, &map)?;
            self.sound(&map)?;
        }
        self.keep(pages.first().address(base).get(), base);
        let some = page(number % units);
        let at = some.first().address(base).get();
        let place = VirtAddr::new(at);
        let protect = |pages, change| Op::Protect { pages, holes: Holes::Refuse, change };
        let unmap = Op::Unmap { pages: some, holes: Holes::Refuse };
        self.beside(at, &unmap, &map(some))?;
        if self.has(Want::Protect) {
            self.beside(at, &protect(some, self.giving(Attr::empty())), &protect(some, self.giving(attr)))?;
        }
        if self.has(Want::Replace) {
            let replace = |frame| Op::Replace { at: place, frame, attr };
            self.beside(at, &replace(Pfn::new(frame(some).get() ^ 1)), &replace(frame(some)))?;
        }
        if self.has(Want::Note) {
            self.run(&protect(some, Change::set(profile.optional & STATUS)))?;
            if self.has(Want::Protect) {
                self.run(&protect(some, self.giving(Attr::empty())))?;
                self.run(&protect(some, self.giving(attr)))?;
            }
        }
        if self.has(Want::Resize) {
            odd_one_out(self.table, self.runner, pages, to)?;
            let resize = |to| Op::Resize { pages, to };
            self.sound(&resize(to))?;
            self.run(&resize(to))?;
            self.beside(at, &resize(base), &resize(to))?;
            if self.has(Want::Protect) {
                self.run(&protect(pages, self.giving(Attr::empty())))?;
            }
            self.run(&resize(base))?;
            self.runner.compare(self.table, Some(pages))?;
        }
        let unmap = Op::Unmap { pages, holes: Holes::Refuse };
        if self.takes_range(Want::UnmapRange, &unmap) { self.range(&unmap) } else { Ok(()) }
    }
}
