//! The elastic cuckoo page table (ECPT) of Skarlatos, Kokolis, Xu and Torrellas, "Elastic Cuckoo Page Tables: Rethinking Virtual
//! Memory Translation for Parallelism", ASPLOS 2020.
//!
//! ```text
//!                   +--------------- hash 0 ---> way 0  | line | line | line | ... |        a line: | tag | 8 PTEs |
//!   page >> 3 ------+--------------- hash 1 ---> way 1  | line | line | line | ... |
//!                   +--------------- hash 2 ---> way 2  | moved ... | not moved ...|  small array
//!                                                       | lines of what is moved ...  ...  ...  |  big array
//! ```
//!
//! A **line** has the PTEs of eight neighbouring pages under one **tag**, and is in one of three places: one in each **way**, by the
//! way's hash function. If all three are taken, the line in one of them moves to another of its own places, and so on (*cuckoo
//! hashing*). A way grows and shrinks by degrees: it has a second array meanwhile, and its **split** says how many lines of the small
//! array are now in the big one. If the hash is below the split, the line's place in this way is in the big array, otherwise in the
//! small one, so a lookup has three places at any time. Each page size has ways of its own, which exist while a page of that size is
//! mapped.
//!
//! | from the paper | chosen here |
//! |-|-|
//! | three ways, lines of eight PTEs, a set of ways for each of 4 KiB, 2 MiB and 1 GiB | the same, for the sizes of `G` |
//! | a line is a cache line, its tag in unused bits of the PTEs: one access | nine words, seven lines in 64 words: a node is a power of two, and a hash times seven is shifted as one of a power of two would be. A probe loads the tag, and the hit's loads then the PTE |
//! | insertion in a random way, at most 32 displacements | the first free of the three places, so that most lines are in way 0, which is probed first; otherwise the nearest free place by a breadth-first search, which looks at what 32 lines could displace, before the first store |
//! | ways grow beyond a load of 0.6 | the same, counted over all ways; one way at a time doubles, the smallest, and two lines of its small array move for each line that is inserted or removed |
//! | another hash function for each size of an array | more bits of the same, so a growing way displaces no line: the lines of a place have places of their own |
//! | ways shrink at a low load | below 0.2, the largest way to half; if memory has no array, it stays |
//! | a failed insertion makes the ways grow | the same: moves end first, then the smallest way doubles |
//! | probes of all ways at once; cuckoo walk tables and their caches, in hardware, tell the size and the way, so that a hit is one probe | neither: the lab has no parallel loads, and counts a probe of each way up to the hit |
//!
//! The paper simulates eight cores: address translation takes 41 % less time than with a radix tree, and programs run 3 to 18 % faster,
//! because a walk's probes are issued at once. The lab counts them one after the other. In the paper's hardware the walk caches would
//! leave one probe of a hit, two loads here.
//!
//! | pages | loads a refill, at most | bytes a page | the most lines that an insertion moves |
//! |-|-|-|-|
//! | the compiler's, 3142 | 2.79, 4 | 36.5 | 2 |
//! | dense, 262144 | 2.84, 4 | 20.0 | 3 |
//!
//! (`tlblab tables ECPT HR MPT FPT --trace tools/lab/traces/cc1.tlbt`, or `--workload dense --pages 262144`; `--json` prints the last
//! column.) On the first, the hashed table that grows takes 6.36 loads and 26.9 bytes, the tree of six levels 6 and 39.1, the
//! flattened one 3 and 2169. With superpages in use, a refill of theirs first misses the ways of the base pages, which the
//! paper's walk tables spare.
//!
//! Walkers take no lock, but begin again if the writer has moved a line meanwhile: lookups are *lock-free*, and not *wait-free* as those
//! of the crates' tables are. That alone would keep this table out of a kernel: a refill handler has no bound. The split and the
//! places of arrays are fields of the table, which walks load without being counted: the paper has them in registers.
//!
//! # Walks beside the writer
//!
//! A walker that looks at way 1 before a line moves there, and at way 2 after it has left, would miss it; one that has matched a tag
//! could load a PTE of the next line there. So the writer adds 1 to a count, the **epoch**, *between* any two stores that a walk must
//! not mix. A walk begins with a load of the epoch, and begins again if the epoch is another at its end.
//!
//! - The store of epoch E is a release, and the walk's first load an acquire: a walk that begins with E sees every store before it.
//! - Stores are releases, and a fence follows the walk's loads: a walk that saw a store after epoch E + 1 sees E + 1 at its end.
//!
//! So a walk that begins and ends with E has seen all stores before E, none after E + 1, and any part of those between the two. Of the
//! stores of one epoch any part is harmless:
//!
//! | stores of an epoch | part |
//! |-|-|
//! | PTEs of a free place, then the tag | a walk that sees the tag sees the PTEs, by a fence between the two loads. Without the tag the PTEs are not read: the epoch before has the old tag's clear |
//! | the clear of a tag | one store. The line was complete elsewhere in the epoch before, or is empty |
//! | a split | one store. Every line for which it changes the place is in both places, by epochs before |
//! | an array's address | one store, of an array in which the split has no line |
//! | a PTE's clear when its page changes size | one store. The new PTE is there since epochs before |
//! | other PTEs | the change of one page each |
//!
//! There is no state in which a walker waits for the writer, as an odd count is in a seqlock: the writer may stop anywhere, and a walk
//! ends. A walk whose parts are mixed computes an index only from the array that it loads from, so it stays in bounds, and arrays are
//! retired into the batch: none is freed during a walk.
//!
//! That each single epoch is needed is by this argument alone. The tests notice a table without epochs, and stores in another order; they
//! begin no walk between an epoch and the store after it that ends behind the next.
//!
//! # Costs
//!
//! | operation | cost in loads and stores of table words |
//! |-|-|
//! | lookup | up to three tags for each page size that has pages, and the PTE |
//! | map, unmap, protect of a page | a lookup and a store; with the first or last page of a line, nine stores and two moves of lines |
//! | move of a line | ten loads, at most ten stores and two epochs |
//! | visit of a range | a lookup for each page of its lines, and for each line that is absent; if it has more lines than the table, a scan of the table and a lookup for each leaf |
//! | unmap of such a range, page by page | a scan of the table for each leaf |
//! | split, join | a lookup and a store for each page |
//!
//! All memory is taken before the first store that can be seen, with one exception: lines of a range, which have no PTE yet, may not
//! all find places at that load. Then the ways grow once more, and if there is no memory for that, the lines are removed and the ways
//! stay large. The hash functions are the same for every table: who chooses addresses can choose lines that have the same places, for which
//! the ways grow until there is no memory. (The authors' published code draws them anew for each table.)
//!
//! No hardware walks this table and no kernel uses it, so it is here and not in a crate of kernels. It has no refill handler: the hash
//! functions are multiplications, and a handler for MIPS would have to save the program's HI and LO and more registers than it has;
//! it would begin again when a line has moved; and what a handler of `tlbkit-refill` walks is a closed list, with one root.

mod elastic;
#[cfg(test)]
mod tests;
mod ways;

use std::iter;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicUsize, fence};

use tlbkit_addr::{Attr, FlushScope, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::{Compact, Format, check_attr, check_change};
use tlbkit_pagetable::nodes::Nodes;
use tlbkit_pagetable::{
    Change, Error, FlushAll, Footprint, Geometry, Holes, Leaf, Pinned, Rest, Retired, Right, Space, Table,
    Tally, Uncovered, Word, WriterFlag,
};

use self::ways::{Array, LINE, LINE_LOG, Set, Slot, State, WAYS};
use crate::whole::{BASE, STATUS, check_map, check_resize, check_whole, span};

/// The most page sizes.
const SIZES: usize = 3;
/// The words of arrays.
const KINDS: &[usize; 24] = &{
    let mut words = [64; 24];
    let mut log = 0;
    while log < words.len() {
        words[log] <<= log;
        log += 1;
    }
    words
};

/// An elastic cuckoo table of the page sizes of `G`, at most three, with base pages of 4 KiB.
#[derive(Debug)]
pub struct Cuckoo<'n, G: Geometry, N: Nodes<Word = u64>> {
    nodes: &'n N,
    sets: [Set; SIZES],
    epoch: AtomicUsize,
    flag: WriterFlag,
    tally: Tally,
    /// Lines that the current change of one line has moved, and the most that one has.
    moved: [AtomicUsize; 2],
    geometry: PhantomData<fn() -> G>,
}

/// A leaf, and where its PTE is.
struct Found {
    leaf: Leaf,
    size: usize,
    slot: Slot,
    index: usize,
}

impl<'n, G: Geometry, N: Nodes<Word = u64>> Cuckoo<'n, G, N> {
    const SPACE: Space = {
        assert!(G::SIZES.len() <= SIZES && G::BASE.shift() == BASE.shift(), "up to three sizes, from 4 KiB");
        Space::of::<G>()
    };

    /// Returns an empty table, which has no nodes before its first page.
    pub fn new(nodes: &'n N) -> Self {
        Self {
            nodes,
            sets: Default::default(),
            epoch: AtomicUsize::new(0),
            flag: WriterFlag::new(nodes.held()),
            tally: Tally::default(),
            moved: Default::default(),
            geometry: PhantomData,
        }
    }

    /// Returns the most lines that the insertion or removal of one line has moved, or that a range has moved before its first line.
    pub fn most_moved(&self) -> usize {
        self.moved[1].load(Relaxed)
    }

    /// Returns the binary logarithm of the base pages of a size, by the number of the size.
    fn log(size: usize) -> usize {
        (G::SIZES[size].shift() - BASE.shift()) as usize
    }

    fn number(size: PageSize) -> usize {
        G::SIZES.iter().position(|&one| one == size).expect("a size of the space")
    }

    fn line(size: usize, page: Vpn) -> usize {
        page.get() >> (Self::log(size) + LINE_LOG)
    }

    fn index(size: usize, page: Vpn) -> usize {
        (page.get() >> Self::log(size)) % LINE
    }

    /// Runs a walk until no epoch has begun during it. See the module's documentation.
    fn within_epoch<T>(&self, walk: impl Fn() -> T) -> T {
        loop {
            let epoch = self.epoch.load(Acquire);
            let result = walk();
            fence(Acquire);
            if self.epoch.load(Relaxed) == epoch {
                return result;
            }
        }
    }

    /// Begins an epoch: the caller is the writer, and may store what a walk must not mix with what was stored before.
    fn begin_epoch(&self) {
        self.epoch.store(self.epoch.load(Relaxed) + 1, Release);
    }

    /// Loads a word of a line, for a walk.
    fn load(&self, slot: Slot, word: usize) -> u64 {
        // SAFETY: the index is one of the array's lines, by the array's own size. The array was loaded from the table, so it is live, or
        // retired and not reclaimed while the caller is pinned, or the writer.
        unsafe { self.nodes.word(slot.array.at, slot.word + word) }.follow()
    }

    /// Reads a word of a line. The caller is the writer.
    fn read(&self, slot: Slot, word: usize) -> u64 {
        // SAFETY: the caller is the writer, and the array, of which the index is a line, is one of the table.
        unsafe { self.nodes.word_mut(slot.array.at, slot.word + word) }.read()
    }

    /// Stores a word of a line, if it is another. The caller is the writer.
    fn put(&self, slot: Slot, word: usize, value: u64) {
        if self.read(slot, word) != value {
            // SAFETY: as for `read`.
            unsafe { self.nodes.word_mut(slot.array.at, slot.word + word) }.publish(value);
        }
    }

    /// Stores a PTE, which is counted.
    fn put_pte(&self, slot: Slot, index: usize, word: u64) {
        let was = Compact::is_leaf(self.read(slot, 1 + index), true);
        self.tally.ptes(isize::from(Compact::is_leaf(word, true)) - isize::from(was));
        self.put(slot, 1 + index, word);
    }

    /// Stores a line in a place where walks find none: its PTEs before its tag.
    fn fill(&self, to: Slot, tag: u64, pte: impl Fn(usize) -> u64) {
        self.begin_epoch();
        (0..LINE).for_each(|index| self.put(to, 1 + index, pte(index)));
        self.put(to, 0, tag);
    }

    fn copy(&self, from: Slot, to: Slot) {
        self.fill(to, self.read(from, 0), |index| self.read(from, 1 + index));
        let moved = self.moved[0].fetch_add(1, Relaxed) + 1;
        self.moved[1].fetch_max(moved, Relaxed);
    }

    /// Takes a line out of a place.
    fn clear(&self, slot: Slot) {
        self.begin_epoch();
        self.put(slot, 0, 0);
    }

    /// Finds a line of a size, as a walker.
    fn find(&self, size: usize, line: usize) -> Option<Slot> {
        let ways = self.sets[size].ways.iter().enumerate();
        let mut slots = ways.filter_map(|(way, words)| words.slot(way, line));
        slots.find(|&slot| self.load(slot, 0) == line as u64 + 1)
    }

    /// Returns the leaf of a page, or an aligned number of pages around the page that are not mapped.
    fn walk_to(&self, page: Vpn) -> Result<Found, usize> {
        self.within_epoch(|| {
            let mut gap = 1 << (usize::BITS - 1);
            for size in (0..G::SIZES.len()).filter(|&size| self.sets[size].is_used()) {
                let Some(slot) = self.find(size, Self::line(size, page)) else {
                    gap = gap.min(LINE << Self::log(size));
                    continue;
                };
                // The PTEs were stored before the tag.
                fence(Acquire);
                let index = Self::index(size, page);
                if let Some(leaf) = self.leaf(self.load(slot, 1 + index), page) {
                    return Ok(Found { leaf, size, slot, index });
                }
                gap = gap.min(1 << Self::log(size));
            }
            Err(gap)
        })
    }

    fn leaf(&self, word: u64, page: Vpn) -> Option<Leaf> {
        Compact::is_leaf(word, true).then(|| {
            let size = Compact::size(word, BASE);
            let at = VirtAddr::new(page.address(BASE).get() & !size.mask());
            Leaf { at, size, frame: Compact::frame(word, size), attr: Compact::attr(word, true) }
        })
    }

    /// Returns each way's arrays in all page sizes, with the way.
    fn arrays(&self) -> impl Iterator<Item = (usize, usize, Array)> {
        let ways = (0..G::SIZES.len() * WAYS).map(|number| (number / WAYS, number % WAYS));
        ways.flat_map(|(size, way)| {
            let State { small, big, .. } = self.sets[size].ways[way].state()?;
            Some(iter::once(small).chain(big).map(move |array| (size, way, array)))
        })
        .flatten()
    }

    /// Returns the first page in `pages` of each leaf of the range, in ascending order, by a scan of the table.
    fn starts(&self, pages: Pages) -> Vec<usize> {
        let mut starts = self.within_epoch(|| {
            let mut starts = Vec::new();
            for (size, way, array) in self.arrays() {
                for slot in (0..array.lines()).map(|index| array.slot(way, index)) {
                    let tag = self.load(slot, 0);
                    let Some(line) = tag.checked_sub(1).map(|line| line as usize) else { continue };
                    // An array keeps what has been moved out of it.
                    if !self.sets[size].ways[way].slot(way, line).is_some_and(|place| place.is(slot)) {
                        continue;
                    }
                    fence(Acquire);
                    for index in 0..LINE {
                        let page = Vpn::new((line * LINE + index) << Self::log(size));
                        let leaf = self.leaf(self.load(slot, 1 + index), page);
                        let part = leaf.and_then(|leaf| Self::SPACE.pages_of(&leaf).intersect(pages));
                        starts.extend(part.map(|part| part.first().get()));
                    }
                }
            }
            starts
        });
        starts.sort_unstable();
        starts
    }

    /// Walks to the leaves of a range of the space, in ascending order.
    fn leaves(&self, pages: Pages) -> impl Iterator<Item = Found> {
        let mut rest = Rest::of(pages);
        let lines = self.arrays().map(|(.., array)| array.lines()).sum();
        let starts = (pages.len() / LINE > lines).then(|| self.starts(pages));
        iter::from_fn(move || {
            loop {
                let page = rest.pages()?.first();
                let last = match (self.walk_to(page), &starts) {
                    (Ok(found), _) => {
                        rest.go_past(Self::SPACE.pages_of(&found.leaf).last());
                        return Some(found);
                    }
                    (Err(gap), None) => page.get() | (gap - 1),
                    (Err(_), Some(starts)) => {
                        let next = starts.partition_point(|&start| start <= page.get());
                        starts.get(next).map_or(pages.last().get(), |start| start - 1)
                    }
                };
                rest.go_past(Vpn::new(last));
            }
        })
    }

    fn check_whole(&self, pages: Pages, holes: Holes) -> Result<usize, Error> {
        check_whole(Self::SPACE, self.leaves(pages).map(|found| found.leaf), pages, holes)
    }

    /// Takes the first leaf of a range out, and its line if this leaves the line empty.
    fn take_first(
        &self,
        batch: &mut Retired<'n>,
        rest: &mut Rest,
    ) -> Result<Option<(Vpn, Uncovered)>, Error> {
        let Some(pages) = rest.pages() else { return Ok(None) };
        Self::SPACE.check_pages(pages)?;
        let Some(Found { leaf, size, slot, index }) = self.leaves(pages).next() else {
            rest.end();
            return Ok(None);
        };
        let whole = Self::SPACE.pages_of(&leaf);
        if whole.intersect(pages) != Some(whole) {
            return Err(Error::Partial { at: leaf.at, size: leaf.size });
        }
        let is_last = (0..LINE).all(|other| other == index || self.read(slot, 1 + other) == 0);
        // The call may unwind, and comes before the first store.
        let smaller = if is_last { self.take_smaller(size) } else { None };
        rest.go_past(whole.last());
        batch.touch(FlushScope::Everywhere, whole);
        self.put_pte(slot, index, 0);
        if let Some((way, array)) = smaller {
            self.add(size, way, array);
        }
        self.remove_if_empty(batch, size, slot);
        Ok(Some((whole.first(), Uncovered::Frames(leaf.run(BASE)))))
    }

    /// Pushes an array, which the table has no word of, into a batch.
    fn retire(&self, batch: &mut Retired<'n>, array: Array) {
        self.tally.node(-1, KINDS[array.log] * 8);
        // SAFETY: the node is the table's, and no field has its address.
        unsafe { batch.push(array.at, false) };
    }

    /// Retires the arrays of a size, in which there is no line, or which is not walked any more.
    fn drop_ways(&self, batch: &mut Retired<'n>, size: usize) {
        for words in &self.sets[size].ways {
            let Some(State { small, big, .. }) = words.state() else { continue };
            self.begin_epoch();
            words.arrays.iter().for_each(|array| array.store(0, Release));
            self.begin_epoch();
            words.split.store(0, Release);
            iter::once(small).chain(big).for_each(|array| self.retire(batch, array));
        }
    }

    /// Gives the pages of a range, which has been checked, another size.
    fn resize_range(&self, batch: &mut Retired<'n>, pages: Pages, to: PageSize) -> Result<(), Error> {
        let new = Self::number(to);
        self.insert_all(batch, new, pages)?;
        let mut rest = Rest::of(pages);
        while let Some(Found { leaf, .. }) = rest.pages().and_then(|pages| self.leaves(pages).next()) {
            let first = leaf.at.vpn(BASE);
            let whole = Pages::count(first, span(leaf.size.max(to))).unwrap_or(pages);
            rest.go_past(whole.last());
            if leaf.size == to {
                continue;
            }
            let old: Vec<Found> = self.leaves(whole).collect();
            let status = old.iter().fold(Attr::empty(), |status, found| status | found.leaf.attr & STATUS);
            let word = Compact::leaf(leaf.frame, to, leaf.attr | status, true)?;
            for page in whole.iter().step_by(span(to)) {
                let slot = self.find(new, Self::line(new, page)).expect("a line that was inserted");
                let word = word.advance(Compact::STEP, page.get() - first.get());
                self.put_pte(slot, Self::index(new, page), word);
            }
            for Found { leaf, size, index, .. } in old {
                // The removal of the line before may have moved this one.
                let slot = self.find(size, Self::line(size, leaf.at.vpn(BASE))).expect("a line with a PTE");
                self.begin_epoch();
                self.put_pte(slot, index, 0);
                self.remove_if_empty(batch, size, slot);
            }
            batch.touch(FlushScope::Everywhere, whole);
        }
        Ok(())
    }
}

impl<G: Geometry, N: Nodes<Word = u64>> Drop for Cuckoo<'_, G, N> {
    fn drop(&mut self) {
        // SAFETY: this is the drop of the table that the flag belongs to.
        unsafe { self.nodes.held().count_dropped_table(&self.flag, self.tally.footprint().nodes) };
    }
}

// SAFETY: the batch is over the table's storage, and the flag a field. A change takes its nodes before it stores what a walk can
// see; it pushes each node after the store that takes the node's address out of the table, and names every page that it changes.
// `Cuckoo` is `Send` only if `&N` is.
unsafe impl<'n, G: Geometry, N: Nodes<Word = u64>> Table<'n> for Cuckoo<'n, G, N> {
    fn space(&self) -> Space {
        Self::SPACE
    }

    fn lookup(&self, _pinned: Pinned<'_>, at: VirtAddr) -> Option<Leaf> {
        if !Self::SPACE.holds(at) {
            return None;
        }
        self.walk_to(at.vpn(BASE)).ok().map(|found| found.leaf)
    }

    fn for_each(
        &self,
        _pinned: Pinned<'_>,
        pages: Pages,
        visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let leaves = Self::SPACE.parts(pages).flat_map(|part| self.leaves(part));
        leaves.map(|found| found.leaf).try_for_each(visit)
    }

    fn footprint(&self) -> Footprint {
        self.tally.footprint()
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
        let word = check_map(Self::SPACE, pages, frame, size, attr)?;
        if let Some(Leaf { at, size, .. }) = self.leaves(pages).next().map(|found| found.leaf) {
            return Err(Error::Occupied { at, size });
        }
        let number = Self::number(size);
        self.insert_all(batch, number, pages)?;
        for page in pages.iter().step_by(span(size)) {
            let slot = self.find(number, Self::line(number, page)).expect("a line that was inserted");
            let word = word.advance(Compact::STEP, page.get() - pages.first().get());
            self.put_pte(slot, Self::index(number, page), word);
        }
        Ok(())
    }

    fn take_next(&self, right: Right<'_, 'n>, rest: &mut Rest) -> Result<Option<(Vpn, Uncovered)>, Error> {
        self.take_first(right.batch(&self.flag)?, rest)
    }

    fn protect(
        &self,
        right: Right<'_, 'n>,
        pages: Pages,
        holes: Holes,
        change: Change,
    ) -> Result<usize, Error> {
        let batch = right.batch(&self.flag)?;
        check_change::<Compact>(change)?;
        let mapped = self.check_whole(pages, holes)?;
        for Found { slot, index, .. } in self.leaves(pages) {
            self.put_pte(slot, index, Compact::change(self.read(slot, 1 + index), change, true));
        }
        if mapped > 0 && change.scope() > FlushScope::Nowhere {
            batch.touch(change.scope(), pages);
        }
        Ok(mapped)
    }

    fn replace(
        &self,
        right: Right<'_, 'n>,
        at: VirtAddr,
        frame: Pfn,
        attr: Attr,
        _flush_all_cpus: FlushAll<'_>,
    ) -> Result<Leaf, Error> {
        let batch = right.batch(&self.flag)?;
        let page = at.vpn(BASE);
        Self::SPACE.check_pages(Pages::one(page))?;
        let Found { leaf, slot, index, .. } = self.walk_to(page).map_err(|_| Error::NotMapped { at })?;
        check_attr::<Compact>(attr)?;
        Self::SPACE.check_frames(frame, span(leaf.size), leaf.size)?;
        self.put_pte(slot, index, Compact::leaf(frame, leaf.size, attr, true)?);
        batch.touch(FlushScope::Everywhere, Self::SPACE.pages_of(&leaf));
        Ok(leaf)
    }

    fn breaks_frames(&self) -> bool {
        Compact::BREAK_FRAME
    }

    fn resize(
        &self,
        right: Right<'_, 'n>,
        pages: Pages,
        to: PageSize,
        _flush_all_cpus: FlushAll<'_>,
    ) -> Result<(), Error> {
        let batch = right.batch(&self.flag)?;
        Self::SPACE.check_sized(pages, to)?;
        self.check_whole(pages, Holes::Refuse)?;
        check_resize(self.leaves(pages).map(|found| found.leaf), to)?;
        self.resize_range(batch, pages, to)
    }

    fn breaks(&self) -> bool {
        Compact::BREAK
    }

    unsafe fn dismantle(&mut self, batch: &mut Retired<'n>) {
        self.tally.ptes(-(self.tally.footprint().ptes as isize));
        (0..SIZES).for_each(|size| self.drop_ways(batch, size));
    }
}
