//! Nodes that are taken before a change begins, so that the change cannot fail after its first store.

use core::fmt;

use super::{Freed, LinkRange, NodeAddr, Nodes};
use crate::Error;
use crate::word::atomics::Ordering;

/// Checks that links of `reach` can lead to any node of a storage.
///
/// # Errors
///
/// [`Error::OutOfReach`].
#[inline]
pub(crate) fn check_range<N: Nodes>(nodes: &N, reach: LinkRange) -> Result<(), Error> {
    let lowest = nodes.lowest();
    if reach.last(lowest).is_some() { Ok(()) } else { Err(Error::OutOfReach { lowest }) }
}

/// Takes a node of `words` words to which a link of `reach` can lead.
#[inline]
pub(crate) fn take_within<N: Nodes>(nodes: &N, words: usize, reach: LinkRange) -> Option<NodeAddr> {
    nodes.take_within(words, reach.last(nodes.lowest())?)
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
        let freed = Freed::new(self.nodes.held(), 0);
        // SAFETY: by the contract of `new` the node was taken from this storage and is zero, and no other code uses it.
        unsafe { self.nodes.free(self.node, true) };
        freed.done();
    }
}

/// The flag that distinguishes a count from a node's number, which is less than it.
const WANTED: u32 = 1 << 31;

/// Nodes of `KINDS` kinds (sizes), which a dry run reserves and the change uses. The nodes that are left are freed when the
/// stock is dropped.
///
/// Each kind is a list through the nodes' records, so a stock of any number of nodes needs no additional memory.
pub struct Stock<'n, N: Nodes, const KINDS: usize> {
    nodes: &'n N,
    /// For each kind, the number of the first node, or zero; or, with the flag [`WANTED`], the number of nodes that are to
    /// be taken.
    kinds: [u32; KINDS],
    words: &'static [usize; KINDS],
}

impl<'n, N: Nodes, const KINDS: usize> Stock<'n, N, KINDS> {
    /// Takes `want[k]` nodes of `words[k]` words for every kind `k`: exactly as many as the dry run has counted.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`], which says how many nodes were wanted. Then no node is taken.
    #[inline]
    pub fn take(nodes: &'n N, words: &'static [usize; KINDS], want: [usize; KINDS]) -> Result<Self, Error> {
        Self::take_within(nodes, words, want, LinkRange::ALL)
    }

    /// As [`take`](Self::take), for nodes to which links of `reach` can lead.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`]. Then no node is taken.
    #[inline]
    pub fn take_within(
        nodes: &'n N,
        words: &'static [usize; KINDS],
        want: [usize; KINDS],
        reach: LinkRange,
    ) -> Result<Self, Error> {
        let mut stock = Self::empty(nodes, words);
        stock.take_all(&want, reach)?;
        Ok(stock)
    }

    /// Takes `want[k]` more nodes of every kind `k`, such that links of `reach` can lead to them.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`], which says how many nodes were wanted. The nodes taken so far are freed when the stock is dropped.
    #[inline(never)]
    pub(crate) fn take_all(&mut self, want: &[usize; KINDS], reach: LinkRange) -> Result<(), Error> {
        for (kind, &more) in want.iter().enumerate() {
            if more > 0 && !self.add_some(kind, more, reach) {
                let all = want.iter().copied().fold(0, usize::saturating_add);
                return Err(Error::no_memory(all, self.nodes.held()));
            }
        }
        Ok(())
    }

    /// Returns an empty stock.
    #[inline]
    pub(crate) const fn empty(nodes: &'n N, words: &'static [usize; KINDS]) -> Self {
        Self { nodes, kinds: [0; KINDS], words }
    }

    /// Counts a node of a kind that [`take_wanted`](Self::take_wanted) will take. The counts share the words that will hold
    /// the nodes' numbers, because a kernel's stack is small.
    #[inline]
    pub(crate) fn want(&mut self, kind: usize) {
        // There is no other kind.
        if let Some(wanted) = self.kinds.get_mut(kind) {
            *wanted = WANTED | wanted.saturating_add(1);
        }
    }

    /// Takes the nodes that [`want`](Self::want) has counted, such that links of `reach` can lead to them.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`]. The nodes taken so far are freed when the stock is dropped.
    #[inline(never)]
    pub(crate) fn take_wanted(&mut self, reach: LinkRange) -> Result<(), Error> {
        let count = |kind: u32| if kind & WANTED == 0 { 0 } else { (kind & !WANTED) as usize };
        let all = self.kinds.iter().map(|&kind| count(kind)).fold(0, usize::saturating_add);
        for kind in 0..KINDS {
            let want = count(self.kinds[kind]);
            self.kinds[kind] = 0;
            self.add(kind, want, all, reach)?;
        }
        Ok(())
    }

    /// Returns the storage that the nodes are taken from.
    pub(crate) const fn nodes(&self) -> &'n N {
        self.nodes
    }

    /// Takes `want` more nodes of a kind. `all` counts those of the whole change, for the error.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`]. The nodes taken so far are freed when the stock is dropped.
    #[inline(always)]
    pub(crate) fn add(
        &mut self,
        kind: usize,
        want: usize,
        all: usize,
        reach: LinkRange,
    ) -> Result<(), Error> {
        if want == 0 || self.add_some(kind, want, reach) {
            Ok(())
        } else {
            Err(Error::no_memory(all, self.nodes.held()))
        }
    }

    /// Takes more nodes of a kind, and tells whether there were as many.
    #[inline(never)]
    fn add_some(&mut self, kind: usize, want: usize, reach: LinkRange) -> bool {
        let (words, head) = (self.words[kind], &mut self.kinds[kind]);
        let last = reach.last(self.nodes.lowest());
        last.is_some_and(|last| self.nodes.take_list(words, want, last, head))
    }

    /// Frees all nodes of the stock.
    #[cold]
    #[inline(never)]
    fn give_all_back(&mut self) {
        let mut kind = 0;
        while kind < KINDS {
            if let Some(node) = self.next(kind) {
                // SAFETY: a node in stock was taken from `nodes`, is still zero, and is known to no other code.
                drop(unsafe { Spare::new(self.nodes, node) });
            } else {
                kind += 1;
            }
        }
    }

    /// Removes a node of a kind from the stock. Its words and its record are zero. The caller owns it, and must link it or
    /// free it. Returns `None` if the stock has no more nodes of this kind.
    #[inline]
    pub fn next(&mut self, kind: usize) -> Option<NodeAddr> {
        let &words = self.words.get(kind)?;
        self.next_sized(kind, words)
    }

    /// Does what [`next`](Self::next) does for a caller that knows the words of the kind as a constant.
    #[inline(always)]
    pub(crate) fn next_sized(&mut self, kind: usize, words: usize) -> Option<NodeAddr> {
        debug_assert!(self.words.get(kind) == Some(&words), "the stock has nodes of another size");
        let first = self.kinds.get_mut(kind)?;
        if *first == 0 || *first & WANTED != 0 {
            return None;
        }
        let node = self.nodes.node_of(*first);
        // SAFETY: the node is in stock, so it was taken and no other code knows it.
        let record = unsafe { self.nodes.record(node, words) };
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
        if self.kinds != [0; KINDS] {
            let rest = Rest(self);
            rest.0.give_all_back();
            core::mem::forget(rest);
        }
    }
}

/// A guard for the rest of a stock: if the storage unwinds while a node is freed, the guard frees the other nodes.
struct Rest<'s, 'n, N: Nodes, const KINDS: usize>(&'s mut Stock<'n, N, KINDS>);

impl<N: Nodes, const KINDS: usize> Drop for Rest<'_, '_, N, KINDS> {
    #[cold]
    fn drop(&mut self) {
        self.0.give_all_back();
    }
}
