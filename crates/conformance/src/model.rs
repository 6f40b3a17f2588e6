//! The model: the specification of a page table, as a `BTreeMap`.
//!
//! It predicts an operation before the table performs it: every exact [`Error`] with which the table may refuse it, or, if there
//! is none, the changes. A table may check in any order, so it may report any one of several errors. The address, the page size
//! and the conflicting page in the error must be right.

use std::collections::BTreeMap;

use tlbkit_addr::{Attr, FlushScope, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::{Change, Entry, Error, Holes, Leaf, Mark, Space};

use crate::{Op, Profile};

/// The bits that hardware sets in a leaf. Pages that differ only in these bits can be promoted.
const STATUS: Attr = Attr::ACCESSED.union(Attr::DIRTY);

/// A page table as a map from first pages to leaves.
#[derive(Clone, Debug)]
pub struct Model {
    space: Space,
    profile: Profile,
    leaves: BTreeMap<usize, Leaf>,
    /// The number of bits of a payload; `None` if the table holds no marks.
    payload_bits: Option<u32>,
    marks: BTreeMap<usize, Mark>,
}

/// The effect of an operation that must succeed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// The number of base pages that were mapped, which `unmap` and `protect` return.
    pub pages: usize,
    /// The pages that change, with the flush scope of each change.
    pub touched: Vec<(FlushScope, Pages)>,
    /// The leaves that are removed.
    pub removed: Vec<Leaf>,
    /// The leaves that are added.
    pub added: Vec<Leaf>,
    /// The pages whose mark is stored or removed.
    pub marked: Vec<(Vpn, Option<Mark>)>,
}

impl Model {
    /// Returns the model of an empty table.
    pub fn new(space: Space, profile: Profile) -> Self {
        Self { space, profile, leaves: BTreeMap::new(), payload_bits: None, marks: BTreeMap::new() }
    }

    /// Makes the model hold marks as a table with these [`payload_bits`](tlbkit_pagetable::Table::payload_bits) does.
    #[must_use]
    pub fn with_marks(self, payload_bits: Option<u32>) -> Self {
        Self { payload_bits, ..self }
    }

    /// Returns the marks of the pages of a range in ascending order.
    pub fn marks(&self, pages: Pages) -> impl Iterator<Item = (VirtAddr, Mark)> + '_ {
        let range = self.marks.range(pages.first().get()..=pages.last().get());
        range.map(|(&page, &mark)| (self.address(Vpn::new(page)), mark))
    }

    /// Tells whether the table holds marks.
    pub(crate) const fn has_marks(&self) -> bool {
        self.payload_bits.is_some()
    }

    /// Returns the number of pages that have a mark.
    pub fn marked(&self) -> usize {
        self.marks.len()
    }

    /// Returns what the entry for the page at `at` holds.
    pub fn entry(&self, at: VirtAddr) -> Entry {
        let mark = self.marks.get(&at.vpn(self.space.base()).get()).copied();
        self.lookup(at).map_or(mark.into(), Entry::Leaf)
    }

    /// Returns the space that the table maps.
    pub const fn space(&self) -> &Space {
        &self.space
    }

    /// Returns the entry format's profile.
    pub const fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Returns the leaves in ascending order.
    pub fn leaves(&self) -> impl DoubleEndedIterator<Item = Leaf> + '_ {
        self.leaves.values().copied()
    }

    /// Returns the number of leaves.
    pub fn len(&self) -> usize {
        self.leaves.len()
    }

    /// Tells whether no page is mapped.
    pub fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    /// Returns the number of base pages that are mapped.
    pub fn pages(&self) -> usize {
        self.leaves().map(|leaf| self.units(leaf.size)).sum()
    }

    /// Returns the leaf that maps `at`.
    pub fn lookup(&self, at: VirtAddr) -> Option<Leaf> {
        self.holds(at).then(|| self.at(at.vpn(self.space.base()))).flatten()
    }

    /// Returns the leaves that map a page of `pages`, in ascending order.
    pub fn overlap(&self, pages: Pages) -> impl Iterator<Item = Leaf> + '_ {
        let first = self.at(pages.first()).map_or(pages.first(), |leaf| self.whole(&leaf).first());
        self.leaves.range(first.get()..=pages.last().get()).map(|(_, &leaf)| leaf)
    }

    /// Returns every error with which an operation may be refused. If there is none, the operation must succeed.
    ///
    /// The model does not predict a lack of memory.
    pub fn refusals(&self, op: &Op) -> Vec<Error> {
        match *op {
            Op::Map { pages, frame, size, attr } => self.refuse_map(pages, frame, size, attr),
            Op::Unmap { pages, holes } => self.refuse_change(pages, holes),
            Op::Drain { pages, .. } => self.refuse_change(pages, Holes::Skip),
            Op::Move { pages, to } => self.refuse_move(pages, to),
            Op::Protect { pages, holes, change } => {
                let mut refusals = self.refuse_change(pages, holes);
                let attr = self.profile.refused(change);
                if !attr.is_empty() {
                    refusals.push(Error::WrongAttr { attr });
                }
                refusals
            }
            Op::Resize { pages, to } => self.refuse_resize(pages, to),
            Op::Replace { at, frame, attr } => self.refuse_replace(at, frame, attr),
            Op::Mark { page, mark } => self.refuse_mark(page, mark),
            Op::Fill { page, payload, frame } => self.refuse_fill(page, payload, frame),
            Op::Lookup { .. } | Op::ForEach { .. } => Vec::new(),
        }
    }

    /// Returns the effect of an operation for which [`refusals`](Self::refusals) returns no error. That of a drain is the removal of
    /// the whole range.
    pub fn effect(&self, op: &Op) -> Effect {
        match *op {
            Op::Map { pages, frame, size, attr } => {
                let added = self.cut(pages, size, frame, attr);
                Effect {
                    pages: pages.len(),
                    touched: vec![(self.profile.appears, pages)],
                    added,
                    ..Effect::default()
                }
            }
            Op::Unmap { pages, .. } | Op::Drain { pages, .. } => self.removed(pages, |_| true),
            Op::Move { pages, to } => self.moved(pages, to),
            Op::Protect { pages, change, .. } => {
                let removed: Vec<_> = self.overlap(pages).collect();
                let added = removed.iter().map(|leaf| self.protected(leaf, change)).collect();
                let marked = self.marks(pages).filter_map(|(at, mark)| match mark {
                    Mark::Payload(payload, attr) => {
                        let attr = self.profile.changed(self.space.base(), attr, true, change);
                        let mark = Mark::Payload(payload, self.kept(attr & Mark::KEPT));
                        Some((at.vpn(self.space.base()), Some(mark)))
                    }
                    Mark::Guard => None,
                });
                let marked = marked.collect();
                Effect { marked, ..self.tally(scope(change), removed, added) }
            }
            Op::Resize { pages, to } => self.resized(pages, to),
            Op::Replace { at, frame, attr } => self.replaced(at, frame, attr),
            Op::Mark { page, mark } => {
                let removed = self.at(page).into_iter().collect();
                let mark = mark.map(|mark| match mark {
                    Mark::Payload(payload, attr) => Mark::Payload(payload, self.kept(attr)),
                    Mark::Guard => Mark::Guard,
                });
                Effect {
                    marked: vec![(page, mark)],
                    ..self.tally(FlushScope::Everywhere, removed, Vec::new())
                }
            }
            Op::Fill { page, frame, .. } => {
                let attr = match self.entry(self.address(page)) {
                    Entry::Mark(Mark::Payload(_, attr)) => attr,
                    _ => self.profile.implied,
                };
                Effect {
                    touched: vec![(self.profile.appears, Pages::one(page))],
                    added: self.cut(Pages::one(page), self.space.base(), frame, attr),
                    marked: vec![(page, None)],
                    ..Effect::default()
                }
            }
            Op::Lookup { .. } | Op::ForEach { .. } => Effect::default(),
        }
    }

    /// Returns the effect of the removal of those leaves and marks of a range whose first page is `wanted`.
    pub(crate) fn removed(&self, pages: Pages, wanted: impl Fn(Vpn) -> bool) -> Effect {
        let wanted_at = |at: VirtAddr| wanted(at.vpn(self.space.base()));
        let removed: Vec<_> = self.overlap(pages).filter(|leaf| wanted_at(leaf.at)).collect();
        let marks = self.marks(pages).filter(|&(at, _)| wanted_at(at));
        let marked = marks.map(|(at, _)| (at.vpn(self.space.base()), None)).collect();
        Effect { marked, ..self.tally(FlushScope::Everywhere, removed, Vec::new()) }
    }

    /// Returns the attributes of a mark that was stored with `attr`: those of the leaf that a fill makes.
    fn kept(&self, attr: Attr) -> Attr {
        self.profile.stored(Pfn::new(0), self.space.base(), attr, true).unwrap_or(attr)
    }

    /// Replaces the leaves and marks of the model.
    pub(crate) fn adopt(&mut self, leaves: &[Leaf], marks: &[(VirtAddr, Mark)]) {
        self.marks = marks.iter().map(|&(at, mark)| (at.vpn(self.space.base()).get(), mark)).collect();
        self.leaves = leaves.iter().map(|leaf| (self.whole(leaf).first().get(), *leaf)).collect();
    }

    /// Applies an effect to the model.
    pub fn commit(&mut self, effect: &Effect) {
        for leaf in &effect.removed {
            self.leaves.remove(&self.whole(leaf).first().get());
        }
        for &leaf in &effect.added {
            self.leaves.insert(self.whole(&leaf).first().get(), leaf);
        }
        for &(page, mark) in &effect.marked {
            match mark {
                Some(mark) => self.marks.insert(page.get(), mark),
                None => self.marks.remove(&page.get()),
            };
        }
    }

    /// Returns the number of leaves that an operation would make, whether it succeeds or not. This bounds its cost.
    pub fn weight(&self, op: &Op) -> usize {
        match *op {
            Op::Map { pages, size, .. } => pages.len() / self.units(size),
            Op::Resize { pages, to } => {
                self.overlap(pages).map(|leaf| (self.units(leaf.size) / self.units(to)).max(1)).sum()
            }
            Op::Move { pages, to } => self
                .overlap(pages)
                .map(|leaf| self.units(leaf.size) / self.units(self.size_at(&leaf, pages, to)))
                .sum(),
            _ => 0,
        }
    }

    fn units(&self, size: PageSize) -> usize {
        size.pages(self.space.base()).unwrap_or(1)
    }

    fn address(&self, page: Vpn) -> VirtAddr {
        page.address(self.space.base())
    }

    fn is_base(&self, size: PageSize) -> bool {
        size == self.space.base()
    }

    /// Returns the pages of a leaf.
    fn whole(&self, leaf: &Leaf) -> Pages {
        let first = leaf.at.vpn(self.space.base());
        Pages::count(first, self.units(leaf.size)).unwrap_or(Pages::one(first))
    }

    /// Returns the leaf that maps a page.
    fn at(&self, page: Vpn) -> Option<Leaf> {
        let (_, leaf) = self.leaves.range(..=page.get()).next_back()?;
        self.whole(leaf).contains(page).then_some(*leaf)
    }

    fn holds(&self, at: VirtAddr) -> bool {
        let page = at.vpn(self.space.base());
        self.space.halves().into_iter().flatten().any(|half| half.contains(page))
    }

    /// Adds [`Error::OutOfRange`] with either end, unless one half holds all pages.
    fn refuse_range(&self, refusals: &mut Vec<Error>, pages: Pages) {
        let inside = |half: Pages| half.intersect(pages) == Some(pages);
        if !self.space.halves().into_iter().flatten().any(inside) {
            for end in [pages.first(), pages.last()] {
                refusals.push(Error::OutOfRange { at: self.address(end) });
            }
        }
    }

    /// Adds the errors of a range that cannot be divided into pages of `size`.
    fn refuse_size(&self, refusals: &mut Vec<Error>, pages: Pages, size: PageSize) {
        if !self.space.sizes().contains(&size) {
            refusals.push(Error::WrongSize { size });
            return;
        }
        let mask = self.units(size) - 1;
        if pages.first().get() & mask != 0 {
            refusals.push(Error::Misaligned { at: self.address(pages.first()), size });
        }
        if pages.last().get() & mask != mask {
            refusals.push(Error::Misaligned { at: self.address(pages.last()), size });
        }
    }

    fn refuse_map(&self, pages: Pages, frame: Pfn, size: PageSize, attr: Attr) -> Vec<Error> {
        let mut refusals = Vec::new();
        self.refuse_range(&mut refusals, pages);
        self.refuse_size(&mut refusals, pages, size);
        let attr = if self.profile.takes(attr) {
            attr
        } else {
            refusals.push(Error::WrongAttr { attr });
            self.profile.implied
        };
        if frame.is_aligned(size, self.space.base()) {
            self.refuse_frames(&mut refusals, frame, pages.len(), size, attr);
        } else {
            refusals.push(Error::MisalignedFrame { frame, size });
        }
        refusals.extend(self.overlap(pages).map(|Leaf { at, size, .. }| Error::Occupied { at, size }));
        refusals.extend(self.marks(pages).map(|(at, _)| Error::Marked { at }));
        refusals
    }

    fn refuse_mark(&self, page: Vpn, mark: Option<Mark>) -> Vec<Error> {
        let mut refusals = Vec::new();
        self.refuse_range(&mut refusals, Pages::one(page));
        let fits = match (self.payload_bits, mark) {
            (None, _) => false,
            (Some(bits), Some(Mark::Payload(payload, _))) => payload.checked_shr(bits).unwrap_or(0) == 0,
            (Some(_), _) => true,
        };
        if !fits {
            refusals.push(Error::WrongMark);
        }
        if let Some(Mark::Payload(_, attr)) = mark {
            let lost = attr - Mark::KEPT;
            if !lost.is_empty() {
                refusals.push(Error::WrongAttr { attr: lost });
            }
            if !self.profile.takes(attr) {
                refusals.push(Error::WrongAttr { attr });
            }
        }
        let larger = self.at(page).filter(|leaf| !self.is_base(leaf.size));
        refusals.extend(larger.map(|Leaf { at, size, .. }| Error::Partial { at, size }));
        refusals
    }

    fn refuse_fill(&self, page: Vpn, payload: u64, frame: Pfn) -> Vec<Error> {
        let (mut refusals, at) = (Vec::new(), self.address(page));
        self.refuse_range(&mut refusals, Pages::one(page));
        if self.payload_bits.is_none() {
            refusals.push(Error::NotMapped { at });
        }
        let attr = match self.entry(at) {
            Entry::Mark(Mark::Payload(there, attr)) => {
                if there != payload {
                    refusals.push(Error::Changed { at });
                }
                attr
            }
            Entry::Leaf(Leaf { at, size, .. }) => {
                refusals.push(Error::Occupied { at, size });
                self.profile.implied
            }
            Entry::Empty | Entry::Mark(Mark::Guard) => {
                refusals.push(Error::NotMapped { at });
                self.profile.implied
            }
        };
        self.refuse_frames(&mut refusals, frame, 1, self.space.base(), attr);
        refusals
    }

    /// Adds the errors of the first and the last page that the format cannot encode, and of the first page between them that it
    /// cannot encode.
    fn refuse_frames(
        &self,
        refusals: &mut Vec<Error>,
        first: Pfn,
        frames: usize,
        size: PageSize,
        attr: Attr,
    ) {
        let units = self.units(size);
        let fits = |at: usize| {
            let frame = Pfn::new(at);
            let top = usize::MAX >> self.space.base().shift();
            if at.checked_add(units - 1).is_none_or(|last| last > top) {
                return Err(Error::FrameTooLarge { frame });
            }
            self.profile.stored(frame, size, attr, self.is_base(size)).map(drop)
        };
        // A binary search finds the first frame that is too large, because every later frame is too large as well.
        let (mut low, mut high) = (0, frames.div_ceil(units) - 1);
        let place = |page: usize| first.get().saturating_add(page * units);
        let last = place(high);
        for at in [first.get(), last] {
            if let Err(error) = fits(at) {
                refusals.push(error);
                if matches!(error, Error::FrameTooLarge { .. }) {
                    refusals.push(Error::FrameTooLarge { frame: first });
                }
            }
        }
        if !self.profile.continues(first, Pfn::new(last), size, attr, self.is_base(size)) {
            refusals.push(Error::FrameTooLarge { frame: Pfn::new(last) });
        }
        while low < high {
            let middle = low + (high - low) / 2;
            match fits(place(middle)) {
                Ok(()) => low = middle + 1,
                Err(_) => high = middle,
            }
        }
        if let Err(error @ Error::FrameTooLarge { .. }) = fits(place(low)) {
            refusals.push(error);
        }
    }

    fn refuse_change(&self, pages: Pages, holes: Holes) -> Vec<Error> {
        let mut refusals = Vec::new();
        self.refuse_range(&mut refusals, pages);
        let leaves = self.overlap(pages);
        let cut = leaves.filter(|leaf| self.whole(leaf).intersect(pages) != Some(self.whole(leaf)));
        refusals.extend(cut.map(|Leaf { at, size, .. }| Error::Partial { at, size }));
        if holes == Holes::Refuse {
            refusals.extend(self.hole(pages));
        }
        refusals
    }

    /// Returns the first hole of a range as an error.
    fn hole(&self, pages: Pages) -> Option<Error> {
        let mut next = pages.first();
        for leaf in self.overlap(pages) {
            let whole = self.whole(&leaf);
            if whole.first() > next {
                break;
            }
            next = Vpn::new(whole.last().get() + 1);
        }
        (next <= pages.last()).then(|| Error::NotMapped { at: self.address(next) })
    }

    /// Returns the size of the pages that a leaf of `pages` becomes when they move to the pages from `to` on: its own size, or the largest
    /// that its new place is aligned to.
    fn size_at(&self, leaf: &Leaf, pages: Pages, to: Vpn) -> PageSize {
        let at = self.place_at(leaf.at.vpn(self.space.base()), pages, to);
        let fits = |size: &&PageSize| **size <= leaf.size && at.get() & (self.units(**size) - 1) == 0;
        self.space.sizes().iter().rev().find(fits).copied().unwrap_or(self.space.base())
    }

    /// Returns the new place of a page.
    fn place_at(&self, page: Vpn, pages: Pages, to: Vpn) -> Vpn {
        Vpn::new(to.get().wrapping_add(page.get().wrapping_sub(pages.first().get())))
    }

    fn refuse_move(&self, pages: Pages, to: Vpn) -> Vec<Error> {
        let mut refusals = self.refuse_change(pages, Holes::Skip);
        let Some(target) = Pages::count(to, pages.len()) else {
            refusals.push(Error::OutOfRange { at: self.address(to) });
            return refusals;
        };
        self.refuse_range(&mut refusals, target);
        let both = pages.intersect(target).map(|both| Error::Overlap { at: self.address(both.first()) });
        refusals.extend(both);
        refusals.extend(self.overlap(target).map(|Leaf { at, size, .. }| Error::Occupied { at, size }));
        refusals.extend(self.marks(target).map(|(at, _)| Error::Marked { at }));
        for leaf in self.overlap(pages) {
            let size = self.size_at(&leaf, pages, to);
            if size != leaf.size {
                self.refuse_frames(&mut refusals, leaf.frame, self.units(leaf.size), size, leaf.attr);
            }
        }
        refusals
    }

    fn moved(&self, pages: Pages, to: Vpn) -> Effect {
        let removed: Vec<_> = self.overlap(pages).collect();
        let mut added = Vec::new();
        let mut touched = Vec::new();
        for leaf in &removed {
            let first = self.place_at(leaf.at.vpn(self.space.base()), pages, to);
            let new = Pages::count(first, self.units(leaf.size)).unwrap_or(Pages::one(first));
            added.extend(self.cut(new, self.size_at(leaf, pages, to), leaf.frame, leaf.attr));
            touched.push((self.profile.appears, new));
        }
        let marked = self.marks(pages).flat_map(|(at, mark)| {
            let page = at.vpn(self.space.base());
            [(page, None), (self.place_at(page, pages, to), Some(mark))]
        });
        let marked = marked.collect();
        let mut effect = self.tally(FlushScope::Everywhere, removed, added);
        effect.touched.extend(touched);
        Effect { marked, ..effect }
    }

    fn refuse_resize(&self, pages: Pages, to: PageSize) -> Vec<Error> {
        let mut refusals = Vec::new();
        self.refuse_range(&mut refusals, pages);
        self.refuse_size(&mut refusals, pages, to);
        if !refusals.is_empty() {
            return refusals;
        }
        refusals.extend(self.hole(pages));
        let mut reference: Option<(Pages, Leaf)> = None;
        for leaf in self.overlap(pages) {
            let whole = self.whole(&leaf);
            if leaf.size >= to {
                if whole.intersect(pages) != Some(whole) {
                    refusals.push(Error::Partial { at: leaf.at, size: leaf.size });
                }
                continue;
            }
            let piece = self.page_around(whole.first(), to);
            if whole.first() == piece.first() {
                reference = Some((piece, leaf));
                if !leaf.frame.is_aligned(to, self.space.base()) {
                    refusals.push(Error::NotUniform { at: leaf.at });
                    reference = None;
                } else if let Err(error) = self.profile.stored(leaf.frame, to, leaf.attr, self.is_base(to)) {
                    refusals.push(error);
                }
            } else if let Some((_, first)) = reference.filter(|&(begun, _)| begun == piece) {
                let frame = first.frame.get() + (whole.first().get() - piece.first().get());
                if leaf.frame.get() != frame || (leaf.attr ^ first.attr).intersects(!STATUS) {
                    refusals.push(Error::NotUniform { at: leaf.at });
                    reference = None;
                }
            }
        }
        refusals
    }

    fn refuse_replace(&self, at: VirtAddr, frame: Pfn, attr: Attr) -> Vec<Error> {
        let mut refusals = Vec::new();
        self.refuse_range(&mut refusals, Pages::one(at.vpn(self.space.base())));
        let Some(old) = self.lookup(at) else {
            refusals.push(Error::NotMapped { at });
            return refusals;
        };
        let fixed = (old.attr ^ attr) & self.profile.fixed;
        if !self.profile.takes(attr) {
            refusals.push(Error::WrongAttr { attr });
        } else if !self.profile.breaks_frames && !fixed.is_empty() {
            refusals.push(Error::WrongAttr { attr: fixed });
        }
        if frame.is_aligned(old.size, self.space.base()) {
            let attr = if self.profile.takes(attr) { attr } else { self.profile.implied };
            self.refuse_frames(&mut refusals, frame, self.units(old.size), old.size, attr);
        } else {
            refusals.push(Error::MisalignedFrame { frame, size: old.size });
        }
        refusals
    }

    /// Returns the base pages of the page of `size` that contains `page`.
    fn page_around(&self, page: Vpn, size: PageSize) -> Pages {
        let first = Vpn::new(page.get() & !(self.units(size) - 1));
        Pages::count(first, self.units(size)).unwrap_or(Pages::one(first))
    }

    /// Returns the leaves of `size` that map `pages` to the frames from `frame` on.
    fn cut(&self, pages: Pages, size: PageSize, frame: Pfn, attr: Attr) -> Vec<Leaf> {
        let units = self.units(size);
        (0..pages.len() / units)
            .map(|page| {
                let frame = Pfn::new(frame.get() + page * units);
                let attr = self.profile.stored(frame, size, attr, self.is_base(size)).unwrap_or(attr);
                Leaf { at: self.address(Vpn::new(pages.first().get() + page * units)), size, frame, attr }
            })
            .collect()
    }

    fn protected(&self, leaf: &Leaf, change: Change) -> Leaf {
        let attr = self.profile.changed(leaf.size, leaf.attr, self.is_base(leaf.size), change);
        Leaf { attr, ..*leaf }
    }

    /// Returns the effect of replacing whole leaves.
    fn tally(&self, scope: FlushScope, removed: Vec<Leaf>, added: Vec<Leaf>) -> Effect {
        let pages = removed.iter().map(|leaf| self.units(leaf.size)).sum();
        let touched = removed.iter().map(|leaf| (scope, self.whole(leaf))).collect();
        Effect { pages, touched, removed, added, marked: Vec::new() }
    }

    fn replaced(&self, at: VirtAddr, frame: Pfn, attr: Attr) -> Effect {
        let removed: Vec<_> = self.lookup(at).into_iter().collect();
        let added = removed.iter().flat_map(|old| self.cut(self.whole(old), old.size, frame, attr)).collect();
        // Where the entry was empty in between, every CPU has flushed the old leaf already.
        let scope = if self.profile.breaks_frames { self.profile.appears } else { FlushScope::Everywhere };
        self.tally(scope, removed, added)
    }

    fn resized(&self, pages: Pages, to: PageSize) -> Effect {
        let mut effect = Effect::default();
        let mut next = pages.first();
        while let Some(first) = self.at(next) {
            let piece = self.page_around(next, first.size.max(to));
            if first.size != to {
                let old: Vec<_> = self.overlap(piece).collect();
                let status = old.iter().fold(Attr::empty(), |all, leaf| all | leaf.attr & STATUS);
                effect.added.extend(self.cut(piece, to, first.frame, first.attr | status));
                effect.removed.extend(old);
                effect.touched.push((FlushScope::Everywhere, piece));
            }
            if piece.last() >= pages.last() {
                break;
            }
            next = Vpn::new(piece.last().get() + 1);
        }
        effect.pages = pages.len();
        effect
    }
}

/// Returns the flush scope of a change. Added rights need no flush on other CPUs: an access there faults, and the CPU loads the
/// entry again. The kernel's own bits are in no TLB.
fn scope(change: Change) -> FlushScope {
    let rights = Attr::READ | Attr::WRITE | Attr::EXEC | Attr::ACCESSED | Attr::DIRTY;
    let (lost, new) = (change.clear - change.set - Attr::SOFTWARE, change.set - Attr::SOFTWARE);
    match (lost.is_empty() && rights.contains(new), new.is_empty()) {
        (true, true) => FlushScope::Nowhere,
        (true, false) => FlushScope::Local,
        (false, _) => FlushScope::Everywhere,
    }
}
