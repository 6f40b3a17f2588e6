//! Insertion: how the tree maps a range of pages.
//!
//! A loop inserts the range part by part. For the first page that is not inserted yet, one walk from the root finds the slot that
//! has to change ([`insert_part`](Gpt::insert_part)). The part is the pages that this one change can map. Its new nodes are built
//! where no walker can reach them, and linked with one store. The loop ends because every part has at least one page.
//!
//! ```text
//!   slot -> X, pages outside X         slot -> new                 the insertion splits X's
//!            guard of X:                        prefix             guard into prefix, digit
//!            prefix . digit . rest      +--------+-------+         and rest
//!                                       |   X    | pages |
//!                                       +--------+-------+
//!                                    rest
//!
//!   slot -> X of small slots,          slot -> upper               a larger page needs a
//!            one page of 2^k slots      +------+------+            slot of its own size:
//!                                       | page | lower|            X's digit is divided ([`divide`](super::divide))
//!                                       +------+------+
//! ```
//!
//! The loop runs twice: first a dry run with a supply that counts nodes, then the real run with a supply that hands out exactly
//! those nodes. So a range is inserted as a whole or not at all.
//!
//! The dry run changes nothing, so its walks do not find the nodes of the parts that it has planned. That matters only where two
//! parts change the same slot:
//!
//! - Nothing is mapped in the range, so the region of each existing node on the path contains one end of the range. A part either
//!   fills an empty slot, and changes nothing else, or splits the guard of an existing node or leaf.
//! - Several parts may split the same guard. A part below the node or leaf splits what the part before it has left of the guard
//!   below its new node, because such parts come nearer to the node or leaf. A part above it splits what is left above that node.
//! - In both cases the last new node decides. So the dry run remembers that node ([`Planned`]) and no other.
//!
//! The dry run also remembers how many PTEs it has put in the current leaf, because that number decides whether leaves join.
//!
//! A part costs a walk, and with a new node the stores of its slots. A range of `n` leaves has at most as many parts as there are
//! nodes on the paths to its two ends. In a new subtree, each lowest node costs a walk from the subtree's uppermost node, and
//! each leaf a constant.
//!
//! | term | here |
//! |-|-|
//! | key | the significant bits of an address ([`key`](Gpt::key)): all addresses in this file are keys |
//! | span | the pages to be mapped: the keys of the first and of the last one. `rest` is what is not inserted yet |
//! | part | the pages of the span that the change of one slot maps |
//! | old, new | the edge that the slot holds, and the edge that replaces it |
//! | edge | the contents of a slot: a link to a node or leaf, or nothing |
//! | digit | the address bits that index a node; `shift` is the lowest, `top` the position above the highest |
//! | ceiling | the position above the highest address bit that a slot leaves open: the slot covers `2^ceiling` bytes |
//! | guard | the bits between two digits, in which all pages below agree |
//! | region | the `2^top` bytes that a node or leaf covers |
//! | base | the first key of a region; `old_base` and `new_base` are those of `old` and `new` |
//! | near | a key in the region of `old`. A node does not store its base, so it is read from a leaf below: `near` without its low `top` bits is the base. (The slots of [`TwoWords`](super::TwoWords) store it.) |
//! | start | the first key of one slot's region: the node's base with the slot's number as its digit |
//! | split a guard | link a new node, at the highest bit in which a page and the guard differ, above both |
//! | divide a node | replace it by an upper node and lower ones, each with some bits of its digit |
//! | unit | the region of a leaf of larger pages: a page, or a pair |
//! | replaces | whether the new pages take the place of pages of another size |
//!
//! In a layout in which a larger page may occupy several slots, a node that has to change for such a page is not divided but built
//! anew: see [`rebuild`](super::rebuild).

use tlbkit_addr::Flush;

use super::Gpt;
use super::guard::{agree, low};
use super::job::{Around, Count, Fresh, Gone, Job, New, Ptes, Supply};
use super::layout::{Edge, Holds, Layout};
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

/// What the dry run remembers of the parts that it has planned.
struct Plan {
    node: Option<Planned>,
    /// The leaf that those parts filled last, and how many PTEs they put in it.
    filled: (NodeAddr, usize),
}

/// The result of one step of an insertion.
#[derive(Clone, Copy)]
struct Done {
    /// The last key that is inserted.
    last: usize,
    /// Whether nodes have changed.
    changed: bool,
    /// Whether a node was divided, so that there are new nodes that do not cover the pages.
    divided: bool,
}

/// How the guard above an existing node or leaf is split, so that a part of a span gets a place beside it.
enum GuardSplit {
    /// One leaf replaces the existing one, and holds the PTEs of both.
    Leaf(Span, Edge),
    /// The dry run has counted a new node for a part before. This part is built in a slot of it, of this many bits.
    Below(u32),
    /// A new node, which is empty.
    Node(Edge),
}

/// The slot that has to change for the next part.
struct Target {
    place: Place,
    /// The number of address bits that the slot covers.
    ceiling: u32,
    /// The width of the slot's node.
    width: u32,
    /// The slot's contents.
    old: Edge,
    /// A key in the region of `old`; the part's first key if `old` is empty.
    near: usize,
    /// The pages that the change of this slot can map.
    part: Span,
    change: SlotChange,
}

/// How a slot changes.
#[derive(Clone, Copy)]
enum SlotChange {
    /// The slot is empty: the part is built in it.
    Building,
    /// The part is built in the slot, and the slot's old subtree is retired.
    Replacing,
    /// The guard above the slot's node or leaf is split, and the part gets a place beside it.
    SplittingGuard,
    /// The slot's node is built anew.
    Rebuilding,
    /// The slot's node is divided into nodes of fewer bits.
    Dividing,
    /// The slot's node is built anew, with smaller pages in the place of one of its larger pages.
    SplittingPage,
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'n, G, F, N, L, P> {
    /// Maps a span: inserts it, then tunes the changed nodes.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
    #[inline(always)]
    pub(super) unsafe fn insert_span(
        &self,
        batch: &mut Retired<'n>,
        span: Span,
        page: u32,
        replaces: bool,
        ptes: Ptes<F::Word>,
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) -> Result<(), Error> {
        let span = Span { first: span.first, last: span.last & !low(page) };
        // SAFETY: the caller is the writer.
        unsafe {
            let done = self.reserve_and_insert(batch, span, page, replaces, ptes, flush_all_cpus)?;
            if done.changed {
                self.tune_span(batch, span, replaces, done.divided);
            }
        }
        Ok(())
    }

    /// Counts the nodes that a span needs, reserves them, and inserts the span.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
    #[inline(never)]
    unsafe fn reserve_and_insert(
        &self,
        batch: &mut Retired<'n>,
        span: Span,
        page: u32,
        replaces: bool,
        ptes: Ptes<F::Word>,
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) -> Result<Done, Error> {
        let mut stock = Stock::empty(self.nodes, &Self::WORDS);
        // SAFETY: the caller is the writer.
        unsafe {
            let supply = &mut Count(&mut stock);
            self.insert_parts(&mut Job { supply, batch, page, replaces, ptes, flush_all_cpus }, span);
        }
        stock.take_wanted(L::REACH)?;
        // The contents of the frames are visible before the table leads to them.
        N::Mode::release();
        let supply = &mut stock;
        // SAFETY: the caller is the writer.
        unsafe {
            Ok(self.insert_parts(&mut Job { supply, batch, page, replaces, ptes, flush_all_cpus }, span))
        }
    }

    /// Inserts the parts of a span one after the other.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the job's batch came from this table.
    unsafe fn insert_parts<S: Supply>(&self, job: &mut Job<'_, 'n, S, F::Word>, span: Span) -> Done {
        let mut rest = span;
        let mut all = Done { last: span.first, changed: false, divided: false };
        let mut plan = Plan { node: None, filled: (NodeAddr::new(0), 0) };
        loop {
            // SAFETY: the caller is the writer.
            let done = unsafe { self.insert_part(job, rest, &mut plan) };
            all.last = done.last;
            all.changed |= done.changed;
            all.divided |= done.divided;
            match (done.last | low(job.page)).checked_add(1).filter(|&next| next <= span.last) {
                Some(next) => rest.first = next,
                None => return all,
            }
        }
    }

    /// Tunes the nodes that the insertion of a span has changed: those whose region contains one of its ends, and, if pages were
    /// resized, also those within it.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
    #[inline(never)]
    unsafe fn tune_span(&self, batch: &mut Retired<'n>, span: Span, within: bool, divided: bool) {
        let all = span.first != span.last;
        let which = if all { Which::All } else { Which::Lowest(2) };
        let mut at = span.first;
        // SAFETY: the caller is the writer.
        unsafe {
            loop {
                let lowest = self.tune_path(batch, at, which, divided);
                if !within || at == span.last {
                    break;
                }
                match (at | low(lowest)).checked_add(1) {
                    Some(next) if next < span.last => at = next,
                    _ => break,
                }
            }
            if all {
                let which = if within || divided { Which::All } else { Which::NotOf(span.first) };
                self.tune_path(batch, span.last, which, divided);
            }
        }
    }

    /// Inserts the first part of a span, which the change of one slot can map, and returns where the part ends.
    ///
    /// One walk for the span's first page finds the slot ([`find_target`](Self::find_target)). The change depends on the slot's
    /// contents:
    ///
    /// | the slot leads to | the part is | the change makes |
    /// |-|-|-|
    /// | nothing | the pages that the slot covers | a new subtree |
    /// | a node or leaf of another region, or one page of a pair | the pages of one slot of the new node, or of the new leaf | a new node above both, or one leaf for both: `split_guard` |
    /// | a leaf of pages of this size that covers the part | the pages that the leaf covers | their PTEs |
    /// | pages that the part replaces | the pages that they cover | a new subtree; the old one is retired |
    /// | a node with slots smaller than the pages | the pages that the node covers | new nodes for this one: `divide`, `rebuild` |
    ///
    /// The dry run sees the tree without the parts that it has planned. Only one of their nodes, and the number of PTEs in one leaf,
    /// can matter to the next part; `plan` holds both.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the job's batch came from this table.
    #[inline(never)]
    unsafe fn insert_part<S: Supply>(
        &self,
        job: &mut Job<'_, 'n, S, F::Word>,
        rest: Span,
        plan: &mut Plan,
    ) -> Done {
        // SAFETY: by this function's contract the caller is the writer; the target is a slot of the table.
        unsafe {
            let target = self.find_target(job, rest, plan);
            let target = match &target {
                Ok(target) => target,
                Err(done) => return *done,
            };
            let (part, new, gone) = self.take_nodes(job, target, plan);
            // The nodes are filled here, after the functions that took them have returned, to keep the stack small.
            let new = match new {
                New::Below(ceiling) => self.build(job, ceiling, part),
                New::Open(node) => {
                    self.build_slots(job, node, part);
                    node
                }
                New::Filled(fresh) => self.fill_node(job, &fresh, target.old, part),
                New::Whole(new) => new,
            };
            if S::REAL {
                self.break_old(job, target.old, part);
                self.link(job, target, part, new, &gone);
                if matches!(gone, Gone::Node) {
                    self.retire_replaced(job.batch, target.old, new);
                }
            }
            Done { last: part.last, changed: true, divided: matches!(gone, Gone::Divided) }
        }
    }

    /// Takes the node or leaf to which the target slot will lead.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the job's batch came from this table, and the target is a slot of this table.
    #[inline(never)]
    unsafe fn take_nodes<S: Supply>(
        &self,
        job: &mut Job<'_, 'n, S, F::Word>,
        target: &Target,
        plan: &mut Plan,
    ) -> (Span, New, Gone) {
        let part = target.part;
        // SAFETY: the caller is the writer.
        unsafe {
            match target.change {
                SlotChange::Building => (part, New::Below(target.ceiling), Gone::Nothing),
                SlotChange::Replacing => (part, New::Below(target.ceiling), Gone::Subtree),
                SlotChange::SplittingGuard => self.split_guard(job, target, plan),
                SlotChange::Rebuilding => (part, self.rebuild(job, target.old, part), Gone::Node),
                SlotChange::Dividing => self.divide(job, target.old, part),
                SlotChange::SplittingPage => {
                    (part, New::Open(self.split_page(job, target.old, part)), Gone::Node)
                }
            }
        }
    }

    /// Links the new node or leaf from the target slot, and retires the nodes and leaves that it replaces.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the job's batch came from this table, the target is a slot of this table, and the subtree
    /// `new` is complete.
    #[inline(never)]
    unsafe fn link<S>(
        &self,
        job: &mut Job<'_, 'n, S, F::Word>,
        target: &Target,
        part: Span,
        new: Edge,
        gone: &Gone,
    ) {
        let Target { place, ceiling, width, old, .. } = *target;
        // SAFETY: the caller is the writer, and the new subtree is complete.
        unsafe {
            self.publish(place, ceiling, new);
            if let Place::In(node, _) = place
                && old.is_empty()
            {
                let above = Edge { node, shift: ceiling, width, holds: Holds::Links, base: 0 };
                self.add_live(above, 1);
            }
            match gone {
                // Nothing is retired, or the caller retires it.
                Gone::Nothing | Gone::Node => (),
                Gone::Divided => {
                    let slots = old.index(part.first)..old.index(part.last | low(job.page)) + 1;
                    self.discard_slots(job.batch, old, slots);
                    self.retire(job.batch, old);
                }
                Gone::Copied => self.retire(job.batch, old),
                Gone::Page => self.remove_half(job.batch, old),
                Gone::Subtree => self.discard(job.batch, old),
            }
        }
    }

    /// Finds the slot that has to change for the next part. If no slot has to change, because a leaf covers the part, stores the
    /// PTEs and returns the end of that part instead.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the job's batch came from this table.
    #[inline(never)]
    unsafe fn find_target<S: Supply>(
        &self,
        job: &mut Job<'_, 'n, S, F::Word>,
        rest: Span,
        plan: &mut Plan,
    ) -> Result<Target, Done> {
        let (at, page) = (rest.first, job.page);
        // SAFETY: by this function's contract the caller is the writer; slots are within their nodes.
        unsafe {
            let (mut place, mut ceiling, mut above) = (Place::Root, G::VA_BITS, Edge::EMPTY);
            let mut old = self.edge(place, ceiling, at);
            let mut near = if old.is_empty() { at } else { self.nearest(old, at).unwrap_or(at) };
            let (part, change) = loop {
                if old.is_empty() {
                    break (rest.clip(at, ceiling, page), SlotChange::Building);
                }
                if !agree(at, near, old.top()) {
                    break (rest, SlotChange::SplittingGuard);
                }
                if old.is_leaf() && old.shift == page {
                    let part = rest.clip(at, old.top(), page);
                    if S::REAL && !job.replaces {
                        self.fill(job, old, part);
                    }
                    plan.filled = (old.node, Self::pages_in(part, page));
                    let changed = !above.is_empty() && above.top() <= Self::LEAF_TOP;
                    return Err(Done { last: part.last, changed, divided: false });
                }
                if old.is_leaf() {
                    if let Some(other) = self.other_half(page, old, near & !low(old.top()), rest) {
                        near = other;
                        break (
                            if job.replaces { rest.clip(at, old.shift, page) } else { rest },
                            SlotChange::SplittingGuard,
                        );
                    }
                    break (rest.clip(at, old.top().max(page), page), SlotChange::Replacing);
                }
                if job.replaces && old.top() <= page {
                    break (Span { first: at, last: at }, SlotChange::Replacing);
                }
                let part = rest.clip(at, old.top(), page);
                if L::PAIRS && old.shift < Self::unit(page) {
                    break (part, SlotChange::Rebuilding);
                }
                if !L::PAIRS && old.shift < page {
                    break (part, SlotChange::Dividing);
                }
                let slot = Place::In(old.node, old.index(at));
                let child = self.edge(slot, old.shift, at);
                if old.shares(child) {
                    // One page of a pair, which occupies several slots.
                    let part = rest.clip(at, child.shift, page);
                    if child.shift == page {
                        return Err(Done { last: part.last, changed: false, divided: false });
                    }
                    break (part, SlotChange::SplittingPage);
                }
                (place, ceiling, above) = (slot, old.shift, old);
                old = child;
            };
            Ok(Target { place, ceiling, width: above.width, old, near, part, change })
        }
    }

    /// Splits the guard above the node or leaf of a slot, because the first page of a span differs from it: takes a new node at the
    /// highest bit in which the two differ, or one larger leaf for both.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the job's batch came from this table, and the target is a slot of this table that is not
    /// empty.
    #[inline(never)]
    unsafe fn split_guard<S: Supply>(
        &self,
        job: &mut Job<'_, 'n, S, F::Word>,
        target: &Target,
        plan: &mut Plan,
    ) -> (Span, New, Gone) {
        let Target { ceiling, old, near, part: rest, .. } = *target;
        // SAFETY: the caller is the writer; the new node is private.
        unsafe {
            let (at, old_base) = (rest.first, near & !low(old.top()));
            let new = match self.choose_split(job, old, ceiling, rest, near, plan) {
                GuardSplit::Leaf(part, leaf) => return (part, New::Whole(leaf), Gone::Copied),
                GuardSplit::Below(ceiling) => {
                    return (rest.clip(at, ceiling, job.page), New::Below(ceiling), Gone::Nothing);
                }
                GuardSplit::Node(new) => new,
            };
            let new_base = near & !low(new.top());
            let shared = new.shares(old);
            let last = if shared { old_base | low(old.top()) } else { old_base };
            let gone = if job.replaces { Gone::Page } else { Gone::Nothing };
            if Self::unit(job.page) > new.shift {
                let part = rest.clip(at, new.top(), job.page);
                // If the part's last page is the free half of the old leaf's pair, a new leaf maps both pages of the pair.
                let joins =
                    old.is_leaf() && old.shift == job.page && part.last >= old_base && part.first < old_base;
                let gone = if joins { Gone::Page } else { gone };
                let fresh = Fresh { node: new, base: new_base, around: Around::Entry(near) };
                return (part, New::Filled(fresh), gone);
            }
            // When a page is split, the new PTEs are computed from the old leaf. Lookups find it until the new node is linked.
            let part = if job.replaces { rest } else { rest.clip(at, new.shift, job.page) };
            if S::REAL {
                for slot in new.index(old_base)..=new.index(last) {
                    if !shared || self.keeps(old, new_base | slot << new.shift, part) {
                        self.store_edge(new.node, slot, new.shift, old);
                    }
                }
                self.set_live(new, 1);
            }
            (part, New::Open(new), gone)
        }
    }

    /// Chooses how the guard above the node or leaf `old` is split for the first part of a span, and takes the new leaf or node.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the job's batch came from this table, and `old` is a node or leaf of this table.
    #[inline(never)]
    unsafe fn choose_split<S: Supply>(
        &self,
        job: &mut Job<'_, 'n, S, F::Word>,
        old: Edge,
        mut ceiling: u32,
        rest: Span,
        near: usize,
        plan: &mut Plan,
    ) -> GuardSplit {
        let at = rest.first;
        // In a layout of pairs `old` may be the leaf of one half of a pair, and the span may begin with the other half. So for a leaf
        // this is the base of the mapped half, not of the pair.
        let old_base = near & !low(if L::PAIRS && old.is_leaf() { old.shift } else { old.top() });
        let bit = Self::top_bit(at ^ old_base);
        let (mut top, mut alone) = (old.top(), old.is_leaf());
        if let Some(new) = plan.node
            && !S::REAL
        {
            if agree(new.at, at, new.top) {
                if bit >= new.shift {
                    return GuardSplit::Below(new.shift);
                }
                // The planned node may be below the slot that has to change, or above.
                ceiling = ceiling.min(new.shift);
            } else if agree(new.at, near, new.top) {
                (top, alone) = (top.max(new.top), false);
            }
        }
        // SAFETY: the caller is the writer; the new leaf is private.
        unsafe {
            if alone && old.shift == job.page && old.shift == Self::BASE && bit < Self::LEAF_TOP {
                let part = rest.clip(at, Self::LEAF_TOP.min(ceiling), job.page);
                let width = Self::top_bit((part.last ^ at) | (at ^ old_base)) + 1 - Self::BASE;
                // The real run has stored the PTEs of the parts before in the leaf; the dry run has counted them.
                let filled = if !S::REAL && plan.filled.0 == old.node { plan.filled.1 } else { 0 };
                if Self::worth(self.live(old) + filled + Self::pages_in(part, job.page), width) {
                    let leaf = self.new_leaf(job, width, part);
                    if S::REAL {
                        self.copy_leaf(old, near & !low(old.top()), leaf);
                    }
                    return GuardSplit::Leaf(part, leaf);
                }
            }
            let floor = Self::floor(job.page, bit).max(top);
            let (shift, width) = Self::choose(bit, floor, ceiling, None);
            let new = self.new_node(job.supply, shift, width, old_base & !low(shift + width));
            plan.node = Some(Planned { at, shift, top: shift + width });
            GuardSplit::Node(new)
        }
    }

    /// Takes a node in place of one in which smaller pages replace one larger page of a pair that occupies several slots. Those
    /// slots are empty in the new node.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the job's batch came from this table, and `old` is a node of this table that covers the part.
    #[inline(never)]
    unsafe fn split_page<S: Supply>(&self, job: &mut Job<'_, 'n, S, F::Word>, old: Edge, part: Span) -> Edge {
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
