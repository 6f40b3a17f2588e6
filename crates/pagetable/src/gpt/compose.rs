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
use crate::nodes::Nodes;
use crate::{Geometry, Retired};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: Policy> Gpt<'n, G, F, N, L, P> {
    /// Maps a span in some slots of a new node at `base`, in which `content` says what there is. Tells `put` what every
    /// slot leads to, and whether that is another entry than the slot's before.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and retires what `content` comes from; so for all that follow.
    #[expect(clippy::too_many_arguments, reason = "a node, what is put into it, and what it is put between")]
    pub(super) unsafe fn compose<S: Supply, W: Fn(usize) -> F::Word>(
        &self,
        job: &mut Job<'_, 'n, S, W>,
        new: Edge,
        base: usize,
        span: Span,
        slots: RangeInclusive<usize>,
        content: impl Fn(usize) -> Edge,
        put: &mut impl FnMut(usize, Edge, bool),
    ) {
        let unit = Self::unit(job.page).max(new.shift);
        let step = 1 << (unit - new.shift);
        let mut last = Edge::EMPTY;
        let mut put = |slot, entry: Edge| {
            put(slot, entry, !entry.is_empty() && entry != last);
            last = entry;
        };
        let mut slot = slots.start() & !(step - 1);
        while slot <= *slots.end() {
            let start = base | slot << new.shift;
            match span.within(start, unit, job.page) {
                None => (slot..slot + step).for_each(|slot| put(slot, content(slot))),
                Some(part) if step == 1 => {
                    let now = content(slot);
                    // SAFETY: the caller's promise, also below.
                    unsafe {
                        let near = if now.is_empty() { None } else { self.nearest(now, part.first) };
                        put(slot, self.graft(job, now, new.shift, part, near.unwrap_or(start)));
                    }
                }
                Some(part) => {
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
                        // SAFETY: as above.
                        Some(unsafe { self.couple(job, part, start, beside) })
                    };
                    for which in 0..2 {
                        let mut last = Edge::EMPTY;
                        for slot in half(which) {
                            let now = content(slot);
                            let new = leaf.filter(|_| beside.is_some() || own.contains(&which));
                            if S::REAL
                                && new.is_some()
                                && own.contains(&which)
                                && !now.is_empty()
                                && now != last
                            {
                                // SAFETY: as above.
                                unsafe { self.discard(job.batch, now) };
                            }
                            last = now;
                            put(slot, new.unwrap_or(now));
                        }
                    }
                }
            }
            slot += step;
        }
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

    /// Builds a node anew, with the pages of a span in it that its slots are too small for, or are a part of one of whose
    /// page they hold now.
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
            let child =
                |slot: usize| self.edge(Place::In(old.node, slot), old.shift, base | slot << old.shift);
            let split = |slot: usize, now: Edge| {
                old.shares(now) && now.shift > page && !self.keeps(now, base | slot << old.shift, span)
            };
            let content =
                |slot: usize| Some(child(slot)).filter(|&now| !split(slot, now)).unwrap_or(Edge::EMPTY);
            // A pair that takes the place of all that there is needs no node.
            let pair = span.first & !low(Self::unit(page));
            let lone = Self::unit(page) > old.shift && pair == span.last & !low(Self::unit(page)) && {
                let run = old.index(pair)..=old.index(pair | low(Self::unit(page)));
                let own = old.index(span.first)..=old.index(span.last | low(page));
                (0..old.slots()).all(|slot| {
                    let now = content(slot);
                    let joins = run.contains(&slot) && now.leaf && now.shift == page;
                    now.is_empty() || own.contains(&slot) || joins
                })
            };
            let new = if lone { old } else { self.sprout(job.supply, old.shift, old.width, base) };
            let (mut live, mut only) = (0, Edge::EMPTY);
            self.compose(job, new, base, span, 0..=old.slots() - 1, content, &mut |slot, entry, another| {
                if lone {
                    only = if entry.is_empty() { only } else { entry };
                } else if S::REAL {
                    self.put(new.node, slot, new.shift, entry);
                }
                live += usize::from(another);
            });
            if S::REAL {
                let mut slot = 0;
                while slot < old.slots() {
                    let (now, here) = (child(slot), slot);
                    slot = old.run(slot, now).end;
                    if split(here, now) {
                        self.release(job.batch, now);
                    }
                }
                self.retire(job.batch, old);
            }
            if lone {
                return only;
            }
            if S::REAL {
                self.set_live(new, live);
                return self.tune(job.batch, new, base);
            }
            new
        }
    }

    /// Tells whether a span is a part of larger pages that stand in several slots of a node.
    pub(super) unsafe fn splits(&self, node: Edge, span: Span) -> bool {
        (node.index(span.first)..=node.index(span.last))
            // SAFETY: the caller is the writer; the slots are within the node.
            .any(|slot| unsafe { node.shares(self.edge(Place::In(node.node, slot), node.shift, 0)) })
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
