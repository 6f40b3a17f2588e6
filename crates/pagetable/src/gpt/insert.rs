//! Insertion: how a range of pages gets into the tree.
//!
//! The range is inserted part by part, in a loop. For the first page that is not in yet, one walk from the root finds the
//! slot that has to change ([`insert_next`](Gpt::insert_next)); the part is what that one change is enough for; its new
//! nodes are built privately and linked with one store. The loop ends because every part has one page at least.
//!
//! ```text
//!   slot -> X, pages outside X         slot -> new                 insert splits X's guard
//!            guard of X:                        prefix             into prefix, digit and
//!            prefix . digit . rest      +--------+-------+         remainder
//!                                       |   X    | pages |
//!                                       +--------+-------+
//!                                    rest
//!
//!   slot -> X of small slots,          slot -> upper               a larger page needs a
//!            one page of 2^k slots      +------+------+            slot of its own size:
//!                                       | page | lower|            X's digit is parted
//!                                       +------+------+
//! ```
//!
//! The loop runs twice, first with a supply that counts nodes, then with one that hands out exactly those: a range gets in
//! as a whole or not at all. The dry run sees the tree without its own parts. That makes no difference but in one place.
//! Nothing is mapped in the range, so each node there is reaches over one end of the range, and a part is either all that an
//! empty slot covers, whose neighbours it does not touch, or it branches off something that is there. Parts that branch off the
//! same thing meet the nodes of those before: on the way towards it each branches off below the last new node, and away from it
//! above. So the dry run remembers the last new node ([`Planned`]), and no other; and how many PTEs it has put
//! into the leaf at hand, for that decides whether leaves join.
//!
//! Costs, for a part: a walk, and with a new node the stores of its slots. A range of `n` leaves has at most as many parts
//! as there are nodes on the ways to its two ends, and what it builds in one part costs a walk below that part's uppermost
//! node for each lowest node, and a constant a leaf.
//!
//! | term | here |
//! |-|-|
//! | edge | what a slot says: the way to a node or leaf, or nothing |
//! | digit | the address bits by which a node chooses; `shift` is the lowest, `top` the position above the highest |
//! | guard | the bits between two digits, which all pages below agree in |
//! | near | an address in the subtree that a slot leads to; no inner node says where it is |
//! | unit | what a leaf of larger pages covers: a page, or a pair |
//! | over | whether pages of another size are replaced |
//!
//! Where a larger page may stand in several slots instead, a node that has to change for one is built anew: see
//! [`compose`](super::compose).

use tlbkit_addr::Flush;

use super::Gpt;
use super::guard::{agree, low};
use super::job::{Around, Count, Fresh, Gone, Job, New, Supply};
use super::layout::{Edge, Layout};
use super::node_size::NodeSize;
use super::slots::Place;
use super::tune::Which;
use super::visit::Span;
use crate::format::Format;
use crate::mode::Mode;
use crate::nodes::{NodeAddr, Nodes, Stock};
use crate::{Error, Geometry, Retired};

/// The node that the dry run has planned last.
#[derive(Clone, Copy)]
struct Planned {
    /// A key that it covers.
    at: usize,
    shift: u32,
    top: u32,
}

/// What the dry run remembers of the parts before.
struct Plan {
    node: Option<Planned>,
    /// The leaf that they filled last, and with how many PTEs.
    filled: (NodeAddr, usize),
}

/// How far one step of an insertion came.
#[derive(Clone, Copy)]
struct Done {
    /// The last key that is inserted.
    last: usize,
    /// Whether nodes have changed.
    changed: bool,
    /// Whether one was parted, so that there are new nodes that do not cover the pages.
    parted: bool,
}

/// How a part of a span is joined with what is there.
enum Fork {
    /// In a leaf, which has both.
    Leaf(Span, Edge),
    /// In the slot, of this many bits, of a node that the dry run has counted for a part before.
    Below(u32),
    /// In a new node, which is empty.
    Node(Edge),
}

/// A slot that has to change.
struct Step {
    place: Place,
    /// The bits that the slot covers.
    ceiling: u32,
    /// The width of the node that has it.
    width: u32,
    /// What it leads to.
    old: Edge,
    /// A key below that.
    near: usize,
    /// The pages that the change is enough for.
    part: Span,
    way: By,
}

/// How a slot changes.
#[derive(Clone, Copy)]
enum By {
    /// The part is built in it.
    Building,
    /// As that, and what it led to goes.
    Replacing,
    /// What it leads to and the part are joined.
    Joining,
    /// The node that it leads to is built anew.
    Renewing,
    /// The node that it leads to is parted.
    Parting,
    /// The node that it leads to is built anew, with one larger page less.
    Splitting,
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'n, G, F, N, L, P> {
    /// Maps a span: inserts it, and tunes what that has changed.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table; so for all that follow.
    #[inline(always)]
    pub(super) unsafe fn grow(
        &self,
        batch: &mut Retired<'n>,
        span: Span,
        page: u32,
        over: bool,
        word: impl Fn(usize) -> F::Word,
        broken: &mut dyn FnMut(&Flush),
    ) -> Result<(), Error> {
        let span = Span { first: span.first, last: span.last & !low(page) };
        // SAFETY: the caller is the writer.
        unsafe {
            let done = self.insert(batch, span, page, over, word, broken)?;
            if done.changed {
                self.tune_span(batch, span, over, done.parted);
            }
        }
        Ok(())
    }

    /// Counts the nodes that a span needs, reserves them, commits.
    #[inline(never)]
    unsafe fn insert(
        &self,
        batch: &mut Retired<'n>,
        span: Span,
        page: u32,
        over: bool,
        word: impl Fn(usize) -> F::Word,
        broken: &mut dyn FnMut(&Flush),
    ) -> Result<Done, Error> {
        let mut stock = Stock::empty(self.nodes, &Self::WORDS);
        // SAFETY: the caller is the writer.
        unsafe {
            let supply = &mut Count(&mut stock);
            self.insert_all(&mut Job { supply, batch, page, over, word: &word, broken }, span);
        }
        stock.take_wanted(L::REACH)?;
        // Frames are whole before the table leads to them.
        N::Mode::release();
        let supply = &mut stock;
        // SAFETY: as above.
        unsafe { Ok(self.insert_all(&mut Job { supply, batch, page, over, word: &word, broken }, span)) }
    }

    /// Inserts the parts of a span one after the other.
    unsafe fn insert_all<S: Supply, W: Fn(usize) -> F::Word>(
        &self,
        job: &mut Job<'_, 'n, S, W>,
        span: Span,
    ) -> Done {
        let mut rest = span;
        let mut all = Done { last: span.first, changed: false, parted: false };
        let mut plan = Plan { node: None, filled: (NodeAddr::new(0), 0) };
        loop {
            // SAFETY: the caller is the writer.
            let done = unsafe { self.insert_next(job, rest, &mut plan) };
            all.last = done.last;
            all.changed |= done.changed;
            all.parted |= done.parted;
            match (done.last | low(job.page)).checked_add(1).filter(|&next| next <= span.last) {
                Some(next) => rest.first = next,
                None => return all,
            }
        }
    }

    /// Tunes the nodes that a span has changed: those that reach over one of its ends, and where pages were resized
    /// those within, too.
    #[inline(never)]
    unsafe fn tune_span(&self, batch: &mut Retired<'n>, span: Span, within: bool, parted: bool) {
        let all = span.first != span.last;
        let which = if all { Which::All } else { Which::Lowest };
        let mut at = span.first;
        // SAFETY: the caller is the writer.
        unsafe {
            loop {
                let lowest = self.tune_path(batch, at, which, parted);
                if !within || at == span.last {
                    break;
                }
                match (at | low(lowest)).checked_add(1) {
                    Some(next) if next < span.last => at = next,
                    _ => break,
                }
            }
            if all {
                let which = if within || parted { Which::All } else { Which::NotOf(span.first) };
                self.tune_path(batch, span.last, which, parted);
            }
        }
    }

    /// Inserts the first part of a span that one slot's change is enough for, and returns where that ends.
    ///
    /// One walk for the span's first page finds the slot ([`next_step`](Self::next_step)). The step depends on what the slot says:
    ///
    /// | the slot leads to | the part | the step |
    /// |-|-|-|
    /// | nothing | what the slot covers | a new subtree |
    /// | a node or leaf elsewhere, or one page of a pair | up to that | a new node above both: `branch` |
    /// | a leaf of such pages that covers the part | what the leaf covers | the PTEs |
    /// | pages that the part replaces | what they cover | a new subtree, the old one retired |
    /// | a node of slots smaller than the pages | what the node covers | the node built anew: `part`, `renew` |
    ///
    /// The dry run sees the tree without the parts before. All that these can have added above or beside the next part is
    /// one node and some PTEs, which `plan` says.
    #[inline(never)]
    unsafe fn insert_next<S: Supply, W: Fn(usize) -> F::Word>(
        &self,
        job: &mut Job<'_, 'n, S, W>,
        rest: Span,
        plan: &mut Plan,
    ) -> Done {
        // SAFETY: the caller is the writer, in everything called.
        unsafe {
            let step = self.next_step(job, rest, plan);
            let step = match &step {
                Ok(step) => step,
                Err(done) => return *done,
            };
            let (part, new, gone) = self.take_for(job, step, plan);
            // What was taken is built here, when the frames of those that have taken it are gone from the stack.
            let new = match new {
                New::Below(ceiling) => self.build(job, ceiling, part),
                New::Open(node) => {
                    self.build_slots(job, node, part);
                    node
                }
                New::Filled(fresh) => self.compose(job, &fresh, step.old, part),
                New::Whole(new) => new,
            };
            if S::REAL {
                self.break_old(job, step.old, part);
                self.link(job, step, part, new, &gone);
                if matches!(gone, Gone::Node) {
                    self.let_go(job.batch, step.old, new);
                }
            }
            Done { last: part.last, changed: true, parted: matches!(gone, Gone::Parted) }
        }
    }

    /// Takes the node that a slot will lead to.
    #[inline(never)]
    unsafe fn take_for<S: Supply, W: Fn(usize) -> F::Word>(
        &self,
        job: &mut Job<'_, 'n, S, W>,
        step: &Step,
        plan: &mut Plan,
    ) -> (Span, New, Gone) {
        let part = step.part;
        // SAFETY: the caller is the writer.
        unsafe {
            match step.way {
                By::Building => (part, New::Below(step.ceiling), Gone::Nothing),
                By::Replacing => (part, New::Below(step.ceiling), Gone::Subtree),
                By::Joining => self.branch(job, step, plan),
                By::Renewing => (part, self.renew(job, step.old, part), Gone::Node),
                By::Parting => self.part(job, step.old, part),
                By::Splitting => (part, New::Open(self.split_page(job, step.old, part)), Gone::Node),
            }
        }
    }

    /// Makes the slot of a step lead to what was built.
    #[inline(never)]
    unsafe fn link<S, W>(
        &self,
        job: &mut Job<'_, 'n, S, W>,
        step: &Step,
        part: Span,
        new: Edge,
        gone: &Gone,
    ) {
        let Step { place, ceiling, width, old, .. } = *step;
        // SAFETY: the caller is the writer, and the new subtree is complete.
        unsafe {
            self.publish(place, ceiling, new);
            if let Place::In(node, _) = place
                && old.is_empty()
            {
                let above = Edge { node, shift: ceiling, width, leaf: false, base: 0 };
                self.add_live(above, 1);
            }
            match gone {
                // The caller lets go of it.
                Gone::Nothing | Gone::Node => (),
                Gone::Parted => {
                    let slots = old.index(part.first)..old.index(part.last | low(job.page)) + 1;
                    self.discard_slots(job.batch, old, slots);
                    self.retire(job.batch, old);
                }
                Gone::Copied => self.retire(job.batch, old),
                Gone::Page => self.release(job.batch, old),
                Gone::Subtree => self.discard(job.batch, old),
            }
        }
    }

    /// Finds the slot that has to change next. Fills a leaf that has room itself.
    #[inline(never)]
    unsafe fn next_step<S: Supply, W: Fn(usize) -> F::Word>(
        &self,
        job: &mut Job<'_, 'n, S, W>,
        rest: Span,
        plan: &mut Plan,
    ) -> Result<Step, Done> {
        let (at, page) = (rest.first, job.page);
        // SAFETY: the caller is the writer, in everything called; slots are within their nodes.
        unsafe {
            let (mut place, mut ceiling, mut above) = (Place::Root, G::VA_BITS, Edge::EMPTY);
            let mut old = self.edge(place, ceiling, at);
            let near = if old.is_empty() { at } else { self.nearest(old, at).unwrap_or(at) };
            let mut near = near;
            let (part, way) = loop {
                if old.is_empty() {
                    break (rest.clip(at, ceiling, page), By::Building);
                }
                if !agree(at, near, old.top()) {
                    break (rest, By::Joining);
                }
                if old.leaf && old.shift == page {
                    let part = rest.clip(at, old.top(), page);
                    if S::REAL && !job.over {
                        self.fill(job, old, part);
                    }
                    plan.filled = (old.node, Self::pages_in(part, page));
                    let changed = !above.is_empty() && above.top() <= Self::LEAF_TOP;
                    return Err(Done { last: part.last, changed, parted: false });
                }
                if old.leaf {
                    if let Some(other) = self.other_half(page, old, near & !low(old.top()), rest) {
                        near = other;
                        break (if job.over { rest.clip(at, old.shift, page) } else { rest }, By::Joining);
                    }
                    break (rest.clip(at, old.top().max(page), page), By::Replacing);
                }
                if job.over && old.top() <= page {
                    break (Span { first: at, last: at }, By::Replacing);
                }
                let part = rest.clip(at, old.top(), page);
                if L::PAIRS && old.shift < Self::unit(page) {
                    break (part, By::Renewing);
                }
                if !L::PAIRS && old.shift < page {
                    break (part, By::Parting);
                }
                let slot = Place::In(old.node, old.index(at));
                let child = self.edge(slot, old.shift, at);
                if old.shares(child) {
                    // One page of a pair, which stands in several slots.
                    let part = rest.clip(at, child.shift, page);
                    if child.shift == page {
                        return Err(Done { last: part.last, changed: false, parted: false });
                    }
                    break (part, By::Splitting);
                }
                (place, ceiling, above) = (slot, old.shift, old);
                old = child;
            };
            Ok(Step { place, ceiling, width: above.width, old, near, part, way })
        }
    }

    /// Joins what a slot says, in which `near` is, and the first part of a span outside of that: in one larger leaf, or
    /// under a new node at the highest bit in which they differ.
    #[inline(never)]
    unsafe fn branch<S: Supply, W: Fn(usize) -> F::Word>(
        &self,
        job: &mut Job<'_, 'n, S, W>,
        step: &Step,
        plan: &mut Plan,
    ) -> (Span, New, Gone) {
        let Step { ceiling, old, near, part: rest, .. } = *step;
        // SAFETY: the caller is the writer; the new node is private.
        unsafe {
            let (at, base) = (rest.first, near & !low(old.top()));
            let new = match self.fork(job, old, ceiling, rest, near, plan) {
                Fork::Leaf(part, leaf) => return (part, New::Whole(leaf), Gone::Copied),
                Fork::Below(ceiling) => {
                    return (rest.clip(at, ceiling, job.page), New::Below(ceiling), Gone::Nothing);
                }
                Fork::Node(new) => new,
            };
            let region = near & !low(new.top());
            let shared = new.shares(old);
            let last = if shared { base | low(old.top()) } else { base };
            let gone = if job.over { Gone::Page } else { Gone::Nothing };
            if Self::unit(job.page) > new.shift {
                let part = rest.clip(at, new.top(), job.page);
                // Where the part ends in the half of the old leaf's pair that is free, a new leaf has both pages.
                let joins = old.leaf && old.shift == job.page && part.last >= base && part.first < base;
                let gone = if joins { Gone::Page } else { gone };
                let fresh = Fresh { node: new, base: region, around: Around::Entry(near) };
                return (part, New::Filled(fresh), gone);
            }
            // The new PTEs of pages that are split come from the old leaf, which can be found until the node is linked.
            let part = if job.over { rest } else { rest.clip(at, new.shift, job.page) };
            if S::REAL {
                for slot in new.index(base)..=new.index(last) {
                    if !shared || self.keeps(old, region | slot << new.shift, part) {
                        self.store_edge(new.node, slot, new.shift, old);
                    }
                }
                self.set_live(new, 1);
            }
            (part, New::Open(new), gone)
        }
    }

    /// Chooses how what a slot says and the first part of a span outside of that are joined, and takes the leaf or node.
    #[inline(never)]
    unsafe fn fork<S: Supply, W: Fn(usize) -> F::Word>(
        &self,
        job: &mut Job<'_, 'n, S, W>,
        old: Edge,
        mut ceiling: u32,
        rest: Span,
        near: usize,
        plan: &mut Plan,
    ) -> Fork {
        let at = rest.first;
        // Where the span is the other half of a pair, the bit that tells them apart.
        let home = near & !low(if L::PAIRS && old.leaf { old.shift } else { old.top() });
        let bit = Self::top_bit(at ^ home);
        let (mut top, mut alone) = (old.top(), old.leaf);
        if let Some(new) = plan.node
            && !S::REAL
        {
            if agree(new.at, at, new.top) {
                if bit >= new.shift {
                    return Fork::Below(new.shift);
                }
                // It may be below the slot that has to change, or above.
                ceiling = ceiling.min(new.shift);
            } else if agree(new.at, near, new.top) {
                (top, alone) = (top.max(new.top), false);
            }
        }
        // SAFETY: the caller is the writer; the new leaf is private.
        unsafe {
            if alone && old.shift == job.page && old.shift == Self::BASE && bit < Self::LEAF_TOP {
                let part = rest.clip(at, Self::LEAF_TOP.min(ceiling), job.page);
                let width = Self::top_bit((part.last ^ at) | (at ^ home)) + 1 - Self::BASE;
                // The commit has filled the leaf by now.
                let filled = if !S::REAL && plan.filled.0 == old.node { plan.filled.1 } else { 0 };
                if Self::worth(self.live(old) + filled + Self::pages_in(part, job.page), width) {
                    let leaf = self.plant(job, width, part);
                    if S::REAL {
                        self.copy_leaf(old, near & !low(old.top()), leaf);
                    }
                    return Fork::Leaf(part, leaf);
                }
            }
            let floor = Self::floor(job.page, bit).max(top);
            let (shift, width) = Self::choose(bit, floor, ceiling, None);
            let new = self.new_node(job.supply, shift, width, home & !low(shift + width));
            plan.node = Some(Planned { at, shift, top: shift + width });
            Fork::Node(new)
        }
    }

    /// Takes a node in place of one in which a larger page, of a leaf of two that stands in several slots, gives its slots to
    /// smaller pages. These slots are empty in the new one.
    #[inline(never)]
    unsafe fn split_page<S: Supply, W: Fn(usize) -> F::Word>(
        &self,
        job: &mut Job<'_, 'n, S, W>,
        old: Edge,
        part: Span,
    ) -> Edge {
        let base = part.first & !low(old.top());
        // SAFETY: the caller is the writer; the new node is private, and slots are within their nodes.
        unsafe {
            let new = self.new_node(job.supply, old.shift, old.width, base);
            let own = old.index(part.first)..=old.index(part.last);
            let child = |slot: usize| self.edge(Place::In(old.node, slot), old.shift, 0);
            if S::REAL {
                for slot in (0..old.slots()).filter(|slot| !own.contains(slot)) {
                    self.store_edge(new.node, slot, new.shift, child(slot));
                }
                self.set_live(new, self.entries(new));
            }
            new
        }
    }
}
