//! Insertion: how the tree maps a range of pages.
//!
//! A loop inserts the range part by part. For the first page that is not inserted yet, one walk from the root finds the slot that
//! has to change ([`insert_part`](Writing::insert_part)). The part is the pages that this one change can map. Its new nodes are built
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
//! A part costs a walk, and with a new node the stores of its slots. A range of `n` leaves has at most as many parts as there are
//! nodes on the paths to its two ends. In a new subtree, each lowest node costs a walk from the subtree's uppermost node, and
//! each leaf a constant.
//!
//! | term | here |
//! |-|-|
//! | key | the significant bits of an address ([`key`](Shape::key)): all addresses in this file are keys |
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

use super::guard::{agree, low};
use super::job::{Around, Filling, Gone, Job, New, Order};
use super::node::{Item, Made, Node, Reserve, Slot, Writing};
use super::shape::{Shape, top_bit};
use super::tune::Which;
use super::visit::Span;
use crate::Error;
use crate::mode::Mode;
use crate::nodes::Nodes;

/// The node that the dry run has planned last.
#[derive(Clone, Copy)]
struct Planned {
    /// A key that it covers.
    at: usize,
    shift: u32,
    top: u32,
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
enum GuardSplit<'w, T: Shape, const REAL: bool> {
    /// One leaf replaces the existing one, and holds the PTEs of both.
    Leaf(Span, Made<'w, T, REAL>),
    /// The dry run has counted a new node for a part before. This part is built in a slot of it, of this many bits.
    Below(u32),
    /// A new node, which is empty.
    Node(Made<'w, T, REAL>),
}

/// The slot that has to change for the next part.
struct Target<'w, T: Shape> {
    slot: Slot<'w, T>,
    /// A key in the region of the node or leaf to which the slot leads; the part's first key if the slot is empty.
    near: usize,
    /// The pages that the change of this slot can map.
    part: Span,
    change: SlotChange<'w, T>,
}

/// How a slot changes, and the node or leaf to which it leads.
enum SlotChange<'w, T: Shape> {
    /// The slot is empty: the part is built in it.
    Building,
    /// The part is built in the slot, and the slot's old subtree is retired.
    Replacing(Node<'w, T>),
    /// The guard above the slot's node or leaf is split, and the part gets a place beside it.
    SplittingGuard(Node<'w, T>),
    /// The slot's node is built anew.
    Rebuilding(Node<'w, T>),
    /// The slot's node is divided into nodes of fewer bits.
    Dividing(Node<'w, T>),
    /// The slot's node is built anew, with smaller pages in the place of one of its larger pages.
    SplittingPage(Node<'w, T>),
}

impl<'w, T: Shape> SlotChange<'w, T> {
    /// Returns the node or leaf to which the slot leads.
    const fn old(&self) -> Option<Node<'w, T>> {
        match *self {
            Self::Building => None,
            Self::Replacing(old)
            | Self::SplittingGuard(old)
            | Self::Rebuilding(old)
            | Self::Dividing(old)
            | Self::SplittingPage(old) => Some(old),
        }
    }
}

impl<'w, T: Shape> Writing<'w, '_, T> {
    /// Maps a span: inserts it, then tunes the changed nodes.
    #[inline(always)]
    pub(super) fn insert_span(&mut self, span: Span, mut order: Order<'_, T::W>) -> Result<(), Error> {
        let span = Span { first: span.first, last: span.last & !low(order.page()) };
        let done = self.reserve_and_insert(span, &mut order)?;
        if done.changed {
            self.tune_span(span, order.replaces(), done.divided);
        }
        Ok(())
    }

    /// Counts the nodes that a span needs, reserves them, and inserts the span.
    #[inline(never)]
    fn reserve_and_insert(&mut self, span: Span, order: &mut Order<'_, T::W>) -> Result<Done, Error> {
        let mut reserve = Reserve::new(**self);
        self.insert_parts(&mut Job::new(reserve.dry(), order), span);
        let supply = reserve.take()?;
        // The contents of the frames are visible before the table leads to them.
        <T::N as Nodes>::Mode::release();
        Ok(self.insert_parts(&mut Job::new(supply, order), span))
    }

    /// Inserts the parts of a span one after the other.
    fn insert_parts<const REAL: bool>(&mut self, job: &mut Job<'_, 'w, T, REAL>, span: Span) -> Done {
        let mut rest = span;
        let mut all = Done { last: span.first, changed: false, divided: false };
        let mut plan = None;
        loop {
            let done = self.insert_part(job, rest, &mut plan);
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
    #[inline(never)]
    fn tune_span(&mut self, span: Span, within: bool, divided: bool) {
        // A node of a fixed size is not tuned.
        if !T::ADAPTIVE {
            return;
        }
        let all = span.first != span.last;
        let which = if all { Which::All } else { Which::Lowest(2) };
        let mut at = span.first;
        loop {
            let lowest = self.tune_path(at, which, divided);
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
            self.tune_path(span.last, which, divided);
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
    /// The dry run sees the tree without the parts that it has planned. Only one of their nodes can matter to the next part: `plan`.
    #[inline(never)]
    fn insert_part<const REAL: bool>(
        &mut self,
        job: &mut Job<'_, 'w, T, REAL>,
        rest: Span,
        plan: &mut Option<Planned>,
    ) -> Done {
        let target = self.find_target(job, rest);
        let target = match &target {
            Ok(target) => target,
            Err(done) => return *done,
        };
        let (part, new, gone) = self.take_nodes(job, target, plan);
        // The nodes are filled here, after the functions that took them have returned, to keep the stack small.
        let new = match new {
            New::Below(ceiling) => Some(self.build(job, ceiling, part).item()),
            New::Open(node) => {
                self.build_slots(job, node, part);
                Some(node.item())
            }
            New::Filled(filling) => self.fill_node(job, &filling),
            New::Whole(new) => Some(new.item()),
        };
        if REAL {
            self.break_old(job, target.slot, part);
            self.link(
                target,
                new.and_then(Item::node),
                &gone,
                Span { last: part.last | low(job.page), ..part },
            );
        }
        Done { last: part.last, changed: true, divided: matches!(gone, Gone::Divided) }
    }

    /// Takes the node or leaf to which the target slot will lead.
    #[inline(never)]
    fn take_nodes<const REAL: bool>(
        &self,
        job: &mut Job<'_, 'w, T, REAL>,
        target: &Target<'w, T>,
        plan: &mut Option<Planned>,
    ) -> (Span, New<'w, T, REAL>, Gone) {
        let part = target.part;
        match target.change {
            SlotChange::Building => (part, New::Below(target.slot.ceiling()), Gone::Nothing),
            SlotChange::Replacing(_) => (part, New::Below(target.slot.ceiling()), Gone::Subtree),
            SlotChange::SplittingGuard(old) => self.split_guard(job, target, old, plan),
            SlotChange::Rebuilding(old) => (part, Self::rebuild(job, old, part), Gone::Node),
            SlotChange::Dividing(old) => Self::divide(job, old, part),
            SlotChange::SplittingPage(old) => (part, New::Open(Self::split_page(job, old, part)), Gone::Node),
        }
    }

    /// Links the new node or leaf from the target slot, and retires the nodes and leaves that it replaces. `part` is all that the
    /// new pages cover.
    #[inline(never)]
    fn link(&mut self, target: &Target<'w, T>, new: Option<Node<'w, T>>, gone: &Gone, part: Span) {
        let slot = target.slot;
        slot.publish(new);
        let Some(old) = target.change.old() else {
            if let Some(above) = slot.node() {
                above.add_live(1);
            }
            return;
        };
        match gone {
            Gone::Nothing => {}
            // SAFETY: only the slot led to the leaf, and the new leaf has its PTEs.
            Gone::Copied => unsafe { self.retire(old) },
            Gone::Page => self.remove_half(old),
            // SAFETY: only the slot led to the subtree, and the new one takes its place.
            Gone::Subtree => unsafe { self.discard(old) },
            Gone::Divided => {
                let slots = old.index(part.first)..old.index(part.last) + 1;
                // SAFETY: only the slot led to the node, and only these slots of the node led to what is discarded. The new nodes lead
                // to the node's other entries.
                unsafe {
                    old.distinct(slots).for_each(|entry| self.discard(entry));
                    self.retire(old);
                }
            }
            Gone::Node => self.retire_replaced(old, new),
        }
    }

    /// Finds the slot that has to change for the next part. If no slot has to change, because a leaf covers the part, stores the
    /// PTEs and returns the end of that part instead.
    #[inline(never)]
    fn find_target<const REAL: bool>(
        &self,
        job: &Job<'_, 'w, T, REAL>,
        rest: Span,
    ) -> Result<Target<'w, T>, Done> {
        let (at, page) = (rest.first, job.page);
        let mut slot = self.root();
        let mut held = slot.read();
        let mut near = held.and_then(|node| node.nearest(at)).unwrap_or(at);
        let (part, change) = loop {
            let Some(old) = held else {
                break (rest.clip(at, slot.ceiling(), page), SlotChange::Building);
            };
            if !agree(at, near, old.top()) {
                break (rest, SlotChange::SplittingGuard(old));
            }
            if old.is_leaf() && old.shift == page {
                let part = rest.clip(at, old.top(), page);
                if REAL && !job.replaces {
                    self.fill_leaf(job, old, part);
                }
                return Err(Done { last: part.last, changed: false, divided: false });
            }
            if old.is_leaf() {
                if let Some(other) = old.other_half(page, near & !low(old.top()), rest) {
                    near = other;
                    let part = if job.replaces { rest.clip(at, old.shift, page) } else { rest };
                    break (part, SlotChange::SplittingGuard(old));
                }
                break (rest.clip(at, old.top().max(page), page), SlotChange::Replacing(old));
            }
            if job.replaces && old.top() <= page {
                break (Span { first: at, last: at }, SlotChange::Replacing(old));
            }
            if old.shift < T::unit(page) {
                let part = rest.clip(at, old.top(), page);
                break (part, if T::PAIRS { SlotChange::Rebuilding(old) } else { SlotChange::Dividing(old) });
            }
            let below = old.slot_at(at);
            let child = below.read();
            if let Some(child) = child.filter(|child| old.shares(child)) {
                // One page of a pair, which occupies several slots.
                let part = rest.clip(at, child.shift, page);
                if child.shift == page {
                    return Err(Done { last: part.last, changed: false, divided: false });
                }
                break (part, SlotChange::SplittingPage(old));
            }
            (slot, held) = (below, child);
        };
        Ok(Target { slot, near, part, change })
    }

    /// Splits the guard above the node or leaf of a slot, because the first page of a span differs from it: takes a new node at the
    /// highest bit in which the two differ, or one larger leaf for both.
    #[inline(never)]
    fn split_guard<const REAL: bool>(
        &self,
        job: &mut Job<'_, 'w, T, REAL>,
        target: &Target<'w, T>,
        old: Node<'w, T>,
        plan: &mut Option<Planned>,
    ) -> (Span, New<'w, T, REAL>, Gone) {
        let Target { near, part: rest, .. } = *target;
        let (at, old_base) = (rest.first, near & !low(old.top()));
        let new = match self.choose_split(job, target, old, plan) {
            GuardSplit::Leaf(part, leaf) => return (part, New::Whole(leaf), Gone::Copied),
            GuardSplit::Below(ceiling) => {
                return (rest.clip(at, ceiling, job.page), New::Below(ceiling), Gone::Nothing);
            }
            GuardSplit::Node(new) => new,
        };
        let base = near & !low(new.top());
        let shared = new.shares(&old);
        let last = if shared { old_base | low(old.top()) } else { old_base };
        let gone = if job.replaces { Gone::Page } else { Gone::Nothing };
        if T::unit(job.page) > new.shift {
            let part = rest.clip(at, new.top(), job.page);
            // If the part's last page is the free half of the old leaf's pair, a new leaf maps both pages of the pair.
            let joins =
                old.is_leaf() && old.shift == job.page && part.last >= old_base && part.first < old_base;
            let gone = if joins { Gone::Page } else { gone };
            let around = Around::Entry(old, near);
            return (part, New::Filled(Filling { node: new, lone: false, base, around, span: part }), gone);
        }
        // When a page is split, the new PTEs are computed from the old leaf. Lookups find it until the new node is linked.
        let part = if job.replaces { rest } else { rest.clip(at, new.shift, job.page) };
        if let Some(fresh) = new.fresh() {
            for slot in new.index(old_base)..=new.index(last) {
                if !shared || old.keeps(base | slot << new.shift, part) {
                    fresh.store(slot, Some(old));
                }
            }
            fresh.set_live(1);
        }
        (part, New::Open(new), gone)
    }

    /// Chooses how the guard above the node or leaf `old` is split for the first part of a span, and takes the new leaf or node.
    #[inline(never)]
    fn choose_split<const REAL: bool>(
        &self,
        job: &mut Job<'_, 'w, T, REAL>,
        target: &Target<'w, T>,
        old: Node<'w, T>,
        plan: &mut Option<Planned>,
    ) -> GuardSplit<'w, T, REAL> {
        let Target { near, part: rest, .. } = *target;
        let (at, mut ceiling) = (rest.first, target.slot.ceiling());
        // In a layout of pairs `old` may be the leaf of one half of a pair, and the span may begin with the other half. So for a leaf
        // this is the base of the mapped half, not of the pair.
        let old_base = near & !low(if T::PAIRS && old.is_leaf() { old.shift } else { old.top() });
        let bit = top_bit(at ^ old_base);
        let (mut top, mut alone) = (old.top(), old.is_leaf());
        if let Some(new) = *plan
            && !REAL
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
        if alone && old.shift == job.page && old.shift == T::BASE && bit < T::LEAF_TOP {
            let part = rest.clip(at, T::LEAF_TOP.min(ceiling), job.page);
            let width = Self::grown_width(top_bit((part.last ^ at) | (at ^ old_base)) + 1 - T::BASE);
            let leaf = self.new_leaf(job, width, part);
            if let Some(leaf) = leaf.fresh() {
                old.copy_to(near & !low(old.top()), leaf.node());
            }
            return GuardSplit::Leaf(part, leaf);
        }
        let floor = Self::floor(job.page).max(top);
        let (shift, width) = Self::choose(bit, floor, ceiling, None);
        let top = shift + width;
        *plan = Some(Planned { at, shift, top });
        GuardSplit::Node(job.supply.node(shift, width, old_base & !low(top)))
    }

    /// Takes a node in place of one in which smaller pages replace one larger page of a pair that occupies several slots. Those
    /// slots are empty in the new node.
    #[inline(never)]
    fn split_page<const REAL: bool>(
        job: &mut Job<'_, 'w, T, REAL>,
        old: Node<'w, T>,
        part: Span,
    ) -> Made<'w, T, REAL> {
        let new = job.supply.node(old.shift, old.width, part.first & !low(old.top()));
        if let Some(fresh) = new.fresh() {
            let own = old.index(part.first)..=old.index(part.last);
            for (slot, child) in old.children().enumerate().filter(|(slot, _)| !own.contains(slot)) {
                fresh.store(slot, child);
            }
            fresh.set_live(fresh.entries());
        }
        new
    }
}
