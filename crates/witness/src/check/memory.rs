//! The tables: words, the nodes that they are in, and the ways from the roots to them.

use std::vec::Vec;

use super::arch::{Arch, Entry, G};
use super::hash::{Map, Set};

/// The number of an event's line in the log.
pub(super) type Line = u64;

/// A word of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    pub(super) value: u64,
    /// The line in which the word's entry was stored.
    pub(super) since: Line,
    /// The CPU that stored it.
    pub(super) by: u8,
    /// The number of barriers that this CPU had executed before.
    pub(super) epoch: u64,
    /// Whether the word was an empty entry before.
    pub(super) new: bool,
}

/// A store by a CPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Store {
    pub(super) cpu: usize,
    pub(super) line: Line,
    /// The number of barriers that the CPU had executed before.
    pub(super) epoch: u64,
}

/// A page of memory that holds words of a table.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// The node's level, if links lead to it from a root that has been loaded: the logarithm of the bytes that one word covers. A node
    /// with a level is **placed**.
    pub(super) level: Option<u32>,
    /// The words that have been stored, one bit each.
    used: Vec<u64>,
    /// The words that link the node.
    pub(super) parents: Vec<u64>,
    pub(super) last: Option<Store>,
    /// The last store that changed a non-empty word, or a word with unknown contents.
    pub(super) unsettled: Option<Store>,
    /// The store that filled the node with zeros. The contents before it are not known.
    pub(super) filled: Option<Store>,
    /// Whether the node was taken while words linked it. Then a link of another level is a link to the node that it is now.
    remade: bool,
}

/// An entry that a walk finds below a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Below {
    pub(super) level: u32,
    /// The entry's first address, less the link's first address.
    pub(super) offset: u64,
    pub(super) entry: Entry,
    pub(super) since: Line,
}

#[derive(Debug)]
pub(super) struct Tables {
    pub(super) arch: Arch,
    /// Whether hardware sets the accessed and dirty bits.
    pub(super) dirty: bool,
    /// Whether a word has been part of a contiguous run: Svnapot, or AArch64's contiguous bit.
    pub(super) runs: bool,
    /// MIPS32: whether a word has mapped a larger page, or has had G.
    pub(super) overlaps: bool,
    words: Map<u64, Word>,
    pub(super) nodes: Map<u64, Node>,
    /// The words that map each frame, by the frame's size and address.
    pub(super) leaves: Map<(u32, u64), Vec<u64>>,
    /// Nodes that were given back, and not taken since.
    pub(super) freed: Set<u64>,
    /// The nodes of `freed` that a word of a placed node still links.
    pub(super) dangling: Set<u64>,
}

impl Tables {
    pub(super) fn new(arch: Arch) -> Self {
        let (words, nodes, leaves, freed, dangling) = Default::default();
        Self { arch, dirty: false, runs: false, overlaps: false, words, nodes, leaves, freed, dangling }
    }

    pub(super) fn word(&self, at: u64) -> Word {
        self.words.get(&at).copied().unwrap_or(Word { value: 0, since: 0, by: 0, epoch: 0, new: true })
    }

    pub(super) fn entry(&self, at: u64, level: u32) -> Entry {
        self.read(at, self.word(at).value, level)
    }

    /// Reads a word as if it held `value`.
    pub(super) fn read(&self, at: u64, value: u64, level: u32) -> Entry {
        let mut entry = self.arch.entry(value, level, self.dirty);
        // A TLB entry of MIPS32 is global if both halves of the pair have G.
        if let (Arch::Mips32, Entry::Leaf { shift: 12, global, .. }) = (self.arch, &mut entry) {
            *global &= self.word(at ^ 4).value & G != 0;
        }
        entry
    }

    pub(super) fn level(&self, node: u64) -> Option<u32> {
        self.nodes.get(&node)?.level
    }

    /// Stores a word that is in no table, or whose entry does not change.
    pub(super) fn put(&mut self, at: u64, word: Word) {
        let slot = at % self.arch.granule() / self.arch.word();
        let used = &mut self.nodes.entry(self.arch.node(at)).or_default().used;
        let group = (slot / 64) as usize;
        if used.len() <= group {
            used.resize(group + 1, 0);
        }
        used[group] |= 1 << (slot % 64);
        self.overlaps |= self.arch.may_overlap(word.value);
        self.words.insert(at, word);
    }

    /// Forgets a node and its words. Keeps the list of words that link the node.
    pub(super) fn remove(&mut self, node: u64) {
        for at in self.stored(node) {
            self.words.remove(&at);
        }
        if let Some(Node { level, parents, .. }) = self.nodes.remove(&node)
            && !parents.is_empty()
        {
            self.nodes.insert(node, Node { level, parents, ..Node::default() });
        }
    }

    /// Records that a node was given back.
    pub(super) fn free(&mut self, node: u64) {
        self.freed.insert(node);
        if self.nodes.contains_key(&node) {
            self.dangling.insert(node);
        }
    }

    /// Records that a node was taken and filled with zeros.
    pub(super) fn take(&mut self, node: u64, store: Store) {
        self.freed.remove(&node);
        self.dangling.remove(&node);
        let found = self.nodes.entry(node).or_default();
        found.remade = !found.parents.is_empty();
        (found.last, found.unsettled, found.filled) = (Some(store), Some(store), Some(store));
    }

    /// Returns the addresses of a node's words that are not zero.
    pub(super) fn used(&self, node: u64) -> Vec<u64> {
        let mut words = self.stored(node);
        words.retain(|&at| self.word(at).value != 0);
        words
    }

    fn stored(&self, node: u64) -> Vec<u64> {
        let used: &[u64] = self.nodes.get(&node).map_or(&[], |found| &found.used);
        let word = self.arch.word();
        let one = |(group, &bits): (usize, &u64)| {
            (0..64)
                .filter(move |bit| bits >> bit & 1 != 0)
                .map(move |bit| node + (group as u64 * 64 + bit) * word)
        };
        used.iter().enumerate().flat_map(one).collect()
    }

    /// Gives a node its level, and the nodes below it theirs.
    pub(super) fn place(&mut self, node: u64, level: u32) {
        let found = self.nodes.entry(node).or_default();
        let other = found.level.filter(|&of| of != level);
        // A table that links itself is not followed.
        if found.level.is_some() && !(other.is_some() && found.remade) {
            return;
        }
        found.remade = false;
        if let Some(before) = other {
            found.parents.clear();
            // What was stored since it was taken has been read as entries of the level that links from before give it.
            for at in self.used(node) {
                self.part(at, before);
            }
        }
        self.nodes.entry(node).or_default().level = Some(level);
        for at in self.used(node) {
            self.join(at, level);
        }
    }

    /// Adds the entry of a placed node's word to the lists of links and leaves.
    pub(super) fn join(&mut self, at: u64, level: u32) {
        match self.entry(at, level) {
            Entry::Absent => {}
            Entry::Leaf { frame, shift, .. } => {
                self.runs |= shift > level && !self.arch.is_software();
                self.leaves.entry((shift, frame)).or_default().push(at);
            }
            Entry::Link { node, .. } => {
                let below = level - self.arch.step();
                self.place(node, below);
                if let Some(found) = self.nodes.get_mut(&node).filter(|found| found.level == Some(below)) {
                    found.parents.push(at);
                    if self.freed.contains(&node) {
                        self.dangling.insert(node);
                    }
                }
            }
        }
    }

    /// Removes the entry of a placed node's word from the lists of links and leaves.
    pub(super) fn part(&mut self, at: u64, level: u32) {
        match self.entry(at, level) {
            Entry::Absent => {}
            Entry::Leaf { frame, shift, .. } => {
                if let Some(words) = self.leaves.get_mut(&(shift, frame)) {
                    words.retain(|&word| word != at);
                    if words.is_empty() {
                        self.leaves.remove(&(shift, frame));
                    }
                }
            }
            Entry::Link { node, .. } => {
                if let Some(found) = self.nodes.get_mut(&node) {
                    found.parents.retain(|&word| word != at);
                    if found.parents.is_empty() && self.dangling.remove(&node) {
                        found.level = None;
                    }
                }
            }
        }
    }

    /// Returns all entries in and below a node, each with the rights that it has behind `rights` and the links on the way.
    pub(super) fn below(&self, node: u64, rights: u8) -> Vec<Below> {
        let mut found = Vec::new();
        if let Some(level) = self.level(node) {
            self.collect(node, level, 0, rights, 0, &mut found);
        }
        found
    }

    fn collect(&self, node: u64, level: u32, base: u64, rights: u8, since: Line, found: &mut Vec<Below>) {
        for at in self.used(node) {
            let (offset, since) = (base + self.arch.offset(at, level), since.max(self.word(at).since));
            let entry = self.entry(at, level).limited(rights);
            match entry {
                Entry::Absent => {}
                Entry::Leaf { .. } => found.push(Below { level, offset, entry, since }),
                Entry::Link { node, rights } => {
                    found.push(Below { level, offset, entry, since });
                    let below = level - self.arch.step();
                    if self.level(node) == Some(below) {
                        self.collect(node, below, offset, rights, since, found);
                    }
                }
            }
        }
    }

    /// Returns the entries of a table above, at and below the place of an entry of `level` for `va`.
    pub(super) fn along(&self, root: u64, level: u32, va: u64) -> Vec<Below> {
        let (mut node, mut found) = (root, Vec::new());
        let Some(mut at) = self.level(node) else { return found };
        loop {
            let word = self.arch.slot(node, at, va);
            let (entry, since) = (self.entry(word, at), self.word(word).since);
            found.push(Below { level: at, offset: 0, entry, since });
            match entry {
                Entry::Link { node: next, .. } if at > level => (node, at) = (next, at - self.arch.step()),
                Entry::Link { node: next, .. } => {
                    found.extend(self.below(next, super::arch::rights::ALL));
                    return found;
                }
                _ => return found,
            }
            if self.level(node) != Some(at) {
                return found;
            }
        }
    }

    /// Adds the ranges of addresses from `first` to `last` for which two nodes of `level` lead to the same node. Addresses are counted
    /// from the first address of the two nodes.
    pub(super) fn shared(
        &self,
        (one, two): (u64, u64),
        level: u32,
        (first, last): (u64, u64),
        found: &mut Vec<(u64, u64)>,
    ) {
        if one == two {
            return found.push((first, last));
        }
        if level == self.arch.levels()[0] {
            return;
        }
        for at in self.used(one) {
            let from = first >> (level + self.arch.step()) << (level + self.arch.step());
            let from = from | self.arch.offset(at, level);
            let to = from + ((1 << level) - 1);
            let other = self.arch.slot(two, level, from);
            if let (Entry::Link { node, .. }, Entry::Link { node: next, .. }) =
                (self.entry(at, level), self.entry(other, level))
                && from <= last
                && first <= to
            {
                let range = (from.max(first), to.min(last));
                self.shared((node, next), level - self.arch.step(), range, found);
            }
        }
    }

    /// Returns the entries of all words of the contiguous run that covers an address. The address is counted from the root's first
    /// address.
    pub(super) fn beside(&self, root: u64, va: u64) -> Vec<Below> {
        let (Some(mut level), mut node) = (self.level(root), root) else { return Vec::new() };
        while let Entry::Link { node: next, .. } = self.entry(self.arch.slot(node, level, va), level) {
            if self.level(next) != Some(level - self.arch.step()) {
                return Vec::new();
            }
            (node, level) = (next, level - self.arch.step());
        }
        let Some(run) = self.arch.sizes().find(|size| (level + 1..level + 9).contains(size)) else {
            return Vec::new();
        };
        let first = va >> run << (run - level);
        let words = first..first + (1 << (run - level));
        words
            .filter_map(|key| {
                let at = self.arch.slot(node, level, key << level);
                let (entry, since) = (self.entry(at, level), self.word(at).since);
                let joins = matches!(entry, Entry::Leaf { shift, .. } if shift == run);
                joins.then_some(Below { level, offset: key << level, entry, since })
            })
            .collect()
    }

    /// Walks from a node for `va`, which is counted from the node's first address. Returns the entry that ends the walk, with the rights
    /// that it has behind `rights` and the links on the way.
    pub(super) fn walk(&self, node: u64, va: u64, rights: u8) -> Entry {
        self.find(node, va).map_or(Entry::Absent, |(_, entry, _)| entry).limited(rights)
    }

    /// Returns the level of the word that ends a walk: the logarithm of the bytes that the word covers.
    pub(super) fn reach(&self, mut node: u64, va: u64) -> u32 {
        let Some(mut level) = self.level(node) else { return self.arch.top() };
        loop {
            match self.entry(self.arch.slot(node, level, va), level) {
                Entry::Link { node: next, .. } if self.level(next) == Some(level - self.arch.step()) => {
                    (node, level) = (next, level - self.arch.step());
                }
                _ => return level,
            }
        }
    }

    /// Walks as [`walk`](Self::walk) does. Returns the level of the entry that ends the walk, the entry, and the line since which no word on
    /// the way has changed.
    pub(super) fn find(&self, node: u64, va: u64) -> Option<(u32, Entry, Line)> {
        let (mut node, mut left, mut since) = (node, super::arch::rights::ALL, 0);
        let mut level = self.level(node)?;
        loop {
            let at = self.arch.slot(node, level, va);
            since = since.max(self.word(at).since);
            match self.entry(at, level).limited(left) {
                Entry::Link { node: next, rights } if self.level(next) == Some(level - self.arch.step()) => {
                    (node, left, level) = (next, rights, level - self.arch.step());
                }
                Entry::Link { .. } => return None,
                end => return Some((level, end, since)),
            }
        }
    }
}

impl Entry {
    /// Returns the entry without the rights that `limit` does not have.
    pub(super) fn limited(self, limit: u8) -> Self {
        match self {
            Self::Absent => self,
            Self::Leaf { frame, shift, rights, global, memory } => {
                Self::Leaf { frame, shift, rights: rights & limit, global, memory }
            }
            Self::Link { node, rights } => Self::Link { node, rights: rights & limit },
        }
    }
}
