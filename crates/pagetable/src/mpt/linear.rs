//! Lookups in a linear table, whose nodes are pages in virtual memory: see [`lpt`](crate::lpt).

use tlbkit_addr::{Pages, VirtAddr, Vpn};

use super::Mpt;
use super::shape::{MAX, Shape};
use crate::format::Format;
use crate::nodes::Nodes;
use crate::{Leaf, Radix, Word};

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

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'_, G, F, N> {
    /// Looks `at` up as if the TLB mapped the whole table: counts one load. Only the load of the word that ends the walk goes
    /// through [`Nodes::follow`], which counts loads. The loads from the root down to that word are not counted.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the writer.
    #[inline(always)]
    pub(crate) unsafe fn find_translated(&self, at: VirtAddr) -> Option<Leaf> {
        let load = |level, node, place| {
            if level + 1 < Self::LEVELS {
                // SAFETY: a node that a link leads to is live or retired, and pinned walkers are waited for; the place is in the
                // node.
                let word = unsafe { F::Word::follow(self.nodes.at(node).add(place)) };
                if F::is_link(word) {
                    return word;
                }
            }
            // SAFETY: a node that a link leads to is live or retired, and pinned walkers are waited for; the place is in the
            // node.
            unsafe { self.nodes.follow(node, place) }
        };
        self.descend_by(Self::top(at.vpn(G::BASE))?, at, load, |word, level, _| {
            F::is_leaf(word, level + 1 == Self::LEVELS).then(|| Self::leaf(word, level, at))
        })
    }

    /// Looks `at` up as a machine does that loads PTEs through its TLB. The walk climbs from the table page that holds the PTE to
    /// the first table page for which `translates` returns `true`, then goes down with one load a level.
    ///
    /// `translates` gets the arguments of [`NestedMissObserver::translates`](crate::NestedMissObserver::translates). Only the
    /// loads that the machine would make go through [`Nodes::follow`], which counts loads. Where the machine's TLB would
    /// translate a page of the table, this function finds the node from the root with loads that are not counted.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the writer, and `at` is in the space.
    #[inline(always)]
    pub(crate) unsafe fn climb(
        &self,
        at: VirtAddr,
        mut translates: impl FnMut(usize, VirtAddr) -> bool,
    ) -> Option<Leaf> {
        let last = Self::LEVELS - 1;
        let place = |level| Self::place(level, Self::index(level, at));
        let mut nodes = [self.root; MAX];
        let mut deepest = 0;
        while deepest < last {
            // SAFETY: a node that a link leads to is live or retired, and pinned walkers are waited for; the index
            // is below the node's slots.
            let word = unsafe { F::Word::follow(self.nodes.at(nodes[deepest]).add(place(deepest))) };
            if !F::is_link(word) {
                break;
            }
            deepest += 1;
            nodes[deepest] = F::node(word);
        }
        let mut level = last;
        while let Some(own) = own_pages::<G>(level, Pages::one(at.vpn(G::BASE))) {
            // A page that the table does not have is in no TLB, whatever `translates` returns.
            if translates(last - level, own.first().address(G::BASE)) && level <= deepest {
                break;
            }
            level -= 1;
        }
        let mut node = nodes[level];
        loop {
            // SAFETY: the node is live or retired, and pinned walkers are waited for; the index is below its slots.
            let word = unsafe { self.nodes.follow(node, place(level)) };
            if level == last || !F::is_link(word) {
                return F::is_leaf(word, level == last).then(|| Self::leaf(word, level, at));
            }
            level += 1;
            node = F::node(word);
        }
    }
}
