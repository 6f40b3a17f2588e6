//! Nodes taken before a change begins, so that nothing can fail once it has.

use core::fmt;

use super::{Freed, LinkRange, NodeAddr, Nodes};
use crate::Error;
use crate::word::atomics::Ordering;

/// Checks that links of `reach` can lead to nodes of a storage at all.
///
/// # Errors
///
/// [`Error::OutOfReach`].
#[inline]
pub(crate) fn check_range<N: Nodes>(nodes: &N, reach: LinkRange) -> Result<(), Error> {
    let lowest = nodes.lowest();
    if reach.last(lowest).is_some() { Ok(()) } else { Err(Error::OutOfReach { lowest }) }
}

/// Takes a node of `words` to which a link of `reach` can lead.
#[inline]
pub(crate) fn take_within<N: Nodes>(nodes: &N, words: usize, reach: LinkRange) -> Option<NodeAddr> {
    nodes.take_within(words, reach.last(nodes.lowest())?)
}

/// Frees a node that was taken and is still zero.
///
/// # Safety
///
/// No other code knows the node.
unsafe fn give_back<N: Nodes>(nodes: &N, node: NodeAddr) {
    let freed = Freed::new(nodes.held(), 0);
    // SAFETY: by this function's contract no other code knows the node, which was taken from this storage and is all
    // zero.
    unsafe { nodes.free(node, true) };
    freed.done();
}

/// A node that was taken and is still zero. It goes back when it is dropped.
pub(crate) struct Spare<'n, N: Nodes> {
    nodes: &'n N,
    node: NodeAddr,
}

impl<'n, N: Nodes> Spare<'n, N> {
    /// Gives the node back unless it is kept.
    ///
    /// # Safety
    ///
    /// The node was taken from the storage and is zero, and no other code uses it before [`keep`](Self::keep).
    pub(crate) const unsafe fn new(nodes: &'n N, node: NodeAddr) -> Self {
        Self { nodes, node }
    }

    /// Leaves the node to the caller.
    pub(crate) const fn keep(self) {
        core::mem::forget(self);
    }
}

impl<N: Nodes> Drop for Spare<'_, N> {
    #[cold]
    fn drop(&mut self) {
        // SAFETY: by the contract of `new`.
        unsafe { give_back(self.nodes, self.node) };
    }
}

/// Tells a count from a node's number, which is below it.
const WANTED: u32 = 1 << 31;

/// Nodes of up to `KINDS` kinds, reserved by a dry run and spent by the commit. What is left over goes back when it is dropped.
///
/// Each kind is a list through the nodes' records, so a stock of any depth costs no memory of its own.
pub struct Stock<'n, N: Nodes, const KINDS: usize> {
    nodes: &'n N,
    /// The first node of each kind, by number; zero is none. With [`WANTED`], how many are to be taken.
    kinds: [u32; KINDS],
    words: &'static [usize; KINDS],
}

impl<'n, N: Nodes, const KINDS: usize> Stock<'n, N, KINDS> {
    /// Takes `want[k]` nodes of `words[k]` words for every kind `k`: exactly what the dry run counted.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`], which says how many were wanted; nothing is taken then.
    #[inline]
    pub fn take(nodes: &'n N, words: &'static [usize; KINDS], want: [usize; KINDS]) -> Result<Self, Error> {
        Self::take_within(nodes, words, want, LinkRange::ALL)
    }

    /// As [`take`](Self::take), of nodes to which links of `reach` can lead.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`]; nothing is taken then.
    #[inline]
    pub fn take_within(
        nodes: &'n N,
        words: &'static [usize; KINDS],
        want: [usize; KINDS],
        reach: LinkRange,
    ) -> Result<Self, Error> {
        let mut stock = Self::empty(nodes, words);
        for kind in 0..KINDS {
            stock.add(kind, want[kind], || want.iter().sum(), reach)?;
        }
        Ok(stock)
    }

    /// Returns an empty stock.
    #[inline]
    pub(crate) const fn empty(nodes: &'n N, words: &'static [usize; KINDS]) -> Self {
        Self { nodes, kinds: [0; KINDS], words }
    }

    /// Counts a node of a kind that [`take_wanted`](Self::take_wanted) is to take. The counts are in the words that will hold the
    /// nodes, because a kernel's stack is short.
    #[inline]
    pub(crate) fn want(&mut self, kind: usize) {
        // There is no other kind.
        if let Some(wanted) = self.kinds.get_mut(kind) {
            *wanted = WANTED | wanted.saturating_add(1);
        }
    }

    /// Takes the nodes that are wanted, such that links of `reach` can lead to them.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`]; what was taken goes back when the stock is dropped.
    #[inline(never)]
    pub(crate) fn take_wanted(&mut self, reach: LinkRange) -> Result<(), Error> {
        let count = |kind: u32| if kind & WANTED == 0 { 0 } else { (kind & !WANTED) as usize };
        let all = self.kinds.iter().map(|&kind| count(kind)).fold(0, usize::saturating_add);
        for kind in 0..KINDS {
            let want = count(self.kinds[kind]);
            self.kinds[kind] = 0;
            self.add(kind, want, || all, reach)?;
        }
        Ok(())
    }

    #[inline]
    fn add(
        &mut self,
        kind: usize,
        want: usize,
        all: impl Fn() -> usize,
        reach: LinkRange,
    ) -> Result<(), Error> {
        if want == 0 {
            return Ok(());
        }
        let (words, head) = (self.words[kind], &mut self.kinds[kind]);
        let last = reach.last(self.nodes.lowest());
        if last.is_some_and(|last| self.nodes.take_list(words, want, last, head)) {
            Ok(())
        } else {
            Err(Error::no_memory(all(), self.nodes.held()))
        }
    }

    /// Gives everything back.
    #[inline]
    fn give_all_back(&mut self) {
        for kind in 0..KINDS {
            while let Some(node) = self.next(kind) {
                // SAFETY: in stock: taken, known to no other code, and still zero.
                unsafe { give_back(self.nodes, node) };
            }
        }
    }

    /// Takes a node of the kind out of the stock, zeroed, its record zero; `None` beyond what was reserved. From here
    /// on the caller owns it, and links it or frees it.
    #[inline]
    pub fn next(&mut self, kind: usize) -> Option<NodeAddr> {
        let (first, &words) = (self.kinds.get_mut(kind)?, self.words.get(kind)?);
        if *first == 0 || *first & WANTED != 0 {
            return None;
        }
        let node = self.nodes.node_of(*first);
        // SAFETY: the node is in stock, so it was taken and no other code knows it.
        let record = unsafe { &*self.nodes.record(node, words) };
        *first = record.load(Ordering::Relaxed);
        record.store(0, Ordering::Relaxed);
        Some(node)
    }
}

impl<N: Nodes, const KINDS: usize> fmt::Debug for Stock<'_, N, KINDS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stock").field("words", &self.words).finish_non_exhaustive()
    }
}

impl<N: Nodes, const KINDS: usize> Drop for Stock<'_, N, KINDS> {
    #[inline]
    fn drop(&mut self) {
        let rest = Rest(self);
        rest.0.give_all_back();
        core::mem::forget(rest);
    }
}

/// What is left in a stock if the storage unwinds while a node goes back: the others go back nevertheless.
struct Rest<'s, 'n, N: Nodes, const KINDS: usize>(&'s mut Stock<'n, N, KINDS>);

impl<N: Nodes, const KINDS: usize> Drop for Rest<'_, '_, N, KINDS> {
    #[cold]
    fn drop(&mut self) {
        self.0.give_all_back();
    }
}
