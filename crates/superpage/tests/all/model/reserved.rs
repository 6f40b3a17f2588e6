//! What THRIFT knows beside charges, in sets: which pages were touched, and which regions have no reservation.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use tlbkit_addr::PageSize;
use tlbkit_superpage::Setup;

use super::{Machine, Node};

pub(crate) struct Reserved {
    /// The level of the regions: 64 KB or the next smaller size, of 16 units at most. 0 if there is none.
    pub(crate) level: usize,
    /// Units that were touched.
    populated: HashSet<Node>,
    /// Regions without a reservation.
    closed: HashSet<Node>,
    /// A promotion without a copy has been done: holes have their price from then on.
    frugal: bool,
    /// The price of a superpage that is all holes, by level: its R, or its threshold if that is more.
    whole: Vec<u64>,
}

impl Reserved {
    pub(crate) fn new(setup: &Setup) -> Self {
        let page_sizes = setup.page_sizes;
        let size = |level: usize| page_sizes.size(level).unwrap();
        let is_region = |&level: &usize| size(level) <= PageSize::K64 && page_sizes.shift(level) <= 4;
        let thousandths = u64::from(setup.costs.prefetch.max(1000));
        let price = |level| {
            let r = u64::from(setup.costs.r_per_kb) * size(level).bytes() as u64;
            (r * thousandths).div_ceil(1024 * 1000)
        };
        Self {
            level: (1..page_sizes.levels()).rfind(is_region).unwrap_or(0),
            populated: HashSet::new(),
            closed: HashSet::new(),
            frugal: false,
            whole: (0..page_sizes.levels()).map(price).collect(),
        }
    }

    /// The region around a unit, if there are regions.
    pub(crate) fn region(&self, machine: &Machine, unit: Node) -> Option<Node> {
        (self.level > 0).then(|| machine.up(unit, self.level))
    }

    /// Whether it lies in one region, and that is reserved.
    pub(crate) fn in_place(&self, machine: &Machine, node: Node) -> bool {
        node.0 <= self.level && !self.closed.contains(&machine.up(node, self.level))
    }

    fn holes(&self, machine: &Machine, node: Node) -> u64 {
        let touched = self.populated.iter().filter(|&&unit| machine.holds(node, unit)).count();
        (1 << machine.page_sizes.shift(node.0)) - touched as u64
    }

    /// A page was touched that misses. Returns the largest superpage around it that is full with it, reserved, and larger
    /// than what maps it.
    pub(crate) fn touch(&mut self, machine: &Machine, unit: Node) -> Option<Node> {
        if self.level == 0 || !self.populated.insert(unit) {
            return None;
        }
        let mut around = (1..=self.level).rev().map(|level| machine.up(unit, level));
        let full = around.find(|&node| self.holes(machine, node) == 0 && self.in_place(machine, node))?;
        (full.0 > machine.map(machine.vpn(unit)).0).then_some(full)
    }

    /// Where the count of a superpage stops, and what it takes to be promoted.
    pub(crate) fn price(&self, machine: &Machine, node: Node, threshold: u64) -> (u64, u64) {
        if !self.frugal || self.level == 0 {
            return (threshold, threshold);
        }
        let (whole, units) = (self.whole[node.0], 1 << machine.page_sizes.shift(node.0));
        let of_holes = |price: u64| price * self.holes(machine, node) / units;
        let price = if node.0 <= self.level {
            threshold.max(of_holes(whole))
        } else {
            threshold + of_holes(whole - threshold)
        };
        (whole, price)
    }

    pub(crate) fn promoted(&mut self, copy: bool) {
        self.frugal |= !copy;
    }

    /// A promotion of what is reserved was refused, or the kernel says so of itself.
    pub(crate) fn broken(&mut self, machine: &Machine, node: Node) {
        if node.0 <= self.level {
            self.closed.insert(machine.up(node, self.level));
        }
    }

    /// What lies where it belongs can be promoted without a copy again when it has been touched again.
    pub(crate) fn demoted(&mut self, machine: &Machine, node: Node) {
        if self.in_place(machine, node) {
            self.populated.retain(|&unit| !machine.holds(node, unit));
        }
    }

    pub(crate) fn unmap(&mut self, machine: &Machine, whole: Node) {
        for set in [&mut self.populated, &mut self.closed] {
            set.retain(|&node| !machine.holds(whole, node));
        }
    }

    pub(crate) fn unmap_units(&mut self, units: &RangeInclusive<usize>) {
        self.populated.retain(|unit| !units.contains(&unit.1));
    }
}
