//! A run of operations on a [`Foreign`] mapper and on the model.

use std::collections::BTreeSet;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::{Change, Error, Holes, Leaf};

use super::{Foreign, Want, frames};
use crate::hang::{self, Step};
use crate::moments::place;
use crate::run::ENDLESS;
use crate::{Effect, Model, Op, Profile};

/// The most pages of one operation.
const MOST: usize = 24;

/// The most places that are looked at in a large page: every page of 4 KiB in one of 2 MiB.
const PLACES: usize = if cfg!(miri) { 8 } else { 512 };

/// The most places that are looked at once in a run: every page of 4 KiB in one of 1 GiB.
const ALL_PLACES: usize = if cfg!(miri) { 64 } else { 1 << 18 };

/// The operations of a case, the first ones, that leave pages mapped when the mapper is dropped.
const LEFT: usize = 4;

/// How often a map is tried that gets no memory: more nodes than any page needs.
const TRIES: usize = 8;

/// A mapper under test, the model beside it, and what was called.
pub(super) struct Run<F> {
    pub(super) mapper: F,
    pub(super) model: Model,
    pub(super) unchecked: BTreeSet<Want>,
    /// Where nodes may be that were emptied, by first address and size.
    kept: BTreeSet<(usize, PageSize)>,
    /// What was called, in words.
    pub(super) calls: Vec<String>,
    /// Whether a mapper that is dropped gives its [`frames`] back: a new one does.
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

    /// Writes down what the mapper is called for next.
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
        // A mapper is dropped with pages mapped.
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
                // Physical addresses of 40 bits.
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
                // What the change leaves alone becomes what it was not.
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

    /// Looks at pages in the midst of a large one, takes the right to write from it or gives it, and takes that back.
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

    /// Looks at up to `most` base pages of a page, as far from each other as the next.
    fn look_within(&mut self, leaf: Leaf, most: usize) -> Result<(), String> {
        let base = self.model.space().base();
        let units = leaf.size.pages(base).unwrap_or(1);
        let step = units.div_ceil(most);
        // Another page of each part each time.
        for page in (self.calls.len() * 7 % step..units).step_by(step) {
            self.look(leaf.at.get() + page * base.bytes() + self.calls.len() % base.bytes())?;
        }
        Ok(())
    }

    /// Does something to every page that a range meets, and to the first of the range if there is none.
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

    /// Asks for what is to be done to a page by every other size that the space has, which must be refused.
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
        // The mapper's own types rule the others out.
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
                    // A mapper that takes its first node now is limited from the next map on.
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

    /// Says of a page whether it is the last of its half of the space.
    fn if_last(&self, at: usize, size: PageSize) -> &'static str {
        let last = VirtAddr::new(at | size.mask()).vpn(self.model.space().base());
        let is_last = self.model.space().halves().into_iter().flatten().any(|half| half.last() == last);
        if is_last {
            ": it ends with the last page of its half of the space, which is a page like any other"
        } else {
            ""
        }
    }

    /// Returns how many nodes the mapper has, if each that is empty goes back at once.
    fn nodes(&mut self) -> Option<usize> {
        if self.mapper.keeps_empty() { None } else { self.mapper.nodes() }
    }

    /// Checks that the mapper has the nodes that it had before `what`.
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

    /// Asks for a map of what is mapped, and tells whether it was done. It must keep no node.
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
        // What a mapper keeps that keeps empty nodes is there the next time.
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

    /// Lets every allocation of a map fail, one after the other. Returns whether that can be done.
    fn fail(
        &mut self,
        op: &Op,
        at: usize,
        to: usize,
        size: PageSize,
        writable: bool,
    ) -> Result<bool, String> {
        let before = self.nodes();
        // The frame says whether nodes that a refused map has kept are looked for: that takes them for the rest of the test.
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
                    // No more to fail: as it was, for the real one. What is wrong once may be so now.
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

    /// Compares every page with the model, and what lies around one.
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

/// Tells whether ranges, each a first address and bytes, cover every address from `first` to `last` together. As many bytes as a
/// `usize` can say are all that follow.
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
