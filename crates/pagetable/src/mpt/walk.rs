//! The walk: to the leaf entry that maps an address.

use tlbkit_addr::VirtAddr;

use super::Mpt;
use super::shape::Shape;
use crate::format::Format;
use crate::nodes::{NodeAddr, Nodes};
use crate::{Leaf, Radix};

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// Returns the leaf that maps `at`. Returns `None` also for an address outside the space.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the writer.
    #[inline(always)]
    pub(super) unsafe fn find(&self, at: VirtAddr) -> Option<Leaf> {
        let top = Self::top(at.vpn(G::BASE))?;
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        unsafe {
            self.descend_from(top, at, |word, level, node| {
                F::is_leaf(word, level + 1 == Self::LEVELS).then(|| self.leaf_in(node, word, level, at))
            })
        }
    }

    /// Walks down to the word that ends the walk for `at`, an address of the space. Calls `end` with the word, its level and its
    /// node, and returns the result.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the writer.
    #[inline(always)]
    pub(super) unsafe fn descend<T>(&self, at: VirtAddr, end: impl Fn(F::Word, usize, NodeAddr) -> T) -> T {
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        unsafe { self.descend_from(Self::index(0, at), at, end) }
    }

    /// Walks down as [`descend`](Self::descend) does. `top` is the index of `at` in the root.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the writer.
    #[inline(always)]
    pub(super) unsafe fn descend_from<T>(
        &self,
        top: usize,
        at: VirtAddr,
        end: impl Fn(F::Word, usize, NodeAddr) -> T,
    ) -> T {
        // SAFETY: a node that a link leads to is live or retired, and pinned walkers are waited for; the place is in the node.
        self.descend_by(top, at, |_, node, place| unsafe { self.nodes.follow(node, place) }, end)
    }

    /// Walks down as [`descend_from`](Self::descend_from) does. `load` returns the word at a place of a node of a level. All
    /// walks of this table use this function.
    #[inline(always)]
    pub(super) fn descend_by<T>(
        &self,
        top: usize,
        at: VirtAddr,
        load: impl Fn(usize, NodeAddr, usize) -> F::Word,
        end: impl Fn(F::Word, usize, NodeAddr) -> T,
    ) -> T {
        let mut node = self.root;
        // One step a level, unrolled, so that shifts and masks are constants also in `end`. The compiler removes the steps beyond
        // the last level.
        macro_rules! step {
            ($($level:literal)*) => { $(
                let level = if $level < Self::LEVELS { $level } else { Self::LEVELS - 1 };
                let index = if level == 0 { top } else { Self::index(level, at) };
                let word = load(level, node, Self::place(level, index));
                if level + 1 == Self::LEVELS || !F::is_link(word) {
                    return end(word, level, node);
                }
                node = F::node(word);
            )* };
        }
        step!(0 1 2 3 4 5 6);
        let level = Self::LEVELS - 1;
        end(load(level, node, Self::place(level, Self::index(level, at))), level, node)
    }
}
