//! The guarded page table (GPT): a radix tree without the nodes that would have one entry (Elphinstone et al. 2.3).
//!
//! Layouts: [`Compact`], one word a slot; [`Paper`], the 16 bytes of Elphinstone et al. 3.2.

mod bits;
mod graft;
mod layout;
mod link;
mod policy;
mod reap;
mod resize;
mod slots;
mod sweep;
mod table;
mod tune;

#[cfg(all(test, not(loom)))]
mod tests;

use core::fmt;
use core::marker::PhantomData;

use crate::footprint::Tally;
use crate::format::Format;
use crate::nodes::Nodes;
use crate::{Geometry, Pinned, Sole};

pub use layout::{Compact, Layout, Paper};
pub use link::Link;
pub use policy::{Adaptive, Fixed, Policy};

/// The largest logarithm of a node's slots that any layout has.
pub const MAX_WIDTH: usize = 12;

/// A guarded page table of geometry `G` with PTEs of format `F` in nodes from `N`: layout `L`, node sizes by `P`.
///
/// The value itself is a handle of a few words, the root's guard and pointer among them; the table is its nodes. An
/// empty one has none.
pub struct Gpt<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: Policy = Adaptive> {
    nodes: &'n N,
    root: L::Root,
    sole: Sole,
    tally: Tally,
    shape: PhantomData<(G, F, P)>,
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: Policy> Gpt<'n, G, F, N, L, P> {
    /// Returns an empty table. Takes no memory: the first page mapped is a leaf and no more.
    pub fn new(nodes: &'n N) -> Self {
        Self { nodes, root: L::root(), sole: Sole::default(), tally: Tally::default(), shape: PhantomData }
    }

    /// Returns how many indexing nodes there are of each size: element `w` counts those of `2^w` slots.
    ///
    /// Costs a walk over all of them.
    pub fn node_sizes(&self, _pinned: Pinned<'_>) -> [usize; MAX_WIDTH + 1] {
        let mut sizes = [0; MAX_WIDTH + 1];
        // SAFETY: the caller is pinned.
        unsafe { self.count_sizes(self.look_root(), &mut sizes) };
        sizes
    }
}

impl<G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: Policy> Drop
    for Gpt<'_, G, F, N, L, P>
{
    fn drop(&mut self) {
        let left = self.tally.footprint();
        self.nodes.held().lose(left.nodes + left.leaves);
    }
}

impl<G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: Policy> fmt::Debug
    for Gpt<'_, G, F, N, L, P>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpt").field("footprint", &self.tally.footprint()).finish_non_exhaustive()
    }
}
