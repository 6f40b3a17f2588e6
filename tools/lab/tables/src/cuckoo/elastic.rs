//! Insertion that displaces lines, and ways that grow and shrink by degrees. All of it is the writer's.

use std::sync::atomic::Ordering::{Relaxed, Release};

use tlbkit_addr::Pages;
use tlbkit_pagetable::nodes::{Nodes, Stock};
use tlbkit_pagetable::{Error, Geometry, Retired};

use super::ways::{Array, LINE, Set, Slot, State, WAYS, Way, hash};
use super::{Cuckoo, KINDS};

/// The most lines whose other places are looked at, to displace them.
const KICKS: usize = 32;
/// The lines of a small array that are moved for each line that is inserted or removed.
const MOVES: usize = 2;
/// The loads, in tenths, above which the ways grow and below which they shrink.
const GROW: usize = 6;
const SHRINK: usize = 2;

impl<'n, G: Geometry, N: Nodes<Word = u64>> Cuckoo<'n, G, N> {
    /// Frees a place for a line in one of the ways but `except`, by displacing others. Stores nothing if there is none.
    fn free_place(&self, size: usize, line: usize, except: usize) -> Option<Slot> {
        let places = |line, but: usize| {
            let ways = self.sets[size].ways.iter().enumerate();
            ways.filter(move |&(way, _)| way != but && way != except)
                .filter_map(move |(way, words)| words.slot(way, line))
        };
        // The places that are met, each with the number of the one whose line can go there.
        let mut met: Vec<(Slot, Option<usize>)> = places(line, WAYS).map(|slot| (slot, None)).collect();
        for number in 0.. {
            let &(slot, mut from) = met.get(number)?;
            let tag = self.read(slot, 0);
            if tag == 0 {
                let mut free = slot;
                while let Some((slot, next)) = from.map(|from| met[from]) {
                    self.copy(slot, free);
                    self.clear(slot);
                    (free, from) = (slot, next);
                }
                return Some(free);
            }
            if number < KICKS {
                for place in places(tag as usize - 1, slot.way) {
                    if !met.iter().any(|(other, _)| other.is(place)) {
                        met.push((place, Some(number)));
                    }
                }
            }
        }
        None
    }

    /// Moves the split of a way by one line of the small array. Returns whether there was something to move, and a place for it.
    fn migrate(&self, batch: &mut Retired<'n>, size: usize, way: usize) -> bool {
        let words = &self.sets[size].ways[way];
        let Some(State { side, split, small, big: Some(big) }) = words.state() else { return false };
        let grows = words.grows.load(Relaxed);
        let index = if grows { split } else { split - 1 };
        // The line of the small array, and those of the big one that have their places there: the upper bits of a hash are the same.
        let (one, wide) = (small.slot(way, index), big.log - small.log);
        let many = (index << wide..(index + 1) << wide).map(|index| big.slot(way, index));
        if grows {
            let tag = self.read(one, 0);
            let home = (tag != 0).then(|| big.slot(way, big.index(hash(way, tag as usize - 1))));
            for slot in many {
                if home.is_some_and(|home| home.is(slot)) { self.copy(one, slot) } else { self.clear(slot) }
            }
        } else {
            let mut full = many.filter(|&slot| self.read(slot, 0) != 0);
            let first = full.next();
            for slot in full {
                let line = self.read(slot, 0) as usize - 1;
                let Some(free) = self.free_place(size, line, way) else { return false };
                self.copy(slot, free);
                self.clear(slot);
            }
            first.map_or_else(|| self.clear(one), |slot| self.copy(slot, one));
        }
        let split = if grows { split + 1 } else { index };
        self.begin_epoch();
        if split == 0 || split == small.lines() {
            // All lines are in one of the arrays, which is then the way's only one.
            let (left, side) = if grows { (small, side ^ 1) } else { (big, side) };
            words.split.store(side, Release);
            self.begin_epoch();
            words.arrays[side ^ 1].store(0, Release);
            self.retire(batch, left);
        } else {
            words.split.store(split << 1 | side, Release);
        }
        true
    }

    fn migrate_some(&self, batch: &mut Retired<'n>, size: usize) {
        for _ in 0..MOVES {
            let _ = (0..WAYS).any(|way| self.migrate(batch, size, way));
        }
    }

    /// Gives a way, in which no line moves, a new array, to which its lines move.
    pub(super) fn add(&self, size: usize, way: usize, array: Array) {
        let words = &self.sets[size].ways[way];
        self.tally.node(1, KINDS[array.log] * 8);
        let side = words.state().map_or(0, |state| state.side ^ 1);
        let shrinks = words.state().is_some_and(|state| state.small.log > array.log);
        words.grows.store(!shrinks, Relaxed);
        self.begin_epoch();
        words.arrays[side].store(array.word(), Release);
        if shrinks {
            self.begin_epoch();
            words.split.store(array.lines() << 1 | side, Release);
        }
    }

    /// Lets the ways grow for so many more lines. If `more` is set, they grow in any case.
    fn make_room(&self, batch: &mut Retired<'n>, size: usize, lines: usize, more: bool) -> Result<(), Error> {
        let set = &self.sets[size];
        let had = set.ways.each_ref().map(Way::logs);
        let (mut logs, mut more) = (had.map(|logs| logs.map_or(0, |logs| logs.0)), more);
        while more || Set::exceeds(set.lines.load(Relaxed) + lines, GROW, logs) {
            // The smallest; of several, one that shrinks, because that needs no memory.
            let is_whole = |way: usize| had[way].is_some_and(|(_, large)| large == logs[way]);
            let way = (0..WAYS).min_by_key(|&way| (logs[way], is_whole(way))).unwrap_or(0);
            logs[way] += 1;
            more = false;
        }
        let is_new = |way: usize| had[way].is_none_or(|(_, large)| logs[way] > large);
        let mut want = [0; KINDS.len()];
        for way in (0..WAYS).filter(|&way| is_new(way)) {
            *want.get_mut(logs[way]).ok_or_else(|| Error::no_memory(1, self.nodes.held()))? += 1;
        }
        let mut stock = Stock::take(self.nodes, KINDS, want)?;
        self.moved[0].store(0, Relaxed);
        for way in 0..WAYS {
            let is_larger = had[way].is_some_and(|(log, _)| logs[way] > log);
            set.ways[way].grows.fetch_or(is_larger, Relaxed);
            if is_new(way) {
                while self.migrate(batch, size, way) {}
                let at = stock.next(logs[way]).expect("as many arrays as are new");
                self.add(size, way, Array { at, log: logs[way] });
            }
        }
        Ok(())
    }

    /// Inserts a line without PTEs.
    fn insert(&self, batch: &mut Retired<'n>, size: usize, line: usize) -> Result<(), Error> {
        self.moved[0].store(0, Relaxed);
        loop {
            if let Some(slot) = self.free_place(size, line, WAYS) {
                self.fill(slot, line as u64 + 1, |_| 0);
                self.sets[size].lines.fetch_add(1, Relaxed);
                self.migrate_some(batch, size);
                return Ok(());
            }
            if !(0..WAYS).any(|way| self.migrate(batch, size, way)) {
                self.make_room(batch, size, 1, true)?;
            }
        }
    }

    /// Inserts those lines of a range that are absent.
    pub(super) fn insert_all(&self, batch: &mut Retired<'n>, size: usize, pages: Pages) -> Result<(), Error> {
        let lines = || Self::line(size, pages.first())..=Self::line(size, pages.last());
        let absent = lines().filter(|&line| self.find(size, line).is_none()).count();
        if absent == 0 {
            return Ok(());
        }
        self.make_room(batch, size, absent, false)?;
        let undo = |batch: &mut Retired<'n>| {
            for slot in lines().filter_map(|line| self.find(size, line)) {
                self.remove_if_empty(batch, size, slot);
            }
        };
        let done = batch.change(
            |batch| {
                lines()
                    .filter(|&line| self.find(size, line).is_none())
                    .try_for_each(|line| self.insert(batch, size, line))
            },
            undo,
        );
        done.inspect_err(|_| undo(batch))
    }

    /// Removes a line that has no PTEs, and with the last one the ways of the size.
    pub(super) fn remove_if_empty(&self, batch: &mut Retired<'n>, size: usize, slot: Slot) {
        if (0..LINE).any(|index| self.read(slot, 1 + index) != 0) {
            return;
        }
        self.clear(slot);
        if self.sets[size].lines.fetch_sub(1, Relaxed) == 1 {
            self.drop_ways(batch, size);
        } else {
            self.moved[0].store(0, Relaxed);
            self.migrate_some(batch, size);
        }
    }

    /// Takes an array to which a way shrinks if one line is removed and there is memory.
    pub(super) fn take_smaller(&self, size: usize) -> Option<(usize, Array)> {
        let set = &self.sets[size];
        let lines = set.lines.load(Relaxed) - 1;
        let logs = set.ways.each_ref().map(|way| way.logs().map_or(0, |(log, _)| log));
        let way = (0..WAYS).max_by_key(|&way| logs[way])?;
        if lines == 0
            || Set::exceeds(lines, SHRINK, logs)
            || logs[way] == 0
            || set.ways.iter().any(Way::moves)
        {
            return None;
        }
        let log = logs[way] - 1;
        Some((way, Array { at: self.nodes.take(KINDS[log])?, log }))
    }
}
