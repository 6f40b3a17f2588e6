//! The policies that go by population against their definitions: sets of units that were referenced.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

use crate::model::world::refusals;
use crate::model::{Arena, Machine, Node, Waiting, asap, asap464};
use proptest::prelude::*;
use tlbkit_addr::{PageSize, Vpn};
use tlbkit_superpage::{
    Action, Background, Coverage, Miss, PageSizes, Policy, Refusal, Reservation, Runs, Superpage, Tlb,
    Utilization,
};

/// Sizes of less than a word of units, of one, and of several.
fn ladders() -> impl Strategy<Value = PageSizes> {
    prop_oneof![
        Just((12..=20).collect::<Vec<_>>()),
        Just(vec![12, 14, 16, 18, 20]),
        Just(vec![12, 13, 18]),
        Just(vec![12, 16, 21]),
        Just((13..=20).collect()),
    ]
    .prop_map(|shifts| {
        let sizes: Vec<_> = shifts.into_iter().filter_map(PageSize::from_shift).collect();
        PageSizes::new(PageSize::K4, &sizes).unwrap()
    })
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// Misses to so many pages in turn. Promotions that they lead to are refused if it says why.
    Run(Vpn, usize, Option<Refusal>),
    Demotion(Vpn),
    /// A promotion to a level that the policy did not ask for.
    Promotion(Vpn, usize),
    /// The whole segment around a page is unmapped.
    Unmap(Vpn),
    /// So many units after that of a page are unmapped with it. Superpages that these cut in two are demoted before, or
    /// nothing is told of them.
    UnmapPart(Vpn, usize, bool),
    /// Memory is short.
    Pressure,
}

fn events(page_sizes: PageSizes) -> impl Strategy<Value = Vec<Event>> {
    let pages = page_sizes.size(page_sizes.top()).unwrap().pages(PageSize::K4).unwrap();
    let top = (usize::MAX >> PageSize::K4.shift()) / pages;
    let page = move || {
        let at = prop_oneof![0usize..40, 0..pages, (0..pages / 16).prop_map(|n| 16 * n)];
        (prop::sample::select(vec![0, 5, top]), at)
            .prop_map(move |(segment, at)| Vpn::new(segment * pages + at))
    };
    let run = (page(), prop_oneof![1usize..4, 1usize..20, 1usize..300], refusals(100));
    let event = prop_oneof![
        30 => run.prop_map(|(page, len, refuse)| Event::Run(page, len, refuse)),
        2 => page().prop_map(Event::Demotion),
        2 => (page(), any::<usize>()).prop_map(|(page, level)| Event::Promotion(page, level)),
        1 => page().prop_map(Event::Unmap),
        2 => (page(), 0usize..200, any::<bool>())
            .prop_map(|(page, more, told)| Event::UnmapPart(page, more, told)),
        2 => Just(Event::Pressure),
    ];
    prop::collection::vec(event, 1..60)
}

fn histories() -> impl Strategy<Value = (PageSizes, Vec<Event>)> {
    ladders().prop_flat_map(|page_sizes| (Just(page_sizes), events(page_sizes)))
}

/// What was referenced, and what is mapped how.
struct World {
    machine: Machine,
    used: HashSet<Node>,
    touched: HashSet<Node>,
}

impl World {
    fn new(page_sizes: PageSizes) -> Self {
        Self { machine: Machine::new(page_sizes, [0, 0]), used: HashSet::new(), touched: HashSet::new() }
    }

    fn up(&self, page: Vpn, level: usize) -> Node {
        let unit = self.machine.page_sizes.size(0).unwrap().pages(PageSize::K4).unwrap();
        self.machine.up((0, page.get() / unit), level)
    }

    fn segment(&self, page: Vpn) -> Node {
        self.up(page, self.machine.page_sizes.top())
    }

    fn units(&self, node: Node) -> usize {
        1 << self.machine.page_sizes.shift(node.0)
    }

    /// How many units of a superpage were referenced.
    fn count(&self, node: Node) -> usize {
        let units = self.units(node);
        (units * node.1..units * (node.1 + 1)).filter(|&unit| self.used.contains(&(0, unit))).count()
    }

    fn is_full(&self, node: Node) -> bool {
        self.count(node) == self.units(node)
    }

    fn forget(&mut self, node: Node) {
        let machine = &self.machine;
        self.used.retain(|&unit| !machine.holds(node, unit));
    }
}

/// A policy by its definition.
trait Definition {
    const COPY: bool;

    /// Returns what is to be asked for after a miss to a page, which is the first to its unit if it is `new`.
    fn wanted(&mut self, world: &World, page: Vpn, new: bool) -> Option<Node>;

    fn granted(&mut self, world: &mut World, node: Node);

    /// There was no memory.
    fn refused(&mut self, world: &mut World, node: Node);

    fn not_here(&mut self, world: &mut World, node: Node) {
        world.forget(node);
    }

    fn demoted(&mut self, world: &mut World, node: Node) {
        world.forget(node);
    }

    /// Units of a segment are unmapped, or all of them.
    fn unmapped(&mut self, _world: &World, _units: &RangeInclusive<usize>) {}
}

fn drive<D: Definition>(
    policy: &mut dyn Policy,
    definition: &mut D,
    world: &mut World,
    event: Event,
) -> Result<(), TestCaseError> {
    let page_size = PageSize::K4;
    match event {
        Event::Run(first, pages, refuse) => {
            let end = world.machine.superpage(world.segment(first)).pages(page_size).last();
            for page in (first.get()..=end.get()).take(pages).map(Vpn::new) {
                world.touched.insert(world.segment(page));
                let new = world.used.insert(world.up(page, 0));
                let node = definition.wanted(world, page, new);
                let asked = policy.on_miss(Miss { tlb: Tlb::Data, page, evicted: None, now: 0 });
                let range = node.map(|node| world.machine.superpage(node));
                prop_assert_eq!(
                    asked,
                    range.map(|range| Action::Promote { range, copy: D::COPY }),
                    "{}",
                    page
                );
                let Some(node) = node else { continue };
                let range = world.machine.superpage(node);
                match refuse {
                    None => {
                        policy.promoted(range);
                        world.machine.promote(node);
                        definition.granted(world, node);
                    }
                    Some(Refusal::NoMemory) => {
                        policy.refused(range, Refusal::NoMemory);
                        definition.refused(world, node);
                    }
                    Some(Refusal::NotHere) => {
                        policy.refused(range, Refusal::NotHere);
                        definition.not_here(world, node);
                    }
                }
            }
        }
        Event::Demotion(page) => {
            let node = world.machine.demote(page);
            prop_assert_eq!(policy.demote(page), node.map(|node| world.machine.superpage(node)));
            if let Some(node) = node {
                definition.demoted(world, node);
            }
        }
        Event::Promotion(page, level) => {
            let level = 1 + level % world.machine.page_sizes.top();
            if level > world.machine.map(page).0 && world.touched.contains(&world.segment(page)) {
                let node = world.up(page, level);
                policy.promoted(world.machine.superpage(node));
                world.machine.promote(node);
                definition.granted(world, node);
            }
        }
        Event::Unmap(page) => {
            let segment = world.segment(page);
            policy.unmapped(world.machine.superpage(segment).pages(page_size));
            world.machine.unmap(segment);
            world.forget(segment);
            world.touched.remove(&segment);
            let units = world.units(segment);
            definition.unmapped(world, &(units * segment.1..=units * segment.1 + (units - 1)));
        }
        Event::UnmapPart(page, more, told) => {
            let Some((units, cut)) = world.machine.part(page, more) else { return Ok(()) };
            for page in cut {
                if told {
                    drive(policy, definition, world, Event::Demotion(page))?;
                } else if let Some(node) = world.machine.demote(page) {
                    definition.demoted(world, node);
                }
            }
            policy.unmapped(world.machine.pages(&units));
            world.used.retain(|unit| !units.contains(&unit.1));
            definition.unmapped(world, &units);
            world.machine.unmap_units(units);
        }
        Event::Pressure => {}
    }
    Ok(())
}

/// ASAP, or with a level ASAP-4-64.
struct AsSoon {
    half: Option<usize>,
    waiting: Waiting,
}

impl Definition for AsSoon {
    const COPY: bool = true;

    fn wanted(&mut self, world: &World, page: Vpn, _new: bool) -> Option<Node> {
        self.waiting.miss();
        let mut larger = world.machine.map(page).0 + 1..=world.machine.page_sizes.top();
        let level = match self.half {
            Some(level) => {
                let node = world.up(page, level);
                Some(level)
                    .filter(|level| larger.contains(level) && 2 * world.count(node) >= world.units(node))
            }
            None => larger.rfind(|&level| world.is_full(world.up(page, level))),
        };
        level.filter(|&level| self.waiting.allows(level)).map(|level| world.up(page, level))
    }

    fn granted(&mut self, _world: &mut World, node: Node) {
        self.waiting.granted(node.0);
    }

    fn refused(&mut self, world: &mut World, node: Node) {
        self.waiting.refused(node.0, world.units(node) as u64);
    }
}

struct WellUsed {
    level: usize,
    percent: usize,
    /// Misses, one at the least.
    period: u64,
    /// Misses since it last asked.
    misses: u64,
    waiting: Waiting,
}

impl Definition for WellUsed {
    const COPY: bool = true;

    fn wanted(&mut self, world: &World, page: Vpn, _new: bool) -> Option<Node> {
        self.waiting.miss();
        self.misses += 1;
        let node = world.up(page, self.level);
        let asks = self.misses >= self.period
            && world.machine.map(page).0 < self.level
            && self.waiting.allows(self.level)
            && 100 * world.count(node) >= self.percent * world.units(node);
        if asks {
            self.misses = 0;
        }
        asks.then_some(node)
    }

    fn granted(&mut self, _world: &mut World, _node: Node) {
        self.waiting.granted(self.level);
    }

    fn refused(&mut self, _world: &mut World, _node: Node) {
        self.waiting.refused(self.level, self.period);
    }
}

struct Reserved {
    /// The level that is mapped once two of its units are there, or none: what is full is.
    partial: Option<usize>,
    /// When each segment with a reservation was last added to.
    added: HashMap<Node, usize>,
    broken: HashSet<Node>,
    clock: usize,
}

impl Definition for Reserved {
    const COPY: bool = false;

    fn wanted(&mut self, world: &World, page: Vpn, new: bool) -> Option<Node> {
        let segment = world.segment(page);
        if !new || self.broken.contains(&segment) {
            return None;
        }
        self.clock += 1;
        self.added.insert(segment, self.clock);
        let mut larger = world.machine.map(page).0 + 1..=world.machine.page_sizes.top();
        let level = match self.partial {
            Some(level) => {
                Some(level).filter(|level| larger.contains(level) && world.count(world.up(page, *level)) > 1)
            }
            None => larger.rfind(|&level| world.is_full(world.up(page, level))),
        };
        level.map(|level| world.up(page, level))
    }

    fn granted(&mut self, _world: &mut World, _node: Node) {}

    fn refused(&mut self, world: &mut World, node: Node) {
        self.broken.insert(world.machine.up(node, world.machine.page_sizes.top()));
    }

    fn unmapped(&mut self, world: &World, units: &RangeInclusive<usize>) {
        let segment = world.machine.up((0, *units.start()), world.machine.page_sizes.top());
        if units.clone().count() == world.units(segment) {
            self.added.remove(&segment);
            self.broken.remove(&segment);
        }
    }
}

/// Runs of one size; a unit is used if it is there.
struct WholeRuns {
    level: usize,
}

impl Definition for WholeRuns {
    const COPY: bool = false;

    fn wanted(&mut self, world: &World, page: Vpn, new: bool) -> Option<Node> {
        let run = world.up(page, self.level);
        let is_first = new && world.count(run) == 1;
        let unit = world.up(page, 0).1;
        let is_last = unit == world.units(run) * (run.1 + 1) - 1;
        let asks = world.machine.map(page).0 < self.level && (is_first || is_last && world.is_full(run));
        asks.then_some(run)
    }

    fn granted(&mut self, world: &mut World, node: Node) {
        let units = world.units(node);
        world.used.extend((units * node.1..units * (node.1 + 1)).map(|unit| (0, unit)));
    }

    fn refused(&mut self, world: &mut World, node: Node) {
        if world.is_full(node) {
            world.forget(node);
        }
    }

    fn not_here(&mut self, world: &mut World, node: Node) {
        self.refused(world, node);
    }

    fn demoted(&mut self, _world: &mut World, _node: Node) {}
}

/// What missed lately, region by region.
struct Covered {
    level: usize,
    percent: usize,
    period: u64,
    misses: u64,
    /// Units that missed in this period.
    seen: HashSet<Node>,
    /// The average of each region, in 2^15ths.
    averages: HashMap<Node, usize>,
    waiting: Waiting,
}

impl Definition for Covered {
    const COPY: bool = true;

    fn wanted(&mut self, world: &World, page: Vpn, _new: bool) -> Option<Node> {
        self.waiting.miss();
        self.seen.insert(world.up(page, 0));
        self.averages.entry(world.up(page, self.level)).or_default();
        self.misses += 1;
        if !self.misses.is_multiple_of(self.period) {
            return None;
        }
        for (&region, average) in &mut self.averages {
            let seen = self.seen.iter().filter(|&&unit| world.machine.holds(region, unit)).count();
            *average = (*average + seen * (1 << 15) / world.units(region)) / 2;
        }
        self.seen.clear();
        let is_less = |&(_, average): &(&Node, &usize)| *average == 0 || 100 * average < self.percent << 15;
        let found = self.averages.iter().filter(|found| !is_less(found));
        let found = found
            .filter(|(region, _)| world.machine.map(world.machine.superpage(**region).first).0 < self.level);
        let most = found.max_by_key(|&(region, average)| (*average, std::cmp::Reverse(region.1)));
        most.map(|(&region, _)| region).filter(|_| self.waiting.allows(self.level))
    }

    fn granted(&mut self, _world: &mut World, _node: Node) {
        self.waiting.granted(self.level);
    }

    fn refused(&mut self, _world: &mut World, _node: Node) {
        self.waiting.refused(self.level, self.period);
    }

    fn not_here(&mut self, _world: &mut World, node: Node) {
        self.averages.remove(&node);
    }

    fn demoted(&mut self, world: &mut World, node: Node) {
        self.seen.retain(|&unit| !world.machine.holds(node, unit));
    }

    fn unmapped(&mut self, world: &World, units: &RangeInclusive<usize>) {
        self.seen.retain(|unit| !units.contains(&unit.1));
        let first = |region: Node| world.units(region) * region.1;
        let is_outside = |region: Node| {
            first(region) > *units.end() || first(region) + (world.units(region) - 1) < *units.start()
        };
        self.averages.retain(|&region, _| is_outside(region));
    }
}

fn level_reaching(page_sizes: &PageSizes, size: PageSize) -> usize {
    (1..page_sizes.levels()).find(|&level| page_sizes.size(level) >= Some(size)).unwrap_or(page_sizes.top())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn asap_is_its_definition((page_sizes, events) in histories(), half in any::<bool>()) {
        let mut world = World::new(page_sizes);
        let half = half.then(|| level_reaching(&page_sizes, PageSize::K64));
        let (mut full, mut at_half) = (asap(page_sizes, 4), asap464(page_sizes, 4));
        let policy: &mut dyn Policy = if half.is_some() { &mut at_half } else { &mut full };
        let mut definition = AsSoon { half, waiting: Waiting::default() };
        for event in events {
            drive(policy, &mut definition, &mut world, event)?;
        }
    }

    #[test]
    fn the_background_is_its_definition(
        (page_sizes, events) in histories(),
        shift in 12u32..22,
        percent in 0u32..=100,
        period in prop_oneof![0u32..3, 0u32..20],
    ) {
        let size = PageSize::from_shift(shift).unwrap();
        let utilization = Utilization { size, percent, period };
        let arena = Arena::leak(Background::segment_memory(&page_sizes), 4);
        let mut policy = Background::new(page_sizes, utilization, arena);
        let level = level_reaching(&page_sizes, size);
        let (percent, period) = (percent as usize, u64::from(period).max(1));
        let mut definition = WellUsed { level, percent, period, misses: 0, waiting: Waiting::default() };
        let mut world = World::new(page_sizes);
        for event in events {
            drive(&mut policy, &mut definition, &mut world, event)?;
            if let Event::Pressure = event {
                // One of the least used that are not full.
                let superpages = world.machine.mapped.iter().filter(|node| node.0 == level && !world.is_full(**node));
                let fewest = superpages.map(|&node| world.count(node)).min();
                let split = policy.under_pressure();
                let node = split.and_then(|range| world.machine.demote(range.first));
                prop_assert_eq!(split, node.map(|node| world.machine.superpage(node)));
                prop_assert_eq!(node.map(|node| (node.0, world.count(node))), fewest.map(|count| (level, count)));
                if let Some(node) = node {
                    world.forget(node);
                }
            }
        }
    }

    #[test]
    fn runs_are_their_definition((page_sizes, events) in histories(), shift in 12u32..22) {
        let size = PageSize::from_shift(shift).unwrap();
        let mut policy = Runs::new(page_sizes, size, Arena::leak(Runs::segment_memory(&page_sizes), 4));
        let mut definition = WholeRuns { level: level_reaching(&page_sizes, size) };
        let mut world = World::new(page_sizes);
        for event in events {
            drive(&mut policy, &mut definition, &mut world, event)?;
        }
    }

    #[test]
    fn coverage_is_its_definition(
        (page_sizes, events) in histories(),
        shift in 12u32..22,
        percent in 0u32..=50,
        period in prop_oneof![0u32..3, 0u32..40],
    ) {
        let size = PageSize::from_shift(shift).unwrap();
        let utilization = Utilization { size, percent, period };
        let arena = Arena::leak(Coverage::segment_memory(&page_sizes, utilization), 4);
        let mut policy = Coverage::new(page_sizes, utilization, arena);
        let mut definition = Covered {
            level: level_reaching(&page_sizes, size),
            percent: percent as usize,
            period: u64::from(period).max(1),
            misses: 0,
            seen: HashSet::new(),
            averages: HashMap::new(),
            waiting: Waiting::default(),
        };
        let mut world = World::new(page_sizes);
        for event in events {
            drive(&mut policy, &mut definition, &mut world, event)?;
        }
    }

    #[test]
    fn reservations_are_their_definition((page_sizes, events) in histories(), partial in any::<bool>()) {
        let arena = Arena::leak(Reservation::segment_memory(&page_sizes), 4);
        let level = level_reaching(&page_sizes, PageSize::K64);
        let (mut policy, partial) = if partial {
            (Reservation::partial(page_sizes, arena), Some(level))
        } else {
            (Reservation::new(page_sizes, arena), None)
        };
        let mut definition = Reserved { partial, added: HashMap::new(), broken: HashSet::new(), clock: 0 };
        let mut world = World::new(page_sizes);
        for event in events {
            drive(&mut policy, &mut definition, &mut world, event)?;
            if let Event::Pressure = event {
                // The one added to least recently that is neither full nor broken.
                let standing = definition.added.iter().filter(|(segment, _)| !definition.broken.contains(*segment));
                let oldest = standing.filter(|(segment, _)| !world.is_full(**segment)).min_by_key(|(_, added)| **added);
                let oldest = oldest.map(|(&segment, _)| segment);
                prop_assert_eq!(policy.under_pressure(), oldest.map(|segment| world.machine.superpage(segment)));
                definition.broken.extend(oldest);
            }
        }
    }
}

/// The segment that was added to least recently is found after more first touches than a counter of sixteen bits has
/// numbers, and after just as many.
#[test]
fn reservations_age_for_ever() {
    let segment = PageSizes::PAPER.units_per_segment();
    for touches in [65_533, 65_534, 65_535, 65_536, 2 * 65_535 + 1] {
        let footprint = Reservation::segment_memory(&PageSizes::PAPER);
        let mut policy = Reservation::new(PageSizes::PAPER, Arena::leak(footprint, 70));
        let mut touch = |page| policy.on_miss(Miss { tlb: Tlb::Data, page, evicted: None, now: 0 });
        assert_eq!([0, segment].map(|page| touch(Vpn::new(page))), [None; 2]);
        // All of the others, but for the last page of each.
        let others = (2 * segment..).filter(|page| page % segment != segment - 1);
        for page in others.take(touches) {
            // With every second page a pair at the least is full.
            assert_eq!(touch(Vpn::new(page)).is_some(), page % 2 == 1, "{page}");
        }
        let whole = |number| {
            let first = Vpn::new(number * segment);
            Some(Superpage { first, size: PageSizes::PAPER.size(PageSizes::PAPER.top()).unwrap() })
        };
        assert_eq!([0, 1, 2].map(|_| policy.under_pressure()), [0, 1, 2].map(whole), "{touches}");
    }
}
