//! Which tables a CPU has walked, and under which number.

use std::vec::Vec;

use super::arch::{Links, Scope};
use super::hash::Set;
use super::memory::Line;

/// A table that a CPU walks, or has walked and may still hold entries of.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) cpu: usize,
    pub(super) asid: u16,
    /// The second root register.
    pub(super) high: bool,
    /// When it was last loaded.
    pub(super) from: Line,
    /// When another root took its place, or none if it is loaded.
    pub(super) until: Option<Line>,
    /// All but global entries have been invalidated.
    pub(super) only_global: bool,
    /// What has been invalidated since then, by level and address.
    flushed: Set<(Kind, u32, u64)>,
    ranges: Vec<(Kind, u64, u64)>,
}

/// What an invalidation tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Leaf,
    Global,
    Link,
}

impl Session {
    pub(super) fn new(cpu: usize, asid: u16, high: bool, from: Line) -> Self {
        let (flushed, ranges) = Default::default();
        Self { cpu, asid, high, from, until: None, only_global: false, flushed, ranges }
    }

    /// The root is loaded again: everything may be read again.
    pub(super) fn resume(&mut self, now: Line) {
        self.until = None;
        self.from = now;
        self.only_global = false;
        self.flushed.clear();
        self.ranges.clear();
    }

    /// Tells whether the CPU may hold an entry of this table that is in a word of `level`, at `va`, since `since`.
    pub(super) fn may_hold(&self, kind: Kind, level: u32, va: u64, since: Line) -> bool {
        let Some(until) = self.until else { return true };
        let (first, last) = (va, va + (1 << level) - 1);
        since <= until
            && (kind == Kind::Global || !self.only_global)
            && !self.flushed.contains(&(kind, level, va >> level))
            && !self.ranges.iter().any(|&(of, from, to)| of == kind && first <= to && from <= last)
    }

    /// Takes an invalidation in that was executed at `at`. Returns false if nothing is left that the CPU may hold.
    pub(super) fn flush(&mut self, scope: &Scope, at: Line, levels: &[u32]) -> bool {
        if self.until.is_none_or(|until| until > at) {
            return true;
        }
        let named = scope.asid.is_none_or(|asid| asid == self.asid);
        let Some((first, last)) = scope.pages else {
            // A flush of one number leaves the global pages, and one of the global pages alone does not exist.
            self.only_global |= named;
            return !(named && scope.globals);
        };
        let mut add = |kind: Kind, first: u64, last: u64| {
            if (last - first) >> 12 < 64 {
                for &level in levels {
                    let keys = first >> level..=last >> level;
                    self.flushed.extend(keys.map(|key| (kind, level, key)));
                }
            } else if !self.ranges.contains(&(kind, first, last)) {
                self.ranges.push((kind, first, last));
            }
        };
        if named {
            add(Kind::Leaf, first, last);
        }
        if scope.globals {
            add(Kind::Global, first, last);
        }
        match scope.links {
            Links::OnTheWay if named => add(Kind::Link, first, last),
            Links::All if named => add(Kind::Link, 0, u64::MAX >> 8),
            _ => {}
        }
        true
    }
}
