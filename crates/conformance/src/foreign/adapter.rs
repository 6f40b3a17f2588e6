//! A [`Foreign`] mapper as a [`Table`].

use std::cell::{Cell, RefCell, RefMut};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::ControlFlow;

use tlbkit_addr::{Attr, FlushScope, PageSize, Pages, Pfn, PhysAddr, VirtAddr, Vpn};
use tlbkit_pagetable::nodes::Reclaim;
use tlbkit_pagetable::{
    Change, Error, FlushAll, Footprint, Holes, Leaf, Pinned, Rest, Retired, Right, Space, Table, Uncovered,
    WriterFlag,
};

use super::watch::{self, Place, Watch};
use super::{Flushed, Foreign, Mmu, Want, frames};
use crate::hang::{self, ENDLESS};
use crate::{Effect, Model, Op, Profile};

/// A mapper as a table. What the mapper cannot tell, the adapter takes from its own model, and
/// notes it as unchecked.
pub(super) struct Adapter<'n> {
    mapper: RefCell<Box<dyn Foreign>>,
    /// What the mapper has accepted.
    model: RefCell<Model>,
    unchecked: RefCell<BTreeSet<Want>>,
    /// The calls, in words.
    calls: RefCell<Vec<String>>,
    /// Whether allocations may fail.
    tight: Cell<bool>,
    flag: WriterFlag,
    nodes: &'n dyn Reclaim,
    profile: Profile,
    /// What was wrong in the midst of a call.
    fault: RefCell<Option<String>>,
}

/// The bits that hardware sets.
pub(super) const STATUS: Attr = Attr::ACCESSED.union(Attr::DIRTY);

/// The number of places of a call that are looked up after each store, of those that change and of those around them.
const WATCHED: usize = 6;

impl fmt::Debug for Adapter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapter").field("calls", &self.calls).finish_non_exhaustive()
    }
}

impl<'n> Adapter<'n> {
    /// Returns the adapter of a new mapper. Its batches hold no nodes, and belong to the storage `nodes`.
    pub(super) fn new(mapper: Box<dyn Foreign>, profile: Profile, nodes: &'n dyn Reclaim) -> Self {
        let model = Model::new(mapper.space(), profile);
        Self {
            profile,
            fault: RefCell::default(),
            mapper: RefCell::new(mapper),
            model: RefCell::new(model),
            unchecked: RefCell::default(),
            calls: RefCell::default(),
            tight: Cell::new(false),
            flag: WriterFlag::new(nodes.held()),
            nodes,
        }
    }

    /// Returns the mapper.
    pub(super) fn mapper(&self) -> RefMut<'_, Box<dyn Foreign>> {
        self.mapper.borrow_mut()
    }

    /// Returns the checks that were not made, and the calls.
    pub(super) fn parts(&self) -> (BTreeSet<Want>, Vec<String>) {
        (self.unchecked.take(), self.calls.take())
    }

    /// Returns the mapper, to be dropped.
    pub(super) fn into_mapper(self) -> Box<dyn Foreign> {
        self.mapper.into_inner()
    }

    /// Notes a check that is not made.
    pub(super) fn lacks(&self, want: Want) {
        self.unchecked.borrow_mut().insert(want);
    }

    /// Returns what was wrong in the midst of a call.
    pub(super) fn fault(&self) -> Option<String> {
        self.fault.take()
    }

    /// Returns the rights that a page can have or lack.
    pub(super) fn rights(&self) -> Attr {
        self.profile.optional - STATUS
    }

    /// Returns how hardware walks the tables.
    pub(super) fn mmu(&self) -> Option<Mmu> {
        self.mapper().mmu()
    }

    /// Returns the number of calls so far.
    pub(super) fn calls(&self) -> usize {
        self.calls.borrow().len()
    }

    /// Limits the mapper to `takes` more nodes. Returns `false` if it cannot be limited.
    pub(super) fn limit(&self, takes: Option<usize>) -> bool {
        self.tight.set(takes.is_some());
        self.mapper().fail_after(takes)
    }

    fn call(&self, call: String) {
        // A map is tried many times without memory, and only the last try counts.
        if !self.tight.get() {
            hang::say(&format!("`{call}` was called"));
            self.calls.borrow_mut().push(format!("    {call}"));
        }
    }

    fn note(&self, at: usize, status: Attr) {
        self.call(format!("note({at:#x}, {status:?})"));
        self.mapper().note(at, status);
    }

    pub(super) fn unmap_page(&self, at: usize, size: PageSize) -> bool {
        self.call(format!("unmap({at:#x}, {size})"));
        self.mapper().unmap(at, size)
    }

    pub(super) fn protect_page(&self, at: usize, size: PageSize, attr: Attr) -> bool {
        self.call(format!("protect({at:#x}, {size}, {attr:?})"));
        self.mapper().protect(at, size, attr).unwrap_or(false)
    }

    /// Makes a change by a call of the mapper.
    fn change(
        &self,
        batch: &mut Retired<'_>,
        (op, pages): (Op, Pages),
        call: impl FnOnce() -> bool,
    ) -> Result<usize, Error> {
        let refusals = self.model.borrow().refusals(&op);
        // The mapper's own types exclude the other errors.
        if let Some(error) = refusals.iter().find(|error| !is_said(error)) {
            return Err(*error);
        }
        let effect = if refusals.is_empty() { self.model.borrow().effect(&op) } else { Effect::default() };
        self.mapper().flushed();
        frames::begin();
        if !self.tight.get() {
            self.watch(pages, &effect);
        }
        let done = call();
        let torn = watch::end();
        match (done, refusals.first()) {
            (true, None) => {}
            // The runner expects the refusal.
            (true, Some(_)) => return Ok(pages.len()),
            (false, Some(refusal)) => return Err(*refusal),
            (false, None) if self.tight.get() => return Err(Error::no_memory(1, self.nodes.held())),
            // This error is none that the runner expects.
            (false, None) => return Err(Error::Busy),
        }
        let flushed = self.mapper().flushed();
        if flushed.is_none() {
            self.lacks(Want::Flushed);
        }
        let named = {
            let model = self.model.borrow();
            // Each page that is gone, or has lost a right, and its last address.
            let lost = effect.removed.iter().filter(|old| match op {
                Op::Protect { change, .. } => old.attr.intersects(change.clear - change.set - STATUS),
                op => !matches!(op, Op::Resize { .. }),
            });
            let spans: Vec<_> = lost.map(|old| (old.at.get(), old.at.get() + old.size.mask())).collect();
            let old = |at: usize| {
                let old = model.lookup(VirtAddr::new(at))?;
                Some((old.at.get(), old.at.get() + old.size.mask()))
            };
            let gone = match op {
                Op::Map { .. } => None,
                _ => frames::early(|flushes| {
                    let all = effect.removed.iter().map(|old| (old.at.get(), old.at.get() + old.size.mask()));
                    // A range is flushed node by node.
                    if effect.removed.len() > 1 && !matches!(op, Op::Resize { .. }) {
                        !flushes.is_empty()
                    } else {
                        covers(flushes, all, old)
                    }
                }),
            };
            let named = flushed.as_ref().is_none_or(|flushed| covers(flushed, spans.into_iter(), old));
            let early = gone.filter(|_| named && frames::tells_flushes() && !self.tight.get()).map(|frame| {
                format!(
                    "frame {frame:#x}, which was a node, is given back before a flush of {pages}: a CPU may still walk through it"
                )
            });
            if let Some(fault) = torn.or(early) {
                self.fault.borrow_mut().get_or_insert(fault);
            }
            named
        };
        self.model.borrow_mut().commit(&effect);
        if named {
            batch.touch(FlushScope::Everywhere, pages);
        } else if let Some(call) = self.calls.borrow_mut().last_mut() {
            let flushed = flushed.into_iter().flatten().map(|flushed| match flushed {
                Flushed::Bytes(first, bytes) => format!("{bytes:#x} bytes from {first:#x}"),
                Flushed::Page(at) => format!("the page at {at:#x}"),
                Flushed::All => "everything".to_owned(),
            });
            *call += &format!(", which asked for flushes of [{}]", flushed.collect::<Vec<_>>().join(", "));
        }
        Ok(pages.len())
    }

    /// Begins to watch the stores of a call with this effect.
    fn watch(&self, pages: Pages, effect: &Effect) {
        let Some(mmu) = self.mmu() else { return };
        let (model, space, attr) = (self.model.borrow(), self.space(), self.rights());
        let base = space.base();
        let changed: Vec<_> = effect.removed.iter().chain(&effect.added).collect();
        let step = changed.len().div_ceil(WATCHED).max(1);
        let around = [pages.first().get().wrapping_sub(1), pages.last().get() + 1, pages.first().get()];
        let some =
            changed.iter().step_by(step).chain(changed.last()).map(|leaf| leaf.at.get() + leaf.size.mask());
        let near =
            around.into_iter().filter_map(|page| Vpn::new(page).checked_address(base).map(VirtAddr::get));
        let places = some.chain(near).filter(|at| space.holds(VirtAddr::new(*at))).map(|at| {
            let seen =
                |leaf: &Leaf| (leaf.frame.address(base).get() + (at - leaf.at.get()), leaf.attr & attr);
            let has = |leaf: &&Leaf| at & !leaf.size.mask() == leaf.at.get();
            let before = model.lookup(VirtAddr::new(at)).as_ref().map(seen);
            let after = match effect.added.iter().find(has) {
                Some(new) => Some(seen(new)),
                None if effect.removed.iter().any(|old| has(&old)) => None,
                None => before,
            };
            Place { at, before, after }
        });
        let (places, breaks) = (places.collect(), self.mapper().breaks());
        watch::begin(Some(Watch { mmu, attr, places, breaks, stores: 0, fault: None }));
    }

    /// Tells whether more than one page of the model is in a range.
    fn are_many(&self, pages: Pages) -> bool {
        self.model.borrow().overlap(pages).nth(1).is_some()
    }

    /// Returns the address and the size of a page.
    pub(super) fn page(&self, pages: Pages) -> (usize, PageSize) {
        let base = self.space().base();
        let size = PageSize::from_shift((pages.len() * base.bytes()).trailing_zeros()).unwrap_or(base);
        (pages.first().address(base).get(), size)
    }

    /// Returns a leaf with the attributes that the mapper tells.
    fn told(&self, at: VirtAddr, leaf: Leaf) -> Leaf {
        let optional = self.profile.optional;
        let attr = match self.mapper().attr(at.get()) {
            None => {
                self.lacks(Want::Attr);
                leaf.attr
            }
            Some(attr) => self.profile.implied | attr & optional,
        };
        Leaf { attr, ..leaf }
    }
}

/// Tells whether a mapper can refuse a call for this reason. The other errors are excluded by the mapper's own types.
pub(super) fn is_said(error: &Error) -> bool {
    matches!(error, Error::Occupied { .. } | Error::NotMapped { .. } | Error::NotUniform { .. })
}

// SAFETY: no call dereferences a pointer of its own; the batch is over the storage, and holds no node.
unsafe impl<'n> Table<'n> for Adapter<'n> {
    fn space(&self) -> Space {
        *self.model.borrow().space()
    }

    fn lookup(&self, pinned: Pinned<'_>, at: VirtAddr) -> Option<Leaf> {
        let phys = self.translate(pinned, at)?;
        let base = self.space().base();
        let known = self.model.borrow().lookup(at);
        let attr = self.profile.implied;
        let leaf = Leaf { at: at.vpn(base).address(base), size: base, frame: phys.pfn(base), attr };
        Some(self.told(at, known.unwrap_or(leaf)))
    }

    fn translate(&self, _pinned: Pinned<'_>, at: VirtAddr) -> Option<PhysAddr> {
        self.space().holds(at).then(|| self.mapper().translate(at.get()))?.map(PhysAddr::new)
    }

    fn for_each(
        &self,
        _pinned: Pinned<'_>,
        pages: Pages,
        visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let space = self.space();
        let (mut found, attr) = (Vec::new(), self.profile.implied);
        let mut meet = |at, to, size| {
            assert!(
                found.len() < ENDLESS,
                "a visit has met {ENDLESS} pages, and does not end: fewer are mapped"
            );
            let frame = PhysAddr::new(to).pfn(space.base());
            found.push(Leaf { at: VirtAddr::new(at), size, frame, attr });
        };
        if self.mapper().visit(&mut meet) {
            found.retain(|leaf| space.pages_of(leaf).intersect(pages).is_some());
        } else {
            self.lacks(Want::Visit);
            found = self.model.borrow().overlap(pages).collect();
        }
        found.into_iter().try_for_each(|leaf| visit(self.told(leaf.at, leaf)))
    }

    fn footprint(&self) -> Footprint {
        Footprint { ptes: self.model.borrow().len(), ..Footprint::default() }
    }

    fn writer_flag(&self) -> &WriterFlag {
        &self.flag
    }

    fn batch(&self) -> Retired<'n> {
        Retired::of(self.nodes, &self.flag)
    }

    fn map(
        &self,
        right: Right<'_, 'n>,
        pages: Pages,
        frame: Pfn,
        size: PageSize,
        attr: Attr,
    ) -> Result<(), Error> {
        let batch = right.batch(&self.flag)?;
        let (at, to) =
            (pages.first().address(self.space().base()).get(), frame.address(self.space().base()).get());
        let (rights, status) = (attr - STATUS, attr & STATUS);
        let count = pages.len() / size.pages(self.space().base()).unwrap_or(1);
        let op = Op::Map { pages, frame, size, attr };
        self.change(batch, (op, pages), || {
            if count > 1 {
                self.call(format!("map_range({at:#x}, {to:#x}, {size}, {count}, {rights:?})"));
                return self.mapper().map_range(at, to, size, count, rights).unwrap_or(false);
            }
            self.call(format!("map({at:#x}, {to:#x}, {size}, {rights:?})"));
            let done = self.mapper().map(at, to, size, rights);
            if done && !status.is_empty() {
                self.note(at, status);
            }
            done
        })?;
        Ok(())
    }

    fn unmap(&self, right: Right<'_, 'n>, pages: Pages, holes: Holes) -> Result<usize, Error> {
        let batch = right.batch(&self.flag)?;
        let op = Op::Unmap { pages, holes };
        let (at, size) = self.page(pages);
        self.change(batch, (op, pages), || {
            if !self.are_many(pages) {
                return self.unmap_page(at, size);
            }
            let bytes = pages.len() * self.space().base().bytes();
            self.call(format!("unmap_range({at:#x}, {bytes:#x})"));
            self.mapper().unmap_range(at, bytes).unwrap_or(false)
        })
    }

    fn take_next(
        &self,
        mut right: Right<'_, 'n>,
        rest: &mut Rest,
    ) -> Result<Option<(Vpn, Uncovered)>, Error> {
        right.reborrow().batch(&self.flag)?;
        let next = rest.pages().and_then(|pages| self.model.borrow().overlap(pages).next());
        let Some(leaf) = next else {
            rest.end();
            return Ok(None);
        };
        let pages = self.space().pages_of(&leaf);
        self.unmap(right, pages, Holes::Refuse)?;
        rest.go_past(pages.last());
        Ok(Some((pages.first(), Uncovered::Frames(leaf.run(self.space().base())))))
    }

    fn protect(
        &self,
        right: Right<'_, 'n>,
        pages: Pages,
        holes: Holes,
        change: Change,
    ) -> Result<usize, Error> {
        let batch = right.batch(&self.flag)?;
        let op = Op::Protect { pages, holes, change };
        let (at, size) = self.page(pages);
        // The pages of a range all get the same rights, as the runner passes them.
        let leaf = self.model.borrow().lookup(VirtAddr::new(at));
        let attr = change.apply(leaf.map_or(self.profile.implied, |leaf| leaf.attr)) - STATUS;
        self.change(batch, (op, pages), || {
            if change.clear.is_empty() && STATUS.contains(change.set) {
                self.note(at, change.set);
                return true;
            }
            if !self.are_many(pages) {
                return self.protect_page(at, size, attr);
            }
            let bytes = pages.len() * self.space().base().bytes();
            self.call(format!("protect_range({at:#x}, {bytes:#x}, {attr:?})"));
            self.mapper().protect_range(at, bytes, attr).unwrap_or(false)
        })
    }

    fn replace(
        &self,
        right: Right<'_, 'n>,
        at: VirtAddr,
        frame: Pfn,
        attr: Attr,
        _known: FlushAll<'_>,
    ) -> Result<Leaf, Error> {
        let batch = right.batch(&self.flag)?;
        let Some(old) = self.model.borrow().lookup(at) else { return Err(Error::NotMapped { at }) };
        let (first, to, size) = (old.at.get(), frame.address(self.space().base()).get(), old.size);
        self.change(batch, (Op::Replace { at, frame, attr }, self.space().pages_of(&old)), || {
            self.call(format!("replace({first:#x}, {to:#x}, {size}, {attr:?})"));
            self.mapper().replace(first, to, size, attr).unwrap_or(false)
        })?;
        Ok(old)
    }

    fn breaks_frames(&self) -> bool {
        false
    }

    fn resize(
        &self,
        right: Right<'_, 'n>,
        pages: Pages,
        to: PageSize,
        _known: FlushAll<'_>,
    ) -> Result<(), Error> {
        let batch = right.batch(&self.flag)?;
        let at = pages.first().address(self.space().base()).get();
        let first = self.model.borrow().overlap(pages).next();
        let size = first.map_or(self.space().base(), |leaf| leaf.size);
        self.change(batch, (Op::Resize { pages, to }, pages), || {
            self.call(format!("resize({at:#x}, {size}, {to})"));
            self.mapper().resize(at, size, to).unwrap_or(false)
        })?;
        Ok(())
    }

    fn breaks(&self) -> bool {
        false
    }

    unsafe fn dismantle(&mut self, _batch: &mut Retired<'n>) {}
}

/// Tells whether flushes together cover every address of some spans, each a first address and a last one. `page` returns the span of
/// the page that holds an address.
fn covers(
    flushes: &[Flushed],
    mut spans: impl Iterator<Item = (usize, usize)>,
    page: impl Fn(usize) -> Option<(usize, usize)>,
) -> bool {
    let mut flushes: Vec<_> = flushes
        .iter()
        .filter_map(|&flushed| match flushed {
            Flushed::Bytes(first, bytes) => Some((first, first.saturating_add(bytes.checked_sub(1)?))),
            Flushed::Page(at) => page(at),
            Flushed::All => Some((0, usize::MAX)),
        })
        .collect();
    flushes.sort_unstable();
    // Those that touch are one.
    flushes.dedup_by(|next, flush| {
        let touches = next.0 <= flush.1.saturating_add(1);
        flush.1 = if touches { flush.1.max(next.1) } else { flush.1 };
        touches
    });
    spans.all(|(first, last)| flushes.iter().any(|flush| flush.0 <= first && last <= flush.1))
}

#[cfg(test)]
mod tests {
    use super::Flushed::{All, Bytes, Page};
    use super::covers;

    #[test]
    fn ranges_cover_together() {
        let (last_page, top) = (usize::MAX - 0xfff, usize::MAX);
        let page = |at: usize| (at < 0x40_0000).then_some((at & !0x1f_ffff, at | 0x1f_ffff));
        let covers = |flushes: &[_], first, last| covers(flushes, [(first, last)].into_iter(), page);
        assert!(covers(&[All], last_page, top) && covers(&[Bytes(last_page, 0x1000)], last_page, top));
        assert!(!covers(&[Bytes(0, usize::MAX)], last_page, top));
        assert!(covers(&[Bytes(0x30_0000, 0x10_0000), Bytes(0x20_0000, 0x10_0000)], 0x20_0000, 0x3f_ffff));
        assert!(!covers(&[Bytes(0x30_0000, 0x10_0000), Bytes(0x20_0000, 0xf_ffff)], 0x20_0000, 0x3f_ffff));
        assert!(!covers(&[Bytes(0x20_0000, 0x1f_ffff)], 0x20_0000, 0x3f_ffff));
        assert!(!covers(&[], 0, 0xfff) && !covers(&[Bytes(0, 0)], 0, 0xfff));
        assert!(
            covers(&[Page(0x20_1000)], 0x20_0000, 0x3f_ffff)
                && !covers(&[Page(0x1f_f000)], 0x20_0000, 0x3f_ffff)
        );
        assert!(!covers(&[Page(0x40_0000)], 0x40_0000, 0x40_0fff));
    }
}
