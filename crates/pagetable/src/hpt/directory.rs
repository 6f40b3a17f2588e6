//! The directory of a table that grows, and the arrays that it leads to: the segments of first buckets.
//!
//! [`shape`](super::shape) draws the first word of a directory, the mask. [`grow`](super::grow) says when segments are split and
//! merged.

use super::shape::{LOG, Spot};
use super::{Hashed, Sizes};
use crate::footprint::Tally;
use crate::format::Format;
use crate::nodes::{Freed, NodeAddr, Nodes};
use crate::{Geometry, Retired, Word};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// Returns the base-two logarithm of the entries of a root's directory.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is pinned, or is the only writer;
    /// - `root` was loaded while the caller was pinned, or by the writer.
    pub(super) unsafe fn entries(&self, root: usize) -> u32 {
        if Self::FOLDED {
            return Self::ENTRIES_LOG;
        }
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        let mask = unsafe { self.nodes.follow(NodeAddr::new(root), 0) }.to_usize();
        (mask & Self::ENTRY).count_ones()
    }

    /// Returns how many first buckets the segment of a directory's entry has.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is pinned, or is the only writer;
    /// - `root` was loaded while the caller was pinned, or by the writer;
    /// - `entry` was loaded from the directory of `root`.
    pub(super) unsafe fn segment_of(&self, root: usize, entry: usize) -> usize {
        if Self::FOLDED {
            return (1 << Self::SEGMENT_LOG) >> (entry & LOG);
        }
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        let mask = unsafe { self.nodes.follow(NodeAddr::new(root), 0) }.to_usize();
        (mask >> Self::WITHIN) + 1
    }

    /// Returns the segment that a directory's entry leads to.
    pub(super) const fn segment(entry: usize) -> NodeAddr {
        NodeAddr::new(if Self::FOLDED { entry & !LOG } else { entry })
    }

    /// Loads an entry of a root's directory as a walker does.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is pinned, or is the only writer;
    /// - `root` was loaded while the caller was pinned, or by the writer;
    /// - `index` is less than the number of the directory's entries.
    #[inline(always)]
    pub(super) unsafe fn entry(&self, root: usize, index: usize) -> usize {
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        unsafe { self.nodes.follow(NodeAddr::new(root), Self::HEADER + index) }.to_usize()
    }

    /// Publishes a directory.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - `directory` is complete.
    unsafe fn publish_root(&self, directory: NodeAddr) {
        let root = F::Word::from_usize(directory.get());
        // SAFETY: the cell is a field, and by this function's contract the caller is the only writer.
        unsafe { F::Word::publish(&raw const self.root, root) };
    }

    /// Stores the [mask](Self::HEADER) of a new directory of `2^entries` entries, which leads to segments of `heads` first
    /// buckets.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - no walker can reach `directory` yet, which was taken with [`directory_words`](Self::directory_words) of `entries`.
    unsafe fn mask(nodes: &N, directory: NodeAddr, entries: u32, heads: usize) {
        let mask = (heads - 1) << Self::WITHIN | ((1 << entries) - 1);
        // SAFETY: by this function's contract the caller is the only writer; no walker can reach the directory yet.
        unsafe { nodes.store_relaxed(directory, 0, F::Word::from_usize(mask)) };
    }

    /// Publishes a segment in the directory's entry `first` and in every entry that is a multiple of `apart` first buckets
    /// further, in ascending order, on which a visit relies. The segment has `2^short` times fewer first buckets than
    /// others.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - `segment` is complete;
    /// - `first` is an index of the directory, and `apart` a multiple of a segment's buckets.
    pub(super) unsafe fn publish_segment(&self, first: usize, apart: usize, segment: NodeAddr, short: usize) {
        let root = self.root();
        // SAFETY: by this function's contract the caller is the only writer, and the index is one of the directory.
        unsafe {
            for index in (first..1 << self.entries(root)).step_by(apart >> Self::SEGMENT_LOG) {
                let entry = F::Word::from_usize(segment.get() | if Self::FOLDED { short } else { 0 });
                self.nodes.publish(NodeAddr::new(root), Self::HEADER + index, entry);
            }
        }
    }

    /// Takes the memory of a segment that will be the only one, and of the directory that is published with it. Returns the
    /// directory, which is address 0 if the table keeps its directory, and the segment.
    pub(super) fn take_only(&self, words: usize) -> Option<(NodeAddr, NodeAddr)> {
        let segment = self.take_array(words)?;
        if Self::FOLDED {
            return Some((NodeAddr::new(0), segment));
        }
        if let Some(directory) = self.take_array(Self::directory_words(0)) {
            return Some((directory, segment));
        }
        // SAFETY: the segment was just taken, so it is zero, and no other code knows it.
        unsafe { self.give_array(segment, words) };
        None
    }

    /// Publishes a segment of `heads` first buckets as the only one.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table;
    /// - `directory` and `segment` are what [`take_only`](Self::take_only) returned; `segment` is complete, and has `heads`
    ///   first buckets.
    pub(super) unsafe fn publish_only(
        &self,
        batch: &mut Retired<'n>,
        directory: NodeAddr,
        segment: NodeAddr,
        heads: usize,
    ) {
        let old = self.root();
        // SAFETY: by this function's contract the caller is the only writer. A directory with a mask is new, so that one
        // store changes the mask and the segment.
        unsafe {
            if Self::FOLDED {
                let short = Self::SEGMENT_LOG - heads.ilog2();
                return self.publish_segment(0, 1 << Self::SEGMENT_LOG, segment, short as usize);
            }
            Self::mask(self.nodes, directory, 0, heads);
            self.nodes.store_relaxed(directory, Self::HEADER, F::Word::from_usize(segment.get()));
            self.publish_root(directory);
            self.retire_array(batch, NodeAddr::new(old), Self::directory_words(self.entries(old)));
        }
    }

    /// Doubles the directory if it has no entry for segment `number`. Returns whether the directory has the entry now.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table.
    pub(super) unsafe fn widen(&self, batch: &mut Retired<'n>, number: usize) -> bool {
        // SAFETY: by this function's contract the caller is the only writer, and the batch
        // came from this table.
        unsafe {
            let entries = self.entries(self.root());
            number < 1 << entries || self.copy_directory(batch, entries + 1)
        }
    }

    /// Halves the directory if a quarter of its entries is enough for `segments` segments.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table.
    pub(super) unsafe fn narrow(&self, batch: &mut Retired<'n>, segments: usize) {
        // SAFETY: by this function's contract the caller is the only writer, and the batch
        // came from this table. Without memory the directory stays as it is.
        unsafe {
            let entries = self.entries(self.root());
            if !Self::FOLDED && segments << 2 <= 1 << entries {
                self.copy_directory(batch, entries - 1);
            }
        }
    }

    /// Replaces the directory by one of `2^entries` entries. Returns whether there was memory.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table.
    unsafe fn copy_directory(&self, batch: &mut Retired<'n>, entries: u32) -> bool {
        let old = self.root();
        let Some(new) = self.take_array(Self::directory_words(entries)) else { return false };
        // SAFETY: by this function's contract the caller is the only writer; no walker can reach the new directory yet.
        unsafe {
            let had = self.entries(old);
            Self::mask(self.nodes, new, entries, 1 << Self::SEGMENT_LOG);
            for index in 0..1 << entries {
                let entry = self.entry(old, index & ((1 << had) - 1));
                self.nodes.store_relaxed(new, Self::HEADER + index, F::Word::from_usize(entry));
            }
            self.publish_root(new);
            self.retire_array(batch, NodeAddr::new(old), Self::directory_words(had));
        }
        true
    }

    /// Returns the number of words of a directory of `2^entries` entries. A small directory has a full cache line, so that
    /// all small ones have the same size.
    const fn directory_words(entries: u32) -> usize {
        let (words, line) = (Self::HEADER + (1 << entries), 64 / F::Word::BYTES);
        if words < line { line } else { words }
    }

    /// Takes the nodes of a new table of `2^BUCKETS_LOG` first buckets, and returns its root word.
    pub(super) fn begin(nodes: &N, tally: &Tally) -> Option<usize> {
        let words = Self::STRIDE << S::BUCKETS_LOG;
        let array = nodes.take(words)?;
        tally.node(1, words * F::Word::BYTES);
        if S::LOAD == 0 {
            return Some(array.get() | S::BUCKETS_LOG as usize);
        }
        let entries = if Self::FOLDED { Self::ENTRIES_LOG } else { 0 };
        let Some(directory) = nodes.take(Self::directory_words(entries)) else {
            let freed = Freed::new(nodes.held(), 0);
            // SAFETY: the array was just taken, so no other code knows it, and it is zero.
            unsafe { nodes.free(array, true) };
            freed.done();
            return None;
        };
        tally.node(1, Self::directory_words(entries) * F::Word::BYTES);
        let short = if Self::FOLDED { (Self::SEGMENT_LOG - S::BUCKETS_LOG) as usize } else { 0 };
        // SAFETY: the directory was just taken, and no code knows it.
        unsafe {
            if !Self::FOLDED {
                Self::mask(nodes, directory, entries, 1 << S::BUCKETS_LOG);
            }
            for index in 0..1 << entries {
                nodes.store_relaxed(
                    directory,
                    Self::HEADER + index,
                    F::Word::from_usize(array.get() | short),
                );
            }
        }
        Some(directory.get())
    }

    /// Takes an array of `words` words, and counts it.
    pub(super) fn take_array(&self, words: usize) -> Option<NodeAddr> {
        let array = self.nodes.take(words)?;
        self.count_array(1, words);
        Some(array)
    }

    /// Frees an array that no other code knows.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - `array` was taken with `words` words, all of which are still zero, and no other code knows it.
    pub(super) unsafe fn give_array(&self, array: NodeAddr, words: usize) {
        self.count_array(-1, words);
        let freed = Freed::new(self.nodes.held(), 0);
        // SAFETY: by this function's contract the array is zero, and no other code knows it.
        unsafe { self.nodes.free(array, true) };
        freed.done();
    }

    /// Retires an array to which no word leads any more.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table;
    /// - `array` was taken with `words` words, and no word leads to it any more.
    pub(super) unsafe fn retire_array(&self, batch: &mut Retired<'n>, array: NodeAddr, words: usize) {
        // SAFETY: by this function's contract the batch came from this table, and no word leads to the array.
        unsafe { batch.push(array, false) };
        self.count_array(-1, words);
    }

    /// Adds the directory and the segments, or the array, to the tally.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    pub(super) unsafe fn count_arrays(&self) {
        let heads = self.buckets();
        if S::LOAD == 0 {
            return self.count_array(1, heads * Self::STRIDE);
        }
        let segment = heads.min(1 << Self::SEGMENT_LOG);
        for _ in (0..heads).step_by(segment) {
            self.count_array(1, segment * Self::STRIDE);
        }
        // SAFETY: by this function's contract the caller is the only writer, and the root is the current one.
        self.count_array(1, Self::directory_words(unsafe { self.entries(self.root()) }));
    }

    fn count_array(&self, sign: isize, words: usize) {
        self.tally.node(sign, words * F::Word::BYTES);
        self.growth.note_bytes(self.tally.bytes());
    }

    /// Retires every node of the table.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table;
    /// - no code uses the table any more.
    pub(super) unsafe fn retire_all(&self, batch: &mut Retired<'n>) {
        let heads = self.buckets();
        let root = self.root();
        // SAFETY: by this function's contract the caller is the only writer, and no other code uses the table any more.
        unsafe {
            // After this no bucket is in two chains, so each is retired once.
            self.part_all(batch);
            let segment = if S::LOAD == 0 { heads } else { heads.min(1 << Self::SEGMENT_LOG) };
            for number in (0..heads).step_by(segment) {
                let array =
                    if S::LOAD == 0 { NodeAddr::new(root & !LOG) } else { self.numbered(number).node };
                for at in 0..segment {
                    let mut spot = self.behind(Spot { node: array, at: at * Self::STRIDE });
                    while let Some(here) = spot {
                        spot = self.behind(here);
                        self.retire(batch, here.node);
                    }
                }
                self.retire_array(batch, array, segment * Self::STRIDE);
            }
            if S::LOAD > 0 {
                let words = Self::directory_words(self.entries(root));
                self.retire_array(batch, NodeAddr::new(root), words);
            }
        }
    }
}
