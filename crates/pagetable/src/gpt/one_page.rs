//! Changes of one base page that change one slot of the tree, or none: a walk and a store.
//!
//! | change | case | stores |
//! |-|-|-|
//! | map | a leaf covers the page | the PTE |
//! | map | the page's slot leads to a leaf of other pages, and one leaf for these and the page is [worth](Gpt::worth) its memory | a link to this wider leaf, which has the PTEs of the old leaf |
//! | map | the page's slot is empty | a link to a new leaf |
//! | map | the page differs from a guard | a link to a new node of two entries: a new leaf, and the old contents of the slot |
//! | unmap | the leaf stays as it is | the PTE |
//! | unmap | one page is left in a leaf of four or more | the PTE, and a link to a new leaf of the smallest size |
//! | unmap | the leaf is empty | the PTE, and the slot; if its node has one entry left, the slot above, which gets that entry |
//!
//! So a map needs no dry run: it takes at most two nodes, both before it changes anything. An unmap that leaves one page takes the
//! node for the small leaf after it has stored the PTE; if there is no memory, the large leaf stays. In the layouts whose leaves are
//! pairs a page may need more nodes; then a general [insertion](super::insert) or [removal](super::unmap) makes the
//! change. A leaf that grows at least doubles, so `n` neighbouring pages that are mapped one by one copy fewer than `n` PTEs.
//!
//! Tuning ([`tune`](super::tune)) follows only the changes after which a step may pay:
//!
//! - After a leaf is linked in a slot that was empty, no step pays: a node grows by the bits of nodes below it, and becomes smaller
//!   when it has fewer entries.
//! - After a new node is linked, a step can pay only if the node is right below the digit of the node above, or if it has a narrow
//!   node right below its own digit.
//! - With the new page, all pages below a node may be worth one leaf, if the node's region is no larger than that of a leaf can be
//!   ([`join_path`](Gpt::join_path)).
//! - After a slot of a node became empty, the adaptive nodes at which a step may pay are tuned ([`unmap_last`](Gpt::unmap_last)).

use tlbkit_addr::{FlushScope, Pages};

use super::Gpt;
use super::guard::{agree, low};
use super::layout::{Edge, Holds, Layout};
use super::node_size::NodeSize;
use super::slots::{Place, inner_kind, leaf_kind};
use super::tune::Which;
use super::walk::End;
use crate::format::{Format, is_taken};
use crate::mode::Mode;
use crate::nodes::{Nodes, Spare};
use crate::word::atomics::Ordering;
use crate::{Change, Error, Geometry, Retired, Word};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'n, G, F, N, L, P> {
    /// Whether a base page is always in a leaf of base pages, to which one slot leads.
    pub(super) const PLAIN: bool = L::TAGGED && !L::PAIRS;

    /// Stores a PTE or a mark for one base page, if a change of at most one slot is sufficient. If it is not, returns `None`, and
    /// the page is not mapped and has no mark. Otherwise returns the result of the change, after which the batch flushes the page
    /// on the CPUs of `reach`.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and `pages` is one base page.
    #[inline(always)]
    pub(super) unsafe fn map_one(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        word: F::Word,
        reach: FlushScope,
    ) -> Option<Result<(), Error>> {
        let at = pages.first().address(G::BASE).get();
        // SAFETY: the caller is the writer; the leaf is live and the index below its slots.
        unsafe {
            let Some(found) = L::seek(self.nodes, &self.root, G::VA_BITS, Self::TAG, at) else {
                return self.map_missing(batch, pages, word, reach);
            };
            let place = Self::pte_at(found.shift, found.index, at);
            let old = self.nodes.read(found.leaf, place);
            if is_taken::<F>(old) {
                let page = pages.first().address(G::BASE);
                return Some(Err(Error::taken(page, Self::entry(old, found.shift, at))));
            }
            if found.shift != Self::BASE {
                // The page is in the empty half of a pair of larger pages.
                return None;
            }
            let leaf = found.edge();
            self.nodes.publish(found.leaf, place, word);
            self.settle_pair(leaf, at);
            self.add_live(leaf, 1);
            self.tally.ptes(1);
            batch.touch(reach, pages);
            if L::TAGGED && !Self::ANY_TWO_GET_A_LEAF && found.width < Self::MAX_LEAF_WIDTH {
                self.join_path(batch, Self::key(at));
            }
        }
        Some(Ok(()))
    }

    /// Maps a page that no leaf covers, in a new leaf. The page's slot then leads to this leaf, which also has the pages of the leaf
    /// that it replaces, or to a new node with two entries: the new leaf, and the old contents of the slot.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and `pages` is one base page, which no leaf covers.
    #[inline(never)]
    unsafe fn map_missing(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        word: F::Word,
        reach: FlushScope,
    ) -> Option<Result<(), Error>> {
        let key = Self::span(pages).first;
        // SAFETY: the caller is the writer; the new leaf and node are private until they are linked.
        unsafe {
            let mut end = self.walk(key);
            let is_empty_table = end.above.is_empty() && end.edge.is_empty();
            if !is_empty_table && !Self::PLAIN {
                return None;
            }
            let near = if is_empty_table {
                key
            } else {
                self.any_base(if end.edge.is_empty() { end.above } else { end.edge })?
            };
            if !end.above.is_empty() && !agree(key, near, end.above.top()) {
                // The page differs from a guard above the last node on the path.
                end = self.walk_along(key, near);
            }
            let End { place, above, edge: old, .. } = end;
            let ceiling = if above.is_empty() { G::VA_BITS } else { above.shift };
            let old_base = near & !low(old.top());
            let (width, split) = if old.is_empty() {
                (Self::MIN_LEAF_WIDTH, None)
            } else {
                let bit = Self::top_bit(key ^ old_base);
                let width = (bit + 1).saturating_sub(Self::BASE);
                let fits = old.is_leaf() && old.shift == Self::BASE && bit < Self::LEAF_TOP;
                if fits && Self::worth(self.live(old) + 1, width) {
                    (width, None)
                } else {
                    let floor = Self::floor(Self::BASE, bit).max(old.top());
                    (Self::MIN_LEAF_WIDTH, Some(Self::choose(bit, floor, ceiling, None)))
                }
            };
            let nodes = 1 + usize::from(split.is_some());
            let no_memory = || Some(Err(Error::no_memory(nodes, self.nodes.held())));
            let Some(node) = self.take(Self::words(leaf_kind(width))) else { return no_memory() };
            let mut top = Edge::EMPTY;
            if let Some((shift, width)) = split {
                let spare = Spare::new(self.nodes, node);
                let Some(node) = self.take(Self::words(inner_kind(width))) else { return no_memory() };
                spare.keep();
                top = Edge { node, shift, width, holds: Holds::Links, base: 0 };
            }
            let base = key & !low(Self::BASE + width);
            let leaf = Edge { node, shift: Self::BASE, width, holds: Holds::Ptes, base: Self::base(base) };
            self.count_in(leaf);
            self.store_tag(leaf, base);
            if !old.is_empty() && split.is_none() {
                self.copy_leaf(old, old_base, leaf);
            }
            // The contents of the frame are visible before the table leads to it.
            N::Mode::release();
            self.nodes.publish(node, Self::pte_of(leaf, key), word);
            self.settle_pair(leaf, key);
            self.add_live(leaf, 1);
            if split.is_some() {
                self.count_in(top);
                self.store_edge(top.node, top.index(old_base), top.shift, old);
                self.store_edge(top.node, top.index(key), top.shift, leaf);
                self.set_live(top, 2);
                self.publish(place, ceiling, top);
            } else {
                self.publish(place, ceiling, leaf);
                if !old.is_empty() {
                    self.retire(batch, old);
                } else if !above.is_empty() {
                    self.add_live(above, 1);
                }
            }
            self.tally.ptes(1);
            batch.touch(reach, pages);
            let lowest = if split.is_some() { top } else { above };
            // A node may grow by the bits of a node right below its digit. For a node of two slots this saves bytes if the lower
            // node has at most four.
            let grows = top.top() == ceiling && !above.is_empty()
                || !old.is_leaf() && old.width <= 2 && old.top() == top.shift;
            if L::TAGGED && !lowest.is_empty() && lowest.top() <= Self::LEAF_TOP {
                self.join_path(batch, key);
            } else if P::ADAPTIVE && split.is_some() && grows {
                self.tune_path(batch, key, Which::Lowest(2), false);
            }
        }
        Some(Ok(()))
    }

    /// Empties the entry of one base page if its word is `wanted` and the change of one slot suffices, and tells whether it has
    /// done so. The batch then flushes the page on the CPUs of `reach`.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and `pages` is one base page.
    #[inline(always)]
    pub(super) unsafe fn unmap_one(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        wanted: impl Fn(F::Word) -> bool,
        reach: FlushScope,
    ) -> bool {
        let at = pages.first().address(G::BASE).get();
        // SAFETY: the caller is the writer; the leaf is live and the index below its slots.
        unsafe {
            let Some(found) = L::seek(self.nodes, &self.root, G::VA_BITS, Self::TAG, at) else {
                return false;
            };
            let place = Self::pte_at(found.shift, found.index, at);
            if found.shift != Self::BASE || !wanted(self.nodes.read(found.leaf, place)) {
                return false;
            }
            let leaf = found.edge();
            let record = self.record(leaf);
            let live = record.load(Ordering::Relaxed) as usize - 1;
            if live == 0 || Self::sparse(found.width, live) {
                if Self::PLAIN {
                    self.unmap_last(batch, pages, live, reach);
                }
                return Self::PLAIN;
            }
            self.nodes.store_relaxed(found.leaf, place, F::Word::ZERO);
            self.settle_pair(leaf, at);
            record.store(live as u32, Ordering::Relaxed);
        }
        self.tally.ptes(-1);
        batch.touch(reach, pages);
        true
    }

    /// Unmaps a page, and retires its leaf or replaces the leaf by one of the smallest size. The leaf has `live` other entries. If the
    /// leaf is retired and its node had two entries, the other entry takes the node's place.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and `pages` is one base page. One slot leads to its leaf, which
    /// has `live` other entries.
    #[inline(never)]
    unsafe fn unmap_last(&self, batch: &mut Retired<'n>, pages: Pages, live: usize, reach: FlushScope) {
        let key = Self::span(pages).first;
        // SAFETY: the caller is the writer; the walk ends at the page's leaf, and slots are within their nodes.
        unsafe {
            let End { mut place, mut above, edge: leaf, before } = self.walk(key);
            batch.touch(reach, pages);
            self.nodes.store_relaxed(leaf.node, Self::pte_of(leaf, key), F::Word::ZERO);
            self.settle_pair(leaf, key);
            self.set_live(leaf, live);
            self.tally.ptes(-1);
            let mut new;
            // At how many of the lowest nodes that cover the page a step may pay now.
            let mut touched;
            if live > 0 {
                new = self.shrink(batch, leaf, key & !low(leaf.top()), live);
                // No step depends on the size of a leaf: a node grows only if its slots are larger than any leaf.
                touched = 0;
            } else {
                self.retire(batch, leaf);
                (new, touched) = (Edge::EMPTY, 0);
                if !above.is_empty() {
                    let left = self.live(above) - 1;
                    self.set_live(above, left);
                    // The node above `above` counts the entries of `above` only if this has width 2, for `lone`.
                    touched = if above.width == 2 { 2 } else { 1 };
                    if left < 2 {
                        let own = above.index(key);
                        new = (0..above.slots())
                            .filter(|&slot| slot != own)
                            .map(|slot| self.edge(Place::In(above.node, slot), above.shift, 0))
                            .find(|other| !other.is_empty())
                            .unwrap_or(Edge::EMPTY);
                        self.retire(batch, above);
                        // That node has another entry now, in as many slots as before.
                        (place, above) = before;
                        touched = 1;
                    }
                }
            }
            if new != leaf {
                self.publish(place, if above.is_empty() { G::VA_BITS } else { above.shift }, new);
            }
            if P::ADAPTIVE && !above.is_empty() && touched > 0 {
                self.tune_path(batch, key, Which::Lowest(touched), false);
            }
        }
    }

    /// Protects one base page, if it is mapped, with a walk and a store. Tells whether it has done so.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and `pages` is one base page.
    #[inline(always)]
    pub(super) unsafe fn protect_one(&self, batch: &mut Retired<'n>, pages: Pages, change: Change) -> bool {
        let at = pages.first().address(G::BASE).get();
        // SAFETY: the caller is the writer; the leaf is live and the index below its slots.
        unsafe {
            let Some(found) = L::seek(self.nodes, &self.root, G::VA_BITS, Self::TAG, at) else {
                return false;
            };
            let place = Self::pte_at(found.shift, found.index, at);
            let old = self.nodes.read(found.leaf, place);
            if found.shift != Self::BASE || !F::is_leaf(old, true) {
                return false;
            }
            self.nodes.store_relaxed(found.leaf, place, F::change(old, change, true));
            self.settle_pair(found.edge(), at);
        }
        batch.touch(change.scope(), pages);
        true
    }
}
