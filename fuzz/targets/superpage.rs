//! The promotion policies against their definitions, which scan TLBs and count in maps: after every miss the same
//! promotion or none, whatever the page sizes, the costs, the sizes of the TLBs, demotions and refills.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use model::{Arena, ByScan, Machine, Missed, Node, step};
use tlbkit_addr::{PageSize, Vpn};
use tlbkit_superpage::{
    ApproxOnline, Asap, Asap464, Costs, Online, OnlineMemory, PageSizes, Policy, Refusal, Setup, StackEntry,
    Superpage, Thrift,
};

#[path = "../../crates/superpage/tests/all/model/mod.rs"]
mod model;

#[derive(Arbitrary, Debug)]
struct Input {
    page_sizes: u8,
    r: u8,
    prefetch: u16,
    capacity: u16,
    /// Unused; the seeds hold a byte here.
    _spare: u8,
    tlbs: [u8; 2],
    references: Vec<Reference>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Reference {
    /// The TLB, the segment, and sometimes a demotion or a reservation's end before.
    how: u8,
    at: u16,
}

/// The most references of an input.
const REFERENCES: usize = 500;
const SEGMENTS: usize = 4;

const LADDERS: [&[u32]; 8] = [
    &[12, 13, 14, 15, 16, 17, 18, 19],
    &[12, 14, 16, 18],
    &[13, 15, 17, 19],
    &[12, 15, 16, 20],
    &[12, 13, 16, 25],
    &[12, 21],
    &[12, 14],
    &[13, 14, 16],
];

fn size(shift: u32) -> PageSize {
    PageSize::from_shift(shift).expect("a size of this machine")
}

impl Reference {
    fn demotes(self) -> bool {
        self.how >= 240
    }

    /// Whether the reservation around the page is broken before, if the policy wants one.
    fn breaks(self) -> bool {
        (232..240).contains(&self.how)
    }

    /// Near the beginning of one of three segments, mostly; the last is that at the top of the address space.
    fn page(self, page_sizes: &PageSizes) -> Vpn {
        let pages = page_sizes
            .size(page_sizes.top())
            .and_then(|size| size.pages(PageSize::K4))
            .expect("the largest size");
        let top = (usize::MAX >> PageSize::K4.shift()) / pages * pages;
        let first = [0, 5 * pages, top][usize::from(self.how >> 1) % 3];
        let at = if self.how & 8 == 0 { self.at % 70 } else { self.at };
        Vpn::new(first + usize::from(at) % pages)
    }
}

/// A definition: which superpage a policy must ask for.
trait Definition {
    fn miss(&mut self, machine: &Machine, tlb: usize, page: Vpn, missed: &Missed) -> Option<Node>;
    fn promoted(&mut self, _: &Machine, _: Node) {}
    fn demoted(&mut self, _: &Machine, _: Node) {}
    /// The region around a page has no reservation any longer. Returns it, if there are regions.
    fn broken(&mut self, _: &Machine, _: Vpn) -> Option<Node> {
        None
    }
}

fn unit(machine: &Machine, page: Vpn) -> Node {
    machine.node(Superpage { first: page, size: machine.page_sizes.size(0).expect("the smallest size") })
}

impl Definition for ByScan {
    fn miss(&mut self, machine: &Machine, tlb: usize, page: Vpn, missed: &Missed) -> Option<Node> {
        let full = self.reserved.as_mut().and_then(|reserved| reserved.touch(machine, unit(machine, page)));
        let charged = Self::miss(self, machine, tlb, missed);
        full.or(charged)
    }
    fn promoted(&mut self, machine: &Machine, node: Node) {
        let copy = !self.reserved.as_ref().is_some_and(|reserved| reserved.in_place(machine, node));
        if copy {
            Self::promoted(self, machine, node);
        } else {
            self.pay(machine, node, 0);
        }
        if let Some(reserved) = &mut self.reserved {
            reserved.promoted(copy);
        }
    }
    fn demoted(&mut self, machine: &Machine, node: Node) {
        self.restart(machine, node);
        if let Some(reserved) = &mut self.reserved {
            reserved.demoted(machine, node);
        }
    }
    fn broken(&mut self, machine: &Machine, page: Vpn) -> Option<Node> {
        let reserved = self.reserved.as_mut()?;
        let region = reserved.region(machine, unit(machine, page))?;
        reserved.broken(machine, region);
        Some(region)
    }
}

/// ASAP and ASAP-4-64: what has been referenced, in a set.
struct BySet {
    units: BTreeSet<usize>,
    half_of: Option<usize>,
}

impl Definition for BySet {
    fn miss(&mut self, machine: &Machine, _: usize, page: Vpn, missed: &Missed) -> Option<Node> {
        let unit = unit(machine, page);
        self.units.insert(unit.1);
        let populated = |level: usize| {
            let (_, number) = machine.up(unit, level);
            let shift = machine.page_sizes.shift(level);
            self.units.range(number << shift..=(number << shift) + ((1 << shift) - 1)).count() as u64
        };
        let mapped = missed.node.0;
        let level = match self.half_of {
            Some(level) => (mapped < level && 2 * populated(level) >= 1 << machine.page_sizes.shift(level))
                .then_some(level)?,
            None => (mapped + 1..machine.page_sizes.levels())
                .rev()
                .find(|&level| populated(level) == 1 << machine.page_sizes.shift(level))?,
        };
        Some(machine.up(unit, level))
    }

    /// What is mapped page by page again has to be referenced again.
    fn demoted(&mut self, machine: &Machine, node: Node) {
        let shift = machine.page_sizes.shift(node.0);
        self.units.retain(|unit| unit >> shift != node.1);
    }
}

fn run(
    name: &str,
    page_sizes: PageSizes,
    sizes: [usize; 2],
    references: &[Reference],
    policy: &mut dyn Policy,
    definition: &mut dyn Definition,
) {
    let mut machine = Machine::new(page_sizes, sizes);
    for (n, reference) in references.iter().enumerate() {
        let page = reference.page(&page_sizes);
        if reference.demotes() {
            let node = machine.demote(page);
            assert_eq!(
                policy.demote(page),
                node.map(|node| machine.superpage(node)),
                "{name}, reference {n}"
            );
            if let Some(node) = node {
                definition.demoted(&machine, node);
            }
        }
        if reference.breaks()
            && let Some(region) = definition.broken(&machine, page)
        {
            policy.refused(machine.superpage(region), Refusal::NoMemory);
        }
        let tlb = usize::from(reference.how & 1);
        let Some(missed) = machine.touch(tlb, page) else { continue };
        let wanted = definition.miss(&machine, tlb, page, &missed);
        let asked = step(policy, &machine, tlb, page, &missed, n as u64);
        assert_eq!(asked, wanted.map(|node| machine.superpage(node)), "{name}, reference {n}");
        if let (Some(node), Some(range)) = (wanted, asked) {
            definition.promoted(&machine, node);
            machine.promote(node);
            policy.promoted(range);
        }
    }
}

fuzz_target!(|input: Input| {
    let sizes: Vec<_> =
        LADDERS[usize::from(input.page_sizes) % LADDERS.len()].iter().map(|&shift| size(shift)).collect();
    let page_sizes = PageSizes::new(PageSize::K4, &sizes).expect("ascending sizes");
    let costs = Costs {
        r_per_kb: 1 + u32::from(input.r % 8),
        prefetch: 1 + u32::from(input.prefetch % 2000),
        capacity: 1 + u32::from(input.capacity % 1000),
    };
    let setup = Setup { page_sizes, costs, ..Setup::PAPER };
    let tlbs = input.tlbs.map(|size| 1 + usize::from(size % 8));
    let references = &input.references[..input.references.len().min(REFERENCES)];
    let arena = |footprint| Arena::new(footprint, SEGMENTS);

    let mut memory = arena(ApproxOnline::segment_memory(&setup).expect("costs that can be"));
    let mut policy = ApproxOnline::new(&setup, memory.memory()).expect("costs that can be");
    run("APPROX-ONLINE", page_sizes, tlbs, references, &mut policy, &mut ByScan::new(&setup, false));

    let mut memory = arena(Thrift::segment_memory(&setup).expect("costs that can be"));
    let mut policy = Thrift::new(&setup, memory.memory()).expect("costs that can be");
    run("THRIFT", page_sizes, tlbs, references, &mut policy, &mut ByScan::thrift(&setup));

    let (prefetch, capacity) = Online::segment_memory(&setup).expect("costs that can be");
    let (mut prefetch, mut capacity) = (arena(prefetch), arena(capacity));
    let mut stacks = tlbs.map(|size| vec![StackEntry::default(); Online::stack_len(&setup, size)]);
    let memory = OnlineMemory {
        prefetch: prefetch.memory(),
        capacity: capacity.memory(),
        stacks: stacks.each_mut().map(Vec::as_mut_slice),
    };
    let mut policy = Online::new(&setup, tlbs, memory).expect("costs that can be");
    run("ONLINE", page_sizes, tlbs, references, &mut policy, &mut ByScan::new(&setup, true));

    let mut memory = arena(Asap::segment_memory(&page_sizes));
    let mut definition = BySet { units: BTreeSet::new(), half_of: None };
    run("ASAP", page_sizes, tlbs, references, &mut Asap::new(page_sizes, memory.memory()), &mut definition);

    let mut memory = arena(Asap464::segment_memory(&page_sizes));
    let mut definition =
        BySet { units: BTreeSet::new(), half_of: Some(page_sizes.level_reaching(PageSize::K64).max(1)) };
    run(
        "ASAP-4-64",
        page_sizes,
        tlbs,
        references,
        &mut Asap464::new(page_sizes, memory.memory()),
        &mut definition,
    );
});
