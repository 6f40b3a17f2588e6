//! A mapper of three levels over frames of the test, with a bug or none: what the table of mappers in docs/own-mapper.md says.

use std::cell::Cell;
use std::ptr;

use tlbkit_addr::{Attr, PageSize};
use tlbkit_conformance::foreign::{Flushed, Foreign, Mmu, frames};
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
    ProtectsNode: "a protect of a small page changes its neighbour, too", "after store 2 of the call";
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
    WrongOnce: "the first page that is mapped after a protect gets the other right, once", "becomes translated to";
    HugeProtects: "a protect of a page of 1 GiB changes its frame", "is translated to";
    LargeKeeps: "a protect of a page of 2 MiB gives no right", "it should be mapped by the";
    DropsEmpty: "a mapper that is dropped gives back its root and the nodes that hold no page", "of its frames were not given back";
    SplitLoses: "a split of a large page loses the last of the small ones", "after store 512 of the call";
    FreedBeforeFlush: "an emptied node is given back before the flush", "is given back before a flush";
    JoinedUnlike: "a join does not compare the rights of pages", "it succeeded, but";
    DirtyLost: "a protect clears the bits that hardware has set", "it should be mapped by the";
    UpperAliased: "the upper half of the space is that of the lower one", "the same place in the other half";
    LinkedEarly: "a node is linked before its entries are stored", "after store 1 of the call";
    ReplacedTwice: "a replace empties the entry before it stores the new one", "after store 1 of the call";
    JoinedClean: "a join keeps the dirty bit of the first page alone", "it should be mapped by the";
    ProtectStride: "a protect of a range of more than 2 MiB flushes whole 2 MiB alone", "must be flushed";
    UnmapStride: "an unmap of such a range does the same", "must be flushed";
    LateNode: "the second new node of a range begins a page late", "leaves, and";
    Hangs: "an unmap of the last page of the space never comes back", "the mapper has not come back for";
}

/// Bugs that the test says it cannot find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unseen {
    /// A walk of the mapper's own loads each entry twice.
    ReadsTwice,
    /// A range that is refused has been mapped up to the page that is in the way.
    MapsUpTo,
}

thread_local! {
    /// Such a bug.
    pub(crate) static UNSEEN: Cell<Option<Unseen>> = const { Cell::new(None) };
}

/// What the mapper says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Says {
    RefusesLast,
    KeepsRefused,
    Breaks,
}

thread_local! {
    /// That which it says.
    pub(crate) static SAYS: Cell<Option<Says>> = const { Cell::new(None) };
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
const SIZES: [PageSize; LEVELS] = [PageSize::G1, PageSize::M2, PageSize::K4];
const M2: usize = PageSize::M2.bytes();

/// The bits of an entry that are attributes.
const BITS: [(u64, Attr); 5] =
    [(WRITABLE, Attr::WRITE), (8, Attr::EXEC), (16, Attr::USER), (32, Attr::ACCESSED), (64, Attr::DIRTY)];
const STATUS: u64 = 32 | 64;
const RIGHTS: u64 = WRITABLE | 8 | 16;

fn bits(attr: Attr) -> u64 {
    BITS.iter().filter(|(_, of)| attr.contains(*of)).fold(0, |bits, (bit, _)| bits | bit)
}

fn attr(entry: u64) -> Attr {
    BITS.iter().filter(|(bit, _)| entry & bit != 0).fold(Attr::READ, |attr, (_, of)| attr | *of)
}

/// The walk of the hardware.
fn walk(root: usize, at: usize, load: &mut dyn FnMut(usize) -> u64) -> Option<(usize, Attr)> {
    let mut node = root;
    for level in 0..LEVELS {
        let found = load(node + index(at, level) * 8);
        match link(found) {
            Some(below) if level + 1 < LEVELS => node = below,
            _ => {
                let to = (found & FRAME) as usize + (at & SIZES[level].mask());
                return (found & LEAF != 0).then(|| (to, attr(found)));
            }
        }
    }
    None
}

pub(crate) struct Radix {
    root: usize,
    /// Whether the bug `WrongOnce` is due.
    is_due: bool,
}

fn index(at: usize, level: usize) -> usize {
    let slots = if level == 0 && has(Bug::UpperAliased) { SLOTS / 2 } else { SLOTS };
    at >> SIZES[level].shift() & (slots - 1)
}

fn entry(node: usize, index: usize) -> u64 {
    // SAFETY: a frame of the mapper's, which has this many words.
    unsafe { ptr::with_exposed_provenance::<u64>(node).add(index).read() }
}

fn set(node: usize, index: usize, entry: u64) {
    // SAFETY: a frame of the mapper's, which has this many words.
    unsafe { ptr::with_exposed_provenance_mut::<u64>(node).add(index).write(entry) };
    frames::stored();
}

fn take() -> Option<usize> {
    let node = frames::take()?;
    // SAFETY: a frame of the mapper's, which nothing leads to.
    unsafe { ptr::write_bytes(ptr::with_exposed_provenance_mut::<u64>(node), 0, SLOTS) };
    Some(node)
}

fn link(entry: u64) -> Option<usize> {
    (entry & PRESENT != 0 && entry & LEAF == 0).then_some((entry & FRAME) as usize)
}

/// Returns the words of a node as they are now.
fn words(node: usize) -> [u64; SLOTS] {
    // SAFETY: a frame of the mapper's, which has this many words.
    unsafe { ptr::with_exposed_provenance::<[u64; SLOTS]>(node).read() }
}

fn is_empty(node: usize) -> bool {
    words(node) == [0; SLOTS]
}

impl Radix {
    /// Returns the node, the slot and the level of the leaf that maps an address.
    fn find(&self, at: usize) -> Option<(usize, usize, usize)> {
        let mut node = self.root;
        for level in 0..LEVELS {
            let mut found = entry(node, index(at, level));
            if UNSEEN.get() == Some(Unseen::ReadsTwice) {
                found = entry(node, index(at, level));
            }
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
        if has(Bug::RefusedLinks) || has(Bug::LinkedEarly) {
            set(node, slot, below as u64 | PRESENT);
        }
        let done = Self::map_under(below, level + 1, at, size, leaf);
        if done {
            set(node, slot, below as u64 | PRESENT);
        } else if !matches!(BUG.get(), Some(Bug::RefusedLeaks | Bug::RefusedKeeps | Bug::RefusedLinks)) {
            if has(Bug::LinkedEarly) {
                set(node, slot, 0);
            }
            frames::give(below);
        }
        done
    }

    /// Tells whether there is a last-level node for an address.
    fn has_node(&self, at: usize) -> bool {
        let middle = link(entry(self.root, index(at, 0)));
        middle.is_some_and(|node| link(entry(node, index(at, 1))).is_some())
    }

    /// Returns the places of the leaves of a range, each with its address.
    fn leaves(&self, at: usize, bytes: usize) -> Vec<(usize, (usize, usize, usize))> {
        let (mut found, mut done) = (Vec::new(), 0);
        while done < bytes {
            let Some(place) = self.find(at + done) else { break };
            found.push((at + done, place));
            done += SIZES[place.2].bytes();
        }
        found
    }

    /// Flushes a range, or with a bug whole 2 MiB of it.
    fn flush_range(at: usize, bytes: usize, bug: Bug) {
        let told = if has(bug) && bytes > M2 { bytes & !(M2 - 1) } else { bytes };
        frames::flush(Flushed::Bytes(at, told));
    }

    /// Splits a leaf into those of the next level.
    fn split(node: usize, slot: usize, level: usize) -> bool {
        let (old, size) = (entry(node, slot), SIZES[level + 1]);
        let Some(below) = take() else { return false };
        let new = below as u64 | PRESENT;
        if has(Bug::LinkedEarly) {
            set(node, slot, new);
        }
        for part in 0..SLOTS - usize::from(has(Bug::SplitLoses)) {
            set(below, part, old + (part * size.bytes()) as u64);
        }
        set(node, slot, new);
        true
    }

    /// Joins the leaves of a node.
    fn join(node: usize, slot: usize, level: usize, at: usize) -> bool {
        let Some(below) = link(entry(node, slot)) else { return false };
        let (first, small) = (entry(below, 0), SIZES[level + 1]);
        let mut status = 0;
        for part in 0..SLOTS {
            let found = entry(below, part);
            let is_next = found & FRAME == (first & FRAME) + (part * small.bytes()) as u64;
            let is_like = (found ^ first) & RIGHTS == 0 || has(Bug::JoinedUnlike);
            if found & LEAF == 0 || !is_next || !is_like {
                return false;
            }
            status |= found & STATUS;
        }
        if first & FRAME & SIZES[level].mask() as u64 != 0 {
            return false;
        }
        set(node, slot, if has(Bug::JoinedClean) { first } else { first | status });
        frames::flush(Flushed::Bytes(at, SIZES[level].bytes()));
        frames::give(below);
        true
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
        for (slot, &found) in words(node).iter().enumerate() {
            if found == 0 {
                continue;
            }
            // The upper half has the sign.
            let sign = if level == 0 && slot >= SLOTS / 2 { usize::MAX << 39 } else { 0 };
            let at = (at + (slot << SIZES[level].shift())) | sign;
            if let Some(below) = link(found) {
                Self::visit_under(below, level + 1, at, visit);
            } else {
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

    fn flush(at: usize, size: PageSize) {
        if has(Bug::FlushesNothing) {
            frames::flush(Flushed::Bytes(at, 0));
        } else if size == PageSize::K4 {
            frames::flush(Flushed::Page(at));
        } else {
            let half = size.bytes() / 2;
            let gap = if has(Bug::FlushesHalf) { PageSize::K4.bytes() } else { 0 };
            frames::flush(Flushed::Bytes(at + half, half));
            frames::flush(Flushed::Bytes(at, half - gap));
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
        Self { root: take().expect("a first frame"), is_due: false }
    }

    fn space(&self) -> Space {
        Space::new(39, Half::Both, PageSize::K4, &[PageSize::K4, PageSize::M2, PageSize::G1])
    }

    fn optional(&self) -> Attr {
        BITS.iter().fold(Attr::empty(), |all, (_, of)| all | *of)
    }

    fn map(&mut self, at: usize, to: usize, size: PageSize, attr: Attr) -> bool {
        if has(Bug::LastPage) && at.wrapping_add(size.bytes()) == 0 {
            return false;
        }
        let leaf = to as u64 | PRESENT | LEAF | bits(attr);
        let leaf = if std::mem::take(&mut self.is_due) { leaf ^ WRITABLE } else { leaf };
        Self::map_under(self.root, 0, at, size, leaf)
    }

    fn map_range(&mut self, at: usize, to: usize, size: PageSize, count: usize, attr: Attr) -> Option<bool> {
        let pages = || (0..count).map(|page| (at + page * size.bytes(), to + page * size.bytes()));
        let is_free = pages().all(|(at, _)| self.find(at).is_none());
        if !is_free && UNSEEN.get() != Some(Unseen::MapsUpTo) {
            return Some(false);
        }
        for (number, (at, to)) in pages().enumerate() {
            let is_late = has(Bug::LateNode) && number > 0 && number + 1 < count && !self.has_node(at);
            let leaf = to as u64 | PRESENT | LEAF | bits(attr);
            let done = is_late || Self::map_under(self.root, 0, at, size, leaf);
            if !done {
                return Some(false);
            }
        }
        Some(true)
    }

    fn unmap(&mut self, at: usize, size: PageSize) -> bool {
        while has(Bug::Hangs) && at.wrapping_add(size.bytes()) == 0 {
            std::thread::yield_now();
        }
        let Some((node, slot, level)) = self.find(at) else { return false };
        if SIZES[level] != size && !has(Bug::OtherSize) {
            return false;
        }
        set(node, slot, 0);
        if !has(Bug::FreedBeforeFlush) {
            Self::flush(at & !SIZES[level].mask(), SIZES[level]);
        }
        if !matches!(BUG.get(), Some(Bug::KeepsEmptied | Bug::DropsRoot | Bug::RefusedKeeps)) {
            Self::free_empty(self.root, 0, at);
        }
        if has(Bug::FreedBeforeFlush) {
            Self::flush(at & !SIZES[level].mask(), SIZES[level]);
        }
        true
    }

    fn unmap_range(&mut self, at: usize, bytes: usize) -> Option<bool> {
        let leaves = self.leaves(at, bytes);
        leaves.iter().for_each(|&(_, (node, slot, _))| set(node, slot, 0));
        Self::flush_range(at, bytes, Bug::UnmapStride);
        if !matches!(BUG.get(), Some(Bug::KeepsEmptied | Bug::DropsRoot | Bug::RefusedKeeps)) {
            // The last one of each node finds that it is empty.
            let is_last = |at: usize| at % M2 == M2 - PageSize::K4.bytes();
            let ends = leaves.iter().enumerate().filter(|(number, (at, place))| {
                number + 1 == leaves.len() || place.2 + 1 < LEVELS || is_last(*at)
            });
            ends.for_each(|(_, &(at, _))| _ = Self::free_empty(self.root, 0, at));
        }
        Some(!leaves.is_empty())
    }

    fn protect_range(&mut self, at: usize, bytes: usize, attr: Attr) -> Option<bool> {
        let leaves = self.leaves(at, bytes);
        for &(_, (node, slot, _)) in &leaves {
            set(node, slot, entry(node, slot) & !RIGHTS | bits(attr));
        }
        Self::flush_range(at, bytes, Bug::ProtectStride);
        Some(!leaves.is_empty())
    }

    fn replace(&mut self, at: usize, to: usize, size: PageSize, attr: Attr) -> Option<bool> {
        let place = self.find(at).filter(|&(_, _, level)| SIZES[level] == size);
        let Some((node, slot, _)) = place else { return Some(false) };
        if has(Bug::ReplacedTwice) {
            set(node, slot, 0);
        }
        set(node, slot, to as u64 | PRESENT | LEAF | bits(attr));
        Self::flush(at, size);
        Some(true)
    }

    fn resize(&mut self, at: usize, size: PageSize, to: PageSize) -> Option<bool> {
        if to < size {
            let place = self
                .find(at)
                .filter(|&(_, _, level)| SIZES[level] == size && SIZES.get(level + 1) == Some(&to));
            return Some(place.is_some_and(|(node, slot, level)| Self::split(node, slot, level)));
        }
        let mut node = self.root;
        for level in 0..LEVELS {
            if SIZES[level] == to {
                return Some(Self::join(node, index(at, level), level, at));
            }
            match link(entry(node, index(at, level))) {
                Some(below) => node = below,
                None => break,
            }
        }
        Some(false)
    }

    fn note(&mut self, at: usize, status: Attr) -> bool {
        let place = self.find(at);
        place.is_some_and(|(node, slot, _)| {
            set(node, slot, entry(node, slot) | bits(status));
            true
        })
    }

    fn mmu(&self) -> Option<Mmu> {
        Some(Mmu { root: self.root, walk })
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

    fn protect(&mut self, at: usize, size: PageSize, attr: Attr) -> Option<bool> {
        let writable = attr.contains(Attr::WRITE);
        let Some((node, slot, level)) = self.find(at).filter(|&(_, _, level)| SIZES[level] == size) else {
            return Some(false);
        };
        self.is_due = has(Bug::WrongOnce);
        if has(Bug::HugeProtects) && level == 0 {
            set(node, slot, entry(node, slot) ^ 1 << SIZES[level].shift());
        }
        let keeps = has(Bug::LargeKeeps) && level == 1 && writable;
        if !(keeps || has(Bug::ProtectsNothing) && level + 1 < LEVELS && !writable) {
            let lost = if has(Bug::DirtyLost) { RIGHTS | STATUS } else { RIGHTS };
            let change = |slot: usize| set(node, slot, entry(node, slot) & !lost | bits(attr));
            change(slot);
            if has(Bug::ProtectsNode) && entry(node, slot ^ 1) & LEAF != 0 {
                change(slot ^ 1);
            }
        }
        Self::flush(at, size);
        Some(true)
    }

    fn attr(&self, at: usize) -> Option<Attr> {
        self.find(at).map(|(node, slot, _)| attr(entry(node, slot)))
    }

    fn visit(&self, visit: &mut dyn FnMut(usize, usize, PageSize)) -> bool {
        Self::visit_under(self.root, 0, 0, visit);
        true
    }

    fn keeps_empty(&self) -> bool {
        matches!(BUG.get(), Some(Bug::RefusedKeeps | Bug::DropsRoot))
    }

    fn keeps_refused(&self) -> bool {
        has(Bug::RefusedKeeps) || SAYS.get() == Some(Says::KeepsRefused)
    }

    fn refuses_last(&self) -> bool {
        SAYS.get() == Some(Says::RefusesLast)
    }

    fn breaks(&self) -> bool {
        SAYS.get() == Some(Says::Breaks)
    }

    fn refuses_other_sizes(&self) -> bool {
        true
    }
}
