//! Lookups in a linear table, whose nodes are pages in virtual memory: see [`lpt`](crate::lpt).

use tlbkit_addr::{Pages, VirtAddr, Vpn};

use super::Mpt;
use super::leaf::Decode as _;
use super::node::{NodeRef, Seen};
use super::shape::Shape;
use crate::format::Format;
use crate::nodes::Nodes;
use crate::{Leaf, Pinned, Radix};

/// Returns the pages that hold a linear table's nodes of `level` for `pages`. Returns `None` for a table in physical memory, and
/// for the root.
pub(crate) fn own_pages<G: Radix>(level: usize, pages: Pages) -> Option<Pages> {
    let base = G::LINEAR?;
    if level == 0 {
        return None;
    }
    let bits = |level: usize| G::WIDTHS.iter().take(level).sum::<u32>();
    // The array of the last level comes first, then that of the level above, and so on.
    let below: usize = (level + 1..G::WIDTHS.len()).map(|lower| 1 << bits(lower)).sum();
    let array = base.vpn(G::BASE).get() + below;
    let shift = G::VA_BITS - bits(level) - G::BASE.shift();
    let own = |page: Vpn| Vpn::new(array + (page.get() >> shift & ((1 << bits(level)) - 1)));
    Pages::new(own(pages.first()), own(pages.last()))
}

/// Returns the pages of the region that a linear table occupies, or `None` for a table in physical memory.
pub(crate) fn region<G: Radix>() -> Option<Pages> {
    // Page numbers of one space, from its lowest page to its highest: the index bits are all 0, then all 1.
    let low = own_pages::<G>(G::WIDTHS.len() - 1, Pages::one(Vpn::new(0)))?;
    let high = own_pages::<G>(1, Pages::one(Vpn::new(usize::MAX >> G::BASE.shift())))?;
    Pages::new(low.first(), high.last())
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// Looks `at` up as if the TLB mapped the whole table: counts one load. Only the load of the word that ends the walk goes
    /// through [`WordRef::follow`](crate::nodes::WordRef::follow), which counts loads. The loads from the root down to that word are
    /// not counted.
    #[inline(always)]
    pub(crate) fn find_translated(&self, pinned: Pinned<'_>, at: VirtAddr) -> Option<Leaf> {
        let top = Self::top(at.vpn(G::BASE))?;
        NodeRef::root(self, pinned).look_up(top, at, NodeRef::translated, |word, level, _| {
            (Self::has_leaves(level) && Self::is_leaf(word, level)).then(|| Self::leaf(word, level, at))
        })
    }

    /// Looks `at` up as a machine does that loads PTEs through its TLB. The walk climbs from the table page that holds the PTE to
    /// the first table page for which `translates` returns `true`, then goes down with one load a level.
    ///
    /// `translates` gets the arguments of [`NestedMissObserver::translates`](crate::NestedMissObserver::translates). Only the
    /// loads that the machine would make go through [`WordRef::follow`](crate::nodes::WordRef::follow), which counts loads. Where the
    /// TLB of the machine would
    /// translate a page of the table, this function finds the node from the root with loads that are not counted. `at` is in the
    /// space.
    #[inline(always)]
    pub(crate) fn climb(
        &self,
        pinned: Pinned<'_>,
        at: VirtAddr,
        mut translates: impl FnMut(usize, VirtAddr) -> bool,
    ) -> Option<Leaf> {
        let (root, last) = (NodeRef::root(self, pinned), Self::LEVELS - 1);
        let deepest = root.walk(root.index_of(at), at, last, NodeRef::peek, |node, _, _| node.level());
        let mut level = last;
        while let Some(own) = own_pages::<G>(level, Pages::one(at.vpn(G::BASE))) {
            // A page that the table does not have is in no TLB, whatever `translates` returns.
            if translates(last - level, own.first().address(G::BASE)) && level <= deepest {
                break;
            }
            level -= 1;
        }
        root.descend(
            root.index_of(at),
            at,
            |node, index| if node.level() < level { node.peek(index) } else { node.seen(index) },
            |seen| seen.mapped(at),
        )
    }
}

impl<'a, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodeRef<'a, 'n, G, F, N> {
    /// Loads a word, and the storage counts the load only if it ends the walk.
    #[inline(always)]
    fn translated(self, index: usize) -> Seen<'a, 'n, G, F, N> {
        if !Self::is_last(self.level()) {
            let seen = self.peek(index);
            if seen.link().is_some() {
                return seen;
            }
        }
        self.seen(index)
    }
}
