//! The directory of a table that grows, and the arrays that it leads to: the segments of first buckets.
//!
//! [`shape`](crate::hpt::shape) draws the first word of a directory, the mask. [`grow`](crate::hpt::grow) says when segments are split
//! and merged.

use super::{Bucket, Unit, Walk, Writing};
use crate::format::Format;
use crate::hpt::shape::{LOG, Shape as _, Spot};
use crate::hpt::{Hashed, Sizes};
use crate::nodes::{Freed, NodeAddr, Nodes};
use crate::{Geometry, Word};

/// The directory of a table that grows, as a walk has found it. In a table of a fixed size it leads to the array as its only segment.
pub(crate) struct Directory<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> {
    walk: Walk<'a, 'n, G, F, N, S>,
    /// The root word, which was loaded during this walk.
    root: usize,
    /// The mask, in a directory that has one.
    mask: usize,
}

/// A segment, as the entry of a directory leads to it.
pub(crate) struct Segment<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> {
    directory: Directory<'a, 'n, G, F, N, S>,
    /// The entry, which was loaded from the directory.
    entry: usize,
}

impl<G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> PartialEq for Segment<'_, '_, G, F, N, S> {
    fn eq(&self, other: &Self) -> bool {
        self.entry == other.entry
    }
}

impl<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Walk<'a, 'n, G, F, N, S> {
    /// Returns the directory.
    pub(crate) fn directory(self) -> Directory<'a, 'n, G, F, N, S> {
        let root = self.root();
        // SAFETY: the root was loaded during this walk. A directory with a mask has it in its first word.
        let mask = if S::LOAD == 0 || Self::FOLDED { 0 } else { unsafe { self.directory_word(root, 0) } };
        Directory { walk: self, root, mask }
    }

    /// Loads a word of the directory of `root` as a walker does.
    ///
    /// # Safety
    ///
    /// `root` was loaded during this walk, of a table that grows. `index` is less than the number of the directory's words.
    #[inline(always)]
    pub(super) unsafe fn directory_word(self, root: usize, index: usize) -> usize {
        // SAFETY: the directory was the table's during this walk, so it is live.
        unsafe { self.nodes.word(NodeAddr::new(root), index) }.follow().to_usize()
    }

    /// Returns the first bucket with this number, which is less than [`buckets`](Hashed::buckets).
    pub(crate) fn numbered(self, number: usize) -> Unit<'a, 'n, G, F, N, S> {
        debug_assert!(number < self.buckets(), "the number of a first bucket");
        let (root, number) = (self.root(), number.min(self.buckets() - 1));
        let (entry, at) = if S::LOAD == 0 {
            (root, number)
        } else {
            let index = Self::HEADER + (number >> Self::SEGMENT_LOG);
            // SAFETY: the root was loaded during this walk, and its directory has an entry for each segment.
            (unsafe { self.directory_word(root, index) }, number & ((1 << Self::SEGMENT_LOG) - 1))
        };
        Unit { walk: self, spot: Spot { node: Self::segment_at(entry), at: at * Self::STRIDE } }
    }
}

impl<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Directory<'a, 'n, G, F, N, S> {
    /// Returns the base-two logarithm of the number of entries.
    fn entries(self) -> u32 {
        match S::LOAD {
            0 => 0,
            _ if Self::FOLDED => Self::ENTRIES_LOG,
            _ => (self.mask & Self::ENTRY).count_ones(),
        }
    }

    /// Returns the segment to which an entry leads. The index is reduced to those of the directory.
    fn entry(self, index: usize) -> Segment<'a, 'n, G, F, N, S> {
        if S::LOAD == 0 {
            return Segment { directory: self, entry: self.root };
        }
        let index = Self::HEADER + (index & ((1 << self.entries()) - 1));
        // SAFETY: the root was loaded during this walk, and the index is that of an entry.
        Segment { directory: self, entry: unsafe { self.walk.directory_word(self.root, index) } }
    }

    /// Returns the segment to which the entry leads whose index consists of the first bits of `place` in reversed order.
    pub(crate) fn at(self, place: u32) -> Segment<'a, 'n, G, F, N, S> {
        self.entry(place.reverse_bits() as usize)
    }

    /// Returns the smallest number of low index bits such that all entries with the bits of `place` lead to the same segment as the
    /// entry at `place`, which is `segment`.
    ///
    /// The writer stores the entries with the same low bits in ascending order. So if the entry with the highest index leads
    /// to the segment, all of them do.
    pub(crate) fn bits_of(self, place: u32, segment: &Segment<'a, 'n, G, F, N, S>) -> u32 {
        let entries = self.entries();
        let mut bits = entries;
        while bits > 0 {
            let fewer = (1 << (bits - 1)) - 1;
            let last = ((1 << entries) - 1) & !fewer | place.reverse_bits() as usize & fewer;
            if self.entry(last) != *segment {
                break;
            }
            bits -= 1;
        }
        bits
    }
}

impl<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Segment<'a, 'n, G, F, N, S> {
    /// Returns how many first buckets the segment has.
    fn heads(&self) -> usize {
        match S::LOAD {
            0 => 1 << S::BUCKETS_LOG,
            _ if Self::FOLDED => (1 << Self::SEGMENT_LOG) >> (self.entry & LOG),
            _ => (self.directory.mask >> Self::WITHIN) + 1,
        }
    }

    /// Returns the first buckets.
    pub(crate) fn each_head(&self) -> impl Iterator<Item = Unit<'a, 'n, G, F, N, S>> {
        (0..self.heads()).map(|at| self.unit(at))
    }

    /// Returns the first bucket `at`, which is less than [`heads`](Self::heads).
    fn unit(&self, at: usize) -> Unit<'a, 'n, G, F, N, S> {
        Unit {
            walk: self.directory.walk,
            spot: Spot { node: Self::segment_at(self.entry), at: at * Self::STRIDE },
        }
    }

    /// Returns the [count](Unit::version) of the segment.
    pub(crate) fn version(&self) -> u32 {
        self.unit(0).version()
    }
}

/// A segment or a directory to which no word leads: a new one, or one that has been taken out.
///
/// If it is dropped, its node is leaked.
#[must_use = "its node is in no table: publish, retire or give it back"]
pub(crate) struct Array<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> {
    table: &'a Hashed<'n, G, F, N, S>,
    addr: NodeAddr,
    /// The number of the node's words.
    words: usize,
}

/// The memory of a segment that will be the only one. The directory is `None` if the table keeps its own.
pub(crate) struct Only<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> {
    pub(crate) segment: Array<'a, 'n, G, F, N, S>,
    directory: Option<Array<'a, 'n, G, F, N, S>>,
}

impl<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Array<'a, 'n, G, F, N, S> {
    /// Takes an array of `words` words, and counts it.
    fn take(table: &'a Hashed<'n, G, F, N, S>, words: usize) -> Option<Self> {
        let addr = table.nodes.take(words)?;
        table.count_array(1, words);
        Some(Self { table, addr, words })
    }

    /// Takes a segment of `heads` first buckets.
    pub(crate) fn segment(table: &'a Hashed<'n, G, F, N, S>, heads: usize) -> Option<Self> {
        Self::take(table, heads * Self::STRIDE)
    }

    /// Takes two segments of `heads` first buckets.
    pub(crate) fn segments(table: &'a Hashed<'n, G, F, N, S>, heads: usize) -> Option<[Self; 2]> {
        let low = Self::segment(table, heads)?;
        if let Some(high) = Self::segment(table, heads) {
            return Some([low, high]);
        }
        low.give_back();
        None
    }

    /// Takes a directory of `2^entries` entries.
    fn directory(table: &'a Hashed<'n, G, F, N, S>, entries: u32) -> Option<Self> {
        Self::take(table, Self::directory_words(entries))
    }

    /// Frees the array, which was just taken.
    fn give_back(self) {
        self.table.count_array(-1, self.words);
        let freed = Freed::new(self.table.nodes.held(), 0);
        // SAFETY: the array was just taken, so it is zero, and no other code knows it.
        unsafe { self.table.nodes.free(self.addr, true) };
        freed.done();
    }

    /// Returns a first bucket of a segment. The number is reduced to those of the segment.
    pub(crate) fn head(&self, at: usize) -> Bucket<'_, 'n, G, F, N, S> {
        debug_assert!(at * Self::STRIDE < self.words, "the number of a first bucket");
        let at = at.min(self.words / Self::STRIDE - 1) * Self::STRIDE;
        // SAFETY: the bucket is in the array, of which the holder is the only user.
        unsafe { Bucket::new(self.table, Spot { node: self.addr, at }) }
    }

    /// Stores the words of a directory of `2^entries` entries, which lead to the segments of `heads` first buckets that `segment`
    /// returns.
    fn lead(&self, entries: u32, heads: usize, segment: impl Fn(usize) -> usize) {
        let mask = (0..Self::HEADER).map(|_| (heads - 1) << Self::WITHIN | ((1 << entries) - 1));
        for (index, word) in mask.chain((0..1 << entries).map(segment)).enumerate().take(self.words) {
            // SAFETY: the word is in the array, of which the holder is the only user.
            unsafe { self.table.nodes.word_mut(self.addr, index) }.store_relaxed(F::Word::from_usize(word));
        }
    }
}

impl<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Only<'a, 'n, G, F, N, S> {
    /// Takes the memory of a segment of `heads` first buckets, and of a directory of `2^entries` entries that is published with it.
    pub(crate) fn take(
        table: &'a Hashed<'n, G, F, N, S>,
        heads: usize,
        entries: Option<u32>,
    ) -> Option<Self> {
        let segment = Array::segment(table, heads)?;
        let directory = entries.map(|entries| Array::directory(table, entries));
        if let Some(None) = directory {
            segment.give_back();
            return None;
        }
        Some(Self { segment, directory: directory.flatten() })
    }

    /// As [`take`](Self::take), for a table that has a directory, which it keeps if that has all entries from the beginning.
    pub(crate) fn again(table: &'a Hashed<'n, G, F, N, S>, heads: usize) -> Option<Self> {
        Self::take(table, heads, if Array::<'a, 'n, G, F, N, S>::FOLDED { None } else { Some(0) })
    }
}

impl<'w, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Writing<'w, 'n, G, F, N, S> {
    /// Returns the first bucket with this number, which is less than [`buckets`](Hashed::buckets).
    pub(crate) fn numbered(&self, number: usize) -> Bucket<'_, 'n, G, F, N, S> {
        Bucket(self.walk().numbered(number))
    }

    /// Returns `count` first buckets from the one with a number on, which are in its segment.
    pub(crate) fn heads(
        &self,
        number: usize,
        count: usize,
    ) -> impl Iterator<Item = Bucket<'_, 'n, G, F, N, S>> {
        let Unit { walk, spot } = self.walk().numbered(number);
        let count = count.min(Self::segment_of(self.buckets()) - spot.at / Self::STRIDE);
        (0..count).map(move |head| {
            let at = spot.at + head * Self::STRIDE;
            Bucket(Unit { walk, spot: Spot { at, ..spot } })
        })
    }

    /// Publishes a segment in the directory's entry `first` and in every entry that is a multiple of `apart` first buckets
    /// further, in ascending order, on which a visit relies. The segment has `2^short` times fewer first buckets than
    /// others.
    ///
    /// # Safety
    ///
    /// The segment has so many first buckets, and its chains are those of the segments that it replaces.
    pub(crate) unsafe fn publish_segment(
        &mut self,
        first: usize,
        apart: usize,
        segment: Array<'_, 'n, G, F, N, S>,
        short: u32,
    ) {
        let directory = self.walk().directory();
        let word = segment.addr.get() | if Self::FOLDED { short as usize } else { 0 };
        for index in (first..1 << directory.entries()).step_by(apart >> Self::SEGMENT_LOG) {
            let (node, index) = (NodeAddr::new(directory.root), Self::HEADER + index);
            // SAFETY: the index is one of the directory, and this is the table's only writer.
            unsafe { self.nodes.word_mut(node, index) }.publish(F::Word::from_usize(word));
        }
    }

    /// Publishes a segment of `heads` first buckets as the only one.
    ///
    /// # Safety
    ///
    /// The segment has `heads` first buckets, and its chains are those of the segments that it replaces.
    pub(crate) unsafe fn publish_only(&mut self, only: Only<'w, 'n, G, F, N, S>, heads: usize) {
        let Some(directory) = only.directory else {
            let short = Self::SEGMENT_LOG - heads.ilog2();
            // SAFETY: the segment takes the place of all segments.
            return unsafe { self.publish_segment(0, 1 << Self::SEGMENT_LOG, only.segment, short) };
        };
        // A directory with a mask is new, so that one store changes the mask and the segment.
        directory.lead(0, heads, |_| only.segment.addr.get());
        // SAFETY: the directory is complete.
        unsafe { self.replace_directory(directory) };
    }

    /// Publishes a directory, and retires the old one.
    ///
    /// # Safety
    ///
    /// The directory is complete, and leads to all segments.
    unsafe fn replace_directory(&mut self, directory: Array<'_, 'n, G, F, N, S>) {
        let old = self.walk().directory();
        let old = (NodeAddr::new(old.root), Self::directory_words(old.entries()));
        let root = F::Word::from_usize(directory.addr.get());
        F::Word::publish(&self.root, root);
        // SAFETY: after the store no word leads to the old directory.
        unsafe { self.retire_array(old.0, old.1) };
    }

    /// Doubles the directory if it has no entry for segment `number`. Returns whether the directory has the entry now.
    pub(crate) fn widen(&mut self, number: usize) -> bool {
        let entries = self.walk().directory().entries();
        number < 1 << entries || self.copy_directory(entries + 1)
    }

    /// Halves the directory if a quarter of its entries is enough for `segments` segments.
    pub(crate) fn narrow(&mut self, segments: usize) {
        let entries = self.walk().directory().entries();
        if !Self::FOLDED && segments << 2 <= 1 << entries {
            // Without memory the directory stays as it is.
            self.copy_directory(entries - 1);
        }
    }

    /// Replaces the directory by one of `2^entries` entries. Returns whether there was memory.
    fn copy_directory(&mut self, entries: u32) -> bool {
        let Some(new) = Array::directory(self.table, entries) else { return false };
        let old = self.on().directory();
        new.lead(entries, 1 << Self::SEGMENT_LOG, |index| old.entry(index).entry);
        // SAFETY: the directory is complete. If it has fewer entries, half of the old ones lead to all segments.
        unsafe { self.replace_directory(new) };
        true
    }

    /// Retires an array.
    ///
    /// # Safety
    ///
    /// No word leads to the array, which was taken with `words` words.
    pub(crate) unsafe fn retire_array(&mut self, array: NodeAddr, words: usize) {
        // SAFETY: the batch came from this table, and no word leads to the array.
        unsafe { self.batch.push(array, false) };
        self.count_array(-1, words);
    }

    /// Adds the directory and the segments, or the array, to the tally.
    pub(crate) fn count_arrays(&self) {
        let heads = self.buckets();
        let segment = Self::segment_of(heads);
        for _ in (0..heads).step_by(segment) {
            self.count_array(1, segment * Self::STRIDE);
        }
        if S::LOAD > 0 {
            self.count_array(1, Self::directory_words(self.walk().directory().entries()));
        }
    }

    /// Retires every node of the table.
    ///
    /// # Safety
    ///
    /// No code uses the table any more.
    pub(crate) unsafe fn retire_all(mut self) {
        // After this no bucket is in two chains, so each is retired once.
        self.part_all();
        let (heads, directory) = (self.buckets(), self.on().directory());
        let segment = Self::segment_of(heads);
        // SAFETY: by this function's contract no code uses a node any more, and each is retired once. The batch is not completed here.
        unsafe {
            for number in 0..heads {
                // The link of a node is loaded before the node is retired.
                for unit in self.on().numbered(number).chain().skip(1) {
                    self.again().retire(unit.spot.node);
                }
            }
            for number in (0..heads).step_by(segment) {
                self.retire_array(self.on().numbered(number).spot().node, segment * Self::STRIDE);
            }
            if S::LOAD > 0 {
                self.retire_array(NodeAddr::new(directory.root), Self::directory_words(directory.entries()));
            }
        }
    }
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// Takes the nodes of a new table of `2^BUCKETS_LOG` first buckets, and returns its root word.
    pub(crate) fn begin(&self) -> Option<usize> {
        let heads = 1 << S::BUCKETS_LOG;
        if S::LOAD == 0 {
            return Some(Array::segment(self, heads)?.addr.get() | S::BUCKETS_LOG as usize);
        }
        let entries = if Self::FOLDED { Self::ENTRIES_LOG } else { 0 };
        let Only { segment, directory } = Only::take(self, heads, Some(entries))?;
        let short = if Self::FOLDED { (Self::SEGMENT_LOG - S::BUCKETS_LOG) as usize } else { 0 };
        let directory = directory?;
        directory.lead(entries, heads, |_| segment.addr.get() | short);
        Some(directory.addr.get())
    }

    fn count_array(&self, sign: isize, words: usize) {
        self.tally.node(sign, words * F::Word::BYTES);
        self.growth.note_bytes(self.tally.bytes());
    }
}
