//! Sessions: the tables that a CPU walks or has walked, and under which number.

use std::vec::Vec;

use super::arch::{Links, Scope};
use super::hash::Map;
use super::memory::Line;

/// A table that a CPU walks, or has walked and may still hold entries of.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) cpu: usize,
    pub(super) asid: u16,
    /// Whether the root is in AArch64's root register of the upper half.
    pub(super) high: bool,
    /// The line in which the root was last loaded.
    pub(super) from: Line,
    /// The line in which another root replaced it; `None` if the root is loaded.
    pub(super) until: Option<Line>,
    /// Whether all entries but global ones have been invalidated since then.
    pub(super) only_global: bool,
    /// The invalidations since then that name this number and pages.
    flushed: Flushed,
}

/// A CPU's invalidations of pages: for each kind, level and address, the line of the last one.
#[derive(Debug, Default)]
pub(super) struct Flushed {
    places: Map<(Kind, u32, u64), Line>,
    ranges: Vec<(Kind, u64, u64, Line)>,
}

impl Flushed {
    fn add(&mut self, kind: Kind, (first, last): (u64, u64), at: Line, levels: &[u32]) {
        if (last - first) >> 12 < 64 {
            for &level in levels {
                for key in first >> level..=last >> level {
                    let known = self.places.entry((kind, level, key)).or_default();
                    *known = at.max(*known);
                }
            }
            return;
        }
        match self.ranges.iter_mut().find(|&&mut (of, from, to, _)| (of, from, to) == (kind, first, last)) {
            Some(known) => known.3 = at.max(known.3),
            None => self.ranges.push((kind, first, last, at)),
        }
    }

    /// Records an invalidation of pages.
    fn take(&mut self, scope: &Scope, pages: (u64, u64), at: Line, levels: &[u32]) {
        self.add(Kind::Leaf, pages, at, levels);
        match scope.links {
            Links::None => {}
            Links::OnTheWay => self.add(Kind::Link, pages, at, levels),
            Links::All => self.add(Kind::Link, (0, u64::MAX >> 8), at, levels),
        }
    }

    /// Records the part of an invalidation that affects all numbers.
    pub(super) fn take_all(&mut self, scope: &Scope, at: Line, levels: &[u32]) {
        let Some(pages) = scope.pages else {
            // The CPU holds no entry of an earlier line.
            if scope.asid.is_none() && scope.globals {
                self.places.retain(|_, line| *line > at);
                self.ranges.retain(|range| range.3 > at);
            }
            return;
        };
        if scope.asid.is_none() {
            self.take(scope, pages, at, levels);
        }
        if scope.globals {
            self.add(Kind::Global, pages, at, levels);
        }
    }

    /// Tells whether an invalidation in line `since` or later covers an entry.
    fn covers(&self, kind: Kind, level: u32, va: u64, since: Line) -> bool {
        let (first, last) = (va, va + (1 << level) - 1);
        self.places.get(&(kind, level, va >> level)).is_some_and(|&at| at >= since)
            || self
                .ranges
                .iter()
                .any(|&(of, from, to, at)| of == kind && first <= to && from <= last && at >= since)
    }
}

/// The kinds of entries that an invalidation treats differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Leaf,
    Global,
    Link,
}

impl Session {
    pub(super) fn new(cpu: usize, asid: u16, high: bool, from: Line) -> Self {
        Self { cpu, asid, high, from, until: None, only_global: false, flushed: Flushed::default() }
    }

    /// Records that the root is loaded again: the CPU may read every entry again.
    pub(super) fn resume(&mut self, now: Line) {
        self.until = None;
        self.from = now;
        self.only_global = false;
        self.flushed = Flushed::default();
    }

    /// Tells whether the CPU may hold an entry of this table that a word of `level` at `va` has had since line `since`. `all` is the
    /// CPU's invalidations of all numbers.
    pub(super) fn may_hold(&self, all: &Flushed, kind: Kind, level: u32, va: u64, since: Line) -> bool {
        let Some(until) = self.until else { return true };
        since <= until
            && (kind == Kind::Global || !self.only_global)
            && !self.flushed.covers(kind, level, va, until)
            && !all.covers(kind, level, va, until)
    }

    /// Records an invalidation of line `at`, except the part that affects all numbers. Returns false if the CPU can hold no entry of this
    /// session any more.
    pub(super) fn flush(&mut self, scope: &Scope, at: Line, levels: &[u32]) -> bool {
        if self.until.is_none_or(|until| until > at) {
            return true;
        }
        let Some(pages) = scope.pages else {
            let named = scope.asid.is_none_or(|asid| asid == self.asid);
            // An invalidation of one number does not cover global pages. No invalidation covers only global pages.
            self.only_global |= named;
            return !(named && scope.globals);
        };
        if scope.asid == Some(self.asid) {
            self.flushed.take(scope, pages, at, levels);
        }
        true
    }
}
