//! Tests that deferred counts equal counts that are updated at every miss, and that owed charges stay within their bounds.

use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::prefetch_charge;
use crate::testing::page_sizes;

/// A superpage: its shift, and its number among those of its size.
type Node = (u32, usize);

/// A segment, and the counts that it should have.
#[derive(Debug)]
struct Both {
    rules: Rules,
    blocks: Vec<Block>,
    nodes: Vec<super::Node>,
    thresholds: Vec<u32>,
    counts: BTreeMap<Node, u32>,
}

impl Both {
    fn new(thresholds: Vec<u32>) -> Self {
        let top = thresholds.len() as u32 - 1;
        let rules =
            Rules::new(&page_sizes(12..=12 + top), 0x1234, |shift| thresholds.get(shift as usize).copied());
        // `open` must initialize memory of any content.
        let mut both = Self {
            rules,
            blocks: vec![[0x5a5a; block::WORDS]; 1 << (top - block::SHIFT)],
            nodes: vec![[0x5a5a; 4]; 1 << (top - block::SHIFT)],
            thresholds,
            counts: BTreeMap::new(),
        };
        both.segment().open();
        both
    }

    fn segment(&mut self) -> Segment<'_> {
        Segment { rules: &self.rules, blocks: &mut self.blocks, nodes: &mut self.nodes }
    }

    fn top(&self) -> u32 {
        self.rules.top
    }

    /// Adds `charges` to the expected counts of the superpages of `1 << from` units and more around `unit`. Returns the
    /// shifts of those that are at their thresholds.
    fn count(&mut self, unit: usize, from: u32, charges: u32) -> u32 {
        (from..=self.top())
            .filter(|&shift| {
                let count = self.counts.entry((shift, unit >> shift)).or_default();
                *count = self.thresholds[shift as usize].min(*count + charges);
                *count == self.thresholds[shift as usize]
            })
            .fold(0, |reached, shift| reached | 1 << shift)
    }

    /// Charges a miss in the same steps as the ledger.
    fn charge(&mut self, unit: usize, from: u32) -> Result<(), TestCaseError> {
        let reached = self.count(unit, from, 1);
        let number = unit >> block::SHIFT;
        self.segment().prepare(number);
        if from > block::SHIFT {
            let found = self.segment().pay(number, from, 1);
            prop_assert_eq!(found, reached);
        } else if prefetch_charge::charge(&mut self.blocks[number], from - 1, unit) {
            let found = self.segment().account(unit, from);
            prop_assert_eq!(found, reached);
        } else {
            prop_assert_eq!(reached, 0, "{} is not due", number);
        }
        Ok(())
    }

    fn restart(&mut self, unit: usize, shift: u32, less: u32) -> Result<(), TestCaseError> {
        let (first, end) = (unit >> shift << shift, ((unit >> shift) + 1) << shift);
        for number in first >> block::SHIFT..end.div_ceil(block::UNITS) {
            self.segment().prepare(number);
        }
        let (blocks, nodes) = (self.blocks.clone(), self.nodes.clone());
        self.segment().restart(unit, shift, less);
        self.counts.retain(|&(part, number), _| part > shift || number >> (shift - part) != unit >> shift);
        for larger in shift + 1..=self.top() {
            if let Some(count) = self.counts.get_mut(&(larger, unit >> larger)) {
                *count = count.saturating_sub(less);
            }
        }
        // A change that concerns one block leaves the other blocks and the nodes alone.
        if less == 0 && shift <= block::SHIFT {
            let own = unit >> block::SHIFT;
            let others = (0..blocks.len()).filter(|&number| number != own);
            prop_assert!(others.clone().all(|number| blocks[number] == self.blocks[number]));
            prop_assert_eq!(&nodes, &self.nodes);
            prop_assert_eq!(block::owed(&blocks[own]), block::owed(&self.blocks[own]));
        }
        Ok(())
    }

    fn read(&mut self, (shift, number): Node) -> u32 {
        let unit = number << shift;
        if shift > block::SHIFT {
            return self.segment().exact(unit >> block::SHIFT, shift);
        }
        block::counts(&self.blocks[unit >> block::SHIFT])[block::number(shift, unit)].into()
    }

    /// Checks that no quota is larger than that of the node above, that nothing owes more than its quota allows, and that
    /// the charges owed below a node cannot make its count reach the threshold.
    fn check(&self) -> Result<(), TestCaseError> {
        let most = quota(&self.nodes[0]);
        prop_assert!((1..256).contains(&most) && most * 2 * (1 << self.top() >> block::SHIFT) <= 1 << 17);
        for (number, node) in self.nodes.iter().enumerate().skip(1) {
            let (quota, start) = (quota(node), u32::from(node[1] & 0xff));
            prop_assert!(
                (1..=super::quota(&self.nodes[number >> 1])).contains(&quota),
                "{} {:?}",
                number,
                node
            );
            prop_assert!(
                (1..=quota).contains(&start) && (1..=start).contains(&node[0].into()),
                "{} {:?}",
                number,
                node
            );
            let shift = self.top() - number.ilog2();
            let below = (2 << (shift - block::SHIFT)) - 2;
            let hidden = start - 1 + (quota - 1) * below;
            prop_assert!(
                quota == 1 || count(node) + hidden < self.thresholds[shift as usize],
                "{} {:?}",
                number,
                node
            );
        }
        for (number, block) in self.blocks.iter().enumerate().filter(|(_, block)| block::left(block) > 0) {
            let most = quota(&self.nodes[(self.blocks.len() + number) >> 1]) as u16;
            prop_assert!(block::owed(block) + block::left(block) <= most, "{} {:?}", number, block);
            prop_assert_eq!(block[block::POPULATED], 0x1234);
        }
        Ok(())
    }
}

/// Thresholds by shift: either proportional to the size, as in the paper, or arbitrary.
fn thresholds() -> impl Strategy<Value = Vec<u32>> {
    let any = prop_oneof![1u32..30, 1u32..3000, 60_000u32..300_000];
    let paper =
        (1u32..200, 4usize..=11).prop_map(|(pair, top)| (0..=top).map(|shift| pair << shift >> 1).collect());
    let any = prop::collection::vec(any, 5..=12).prop_map(|mut all: Vec<u32>| {
        all.iter_mut().take(5).for_each(|threshold| *threshold = (*threshold).min(60_000));
        all
    });
    prop_oneof![paper, any]
        .prop_map(|all: Vec<u32>| all.into_iter().map(|threshold| threshold.max(1)).collect())
}

#[derive(Clone, Debug)]
enum Event {
    /// Single misses: the unit, the shift of the smallest charged superpage, and the number of misses.
    Charge(usize, u32, u32),
    /// Many charges at once to the superpages larger than a block: the unit, the smallest shift, and the number of charges.
    Pay(usize, u32, u32),
    Restart(usize, u32, u32),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let unit = || prop_oneof![0usize..40, any::<usize>()];
    prop::collection::vec(
        prop_oneof![
            20 => (unit(), any::<u32>(), 1u32..200).prop_map(|(unit, from, times)| Event::Charge(unit, from, times)),
            1 => (unit(), any::<u32>(), 1u32..60_000).prop_map(|(unit, from, times)| Event::Pay(unit, from, times)),
            1 => (unit(), any::<u32>(), prop_oneof![Just(0), 0u32..300]).prop_map(|(unit, shift, less)| Event::Restart(unit, shift, less)),
        ],
        1..60,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// After every miss, the superpages reported as at their thresholds are those of exact counting, and at the end every
    /// count is exact.
    #[test]
    fn deferred_counts_are_exact(thresholds in thresholds(), events in events()) {
        let mut both = Both::new(thresholds);
        let (top, units) = (both.top(), 1 << both.top());
        both.check()?;
        for event in events {
            match event {
                Event::Charge(unit, from, times) => {
                    for _ in 0..times {
                        both.charge(unit % units, 1 + from % top)?;
                    }
                }
                Event::Pay(unit, from, charges) if top > block::SHIFT => {
                    let from = block::SHIFT + 1 + from % (top - block::SHIFT);
                    let reached = both.count(unit % units, from, charges);
                    prop_assert_eq!(both.segment().pay((unit % units) >> block::SHIFT, from, charges), reached);
                }
                Event::Pay(..) => {}
                Event::Restart(unit, shift, less) => both.restart(unit % units, 1 + shift % top, less)?,
            }
            both.check()?;
        }
        for shift in 1..=top {
            for number in 0..units >> shift {
                let expected = both.counts.get(&(shift, number)).copied().unwrap_or(0);
                prop_assert_eq!(both.read((shift, number)), expected, "{} {}", shift, number);
            }
        }
    }

    /// A quota is the largest at which the blocks and nodes below a node together owe at most half of what the node lacks,
    /// and not larger than the quota above.
    #[test]
    fn quotas_are_as_large_as_can_be(threshold in 1u32..400_000, counted in 0u32..400_000, shift in 5u32..=18, above in 1u32..256) {
        let mut node = super::Node::default();
        set(&mut node, counted);
        choose(&mut node, threshold, shift, above);
        prop_assert_eq!((count(&node), owed(&node)), (counted, 0));
        let lacking = threshold.saturating_sub(counted);
        let all_owe = |quota: u32| (quota - 1) * 2 * (1 << shift >> block::SHIFT);
        let largest = (1..=above).rfind(|&quota| quota == 1 || 2 * all_owe(quota) < lacking);
        prop_assert_eq!(Some(quota(&node)), largest);
        let left = lacking.saturating_sub(all_owe(quota(&node))).clamp(1, quota(&node));
        prop_assert_eq!(u32::from(node[0]), left);
    }
}

/// New quotas are chosen exactly when both blocks together could owe all charges that the node lacks: six times in a
/// thousand charges.
#[test]
fn quotas_shrink_as_a_count_grows() {
    let mut both = Both::new(vec![1, 50_000, 50_000, 50_000, 50_000, 1000]);
    let (mut chosen, mut old) = (0, quota(&both.nodes[1]));
    assert_eq!(old, 1 + 999 / 8);
    for charged in 1..1000 {
        assert_eq!(both.segment().pay(charged % 2, 5, 1), 0);
        let quota = quota(&both.nodes[1]);
        if quota != old {
            assert_eq!((1000 - charged as u32, quota), (4 * (old - 1), 1 + (4 * (old - 1) - 1) / 8));
            (chosen, old) = (chosen + 1, quota);
        }
    }
    assert_eq!((chosen, old), (6, 1));
    assert_eq!(both.segment().pay(0, 5, 1), 1 << 5);
    assert_eq!(both.segment().pay(0, 5, 1), 1 << 5);
}

/// A new block may owe as many charges as the tree allows, so few misses have to compute sums.
#[test]
fn fresh_accounts() {
    let mut both = Both::new((0..=11).map(|shift| 50 << shift).collect());
    both.segment().prepare(77);
    let least = 100;
    assert_eq!(both.segment().quota_above(77), quota(&both.nodes[(128 + 77) / 2]) as u16);
    assert_eq!(block::left(&both.blocks[77]), least.min(both.segment().quota_above(77)));
    assert!(both.segment().quota_above(77) > 50);
    // `prepare` does not initialize a block twice.
    assert!(!prefetch_charge::charge(&mut both.blocks[77], 0, 77 * block::UNITS));
    let before = both.blocks[77];
    both.segment().prepare(77);
    assert_eq!(both.blocks[77], before);
}

/// `open` gives each node the largest quota for its size, because no superpage of the segment has been charged.
#[test]
fn what_a_fresh_segment_may_owe() {
    let both = Both::new((0..=10).map(|shift| 1 << (2 * shift)).collect());
    let all = both.blocks.len();
    for shift in (block::SHIFT + 1..=both.top()).rev() {
        for number in (0..all << block::SHIFT).step_by(1 << shift) {
            let at = both.rules.node(number >> block::SHIFT, shift);
            let mut node = super::Node::default();
            let above = if at == 1 { u8::MAX.into() } else { quota(&both.nodes[at >> 1]) };
            choose(&mut node, 1 << (2 * shift), shift, above);
            assert_eq!(both.nodes[at], node, "{at}");
        }
    }
}
