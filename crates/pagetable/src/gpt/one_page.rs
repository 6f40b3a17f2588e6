//! Changes of one base page that change one slot of the tree, or none: a walk and a store.
//!
//! | change | case | stores |
//! |-|-|-|
//! | map | a leaf covers the page | the PTE |
//! | map | the page's slot leads to a leaf of other pages in the region of the largest leaf | a link to a larger leaf, which has the PTEs of the old leaf |
//! | map | the page's slot is empty | a link to a new leaf |
//! | map | the page differs from a guard | a link to a new node of two entries: a new leaf, and the old contents of the slot |
//! | unmap | the leaf stays as it is | the PTE |
//! | unmap | one page is left in a leaf of four or more | the PTE, and a link to a new leaf of the smallest size |
//! | unmap | the leaf is empty | the PTE, and the slot; if its node has one entry left, the slot above, which gets that entry |
//!
//! So a map needs no dry run: it takes at most two nodes, both before it changes anything. If there is no memory for the large leaf and
//! node of a run, it takes the smallest. An unmap that leaves one page takes the
//! node for the small leaf after it has stored the PTE; if there is no memory, the large leaf stays. In the layouts whose leaves are
//! pairs a page may need more nodes; then a general [insertion](super::insert) or [removal](super::unmap) makes the
//! change. The sizes of leaves are in [`leaf_size`](super::leaf_size).
//!
//! Tuning ([`tune`](super::tune)) follows only the changes after which a step may pay:
//!
//! - After a leaf is linked in a slot that was empty, no step pays: a node grows by the bits of nodes below it, and becomes smaller
//!   when it has fewer entries.
//! - After a new node is linked, a step can pay only if the node is right below the digit of the node above, or if it has a narrow
//!   node right below its own digit.
//! - After a slot of a node became empty, a step may pay at the node, and at the node above; after the largest leaf shrinks, at the
//!   node.
//!
//! A step that pays for one change saves few bytes, and all slots of the node have to be read to find it. So the record of a node
//! counts such changes, and a node of `2^w` slots is tuned after `2^w / 8` of them ([`is_due`](Node::is_due)): nodes of up to
//! eight slots after each, a node of 64 after eight. A change reads eight slots on average. Only a new node that may take bits from the
//! node below is tuned at once, because it has two slots.

use tlbkit_addr::{FlushScope, Pages};

use super::guard::{agree, low};
use super::node::{Fresh, Node, Writing};
use super::shape::{Shape, top_bit};
use super::tune::{CROWD, Which};
use super::walk::End;
use crate::format::{Format, is_taken};
use crate::mode::Mode;
use crate::nodes::{Nodes, Reclaim as _};
use crate::word::atomics::Ordering;
use crate::{Change, Error};

impl<'w, T: Shape> Writing<'w, '_, T> {
    /// Stores a PTE or a mark for `pages`, one base page, if a change of at most one slot is sufficient. If it is not, returns `None`,
    /// and the page is not mapped and has no mark. Otherwise returns the result of the change, after which the batch flushes the page
    /// on the CPUs of `reach`.
    #[inline(always)]
    pub(super) fn map_one(
        &mut self,
        pages: Pages,
        word: T::W,
        reach: FlushScope,
    ) -> Option<Result<(), Error>> {
        let page = pages.first().address(T::PAGE);
        let Some(pte) = self.seek(page.get()) else { return self.map_missing(pages, word, reach) };
        let (old, leaf) = (pte.read(), pte.leaf());
        if is_taken::<T::F>(old) {
            return Some(Err(Error::taken(page, T::entry(old, leaf.shift, page.get()))));
        }
        if leaf.shift != T::BASE {
            // The page is in the empty half of a pair of larger pages.
            return None;
        }
        pte.publish(word);
        leaf.add_live(1);
        self.table().tally().ptes(1);
        self.touch(reach, pages);
        Some(Ok(()))
    }

    /// Maps a page that no leaf covers, in a new leaf. The page's slot then leads to this leaf, which also has the pages of the leaf
    /// that it replaces, or to a new node with two entries: the new leaf, and the old contents of the slot.
    #[inline(never)]
    fn map_missing(&mut self, pages: Pages, word: T::W, reach: FlushScope) -> Option<Result<(), Error>> {
        let (table, key) = (self.table(), T::span(pages).first);
        let mut end = self.walk(key);
        let there = end.held.or(end.slot.node());
        if there.is_some() && !T::PLAIN {
            return None;
        }
        let near = match there {
            Some(node) => node.any_base()?,
            None => key,
        };
        if end.slot.node().is_some_and(|above| !agree(key, near, above.top())) {
            // The page differs from a guard above the last node on the path.
            end = self.walk_along(key, near);
        }
        let End { slot, held: old, .. } = end;
        let (above, ceiling) = (slot.node(), slot.ceiling());
        let (width, split) = match old {
            Some(old) => Self::beside(old, near, key, ceiling, || self.new_width(key)),
            None => (self.new_width(key), None),
        };
        let taken = self.take(key, width, split);
        let Some((leaf, top)) = taken.or_else(|| self.take_least(old, near, key, ceiling)) else {
            return Some(Err(Error::no_memory(1 + usize::from(split.is_some()), table.nodes().held())));
        };
        if let Some(old) = old.filter(|_| top.is_none()) {
            old.copy_to(near & !low(old.top()), leaf.node());
        }
        // The contents of the frame are visible before the table leads to it.
        <T::N as Nodes>::Mode::release();
        leaf.pte(key).publish(word);
        leaf.add_live(1);
        if let Some(top) = top {
            top.store(top.index(near), old);
            top.store(top.index(key), Some(leaf.node()));
            top.set_live(2);
            slot.publish(Some(top.node()));
        } else {
            slot.publish(Some(leaf.node()));
            if let Some(old) = old {
                // SAFETY: only the slot led to the old leaf, and now it leads to the new one.
                unsafe { self.retire(old) };
            } else if let Some(above) = above {
                above.add_live(1);
            }
        }
        table.tally().ptes(1);
        self.touch(reach, pages);
        // A node may grow by the bits of a node right below its digit. For a node of two slots this saves bytes if the lower
        // node has at most four.
        let grows = |shift, top| {
            old.is_some_and(|old| !old.is_leaf() && old.width <= 2 && old.top() == shift)
                || top == ceiling && above.is_some_and(Node::is_due)
        };
        if T::ADAPTIVE && top.is_some_and(|top| grows(top.shift, top.top())) {
            self.tune_path(key, Which::Lowest(2), false);
        }
        Some(Ok(()))
    }

    /// Returns the width of the leaf for the page with a key beside a node or leaf, and the digit of the node for both: none if the
    /// leaf is to hold the pages of both. `near` is a key in the region of the old one, whose slot covers `2^ceiling` bytes.
    /// `new_width` returns the width of a leaf that has no other pages.
    #[inline(always)]
    fn beside(
        old: Node<'_, T>,
        near: usize,
        key: usize,
        ceiling: u32,
        new_width: impl FnOnce() -> u32,
    ) -> (u32, Option<(u32, u32)>) {
        let bit = top_bit(key ^ near & !low(old.top()));
        let wider = (bit + 1).saturating_sub(T::BASE);
        let fits = old.is_leaf() && old.shift == T::BASE && bit < T::LEAF_TOP;
        if fits {
            return (Self::grown_width(wider), None);
        }
        let width = new_width();
        let digit =
            if T::ADAPTIVE && width == T::MAX_LEAF_WIDTH && old.is_largest() && bit < T::LEAF_TOP + CROWD {
                (T::LEAF_TOP, CROWD.min(ceiling - T::LEAF_TOP))
            } else {
                Self::choose(bit, Self::floor(T::BASE).max(old.top()), ceiling, None)
            };
        (width, Some(digit))
    }

    /// Takes the smallest leaf for the page with a key beside a node or leaf, or in an empty slot, and the smallest node for both, where
    /// there was no memory for those of a run of pages.
    #[cold]
    #[inline(never)]
    fn take_least(
        &self,
        old: Option<Node<'w, T>>,
        near: usize,
        key: usize,
        ceiling: u32,
    ) -> Option<(Fresh<'w, T>, Option<Fresh<'w, T>>)> {
        let least = T::MIN_LEAF_WIDTH;
        let (width, split) = old.map_or((least, None), |old| Self::beside(old, near, key, ceiling, || least));
        self.take(key, width, split)
    }

    /// Empties the entry of `pages`, one base page, if its word is `wanted` and the change of one slot suffices, and tells whether it
    /// has done so. The batch then flushes the page on the CPUs of `reach`.
    #[inline(always)]
    pub(super) fn unmap_one(
        &mut self,
        pages: Pages,
        wanted: impl Fn(T::W) -> bool,
        reach: FlushScope,
    ) -> bool {
        let Some(pte) = self.seek(pages.first().address(T::PAGE).get()) else { return false };
        let leaf = pte.leaf();
        if leaf.shift != T::BASE || !wanted(pte.read()) {
            return false;
        }
        let record = leaf.record();
        let live = record.load(Ordering::Relaxed) as usize - 1;
        if live == 0 || Self::sparse(leaf.width, live) {
            if T::PLAIN {
                self.unmap_last(pages, live, reach);
            }
            return T::PLAIN;
        }
        pte.store(T::ZERO);
        record.store(live as u32, Ordering::Relaxed);
        self.table().tally().ptes(-1);
        self.touch(reach, pages);
        true
    }

    /// Unmaps a page, and retires its leaf or replaces the leaf by one of the smallest size. The leaf has `live` other entries, and one
    /// slot leads to it. If the leaf is retired and its node had two entries, the other entry takes the node's place.
    #[inline(never)]
    fn unmap_last(&mut self, pages: Pages, live: usize, reach: FlushScope) {
        let key = T::span(pages).first;
        let End { mut slot, held, before } = self.walk(key);
        let Some(leaf) = held else { return };
        self.touch(reach, pages);
        leaf.pte(key).store(T::ZERO);
        leaf.set_live(live);
        self.table().tally().ptes(-1);
        if live > 0 {
            self.shrink(slot, leaf, key & !low(leaf.top()), live);
            // A node of the largest leaves may become smaller. No other step depends on the size of a leaf: a node grows only if its
            // slots are larger than any leaf.
            if T::ADAPTIVE && leaf.is_largest() && slot.node().is_some_and(Node::is_due) {
                self.tune_path(key, Which::Lowest(1), false);
            }
            return;
        }
        let (mut new, mut gone) = (None, None);
        // At how many of the lowest nodes that cover the page a step may pay now.
        let mut touched = 0;
        if let Some(above) = slot.node() {
            // The node above `above` counts the entries of `above` only if this has width 2, for `lone`.
            touched = if above.width == 2 { 2 } else { 1 };
            if above.sub_live(1) < 2 {
                new = above.children().flatten().find(|other| other.addr() != leaf.addr());
                gone = Some(above);
                // That node has another entry now, in as many slots as before.
                (slot, touched) = (before, 1);
            }
        }
        slot.publish(new);
        // SAFETY: only one slot led to the leaf, and it is empty or in a node that is retired, too. Only `slot` led to that node, and
        // now it leads to the node's other entry.
        unsafe {
            self.retire(leaf);
            if let Some(above) = gone {
                self.retire(above);
            }
        }
        if T::ADAPTIVE && touched > 0 && slot.node().is_some_and(Node::is_due) {
            self.tune_path(key, Which::Lowest(touched), false);
        }
    }

    /// Protects `pages`, one base page, if it is mapped, with a walk and a store. Tells whether it has done so.
    #[inline(always)]
    pub(super) fn protect_one(&mut self, pages: Pages, change: Change) -> bool {
        let Some(pte) = self.seek(pages.first().address(T::PAGE).get()) else { return false };
        let old = pte.read();
        if pte.leaf().shift != T::BASE || !T::F::is_leaf(old, true) {
            return false;
        }
        pte.store(T::F::change(old, change, true));
        self.touch(change.scope(), pages);
        true
    }
}
