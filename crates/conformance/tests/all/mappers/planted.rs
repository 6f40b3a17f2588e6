//! A mapper of three levels over frames of the test, with a bug or none: what the table of mappers in docs/own-mapper.md says.

use std::cell::Cell;
use std::ptr;

use tlbkit_addr::PageSize;
use tlbkit_conformance::foreign::{Foreign, frames};
use tlbkit_pagetable::{Half, Space};

thread_local! {
    /// The bug that the mapper has.
    pub(crate) static BUG: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Bugs of the mapper: what is wrong, and a part of what the test says.
macro_rules! bugs {
    ($($bug:ident: $wrong:literal, $says:literal;)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Bug { $($bug),+ }

        pub(crate) const BUGS: &[(Bug, &str, &str)] = &[$((Bug::$bug, $wrong, $says)),+];
    };
}

bugs! {
    ProtectsNothing: "a protect of a large page to read-only says that it is done, and changes nothing", "it should be mapped by the";
    ProtectsNode: "a protect of a small page changes its neighbour, too", "it should be mapped by the";
    RefusedLeaks: "a map that gets no memory for its second node loses the first", "failed, and the map with it, which gives back what it took: the mapper holds";
    RefusedLinks: "a map that gets no memory for its second node leaves the first in the table",
        "failed, and the map with it, which gives back what it took: the mapper holds";
    RefusedKeeps: "the same of a mapper that keeps empty nodes, and does not use the first the next time",
        "does not use what the refused ones have kept";
    TakesFirst: "a map takes a node before it finds a page in the way, and loses it", "the map was refused, which gives back what it took: the mapper holds";
    KeepsEmptied: "an emptied node stays, though the mapper says that none does", "says that no empty node stays: the mapper holds";
    DropsRoot: "a mapper that is dropped gives back its root alone", "of its frames were not given back";
    GivenTwice: "an emptied node is given back twice", "is given back, and was not taken, or given back before";
    FlushesHalf: "the two flushes of a large page leave out what is between them", "must be flushed";
    FlushesNothing: "a flush names the page, and no bytes", "asked for flushes of [0x0 bytes";
    VisitsTwice: "an iteration meets each page twice", "a visit of";
    VisitsForever: "an iteration does not end", "a visit has met 1048576 pages, and does not end";
    LastPage: "the last page of the space is refused", "ends with the last page of its half of the space";
    OtherSize: "an unmap of a small page in a large one takes the large one away", "and should have been refused";
    WrongSplit: "a large page is translated without the low bits of its frame's offset", "is translated to";
    WrongSpot: "one page in the midst of a large one is translated to its neighbour", "is translated to";
    HugeSpot: "the same in the midst of a page of 1 GiB", "is translated to";
    WrongOnce: "the first page that is mapped after a protect gets the other right, once", "it should be mapped by the";
    HugeProtects: "a protect of a page of 1 GiB changes its frame", "is translated to";
    LargeKeeps: "a protect of a page of 2 MiB gives no right", "it should be mapped by the";
    DropsEmpty: "a mapper that is dropped gives back its root and the nodes that hold no page", "of its frames were not given back";
    Hangs: "an unmap of the last page of the space never comes back", "the mapper has not come back for";
}

/// Tells whether the mapper has a bug.
fn has(bug: Bug) -> bool {
    BUG.get() == Some(bug)
}

const LEVELS: usize = 3;
const SLOTS: usize = 512;
const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const LEAF: u64 = 4;
const FRAME: u64 = !0xfff;
const LARGE: PageSize = PageSize::from_shift(30).unwrap();
const SIZES: [PageSize; LEVELS] = [LARGE, PageSize::M2, PageSize::K4];

pub(crate) struct Radix {
    root: usize,
    flushed: Vec<(usize, usize)>,
    /// Whether the bug `WrongOnce` is due.
    is_due: bool,
}

fn index(at: usize, level: usize) -> usize {
    at >> SIZES[level].shift() & (SLOTS - 1)
}

fn entry(node: usize, index: usize) -> u64 {
    // SAFETY: a frame of the mapper's, which has this many words.
    unsafe { ptr::with_exposed_provenance::<u64>(node).add(index).read() }
}

fn set(node: usize, index: usize, entry: u64) {
    // SAFETY: a frame of the mapper's, which has this many words.
    unsafe { ptr::with_exposed_provenance_mut::<u64>(node).add(index).write(entry) };
}

fn take() -> Option<usize> {
    let node = frames::take()?;
    (0..SLOTS).for_each(|index| set(node, index, 0));
    Some(node)
}

fn link(entry: u64) -> Option<usize> {
    (entry & PRESENT != 0 && entry & LEAF == 0).then_some((entry & FRAME) as usize)
}

fn is_empty(node: usize) -> bool {
    (0..SLOTS).all(|index| entry(node, index) == 0)
}

impl Radix {
    /// Returns the node, the slot and the level of the leaf that maps an address.
    fn find(&self, at: usize) -> Option<(usize, usize, usize)> {
        let mut node = self.root;
        for level in 0..LEVELS {
            let found = entry(node, index(at, level));
            match link(found) {
                Some(below) => node = below,
                None => return (found & LEAF != 0).then_some((node, index(at, level), level)),
            }
        }
        None
    }

    /// Maps under a node, and tells whether that was done. New nodes are linked when all is done.
    fn map_under(node: usize, level: usize, at: usize, size: PageSize, leaf: u64) -> bool {
        let (slot, found) = (index(at, level), entry(node, index(at, level)));
        if SIZES[level] == size {
            if found == 0 {
                set(node, slot, leaf);
            }
            return found == 0;
        }
        if found & LEAF != 0 {
            if has(Bug::TakesFirst) {
                take();
            }
            return false;
        }
        if let Some(below) = link(found) {
            return Self::map_under(below, level + 1, at, size, leaf);
        }
        let Some(below) = take() else { return false };
        if has(Bug::RefusedLinks) {
            set(node, slot, below as u64 | PRESENT);
        }
        let done = Self::map_under(below, level + 1, at, size, leaf);
        if done {
            set(node, slot, below as u64 | PRESENT);
        } else if !matches!(BUG.get(), Some(Bug::RefusedLeaks | Bug::RefusedKeeps | Bug::RefusedLinks)) {
            frames::give(below);
        }
        done
    }

    /// Frees the nodes on the way to an address that are empty. Tells whether the node is.
    fn free_empty(node: usize, level: usize, at: usize) -> bool {
        let slot = index(at, level);
        if let Some(below) = link(entry(node, slot)).filter(|_| level + 1 < LEVELS)
            && Self::free_empty(below, level + 1, at)
        {
            set(node, slot, 0);
            frames::give(below);
            if has(Bug::GivenTwice) {
                frames::give(below);
            }
        }
        is_empty(node)
    }

    fn visit_under(node: usize, level: usize, at: usize, visit: &mut dyn FnMut(usize, usize, PageSize)) {
        for slot in 0..SLOTS {
            let (found, at) = (entry(node, slot), at + (slot << SIZES[level].shift()));
            if let Some(below) = link(found) {
                Self::visit_under(below, level + 1, at, visit);
            } else if found != 0 {
                visit(at, (found & FRAME) as usize, SIZES[level]);
                if has(Bug::VisitsTwice) {
                    visit(at, (found & FRAME) as usize, SIZES[level]);
                }
                while has(Bug::VisitsForever) {
                    visit(at, (found & FRAME) as usize, SIZES[level]);
                }
            }
        }
    }

    fn free_all(node: usize) {
        for slot in 0..if has(Bug::DropsRoot) { 0 } else { SLOTS } {
            if let Some(below) = link(entry(node, slot)) {
                Self::free_all(below);
            }
        }
        if has(Bug::DropsEmpty) && (0..SLOTS).any(|slot| entry(node, slot) & LEAF != 0) {
            return;
        }
        frames::give(node);
    }

    fn flush(&mut self, at: usize, size: PageSize) {
        if has(Bug::FlushesNothing) {
            self.flushed.push((at, 0));
        } else if size == PageSize::K4 {
            self.flushed.push((at, size.bytes()));
        } else {
            let half = size.bytes() / 2;
            let gap = if has(Bug::FlushesHalf) { PageSize::K4.bytes() } else { 0 };
            self.flushed.extend([(at + half, half), (at, half - gap)]);
        }
    }
}

impl Drop for Radix {
    fn drop(&mut self) {
        Self::free_all(self.root);
    }
}

impl Foreign for Radix {
    fn new() -> Self {
        Self { root: take().expect("a first frame"), flushed: Vec::new(), is_due: false }
    }

    fn space(&self) -> Space {
        Space::new(39, Half::Lower, PageSize::K4, &[PageSize::K4, PageSize::M2, LARGE])
    }

    fn map(&mut self, at: usize, to: usize, size: PageSize, writable: bool) -> bool {
        if has(Bug::LastPage) && at + size.bytes() == 1 << 39 {
            return false;
        }
        let leaf = to as u64 | PRESENT | LEAF | if writable { WRITABLE } else { 0 };
        let leaf = if std::mem::take(&mut self.is_due) { leaf ^ WRITABLE } else { leaf };
        Self::map_under(self.root, 0, at, size, leaf)
    }

    fn unmap(&mut self, at: usize, size: PageSize) -> bool {
        while has(Bug::Hangs) && at + size.bytes() == 1 << 39 {
            std::thread::yield_now();
        }
        let Some((node, slot, level)) = self.find(at) else { return false };
        if SIZES[level] != size && !has(Bug::OtherSize) {
            return false;
        }
        set(node, slot, 0);
        if !matches!(BUG.get(), Some(Bug::KeepsEmptied | Bug::DropsRoot | Bug::RefusedKeeps)) {
            Self::free_empty(self.root, 0, at);
        }
        self.flush(at & !SIZES[level].mask(), SIZES[level]);
        true
    }

    fn translate(&self, at: usize) -> Option<usize> {
        let (node, slot, level) = self.find(at)?;
        let offset = at & SIZES[level].mask();
        let offset = if has(Bug::WrongSplit) { at & PageSize::K4.mask() } else { offset };
        let is_spot = match BUG.get() {
            Some(Bug::WrongSpot) => level == 1 && offset >> 12 == 300,
            Some(Bug::HugeSpot) => level == 0 && offset >> 12 == 123_457,
            _ => false,
        };
        let offset = if is_spot { offset + PageSize::K4.bytes() } else { offset };
        Some((entry(node, slot) & FRAME) as usize + offset)
    }

    fn protect(&mut self, at: usize, size: PageSize, writable: bool) -> Option<bool> {
        let Some((node, slot, level)) = self.find(at).filter(|&(_, _, level)| SIZES[level] == size) else {
            return Some(false);
        };
        self.is_due = has(Bug::WrongOnce);
        if has(Bug::HugeProtects) && level == 0 {
            set(node, slot, entry(node, slot) ^ 1 << SIZES[level].shift());
        }
        let keeps = has(Bug::LargeKeeps) && level == 1 && writable;
        if !(keeps || has(Bug::ProtectsNothing) && level + 1 < LEVELS && !writable) {
            let change = |slot: usize| {
                let found = entry(node, slot) & !WRITABLE;
                set(node, slot, if writable { found | WRITABLE } else { found });
            };
            change(slot);
            if has(Bug::ProtectsNode) && entry(node, slot ^ 1) & LEAF != 0 {
                change(slot ^ 1);
            }
        }
        self.flush(at, size);
        Some(true)
    }

    fn writable(&self, at: usize) -> Option<bool> {
        self.find(at).map(|(node, slot, _)| entry(node, slot) & WRITABLE != 0)
    }

    fn visit(&self, visit: &mut dyn FnMut(usize, usize, PageSize)) -> bool {
        Self::visit_under(self.root, 0, 0, visit);
        true
    }

    fn flushed(&mut self) -> Option<Vec<(usize, usize)>> {
        Some(std::mem::take(&mut self.flushed))
    }

    fn keeps_empty(&self) -> bool {
        matches!(BUG.get(), Some(Bug::RefusedKeeps | Bug::DropsRoot))
    }

    fn refuses_other_sizes(&self) -> bool {
        true
    }
}
