//! The naive model: true LRU TLBs whose contents are scanned on every miss, charges in hash maps, and beside them
//! Appendix A's `tlbcount` with its increments and decrements done one by one.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

pub(crate) mod reserved;
pub(crate) mod world;

use reserved::Reserved;
use tlbkit_addr::{Pages, Vpn};
use tlbkit_superpage::{
    Action, ApproxOnline, Asap, Asap464, Miss, Online, OnlineMemory, PageSizes, Policy, PolicyMemory,
    SegmentMemory, Setup, Slot, StackEntry, Superpage, Thrift, Tlb,
};

/// A node: level, and number of the superpage at that level in the whole address space.
pub(crate) type Node = (usize, usize);

pub(crate) struct Arena {
    directory: Vec<Slot>,
    bits: Vec<usize>,
    counters: Vec<u16>,
}

impl Arena {
    pub(crate) fn new(footprint: SegmentMemory, segments: usize) -> Self {
        Self {
            directory: vec![Slot::default(); segments * SegmentMemory::SLOTS],
            // What the memory holds must not matter.
            bits: vec![usize::MAX / 3; segments * footprint.bits],
            counters: vec![0xa5a5; segments * footprint.counters],
        }
    }

    pub(crate) fn memory(&mut self) -> PolicyMemory<'_> {
        PolicyMemory { directory: &mut self.directory, bits: &mut self.bits, counters: &mut self.counters }
    }

    pub(crate) fn leak(footprint: SegmentMemory, segments: usize) -> PolicyMemory<'static> {
        Box::leak(Box::new(Self::new(footprint, segments))).memory()
    }
}

/// A miss in the data TLB that evicts nothing.
pub(crate) fn miss(page: usize) -> Miss {
    Miss { tlb: Tlb::Data, page: Vpn::new(page), evicted: None, now: 0 }
}

pub(crate) fn approx(setup: &Setup, segments: usize) -> ApproxOnline<'static> {
    ApproxOnline::new(setup, Arena::leak(ApproxOnline::segment_memory(setup).unwrap(), segments)).unwrap()
}

pub(crate) fn thrift(setup: &Setup, segments: usize) -> Thrift<'static> {
    Thrift::new(setup, Arena::leak(Thrift::segment_memory(setup).unwrap(), segments)).unwrap()
}

pub(crate) fn asap(page_sizes: PageSizes, segments: usize) -> Asap<'static> {
    Asap::new(page_sizes, Arena::leak(Asap::segment_memory(&page_sizes), segments))
}

pub(crate) fn asap464(page_sizes: PageSizes, segments: usize) -> Asap464<'static> {
    Asap464::new(page_sizes, Arena::leak(Asap464::segment_memory(&page_sizes), segments))
}

pub(crate) fn online(setup: &Setup, sizes: [usize; 2], segments: usize) -> Online<'static> {
    let (prefetch, capacity) = Online::segment_memory(setup).unwrap();
    let stack =
        |size| Box::leak(vec![StackEntry::default(); Online::stack_len(setup, size)].into_boxed_slice());
    let memory = OnlineMemory {
        prefetch: Arena::leak(prefetch, segments),
        capacity: Arena::leak(capacity, segments),
        stacks: [stack(sizes[0]), stack(sizes[1])],
    };
    Online::new(setup, sizes, memory).unwrap()
}

/// Two TLBs under true LRU, their LRU stacks beyond, and what is mapped how.
pub(crate) struct Machine {
    pub(crate) page_sizes: PageSizes,
    pub(crate) sizes: [usize; 2],
    /// LRU stacks, most recent first; an entry with `true` is resident.
    pub(crate) stacks: [Vec<(Node, bool)>; 2],
    /// Superpages promoted, largest mapping of a unit wins.
    pub(crate) mapped: Vec<Node>,
    shift0: usize,
}

pub(crate) struct Missed {
    pub(crate) node: Node,
    pub(crate) evicted: Option<Node>,
    /// The stack before the refill.
    pub(crate) before: Vec<(Node, bool)>,
}

impl Machine {
    pub(crate) fn new(page_sizes: PageSizes, sizes: [usize; 2]) -> Self {
        let shift0 = page_sizes.size(0).unwrap().pages(page_sizes.page()).unwrap().trailing_zeros() as usize;
        Self { page_sizes, sizes, stacks: [Vec::new(), Vec::new()], mapped: Vec::new(), shift0 }
    }

    pub(crate) fn vpn(&self, (level, number): Node) -> Vpn {
        Vpn::new(number << self.page_sizes.shift(level) << self.shift0)
    }

    pub(crate) fn superpage(&self, node: Node) -> Superpage {
        Superpage { first: self.vpn(node), size: self.page_sizes.size(node.0).unwrap() }
    }

    pub(crate) fn node(&self, range: Superpage) -> Node {
        let level = self.page_sizes.level(range.size).unwrap();
        (level, range.first.get() >> self.shift0 >> self.page_sizes.shift(level))
    }

    pub(crate) fn up(&self, node: Node, level: usize) -> Node {
        (level, node.1 >> (self.page_sizes.shift(level) - self.page_sizes.shift(node.0)))
    }

    pub(crate) fn holds(&self, big: Node, small: Node) -> bool {
        big.0 >= small.0 && self.up(small, big.0) == big
    }

    /// The mapping of a page.
    pub(crate) fn map(&self, page: Vpn) -> Node {
        let unit = (0, page.get() >> self.shift0);
        self.mapped.iter().copied().filter(|&node| self.holds(node, unit)).max().unwrap_or(unit)
    }

    /// References a page; `Some` if it missed, after the refill.
    pub(crate) fn touch(&mut self, tlb: usize, page: Vpn) -> Option<Missed> {
        let node = self.map(page);
        let size = self.sizes[tlb];
        let stack = &mut self.stacks[tlb];
        let at = stack.iter().position(|&(n, _)| n == node);
        let before = stack.clone();
        let hit = at.is_some_and(|at| stack[at].1);
        if let Some(at) = at {
            stack.remove(at);
        }
        stack.insert(0, (node, true));
        if hit {
            return None;
        }
        let resident = stack.iter().filter(|e| e.1).count();
        let evicted = (resident > size).then(|| {
            let victim = stack.iter().rposition(|e| e.1).unwrap();
            stack[victim].1 = false;
            stack[victim].0
        });
        // ONLINE's stack has an end.
        stack.truncate(size + self.page_sizes.units_per_segment());
        Some(Missed { node, evicted, before })
    }

    pub(crate) fn promote(&mut self, node: Node) {
        for tlb in 0..2 {
            let inside: Vec<_> = self.stacks[tlb].iter().filter(|e| self.holds(node, e.0)).copied().collect();
            if inside.is_empty() {
                continue;
            }
            let mut stack = std::mem::take(&mut self.stacks[tlb]);
            stack.retain(|e| !self.holds(node, e.0));
            let resident = inside.iter().any(|e| e.1);
            let at = if resident { 0 } else { stack.iter().rposition(|e| e.1).map_or(0, |at| at + 1) };
            stack.insert(at, (node, resident));
            self.stacks[tlb] = stack;
        }
        self.mapped.retain(|&old| {
            old.0 > node.0
                || old.1 >> (self.page_sizes.shift(node.0) - self.page_sizes.shift(old.0)) != node.1
        });
        self.mapped.push(node);
    }

    /// Splits the superpage around a page and flushes its entries.
    pub(crate) fn demote(&mut self, page: Vpn) -> Option<Node> {
        let node = self.map(page);
        if node.0 == 0 {
            return None;
        }
        self.mapped.retain(|&old| old != node);
        for stack in &mut self.stacks {
            stack.retain(|e| e.0 != node);
        }
        Some(node)
    }

    /// A TLB drops an entry, other than for a refill.
    pub(crate) fn drop_entry(&mut self, tlb: usize, node: Node) {
        let stack = &mut self.stacks[tlb];
        stack.retain(|e| e.0 != node);
        let first = stack.iter().filter(|e| e.1).count();
        stack.insert(first, (node, false));
    }

    pub(crate) fn flush(&mut self, tlb: usize) {
        for entry in &mut self.stacks[tlb] {
            entry.1 = false;
        }
    }

    /// Nothing in a superpage is mapped any longer.
    pub(crate) fn unmap(&mut self, whole: Node) {
        let shift = self.page_sizes.shift(whole.0);
        self.unmap_units(whole.1 << shift..=(whole.1 << shift) + ((1 << shift) - 1));
    }

    /// Nothing in these units is, which cut no mapping in two.
    pub(crate) fn unmap_units(&mut self, units: RangeInclusive<usize>) {
        let page_sizes = self.page_sizes;
        let outside = |node: Node| !units.contains(&(node.1 << page_sizes.shift(node.0)));
        for stack in &mut self.stacks {
            stack.retain(|e| outside(e.0));
        }
        self.mapped.retain(|&node| outside(node));
    }

    /// The units from a page on, so many more at most and not all of its segment, and a page of each mapping that these
    /// cut in two.
    pub(crate) fn part(&self, page: Vpn, more: usize) -> Option<(RangeInclusive<usize>, Vec<Vpn>)> {
        let segment = 1 << self.page_sizes.shift(self.page_sizes.top());
        let first = page.get() >> self.shift0;
        let last = first.saturating_add(more).min(first | (segment - 1));
        let cut = [first, last].into_iter().filter(|&unit| {
            let (level, number) = self.map(self.vpn((0, unit)));
            let shift = self.page_sizes.shift(level);
            number << shift < first || (number << shift) + ((1 << shift) - 1) > last
        });
        (last - first + 1 < segment).then(|| (first..=last, cut.map(|unit| self.vpn((0, unit))).collect()))
    }

    /// The pages of units.
    pub(crate) fn pages(&self, units: &RangeInclusive<usize>) -> Pages {
        let last = self.superpage((0, *units.end())).pages(self.page_sizes.page()).last();
        Pages::new(self.vpn((0, *units.start())), last).unwrap()
    }

    /// What is told of a miss to an entry that is resident: it was not as the access wanted it.
    pub(crate) fn again(&self, tlb: usize, page: Vpn) -> Option<Missed> {
        let node = self.map(page);
        self.resident(tlb).any(|e| e == node).then(|| Missed {
            node,
            evicted: None,
            before: self.stacks[tlb].clone(),
        })
    }

    /// `tlbcount` as the documentation defines it.
    pub(crate) fn tlbcount(&self, tlb: usize, node: Node) -> i32 {
        let mapped = self.map(self.vpn(node)).0;
        if mapped > node.0 {
            return -1;
        }
        let mut components: Vec<_> = self
            .resident(tlb)
            .filter(|&e| self.holds(node, e))
            .map(|e| if e == node { e } else { self.up(e, node.0 - 1) })
            .collect();
        components.sort_unstable();
        components.dedup();
        components.len() as i32
    }

    pub(crate) fn resident(&self, tlb: usize) -> impl Iterator<Item = Node> + '_ {
        self.stacks[tlb].iter().filter(|e| e.1).map(|e| e.0)
    }
}

/// APPROX-ONLINE, ONLINE or THRIFT by definition: scans on every miss, counts without bounds, everything in maps.
pub(crate) struct ByScan {
    pub(crate) prefetch: HashMap<Node, u64>,
    pub(crate) capacity: HashMap<Node, u64>,
    /// What THRIFT knows beside.
    pub(crate) reserved: Option<Reserved>,
    /// Segments without memory for their counts.
    pub(crate) uncounted: HashSet<Node>,
    online: bool,
    thresholds: Vec<(f64, f64)>,
}

impl ByScan {
    pub(crate) fn new(setup: &Setup, online: bool) -> Self {
        let thresholds = (0..setup.page_sizes.levels())
            .map(|level| {
                let kb = setup.page_sizes.size(level).unwrap().bytes() as f64 / 1024.0;
                let r = f64::from(setup.costs.r_per_kb) * kb;
                (r * f64::from(setup.costs.prefetch) / 1000.0, r * f64::from(setup.costs.capacity) / 1000.0)
            })
            .collect();
        Self {
            prefetch: HashMap::new(),
            capacity: HashMap::new(),
            reserved: None,
            uncounted: HashSet::new(),
            online,
            thresholds,
        }
    }

    pub(crate) fn thrift(setup: &Setup) -> Self {
        Self { reserved: Some(Reserved::new(setup)), ..Self::new(setup, false) }
    }

    fn counts(&self, machine: &Machine, node: Node) -> bool {
        !self.uncounted.contains(&machine.up(node, machine.page_sizes.top()))
    }

    /// Charges a miss and returns the candidate, if there is one.
    pub(crate) fn miss(&mut self, machine: &Machine, tlb: usize, missed: &Missed) -> Option<Node> {
        let top = machine.page_sizes.top();
        let mut candidates = Vec::new();
        for level in missed.node.0 + 1..=top {
            let node = machine.up(missed.node, level);
            if self.counts(machine, node)
                && missed.before.iter().any(|&(e, resident)| resident && machine.holds(node, e))
            {
                let threshold = self.threshold(level);
                let reserved = self.reserved.as_ref();
                let (most, enough) = reserved
                    .map_or((threshold, threshold), |reserved| reserved.price(machine, node, threshold));
                let count = self.prefetch.entry(node).or_default();
                *count = most.min(*count + 1);
                if *count >= enough {
                    candidates.push((level, 0, node));
                }
            }
        }
        if self.online
            && let Some(depth) = missed.before.iter().position(|&e| e == (missed.node, false))
        {
            let needed = (depth + 2).saturating_sub(machine.sizes[tlb]).max(2);
            let mut covered: HashMap<Node, usize> = HashMap::new();
            for &(above, _) in &missed.before[..depth] {
                for level in above.0 + 1..=top {
                    let node = machine.up(above, level);
                    if !machine.holds(node, missed.node) {
                        *covered.entry(node).or_default() += 1;
                    }
                }
            }
            covered.retain(|&node, n| *n >= needed && self.counts(machine, node));
            for node in covered.into_keys() {
                let enough = self.enough(self.thresholds[node.0].1);
                let count = self.capacity.entry(node).or_default();
                *count = enough.min(*count + 1);
                if *count == enough {
                    candidates.push((node.0, 1 + node.1, node));
                }
            }
        }
        candidates.into_iter().min().map(|(_, _, node)| node)
    }

    /// The count that reaches a threshold or, for ONLINE, exceeds it; counts stop there.
    fn enough(&self, threshold: f64) -> u64 {
        if self.online { threshold.floor() as u64 + 1 } else { threshold.ceil() as u64 }
    }

    /// The prefetch threshold of a level, as a count of misses.
    pub(crate) fn threshold(&self, level: usize) -> u64 {
        self.enough(self.thresholds[level].0)
    }

    pub(crate) fn promoted(&mut self, machine: &Machine, node: Node) {
        let own = self.prefetch.get(&node).copied().unwrap_or(0);
        self.pay(machine, node, if self.online { own } else { self.threshold(node.0) });
        self.capacity.clear();
    }

    /// Takes charges off the larger superpages around a node, and all off the node and its parts.
    pub(crate) fn pay(&mut self, machine: &Machine, node: Node, less: u64) {
        for level in node.0 + 1..=machine.page_sizes.top() {
            if let Some(count) = self.prefetch.get_mut(&machine.up(node, level)) {
                *count = count.saturating_sub(less);
            }
        }
        self.restart(machine, node);
    }

    pub(crate) fn restart(&mut self, machine: &Machine, node: Node) {
        self.prefetch.retain(|&n, _| !machine.holds(node, n));
    }

    /// A superpage cannot be one mapping: its charges begin anew.
    pub(crate) fn not_here(&mut self, node: Node) {
        self.prefetch.remove(&node);
        self.capacity.remove(&node);
    }

    pub(crate) fn unmap(&mut self, machine: &Machine, whole: Node) {
        if let Some(reserved) = &mut self.reserved {
            reserved.unmap(machine, whole);
        }
        self.restart(machine, whole);
        self.capacity.retain(|&n, _| !machine.holds(whole, n));
    }
}

/// Refusals for want of memory: the size that was refused and everything larger waits, twice as long each time, until
/// that size or a larger one is granted.
#[derive(Default)]
pub(crate) struct Waiting {
    /// By the level that was refused: how long the wait is, and how many misses are left of it.
    refused: HashMap<usize, (u64, u64)>,
}

impl Waiting {
    pub(crate) fn miss(&mut self) {
        for (_, left) in self.refused.values_mut() {
            *left = left.saturating_sub(1);
        }
    }

    pub(crate) fn allows(&self, level: usize) -> bool {
        self.refused.iter().all(|(&refused, &(_, left))| level < refused || left == 0)
    }

    pub(crate) fn refused(&mut self, level: usize, threshold: u64) {
        let (wait, _) = self.refused.get(&level).copied().unwrap_or_default();
        let wait = (2 * wait).max(threshold);
        self.refused.insert(level, (wait, wait));
    }

    pub(crate) fn granted(&mut self, level: usize) {
        self.refused.retain(|&refused, _| refused > level);
    }
}

/// Appendix A's `tlbcount`, done by its increments and decrements under the project's readings.
#[derive(Default)]
pub(crate) struct Counts(pub(crate) HashMap<Node, i32>);

impl Counts {
    fn at(&mut self, node: Node) -> &mut i32 {
        self.0.entry(node).or_default()
    }

    pub(crate) fn miss(&mut self, machine: &Machine, missed: &Missed) {
        *self.at(missed.node) = 1;
        for level in missed.node.0 + 1..=machine.page_sizes.top() {
            let count = self.at(machine.up(missed.node, level));
            *count += 1;
            if *count > 1 {
                break;
            }
        }
        if let Some(evicted) = missed.evicted {
            self.evict(machine, evicted);
        }
    }

    pub(crate) fn evict(&mut self, machine: &Machine, evicted: Node) {
        *self.at(evicted) = 0;
        for level in evicted.0 + 1..=machine.page_sizes.top() {
            let count = self.at(machine.up(evicted, level));
            let above_one = *count > 1;
            *count -= 1;
            if above_one {
                break;
            }
        }
    }

    fn below(machine: &Machine, node: Node) -> Vec<Node> {
        (0..node.0)
            .flat_map(|level| {
                let shift = machine.page_sizes.shift(node.0) - machine.page_sizes.shift(level);
                (node.1 << shift..(node.1 + 1) << shift).map(move |n| (level, n))
            })
            .collect()
    }

    pub(crate) fn promoted(&mut self, machine: &Machine, node: Node) {
        for below in Self::below(machine, node) {
            *self.at(below) = -1;
        }
        let count = self.at(node);
        *count = i32::from(*count > 0);
    }

    pub(crate) fn demoted(&mut self, machine: &Machine, node: Node) {
        if *self.at(node) > 0 {
            self.evict(machine, node);
        }
        for below in Self::below(machine, node) {
            *self.at(below) = 0;
        }
    }
}

pub(crate) const TLBS: [Tlb; 2] = [Tlb::Data, Tlb::Instruction];

/// Drives a policy with one reference; returns the promotion it asked for.
pub(crate) fn step(
    policy: &mut dyn Policy,
    machine: &Machine,
    tlb: usize,
    page: Vpn,
    missed: &Missed,
    now: u64,
) -> Option<Superpage> {
    let evicted = missed.evicted.map(|node| machine.vpn(node));
    match policy.on_miss(Miss { tlb: TLBS[tlb], page, evicted, now }) {
        Some(Action::Promote { range, .. }) => Some(range),
        Some(other) => panic!("{other:?}"),
        None => None,
    }
}

pub(crate) fn all_pages() -> Pages {
    Pages::new(Vpn::new(0), Vpn::new(usize::MAX)).unwrap()
}
