//! Building a node anew: the new node has the pages of a span and, around them, the entries of the old node.
//!
//! If a leaf is a pair of pages ([`Layout::PAIRS`]), pages may be larger than the node's slots. Then the node is filled pair by
//! pair, and all slots that a page covers lead to the page's leaf:
//!
//! ```text
//!                         base       start of slot 4
//!                         v             v
//!   new node, 8 slots     | s0 | s1 | s2 | s3 | s4 | s5 | s6 | s7 |       a page takes 2 slots, a pair 4
//!                         `---- pair 0 -----' `---- pair 1 -----'
//!                         `- half -'`- half -'
//!
//!   the span has in a pair, and the other half has            the pair's slots
//!   one page, and nothing or smaller pages                    | leaf | leaf |  ..  |  ..  |   the old entries stay in ..
//!   one page, and a page of the same size                     | leaf | leaf | leaf | leaf |   the other page's PTE is copied
//!   both pages                                                | leaf | leaf | leaf | leaf |
//! ```
//!
//! | term | here |
//! |-|-|
//! | span, part | the keys of the pages to be mapped; those of them in one pair |
//! | pair, unit | two neighbouring pages of the span's size, which one leaf maps; a pair has `2^unit` bytes |
//! | half | one page of a pair; as a variable, the number of slots that it takes |
//! | base | the first key of the region of the new node, which is also that of the old node |
//! | start | the first key of a slot's region, or of a pair's: the base and the slot's number, shifted to its digit |
//! | near | a key of the region of the single entry that the new node keeps ([`Around::Entry`]) |
//! | new | the node that is filled, and its entries around the span ([`Fresh`], [`Around`]) |
//! | old | the node, or the single entry, that the new node replaces |
//! | lone | whether the node would have one entry: then no node is taken, and the entry itself takes the node's place |
//! | run | neighbouring slots that lead to one leaf; a run counts as one entry |
//!
//! A node is never changed slot by slot for a page that needs several slots: a walker would find one page in some of them and
//! another page in the rest. Instead a new node is taken ([`rebuild`](Gpt::rebuild)), filled with the span and, around it, the
//! entries of the old node ([`fill_node`](Gpt::fill_node)), and linked by one store. Then everything below the old node to which
//! the new node does not lead is retired ([`retire_replaced`](Gpt::retire_replaced)).

use super::Gpt;
use super::guard::{agree, digit, low};
use super::job::{Around, Fresh, Job, New, Supply};
use super::layout::{Edge, Layout};
use super::node_size::NodeSize;
use super::slots::Place;
use super::visit::Span;
use crate::format::Format;
use crate::nodes::{NodeAddr, Nodes};
use crate::{Geometry, Retired};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'n, G, F, N, L, P> {
    /// Maps a span in a new node whose slots are smaller than the pages, with the entries of `old` around them. Returns the node,
    /// or, in place of a node without an address, its only entry.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the job's batch came from this table, and `old`, if it is not empty, is a node or leaf of
    /// this table. In the real run the caller publishes the result in the place of `old`, and retires the nodes and leaves to which
    /// no slot leads then.
    #[inline(never)]
    pub(super) unsafe fn fill_node<S: Supply>(
        &self,
        job: &mut Job<'_, 'n, S, F::Word>,
        new: &Fresh,
        old: Edge,
        span: Span,
    ) -> Edge {
        let node = &new.node;
        let unit = Self::unit(job.page);
        let half = 1 << (job.page - node.shift);
        let (mut live, mut last) = (0, Edge::EMPTY);
        // SAFETY: by this function's contract the caller is the writer; the node is private, and the slots are within it.
        unsafe {
            let both = job.page - node.shift + 1;
            for first in (0..node.slots() >> both).map(|pair| pair << both) {
                let start = new.base | first << node.shift;
                let pair = match span.within(start, unit, job.page) {
                    Some(part) => self.new_pair_leaf(job, new, old, span, first, part),
                    None => (Edge::EMPTY, [false; 2]),
                };
                for slot in first..first + 2 * half {
                    let entry = if pair.1[usize::from(slot >= first + half)] {
                        pair.0
                    } else {
                        self.entry_around(new, old, span, slot)
                    };
                    if !entry.is_empty() {
                        // The slots that lead to one leaf are neighbours.
                        live += usize::from(entry != last);
                        last = entry;
                        if S::REAL && !node.is_empty() {
                            self.store_edge(node.node, slot, node.shift, entry);
                        }
                    }
                }
            }
            if node.is_empty() {
                return last;
            }
            if S::REAL {
                self.set_live(*node, live);
            }
        }
        *node
    }

    /// Returns the entry of a slot of a new node in which no page of the span is.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and `old`, if it is not empty, is a node or leaf of this table.
    #[inline(never)]
    unsafe fn entry_around(&self, new: &Fresh, old: Edge, span: Span, slot: usize) -> Edge {
        let node = new.node;
        let start = new.base | slot << node.shift;
        // SAFETY: by this function's contract the caller is the only writer, and `old` is in the table if it is not empty; the
        // slots are within their nodes.
        unsafe {
            match new.around {
                Around::Nothing => Edge::EMPTY,
                Around::Node => self.edge(Place::In(old.node, slot), old.shift, start),
                Around::Entry(near) => {
                    let here = if node.shares(old) {
                        agree(start, near, old.top()) && self.keeps(old, start, span)
                    } else {
                        slot == node.index(near)
                    };
                    if here { old } else { Edge::EMPTY }
                }
            }
        }
    }

    /// Takes a new leaf for the one or two pages of a part. If the part is one page and the other half of its pair is mapped in the
    /// same size, the leaf gets a copy of that PTE. Returns the leaf, and which halves of the pair's slots lead to it: none if the
    /// existing leaf already maps these pages.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the job's batch came from this table, and `old`, if it is not empty, is a node or leaf of
    /// this table.
    #[inline(never)]
    unsafe fn new_pair_leaf<S: Supply>(
        &self,
        job: &mut Job<'_, 'n, S, F::Word>,
        new: &Fresh,
        old: Edge,
        span: Span,
        first: usize,
        part: Span,
    ) -> (Edge, [bool; 2]) {
        let own = digit(part.first, job.page, 1)..=digit(part.last, job.page, 1);
        let (mut lacks, mut beside) = (false, Edge::EMPTY);
        for which in 0..2 {
            let slot = first + (which << (job.page - new.node.shift));
            // SAFETY: by this function's contract the caller is the only writer, and `old` is in the table if it is not empty.
            let now = unsafe { self.entry_around(new, old, span, slot) };
            let is_same = now.is_leaf() && now.shift == job.page;
            if own.contains(&which) {
                lacks |= !is_same;
            } else if is_same {
                beside = now;
            }
        }
        if !lacks {
            return (Edge::EMPTY, [false; 2]);
        }
        // SAFETY: by this function's contract the caller is the writer; the new leaf is private, and of the same pair.
        let leaf = unsafe { self.new_leaf(job, 1, part) };
        if S::REAL && !beside.is_empty() {
            let start = new.base | first << new.node.shift;
            // SAFETY: the caller is the only writer, `beside` is a leaf of the table, and no other code knows the new leaf.
            unsafe {
                self.copy_leaf(beside, start, leaf);
                self.tally.ptes(self.live(beside).cast_signed());
            }
        }
        (leaf, [0, 1].map(|which| own.contains(&which) || !beside.is_empty()))
    }

    /// Takes a node that will replace `old`, whose slots are smaller than the pages of a span. [`fill_node`](Self::fill_node) fills
    /// the new node.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the job's batch came from this table, and `old` is a node of this table that covers the span.
    #[inline(never)]
    pub(super) unsafe fn rebuild<S: Supply>(
        &self,
        job: &mut Job<'_, 'n, S, F::Word>,
        old: Edge,
        span: Span,
    ) -> New {
        let base = span.first & !low(old.top());
        // If one pair replaces all entries of the node, it needs no node.
        let pair = span.first & !low(Self::unit(job.page));
        let lone = pair == span.last & !low(Self::unit(job.page)) && {
            let run = old.index(pair)..=old.index(pair | low(Self::unit(job.page)));
            let own = old.index(span.first)..=old.index(span.last | low(job.page));
            (0..old.slots()).all(|slot| {
                // SAFETY: the caller is the writer, and the slots are within the node.
                let now = unsafe { self.edge(Place::In(old.node, slot), old.shift, base) };
                let joins = run.contains(&slot) && now.is_leaf() && now.shift == job.page;
                now.is_empty() || own.contains(&slot) || joins
            })
        };
        let node = if lone {
            Edge { node: NodeAddr::new(0), ..old }
        } else {
            // SAFETY: the caller is the writer.
            unsafe { self.new_node(job.supply, old.shift, old.width, base) }
        };
        New::Filled(Fresh { node, base, around: Around::Node })
    }

    /// Retires a node, and everything below it to which its replacement does not lead. The replacement is another node with slots
    /// smaller than the pages, or a single leaf.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and `new` has been published in the place of `old`, a node of
    /// this table.
    #[inline(never)]
    pub(super) unsafe fn retire_replaced(&self, batch: &mut Retired<'n>, old: Edge, new: Edge) {
        let mut slot = 0;
        // SAFETY: the caller is the writer, and slots are within their nodes.
        unsafe {
            while slot < old.slots() {
                let now = self.edge(Place::In(old.node, slot), old.shift, 0);
                let then =
                    if new.is_leaf() { new } else { self.edge(Place::In(new.node, slot), new.shift, 0) };
                if !now.is_empty() && now != then {
                    if old.shares(now) {
                        self.remove_half(batch, now);
                    } else {
                        self.discard(batch, now);
                    }
                }
                slot = old.run(slot, now).end;
            }
            self.retire(batch, old);
        }
    }

    /// Tells whether a leaf of larger pages maps the page at `at`, and a span of smaller pages does not replace that page.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and `leaf` is a leaf of this table that covers `at`.
    pub(super) unsafe fn keeps(&self, leaf: Edge, at: usize, span: Span) -> bool {
        let start = at & !low(leaf.shift);
        // SAFETY: the caller is the writer; the leaf has both PTEs.
        let word = unsafe { self.nodes.read(leaf.node, Self::pte_of(leaf, at)) };
        F::is_leaf(word, true) && span.within(start, leaf.shift, 0).is_none()
    }

    /// Returns the page of a leaf that stays when smaller pages are mapped in the other half of its pair.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and `leaf` is a node or leaf of this table that begins at `base`.
    pub(super) unsafe fn other_half(&self, page: u32, leaf: Edge, base: usize, span: Span) -> Option<usize> {
        if !L::PAIRS || !leaf.is_leaf() || leaf.shift <= page {
            return None;
        }
        // SAFETY: the caller is the writer.
        [base, base | 1 << leaf.shift].into_iter().find(|&at| unsafe { self.keeps(leaf, at, span) })
    }

    /// Records that a leaf of two pages has lost one.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and `leaf` is a leaf of this table. If it maps one page only,
    /// the caller unlinks it.
    pub(super) unsafe fn remove_half(&self, batch: &mut Retired<'n>, leaf: Edge) {
        // SAFETY: the caller is the writer, and unlinks the leaf if that was the last.
        unsafe {
            let live = self.live(leaf) - 1;
            self.tally.ptes(-1);
            self.set_live(leaf, live);
            if live == 0 {
                self.retire(batch, leaf);
            }
        }
    }
}
