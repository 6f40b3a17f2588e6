//! Prefetch charges: how many misses each superpage would have prevented (section 6.1), eager below, deferred above.
//!
//! A miss to `p` is charged to every superpage from the smallest that also holds a resident entry up to the largest.
//! Charges to superpages up to the *eager* size are written at once. Above it, one count of a superpage `D`
//! (`deferred(D)`) stands for one charge to each of its ancestors, until a *sync* of the segment passes it on:
//!
//! ```text
//!   8M   .  .  .                                  prefetch(P) = what is written at P
//!   ...                                                       + deferred(D) of every D below P, down to the eager size
//!   128K ^ owed by deferred(64K)
//!   64K  written at once, and so on down to the smallest superpage
//! ```
//!
//! Promotions must fall exactly where eager counting puts them. Appendix A waits until 1600 misses have happened,
//! the threshold at 128 KB; but counts do not all start at zero when the wait does. Here a sync happens after
//! [`PERIOD`] charges to the segment, and splits its superpages in two: one whose count is more than `PERIOD` short
//! of its threshold cannot reach it before the next sync, because one miss charges it at most once; one that is
//! closer is *hot*, and superpages below a hot one hold no deferred count but pass every charge on at once
//! ([`AT_ONCE`]), one step up. So a count is exact whenever it could matter. A sync visits each deferring superpage once, 254 for
//! 8 MB, or half a visit per charge.
//!
//! Counts stop at their threshold: beyond it there is nothing to learn, and 16 bits hold nearly all of them.

use crate::Ladder;
use crate::ladder::MAX_LEVELS;

/// Charges to a segment from one sync to the next.
const PERIOD: u16 = 512;

/// In a deferred count: every charge is passed on at once.
const AT_ONCE: u16 = u16::MAX;

#[derive(Clone, Copy, Debug, Default)]
struct Level {
    /// First counter of this level.
    at: u32,
    /// First deferred count of this level, from the eager one up to the second largest.
    deferred: u32,
    /// Shift from units to superpages of this level.
    shift: u32,
    /// The count at which a superpage of this level is a candidate.
    threshold: u32,
    /// Counts need two counters.
    wide: bool,
}

impl Level {
    /// Adds one to the count of the superpage around `unit` and tells whether it stands at its threshold.
    #[inline]
    fn count(&self, counters: &mut [u16], unit: usize) -> bool {
        if self.wide {
            return self.count_wide(counters, unit);
        }
        let Some(count) = counters.get_mut(self.at as usize + (unit >> self.shift)) else { return false };
        let more = u32::from(*count) + 1;
        if more <= self.threshold {
            *count = more as u16;
        }
        more >= self.threshold
    }

    fn count_wide(&self, counters: &mut [u16], unit: usize) -> bool {
        let at = self.at as usize + 2 * (unit >> self.shift);
        let Some([low, high]) = counters.get_mut(at..at + 2) else { return false };
        let more = (u32::from(*low) | u32::from(*high) << 16) + 1;
        if more <= self.threshold {
            (*low, *high) = (more as u16, (more >> 16) as u16);
        }
        more >= self.threshold
    }
}

/// Where the counts of a segment lie among its counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charges {
    levels: [Level; MAX_LEVELS],
    top: usize,
    /// The highest level that is charged at once.
    eager: usize,
    /// The counter of charges left until the next sync.
    left: usize,
    counters: usize,
}

impl Charges {
    pub(crate) fn new(ladder: &Ladder, thresholds: [u32; MAX_LEVELS], eager: usize) -> Self {
        let (top, eager) = (ladder.top(), eager.clamp(1, ladder.top()));
        let mut levels = [Level::default(); MAX_LEVELS];
        let mut counters = 0usize;
        for (n, level) in levels.iter_mut().enumerate().take(top + 1).skip(1) {
            let threshold = thresholds.get(n).copied().unwrap_or(u32::MAX);
            let wide = threshold > u32::from(u16::MAX);
            *level = Level { at: counters as u32, deferred: 0, shift: ladder.shift(n), threshold, wide };
            counters += ladder.nodes(n) << u32::from(wide);
        }
        for (n, level) in levels.iter_mut().enumerate().take(top).skip(eager) {
            level.deferred = counters as u32;
            counters += ladder.nodes(n);
        }
        Self { levels, top, eager, left: counters, counters: counters + 1 }
    }

    /// Counters in a segment.
    pub(crate) const fn counters(&self) -> usize {
        self.counters
    }

    /// Prepares the zeroed counters of a new segment.
    pub(crate) fn start(&self, counters: &mut [u16]) {
        let near = self.levels.get(self.eager + 1).is_some_and(|above| above.threshold <= u32::from(PERIOD));
        if near && self.eager < self.top {
            self.sync(counters);
        } else if let Some(left) = counters.get_mut(self.left) {
            *left = PERIOD;
        }
    }

    /// Charges one miss to the superpages of level `from` and up around `unit`. Returns the smallest whose count has
    /// reached its threshold, or zero.
    #[inline]
    pub(crate) fn charge(&self, counters: &mut [u16], unit: usize, from: usize) -> usize {
        let mut ready = 0;
        let exact = self.eager.max(from);
        let eager = self.levels.get(from..=exact).unwrap_or_default();
        for (n, level) in eager.iter().enumerate() {
            if level.count(counters, unit) && ready == 0 {
                ready = from + n;
            }
        }
        if exact < self.top {
            let mut at = exact;
            while let Some(&Level { deferred, shift, .. }) = self.levels.get(at).filter(|_| at < self.top) {
                let Some(deferred) = counters.get_mut(deferred as usize + (unit >> shift)) else { break };
                if *deferred != AT_ONCE {
                    *deferred += 1;
                    break;
                }
                at += 1;
                if self.levels[at % MAX_LEVELS].count(counters, unit) && ready == 0 {
                    ready = at;
                }
            }
            if let Some(left) = counters.get_mut(self.left) {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    self.sync(counters);
                }
            }
        }
        ready
    }

    /// Adds to a count, which stops at the threshold, and returns it.
    fn add(&self, counters: &mut [u16], unit: usize, level: usize, more: u32) -> u32 {
        let count =
            self.written(counters, unit, level).saturating_add(more).min(self.levels[level].threshold);
        self.write(counters, unit, level, count);
        count
    }

    fn written(&self, counters: &[u16], unit: usize, level: usize) -> u32 {
        let Level { at, shift, wide, .. } = self.levels[level];
        let (at, node) = (at as usize, unit >> shift);
        let read = |at: usize| u32::from(counters.get(at).copied().unwrap_or(0));
        if wide { read(at + 2 * node) | read(at + 2 * node + 1) << 16 } else { read(at + node) }
    }

    fn write(&self, counters: &mut [u16], unit: usize, level: usize, count: u32) {
        let Level { at, shift, wide, .. } = self.levels[level];
        let mut put = |at: usize, half: u32| {
            if let Some(counter) = counters.get_mut(at) {
                *counter = half as u16;
            }
        };
        let (at, node) = (at as usize, unit >> shift);
        if wide {
            put(at + 2 * node, count);
            put(at + 2 * node + 1, count >> 16);
        } else {
            put(at + node, count);
        }
    }

    /// Passes every deferred charge on, and decides which superpages pass theirs on at once from now on.
    #[cold]
    pub(crate) fn sync(&self, counters: &mut [u16]) {
        let nodes = |level: usize| 1usize << (self.levels[self.top].shift - self.levels[level].shift);
        for level in self.eager..self.top {
            let Level { deferred, shift, .. } = self.levels[level];
            let above = self.levels[level + 1];
            for node in 0..nodes(level) {
                let owed = counters.get(deferred as usize + node).copied().unwrap_or(0);
                if owed == 0 || owed == AT_ONCE {
                    continue;
                }
                let unit = node << shift;
                self.add(counters, unit, level + 1, u32::from(owed));
                // At most PERIOD charges are under way in a segment, far from AT_ONCE; a superpage above that passes
                // on at once has none of its own and nothing deferred below.
                if level + 1 < self.top
                    && let Some(next) = counters.get_mut(above.deferred as usize + (unit >> above.shift))
                {
                    *next += owed;
                }
                if let Some(deferred) = counters.get_mut(deferred as usize + node) {
                    *deferred = 0;
                }
            }
        }
        for level in (self.eager..self.top).rev() {
            let Level { deferred, shift, .. } = self.levels[level];
            let above = self.levels[level + 1];
            let children = 1usize << (above.shift - shift);
            for parent in 0..nodes(level + 1) {
                let count = self.written(counters, parent << above.shift, level + 1);
                let hot = count.saturating_add(u32::from(PERIOD)) >= above.threshold
                    || level + 1 < self.top
                        && counters.get(above.deferred as usize + parent) == Some(&AT_ONCE);
                let first = deferred as usize + parent * children;
                if let Some(deferred) = counters.get_mut(first..first + children) {
                    deferred.fill(if hot { AT_ONCE } else { 0 });
                }
            }
        }
        if let Some(left) = counters.get_mut(self.left) {
            *left = PERIOD;
        }
    }

    /// Returns the exact count of a superpage.
    pub(crate) fn exact(&self, counters: &mut [u16], unit: usize, level: usize) -> u32 {
        self.sync(counters);
        self.written(counters, unit, level)
    }

    /// Starts a promoted superpage and its components anew, and takes `less` off every larger one around it
    /// (section 6.1, "Resetting miss charges on promotion").
    pub(crate) fn promoted(&self, counters: &mut [u16], unit: usize, level: usize, less: u32) {
        self.sync(counters);
        let first = unit >> self.levels[level].shift;
        for below in 1..=level {
            let Level { at, wide, .. } = self.levels[below];
            let per = 1usize << (self.levels[level].shift - self.levels[below].shift) << u32::from(wide);
            let at = at as usize + first * per;
            if let Some(counts) = counters.get_mut(at..at + per) {
                counts.fill(0);
            }
        }
        for above in level + 1..=self.top {
            let count = self.written(counters, unit, above).saturating_sub(less);
            self.write(counters, unit, above, count);
        }
    }
}
