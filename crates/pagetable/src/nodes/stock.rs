//! Nodes taken before a change begins, so that nothing can fail once it has.

use super::{NodeAddr, Nodes};
use crate::Error;
use crate::word::atomics::Ordering;

/// Nodes of up to `KINDS` kinds, reserved by a dry run and spent by the commit. What is left over goes back.
///
/// Each kind is a list through the nodes' records, so a stock of any depth costs no memory of its own.
pub(crate) struct Stock<'n, N: Nodes, const KINDS: usize> {
    nodes: &'n N,
    kinds: [Option<NodeAddr>; KINDS],
    words: [usize; KINDS],
}

impl<'n, N: Nodes, const KINDS: usize> Stock<'n, N, KINDS> {
    /// Takes `want[k]` nodes of `words[k]` words for every kind `k`: exactly what the dry run counted.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`]; nothing is taken then.
    #[inline]
    pub(crate) fn take(nodes: &'n N, words: [usize; KINDS], want: [usize; KINDS]) -> Result<Self, Error> {
        let mut stock = Self { nodes, kinds: [None; KINDS], words };
        for kind in 0..KINDS {
            for _ in 0..want[kind] {
                let Some(node) = nodes.take(words[kind]) else {
                    // What was taken goes back when `stock` is dropped.
                    return Err(Error::NoMemory {
                        wanted: want.iter().sum(),
                        pending: nodes.held().pending(),
                    });
                };
                stock.push(kind, node);
            }
        }
        Ok(stock)
    }

    fn push(&mut self, kind: usize, node: NodeAddr) {
        let next = self.kinds[kind].map_or(0, |next| self.nodes.index_of(next));
        // SAFETY: the node was taken and nobody else knows it.
        unsafe { (*self.nodes.record(node, self.words[kind])).store(next, Ordering::Relaxed) };
        self.kinds[kind] = Some(node);
    }

    /// Takes a node of the kind out of the stock, zeroed, its record zero; `None` beyond what was reserved.
    #[inline]
    pub(crate) fn next(&mut self, kind: usize) -> Option<NodeAddr> {
        let node = self.kinds[kind]?;
        // SAFETY: the node is in stock, so it was taken and nobody else knows it.
        let record = unsafe { &*self.nodes.record(node, self.words[kind]) };
        let next = record.load(Ordering::Relaxed);
        record.store(0, Ordering::Relaxed);
        self.kinds[kind] = (next != 0).then(|| self.nodes.node_of(next));
        Some(node)
    }
}

impl<N: Nodes, const KINDS: usize> Drop for Stock<'_, N, KINDS> {
    fn drop(&mut self) {
        for kind in 0..KINDS {
            while let Some(node) = self.next(kind) {
                // SAFETY: in stock: taken, known to nobody, and still zero.
                unsafe { self.nodes.free(node, true) };
            }
        }
    }
}
