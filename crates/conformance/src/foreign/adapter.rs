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

use super::{Foreign, Want};
use crate::hang::{self, ENDLESS};
use crate::{Model, Op, Profile};

/// A mapper as a table of which each call changes one page. What the mapper cannot tell, the adapter takes from its own model, and
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
}

impl fmt::Debug for Adapter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapter").field("calls", &self.calls).finish_non_exhaustive()
    }
}

impl<'n> Adapter<'n> {
    /// Returns the adapter of a new mapper. Its batches hold no nodes, and belong to the storage `nodes`.
    pub(super) fn new(mapper: Box<dyn Foreign>, nodes: &'n dyn Reclaim) -> Self {
        let model = Model::new(mapper.space(), Profile::plain());
        Self {
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

    pub(super) fn unmap_page(&self, at: usize, size: PageSize) -> bool {
        self.call(format!("unmap({at:#x}, {size})"));
        self.mapper().unmap(at, size)
    }

    pub(super) fn protect_page(&self, at: usize, size: PageSize, writable: bool) -> bool {
        self.call(format!("protect({at:#x}, {size}, writable: {writable})"));
        self.mapper().protect(at, size, writable).unwrap_or(false)
    }

    /// Makes a change of one page, whose size is that of `pages`, by a call of the mapper.
    fn change(
        &self,
        batch: &mut Retired<'_>,
        (op, pages): (Op, Pages),
        call: impl FnOnce(usize, PageSize) -> bool,
    ) -> Result<usize, Error> {
        let refusals = self.model.borrow().refusals(&op);
        // The mapper's own types exclude the other errors.
        if let Some(error) = refusals.iter().find(|error| !is_said(error)) {
            return Err(*error);
        }
        let (at, size) = self.page(pages);
        self.mapper().flushed();
        let done = call(at, size);
        match (done, refusals.first()) {
            (true, None) => {}
            // The runner expects the refusal.
            (true, Some(_)) => return Ok(pages.len()),
            (false, Some(refusal)) => return Err(*refusal),
            (false, None) if self.tight.get() => return Err(Error::no_memory(1, self.nodes.held())),
            // This error is none that the runner expects.
            (false, None) => return Err(Error::Busy),
        }
        let mut model = self.model.borrow_mut();
        let lost = match op {
            Op::Protect { change, .. } => model
                .lookup(VirtAddr::new(at))
                .is_some_and(|leaf| leaf.attr.contains(Attr::WRITE) && change.clear.contains(Attr::WRITE)),
            op => matches!(op, Op::Unmap { .. }),
        };
        let effect = model.effect(&op);
        model.commit(&effect);
        let flushed = self.mapper().flushed();
        if flushed.is_none() {
            self.lacks(Want::Flushed);
        }
        let named = flushed.as_ref().is_none_or(|ranges| covers(ranges, at, at + size.mask()));
        if !lost || named {
            batch.touch(FlushScope::Everywhere, pages);
        } else if let Some(call) = self.calls.borrow_mut().last_mut() {
            let ranges: Vec<_> = flushed.into_iter().flatten().collect();
            let ranges = ranges.iter().map(|(first, bytes)| format!("{bytes:#x} bytes from {first:#x}"));
            *call += &format!(", which asked for flushes of [{}]", ranges.collect::<Vec<_>>().join(", "));
        }
        Ok(pages.len())
    }

    /// Returns the address and the size of a page.
    pub(super) fn page(&self, pages: Pages) -> (usize, PageSize) {
        let base = self.space().base();
        let size = PageSize::from_shift((pages.len() * base.bytes()).trailing_zeros()).unwrap_or(base);
        (pages.first().address(base).get(), size)
    }

    /// Returns a leaf with the right to write that the mapper tells.
    fn told(&self, at: VirtAddr, leaf: Leaf) -> Leaf {
        let attr = match self.mapper().writable(at.get()) {
            None => {
                self.lacks(Want::Writable);
                leaf.attr
            }
            Some(true) => leaf.attr | Attr::WRITE,
            Some(false) => leaf.attr - Attr::WRITE,
        };
        Leaf { attr, ..leaf }
    }
}

/// Tells whether a mapper can refuse a call for this reason. The other errors are excluded by the mapper's own types.
pub(super) fn is_said(error: &Error) -> bool {
    matches!(error, Error::Occupied { .. } | Error::NotMapped { .. })
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
        let attr = Profile::plain().implied;
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
        let (mut found, attr) = (Vec::new(), Profile::plain().implied);
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
        let (to, writable) = (frame.address(self.space().base()).get(), attr.contains(Attr::WRITE));
        let op = Op::Map { pages, frame, size, attr };
        self.change(batch, (op, pages), |at, size| {
            self.call(format!("map({at:#x}, {to:#x}, {size}, writable: {writable})"));
            self.mapper().map(at, to, size, writable)
        })?;
        Ok(())
    }

    fn unmap(&self, right: Right<'_, 'n>, pages: Pages, holes: Holes) -> Result<usize, Error> {
        let batch = right.batch(&self.flag)?;
        let op = Op::Unmap { pages, holes };
        self.change(batch, (op, pages), |at, size| self.unmap_page(at, size))
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
        let writable = change.set.contains(Attr::WRITE);
        self.change(batch, (op, pages), |at, size| self.protect_page(at, size, writable))
    }

    fn replace(
        &self,
        _right: Right<'_, 'n>,
        _at: VirtAddr,
        _frame: Pfn,
        _attr: Attr,
        _known: FlushAll<'_>,
    ) -> Result<Leaf, Error> {
        Err(Error::Busy)
    }

    fn breaks_frames(&self) -> bool {
        false
    }

    fn resize(
        &self,
        _right: Right<'_, 'n>,
        _pages: Pages,
        _to: PageSize,
        _known: FlushAll<'_>,
    ) -> Result<(), Error> {
        Err(Error::Busy)
    }

    fn breaks(&self) -> bool {
        false
    }

    unsafe fn dismantle(&mut self, _batch: &mut Retired<'n>) {}
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
