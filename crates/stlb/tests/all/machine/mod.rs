//! A machine to be wrong on: page tables, a hardware TLB, and a kernel that invalidates, or leaves one kind out.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use tlbkit_addr::{Asid, PageSize, Pages, VirtAddr, Vpn};
use tlbkit_stlb::{AsidTag, Asids, Context, Counters, EntryLayout, Invalidate, Probe, folded};

#[cfg(target_has_atomic = "64")]
mod of_many;
mod subject;

#[cfg(target_has_atomic = "64")]
pub(crate) use of_many::OfMany;
pub(crate) use subject::{Alone, Both, Prefetching};

/// One 4 KiB page for each entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Single;

/// A pair of 4 KiB pages for each entry, spread by the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Paired;

/// What the kernel numbers by itself (8..=9) and what [`Asids`] numbers (1..=3) in 4 bits.
const ASID_BITS: u32 = 4;

impl EntryLayout for Single {
    type Tag = u64;
    type Data = u64;
    type Count = Counters;
    const BASE: PageSize = PageSize::K4;
    const UNIT: PageSize = PageSize::K4;
    const ASID_BITS: u32 = ASID_BITS;
}

impl EntryLayout for Paired {
    type Tag = u64;
    type Data = u64;
    type Count = Counters;
    const BASE: PageSize = PageSize::K4;
    const UNIT: PageSize = PageSize::from_shift(13).unwrap();
    const ASID_BITS: u32 = ASID_BITS;
    fn index(unit: usize, asid: usize) -> usize {
        folded(unit, asid)
    }
}

/// What is tested: a cache of any organization, with or without prefetching.
pub(crate) trait Subject<L: EntryLayout>: Invalidate<L> {
    fn find(&mut self, at: VirtAddr, space: AsidTag<L>) -> Option<u64>;
    /// After a `find` that failed and the walk that followed.
    fn fill(&mut self, at: VirtAddr, space: AsidTag<L>, data: u64);
    fn record(&mut self, _: VirtAddr, _: AsidTag<L>, _: &mut Tlb) {}
    fn prefetch(&mut self, _: VirtAddr, _: AsidTag<L>, _: &mut Tlb) -> Option<u64> {
        None
    }
}

/// The kinds of invalidation that a kernel could forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Map,
    Unmap,
    Remap,
    Range,
    Promote,
    Split,
    Global,
    /// Of an address space that died, before its number is used again.
    Space,
    /// Of everything, when the numbers have run out.
    RollOver,
}

impl Kind {
    pub(crate) const ALL: [Self; 9] = [
        Self::Map,
        Self::Unmap,
        Self::Remap,
        Self::Range,
        Self::Promote,
        Self::Split,
        Self::Global,
        Self::Space,
        Self::RollOver,
    ];
}

/// Pages 0..PAGES belong to a space; GLOBAL..GLOBAL + 8 to all.
pub(crate) const PAGES: usize = 24;
pub(crate) const GLOBAL: usize = if usize::BITS > 32 { 1 << 20 } else { 1 << 19 };
const BLOCK: usize = 8;
/// Spaces 0 and 1 have numbers of [`Asids`], 2 and 3 fixed ones.
pub(crate) const SPACES: usize = 4;

/// One step: of a space (or of all), at a page.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Access(usize, usize),
    AccessGlobal(usize, usize),
    Map(usize, usize),
    Unmap(usize, usize),
    Remap(usize, usize),
    UnmapRange(usize, usize, usize),
    RemapGlobal(usize),
    Promote(usize, usize),
    Split(usize, usize),
    Exit(usize),
    Record(usize, usize),
    Prefetch(usize, usize),
}

pub(crate) fn op() -> impl Strategy<Value = Op> {
    let space = 0..SPACES;
    let page = 0..PAGES;
    let at = (space.clone(), page.clone());
    let predicted = (space.clone(), prop_oneof![3 => page.clone(), 1 => GLOBAL..GLOBAL + 8]);
    prop_oneof![
        12 => at.clone().prop_map(|(s, p)| Op::Access(s, p)),
        4 => (space.clone(), 0..8usize).prop_map(|(s, p)| Op::AccessGlobal(s, p)),
        4 => at.clone().prop_map(|(s, p)| Op::Map(s, p)),
        1 => at.clone().prop_map(|(s, p)| Op::Unmap(s, p)),
        2 => at.clone().prop_map(|(s, p)| Op::Remap(s, p)),
        1 => (space.clone(), page.clone(), 1..40usize).prop_map(|(s, p, n)| Op::UnmapRange(s, p, n)),
        1 => (0..8usize).prop_map(Op::RemapGlobal),
        2 => at.clone().prop_map(|(s, p)| Op::Promote(s, p)),
        2 => at.clone().prop_map(|(s, p)| Op::Split(s, p)),
        1 => space.prop_map(Op::Exit),
        6 => predicted.clone().prop_map(|(s, p)| Op::Record(s, p)),
        6 => predicted.prop_map(|(s, p)| Op::Prefetch(s, p)),
    ]
}

/// Any hit that the table would not give.
#[derive(Debug)]
pub(crate) struct Stale;

/// A mapping has a stamp that no other mapping ever has, and reaches over one page or a whole block.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    stamp: u32,
    block: bool,
}

pub(crate) struct Machine<'s, L: EntryLayout> {
    table: BTreeMap<(usize, usize), Mapping>,
    tlb: Tlb,
    contexts: [Context<L>; SPACES],
    /// Fixed numbers whose space has died since they were last used.
    dead: [bool; SPACES],
    asids: Asids<L>,
    subject: &'s mut dyn Subject<L>,
    skip: Option<Kind>,
    stamps: u32,
}

impl<'s, L: EntryLayout<Data = u64>> Machine<'s, L> {
    pub(crate) fn new(subject: &'s mut dyn Subject<L>, skip: Option<Kind>) -> Self {
        Self {
            table: BTreeMap::new(),
            tlb: Tlb::default(),
            contexts: Default::default(),
            dead: [false; SPACES],
            asids: Asids::new(1, 3).unwrap(),
            subject,
            skip,
            stamps: 0,
        }
    }

    pub(crate) fn step(&mut self, op: Op) -> Result<(), Stale> {
        match op {
            Op::Access(id, page) => return self.access(id, page),
            Op::AccessGlobal(id, page) => return self.access(id, GLOBAL + page),
            Op::Map(id, page) => {
                if !self.table.contains_key(&(id, page)) {
                    self.map(id, page..page + 1, false);
                    self.changed(Kind::Map, id, page, 1);
                }
            }
            Op::Unmap(id, page) => {
                self.split(id, page);
                self.table.remove(&(id, page));
                self.changed(Kind::Unmap, id, page, 1);
            }
            Op::Remap(id, page) => {
                if self.table.contains_key(&(id, page)) {
                    self.split(id, page);
                    self.map(id, page..page + 1, false);
                    self.changed(Kind::Remap, id, page, 1);
                }
            }
            Op::UnmapRange(id, page, pages) => {
                self.split(id, page);
                self.split(id, page + pages - 1);
                for page in page..page + pages {
                    self.table.remove(&(id, page));
                }
                self.changed(Kind::Range, id, page, pages);
            }
            Op::RemapGlobal(page) => {
                let page = GLOBAL + page;
                self.map(usize::MAX, page..page + 1, false);
                self.tlb.0.retain(|entry| entry.page / 2 != page / 2);
                if self.skip != Some(Kind::Global) {
                    self.subject.invalidate_global(Pages::one(Vpn::new(page)));
                }
            }
            Op::Promote(id, page) => {
                let first = page - page % BLOCK;
                self.map(id, first..first + BLOCK, true);
                self.changed(Kind::Promote, id, first, BLOCK);
            }
            Op::Split(id, page) => self.split(id, page),
            Op::Exit(id) => {
                self.table.retain(|&(owner, _), _| owner != id);
                self.contexts[id] = Context::default();
                self.dead[id] = true;
            }
            Op::Record(id, page) => {
                self.access(id, page)?; // what a process is about to send it has just touched
                let space = self.activate(id);
                self.subject.record(address(page), space, &mut self.tlb);
            }
            Op::Prefetch(id, page) => {
                let space = self.activate(id);
                if let Some(data) = self.subject.prefetch(address(page), space, &mut self.tlb) {
                    assert!(
                        self.tlb.lookup(space.asid(), page).is_none(),
                        "a duplicate of what the TLB holds"
                    );
                    self.check(data, id, page)?;
                    self.load(space, page, data);
                }
            }
        }
        Ok(())
    }

    fn access(&mut self, id: usize, page: usize) -> Result<(), Stale> {
        let space = self.activate(id);
        if let Some(data) = self.tlb.lookup(space.asid(), page) {
            return self.check(data, id, page);
        }
        let at = address(page);
        let data = match self.subject.find(at, space) {
            Some(data) => data,
            None => {
                let data = self.walk(id, page);
                if stamp::<L>(data, page) == 0 {
                    return Ok(()); // a page fault
                }
                self.subject.fill(at, space, data);
                data
            }
        };
        self.check(data, id, page)?;
        self.load(space, page, data);
        Ok(())
    }

    /// Returns the space's number of today.
    fn activate(&mut self, id: usize) -> AsidTag<L> {
        if id < 2 {
            let mut caches =
                (Everything(&mut self.tlb), Maybe(self.subject, self.skip != Some(Kind::RollOver)));
            return self.asids.activate(&mut self.contexts[id], &mut caches);
        }
        let space = AsidTag::new(Asid::new(6 + id as u16, ASID_BITS).unwrap()).unwrap();
        if std::mem::take(&mut self.dead[id]) {
            self.tlb.0.retain(|entry| entry.asid != space.asid());
            if self.skip != Some(Kind::Space) {
                self.subject.invalidate_space(space);
            }
        }
        space
    }

    fn map(&mut self, id: usize, pages: std::ops::Range<usize>, block: bool) {
        self.stamps += 1;
        for page in pages {
            self.table.insert((id, page), Mapping { stamp: self.stamps, block });
        }
    }

    fn split(&mut self, id: usize, page: usize) {
        if !self.table.get(&(id, page)).is_some_and(|mapping| mapping.block) {
            return;
        }
        let first = page - page % BLOCK;
        for page in first..first + BLOCK {
            self.map(id, page..page + 1, false);
        }
        self.changed(Kind::Split, id, first, BLOCK);
    }

    /// The kernel's duty after a change.
    fn changed(&mut self, kind: Kind, id: usize, page: usize, pages: usize) {
        // A dead space or one of an earlier generation has no number to forget anything under.
        let space = self.activate(id);
        let unit = L::UNIT.pages(PageSize::K4).unwrap();
        let (first, last) = (page / unit, (page + pages - 1) / unit);
        self.tlb.0.retain(|entry| {
            entry.asid != space.asid() || !entry.touches(first * unit, last * unit + unit - 1)
        });
        if self.skip != Some(kind) {
            let pages = Pages::count(Vpn::new(page), pages).unwrap();
            self.subject.invalidate_pages(space, pages);
        }
    }

    /// Returns the entry for the unit around `page`: the stamps of its pages.
    fn walk(&self, id: usize, page: usize) -> u64 {
        let id = if page >= GLOBAL { usize::MAX } else { id };
        let of = |page| self.table.get(&(id, page)).map_or(0, |mapping| u64::from(mapping.stamp));
        if L::UNIT == PageSize::K4 { of(page) } else { of(page & !1) | of(page | 1) << 32 }
    }

    /// The whole entry is what counts: the hardware gets all of it.
    fn check(&self, data: u64, id: usize, page: usize) -> Result<(), Stale> {
        if data == self.walk(id, page) { Ok(()) } else { Err(Stale) }
    }

    /// Loads the TLB; a superpage with all of its reach.
    fn load(&mut self, space: AsidTag<L>, page: usize, data: u64) {
        // What the entry itself says about its size is what the mapping was when the stamp was given.
        let block =
            self.table.values().any(|m| m.block && u64::from(m.stamp) == u64::from(stamp::<L>(data, page)));
        let pages = if block { BLOCK } else { L::UNIT.pages(PageSize::K4).unwrap() };
        self.tlb.load(Loaded { asid: space.asid(), page: page - page % pages, pages, data });
    }
}

fn address(page: usize) -> VirtAddr {
    Vpn::new(page).address(PageSize::K4)
}

fn stamp<L: EntryLayout>(data: u64, page: usize) -> u32 {
    if L::UNIT != PageSize::K4 && page % 2 == 1 { (data >> 32) as u32 } else { data as u32 }
}

/// A fully associative TLB of eight entries, first in, first out.
#[derive(Debug, Default)]
pub(crate) struct Tlb(VecDeque<Loaded>);

#[derive(Debug)]
struct Loaded {
    asid: usize,
    page: usize,
    pages: usize,
    data: u64,
}

impl Loaded {
    fn touches(&self, first: usize, last: usize) -> bool {
        self.page <= last && first < self.page + self.pages
    }
}

impl Tlb {
    fn lookup(&self, asid: usize, page: usize) -> Option<u64> {
        self.0.iter().find(|entry| entry.asid == asid && entry.touches(page, page)).map(|entry| entry.data)
    }

    fn load(&mut self, entry: Loaded) {
        let last = entry.page + entry.pages - 1;
        assert!(
            !self.0.iter().any(|old| old.asid == entry.asid && old.touches(entry.page, last)),
            "duplicate"
        );
        if self.0.len() == 8 {
            self.0.pop_front();
        }
        self.0.push_back(entry);
    }
}

impl<L: EntryLayout<Data = u64>> Probe<L> for Tlb {
    fn probe(&mut self, at: VirtAddr, space: AsidTag<L>) -> Option<u64> {
        self.lookup(space.asid(), at.get() >> 12)
    }
}

/// The TLB's flush of everything at a roll-over; the machine does the others itself.
struct Everything<'a>(&'a mut Tlb);

impl<L: EntryLayout> Invalidate<L> for Everything<'_> {
    fn invalidate_pages(&mut self, _: AsidTag<L>, _: Pages) {}
    fn invalidate_global(&mut self, _: Pages) {}
    fn invalidate_space(&mut self, _: AsidTag<L>) {}
    fn invalidate_all(&mut self) {
        self.0.0.clear();
    }
}

/// A cache that may not be told.
struct Maybe<'a, L: EntryLayout>(&'a mut dyn Subject<L>, bool);

impl<L: EntryLayout> Invalidate<L> for Maybe<'_, L> {
    fn invalidate_pages(&mut self, _: AsidTag<L>, _: Pages) {}
    fn invalidate_global(&mut self, _: Pages) {}
    fn invalidate_space(&mut self, _: AsidTag<L>) {}
    fn invalidate_all(&mut self) {
        if self.1 {
            self.0.invalidate_all();
        }
    }
}
