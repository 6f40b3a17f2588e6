//! Building a node anew: the new node has the pages of a span and, around them, the entries of the old node.
//!
//! If a leaf is a pair of pages ([`Shape::PAIRS`]), pages may be larger than the node's slots. Then the node is filled pair by
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
//! | new | the node that is filled, and its entries around the span ([`Filling`], [`Around`]) |
//! | old | the node, or the single entry, that the new node replaces |
//! | lone | whether the node would have one entry: then no node is taken, and the entry itself takes the node's place |
//! | run | neighbouring slots that lead to one leaf; a run counts as one entry |
//!
//! A node is never changed slot by slot for a page that needs several slots: a walker would find one page in some of them and
//! another page in the rest. Instead a new node is taken ([`rebuild`](Writing::rebuild)), filled with the span and, around it, the
//! entries of the old node ([`fill_node`](Writing::fill_node)), and linked by one store. Then everything below the old node to which
//! the new node does not lead is retired ([`retire_replaced`](Writing::retire_replaced)).

use super::guard::{agree, digit, low};
use super::job::{Around, Filling, Job, New};
use super::node::{Item, Node, Writing};
use super::shape::Shape;
use super::visit::Span;
use crate::format::Format;

impl<'w, T: Shape> Writing<'w, '_, T> {
    /// Maps a span in a new node whose slots are smaller than the pages, with the old entries around them. Returns the node, or, in
    /// place of a node that would have one entry, that entry.
    #[inline(never)]
    pub(super) fn fill_node<const REAL: bool>(
        &self,
        job: &mut Job<'_, 'w, T, REAL>,
        new: &Filling<'w, T, REAL>,
    ) -> Option<Item<'w, T, REAL>> {
        let node = &new.node;
        let fresh = if new.lone { None } else { node.fresh() };
        let half = 1 << (job.page - node.shift);
        let (mut live, mut last) = (0, None);
        let both = job.page - node.shift + 1;
        for first in (0..node.slots() >> both).map(|pair| pair << both) {
            let start = new.base | first << node.shift;
            let pair = match new.span.within(start, T::unit(job.page), job.page) {
                Some(part) => self.new_pair_leaf(job, new, first, part),
                None => (None, [false; 2]),
            };
            for slot in first..first + 2 * half {
                let entry = if pair.1[usize::from(slot >= first + half)] {
                    pair.0
                } else {
                    new.entry_around(slot).map(Item::of)
                };
                if let Some(entry) = entry {
                    // The slots that lead to one leaf are neighbours.
                    live += usize::from(last != Some(entry));
                    last = Some(entry);
                    if let Some(fresh) = fresh {
                        fresh.store(slot, entry.node());
                    }
                }
            }
        }
        if new.lone {
            return last;
        }
        if let Some(fresh) = fresh {
            fresh.set_live(live);
        }
        Some(node.item())
    }

    /// Takes a new leaf for the one or two pages of a part. If the part is one page and the other half of its pair is mapped in the
    /// same size, the leaf gets a copy of that PTE. Returns the leaf, and which halves of the pair's slots lead to it: none if the
    /// existing leaf already maps these pages.
    #[inline(never)]
    fn new_pair_leaf<const REAL: bool>(
        &self,
        job: &mut Job<'_, 'w, T, REAL>,
        new: &Filling<'w, T, REAL>,
        first: usize,
        part: Span,
    ) -> (Option<Item<'w, T, REAL>>, [bool; 2]) {
        let own = digit(part.first, job.page, 1)..=digit(part.last, job.page, 1);
        let (mut lacks, mut beside) = (false, None);
        for which in 0..2 {
            let now = new.entry_around(first + (which << (job.page - new.node.shift)));
            let same = now.filter(|now| now.is_leaf() && now.shift == job.page);
            if own.contains(&which) {
                lacks |= same.is_none();
            } else {
                beside = same;
            }
        }
        if !lacks {
            return (None, [false; 2]);
        }
        let leaf = self.new_leaf(job, 1, part);
        if let Some(fresh) = leaf.fresh()
            && let Some(beside) = beside
        {
            beside.copy_to(new.base | first << new.node.shift, fresh.node());
            self.table().tally().ptes(beside.live().cast_signed());
        }
        (Some(leaf.item()), [0, 1].map(|which| own.contains(&which) || beside.is_some()))
    }

    /// Takes a node that will replace `old`, whose slots are smaller than the pages of a span. [`fill_node`](Self::fill_node) fills
    /// the new node.
    #[inline(never)]
    pub(super) fn rebuild<const REAL: bool>(
        job: &mut Job<'_, 'w, T, REAL>,
        old: Node<'w, T>,
        span: Span,
    ) -> New<'w, T, REAL> {
        let base = span.first & !low(old.top());
        // If one pair replaces all entries of the node, it needs no node.
        let pair = span.first & !low(T::unit(job.page));
        let lone = pair == span.last & !low(T::unit(job.page)) && {
            let run = old.index(pair)..=old.index(pair | low(T::unit(job.page)));
            let own = old.index(span.first)..=old.index(span.last | low(job.page));
            old.children().enumerate().all(|(slot, now)| {
                let joins = |now: Node<'w, T>| run.contains(&slot) && now.is_leaf() && now.shift == job.page;
                own.contains(&slot) || now.is_none_or(joins)
            })
        };
        let node = if lone {
            job.supply.no_node(old.shift, old.width)
        } else {
            job.supply.node(old.shift, old.width, base)
        };
        New::Filled(Filling { node, lone, base, around: Around::Node(old), span })
    }

    /// Retires a node, and everything below it to which its replacement does not lead. The replacement is another node with slots
    /// smaller than the pages, or a single leaf, and is linked in the place of the node.
    #[inline(never)]
    pub(super) fn retire_replaced(&mut self, old: Node<'w, T>, new: Option<Node<'w, T>>) {
        let mut slot = 0;
        // SAFETY: only one slot led to the node, and now it leads to the new one. Only the old node led to what is discarded.
        unsafe {
            while slot < old.slots() {
                let now = old.child(slot);
                let then = new.and_then(|new| if new.is_leaf() { Some(new) } else { new.child(slot) });
                match now {
                    Some(now) if then != Some(now) && old.shares(&now) => self.remove_half(now),
                    Some(now) if then != Some(now) => self.discard(now),
                    _ => {}
                }
                slot = now.map_or(slot + 1, |now| old.run(slot, &now).end);
            }
            self.retire(old);
        }
    }

    /// Records that a leaf of two pages has lost one, whose slots do not lead to the leaf any more.
    pub(super) fn remove_half(&mut self, leaf: Node<'w, T>) {
        self.table().tally().ptes(-1);
        if leaf.sub_live(1) == 0 {
            // SAFETY: the leaf's last page has lost its slots, and they led to it.
            unsafe { self.retire(leaf) };
        }
    }
}

impl<'w, T: Shape, const REAL: bool> Filling<'w, T, REAL> {
    /// Returns the entry of a slot of the new node in which no page of the span is.
    #[inline(never)]
    fn entry_around(&self, slot: usize) -> Option<Node<'w, T>> {
        let node = self.node;
        match self.around {
            Around::Nothing => None,
            Around::Node(old) => old.child(slot),
            Around::Entry(old, near) => {
                let start = self.base | slot << node.shift;
                let here = if node.shares(&old) {
                    agree(start, near, old.top()) && old.keeps(start, self.span)
                } else {
                    slot == node.index(near)
                };
                here.then_some(old)
            }
        }
    }
}

impl<T: Shape> Node<'_, T> {
    /// Tells whether a leaf of larger pages maps the page at `at`, and a span of smaller pages does not replace that page.
    pub(super) fn keeps(self, at: usize, span: Span) -> bool {
        T::F::is_leaf(self.pte(at).read(), true)
            && span.within(at & !low(self.shift), self.shift, 0).is_none()
    }

    /// Returns the page of a leaf that begins at `base` that stays when smaller pages are mapped in the other half of its pair.
    pub(super) fn other_half(self, page: u32, base: usize, span: Span) -> Option<usize> {
        if !T::PAIRS || self.shift <= page {
            return None;
        }
        [base, base | 1 << self.shift].into_iter().find(|&at| self.keeps(at, span))
    }
}
