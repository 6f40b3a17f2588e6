//! Filling a new node: the pages of a span, and around them what is there.
//!
//! Where a leaf is a pair of pages ([`Layout::PAIRS`]) pages may be larger than the node's slots. Then a pair is the
//! step, and each page goes into all slots that it covers:
//!
//! ```text
//!   one page, nothing or smaller pages in the other half      | leaf | leaf |  ..  |  ..  |
//!   one page, the other half mapped in this size              | leaf | leaf | leaf | leaf |   the other's leaf is copied
//!   both pages                                                | leaf | leaf | leaf | leaf |
//! ```

use core::ops::RangeInclusive;

use super::Gpt;
use super::bits::{digit, low};
use super::graft::{Job, Supply};
use super::layout::{Edge, Layout};
use super::policy::Policy;
use super::slots::Place;
use super::sweep::Span;
use crate::format::Format;
use crate::nodes::{NodeAddr, Nodes};
use crate::{Geometry, Retired};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: Policy> Gpt<'n, G, F, N, L, P> {
    /// Maps a span in some slots of a new node at `base`, whose slots are smaller than the pages; `content` says what else
    /// there is. Counts the node's entries, and returns how many they are and the last.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and retires what `content` comes from; so for all that follow.
    #[inline(never)]
    pub(super) unsafe fn compose<S: Supply, W: Fn(usize) -> F::Word>(
        &self,
        job: &mut Job<'_, 'n, S, W>,
        new: Edge,
        base: usize,
        span: Span,
        slots: RangeInclusive<usize>,
        content: impl Fn(usize) -> Edge,
    ) -> (usize, Edge) {
        let unit = Self::unit(job.page);
        let step = 1 << (unit - new.shift);
        let (mut live, mut last) = (0, Edge::EMPTY);
        let mut put = |slot, entry: Edge| {
            if !entry.is_empty() {
                live += usize::from(entry != last);
                if S::REAL && !new.is_empty() {
                    // SAFETY: the node is private, and the slot within it.
                    unsafe { self.put(new.node, slot, new.shift, entry) };
                }
            }
            last = entry;
        };
        let mut only = Edge::EMPTY;
        let mut slot = slots.start() & !(step - 1);
        while slot <= *slots.end() {
            let start = base | slot << new.shift;
            let Some(part) = span.within(start, unit, job.page) else {
                for slot in slot..slot + step {
                    put(slot, content(slot));
                }
                slot += step;
                continue;
            };
            let half = |which: usize| slot + which * step / 2..slot + (which + 1) * step / 2;
            let own = digit(part.first, job.page, 1)..=digit(part.last, job.page, 1);
            // The leaf of this size that a half has.
            let same = |which: usize| {
                Some(content(half(which).start)).filter(|now| now.leaf && now.shift == job.page)
            };
            let beside = if own.start() == own.end() { same(1 - own.start()) } else { None };
            let leaf = if own.clone().all(|which| same(which).is_some()) {
                None
            } else {
                // SAFETY: the caller's promise, also below.
                Some(unsafe { self.couple(job, part, start, beside) })
            };
            for which in 0..2 {
                let mut last = Edge::EMPTY;
                for slot in half(which) {
                    let now = content(slot);
                    let new = leaf.filter(|_| beside.is_some() || own.contains(&which));
                    if S::REAL && new.is_some() && own.contains(&which) && !now.is_empty() && now != last {
                        // SAFETY: as above.
                        unsafe { self.discard(job.batch, now) };
                    }
                    last = now;
                    let entry = new.unwrap_or(now);
                    put(slot, entry);
                    if !entry.is_empty() {
                        only = entry;
                    }
                }
            }
            slot += step;
        }
        if S::REAL && !new.is_empty() {
            // SAFETY: the node is private.
            unsafe { self.set_live(new, live) };
        }
        (live, only)
    }

    /// Takes a new leaf for the one or two pages of a span, and the other page that `beside` has, in whose place it is.
    unsafe fn couple<S: Supply, W: Fn(usize) -> F::Word>(
        &self,
        job: &mut Job<'_, 'n, S, W>,
        part: Span,
        start: usize,
        beside: Option<Edge>,
    ) -> Edge {
        // SAFETY: the caller is the writer; the new leaf is private, and of the same pair.
        unsafe {
            let leaf = self.plant(job, 1, part);
            if S::REAL
                && let Some(beside) = beside
            {
                self.copy_leaf(beside, start, leaf);
                self.retire(job.batch, beside);
            }
            leaf
        }
    }

    /// Builds a node anew, with the pages of a span in it that its slots are too small for.
    #[inline(never)]
    pub(super) unsafe fn renew<S: Supply, W: Fn(usize) -> F::Word>(
        &self,
        job: &mut Job<'_, 'n, S, W>,
        old: Edge,
        span: Span,
        base: usize,
    ) -> Edge {
        // SAFETY: the caller is the writer; the new node is private, and slots are within their nodes.
        unsafe {
            let page = job.page;
            let content =
                |slot: usize| self.edge(Place::In(old.node, slot), old.shift, base | slot << old.shift);
            // A pair that takes the place of all that there is needs no node.
            let pair = span.first & !low(Self::unit(page));
            let lone = pair == span.last & !low(Self::unit(page)) && {
                let run = old.index(pair)..=old.index(pair | low(Self::unit(page)));
                let own = old.index(span.first)..=old.index(span.last | low(page));
                (0..old.slots()).all(|slot| {
                    let now = content(slot);
                    let joins = run.contains(&slot) && now.leaf && now.shift == page;
                    now.is_empty() || own.contains(&slot) || joins
                })
            };
            let new = if lone {
                Edge { node: NodeAddr::new(0), ..old }
            } else {
                self.sprout(job.supply, old.shift, old.width, base)
            };
            let (_, only) = self.compose(job, new, base, span, 0..=old.slots() - 1, content);
            if S::REAL {
                self.retire(job.batch, old);
            }
            if lone { only } else { new }
        }
    }

    /// Tells whether a leaf of larger pages maps the one at `at`, and a span of smaller ones leaves it alone.
    pub(super) unsafe fn keeps(&self, leaf: Edge, at: usize, span: Span) -> bool {
        let start = at & !low(leaf.shift);
        // SAFETY: the caller is the writer; the leaf has both PTEs.
        let word = unsafe { self.nodes.read(leaf.node, Self::pte_of(leaf, at)) };
        F::is_leaf(word, true) && span.within(start, leaf.shift, 0).is_none()
    }

    /// Returns the page of a leaf that stays where smaller ones are mapped within the other half of its pair.
    pub(super) unsafe fn other_half(&self, page: u32, leaf: Edge, base: usize, span: Span) -> Option<usize> {
        if !L::PAIRS || !leaf.leaf || leaf.shift <= page {
            return None;
        }
        // SAFETY: the caller is the writer.
        [base, base | 1 << leaf.shift].into_iter().find(|&at| unsafe { self.keeps(leaf, at, span) })
    }

    /// Takes note that a leaf of two pages has lost one.
    pub(super) unsafe fn release(&self, batch: &mut Retired<'n>, leaf: Edge) {
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
