//! What a change to a page table asks of the TLBs.

use heapless::Vec;

use crate::Pages;

/// How far a change must be made known before its promise holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reach {
    /// No TLB can hold anything that the change made wrong: nothing to flush.
    #[default]
    Nowhere,
    /// A TLB may hold a translation that is merely weaker than the new one (Tzou 5.1.1, safe inconsistency). The
    /// CPU that changed it should flush its own copy; others fault once and find out.
    Local,
    /// A TLB may hold a translation that allows what is no longer allowed: every CPU that may have loaded it must
    /// flush before the change counts as done.
    Everywhere,
}

/// The pages whose translations a batch of changes made stale, and how far that must be made known.
///
/// Holds up to [`RANGES`](Self::RANGES) separate ranges and merges what touches; with one range more it degrades to
/// the whole address space ([`is_all`](Self::is_all)): it may ask for more than needed, never for less.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flush {
    reach: Reach,
    all: bool,
    ranges: Vec<Pages, 8>,
}

impl Flush {
    /// The most ranges that are kept apart.
    pub const RANGES: usize = 8;

    /// Returns the flush that asks for nothing.
    #[inline]
    pub const fn none() -> Self {
        Self { reach: Reach::Nowhere, all: false, ranges: Vec::new() }
    }

    /// Adds `pages`, to be made known as far as `reach`. [`Reach::Nowhere`] adds nothing.
    ///
    /// The reach of the whole is the furthest of its parts. Costs one comparison for a run of neighbours, a few
    /// for each separate range otherwise.
    #[inline(always)]
    pub fn add(&mut self, reach: Reach, pages: Pages) {
        if reach == Reach::Nowhere {
            return;
        }
        self.reach = self.reach.max(reach);
        if self.all {
            return;
        }
        // The common cases: the first range, and a run of neighbours. With more ranges a new one may close a gap.
        match &mut *self.ranges {
            [] => drop(self.ranges.push(pages)),
            [only] => match only.merge(pages) {
                Some(merged) => *only = merged,
                None => self.add_apart(pages),
            },
            _ => self.add_apart(pages),
        }
    }

    #[cold]
    fn add_apart(&mut self, mut pages: Pages) {
        // Whatever the new range touches becomes part of it, and then what the wider one touches.
        while let Some(at) = self.ranges.iter().position(|range| range.merge(pages).is_some()) {
            pages = self.ranges.swap_remove(at).merge(pages).unwrap_or(pages);
        }
        if self.ranges.push(pages).is_err() {
            self.widen();
        }
    }

    /// Asks for the whole address space, to be made known as far as `reach`.
    pub fn add_all(&mut self, reach: Reach) {
        if reach > Reach::Nowhere {
            self.reach = self.reach.max(reach);
            self.widen();
        }
    }

    fn widen(&mut self) {
        self.all = true;
        self.ranges.clear();
    }

    /// Adds everything that `other` asks for.
    pub fn merge(&mut self, other: &Self) {
        if other.all {
            self.add_all(other.reach);
        }
        for &pages in &other.ranges {
            self.add(other.reach, pages);
        }
    }

    /// Asks for nothing again.
    #[inline]
    pub fn clear(&mut self) {
        self.reach = Reach::Nowhere;
        self.all = false;
        self.ranges.clear();
    }

    /// Returns how far the flush must be made known.
    #[inline]
    pub const fn reach(&self) -> Reach {
        self.reach
    }

    /// Tells whether there is nothing to flush.
    #[inline]
    pub fn is_none(&self) -> bool {
        self.reach == Reach::Nowhere
    }

    /// Tells whether the whole address space is to be flushed; [`ranges`](Self::ranges) is empty then.
    #[inline]
    pub const fn is_all(&self) -> bool {
        self.all
    }

    /// Returns the ranges to flush, disjoint and in no order.
    #[inline]
    pub fn ranges(&self) -> &[Pages] {
        &self.ranges
    }

    /// Tells whether the flush covers every page of `pages`.
    pub fn covers(&self, pages: Pages) -> bool {
        self.all || self.ranges.iter().any(|range| range.intersect(pages) == Some(pages))
    }
}
