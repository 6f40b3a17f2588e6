//! A run of operations on a [`Foreign`] mapper and on the model.

use std::collections::BTreeSet;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::{Change, Error, Holes, Leaf};

use super::{Foreign, Want, frames};
use crate::hang::{self, Step};
use crate::moments::place;
use crate::run::ENDLESS;
use crate::{Effect, Model, Op, Profile};

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

/// A mapper under test, its model, and the calls so far.
pub(super) struct Run<F> {
    pub(super) mapper: F,
    pub(super) model: Model,
    pub(super) unchecked: BTreeSet<Want>,
    /// The ranges that may have empty nodes, by first address and size.
    kept: BTreeSet<(usize, PageSize)>,
    /// The calls, in words.
    pub(super) calls: Vec<String>,
    /// Whether a dropped mapper gives back its [`frames`], as tested with a new mapper.
    pub(super) frees_all: bool,
}

impl<F: Foreign> Run<F> {
    pub(super) fn new() -> Self {
        frames::reset();
        drop(F::new());
        let frees_all = frames::out() == Some(0);
        frames::reset();
        let mapper = F::new();
        let model = Model::new(mapper.space(), Profile::plain());
        Self {
            mapper,
            model,
            unchecked: BTreeSet::new(),
            kept: BTreeSet::new(),
            calls: Vec::new(),
            frees_all,
        }
    }

    /// Records the next call of the mapper.
    fn call(&mut self, call: String) {
        hang::say(&call);
        self.calls.push(call);
    }

    pub(super) fn all(&mut self, ops: &[Op]) -> Result<(), String> {
        for op in ops {
            self.one(op)?;
        }
        self.clear()?;
        let empty = self.mapper.nodes();
        for op in ops {
            self.one(op)?;
        }
        self.clear()?;
        let full = self.mapper.nodes();
        // Maps pages again, so that the mapper is dropped with mapped pages.
        for op in ops.iter().filter(|op| matches!(op, Op::Map { .. })).take(LEFT) {
            self.one(op)?;
        }
        let leaf = self.model.leaves().next().filter(|_| ops.len() == 1);
        if let Some(leaf) = leaf {
            self.look_within(leaf, ALL_PLACES)?;
        }
        match (empty, full) {
            (Some(before), Some(after)) if after > before => Err(format!(
                "emptied, it holds {after} nodes; emptied before the same operations it held {before}"
            )),
            (None, _) => {
                self.unchecked.insert(Want::Nodes);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn one(&mut self, op: &Op) -> Result<(), String> {
        hang::step(|| Step::Op(*op));
        let base = self.model.space().base();
        match *op {
            Op::Map { pages, frame, size, attr } => {
                let Some(units) = size.pages(base).filter(|_| self.model.space().sizes().contains(&size))
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
            Op::Unmap { pages, .. } => {
                self.each(pages, |pages| Op::Unmap { pages, holes: Holes::Refuse, room: None })
            }
            Op::Protect { pages, change, .. } => {
                // A change that does not affect the right to write inverts that right.
                let first = self.model.overlap(pages).next();
                let is_writable = first.is_some_and(|leaf| leaf.attr.contains(Attr::WRITE));
                let writable =
                    change.set.contains(Attr::WRITE) || !change.clear.contains(Attr::WRITE) && !is_writable;
                let change = if writable { Change::set(Attr::WRITE) } else { Change::clear(Attr::WRITE) };
                self.each(pages, |pages| Op::Protect { pages, holes: Holes::Refuse, change })
            }
            Op::Lookup { at } => self.look(at.get()),
            Op::ForEach { .. } => self.visit(),
            Op::Resize { .. } | Op::Replace { .. } | Op::Mark { .. } | Op::Fill { .. } => Ok(()),
        }
    }

    /// Looks up addresses inside a large page, inverts its right to write, and restores the right.
    fn large(&mut self, pages: Pages) -> Result<(), String> {
        let Some(leaf) =
            self.model.overlap(pages).next().filter(|leaf| self.model.space().pages_of(leaf) == pages)
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
    fn look_within(&mut self, leaf: Leaf, most: usize) -> Result<(), String> {
        let base = self.model.space().base();
        let units = leaf.size.pages(base).unwrap_or(1);
        let step = units.div_ceil(most);
        // Each call looks up other pages.
        for page in (self.calls.len() * 7 % step..units).step_by(step) {
            self.look(leaf.at.get() + page * base.bytes() + self.calls.len() % base.bytes())?;
        }
        Ok(())
    }

    /// Performs an operation on every mapped page that overlaps a range, or on the first page of the range if none does.
    fn each(&mut self, pages: Pages, op: impl Fn(Pages) -> Op) -> Result<(), String> {
        let space = *self.model.space();
        let mut leaves: Vec<_> =
            self.model.overlap(pages).take(MOST).map(|leaf| space.pages_of(&leaf)).collect();
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
    fn others(&mut self, pages: Pages, op: &impl Fn(Pages) -> Op) -> Result<(), String> {
        let space = *self.model.space();
        let base = space.base();
        for size in space.sizes() {
            let units = size.pages(base).unwrap_or(1);
            let first = Vpn::new(pages.first().get() & !(units - 1));
            let Some(other) = Pages::count(first, units).filter(|other| other.len() != pages.len()) else {
                continue;
            };
            let Some(leaf) = self.model.overlap(other).next() else { continue };
            if !self.mapper.refuses_other_sizes() {
                self.unchecked.insert(Want::OtherSizes);
                continue;
            }
            let at = first.address(base).get();
            let done = match op(other) {
                Op::Protect { change, .. } => {
                    let writable = change.set.contains(Attr::WRITE);
                    let Some(done) = self.mapper.protect(at, *size, writable) else { continue };
                    self.call(format!("    protect({at:#x}, {size}, writable: {writable})"));
                    done
                }
                _ => {
                    self.call(format!("    unmap({at:#x}, {size})"));
                    self.mapper.unmap(at, *size)
                }
            };
            if done {
                return Err(format!(
                    "it was done, and should have been refused: no page of {size} is mapped at {at:#x}, but the {leaf}"
                ));
            }
            self.compare(at, *size)?;
        }
        Ok(())
    }

    fn clear(&mut self) -> Result<(), String> {
        let space = *self.model.space();
        let leaves: Vec<_> = self.model.leaves().collect();
        for leaf in leaves {
            self.step(&Op::Unmap { pages: space.pages_of(&leaf), holes: Holes::Refuse, room: None })?;
        }
        Ok(())
    }

    /// Performs an operation on one page.
    fn step(&mut self, op: &Op) -> Result<(), String> {
        let refusals = self.model.refusals(op);
        // The mapper's own types exclude the other errors.
        let said = |error: &Error| matches!(error, Error::Occupied { .. } | Error::NotMapped { .. });
        if !refusals.iter().all(said) {
            return Ok(());
        }
        let Some(pages) = op.pages() else { return Ok(()) };
        let base = self.model.space().base();
        let at = pages.first().address(base).get();
        let size = PageSize::from_shift((pages.len() * base.bytes()).trailing_zeros()).unwrap_or(base);
        self.mapper.flushed();
        let done = match *op {
            Op::Map { frame, attr, .. } => {
                let (to, writable) = (frame.address(base).get(), attr.contains(Attr::WRITE));
                self.call(format!("    map({at:#x}, {to:#x}, {size}, writable: {writable})"));
                if self.kept.contains(&(at, size)) {
                    self.unchecked.insert(Want::KeepsEmpty);
                    return Ok(());
                }
                if self.mapper.keeps_empty() {
                    let larger = self.model.space().sizes().iter().filter(|larger| **larger > size);
                    self.kept.extend(larger.map(|larger| (at & !larger.mask(), *larger)));
                }
                if refusals.is_empty() {
                    let failed = self.fail(op, at, to, size, writable)?;
                    let done = self.mapper.map(at, to, size, writable);
                    // The frames of a mapper that takes its first node in this call can be limited from the next map on.
                    if !failed && !self.mapper.fail_after(None) {
                        self.unchecked.insert(Want::FailAfter);
                    }
                    done
                } else {
                    self.map_in_the_way(at, to, size, writable)?
                }
            }
            Op::Unmap { .. } => {
                self.call(format!("    unmap({at:#x}, {size})"));
                self.mapper.unmap(at, size)
            }
            Op::Protect { change, .. } => {
                let writable = change.set.contains(Attr::WRITE);
                let Some(done) = self.mapper.protect(at, size, writable) else {
                    self.unchecked.insert(Want::Protect);
                    return Ok(());
                };
                self.call(format!("    protect({at:#x}, {size}, writable: {writable})"));
                done
            }
            _ => return Ok(()),
        };
        match (done, refusals.first()) {
            (true, Some(refusal)) => {
                return Err(format!("it was done, and should have been refused: {refusal}"));
            }
            (false, None) => {
                return Err(format!("it was refused, and nothing was in the way{}", self.if_last(at, size)));
            }
            _ => {}
        }
        if done {
            self.check_flush(op, at, size)?;
            let effect = self.model.effect(op);
            self.model.commit(&effect);
        }
        self.compare(at, size)
    }

    /// Describes a page that is the last one of its half of the space.
    fn if_last(&self, at: usize, size: PageSize) -> &'static str {
        let last = VirtAddr::new(at | size.mask()).vpn(self.model.space().base());
        let is_last = self.model.space().halves().into_iter().flatten().any(|half| half.last() == last);
        if is_last {
            ": it ends with the last page of its half of the space, which is a page like any other"
        } else {
            ""
        }
    }

    /// Returns the number of nodes of the mapper, if it frees empty nodes at once.
    fn nodes(&mut self) -> Option<usize> {
        if self.mapper.keeps_empty() { None } else { self.mapper.nodes() }
    }

    /// Checks that the mapper has as many nodes as before `what`.
    fn check_nodes(&mut self, before: Option<usize>, what: impl FnOnce() -> String) -> Result<(), String> {
        match (before, self.nodes()) {
            (Some(before), Some(after)) if before != after => Err(format!(
                "{}: the mapper holds {after} nodes, and before it held {before} (one that keeps empty nodes says so by \
                 `keeps_empty`)",
                what()
            )),
            _ => Ok(()),
        }
    }

    /// Tries to map a page that is mapped already, and tells whether the mapper did so. The refused map must keep no node.
    fn map_in_the_way(
        &mut self,
        at: usize,
        to: usize,
        size: PageSize,
        writable: bool,
    ) -> Result<bool, String> {
        let before = self.nodes();
        let mut done = self.mapper.map(at, to, size, writable);
        self.check_nodes(before.filter(|_| !done), || {
            "a page was in the way, and the map was refused, which gives back what it took".to_owned()
        })?;
        // A mapper that keeps empty nodes reuses them at the second attempt.
        let kept = frames::out();
        done = done || self.mapper.map(at, to, size, writable);
        if !done && frames::out() > kept {
            return Err(format!(
                "a page was in the way, and the map was refused; asked once more, it keeps more nodes: {} frames are out, and \
                 {} were",
                frames::out().unwrap_or(0),
                kept.unwrap_or(0)
            ));
        }
        Ok(done)
    }

    /// Makes each allocation of a map fail in turn. Tells whether the mapper supports that.
    fn fail(
        &mut self,
        op: &Op,
        at: usize,
        to: usize,
        size: PageSize,
        writable: bool,
    ) -> Result<bool, String> {
        let before = self.nodes();
        // The frame number decides whether the refused map is repeated, which detects nodes that it keeps. Not every map is
        // repeated, because such nodes stay taken for the rest of the test.
        let most = if (to >> size.shift()).is_multiple_of(2) { TRIES } else { 1 };
        for takes in 0..TRIES {
            let had = frames::out();
            for tries in 1..=most {
                if !self.mapper.fail_after(Some(takes)) {
                    return Ok(false);
                }
                let done = self.mapper.map(at, to, size, writable);
                self.mapper.fail_after(None);
                if done {
                    // All allocations have succeeded, so the map is undone before the real one. A mapper that fails only once may
                    // fail here.
                    let effect = self.model.effect(op);
                    self.model.commit(&effect);
                    self.compare(at, size)?;
                    if !self.mapper.unmap(at, size) {
                        return Err("a page that was just mapped cannot be unmapped".to_owned());
                    }
                    self.model.commit(&Effect { removed: effect.added, ..Effect::default() });
                    self.compare(at, size)?;
                    self.check_nodes(before, || {
                        "the page was mapped and unmapped, and `keeps_empty` says that no empty node stays"
                            .to_owned()
                    })?;
                    return Ok(true);
                }
                let failed = || format!("allocation {takes} failed, and the map with it");
                self.compare(at, size).map_err(|what| format!("{}: {what}", failed()))?;
                self.check_nodes(before, || format!("{}, which gives back what it took", failed()))?;
                let (had, has) = (had.unwrap_or(0), frames::out().unwrap_or(0));
                if has <= had {
                    break;
                }
                if tries == TRIES {
                    return Err(format!(
                        "{}, {TRIES} times: {} more frames are out than before, and the next map does not use what the refused \
                         ones have kept",
                        failed(),
                        has - had
                    ));
                }
            }
        }
        Err(format!(
            "it was refused, though it could take {} nodes and nothing was in the way{}",
            TRIES - 1,
            self.if_last(at, size)
        ))
    }

    fn check_flush(&mut self, op: &Op, at: usize, size: PageSize) -> Result<(), String> {
        let Some(flushed) = self.mapper.flushed() else {
            self.unchecked.insert(Want::Flushed);
            return Ok(());
        };
        let lost = match *op {
            Op::Unmap { .. } => true,
            Op::Protect { change, .. } => {
                let was =
                    self.model.lookup(VirtAddr::new(at)).is_some_and(|leaf| leaf.attr.contains(Attr::WRITE));
                was && change.clear.contains(Attr::WRITE)
            }
            _ => false,
        };
        if lost && !covers(&flushed, at, at + size.mask()) {
            let ranges: Vec<_> =
                flushed.iter().map(|(first, bytes)| format!("{bytes:#x} bytes from {first:#x}")).collect();
            let ranges = if ranges.is_empty() { "nothing".to_owned() } else { ranges.join(", ") };
            return Err(format!(
                "the {size} page at {at:#x} must be flushed; a flush was asked for of {ranges}"
            ));
        }
        Ok(())
    }

    /// Compares every page with the model, and the neighbours of one page.
    fn compare(&mut self, at: usize, size: PageSize) -> Result<(), String> {
        for at in [at, at + size.mask(), at.wrapping_sub(1), at.wrapping_add(size.mask() + 1)] {
            self.look(at)?;
        }
        let some = self.model.len() / 32 + 1;
        let leaves: Vec<Leaf> = self.model.leaves().skip(self.calls.len() % some).step_by(some).collect();
        for leaf in leaves {
            self.look(leaf.at.get())?;
            self.look(leaf.at.get() + leaf.size.mask())?;
        }
        if self.calls.len().is_multiple_of(8) { self.visit() } else { Ok(()) }
    }

    fn look(&mut self, at: usize) -> Result<(), String> {
        let at = VirtAddr::new(at);
        let space = self.model.space();
        if !space.holds(at) {
            return Ok(());
        }
        let leaf = self.model.lookup(at);
        let wanted = leaf.map(|leaf| leaf.phys(at, space.base()).get());
        let found = self.mapper.translate(at.get());
        if found != wanted {
            return Err(format!("{at} is translated {}, and should be {}", place(found), place(wanted)));
        }
        let Some(leaf) = leaf else { return Ok(()) };
        match self.mapper.writable(at.get()) {
            None => {
                self.unchecked.insert(Want::Writable);
            }
            Some(writable) if writable != leaf.attr.contains(Attr::WRITE) => {
                let (is, should) =
                    if writable { ("writable", "read-only") } else { ("read-only", "writable") };
                return Err(format!("{at} is {is}, and should be {should}"));
            }
            Some(_) => {}
        }
        Ok(())
    }

    fn visit(&mut self) -> Result<(), String> {
        let mut found = Vec::new();
        let mut meet = |at, to, size| {
            assert!(
                found.len() < ENDLESS,
                "a visit has met {ENDLESS} pages, and does not end: fewer are mapped"
            );
            found.push((at, to, size));
        };
        if !self.mapper.visit(&mut meet) {
            self.unchecked.insert(Want::Visit);
            return Ok(());
        }
        found.sort_unstable();
        let base = self.model.space().base();
        let wanted =
            self.model.leaves().map(|leaf| (leaf.at.get(), leaf.frame.address(base).get(), leaf.size));
        let wanted: Vec<_> = wanted.collect();
        if found == wanted {
            return Ok(());
        }
        let show = |page: Option<&(usize, usize, PageSize)>| match page {
            Some((at, to, size)) => format!("the {size} page at {at:#x} -> {to:#x}"),
            None => "no page".to_owned(),
        };
        let same = found.iter().zip(&wanted).take_while(|(found, wanted)| found == wanted).count();
        Err(format!(
            "a visit met {} pages, and {} are mapped; in ascending order, after {same} that are the same, it met {} and \
             should have met {}",
            found.len(),
            wanted.len(),
            show(found.get(same)),
            show(wanted.get(same))
        ))
    }
}

/// Tells whether ranges, each a first address and a number of bytes, together cover every address from `first` to `last`.
/// `usize::MAX` bytes mean all addresses that follow.
fn covers(ranges: &[(usize, usize)], first: usize, last: usize) -> bool {
    let mut ranges = ranges.to_vec();
    ranges.sort_unstable();
    // The first address that is not covered yet.
    let mut open = first;
    for (from, bytes) in ranges {
        let Some(more) = bytes.checked_sub(1) else { continue };
        let to = if bytes == usize::MAX { bytes } else { from.saturating_add(more) };
        if from <= open && open <= to {
            if to >= last {
                return true;
            }
            open = to + 1;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::covers;

    #[test]
    fn ranges_cover_together() {
        let (last_page, top) = (usize::MAX - 0xfff, usize::MAX);
        assert!(covers(&[(0, usize::MAX)], last_page, top));
        assert!(!covers(&[(0, usize::MAX - 1)], last_page, top));
        assert!(covers(&[(last_page, 0x1000)], last_page, top));
        assert!(covers(&[(0x30_0000, 0x10_0000), (0x20_0000, 0x10_0000)], 0x20_0000, 0x3f_ffff));
        assert!(!covers(&[(0x30_0000, 0x10_0000), (0x20_0000, 0xf_ffff)], 0x20_0000, 0x3f_ffff));
        assert!(!covers(&[(0x20_0000, 0x1f_ffff)], 0x20_0000, 0x3f_ffff));
        assert!(!covers(&[], 0, 0xfff) && !covers(&[(0, 0)], 0, 0xfff));
    }
}
