//! OFFLINE (section 7.1): superpages chosen greedily with the whole trace at hand, benefit over cost, iterated.
//!
//! It needs many passes over the trace, but not over all of it. Whatever hits in a TLB of base pages also hits when
//! some of them are one superpage, and footnote 1 says why the misses of that TLB, with what they evict, determine
//! the misses of every other sizing: the base pages resident at any time make up the top of any sizing's LRU stack,
//! and a superpage falls out of that top when the last of its base pages is evicted. So one pass over the trace
//! spools (missed, evicted) pairs to a temporary file, and each round of the greedy choice replays the spool.
//!
//! A round charges every S-miss (a miss under the superpages S chosen so far) to the superpages that would have
//! prevented it, prefetch and capacity; with S fixed that sum is exactly the number of misses that vanish.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};

use tlbkit_superpage::PageSizes;

use super::simulation::Tlbs;

/// In a spooled pair: nothing was evicted.
const NOTHING: u64 = u64::MAX;

/// The misses of a TLB of base pages, in a file that has no name and goes with the process.
pub(super) struct Spool {
    file: BufWriter<File>,
    pub(super) misses: u64,
}

impl Spool {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { file: BufWriter::with_capacity(1 << 18, tempfile::tempfile()?), misses: 0 })
    }

    pub(super) fn push(&mut self, tlb: usize, unit: usize, evicted: Option<usize>) -> io::Result<()> {
        self.misses += 1;
        self.file.write_all(&((unit as u64) << 1 | tlb as u64).to_le_bytes())?;
        self.file.write_all(&evicted.map_or(NOTHING, |unit| unit as u64).to_le_bytes())
    }

    fn replay(&mut self, mut each: impl FnMut(usize, usize, Option<usize>)) -> io::Result<()> {
        self.file.flush()?;
        let file = self.file.get_mut();
        file.rewind()?;
        let mut input = BufReader::with_capacity(1 << 18, &*file);
        for _ in 0..self.misses {
            let mut pair = [0; 16];
            input.read_exact(&mut pair)?;
            let [missed, evicted] =
                [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|i| pair[at + i])));
            let evicted = (evicted != NOTHING).then_some(evicted as usize);
            each((missed & 1) as usize, (missed >> 1) as usize, evicted);
        }
        file.seek(io::SeekFrom::End(0))?;
        Ok(())
    }
}

/// A superpage: its first unit in the address space, and its level.
pub(super) type Node = (usize, usize);

/// What OFFLINE chose, and what that comes to.
#[derive(Debug)]
pub(super) struct Outcome {
    /// The superpages: first unit to level.
    pub(super) chosen: BTreeMap<usize, usize>,
    pub(super) misses: u64,
    /// Prefetch and capacity charges under the choice of every superpage that has any and was not chosen.
    pub(super) left: Vec<(Node, u64, u64)>,
}

/// Up to this many spooled misses a round chooses one superpage; beyond, all that do not take from one another.
const SMALL: u64 = 100_000;

/// Runs the greedy choice. `cost` is that of a superpage, in misses; `round` is told the rounds and misses.
pub(super) fn choose(
    spool: &mut Spool,
    page_sizes: &PageSizes,
    tlbs: Tlbs,
    cost: impl Fn(Node) -> u64,
    mut round: impl FnMut(usize, u64),
) -> io::Result<Outcome> {
    let mut chosen = BTreeMap::new();
    let mut rounds = 0;
    loop {
        let (misses, left) = {
            let analysis = Analysis::run(spool, page_sizes, tlbs, &chosen)?;
            (analysis.misses, analysis.charges())
        };
        rounds += 1;
        round(rounds, misses);
        // What a superpage adds to the cost: those within it are not built then.
        let extra = |&(first, level): &Node| {
            let units = 1usize << page_sizes.shift(level);
            let within = chosen.range(first..=first + (units - 1));
            cost((first, level)).saturating_sub(within.map(|(&first, &level)| cost((first, level))).sum())
        };
        let mut worth: Vec<(f64, Node, bool)> = left
            .iter()
            .filter_map(|&(node, prefetch, capacity)| {
                let extra = extra(&node);
                let ratio = (prefetch + capacity) as f64 / extra.max(1) as f64;
                (prefetch + capacity > extra).then_some((ratio, node, prefetch > extra))
            })
            .collect();
        worth.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.1.cmp(&b.1.1)).then(a.1.0.cmp(&b.1.0)));
        let Some(&(best, ..)) = worth.first() else {
            return Ok(Outcome { chosen, misses, left });
        };
        let mut taken: Vec<Node> = Vec::new();
        for (ratio, node, by_prefetch) in worth {
            let more = by_prefetch && spool.misses > SMALL && ratio >= best / 2.0;
            let clear = taken.iter().all(|&other| !overlap(page_sizes, other, node));
            if taken.is_empty() || more && clear {
                taken.push(node);
            }
        }
        for (first, level) in taken {
            let last = first + ((1usize << page_sizes.shift(level)) - 1);
            chosen.retain(|&inside, _| !(first..=last).contains(&inside));
            chosen.insert(first, level);
        }
    }
}

/// Returns the cost of copying a superpage's pages, in misses, at `r_per_kb` for 1 KB.
pub(super) fn copying(page_sizes: &PageSizes, r_per_kb: u32) -> impl Fn(Node) -> u64 + '_ {
    move |(_, level)| {
        let bytes = page_sizes.size(level).map_or(0, |size| size.bytes() as u64);
        if level == 0 { 0 } else { u64::from(r_per_kb) * bytes / 1024 }
    }
}

fn overlap(page_sizes: &PageSizes, a: Node, b: Node) -> bool {
    let shift = page_sizes.shift(a.1.max(b.1));
    a.0 >> shift == b.0 >> shift
}

/// Returns the misses under a given choice.
#[cfg(test)]
pub(super) fn misses(
    spool: &mut Spool,
    page_sizes: &PageSizes,
    tlbs: Tlbs,
    chosen: &BTreeMap<usize, usize>,
) -> io::Result<u64> {
    Ok(Analysis::run(spool, page_sizes, tlbs, chosen)?.misses)
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry {
    unit: usize,
    level: u32,
    /// Index of its segment.
    segment: u32,
}

/// An LRU stack under a sizing: first, in no order, what has resident base pages; then the rest by recency.
struct Stack {
    entries: Vec<Entry>,
    resident: usize,
    /// Resident base pages of each superpage.
    parts: HashMap<usize, u32>,
    size: usize,
}

struct Segment {
    number: usize,
    /// For each superpage, by level and then by number: prefetch and capacity charges.
    charges: Vec<(u64, u64)>,
    coverage: Vec<u32>,
    /// Entries above a missed page, during one charge.
    tally: u32,
}

struct Analysis<'a> {
    page_sizes: &'a PageSizes,
    chosen: &'a BTreeMap<usize, usize>,
    /// First superpage of each level in a segment's lists.
    starts: Vec<usize>,
    segments: Vec<Segment>,
    numbers: HashMap<usize, u32>,
    stacks: [Stack; 2],
    misses: u64,
}

impl<'a> Analysis<'a> {
    fn run(
        spool: &mut Spool,
        page_sizes: &'a PageSizes,
        tlbs: Tlbs,
        chosen: &'a BTreeMap<usize, usize>,
    ) -> io::Result<Self> {
        let stack = |size| Stack { entries: Vec::new(), resident: 0, parts: HashMap::new(), size };
        let mut starts = vec![0, 0];
        for level in 1..=page_sizes.top() {
            starts.push(starts[level] + page_sizes.nodes(level));
        }
        let mut analysis = Self {
            page_sizes,
            chosen,
            starts,
            segments: Vec::new(),
            numbers: HashMap::new(),
            stacks: [stack(tlbs.data), stack(tlbs.instruction)],
            misses: 0,
        };
        spool.replay(|tlb, missed, evicted| {
            analysis.miss(tlb, missed);
            if let Some(evicted) = evicted {
                analysis.evict(tlb, evicted);
            }
        })?;
        Ok(analysis)
    }

    /// The mapping of a unit under the choice.
    fn entry(&mut self, unit: usize) -> Entry {
        let level = self
            .chosen
            .range(..=unit)
            .next_back()
            .filter(|&(&first, &level)| unit - first < 1 << self.page_sizes.shift(level))
            .map_or(0, |(_, &level)| level);
        let number = unit >> self.page_sizes.shift(self.page_sizes.top());
        let next = self.segments.len() as u32;
        let segment = *self.numbers.entry(number).or_insert(next);
        if segment == next {
            let superpages = self.starts[self.page_sizes.levels()];
            self.segments.push(Segment {
                number,
                charges: vec![(0, 0); superpages],
                coverage: vec![0; superpages],
                tally: 0,
            });
        }
        Entry {
            unit: unit >> self.page_sizes.shift(level) << self.page_sizes.shift(level),
            level: level as u32,
            segment,
        }
    }

    /// Index of the superpage of `level` around an entry, in its segment's lists.
    fn index(&self, entry: Entry, level: usize) -> usize {
        self.starts[level]
            + ((entry.unit & (self.page_sizes.units_per_segment() - 1)) >> self.page_sizes.shift(level))
    }

    fn miss(&mut self, tlb: usize, unit: usize) {
        let entry = self.entry(unit);
        if let Some(parts) = self.stacks[tlb].parts.get_mut(&entry.unit) {
            *parts += 1;
            return;
        }
        let stack = &self.stacks[tlb];
        let at = stack.entries.iter().position(|&e| e == entry);
        if at.is_none_or(|at| at >= stack.size) {
            self.misses += 1;
            self.charge_prefetch(tlb, entry);
            if let Some(at) = at {
                self.charge_capacity(tlb, entry, at);
            }
        }
        let depth = self.page_sizes.units_per_segment();
        let stack = &mut self.stacks[tlb];
        if let Some(at) = at {
            stack.entries.remove(at);
        }
        stack.entries.insert(stack.resident, entry);
        stack.entries.truncate(stack.size + depth);
        stack.resident += 1;
        stack.parts.insert(entry.unit, 1);
    }

    fn evict(&mut self, tlb: usize, unit: usize) {
        let entry = self.entry(unit);
        let stack = &mut self.stacks[tlb];
        let Some(parts) = stack.parts.get_mut(&entry.unit) else { return };
        *parts -= 1;
        if *parts == 0 {
            stack.parts.remove(&entry.unit);
            if let Some(at) = stack.entries.iter().take(stack.resident).position(|&e| e == entry) {
                stack.resident -= 1;
                stack.entries.swap(at, stack.resident);
            }
        }
    }

    fn charge_prefetch(&mut self, tlb: usize, missed: Entry) {
        let stack = &self.stacks[tlb];
        let lowest = stack
            .entries
            .iter()
            .take(stack.size)
            .filter(|e| e.segment == missed.segment)
            .filter_map(|e| {
                (missed.level as usize + 1..=self.page_sizes.top())
                    .find(|&level| (e.unit ^ missed.unit) >> self.page_sizes.shift(level) == 0)
            })
            .min();
        for level in lowest.into_iter().flat_map(|lowest| lowest..=self.page_sizes.top()) {
            let at = self.index(missed, level);
            self.segments[missed.segment as usize].charges[at].0 += 1;
        }
    }

    fn charge_capacity(&mut self, tlb: usize, missed: Entry, depth: usize) {
        let needed = depth + 2 - self.stacks[tlb].size;
        let Some(lowest) =
            (1..=self.page_sizes.top()).find(|&level| 1usize << self.page_sizes.shift(level) >= needed)
        else {
            return;
        };
        for at in 0..depth {
            self.segments[self.stacks[tlb].entries[at].segment as usize].tally += 1;
        }
        for count in [true, false] {
            for at in 0..depth {
                let above = self.stacks[tlb].entries[at];
                if (self.segments[above.segment as usize].tally as usize) < needed {
                    continue;
                }
                for level in lowest.max(above.level as usize + 1)..=self.page_sizes.top() {
                    if (above.unit ^ missed.unit) >> self.page_sizes.shift(level) == 0 {
                        break;
                    }
                    let node = self.index(above, level);
                    let segment = &mut self.segments[above.segment as usize];
                    let coverage = &mut segment.coverage[node];
                    if !count {
                        *coverage = 0;
                        continue;
                    }
                    *coverage += 1;
                    if *coverage as usize == needed {
                        segment.charges[node].1 += 1;
                    }
                }
            }
        }
        for at in 0..depth {
            self.segments[self.stacks[tlb].entries[at].segment as usize].tally = 0;
        }
    }

    /// Returns every superpage that was charged: prefetch and capacity.
    fn charges(&self) -> Vec<(Node, u64, u64)> {
        let mut all = Vec::new();
        for segment in &self.segments {
            for level in 1..=self.page_sizes.top() {
                for number in 0..self.page_sizes.nodes(level) {
                    let (prefetch, capacity) = segment.charges[self.starts[level] + number];
                    if prefetch + capacity > 0 {
                        let first = (segment.number << self.page_sizes.shift(self.page_sizes.top()))
                            | number << self.page_sizes.shift(level);
                        all.push(((first, level), prefetch, capacity));
                    }
                }
            }
        }
        all
    }
}
