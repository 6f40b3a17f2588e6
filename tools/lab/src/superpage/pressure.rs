//! `tlblab pressure`: several programs in one memory that may be too small, under policies that meet the same frames.
//!
//! The programs take turns on one CPU, whose TLB entries have their programs' numbers. At the first touch of a region a policy with
//! reservations gets contiguous frames for it, if there are any; every other page gets one frame. What lacks a frame takes it from
//!
//! 1. the reservation in which a page was allocated least recently: its frames without a page, and it is broken;
//! 2. the superpage with the most pages that were never touched: it is demoted, and they go;
//! 3. the page that was allocated first: it is paged out, and the superpage around it is demoted.
//!
//! A change of rights demotes, too. A promotion that is to be copied needs contiguous free frames: nothing is moved or paged out for it.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Args;
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use tlbkit_addr::{PageSize, Pages, Vpn};
use tlbkit_superpage::{Action, Costs, Miss, PageSizes, Policy, Refusal, Setup, Superpage, Thrift, Tlb};

use super::MISS;
use super::footprint::Footprint;
use super::policies::{Arena, Named};
use super::simulation::{Sizing, Tlbs};
use super::tlb::{Entry, Lru, Map};
use crate::trace::{self, Input, Trace};
use crate::{Experiment, Name};

/// Where the program's number is in a page's number, and in a reference the bit of an instruction fetch.
pub(crate) const PROGRAM: u32 = trace::PROGRAM - PageSize::K4.shift();
pub(crate) const FETCH: u64 = 1 << 63;
/// The machine of section 8: 32 entries for data, and 32 for instructions.
const TLBS: Tlbs = Tlbs { instruction: 32, data: 32, unified: false };
/// Memory for the counters of so many segments of a program.
const SEGMENTS: usize = 256;

/// Compare superpage policies on several programs under the same short memory
#[derive(Args, Debug)]
pub struct Pressure {
    /// The programs' traces
    #[arg(long, value_name = "FILE", value_delimiter = ',', required = true)]
    traces: Vec<PathBuf>,
    /// Instructions of a program's turn
    #[arg(long, value_name = "INSTRUCTIONS", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    turn: u64,
    /// Stop each program after so many instructions
    #[arg(long, value_name = "INSTRUCTIONS")]
    instructions: Option<u64>,
    /// Memory, in percent of the pages that the programs touch
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [90, 100, 110, 125, 150, 200])]
    memory: Vec<u64>,
    /// Thresholds of APPROX-ONLINE, in thousandths of R
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [31, 62, 125, 250, 500, 1000])]
    thresholds: Vec<u32>,
    /// Change the rights of the page that missed, at every so many misses of a program [default: never]
    #[arg(long, value_name = "MISSES", value_parser = clap::value_parser!(u64).range(1..))]
    rights: Option<u64>,
    /// Cycles of bringing in a page that was paged out
    #[arg(long, value_name = "CYCLES", default_value_t = 100_000)]
    page_in: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A policy in a memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pressed {
    /// The policy.
    pub policy: Name,
    /// Its threshold in thousandths of R.
    pub threshold: u32,
    /// Memory, in percent of the pages that are touched.
    pub memory_pct: u64,
    /// TLB misses of all programs.
    pub tlb_misses: u64,
    /// Promotions.
    pub promotions: u64,
    /// Kilobytes that they copied.
    pub kb_copied: u64,
    /// Promotions that found no contiguous frames.
    pub refused: u64,
    /// Reservations that were broken.
    pub broken: u64,
    /// Superpages that were demoted for frames, and for a change of rights.
    pub demoted: u64,
    /// See there.
    pub demoted_for_rights: u64,
    /// Pages that had been paged out and were brought in.
    pub page_ins: u64,
    /// Cycles of misses, bookkeeping and copies for each instruction.
    pub tlbmcpi: f64,
    /// The same with those of bringing pages in.
    pub mcpi: f64,
}

/// The programs' references, in the order of their turns.
pub(crate) struct Work {
    pub(crate) references: Vec<u64>,
    pub(crate) instructions: u64,
    pub(crate) programs: usize,
    pages: u64,
}

#[cfg(test)]
impl Work {
    pub(crate) fn of(references: Vec<u64>, programs: usize) -> Self {
        Self { references, instructions: 0, programs, pages: 0 }
    }
}

/// References as they are gathered. Consecutive ones of a program to one page are one.
#[derive(Default)]
struct Gathered {
    references: Vec<u64>,
    /// What each program touches.
    touched: Vec<Footprint>,
}

impl Gathered {
    fn add(&mut self, program: usize, page: usize, fetch: bool) {
        let reference = (program << PROGRAM | page) as u64 | if fetch { FETCH } else { 0 };
        if self.references.last() != Some(&reference) {
            self.touched.resize_with(self.touched.len().max(program + 1), Footprint::default);
            self.touched[program].touch(page);
            self.references.push(reference);
        }
    }

    fn work(self, instructions: u64) -> anyhow::Result<Work> {
        let Self { references, touched } = self;
        ensure!(!references.is_empty(), "the traces are empty: record one with `tlblab capture`");
        let pages = touched.iter().map(Footprint::pages).sum();
        Ok(Work { references, instructions, programs: touched.len(), pages })
    }
}

fn open(path: &Path) -> Result<Trace, trace::TraceError> {
    trace::open(&Input::File(path.to_owned()), &ProgressBar::hidden())
}

/// Reads a trace of several programs, in the order in which they ran; so many instructions at most.
///
/// # Errors
///
/// If it is no good, or of one program.
pub(crate) fn recorded(path: &Path, most: Option<u64>) -> anyhow::Result<Work> {
    let (mut gathered, mut done) = (Gathered::default(), 0);
    for access in open(path)? {
        let access = access.with_context(|| path.display().to_string())?;
        let page = access.page.get();
        gathered.add(page >> PROGRAM, page & ((1 << PROGRAM) - 1), access.kind.is_fetch());
        done += access.instructions();
        if done >= most.unwrap_or(u64::MAX) {
            break;
        }
    }
    let work = gathered.work(done)?;
    ensure!(
        work.programs > 1,
        "{} is of one program: record several with `tlblab capture -- A '|' B`",
        path.display()
    );
    Ok(work)
}

/// Reads the traces turn by turn, of each so many instructions at most.
///
/// # Errors
///
/// If a trace is no good, or none has a reference.
pub(crate) fn read(paths: &[PathBuf], turn: u64, most: Option<u64>) -> anyhow::Result<Work> {
    let mut traces: Vec<Option<Trace>> =
        paths.iter().map(|path| open(path).map(Some)).collect::<Result<_, _>>()?;
    let (mut gathered, mut done) = (Gathered::default(), vec![0; traces.len()]);
    while traces.iter().any(Option::is_some) {
        for (program, of) in traces.iter_mut().enumerate() {
            let until = (done[program] + turn).min(most.unwrap_or(u64::MAX));
            while done[program] < until {
                let Some(access) = of.as_mut().and_then(Iterator::next) else { break };
                let access = access.with_context(|| paths[program].display().to_string())?;
                let page = access.page.get();
                ensure!(page >> PROGRAM == 0, "page {page:#x} is beyond what programs are told apart by");
                done[program] += access.instructions();
                gathered.add(program, page, access.kind.is_fetch());
            }
            if done[program] < until || done[program] >= most.unwrap_or(u64::MAX) {
                *of = None;
            }
        }
    }
    gathered.work(done.iter().sum())
}

/// What a frame is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Free,
    Reserved,
    Page,
}

/// The memory.
struct Frames(Vec<Use>);

impl Frames {
    fn take(&mut self) -> Option<usize> {
        let frame = self.0.iter().position(|of| *of == Use::Free)?;
        self.0[frame] = Use::Page;
        Some(frame)
    }

    /// Takes as many contiguous frames, aligned to their number.
    fn run(&mut self, count: usize, to: Use) -> Option<usize> {
        let free = |run: &[Use]| run.len() == count && run.iter().all(|of| *of == Use::Free);
        let first = self.0.chunks(count).position(free)? * count;
        self.0[first..first + count].fill(to);
        Some(first)
    }
}

/// A region that was reserved, or could not be.
#[derive(Clone, Copy, Debug)]
struct Region {
    /// Its first frame, while it is reserved.
    base: Option<usize>,
    /// When a page was last allocated in it.
    last: u64,
}

/// A program's address space.
struct Space<'m> {
    policy: Box<dyn Policy + 'm>,
    map: Map,
    touched: Footprint,
    /// The frames of the pages that are in memory.
    frames: HashMap<usize, usize>,
    out: HashSet<usize>,
    regions: BTreeMap<usize, Region>,
    misses: u64,
}

impl Space<'_> {
    /// Returns the frame that is reserved for a page.
    fn reserved(&self, page: usize, shift: u32) -> Option<usize> {
        let base = self.regions.get(&(page >> shift))?.base?;
        Some(base + (page & ((1 << shift) - 1)))
    }
}

/// All of it at work.
struct Machine<'m> {
    memory: Frames,
    spaces: Vec<Space<'m>>,
    tlbs: [Lru; 2],
    /// The shift of the regions that the policy reserves.
    region: Option<u32>,
    rights: Option<u64>,
    /// Pages in the order of their allocation; those that are gone meanwhile, too.
    order: VecDeque<(usize, usize)>,
    now: u64,
    row: Pressed,
}

fn tagged(program: usize, page: usize, shift: u32) -> Entry {
    Entry::around(program << PROGRAM | page, shift)
}

fn superpage(first: usize, shift: u32) -> anyhow::Result<Superpage> {
    let size = PageSize::from_bytes(4096 << shift).context("a size")?;
    Ok(Superpage { first: Vpn::new(first), size })
}

impl Machine<'_> {
    fn reference(&mut self, reference: u64) -> anyhow::Result<()> {
        let at = (reference & !FETCH) as usize;
        let (program, page) = (at >> PROGRAM, at & ((1 << PROGRAM) - 1));
        let tlb = usize::from(reference & FETCH != 0);
        self.spaces[program].touched.touch(page);
        if self.tlbs[tlb].hit(at) {
            return Ok(());
        }
        if !self.spaces[program].frames.contains_key(&page) {
            self.allocate(program, page)?;
        }
        let shift = self.spaces[program].map.shift(page);
        let mut evicted = self.tlbs[tlb].refill(tagged(program, page, shift));
        let name = [Tlb::Data, Tlb::Instruction][tlb];
        let number = |entry: Entry| Vpn::new(entry.first & ((1 << PROGRAM) - 1));
        if let Some(other) = evicted.take_if(|entry| entry.first >> PROGRAM != program) {
            self.spaces[other.first >> PROGRAM].policy.evicted(name, number(other));
        }
        self.row.tlb_misses += 1;
        let space = &mut self.spaces[program];
        space.misses += 1;
        let miss = Miss { tlb: name, page: Vpn::new(page), evicted: evicted.map(number), now: 0 };
        match space.policy.on_miss(miss) {
            Some(Action::Promote { range, copy }) => self.promote(program, range, copy),
            Some(Action::OutOfSegments { page }) => bail!("no memory for the counters of page {page}"),
            None => {}
        }
        if self.rights.is_some_and(|every| self.spaces[program].misses.is_multiple_of(every))
            && self.demote(program, page)
        {
            self.row.demoted_for_rights += 1;
        }
        Ok(())
    }

    /// Gives a page a frame.
    fn allocate(&mut self, program: usize, page: usize) -> anyhow::Result<()> {
        self.now += 1;
        if let Some(shift) = self.region {
            let (number, now) = (page >> shift, self.now);
            let (space, memory) = (&mut self.spaces[program], &mut self.memory);
            let region = space.regions.entry(number).or_insert_with(|| {
                let base = memory.run(1 << shift, Use::Reserved);
                if base.is_none()
                    && let Ok(range) = superpage(number << shift, shift)
                {
                    space.policy.refused(range, Refusal::NoMemory);
                }
                Region { base, last: now }
            });
            region.last = now;
        }
        let space = &mut self.spaces[program];
        self.row.page_ins += u64::from(space.out.remove(&page));
        let frame = match self.region.and_then(|shift| space.reserved(page, shift)) {
            Some(frame) => frame,
            None => loop {
                match self.memory.take() {
                    Some(frame) => break frame,
                    None => self.reclaim()?,
                }
            },
        };
        self.place(program, page, frame);
        Ok(())
    }

    fn place(&mut self, program: usize, page: usize, frame: usize) {
        self.memory.0[frame] = Use::Page;
        self.spaces[program].frames.insert(page, frame);
        self.order.push_back((program, page));
    }

    /// Takes a page's frame back: to its reservation, or to those that are free.
    fn release(&mut self, program: usize, page: usize) {
        let space = &mut self.spaces[program];
        if let Some(frame) = space.frames.remove(&page) {
            let own = self.region.and_then(|shift| space.reserved(page, shift)) == Some(frame);
            self.memory.0[frame] = if own { Use::Reserved } else { Use::Free };
        }
    }

    /// Frees at least one frame.
    fn reclaim(&mut self) -> anyhow::Result<()> {
        if self.break_reservation()? || self.demote_for_holes() {
            return Ok(());
        }
        while let Some((program, page)) = self.order.pop_front() {
            if !self.spaces[program].frames.contains_key(&page) {
                continue;
            }
            self.row.demoted += u64::from(self.demote(program, page));
            self.release(program, page);
            self.spaces[program].out.insert(page);
            self.spaces[program].policy.unmapped(Pages::one(Vpn::new(page)));
            self.tlbs.iter_mut().for_each(|tlb| tlb.remove(tagged(program, page, 0)));
            return Ok(());
        }
        bail!("there is no memory for a single page")
    }

    /// Breaks the reservation in which a page was allocated least recently, of those that have a frame without a page.
    fn break_reservation(&mut self) -> anyhow::Result<bool> {
        let Some(shift) = self.region else { return Ok(false) };
        let memory = &mut self.memory.0;
        let mut oldest: Option<(u64, usize, usize, usize)> = None;
        for (program, space) in self.spaces.iter().enumerate() {
            for (&number, region) in &space.regions {
                let Some(base) = region.base else { continue };
                let gives = memory[base..base + (1 << shift)].contains(&Use::Reserved);
                if gives && oldest.is_none_or(|(last, ..)| region.last < last) {
                    oldest = Some((region.last, program, number, base));
                }
            }
        }
        let Some((_, program, number, base)) = oldest else { return Ok(false) };
        for frame in &mut memory[base..base + (1 << shift)] {
            *frame = if *frame == Use::Reserved { Use::Free } else { *frame };
        }
        let space = &mut self.spaces[program];
        if let Some(region) = space.regions.get_mut(&number) {
            region.base = None;
        }
        space.policy.refused(superpage(number << shift, shift)?, Refusal::NoMemory);
        self.row.broken += 1;
        Ok(true)
    }

    /// Demotes the superpage with the most pages that were never touched, and frees their frames.
    fn demote_for_holes(&mut self) -> bool {
        let mut most = (0, 0, 0, 0);
        for (program, space) in self.spaces.iter().enumerate() {
            for (first, shift) in space.map.superpages() {
                let holes = (1 << shift) - space.touched.within(first, shift);
                most = most.max((holes, program, first, shift));
            }
        }
        let (holes, program, first, shift) = most;
        if holes == 0 || !self.demote(program, first) {
            return false;
        }
        self.row.demoted += 1;
        for page in first..first + (1 << shift) {
            if self.spaces[program].touched.within(page, 0) == 0 {
                self.release(program, page);
            }
        }
        true
    }

    /// Maps the superpage around a page as base pages. Tells whether there is one.
    fn demote(&mut self, program: usize, page: usize) -> bool {
        let space = &mut self.spaces[program];
        let Some(range) = space.policy.demote(Vpn::new(page)) else { return false };
        let shift = range.size.shift() - PageSize::K4.shift();
        space.map.demote(Entry::around(range.first.get(), shift));
        let whole = tagged(program, range.first.get(), shift);
        self.tlbs.iter_mut().for_each(|tlb| tlb.remove(whole));
        true
    }

    fn promote(&mut self, program: usize, range: Superpage, copy: bool) {
        let shift = range.size.shift() - PageSize::K4.shift();
        let (first, count) = (range.first.get(), 1 << shift);
        let pages = first..first + count;
        let space = &mut self.spaces[program];
        let frame = |page: usize| space.frames.get(&page).copied();
        // Its place in the reservation, if all of its pages are there.
        let reserved = self.region.and_then(|region| {
            let base = space.reserved(first, region).filter(|_| shift <= region)?;
            pages.clone().all(|page| frame(page).is_none_or(|of| of == base + (page - first))).then_some(base)
        });
        let refusal = if pages.clone().any(|page| space.out.contains(&page)) {
            Some(Refusal::NotHere)
        } else if let Some(base) = reserved {
            for page in pages.clone() {
                if !self.spaces[program].frames.contains_key(&page) {
                    self.place(program, page, base + (page - first));
                }
            }
            None
        } else if !copy {
            Some(Refusal::NotHere)
        } else if let Some(base) = self.memory.run(count, Use::Page) {
            for page in pages.clone() {
                self.release(program, page);
                self.place(program, page, base + (page - first));
            }
            self.row.kb_copied += range.size.bytes() as u64 / 1024;
            None
        } else {
            self.row.refused += 1;
            Some(Refusal::NoMemory)
        };
        let space = &mut self.spaces[program];
        if let Some(why) = refusal {
            return space.policy.refused(range, why);
        }
        space.map.promote(Entry::around(first, shift));
        space.policy.promoted(range);
        let whole = tagged(program, first, shift);
        self.tlbs.iter_mut().for_each(|tlb| tlb.collapse(whole));
        self.row.promotions += 1;
    }
}

/// Runs a policy with a threshold in a memory of so many frames.
fn run(
    work: &Work,
    (named, threshold, memory_pct): (Named, u32, u64),
    sizes: &[PageSize],
    rights: Option<u64>,
    page_in: u64,
) -> anyhow::Result<Pressed> {
    // RESERVE reserves the largest size: as much as THRIFT.
    let sizes = sizes.iter().copied().filter(|&size| named != Named::Reserve || size <= PageSize::K64);
    let page_sizes = PageSizes::new(PageSize::K4, &sizes.collect::<Vec<_>>())?;
    let costs = Costs { prefetch: threshold, ..Costs::PAPER };
    let setup = Setup { page_sizes, costs, ..Setup::PAPER };
    let arenas = (0..work.programs).map(|_| Arena::new(named, &setup, TLBS, SEGMENTS));
    let (mut arenas, mut spaces, mut book) = (arenas.collect::<anyhow::Result<Vec<_>>>()?, Vec::new(), 0.0);
    for arena in &mut arenas {
        let (Sizing::By(policy), cycles) = arena.build(named, &setup, TLBS)? else {
            bail!("{named} is no policy")
        };
        book = cycles;
        spaces.push(Space {
            policy,
            map: Map::default(),
            touched: Footprint::default(),
            frames: HashMap::new(),
            out: HashSet::new(),
            regions: BTreeMap::new(),
            misses: 0,
        });
    }
    let reserves = matches!(named, Named::Thrift | Named::Reserve | Named::Runs);
    let region = Thrift::region(&page_sizes).filter(|_| reserves);
    let frames = usize::try_from(work.pages * memory_pct / 100)?;
    let mut machine = Machine {
        memory: Frames(vec![Use::Free; frames]),
        spaces,
        tlbs: [Lru::new(TLBS.data), Lru::new(TLBS.instruction)],
        region: region.map(|size| size.shift() - PageSize::K4.shift()),
        rights,
        order: VecDeque::new(),
        now: 0,
        row: Pressed {
            policy: named.to_string().into(),
            threshold,
            memory_pct,
            tlb_misses: 0,
            promotions: 0,
            kb_copied: 0,
            refused: 0,
            broken: 0,
            demoted: 0,
            demoted_for_rights: 0,
            page_ins: 0,
            tlbmcpi: 0.0,
            mcpi: 0.0,
        },
    };
    for &reference in &work.references {
        machine.reference(reference)?;
    }
    let mut row = machine.row;
    let copies = row.kb_copied * u64::from(costs.r_per_kb) * MISS;
    let cycles = row.tlb_misses as f64 * (MISS as f64 + book) + copies as f64;
    row.tlbmcpi = cycles / work.instructions as f64;
    row.mcpi = (cycles + (row.page_ins * page_in) as f64) / work.instructions as f64;
    Ok(row)
}

impl Experiment for Pressure {
    const COMMAND: &'static str = "pressure";
    type Row = Pressed;

    fn rows(&self) -> anyhow::Result<Vec<Pressed>> {
        ensure!(
            !self.thresholds.contains(&0),
            "--thresholds 0 would promote everything: give thousandths of R"
        );
        let work = read(&self.traces, self.turn, self.instructions)?;
        let mut runs = Vec::new();
        for &memory in &self.memory {
            let paper = Costs::PAPER.prefetch;
            runs.extend(
                [Named::Thrift, Named::Reserve, Named::Runs, Named::Ingens, Named::Hawkeye]
                    .map(|named| (named, paper, memory)),
            );
            runs.extend(self.thresholds.iter().map(|&threshold| (Named::Approx, threshold, memory)));
        }
        let sizes: Vec<_> = (12..=23).filter_map(PageSize::from_shift).collect();
        crate::parallel::map(&runs, |&of| run(&work, of, &sizes, self.rights, self.page_in))
    }
}

impl Pressure {
    /// Runs the command.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        crate::rows::print(self.json, &self.rows()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superpage::simulation::{Memory, Reference, Reservations, Simulation};

    /// Up to 64 KB.
    fn sizes() -> Vec<PageSize> {
        (12..=16).filter_map(PageSize::from_shift).collect()
    }

    /// References of so many programs, each to its own pages, that are skewed to the first ones.
    fn work(programs: usize, pages: usize, length: usize) -> Work {
        let (mut state, mut touched) = (1_u64, HashSet::new());
        let mut references = Vec::new();
        for at in 0..length {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = (state >> 33) as usize;
            let page = random % pages % (1 + (random >> 16) % pages);
            let program = at / 1000 % programs;
            touched.insert((program, page));
            references.push((program as u64) << PROGRAM | page as u64);
        }
        Work { references, instructions: 4 * length as u64, programs, pages: touched.len() as u64 }
    }

    /// With memory for all, one program has the misses, promotions and copies of the simulator that has no memory.
    #[test]
    fn with_memory_for_all_nothing_is_otherwise() {
        let work = work(1, 600, 200_000);
        let page_sizes = PageSizes::new(PageSize::K4, &sizes()).unwrap();
        let setup = Setup { page_sizes, ..Setup::PAPER };
        for (named, percent) in [
            (Named::Approx, None),
            (Named::Thrift, Some(100)),
            (Named::Reserve, Some(100)),
            (Named::Runs, Some(100)),
        ] {
            let pressed = run(&work, (named, 125, 1000), &sizes(), None, 0).unwrap();
            let mut arena = Arena::new(named, &setup, TLBS, 64).unwrap();
            let (sizing, book) = arena.build(named, &setup, TLBS).unwrap();
            let mut simulation = Simulation::new(named.to_string(), sizing, book, TLBS);
            let reserved = percent.map(|percent| Reservations::new(PageSize::K64, percent));
            simulation.memory = Memory::new(reserved, 0);
            let reference = |&page: &u64| Reference { page: page as usize, fetch: false, now: 0 };
            simulation.run(&work.references.iter().map(reference).collect::<Vec<_>>()).unwrap();
            let ours = (pressed.tlb_misses, pressed.promotions, pressed.kb_copied);
            assert_eq!(ours, (simulation.misses, simulation.promotions, simulation.kb_copied), "{named}");
            assert!(pressed.promotions > 10, "{named}: {pressed:?}");
            assert_eq!((pressed.refused, pressed.broken, pressed.demoted, pressed.page_ins), (0, 0, 0, 0));
        }
    }

    /// Where memory is short, every way of getting a frame back is gone, and no more frames are in use than there are.
    #[test]
    fn short_memory_breaks_demotes_and_pages_out() {
        let work = work(3, 400, 150_000);
        let run = |named, memory| run(&work, (named, 125, memory), &sizes(), None, 0).unwrap();
        let (ample, short) = (run(Named::Thrift, 400), run(Named::Thrift, 80));
        assert!(short.broken > 0 && short.demoted > 0 && short.page_ins > 0, "{short:?}");
        assert!(ample.broken == 0 && ample.page_ins == 0 && ample.tlb_misses < short.tlb_misses, "{ample:?}");
        let approx = run(Named::Approx, 100);
        assert!(approx.refused > 0 && approx.promotions < run(Named::Approx, 400).promotions, "{approx:?}");
        assert_eq!(approx.broken, 0);
    }

    /// A change of rights demotes: more misses, and superpages that are promoted again.
    #[test]
    fn changes_of_rights_demote() {
        let work = work(2, 400, 150_000);
        for named in [Named::Approx, Named::Thrift, Named::Reserve, Named::Runs] {
            let run = |rights| run(&work, (named, 125, 400), &sizes(), rights, 0).unwrap();
            let (never, often) = (run(None), run(Some(50)));
            assert_eq!(never.demoted_for_rights, 0);
            assert!(
                often.demoted_for_rights > 10 && often.tlb_misses > never.tlb_misses,
                "{often:?} {never:?}"
            );
        }
    }
}
