//! One policy on one stream of references.

use std::collections::HashSet;
use std::io::Write;
use std::time::{Duration, Instant};

use tlbkit_addr::{PageSize, Vpn};
use tlbkit_superpage::{Action, Miss, Policy, Refusal, Setup, Superpage, Tlb};

use super::footprint::Footprint;
use super::tlb::{Bare, Entry, Lru, Map};

/// A reference, packed: the page, and whether it goes through the instruction TLB.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reference {
    pub(super) page: usize,
    pub(super) fetch: bool,
    /// Instructions begun before this reference was done.
    pub(super) now: u64,
}

/// Entries of the two TLBs. With `instruction` zero and `unified`, one TLB serves both streams; with it zero
/// otherwise, instructions are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tlbs {
    pub(super) instruction: usize,
    pub(super) data: usize,
    pub(super) unified: bool,
}

impl std::str::FromStr for Tlbs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is no TLB: give instruction+data entries (32+32; 0+32: data alone), or one number for both"
            )
        };
        let number = |text: &str| text.parse::<usize>().ok().filter(|&n| n <= 1 << 16).ok_or_else(wrong);
        let (instruction, data, unified) = match text.split_once('+') {
            Some((instruction, data)) => (number(instruction)?, number(data)?, false),
            None => (0, number(text)?, true),
        };
        if data == 0 { Err(wrong()) } else { Ok(Self { instruction, data, unified }) }
    }
}

impl Tlbs {
    /// Returns which TLB a reference goes through, if any: 0 for data, 1 for instructions.
    #[inline]
    pub(super) fn route(self, fetch: bool) -> Option<usize> {
        match (fetch, self.instruction) {
            (true, 0) if self.unified => Some(0),
            (true, 0) => None,
            (true, _) => Some(1),
            (false, _) => Some(0),
        }
    }
}

/// How pages get their size.
pub(super) enum Sizing<'m> {
    /// Every page has this many base pages, as a power of two: TLBs that need no masks.
    Fixed(u32, [Bare; 2]),
    /// Superpages chosen beforehand, which the map gets when they are known.
    Chosen,
    /// A policy decides.
    By(Box<dyn Policy + 'm>),
}

/// Regions that are reserved at their first touch, if that succeeds: by a hash of the region, so that every run and
/// every policy finds the same memory.
pub(super) struct Reservations {
    size: PageSize,
    percent: u32,
    touched: HashSet<usize>,
}

impl Reservations {
    /// Of regions of `size`, `percent` can be reserved.
    pub(super) fn new(size: PageSize, percent: u32) -> Self {
        Self { size, percent, touched: HashSet::new() }
    }

    /// Touches a page. Returns its region if this is the first touch there and it cannot be reserved.
    fn fail(&mut self, page: usize) -> Option<Superpage> {
        let shift = self.size.shift() - PageSize::K4.shift();
        let region = page >> shift;
        let fails = self.touched.insert(region) && !self.stands(page);
        fails.then_some(Superpage { first: Vpn::new(region << shift), size: self.size })
    }

    /// Tells whether the region of a page can be reserved.
    fn stands(&self, page: usize) -> bool {
        let region = page >> (self.size.shift() - PageSize::K4.shift());
        let hash = (region as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (hash * 100) >> 32 < u64::from(self.percent)
    }

    /// Tells whether a superpage lies in one reservation.
    pub(super) fn hold(&self, first: usize, size: PageSize) -> bool {
        size <= self.size && self.stands(first)
    }
}

/// What memory a kernel has for superpages: regions that it has reserved, and what it finds for copies. A function of the
/// regions and of the promotions asked for, so that every policy meets the same.
pub(super) struct Memory {
    reservations: Option<Reservations>,
    /// How many copies find no contiguous memory, in percent.
    refuse: u32,
    /// How many have looked for some.
    asked: u64,
}

/// What becomes of a promotion.
enum Placement {
    /// Its pages lie where they belong.
    InPlace,
    /// There is memory to copy them to.
    ToCopy,
    Not(Refusal),
}

impl Memory {
    /// `refuse` percent of the copies find no memory.
    pub(super) fn new(reservations: Option<Reservations>, refuse: u32) -> Self {
        Self { reservations, refuse, asked: 0 }
    }

    /// Returns what becomes of a promotion, which a policy wants copied or in place.
    fn find(&mut self, range: Superpage, copy: bool) -> Placement {
        let held = self.reservations.as_ref().map(|all| all.hold(range.first.get(), range.size));
        match (held, copy) {
            (Some(true), _) | (None, false) => return Placement::InPlace,
            // The policy does not copy, and this was never reserved as one.
            (Some(false), false) => return Placement::Not(Refusal::NotHere),
            (_, true) => {}
        }
        self.asked += 1;
        let hash = self.asked.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        if (hash * 100) >> 32 < u64::from(self.refuse) {
            return Placement::Not(Refusal::NoMemory);
        }
        Placement::ToCopy
    }

    /// Tells whether the superpage of a level that begins at unit `first` is reserved. `unit` is the shift from base pages to
    /// units.
    pub(super) fn has_reserved(&self, setup: &Setup, (first, level): (usize, usize), unit: u32) -> bool {
        let size = setup.page_sizes.size(level);
        self.reservations.as_ref().zip(size).is_some_and(|(all, size)| all.hold(first << unit, size))
    }
}

/// A policy at work, and what it has come to.
pub(super) struct Simulation<'m> {
    pub(super) name: String,
    pub(super) sizing: Sizing<'m>,
    pub(super) book_per_miss: f64,
    tlbs: Tlbs,
    lru: [Lru; 2],
    pub(super) map: Map,
    pub(super) misses: u64,
    /// Misses that the policy charged to superpages: not those while it was inactive.
    pub(super) charged: u64,
    pub(super) promotions: u64,
    pub(super) kb_copied: u64,
    pub(super) time: Duration,
    /// Superpages may have holes: untouched pages in them take no memory.
    pub(super) holes: bool,
    pub(super) memory: Memory,
    /// The policy is told of a reservation that fails when its region is touched first.
    pub(super) tells: bool,
    /// Where promotions are written down.
    pub(super) log: Option<Box<dyn Write>>,
    pub(super) out_of_segments: Option<Vpn>,
}

impl<'m> Simulation<'m> {
    pub(super) fn new(name: String, sizing: Sizing<'m>, book_per_miss: f64, tlbs: Tlbs) -> Self {
        Self {
            name,
            sizing,
            book_per_miss,
            tlbs,
            lru: [Lru::new(tlbs.data), Lru::new(tlbs.instruction)],
            map: Map::default(),
            misses: 0,
            charged: 0,
            promotions: 0,
            kb_copied: 0,
            time: Duration::ZERO,
            holes: false,
            memory: Memory::new(None, 0),
            tells: false,
            log: None,
            out_of_segments: None,
        }
    }

    /// Takes a piece of the stream. Fails only if the log cannot be written.
    pub(super) fn run(&mut self, references: &[Reference]) -> std::io::Result<()> {
        let start = Instant::now();
        match &mut self.sizing {
            Sizing::Fixed(shift, bare) => {
                for &Reference { page, fetch, .. } in references {
                    if let Some(tlb) = self.tlbs.route(fetch) {
                        bare[tlb].touch(page >> *shift);
                    }
                }
                self.misses = bare.iter().map(|bare| bare.misses).sum();
            }
            Sizing::Chosen => {}
            Sizing::By(_) => {
                for reference in references {
                    let Some(tlb) = self.tlbs.route(reference.fetch) else { continue };
                    if !self.lru[tlb].hit(reference.page) {
                        self.miss(tlb, reference)?;
                    }
                }
            }
        }
        self.time += start.elapsed();
        Ok(())
    }

    fn miss(&mut self, tlb: usize, reference: &Reference) -> std::io::Result<()> {
        self.misses += 1;
        let Sizing::By(policy) = &mut self.sizing else { return Ok(()) };
        let shift = self.map.shift(reference.page);
        let evicted = self.lru[tlb].refill(Entry::around(reference.page, shift));
        if self.tells
            && let Some(reservations) = &mut self.memory.reservations
            && let Some(region) = reservations.fail(reference.page)
        {
            policy.refused(region, Refusal::NoMemory);
        }
        let action = policy.on_miss(Miss {
            tlb: [Tlb::Data, Tlb::Instruction][tlb],
            page: Vpn::new(reference.page),
            evicted: evicted.map(|entry| Vpn::new(entry.first)),
            now: reference.now,
        });
        self.charged += u64::from(policy.is_active());
        match action {
            None => {}
            Some(Action::OutOfSegments { page }) => self.out_of_segments = Some(page),
            Some(Action::Promote { range, copy }) => {
                let found = self.memory.find(range, copy);
                if let Placement::Not(why) = found {
                    policy.refused(range, why);
                    return Ok(());
                }
                let shift = range.size.shift() - PageSize::K4.shift();
                let whole = Entry::around(range.first.get(), shift);
                self.map.promote(whole);
                for lru in &mut self.lru {
                    lru.collapse(whole);
                }
                policy.promoted(range);
                self.promotions += 1;
                if let Placement::ToCopy = found {
                    self.kb_copied += range.size.bytes() as u64 / 1024;
                }
                if let Some(log) = &mut self.log {
                    writeln!(log, "{} {:#x} {}", self.misses, range.first.get(), 1u64 << shift)?;
                }
            }
        }
        Ok(())
    }

    /// Returns how many pages there are of each size from 4 KB up, and how many base pages they take.
    pub(super) fn sizes(&self, footprint: &Footprint) -> (Vec<u64>, u64) {
        let mut counts = vec![0; 12];
        let mut add = |shift: u32, n: u64| {
            let shift = shift as usize;
            if counts.len() <= shift {
                counts.resize(shift + 1, 0);
            }
            counts[shift] += n;
        };
        if let Sizing::Fixed(shift, _) = self.sizing {
            let ranges = footprint.ranges(shift);
            add(shift, ranges);
            return (counts, ranges << shift);
        }
        let (mut alone, mut taken) = (footprint.pages(), 0);
        for (first, shift) in self.map.superpages() {
            let touched = footprint.within(first, shift);
            alone -= touched;
            taken += if self.holes { touched } else { 1 << shift };
            add(shift, 1);
        }
        add(0, alone);
        (counts, taken + alone)
    }
}

/// The yardstick for times: both TLBs, pages of one size, no accounts.
pub(super) struct Yardstick {
    tlbs: Tlbs,
    bare: [Bare; 2],
    pub(super) time: Duration,
}

impl Yardstick {
    pub(super) fn new(tlbs: Tlbs) -> Self {
        Self { tlbs, bare: [Bare::new(tlbs.data), Bare::new(tlbs.instruction)], time: Duration::ZERO }
    }

    pub(super) fn run(&mut self, references: &[Reference]) {
        let start = Instant::now();
        for &Reference { page, fetch, .. } in references {
            if let Some(tlb) = self.tlbs.route(fetch) {
                self.bare[tlb].touch(page);
            }
        }
        self.time += start.elapsed();
    }

    pub(super) fn misses(&self) -> u64 {
        self.bare.iter().map(|bare| bare.misses).sum()
    }
}
