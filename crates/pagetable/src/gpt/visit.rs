//! Visits of the leaves of a range, in ascending order: what `for_each`, dry runs and `protect` share.

use core::ops::ControlFlow;

use tlbkit_addr::VirtAddr;

use super::MAX_WIDTH;
use super::guard::{agree, low};
use super::node::{Node, Pte, Right, Slot, View, Walking};
use super::path::Path;
use super::shape::Shape;
use crate::format::is_taken;
use crate::{Entry, Leaf};

/// A range of pages, by the keys of the first byte of its first page and of its last page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) first: usize,
    pub(super) last: usize,
}

impl Span {
    /// Returns the part of the span within the `2^bits` bytes from `base` on, for pages of `2^page` bytes.
    #[inline(always)]
    pub(super) fn within(self, base: usize, bits: u32, page: u32) -> Option<Self> {
        let first = self.first.max(base);
        let last = self.last.min((base + low(bits)) & !low(page));
        (first <= last).then_some(Self { first, last })
    }

    /// Returns the part of a span of pages within the `2^bits` bytes around its first one.
    pub(super) fn clip(self, at: usize, bits: u32, page: u32) -> Self {
        self.within(at & !low(bits), bits, page).unwrap_or(Self { first: self.first, last: self.first })
    }

    /// Returns the number of pages of `2^page` bytes.
    #[inline(always)]
    pub(super) fn pages(self, page: u32) -> usize {
        ((self.last - self.first) >> page) + 1
    }
}

/// A leaf that covers pages of a span, and the slot that leads to it.
pub(super) struct Covering<'a, T: Shape, R> {
    pub(super) slot: Slot<'a, T, R>,
    pub(super) leaf: Node<'a, T, R>,
    /// The first key that the leaf covers.
    pub(super) base: usize,
    /// The pages of the span that it covers, of those to which the slot leads.
    pub(super) part: Span,
}

/// A visit of the leaves that cover pages of a span, in ascending order. Each leaf is visited once, but a leaf of two larger pages
/// once for each page that occupies slots of its own.
///
/// Beside a writer, the visit loads every slot once and visits the node or leaf that it has loaded, even if the slot changes
/// afterwards. A page that does not change during the visit is visited: some slot always leads to it, and a node that the visit
/// has reached leads to it until the visit ends. A node's region, digit and size never change while the node is in use. A node
/// does not store its base, so the visit reads the base from the tag of a leaf below.
pub(super) struct Leaves<'a, T: Shape, R> {
    span: Span,
    path: Path<'a, T, R>,
    /// The only leaf, and its slot.
    only: Option<(Slot<'a, T, R>, Node<'a, T, R>)>,
}

impl<'a, T: Shape, R: Right> Leaves<'a, T, R> {
    /// Returns a visit of nothing, for pages of a span.
    #[inline(always)]
    pub(super) const fn new(view: View<'a, T, R>, span: Span) -> Self {
        Self { span, path: Path::new(view), only: None }
    }

    /// Begins to visit what a slot leads to.
    #[inline(always)]
    pub(super) fn enter(&mut self, root: Slot<'a, T, R>) {
        match root.read() {
            Some(node) if !node.is_leaf() => self.path.enter(node, self.span.first),
            Some(leaf) => self.only = Some((root, leaf)),
            None => {}
        }
    }
}

impl<'a, T: Shape, R: Right> Leaves<'a, T, R> {
    /// Returns the next leaf.
    #[inline(always)]
    pub(super) fn next(&mut self) -> Option<Covering<'a, T, R>> {
        if let Some((slot, leaf)) = self.only.take() {
            let base = leaf.start();
            return Some(Covering { slot, leaf, base, part: self.span.within(base, leaf.top(), 0)? });
        }
        loop {
            let slot = self.path.next()?;
            let Some(leaf) = slot.read() else { continue };
            if !leaf.is_leaf() {
                self.path.push(leaf, 0);
                continue;
            }
            let base = leaf.start();
            if base > self.span.last {
                // Leaves come in ascending order.
                return None;
            }
            let part = match slot.run(leaf) {
                // One page of the pair occupies this run of slots.
                Some((node, run)) => {
                    self.path.go_to(run.end);
                    let start = base & !low(node.top()) | run.start << node.shift;
                    self.span.within(start, leaf.shift, 0)
                }
                None => self.span.within(base, leaf.top(), 0),
            };
            if let Some(part) = part {
                return Some(Covering { slot, leaf, base, part });
            }
        }
    }
}

impl<'a, T: Shape, R: Right> Path<'a, T, R> {
    /// Fills an empty path with the nodes of a subtree that cover `at`, each with the first slot that a visit from `at` on has to read.
    ///
    /// If the walk finds no leaf, because the pages there were unmapped meanwhile, the region of the subtree is unknown. Then the
    /// path is the subtree's root with its first slot, and a visit reads and skips the leaves of lower keys than `at`.
    pub(super) fn enter(&mut self, root: Node<'a, T, R>, at: usize) {
        let Some(witness) = self.follow_to(root, at) else {
            self.truncate(0);
            self.push(root, 0);
            return;
        };
        // A node covers `at` if a page below it (`witness`) agrees with `at` in all bits above the node's digit.
        if let Some(other) = self.position(|top| !agree(witness, at, top)) {
            if witness > at {
                self.truncate(other + 1);
                self.go_to(0);
            } else {
                self.truncate(other);
            }
        }
    }

    /// Fills a path with the nodes that a walk for `at` goes through, and returns the first key of a leaf below the last.
    fn follow_to(&mut self, root: Node<'a, T, R>, at: usize) -> Option<usize> {
        let mut node = root;
        let child = loop {
            // The child in this slot is on the path, so the next slot to read is the one after it.
            self.push(node, node.index(at) + 1);
            match node.slot_at(at).read() {
                Some(child) if !child.is_leaf() => node = child,
                end => break end,
            }
        };
        // The visit reads the last node's slot again, and visits the node or leaf to which the slot leads then.
        self.go_back();
        match child {
            Some(leaf) => Some(leaf.start()),
            None => node.any_base(),
        }
    }
}

impl<'a, T: Shape, R: Right> View<'a, T, R> {
    /// Visits the words of a span that map a page or hold a mark, in ascending order.
    #[inline(always)]
    pub(super) fn sweep(
        self,
        root: Slot<'a, T, R>,
        span: Span,
        visit: &mut impl FnMut(Pte<'a, T, R>, T::W) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut leaves = Leaves::new(self, span);
        leaves.enter(root);
        while let Some(Covering { leaf, part, .. }) = leaves.next() {
            for pte in leaf.ptes(part) {
                let word = pte.read();
                if is_taken::<T::F>(word) {
                    visit(pte, word)?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Visits the leaves that map pages of a range.
    pub(super) fn visit(self, span: Span, visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>) -> ControlFlow<()> {
        self.visit_entries(span, &mut |_, entry| match entry {
            Entry::Leaf(leaf) => visit(leaf),
            Entry::Mark(_) | Entry::Empty => ControlFlow::Continue(()),
        })
    }

    /// Visits the leaves that map pages of a range, and the marks of pages, with the address of each.
    #[inline(always)]
    pub(super) fn visit_entries(
        self,
        span: Span,
        visit: &mut impl FnMut(VirtAddr, Entry) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.sweep(self.root(), span, &mut |pte, word| match T::entry(word, pte.leaf().shift, pte.at()) {
            Entry::Leaf(leaf) => visit(leaf.at, Entry::Leaf(leaf)),
            other => visit(VirtAddr::new(T::address(pte.at())), other),
        })
    }
}

impl<'w, T: Shape> View<'w, T> {
    /// Returns how many nodes cover `at` and satisfy `also`, and the position above the digit of the lowest. `also` is called with
    /// a key of the node's region and the position above its digit.
    #[inline(never)]
    pub(super) fn covering(self, at: usize, also: impl Fn(usize, u32) -> bool) -> (usize, u32) {
        let (mut depth, mut lowest) = (0, T::BITS);
        let mut next = self.root().read();
        let near = next.and_then(|node| node.nearest(at)).unwrap_or(at);
        while let Some(node) = next.filter(|node| !node.is_leaf())
            && agree(near, at, node.top())
            && also(near, node.top())
        {
            (depth, lowest) = (depth + 1, node.top());
            next = node.slot_at(at).read();
        }
        (depth, lowest)
    }
}

impl<'a, T: Shape, R: Right> Slot<'a, T, R> {
    /// Returns the slots of a page, and their node, if `leaf`, to which this slot leads, is a leaf of pages larger than a slot.
    #[inline(always)]
    pub(super) fn run(self, leaf: Node<'a, T, R>) -> Option<(Node<'a, T, R>, core::ops::Range<usize>)> {
        let node = self.node().filter(|node| node.shares(&leaf))?;
        Some((node, node.run(self.index(), &leaf)))
    }
}

impl<'a, T: Shape, R: Right> Node<'a, T, R> {
    /// Returns the first key of some leaf below a node, `None` if a walker finds none there.
    pub(super) fn any_base(self) -> Option<usize> {
        let mut node = self;
        while !node.is_leaf() {
            node = node.children().flatten().next()?;
        }
        Some(node.start())
    }

    /// Returns a key in a leaf below a node or leaf: `at`, if the walk for `at` ends at a leaf that covers it. If the walk comes to an
    /// empty slot, it goes on from the first slot of that node that is in use. Returns `None` if the node has no such slot, which only
    /// a walker beside the writer may find.
    ///
    /// Costs a walk to a leaf.
    pub(super) fn nearest(self, mut at: usize) -> Option<usize> {
        let mut node = self;
        while !node.is_leaf() {
            if let Some(base) = node.known_base() {
                at = base | at & low(node.top());
            }
            node = match node.slot_at(at).read() {
                Some(child) => child,
                None => {
                    let (slot, child) =
                        node.children().enumerate().find_map(|(slot, child)| Some((slot, child?)))?;
                    at = at & !(low(node.top()) & !low(node.shift)) | slot << node.shift;
                    child
                }
            };
        }
        // The low bits are those of `at`, so the result is in the half of the pair that covers the slot of the walk.
        Some(node.known_base().unwrap_or_else(|| node.start() | at & low(node.top())))
    }
}

impl<T: Shape> View<'_, T, Walking> {
    /// Counts the indexing nodes by size.
    pub(super) fn count_sizes(self, sizes: &mut [usize; MAX_WIDTH + 1]) {
        let mut path = Path::new(self);
        let mut next = Some(self.root());
        while let Some(slot) = next {
            if let Some(node) = slot.read().filter(|node| !node.is_leaf()) {
                if let Some(count) = sizes.get_mut(node.width as usize) {
                    *count += 1;
                }
                path.push(node, 0);
            }
            next = path.next();
        }
    }
}
