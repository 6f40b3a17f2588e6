//! Capacity charges from the LRU stack: which superpages would have kept `p` in the TLB (section 6.1, Appendix A).
//!
//! Each TLB has a stack of the entries that it held, most recent first. Resident entries come before all others and are not
//! ordered: a miss handler does not see hits (footnote 1), and capacity charges do not need the order.
//!
//! ```text
//!   0 5 6 | 7 1 8        Figure 2, a TLB of three: 0, 5, 6 resident, then 7, 1, 8
//!   p = 1 is at depth 5, and would be within 3 if three entries above it were one: {4..7} has 5, 6, 7.
//! ```
//!
//! Let a TLB have T entries. If a superpage without `p` contains `n` of the entries above `p`, one entry for the superpage
//! would move `p` up by `n - 1`. So the superpage is charged if `n` is at least `depth - T + 1`; entries count whether
//! resident or not. (Appendix A's loop counts resident entries only, and would not charge {4..7} in Figure 2.) A superpage
//! has at most as many entries as units, so no superpage can help a page that is deeper than T plus the units of a segment,
//! and the stack has that length. An entry that has fallen off the stack does not come back when a promotion shortens it.

use core::fmt;

use crate::PageSizes;
use crate::page_sizes::{MAX_LEVELS, Place};
use crate::segments::{PolicyMemory, SegmentMemory, Segments};

/// An entry of an LRU stack. The caller makes entries with `Default`; the policy fills them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackEntry {
    /// The first unit of the mapping, counted over the whole address space.
    unit: usize,
    level: u8,
}

/// The stack of one TLB: first `resident` entries in no order, then the others by recency, `used` entries together.
#[derive(Debug)]
struct Stack<'m> {
    entries: &'m mut [StackEntry],
    resident: usize,
    used: usize,
    /// T, the entries of the TLB.
    size: usize,
}

impl Stack<'_> {
    fn live(&self) -> &[StackEntry] {
        self.entries.get(..self.used).unwrap_or_default()
    }

    /// Records that the TLB loaded `entry`: `entry` becomes resident.
    fn refill(&mut self, entry: StackEntry) {
        let at = self.live().iter().position(|e| *e == entry);
        let at = match at {
            Some(at) if at < self.resident => return,
            Some(at) => at,
            None if self.used < self.entries.len() => {
                self.used += 1;
                self.used - 1
            }
            // The stack is full, so the least recent entry goes. If all entries are resident, there are more of them than
            // the TLB has: the kernel did not report every eviction. Then the stack has no place for another entry.
            None => self.used.saturating_sub(1).max(self.resident),
        };
        if let Some(moved) = self.entries.get_mut(self.resident..=at) {
            moved.rotate_right(1);
        }
        if let Some(first) = self.entries.get_mut(self.resident) {
            *first = entry;
            self.resident += 1;
        }
    }

    /// Records that the TLB evicted `entry`: `entry` becomes the most recent entry that is not resident.
    fn evict(&mut self, entry: StackEntry) {
        if let Some(at) = self.live().iter().take(self.resident).position(|e| *e == entry) {
            self.resident -= 1;
            self.entries.swap(at, self.resident);
        }
    }

    /// Removes the entries for which `drop` returns true. Returns how many were removed, and whether a resident one was.
    fn remove(&mut self, drop: impl Fn(&StackEntry) -> bool) -> (usize, bool) {
        let (mut kept, mut resident) = (0, self.resident);
        for at in 0..self.used {
            let Some(&entry) = self.entries.get(at) else { break };
            if drop(&entry) {
                resident -= usize::from(at < self.resident);
                continue;
            }
            if let Some(place) = self.entries.get_mut(kept) {
                *place = entry;
            }
            kept += 1;
        }
        let gone = (self.used - kept, resident < self.resident);
        (self.used, self.resident) = (kept, resident);
        gone
    }

    /// Inserts `entry` as resident, or as the most recent entry that is not. The caller has removed at least one entry
    /// before, so there is space.
    fn put(&mut self, entry: StackEntry, resident: bool) {
        if let Some(moved) = self.entries.get_mut(self.resident..=self.used) {
            moved.rotate_right(1);
            moved[0] = entry;
            self.used += 1;
            self.resident += usize::from(resident);
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Level {
    at: usize,
    coverage: usize,
    threshold: u32,
    wide: bool,
}

/// The capacity charges of every touched segment, and the LRU stacks from which they are computed.
pub(crate) struct Capacity<'m> {
    page_sizes: PageSizes,
    levels: [Level; MAX_LEVELS],
    segments: Segments<'m>,
    stacks: [Stack<'m>; 2],
}

impl<'m> Capacity<'m> {
    pub(crate) fn segment_memory(page_sizes: &PageSizes, thresholds: [u32; MAX_LEVELS]) -> SegmentMemory {
        SegmentMemory { bits: 0, counters: layout(page_sizes, thresholds).1 }
    }

    /// Returns the number of entries that the stack of a TLB of `size` entries needs.
    pub(crate) const fn stack_len(page_sizes: &PageSizes, size: usize) -> usize {
        if size == 0 { 0 } else { size + page_sizes.units_per_segment() }
    }

    pub(crate) fn new(
        page_sizes: PageSizes,
        thresholds: [u32; MAX_LEVELS],
        sizes: [usize; 2],
        memory: PolicyMemory<'m>,
        stacks: [&'m mut [StackEntry]; 2],
    ) -> Self {
        let per_segment = Self::segment_memory(&page_sizes, thresholds);
        let [data, instruction] = stacks;
        let stack = |entries: &'m mut [StackEntry], size: usize| {
            let (entries, _) = entries.split_at_mut(entries.len().min(Self::stack_len(&page_sizes, size)));
            Stack { entries, resident: 0, used: 0, size }
        };
        Self {
            levels: layout(&page_sizes, thresholds).0,
            segments: Segments::new(memory, per_segment),
            stacks: [stack(data, sizes[0]), stack(instruction, sizes[1])],
            page_sizes,
        }
    }

    fn entry(&self, place: Place, level: usize) -> StackEntry {
        let unit = (place.segment << self.page_sizes.shift(self.page_sizes.top())) | place.unit;
        StackEntry {
            unit: unit >> self.page_sizes.shift(level) << self.page_sizes.shift(level),
            level: level as u8,
        }
    }

    fn place(&self, unit: usize) -> Place {
        let segment = unit >> self.page_sizes.shift(self.page_sizes.top());
        Place { segment, unit: unit & (self.page_sizes.units_per_segment() - 1) }
    }

    /// Charges a miss on the entry of `level` around `place`, before [`refill`](Self::refill) records the refill. Returns
    /// the smallest superpage that is a candidate; among candidates of one size, that with the lowest address. Superpages in
    /// segments for which `counted` returns false are not charged.
    ///
    /// The time is proportional to the number of entries above the missed entry in the stack, times the number of page sizes
    /// that are large enough to be charged.
    pub(crate) fn charge(
        &mut self,
        tlb: usize,
        place: Place,
        level: usize,
        mut counted: impl FnMut(usize) -> bool,
    ) -> Option<(Place, usize)> {
        let missed = self.entry(place, level);
        let stack = self.stacks.get(tlb)?;
        let depth = stack.live().iter().position(|entry| *entry == missed)?;
        if depth < stack.resident {
            return None;
        }
        // At least two entries are needed: a superpage with one entry coalesces nothing. If more are needed than a counter
        // of 16 bits can count, no superpage is charged.
        let needed = u16::try_from((depth + 2).saturating_sub(stack.size).max(2)).ok()?;
        let lowest = (1..self.page_sizes.levels())
            .find(|&l| 1usize << self.page_sizes.shift(l) >= usize::from(needed))?;
        let mut best: Option<(usize, usize)> = None;
        for pass in [Pass::Count(needed), Pass::Clear] {
            for at in 0..depth {
                let Some(&above) = self.stacks.get(tlb).and_then(|stack| stack.live().get(at)) else { break };
                let place = self.place(above.unit);
                if !counted(place.segment) {
                    continue;
                }
                let Ok(chunk) = self.segments.touch(place.segment) else { continue };
                let counters = self.segments.parts(chunk).1;
                for level in lowest.max(usize::from(above.level) + 1)..=self.page_sizes.top() {
                    let shift = self.page_sizes.shift(level);
                    if above.unit >> shift == missed.unit >> shift {
                        break;
                    }
                    let ready = self.levels[level].cover(counters, place.unit >> shift, pass);
                    if ready && best.is_none_or(|best| (level, above.unit >> shift << shift) < best) {
                        best = Some((level, above.unit >> shift << shift));
                    }
                }
            }
        }
        best.map(|(level, unit)| (self.place(unit), level))
    }

    /// Records that the TLB refilled the entry of `level` around `place`.
    pub(crate) fn refill(&mut self, tlb: usize, place: Place, level: usize) {
        let entry = self.entry(place, level);
        if let Some(stack) = self.stacks.get_mut(tlb) {
            stack.refill(entry);
        }
    }

    /// Records that the TLB evicted the entry of `level` around `place`.
    pub(crate) fn evict(&mut self, tlb: usize, place: Place, level: usize) {
        let entry = self.entry(place, level);
        if let Some(stack) = self.stacks.get_mut(tlb) {
            stack.evict(entry);
        }
    }

    /// Replaces the entries within a superpage by one entry at the most recent place, and sets all charges to zero.
    pub(crate) fn promote(&mut self, place: Place, level: usize) {
        let whole = self.entry(place, level);
        let shift = self.page_sizes.shift(level);
        for stack in &mut self.stacks {
            let (gone, resident) = stack.remove(|entry| entry.unit >> shift == whole.unit >> shift);
            if gone > 0 {
                stack.put(whole, resident);
            }
        }
        self.segments.for_each(|_, _, counters| counters.fill(0));
    }

    /// Removes the entry of `level` around `place` from the stacks: the superpage is mapped as single units from now on.
    pub(crate) fn demote(&mut self, place: Place, level: usize) {
        let whole = self.entry(place, level);
        for stack in &mut self.stacks {
            stack.remove(|entry| *entry == whole);
        }
    }

    /// Records that the TLB was flushed: no entry is resident any longer. The entry that was loaded last becomes the most
    /// recent.
    pub(crate) fn flushed(&mut self, tlb: usize) {
        if let Some(stack) = self.stacks.get_mut(tlb) {
            if let Some(resident) = stack.entries.get_mut(..stack.resident) {
                resident.reverse();
            }
            stack.resident = 0;
        }
    }

    /// Removes the entries from the unit `first` to the unit `last`, both included, and the charges of the segments that are
    /// wholly within `pages`.
    pub(crate) fn unmapped(&mut self, pages: tlbkit_addr::Pages, first: Place, last: Place) {
        let (first, last) = (self.entry(first, 0).unit, self.entry(last, 0).unit);
        for stack in &mut self.stacks {
            stack.remove(|entry| (first..=last).contains(&entry.unit));
        }
        self.segments.unmapped(&self.page_sizes, pages);
    }

    /// Sets the capacity charges of a superpage to zero.
    pub(crate) fn start_over(&mut self, place: Place, level: usize) {
        if let Some(chunk) = self.segments.find(place.segment) {
            let node = place.unit >> self.page_sizes.shift(level);
            self.levels[level].write(self.segments.parts(chunk).1, node, 0);
        }
    }

    /// Returns the capacity charges of a superpage.
    pub(crate) fn charged(&mut self, place: Place, level: usize) -> u32 {
        let Some(chunk) = self.segments.find(place.segment) else { return 0 };
        self.levels[level].read(self.segments.peek(chunk).1, place.unit >> self.page_sizes.shift(level))
    }
}

impl fmt::Debug for Capacity<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capacity").field("segments", &self.segments).finish_non_exhaustive()
    }
}

/// The two walks over the stack: the first counts the entries that each superpage covers, the second sets those counters to
/// zero again.
#[derive(Clone, Copy)]
enum Pass {
    Count(u16),
    Clear,
}

impl Level {
    /// Counts one more entry within a superpage, and charges the superpage when this entry completes the number needed.
    /// Returns whether that charge makes the superpage a candidate.
    fn cover(&self, counters: &mut [u16], node: usize, pass: Pass) -> bool {
        let Some(coverage) = counters.get_mut(self.coverage + node) else { return false };
        let Pass::Count(needed) = pass else {
            *coverage = 0;
            return false;
        };
        if *coverage >= needed {
            return false;
        }
        *coverage += 1;
        if *coverage < needed {
            return false;
        }
        let count = self.read(counters, node).saturating_add(1).min(self.threshold);
        self.write(counters, node, count);
        count >= self.threshold
    }

    fn write(&self, counters: &mut [u16], node: usize, count: u32) {
        let mut put = |at: usize, half: u32| {
            if let Some(counter) = counters.get_mut(at) {
                *counter = half as u16;
            }
        };
        if self.wide {
            put(self.at + 2 * node, count);
            put(self.at + 2 * node + 1, count >> 16);
        } else {
            put(self.at + node, count);
        }
    }

    fn read(&self, counters: &[u16], node: usize) -> u32 {
        let read = |at: usize| u32::from(counters.get(at).copied().unwrap_or(0));
        if self.wide {
            read(self.at + 2 * node) | read(self.at + 2 * node + 1) << 16
        } else {
            read(self.at + node)
        }
    }
}

/// Assigns every superpage of a segment a place for its charges and a place for its scratch counter. Returns the levels, and
/// the number of counters.
fn layout(page_sizes: &PageSizes, thresholds: [u32; MAX_LEVELS]) -> ([Level; MAX_LEVELS], usize) {
    let mut levels = [Level::default(); MAX_LEVELS];
    let mut counters = 0;
    for (n, level) in levels.iter_mut().enumerate().take(page_sizes.levels()).skip(1) {
        let threshold = thresholds.get(n).copied().unwrap_or(u32::MAX);
        let wide = threshold > u32::from(u16::MAX);
        let counts = page_sizes.nodes(n) << u32::from(wide);
        *level = Level { at: counters, coverage: counters + counts, threshold, wide };
        counters += counts + page_sizes.nodes(n);
    }
    (levels, counters)
}

#[cfg(test)]
mod tests;
