//! What happens to a policy, and what should come of it: a machine, counts by scanning, refusals and a miss rate.

use std::collections::HashSet;

use proptest::prelude::*;
use tlbkit_addr::{PageSize, Vpn};
use tlbkit_superpage::{Action, Activity, Miss, PageSizes, Policy, Refusal, Setup};

use super::{ByScan, Machine, Missed, Node, TLBS, Waiting};

/// An event. Pages are given by segment and place, as the test that uses them numbers them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A reference through a TLB. A promotion that it leads to is refused if the last field says why.
    Reference(usize, Vpn, Option<Refusal>),
    /// A miss to an entry that the TLB holds, if it does: it was not as the access wanted it.
    Again(usize, Vpn),
    /// A page is needed alone.
    Demotion(Vpn),
    /// A promotion to a level that the policy did not ask for.
    Promotion(Vpn, usize),
    /// A TLB drops the mapping of a page, whether it has it or not.
    Drop(usize, Vpn),
    /// A TLB drops one of the entries that it has.
    DropOneOf(usize, usize),
    Flush(usize),
    /// The whole segment around a page is unmapped.
    Unmap(Vpn),
    /// So many units after that of a page are unmapped with it. Superpages that these cut in two are demoted before, or
    /// nothing is told of them.
    UnmapPart(Vpn, usize, bool),
    /// There is no memory to reserve for the superpage of a level around a page, or it is taken back.
    Broken(Vpn, usize),
}

pub(crate) fn sizes(shifts: &[u32]) -> Vec<PageSize> {
    shifts.iter().map(|&shift| PageSize::from_shift(shift).unwrap()).collect()
}

/// Binary, mixed and MIPS ladders, a unit of two pages, segments of less than a block, of one, of two, and of more blocks
/// than a word has bits, the paper's.
pub(crate) fn ladders() -> impl Strategy<Value = PageSizes> {
    prop_oneof![
        Just(vec![12, 13, 14, 15, 16, 17, 18, 19]),
        Just(vec![12, 14, 16, 18]),
        Just(vec![13, 15, 17, 19]),
        Just(vec![12, 15, 16, 20]),
        Just(vec![12, 13, 17]),
        Just(vec![12, 13, 16, 25]),
        Just(vec![12, 14]),
        Just(vec![13, 14, 16]),
        Just(vec![12, 21]),
        Just((12..=23).collect()),
        Just((13..=24).collect()),
    ]
    .prop_map(|shifts| PageSizes::new(PageSize::K4, &sizes(&shifts)).unwrap())
}

/// The segments that [`page`] knows.
pub(crate) const SEGMENTS: u8 = 4;

/// The third segment shares its places in all caches of what was found last with the second, and the fourth is that at
/// the top of the address space. The second and the third have odd numbers, so that a segment of less than 16 units does
/// not begin at a multiple of 16.
pub(crate) fn page(page_sizes: &PageSizes, segment: u8, at: u16) -> Vpn {
    let pages = page_sizes.size(page_sizes.top()).unwrap().pages(PageSize::K4).unwrap();
    let top = usize::MAX >> PageSize::K4.shift() << PageSize::K4.shift();
    let first = [0, 5, 1024 + 5, top / pages][usize::from(segment)] * pages;
    Vpn::new(first + usize::from(at) % pages)
}

/// Whether and why a promotion is refused, in so many of a thousand cases.
pub(crate) fn refusals(thousandths: u32) -> impl Strategy<Value = Option<Refusal>> {
    prop_oneof![
        1000 - thousandths => Just(None),
        thousandths => prop_oneof![Just(Refusal::NoMemory), Just(Refusal::NotHere)].prop_map(Some),
    ]
}

/// For how many segments there is memory: mostly for all.
pub(crate) fn memory() -> impl Strategy<Value = usize> {
    prop_oneof![2 => Just(usize::from(SEGMENTS)), 1 => 0..usize::from(SEGMENTS)]
}

/// A limit on the miss rate, of those that are met at some misses every 10 references; mostly none.
pub(crate) fn activity() -> impl Strategy<Value = Activity> {
    prop_oneof![5 => Just(0), 1 => 20_000u32..100_000]
        .prop_map(|misses_per_million| Activity { misses_per_million })
}

/// The time at which a program starts on the clock that the miss rate goes by.
pub(crate) fn start() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 0..1u64 << 50]
}

/// The miss rate, taken anew every 256 misses, and for the first time since the first.
struct Rate {
    limit: u64,
    misses: u64,
    since: u64,
    active: bool,
}

impl Rate {
    fn miss(&mut self, now: u64) -> bool {
        if self.misses == 0 {
            self.since = now;
        }
        self.misses += 1;
        if self.misses.is_multiple_of(256) {
            self.active = 256_000_000 >= (now - self.since) * self.limit;
            self.since = now;
        }
        self.active || self.limit == 0
    }
}

pub(crate) struct World {
    pub(crate) machine: Machine,
    pub(crate) scan: ByScan,
    /// How many segments there is memory for.
    memory: usize,
    /// Segments that a page missed in, or that had a reservation broken, while there was.
    pub(crate) touched: HashSet<Node>,
    /// Whether it was said that there is none.
    told: bool,
    waiting: Waiting,
    rate: Rate,
    split: bool,
    online: bool,
}

impl World {
    pub(crate) fn new(setup: &Setup, sizes: [usize; 2], online: bool) -> Self {
        Self {
            machine: Machine::new(setup.page_sizes, sizes),
            scan: ByScan::new(setup, online),
            memory: SEGMENTS.into(),
            touched: HashSet::new(),
            told: false,
            waiting: Waiting::default(),
            rate: Rate {
                limit: setup.activity.misses_per_million.into(),
                misses: 0,
                since: 0,
                active: false,
            },
            split: setup.split,
            online,
        }
    }

    pub(crate) fn thrift(setup: &Setup, sizes: [usize; 2]) -> Self {
        Self { scan: ByScan::thrift(setup), ..Self::new(setup, sizes, false) }
    }

    /// The same with memory for so many segments.
    pub(crate) fn with_memory(self, memory: usize) -> Self {
        Self { memory, ..self }
    }

    /// The machine's TLB that has a name: there may be one that has both.
    pub(crate) fn own(&self, tlb: usize) -> usize {
        if self.split { tlb } else { 0 }
    }

    pub(crate) fn unit(&self, page: Vpn) -> Node {
        let page_sizes = &self.machine.page_sizes;
        let pages = page_sizes.size(0).unwrap().pages(PageSize::K4).unwrap();
        (0, page.get() / pages)
    }

    /// Lets something happen, at a time. Returns the TLB and the page that missed, if it was a miss.
    pub(crate) fn happens(
        &mut self,
        policy: &mut dyn Policy,
        event: Event,
        now: u64,
    ) -> Result<Option<(usize, Vpn)>, TestCaseError> {
        match event {
            Event::Reference(tlb, page, refuse) => {
                let Some(missed) = self.machine.touch(self.own(tlb), page) else { return Ok(None) };
                self.miss(policy, tlb, page, &missed, (now, refuse))?;
                return Ok(Some((tlb, page)));
            }
            Event::Again(tlb, page) => {
                // From 16 units on nothing is said of such misses.
                let large = self.machine.page_sizes.shift(self.machine.map(page).0) >= 4;
                let missed = self.machine.again(self.own(tlb), page).filter(|_| !large);
                let Some(missed) = missed else { return Ok(None) };
                self.miss(policy, tlb, page, &missed, (now, None))?;
                return Ok(Some((tlb, page)));
            }
            Event::Demotion(page) => {
                let node = self.demote(page);
                prop_assert_eq!(policy.demote(page), node.map(|node| self.machine.superpage(node)));
            }
            Event::Promotion(page, level) => {
                let level = 1 + level % self.machine.page_sizes.top();
                let node = self.machine.up(self.unit(page), level);
                if level > self.machine.map(page).0 && self.touched.contains(&self.segment(page)) {
                    self.promote(policy, node, true);
                }
            }
            Event::Drop(tlb, page) => {
                let node = self.machine.map(page);
                policy.evicted(TLBS[tlb], self.machine.vpn(node));
                if self.machine.resident(self.own(tlb)).any(|e| e == node) {
                    self.machine.drop_entry(self.own(tlb), node);
                }
            }
            Event::DropOneOf(tlb, nth) => {
                let resident: Vec<_> = self.machine.resident(self.own(tlb)).collect();
                if let Some(&node) = resident.get(nth % resident.len().max(1)) {
                    policy.evicted(TLBS[tlb], self.machine.vpn(node));
                    self.machine.drop_entry(self.own(tlb), node);
                }
            }
            Event::Flush(tlb) => {
                // ONLINE does not see hits, and has no order for what was resident.
                if !self.online || self.machine.resident(self.own(tlb)).count() < 2 {
                    policy.flushed(TLBS[tlb]);
                    self.machine.flush(self.own(tlb));
                }
            }
            Event::Unmap(page) => {
                let whole = self.segment(page);
                if !self.scan.uncounted.is_empty() && self.touched.contains(&whole) {
                    // There would be memory for others, of which it is not known what the TLBs hold.
                    return Ok(None);
                }
                policy.unmapped(self.machine.superpage(whole).pages(PageSize::K4));
                self.machine.unmap(whole);
                self.scan.unmap(&self.machine, whole);
                self.scan.uncounted.remove(&whole);
                self.touched.remove(&whole);
            }
            Event::UnmapPart(page, more, told) => {
                let Some((units, cut)) = self.machine.part(page, more) else { return Ok(None) };
                for page in cut {
                    if told {
                        self.happens(policy, Event::Demotion(page), now)?;
                    } else {
                        self.demote(page);
                    }
                }
                policy.unmapped(self.machine.pages(&units));
                if let Some(reserved) = &mut self.scan.reserved {
                    reserved.unmap_units(&units);
                }
                self.machine.unmap_units(units);
            }
            Event::Broken(page, level) => {
                let node = self.machine.up(self.unit(page), level % self.machine.page_sizes.levels());
                if self.scan.reserved.as_ref().is_some_and(|reserved| node.0 <= reserved.level) {
                    self.counts(page);
                }
                if let Some(reserved) = &mut self.scan.reserved {
                    policy.refused(self.machine.superpage(node), Refusal::NoMemory);
                    reserved.broken(&self.machine, node);
                }
            }
        }
        Ok(None)
    }

    pub(crate) fn segment(&self, page: Vpn) -> Node {
        self.machine.up(self.unit(page), self.machine.page_sizes.top())
    }

    /// Tells whether there is memory for the segment of a page, which now is taken.
    fn counts(&mut self, page: Vpn) -> bool {
        let segment = self.segment(page);
        let counted = self.touched.contains(&segment) || self.touched.len() < self.memory;
        let segments = if counted { &mut self.touched } else { &mut self.scan.uncounted };
        segments.insert(segment);
        counted
    }

    fn miss(
        &mut self,
        policy: &mut dyn Policy,
        tlb: usize,
        page: Vpn,
        missed: &Missed,
        (now, refuse): (u64, Option<Refusal>),
    ) -> Result<(), TestCaseError> {
        let counted = self.counts(page);
        self.waiting.miss();
        let active = self.rate.miss(now);
        let (unit, own) = (self.unit(page), self.own(tlb));
        let full = self.scan.reserved.as_mut().and_then(|reserved| reserved.touch(&self.machine, unit));
        let candidate = if active { self.scan.miss(&self.machine, own, missed) } else { None };
        let expected = full.filter(|_| counted).or(candidate.filter(|node| self.waiting.allows(node.0)));
        let in_place =
            |node| self.scan.reserved.as_ref().is_some_and(|reserved| reserved.in_place(&self.machine, node));
        let expected = expected.map(|node| (node, !in_place(node)));
        let evicted = missed.evicted.map(|node| self.machine.vpn(node));
        let asked = policy.on_miss(Miss { tlb: TLBS[tlb], page, evicted, now });
        if !counted && !self.told {
            self.told = true;
            prop_assert_eq!(asked, Some(Action::OutOfSegments { page }), "at {}", now);
            return Ok(());
        }
        let promotion =
            expected.map(|(node, copy)| Action::Promote { range: self.machine.superpage(node), copy });
        prop_assert_eq!(asked, promotion, "at {}", now);
        let Some((node, copy)) = expected else { return Ok(()) };
        let Some(why) = refuse else {
            self.promote(policy, node, copy);
            return Ok(());
        };
        policy.refused(self.machine.superpage(node), why);
        match (why, &mut self.scan.reserved) {
            (Refusal::NotHere, _) => self.scan.not_here(node),
            (Refusal::NoMemory, Some(reserved)) if !copy => reserved.broken(&self.machine, node),
            (Refusal::NoMemory, _) => self.waiting.refused(node.0, self.scan.threshold(node.0)),
        }
        Ok(())
    }

    /// Demotes the superpage around a page, and returns it.
    fn demote(&mut self, page: Vpn) -> Option<Node> {
        let node = self.machine.demote(page)?;
        self.scan.restart(&self.machine, node);
        if let Some(reserved) = &mut self.scan.reserved {
            reserved.demoted(&self.machine, node);
        }
        Some(node)
    }

    fn promote(&mut self, policy: &mut dyn Policy, node: Node, copy: bool) {
        if copy {
            self.scan.promoted(&self.machine, node);
        } else {
            self.scan.pay(&self.machine, node, 0);
        }
        if let Some(reserved) = &mut self.scan.reserved {
            reserved.promoted(copy);
        }
        self.machine.promote(node);
        policy.promoted(self.machine.superpage(node));
        // What was in place says nothing of memory.
        if copy {
            self.waiting.granted(node.0);
        }
    }
}
