//! The tables: words, the nodes that they are in, and the ways from the roots to them.

use std::vec::Vec;

use super::arch::{Arch, Entry, G};
use super::hash::{Map, Set};

/// Where one event stands in the log: the number of its line.
pub(super) type Line = u64;

/// A word of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    pub(super) value: u64,
    /// When what it says to a walker was stored.
    pub(super) since: Line,
    /// By which CPU.
    pub(super) by: u8,
    /// How many barriers that CPU had executed.
    pub(super) epoch: u64,
    /// It said nothing before.
    pub(super) new: bool,
}

/// A store, by its CPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Store {
    pub(super) cpu: usize,
    pub(super) line: Line,
    /// How many barriers the CPU had executed.
    pub(super) epoch: u64,
}

/// A page of memory that holds words of a table.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// Its level, once it hangs under a root that has been loaded: how many bits of an address one of its words stands for.
    pub(super) level: Option<u32>,
    /// Which of its words have been stored.
    used: Vec<u64>,
    /// The words that link it.
    pub(super) parents: Vec<u64>,
    pub(super) last: Option<Store>,
    /// The last store to a word that said something else before, or whose contents were not known.
    pub(super) unsettled: Option<Store>,
    /// When it was filled with zeros: what it held before is not known.
    pub(super) filled: Option<Store>,
    /// It was taken while words linked it: a link of another level is one of what it is now.
    remade: bool,
}

/// What is found below a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Below {
    pub(super) level: u32,
    /// From the first address of the link.
    pub(super) offset: u64,
    pub(super) entry: Entry,
    pub(super) since: Line,
}

#[derive(Debug)]
pub(super) struct Tables {
    pub(super) arch: Arch,
    /// Hardware sets the accessed and dirty bits.
    pub(super) dirty: bool,
    /// A word has been one of a run: Svnapot, or the contiguous bit.
    pub(super) runs: bool,
    /// MIPS32: a word has been that of a larger page, or has had G.
    pub(super) overlaps: bool,
    words: Map<u64, Word>,
    pub(super) nodes: Map<u64, Node>,
    /// The words that map a frame: by its size and its address.
    pub(super) leaves: Map<(u32, u64), Vec<u64>>,
    /// Nodes that were given back, and not taken since.
    pub(super) freed: Set<u64>,
    /// Those of them that a word of a placed node still links.
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
        // A pair of MIPS32 is global if both halves say so.
        if let (Arch::Mips32, Entry::Leaf { shift: 12, global, .. }) = (self.arch, &mut entry) {
            *global &= self.word(at ^ 4).value & G != 0;
        }
        entry
    }

    pub(super) fn level(&self, node: u64) -> Option<u32> {
        self.nodes.get(&node)?.level
    }

    /// Stores a word that no table has, or that says the same to a walker as before.
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

    /// Forgets a node and its words, but for what links it.
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

    /// Notes that a node was given back.
    pub(super) fn free(&mut self, node: u64) {
        self.freed.insert(node);
        if self.nodes.contains_key(&node) {
            self.dangling.insert(node);
        }
    }

    /// Notes that a node was taken and filled with zeros.
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

    /// Makes a node one of `level`, and what it links nodes of the levels below.
    pub(super) fn place(&mut self, node: u64, level: u32) {
        let found = self.nodes.entry(node).or_default();
        let other = found.level.is_some_and(|of| of != level);
        // A table that links itself is not followed.
        if found.level.is_some() && !(other && found.remade) {
            return;
        }
        if core::mem::take(&mut found.remade) && other {
            found.parents.clear();
        }
        found.level = Some(level);
        for at in self.used(node) {
            self.join(at, level);
        }
    }

    /// Notes what a word of a placed node says.
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

    /// Forgets what a word of a placed node says.
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

    /// Returns all entries in and below a node, with the rights that the way to them leaves.
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

    /// Returns the entries of a table that an entry of `level` for `va` would stand beside: on the way to it, at its place,
    /// and below.
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

    /// Adds the addresses from `first` to `last`, counted from the first of two nodes of `level`, for which both lead to one node.
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

    /// Returns what the words say of an address whose contiguous run it is in, from the root's first.
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

    /// Walks from a node at `va`, an address from the node's first: returns what ends the walk, with the rights that the way
    /// leaves.
    pub(super) fn walk(&self, node: u64, va: u64, rights: u8) -> Entry {
        self.find(node, va).map_or(Entry::Absent, |(_, entry, _)| entry).limited(rights)
    }

    /// Returns how many bits of an address the word stands for that ends a walk.
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

    /// Walks likewise: returns the level of what ends the walk, and since when all words on the way have been what they are.
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
    /// Takes rights away that the way does not leave.
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
