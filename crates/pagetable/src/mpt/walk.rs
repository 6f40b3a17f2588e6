//! The walk: to the slot that maps an address.

use tlbkit_addr::{VirtAddr, Vpn};

use super::leaf::Decode as _;
use super::node::{NodeRef, Seen};
use super::shape::Shape;
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Entry, Leaf, Radix};

impl<'a, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodeRef<'a, 'n, G, F, N> {
    /// Walks from the root to the slot for `at` in the node of level `bottom`, or in the last node above that exists. `top` is
    /// the slot of the root, and `load` loads a word. Calls `end` with the node and the slot in which the walk ends, and with the
    /// word, which is no link, if the walk ended above `bottom`. Walks to a slot use this function, but for
    /// [`look_up`](Self::look_up); visits of ranges go from node to node.
    #[inline(always)]
    pub(super) fn walk<T>(
        self,
        top: usize,
        at: VirtAddr,
        bottom: usize,
        load: impl Fn(Self, usize) -> Seen<'a, 'n, G, F, N>,
        end: impl FnOnce(Self, usize, Option<Seen<'a, 'n, G, F, N>>) -> T,
    ) -> T {
        let mut node = self;
        // Before each step `node` is linked, or was when its link was loaded; it covers `at`, and its level is the number of steps.
        // The steps are unrolled, so that shifts and masks are constants also in `end`. The compiler removes the steps beyond the
        // last level.
        macro_rules! step {
            ($($level:literal)*) => { $(
                let index = if $level == 0 { top } else { node.index_of(at) };
                if node.level() >= bottom {
                    return end(node, index, None);
                }
                let seen = load(node, index);
                let Some(below) = seen.link() else { return end(node, index, Some(seen)) };
                node = below;
            )* };
        }
        step!(0 1 2 3 4 5 6);
        end(node, node.index_of(at), None)
    }

    /// Walks from the root to the slot that ends the walk for `at`, and calls `end` with what the slot holds.
    #[inline(always)]
    pub(super) fn descend<T>(
        self,
        top: usize,
        at: VirtAddr,
        load: impl Fn(Self, usize) -> Seen<'a, 'n, G, F, N>,
        end: impl FnOnce(Seen<'a, 'n, G, F, N>) -> T,
    ) -> T {
        self.walk(top, at, Self::LEVELS - 1, &load, |node, index, seen| {
            end(seen.unwrap_or_else(|| load(node, index)))
        })
    }

    /// Walks as [`descend`](Self::descend) does, and calls `end` with the word, its level and its node. The level
    /// is a constant in each call, so that the compiler inlines `end` there: a lookup must cost no more.
    #[inline(always)]
    pub(super) fn look_up<T>(
        self,
        top: usize,
        at: VirtAddr,
        load: impl Fn(Self, usize) -> Seen<'a, 'n, G, F, N>,
        end: impl Fn(F::Word, usize, Self) -> T,
    ) -> T {
        let mut node = self;
        // The invariant is that of `walk`.
        macro_rules! step {
            ($($level:literal)*) => { $(
                let level = if $level < Self::LEVELS { $level } else { Self::LEVELS - 1 };
                let seen = load(node, if level == 0 { top } else { Self::index(level, at) });
                if Self::is_last(level) {
                    return end(seen.word(), level, node);
                }
                let Some(below) = seen.link() else { return end(seen.word(), level, node) };
                node = below;
            )* };
        }
        step!(0 1 2 3 4 5 6);
        let level = Self::LEVELS - 1;
        end(load(node, Self::index(level, at)).word(), level, node)
    }

    /// Returns what the slot that ends the writer's walk for `at` from the root holds, in code that is compiled once. `at` is in the
    /// space.
    #[inline(always)]
    pub(super) fn last_seen(self, at: VirtAddr) -> Seen<'a, 'n, G, F, N> {
        let node = self.down_to(Self::LEVELS - 1, at);
        node.read(node.index_of(at))
    }

    /// Does for the writer what [`find`](Self::find) does, in code that is compiled once.
    #[inline(never)]
    pub(super) fn leaf_for(self, page: Vpn) -> Option<Leaf> {
        let at = page.address(G::BASE);
        if G::SPACE.has(page) { self.last_seen(at).mapped(at) } else { None }
    }

    /// Returns the leaf that maps `at`, of a walk from the root. Returns `None` also for an address outside the space.
    #[inline(always)]
    pub(super) fn find(self, at: VirtAddr) -> Option<Leaf> {
        self.look_up(Self::top(at.vpn(G::BASE))?, at, Self::seen, |word, level, node| {
            (Self::has_leaves(level) && Self::is_leaf(word, level)).then(|| node.leaf_in(word, level, at))
        })
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Seen<'_, 'n, G, F, N> {
    /// Returns the leaf in the slot, which `at` falls into, with the status bits of all slots of its page.
    #[inline(always)]
    pub(super) fn mapped(self, at: VirtAddr) -> Option<Leaf> {
        Self::is_leaf(self.word(), self.node().level()).then(|| self.whole_leaf(at))
    }

    /// Returns what the slot holds, which `at` falls into, with the status bits of all slots of its page.
    #[inline(always)]
    pub(super) fn content(self, at: VirtAddr) -> Entry {
        match Self::entry(self.word(), self.node().level(), at) {
            Entry::Leaf(_) => Entry::Leaf(self.whole_leaf(at)),
            entry => entry,
        }
    }
}
