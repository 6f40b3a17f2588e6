//! Visits of the leaves of a range, in ascending order: what `for_each`, dry runs and `protect` share.

use core::ops::ControlFlow;

use tlbkit_addr::{Pages, VirtAddr, Vpn};

use super::guard::{agree, low};
use super::layout::{Edge, Layout};
use super::node_size::NodeSize;
use super::path::Path;
use super::slots::Place;
use super::{Gpt, MAX_WIDTH};
use crate::format::{Format, is_taken};
use crate::nodes::Nodes;
use crate::{Entry, Geometry, Leaf};

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
}

impl Span {
    /// Returns the part of a span of pages within the `2^bits` bytes around its first one.
    pub(super) fn clip(self, at: usize, bits: u32, page: u32) -> Self {
        self.within(at & !low(bits), bits, page).unwrap_or(Self { first: self.first, last: self.first })
    }
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'n, G, F, N, L, P> {
    /// Returns the keys of a range of pages.
    #[inline(always)]
    pub(super) fn span(pages: Pages) -> Span {
        let key = |page: Vpn| Self::key(page.address(G::BASE).get());
        Span { first: key(pages.first()), last: key(pages.last()) }
    }

    /// Visits the entries of a span that map a page or hold a mark, in ascending order. `visit` gets the leaf, the key and the word.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the only writer.
    #[inline(always)]
    pub(super) unsafe fn sweep(
        &self,
        span: Span,
        visit: &mut impl FnMut(Edge, usize, F::Word) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        unsafe {
            let root = self.follow_root();
            self.sweep_from(root, span, visit)
        }
    }

    /// As [`sweep`](Self::sweep), of a subtree.
    ///
    /// Beside a writer, the visit loads every slot once and visits the node or leaf that it has loaded, even if the slot changes
    /// afterwards. A page that does not change during the visit is visited: some slot always leads to it, and a node that the visit
    /// has reached leads to it until the visit ends. A node's region, digit and size never change while the node is in use. A node
    /// does not store its base, so the visit reads the base from the tag of a leaf below.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the only writer, and the edge is empty, or leads to a node or leaf of this table.
    pub(super) unsafe fn sweep_from(
        &self,
        edge: Edge,
        span: Span,
        visit: &mut impl FnMut(Edge, usize, F::Word) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if edge.is_empty() {
            return ControlFlow::Continue(());
        }
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        unsafe {
            self.sweep_leaves(edge, span, &mut |leaf, base, part| self.sweep_leaf(leaf, base, part, visit))
        }
    }

    /// As [`sweep_from`](Self::sweep_from), leaf by leaf: calls `visit` with the leaf, its first key, and the part of the span
    /// that it covers. Each leaf is visited once, but a leaf of two larger pages once for each page that occupies slots of its own.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the only writer, and the edge is empty, or leads to a node or leaf of this table.
    #[inline(always)]
    pub(super) unsafe fn sweep_leaves(
        &self,
        edge: Edge,
        span: Span,
        visit: &mut impl FnMut(Edge, usize, Span) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if edge.is_empty() {
            return ControlFlow::Continue(());
        }
        // SAFETY: by this function's contract the caller is pinned, or the writer; the slots are within their nodes.
        unsafe {
            if edge.is_leaf() {
                let base = self.base_of(edge);
                return match span.within(base, edge.top(), 0) {
                    Some(part) => visit(edge, base, part),
                    None => ControlFlow::Continue(()),
                };
            }
            let mut path = Path::new();
            self.enter(&mut path, edge, span.first);
            while let Some(level) = path.levels().last_mut() {
                let (node, slot) = (level.edge(self.nodes), level.slot as usize);
                if slot >= node.slots() {
                    path.pop();
                    continue;
                }
                level.slot += 1;
                let child = self.follow_edge(node.node, slot, node.shift, 0);
                if child.is_empty() {
                    continue;
                }
                if !child.is_leaf() {
                    path.push(self.nodes, child, 0);
                    continue;
                }
                let base = self.base_of(child);
                if base > span.last {
                    // Leaves come in ascending order.
                    break;
                }
                let part = if node.shares(child) {
                    // One page of the pair occupies this run of slots.
                    let run = node.run(slot, child);
                    level.slot = run.end as u16;
                    let start = base & !low(node.top()) | run.start << node.shift;
                    span.within(start, child.shift, 0)
                } else {
                    span.within(base, child.top(), 0)
                };
                if let Some(part) = part {
                    visit(child, base, part)?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Visits the PTEs and marks of a part of one leaf at `base`, each loaded once.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the only writer, and `leaf` is a leaf of this table that begins at `base` and covers the part.
    #[inline(always)]
    unsafe fn sweep_leaf(
        &self,
        leaf: Edge,
        base: usize,
        part: Span,
        visit: &mut impl FnMut(Edge, usize, F::Word) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for slot in leaf.index(part.first)..=leaf.index(part.last) {
            let at = base | slot << leaf.shift;
            // SAFETY: by this function's contract the caller is pinned, or the writer; the slot is within the leaf.
            let word = unsafe { self.nodes.follow(leaf.node, Self::pte_of(leaf, at)) };
            if is_taken::<F>(word) {
                visit(leaf, at, word)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Fills a path with the nodes of a subtree that cover `at`, each with the first slot that a visit from `at` on has to read.
    ///
    /// If the walk finds no leaf, because the pages there were unmapped meanwhile, the region of the subtree is unknown. Then the
    /// path is the subtree's root with its first slot, and a visit reads and skips the leaves of lower keys than `at`.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the only writer, and `root` is a node of this table.
    pub(super) unsafe fn enter(&self, path: &mut Path, root: Edge, at: usize) {
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        let Some(witness) = (unsafe { self.follow_to(path, root, at) }) else {
            path.truncate(0);
            path.push(self.nodes, root, 0);
            return;
        };
        // A node covers `at` if a page below it (`witness`) agrees with `at` in all bits above the node's digit.
        if let Some(other) = path.levels().iter().position(|level| !agree(witness, at, level.top())) {
            if witness > at {
                path.truncate(other + 1);
                if let Some(level) = path.levels().last_mut() {
                    level.slot = 0;
                }
            } else {
                path.truncate(other);
            }
        }
    }

    /// Fills a path with the nodes that a walk for `at` goes through, and returns the first key of a leaf below the last.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the only writer, and `root` is a node of this table.
    unsafe fn follow_to(&self, path: &mut Path, root: Edge, at: usize) -> Option<usize> {
        let mut node = root;
        // SAFETY: by this function's contract the caller is pinned, or the writer; the slots are within their nodes.
        unsafe {
            let child = loop {
                let slot = node.index(at);
                // The child in this slot is on the path, so the next slot to read is the one after it.
                path.push(self.nodes, node, slot + 1);
                let child = self.follow_edge(node.node, slot, node.shift, 0);
                if child.is_empty() || child.is_leaf() {
                    break child;
                }
                node = child;
            };
            // The visit reads the last node's slot again, and visits the node or leaf to which the slot leads then.
            if let Some(last) = path.levels().last_mut() {
                last.slot -= 1;
            }
            if child.is_empty() { self.any_base(node) } else { Some(self.base_of(child)) }
        }
    }

    /// Returns how many nodes cover `at`, and the position above the digit of the lowest, for the writer.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[inline(never)]
    pub(super) unsafe fn covering(&self, at: usize) -> (usize, u32) {
        let (mut depth, mut lowest) = (0, G::VA_BITS);
        // SAFETY: the caller is the writer; slots are within their nodes.
        unsafe {
            let mut node = self.edge(Place::Root, G::VA_BITS, 0);
            let near = if node.is_empty() { at } else { self.nearest(node, at).unwrap_or(at) };
            while !node.is_empty() && !node.is_leaf() && agree(near, at, node.top()) {
                (depth, lowest) = (depth + 1, node.top());
                node = self.edge(Place::In(node.node, node.index(at)), node.shift, at);
            }
        }
        (depth, lowest)
    }

    /// Returns how many nodes cover both `at` and `other`, for the writer.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[inline(never)]
    pub(super) unsafe fn covering_both(&self, at: usize, other: usize) -> usize {
        let mut depth = 0;
        // SAFETY: the caller is the writer; slots are within their nodes.
        unsafe {
            let mut node = self.edge(Place::Root, G::VA_BITS, 0);
            let near = if node.is_empty() { at } else { self.nearest(node, at).unwrap_or(at) };
            let covers = |node: Edge, page| agree(near, page, node.top());
            while !node.is_empty() && !node.is_leaf() && covers(node, at) && covers(node, other) {
                depth += 1;
                node = self.edge(Place::In(node.node, node.index(at)), node.shift, at);
            }
        }
        depth
    }

    /// Returns the first key of some leaf below a node, `None` if a walker finds none there.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the only writer, and `node` is a node or leaf of this table.
    pub(super) unsafe fn any_base(&self, mut node: Edge) -> Option<usize> {
        // SAFETY: by this function's contract the caller is pinned, or the writer; the slots are within their nodes.
        unsafe {
            while !node.is_leaf() {
                node = (0..node.slots())
                    .map(|slot| self.follow_edge(node.node, slot, node.shift, 0))
                    .find(|child| !child.is_empty())?;
            }
            Some(self.base_of(node))
        }
    }

    /// Returns the first key that a leaf covers.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the only writer, and `leaf` is a leaf of this table.
    #[inline(always)]
    pub(super) unsafe fn base_of(&self, leaf: Edge) -> usize {
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        if L::TAGGED { unsafe { self.tag(leaf.node) } } else { leaf.base }
    }

    /// Visits the leaves that map pages of a range.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the only writer.
    pub(super) unsafe fn visit(
        &self,
        span: Span,
        visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        unsafe {
            self.visit_entries(span, &mut |_, entry| match entry {
                Entry::Leaf(leaf) => visit(leaf),
                Entry::Mark(_) | Entry::Empty => ControlFlow::Continue(()),
            })
        }
    }

    /// Visits the leaves that map pages of a range, and the marks of pages, with the address of each.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the only writer.
    #[inline(always)]
    pub(super) unsafe fn visit_entries(
        &self,
        span: Span,
        visit: &mut impl FnMut(VirtAddr, Entry) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        unsafe {
            self.sweep(span, &mut |edge, at, word| match Self::entry(word, edge.shift, at) {
                Entry::Leaf(leaf) => visit(leaf.at, Entry::Leaf(leaf)),
                other => visit(VirtAddr::new(Self::address(at)), other),
            })
        }
    }

    /// Counts the indexing nodes by size.
    ///
    /// # Safety
    ///
    /// The caller is pinned.
    pub(super) unsafe fn count_sizes(&self, sizes: &mut [usize; MAX_WIDTH + 1]) {
        let mut count = |node: Edge| {
            if let Some(count) = sizes.get_mut(node.width as usize) {
                *count += 1;
            }
        };
        // SAFETY: by this function's contract the caller is pinned; slots are within their nodes.
        unsafe {
            let root = self.follow_root();
            if root.is_empty() || root.is_leaf() {
                return;
            }
            count(root);
            let mut path = Path::new();
            path.push(self.nodes, root, 0);
            while let Some(level) = path.levels().last_mut() {
                let (node, slot) = (level.edge(self.nodes), level.slot as usize);
                if slot >= node.slots() {
                    path.pop();
                    continue;
                }
                level.slot += 1;
                let child = self.follow_edge(node.node, slot, node.shift, 0);
                if !child.is_empty() && !child.is_leaf() {
                    count(child);
                    path.push(self.nodes, child, 0);
                }
            }
        }
    }
}
