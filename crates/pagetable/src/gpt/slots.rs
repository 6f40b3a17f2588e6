//! The constants that follow from a table's geometry, format and layout; the writer's accesses to slots, tags and live counts.

use core::ops::Range;

use tlbkit_addr::{PageSize, VirtAddr};

use super::guard::{digit, low};
use super::layout::{Edge, Layout};
use super::node_size::NodeSize;
use super::path::{DEPTH, Path};
use super::{Gpt, MAX_WIDTH};
use crate::format::{Format, absent_beside, entry_of};
use crate::mode::Mode;
use crate::nodes::{NodeAddr, Nodes, Record};
use crate::word::atomics::Ordering;
use crate::{Entry, Geometry, Half, Leaf, Retired, Word};

/// The kinds of nodes: indexing ones by width (from 1), then leaves by width (from 0).
pub(super) const KINDS: usize = MAX_WIDTH + LEAF_WIDTHS;

/// Leaves have up to 16 PTEs.
pub(super) const LEAF_WIDTHS: usize = 5;

/// The kind of an indexing node.
pub(super) const fn inner_kind(width: u32) -> usize {
    width as usize - 1
}

/// The kind of a leaf.
pub(super) const fn leaf_kind(width: u32) -> usize {
    MAX_WIDTH + width as usize
}

/// The position of a slot.
#[derive(Clone, Copy)]
pub(super) enum Place {
    Root,
    In(NodeAddr, usize),
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'n, G, F, N, L, P> {
    /// The position of the lowest bit of a page number.
    pub(super) const BASE: u32 = {
        // A leaf is copied when it grows or shrinks, and hardware might set status bits in the old copy.
        assert!(!F::STATUS, "no hardware walks a guarded page table");
        assert!(P::WIDTH <= L::MAX_WIDTH, "a slot cannot express nodes of this size");
        assert!(
            (G::VA_BITS - G::BASE.shift()) as usize <= DEPTH,
            "pages are smaller than a path has room for"
        );
        assert!(
            !L::PAIRS || F::PAIRED && F::BREAK && F::EXTRA == 0 && G::VA_BITS == 32 && G::BASE.shift() == 12,
            "a TLB entry's layout is for 32-bit addresses of 4 KiB pages, in entries of pairs"
        );
        let mut at = 0;
        while L::PAIRS && at < G::SIZES.len() {
            let shift = G::SIZES[at].shift();
            assert!(
                shift % 2 == 0 && shift <= 26,
                "PageMask has powers of four, and a tag those up to 64 MiB"
            );
            at += 1;
        }
        assert!(usize::BITS <= 64 && F::LINK_ALIGN <= 8);
        G::BASE.shift()
    };

    /// The logarithm of the number of PTEs for which the smallest leaf has room: both PTEs of a pair, even if one page is mapped.
    pub(super) const ROOM_WIDTH: u32 = if F::PAIRED || F::EXTRA > 0 || !L::TAGGED { 1 } else { 0 };

    /// The logarithm of the number of PTEs of the smallest leaf of base pages.
    pub(super) const MIN_LEAF_WIDTH: u32 = if L::TAGGED { Self::ROOM_WIDTH } else { 1 };

    /// The logarithm of the number of PTEs of the largest leaf of base pages. A leaf is no larger than the next page size, so a
    /// larger page never shares a leaf's region with base pages.
    pub(super) const MAX_LEAF_WIDTH: u32 = if L::TAGGED && !L::PAIRS {
        let gap = if G::SIZES.len() > 1 {
            G::SIZES[1].shift() - G::BASE.shift()
        } else {
            G::VA_BITS - G::BASE.shift()
        };
        if gap < LEAF_WIDTHS as u32 - 1 { gap } else { LEAF_WIDTHS as u32 - 1 }
    } else {
        1
    };

    /// The position above the digit of the largest leaf of base pages.
    pub(super) const LEAF_TOP: u32 = Self::BASE + Self::MAX_LEAF_WIDTH;

    /// The largest logarithm of a node's slots.
    pub(super) const WIDEST: u32 =
        if P::ADAPTIVE && L::GROWN_WIDTH < P::WIDTH { L::GROWN_WIDTH } else { P::WIDTH };

    /// The largest logarithm of the slots of a node that a range of neighbours fills at once. Such a node may be wider than
    /// [`WIDEST`](Self::WIDEST), because several nodes of that size share a page of the storage.
    pub(super) const RANGE_WIDTH: u32 = if Self::WIDEST + 2 < P::WIDTH { Self::WIDEST + 2 } else { P::WIDTH };

    /// Returns the logarithm of the number of bytes that a leaf of pages of `2^page` bytes covers: a page, or a pair.
    pub(super) const fn unit(page: u32) -> u32 {
        if L::PAIRS { page + 1 } else { page }
    }

    /// The words of a leaf's tag.
    pub(super) const TAG: usize = if !L::TAGGED {
        0
    } else if G::VA_BITS <= F::Word::BITS && matches!(G::HALF, Half::Lower) || F::Word::BITS >= usize::BITS {
        1
    } else {
        2
    };

    /// Whether a tag holds all bits of an address.
    pub(super) const TAG_IS_WHOLE: bool = Self::TAG * F::Word::BITS as usize >= usize::BITS as usize;

    /// The words of a node by kind.
    pub(super) const WORDS: [usize; KINDS] = {
        let mut words = [0; KINDS];
        let mut width = 1;
        while width <= MAX_WIDTH {
            let full = if width < L::FULL_WIDTH as usize { L::FULL_WIDTH as usize } else { width };
            words[inner_kind(width as u32)] = L::WORDS << full;
            width += 1;
        }
        let mut width = 0;
        while width < LEAF_WIDTHS as u32 {
            let room = if width < Self::ROOM_WIDTH { Self::ROOM_WIDTH } else { width };
            words[leaf_kind(width)] = Self::TAG + ((1 + F::EXTRA) << room);
            width += 1;
        }
        words
    };

    /// Returns the bytes of memory that an indexing node of `2^width` slots takes. The choice of node sizes minimises their sum.
    pub(super) const fn cost(width: u32) -> isize {
        ((L::WORDS << width) * F::Word::BYTES + L::BESIDE) as isize
    }

    /// Returns the position in its leaf of the PTE with this index. Before it are the tag, the PTEs with lower indexes, and the
    /// other words of the pairs before its own.
    #[inline(always)]
    pub(super) const fn pte(index: usize) -> usize {
        Self::TAG + index + (index & !1) * F::EXTRA
    }

    /// Whether the PTEs of a leaf are consecutive words, and no PTE depends on its neighbour.
    pub(super) const IN_A_ROW: bool = !F::PAIRED && F::EXTRA == 0;

    /// Returns the position in its leaf of the PTE of the page at `at`. If only one half of a pair is mapped, its PTE has the
    /// position that it has beside the other.
    #[inline(always)]
    pub(super) fn pte_of(edge: Edge, at: usize) -> usize {
        Self::pte(digit(at, edge.shift, edge.width.max(Self::ROOM_WIDTH)))
    }

    /// Returns the kind of the node at an edge.
    pub(super) const fn kind(edge: Edge) -> usize {
        if edge.is_leaf() { leaf_kind(edge.width) } else { inner_kind(edge.width) }
    }

    /// Returns the position of the highest bit in which two keys differ, 0 if there is none.
    pub(super) fn top_bit(differ: usize) -> u32 {
        differ.checked_ilog2().unwrap_or(0)
    }

    /// Returns the key of an address: its significant bits. In keys, a space of two halves has no hole, and one of the upper half begins at 0.
    #[inline(always)]
    pub(super) const fn key(at: usize) -> usize {
        if matches!(G::HALF, Half::Lower) { at } else { at & low(G::VA_BITS) }
    }

    /// Returns the address of a key.
    #[inline(always)]
    pub(super) const fn address(key: usize) -> usize {
        match G::HALF {
            Half::Lower => key,
            Half::Upper => key | !low(G::VA_BITS),
            Half::Both => {
                let spare = usize::BITS - G::VA_BITS;
                (((key << spare) as isize) >> spare) as usize
            }
        }
    }

    /// Decodes a PTE.
    #[inline(always)]
    pub(super) fn leaf(word: F::Word, shift: u32, at: usize) -> Leaf {
        let size = PageSize::from_shift(shift).unwrap_or(G::BASE);
        Leaf {
            at: VirtAddr::new(Self::address(at) & !size.mask()),
            size,
            frame: F::frame(word, size),
            attr: F::attr(word, true),
        }
    }

    /// Decodes a word of a leaf: a PTE, a mark, or nothing.
    #[inline(always)]
    pub(super) fn entry(word: F::Word, shift: u32, at: usize) -> Entry {
        entry_of::<F>(word, |word| Self::leaf(word, shift, at))
    }

    /// Loads and decodes a slot as the writer.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the place is a slot of this table, or of a new node.
    #[inline(always)]
    pub(super) unsafe fn edge(&self, place: Place, ceiling: u32, at: usize) -> Edge {
        // SAFETY: by this function's contract the caller is the writer, and the place is a slot of the table or of a new node.
        unsafe { L::edge(self.nodes, |word| self.slot_word(place, word), ceiling, at) }
    }

    /// Loads a word of a slot as the writer.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the place is a slot of this table, or of a new node, and `word` is below the words of a slot.
    #[inline(always)]
    unsafe fn slot_word(&self, place: Place, word: usize) -> F::Word {
        // SAFETY: the root has as many cells as a slot has words. By this function's contract the caller is the writer, and another
        // place is a slot of a node.
        unsafe {
            match place {
                Place::Root => N::Mode::read(L::cells(&self.root).add(word)),
                Place::In(node, slot) => self.nodes.read(node, slot * L::WORDS + word),
            }
        }
    }

    /// Publishes an edge: a walker that loads it finds the subtree below it complete. Every change of the tree ends with this
    /// store.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the place is a slot of this table, and the subtree to which the edge leads is complete.
    #[inline(always)]
    pub(super) unsafe fn publish(&self, place: Place, ceiling: u32, edge: Edge) {
        let words = L::words(edge, ceiling);
        for word in 0..L::WORDS {
            // SAFETY: the root has as many cells as a slot has words. By this function's contract the caller is the writer, and
            // another place is a slot of a node.
            unsafe {
                match place {
                    Place::Root => N::Mode::publish(L::cells(&self.root).add(word), words[word]),
                    Place::In(node, slot) => self.nodes.publish(node, slot * L::WORDS + word, words[word]),
                }
            }
        }
    }

    /// Stores an edge in a node that no walker can reach yet.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and `slot` is a slot of `node`, a new node, which no walker can reach.
    pub(super) unsafe fn store_edge(&self, node: NodeAddr, slot: usize, ceiling: u32, edge: Edge) {
        let words = L::words(edge, ceiling);
        for word in 0..L::WORDS {
            // SAFETY: by this function's contract the caller is the writer, and the slot is in the node.
            unsafe { self.nodes.store_relaxed(node, slot * L::WORDS + word, words[word]) };
        }
    }

    /// Returns the number of words of a node of a kind. Every kind has an element in [`WORDS`](Self::WORDS).
    #[inline(always)]
    pub(super) fn words(kind: usize) -> usize {
        Self::WORDS.get(kind).map_or(0, |&words| words)
    }

    /// Returns the record of a node, which counts the slots in use.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the edge leads to a node or leaf of this table, or to a new one.
    #[inline(always)]
    pub(super) unsafe fn record(&self, edge: Edge) -> &Record {
        // SAFETY: by this function's contract the node is in the table, or new, and only the caller changes records.
        unsafe { &*self.nodes.record(edge.node, Self::words(Self::kind(edge))) }
    }

    /// Returns how many slots of a node are in use.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the edge leads to a node or leaf of this table, or to a new one.
    #[inline(always)]
    pub(super) unsafe fn live(&self, edge: Edge) -> usize {
        // SAFETY: by this function's contract the caller is the writer, and the node is in the table, or new.
        unsafe { self.record(edge).load(Ordering::Relaxed) as usize }
    }

    /// Sets how many slots of a node are in use.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the edge leads to a node or leaf of this table, or to a new one.
    #[inline(always)]
    pub(super) unsafe fn set_live(&self, edge: Edge, live: usize) {
        // SAFETY: by this function's contract the caller is the writer, and the node is in the table, or new.
        unsafe { self.record(edge).store(live as u32, Ordering::Relaxed) };
    }

    /// Adds to the number of slots of a node that are in use.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the edge leads to a node or leaf of this table, or to a new one.
    #[inline(always)]
    pub(super) unsafe fn add_live(&self, edge: Edge, more: usize) {
        // SAFETY: by this function's contract the caller is the writer, and the node is in the table, or new.
        let record = unsafe { self.record(edge) };
        record.store(record.load(Ordering::Relaxed) + more as u32, Ordering::Relaxed);
    }

    /// Counts a new node or leaf in the table's footprint.
    pub(super) fn count_in(&self, edge: Edge) {
        let bytes = Self::words(Self::kind(edge)) * F::Word::BYTES;
        if edge.is_leaf() { self.tally.leaf(1, bytes) } else { self.tally.node(1, bytes) }
    }

    /// Passes a node or leaf to the batch. When the change is over, no slot of the table leads to it.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and the edge leads to a node or leaf of this table. When the
    /// change is over, no slot of the table leads to that node or leaf.
    pub(super) unsafe fn retire(&self, batch: &mut Retired<'n>, edge: Edge) {
        let words = Self::words(Self::kind(edge));
        // SAFETY: by this function's contract the node and the batch are of this table, and no slot leads to the node when the
        // change is over.
        unsafe { batch.push_sized(self.nodes, edge.node, words, false) };
        let bytes = words * F::Word::BYTES;
        if edge.is_leaf() {
            self.tally.leaf(-1, bytes);
        } else {
            self.tally.node(-1, bytes);
        }
    }

    /// Retires a node with everything below it, in a loop.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and the edge leads to a node or leaf of this table. When the
    /// change is over, no slot of the table leads to it, nor to anything below it.
    #[inline(never)]
    pub(super) unsafe fn discard(&self, batch: &mut Retired<'n>, edge: Edge) {
        // SAFETY: by this function's contract the caller is the writer, and no slot leads to a node below the edge when the change
        // is over; slots are within their nodes.
        unsafe {
            if edge.is_leaf() {
                self.tally.ptes(-(self.live(edge) as isize));
                self.retire(batch, edge);
                return;
            }
            let mut path = Path::new();
            let mut last = Edge::EMPTY;
            path.push(self.nodes, edge, 0);
            while let Some(level) = path.levels().last_mut() {
                let (node, slot) = (level.edge(self.nodes), level.slot as usize);
                if slot >= node.slots() {
                    path.pop();
                    self.retire(batch, node);
                    continue;
                }
                level.slot += 1;
                let child = self.edge(Place::In(node.node, slot), node.shift, 0);
                if child.is_empty() || child == last {
                    continue;
                }
                last = child;
                if child.is_leaf() {
                    self.tally.ptes(-(self.live(child) as isize));
                    self.retire(batch, child);
                } else {
                    path.push(self.nodes, child, 0);
                }
            }
        }
    }

    /// Retires the nodes and leaves to which some slots of a node lead, with everything below.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and `node` is a node of this table. When the change is over,
    /// no slot of the table leads to what these slots lead to.
    pub(super) unsafe fn discard_slots(&self, batch: &mut Retired<'n>, node: Edge, slots: Range<usize>) {
        let mut last = Edge::EMPTY;
        for slot in slots {
            // SAFETY: by this function's contract the caller is the writer; the slots are within the node.
            unsafe {
                let child = self.edge(Place::In(node.node, slot), node.shift, 0);
                if !child.is_empty() && child != last {
                    self.discard(batch, child);
                }
                last = child;
            }
        }
    }

    /// Counts the entries of a node. Neighbouring slots that one page occupies are one entry.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and `node` is a node of this table, or a new one.
    pub(super) unsafe fn entries(&self, node: Edge) -> usize {
        let mut last = Edge::EMPTY;
        (0..node.slots())
            .filter(|&slot| {
                // SAFETY: by this function's contract the caller is the writer; the slots are within the node.
                let child = unsafe { self.edge(Place::In(node.node, slot), node.shift, 0) };
                let another = !child.is_empty() && child != last;
                last = child;
                another
            })
            .count()
    }

    /// Returns a key in a leaf below an edge: `at`, if the walk for `at` ends at a leaf that covers it. If the walk comes to an empty
    /// slot, it goes on from the first slot of that node that is in use. Returns `None` if the node has no such slot, which only a
    /// walker beside the writer may find.
    ///
    /// Costs a walk to a leaf.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the only writer, and the edge leads to a node or leaf of this table.
    pub(super) unsafe fn nearest(&self, mut edge: Edge, mut at: usize) -> Option<usize> {
        // SAFETY: by this function's contract the caller is pinned, or the writer, so no node below the edge is freed meanwhile;
        // the slots are within their nodes.
        unsafe {
            loop {
                if !L::TAGGED {
                    // The guard holds the address of the subtree's region.
                    at = edge.base | at & low(edge.top());
                }
                if edge.is_leaf() {
                    // The low bits are those of `at`, so the result is in the half of the pair that covers the slot of the walk.
                    return Some(if L::TAGGED {
                        self.tag(edge.node) | at & low(edge.top())
                    } else {
                        edge.base
                    });
                }
                let child_in = |slot: usize, at| self.follow_edge(edge.node, slot, edge.shift, at);
                let mut child = child_in(edge.index(at), at);
                if child.is_empty() {
                    let slot = (0..edge.slots()).find(|&slot| !child_in(slot, at).is_empty())?;
                    at = at & !(low(edge.top()) & !low(edge.shift)) | slot << edge.shift;
                    child = child_in(slot, at);
                    if child.is_empty() {
                        return None;
                    }
                }
                edge = child;
            }
        }
    }

    /// Loads and decodes a slot as a walker.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the only writer, and `slot` is a slot of `node`, to which a slot of this table leads, or led when
    /// the caller loaded that slot.
    #[inline(always)]
    pub(super) unsafe fn follow_edge(&self, node: NodeAddr, slot: usize, ceiling: u32, at: usize) -> Edge {
        // SAFETY: by this function's contract the caller is pinned, or the writer, and the slot is one of a node of the table.
        unsafe { L::edge(self.nodes, |word| self.nodes.follow(node, slot * L::WORDS + word), ceiling, at) }
    }

    /// Loads and decodes the root slot as a walker.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the only writer.
    #[inline(always)]
    pub(super) unsafe fn follow_root(&self) -> Edge {
        // SAFETY: the root has as many cells as a slot has words. By this function's contract the caller is pinned, or the writer.
        // The root slot covers the `2^VA_BITS` bytes of the address space.
        unsafe { L::edge(self.nodes, |word| F::Word::follow(L::cells(&self.root).add(word)), G::VA_BITS, 0) }
    }

    /// Reads the tag of a leaf, and returns the key at which the leaf begins. In memory the tag is an address, because walkers
    /// compare it with an address.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the only writer, and `leaf` is a leaf to which a slot of this table leads, or led when the caller
    /// loaded that slot.
    #[inline(always)]
    pub(super) unsafe fn tag(&self, leaf: NodeAddr) -> usize {
        // SAFETY: by this function's contract the caller is pinned, or the writer, and `leaf` is a leaf, which has its tag words.
        unsafe {
            let tag = self.nodes.follow(leaf, 0).to_usize();
            Self::key(L::tagged(if Self::TAG == 2 {
                tag | self.nodes.follow(leaf, 1).to_usize() << (usize::BITS / 2)
            } else {
                tag
            }))
        }
    }

    /// Writes the tag of a new leaf.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and `leaf` is a new leaf, which no walker can reach.
    pub(super) unsafe fn store_tag(&self, leaf: Edge, base: usize) {
        let tag = L::tag(Self::address(base), leaf);
        // SAFETY: by this function's contract the leaf is new, and no walker can reach it; it has its tag words.
        unsafe {
            if Self::TAG > 0 {
                self.nodes.store_relaxed(leaf.node, 0, F::Word::from_usize(tag));
            }
            if Self::TAG == 2 {
                self.nodes.store_relaxed(leaf.node, 1, F::Word::from_usize(tag >> (usize::BITS / 2)));
            }
        }
    }

    /// Adapts the other PTE of a pair after the PTE of `at` has changed: the hardware requires some bits to be equal in both.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the edge leads to a leaf of this table, or to a new one, that covers `at`.
    #[inline(always)]
    pub(super) unsafe fn settle_pair(&self, edge: Edge, at: usize) {
        if F::PAIRED {
            let (one, other) = (Self::pte_of(edge, at), Self::pte_of(edge, at ^ 1 << edge.shift));
            for (a, b) in [(one, other), (other, one)] {
                // SAFETY: by this function's contract the caller is the writer; a paired leaf has both words.
                unsafe {
                    let (changed, now) = (self.nodes.read(edge.node, a), self.nodes.read(edge.node, b));
                    let wanted = if F::is_leaf(now, true) {
                        F::beside(changed, now)
                    } else {
                        absent_beside::<F>(changed, now)
                    };
                    if wanted != now {
                        self.nodes.publish(edge.node, b, wanted);
                    }
                }
            }
        }
    }
}
