//! The writer's walk down to a slot, which can link missing nodes; and the rule by which the two words of a TLB entry agree.

use tlbkit_addr::{VirtAddr, Vpn};

use super::Mpt;
use super::shape::{MAX, Shape};
use crate::format::{Format, absent_beside};
use crate::nodes::{NodeAddr, Nodes, Stock};
use crate::{Radix, Word};

/// The nodes that a walk of the writer passed, by level, and the level at which the walk ended.
#[derive(Clone, Copy)]
pub(super) struct Path {
    pub(super) nodes: [NodeAddr; MAX],
    pub(super) level: usize,
}

impl Path {
    /// Returns the node that the walk passed at a level.
    #[inline(always)]
    pub(super) fn node(&self, level: usize) -> NodeAddr {
        self.nodes[level % MAX]
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// Returns the last page that the node of `level` for `at` covers.
    pub(super) fn node_end(&self, level: usize, at: Vpn) -> Vpn {
        let cover = Self::slot_pages(level) << Self::width(level);
        Vpn::new(at.get() | (cover - 1))
    }

    /// Walks down to `level`, or to the last node above it that exists.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[inline(always)]
    pub(super) unsafe fn path(&self, at: VirtAddr, level: usize) -> Path {
        let mut path = Path { nodes: [self.root; MAX], level: 0 };
        while path.level < level {
            let place = Self::place(path.level, Self::index(path.level, at));
            // SAFETY: the node is linked, and the caller is the writer.
            let word = unsafe { self.read(path.node(path.level), place) };
            if !F::is_link(word) {
                break;
            }
            path.level += 1;
            path.nodes[path.level % MAX] = F::node(word);
        }
        path
    }

    /// Walks down to the node of `level`, and links a node from the stock wherever one is missing.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the slot at which the walk for `at` ends is empty or is one of `level`.
    pub(super) unsafe fn reach(&self, stock: &mut Stock<'n, N, MAX>, at: VirtAddr, level: usize) -> NodeAddr {
        // SAFETY: the caller is the writer.
        let mut path = unsafe { self.path(at, level) };
        while path.level < level
            && let Some(node) = stock.next(path.level + 1)
        {
            self.tally.node(1, Self::words(path.level + 1) * F::Word::BYTES);
            let (parent, index) = (path.node(path.level), Self::index(path.level, at));
            // SAFETY: the slot is vacant; an empty node is complete.
            unsafe {
                self.publish(parent, Self::place(path.level, index), F::link(node));
                self.add_live(parent, path.level, index, 1);
            }
            path.level += 1;
            path.nodes[path.level % MAX] = node;
        }
        path.node(level)
    }

    /// Makes the two words of a TLB entry agree after one of them has changed.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the node is one of `level` in the table, or new.
    #[inline(always)]
    pub(super) unsafe fn settle_pair(&self, node: NodeAddr, level: usize, index: usize) {
        if F::PAIRED {
            for (a, b) in [(index, index ^ 1), (index ^ 1, index)] {
                // SAFETY: both slots are in the node: it has an even number of them.
                unsafe {
                    let other = self.read(node, Self::place(level, b));
                    let changed = self.read(node, Self::place(level, a));
                    let wanted = if level + 1 == Self::LEVELS && !F::is_leaf(other, true) {
                        absent_beside::<F>(changed, other)
                    } else {
                        F::beside(changed, other)
                    };
                    if wanted != other {
                        self.publish(node, Self::place(level, b), wanted);
                    }
                }
            }
        }
    }
}
