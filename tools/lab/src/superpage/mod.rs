//! `tlblab superpage`: sections 3 and 8 of Romer et al. on real traces, every policy beside every other.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use tlbkit_addr::PageSize;
use tlbkit_superpage::{Activity, Costs, PageSizes, Setup, Thrift};

use crate::trace::{self, Input, TraceError};
use crate::{Experiment, progress, rows};

mod adversary;
mod answers;
mod footprint;
mod offline;
mod policies;
mod pressure;
mod scan;
mod simulation;
#[cfg(test)]
mod tests;
mod tlb;

pub use adversary::{Adversary, Worst};
pub use answers::Row;
use answers::{Answer, row};
use footprint::Footprint;
use offline::{Outcome, Spool};
use policies::{ALL, Arena, Named};
pub(crate) use pressure::{FETCH, PROGRAM, Work, read as turns, recorded};
pub use pressure::{Pressed, Pressure};
use simulation::{Memory, Reference, Reservations, Simulation, Tlbs, Yardstick};
use tlb::{Entry, Lru};

/// Cycles of a TLB miss (section 8.1).
const MISS: u64 = 30;

/// References simulated at a time: a policy keeps its tables in the cache meanwhile.
const PIECE: usize = 1 << 15;

/// Simulate superpage promotion policies on a trace of page references
#[derive(Args, Debug)]
pub struct SuperpageArgs {
    /// A trace (recorded, lackey's or DynamoRIO's text, ChampSim's records; plain or packed), or - for standard input
    #[arg(long, value_name = "FILE")]
    trace: Input,
    /// The policies: all, or a list of names
    #[arg(long, value_name = "NAME,...", default_value = "all")]
    policy: String,
    /// Entries of the instruction and the data TLB; 0+32: data alone; one number: one TLB for both
    #[arg(long, value_name = "ENTRIES", default_value = "32+32")]
    tlb: Tlbs,
    /// The cost of copying 1 KB, in TLB misses
    #[arg(long, value_name = "MISSES", default_value_t = 100)]
    r_per_kb: u32,
    /// The page sizes in bytes (K, M, G, T), ascending, from 4K or (TLB entries that map pairs) 8K up
    #[arg(long, value_name = "SIZE,...", default_value = "4K,8K,16K,32K,64K,128K,256K,512K,1M,2M,4M,8M")]
    sizes: String,
    /// Replay the trace this many times: an extrapolation, and labelled so
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Stop after this many instructions of the trace
    #[arg(long, value_name = "INSTRUCTIONS", value_parser = clap::value_parser!(u64).range(1..))]
    instructions: Option<u64>,
    /// Print rows for every prefix of a multiple of this many instructions, too (all but OFFLINE)
    #[arg(long, value_name = "INSTRUCTIONS", value_parser = clap::value_parser!(u64).range(1..))]
    every: Option<u64>,
    /// Keep counting policies inactive below this many misses per million instructions
    #[arg(long, value_name = "MISSES", default_value_t = 0)]
    inactive_below: u32,
    /// Memory for the counters of this many segments (of the largest page size)
    #[arg(long, value_name = "N", default_value_t = 4096)]
    segments: usize,
    /// How many of the kernel's reservations of 64 KB succeed, in percent, whatever the policy: what a policy promotes
    /// within one is not copied [default: 50 for THRIFT, which with none is APPROX-ONLINE; all for RESERVE and SUBBLOCK;
    /// none for the others]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(..=100))]
    reserved: Option<u32>,
    /// How many of the promotions that have to be copied are refused, in percent, for want of contiguous memory
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=100))]
    refuse: u32,
    /// Cycles that the bookkeeping of a miss takes, by policy, instead of the paper's: THRIFT=109.5,APPROX-ONLINE=98
    #[arg(long, value_name = "NAME=CYCLES,...", value_delimiter = ',')]
    book: Vec<Book>,
    /// Go on after malformed lines of a text
    #[arg(long)]
    skip_bad: bool,
    /// Write one line a promotion: miss number, first page, base pages
    #[arg(long, value_name = "FILE")]
    promotions: Option<PathBuf>,
    /// Instead: what share of R the charges of superpages that OFFLINE leaves unpromoted come to (section 7.2)
    #[arg(long)]
    thresholds: bool,
    /// Instead: improvement of execution time over fixed 4 KB pages, at one cycle an instruction (Table 5)
    #[arg(long)]
    end_to_end: bool,
    /// Instead: time of each simulation over that of a bare LRU TLB
    #[arg(long)]
    speed: bool,
    /// Instead: how much of what OFFLINE maps by superpages the policies do, and how much of what they do it does; and the
    /// same of an OFFLINE that has THRIFT's reservations, and need not copy there
    #[arg(long)]
    overlap: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A policy's cycles of bookkeeping a miss.
#[derive(Clone, Debug)]
struct Book {
    policy: Named,
    cycles: f64,
}

impl FromStr for Book {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (policy, cycles) = text
            .split_once('=')
            .with_context(|| format!("`{text}` is no policy and number: give APPROX-ONLINE=98"))?;
        let cycles = cycles
            .parse()
            .ok()
            .filter(|cycles: &f64| cycles.is_finite() && *cycles >= 0.0)
            .with_context(|| format!("`{cycles}` is no number of cycles: give 98, or 98.5"))?;
        Ok(Self { policy: policy.parse()?, cycles })
    }
}

impl Experiment for SuperpageArgs {
    const COMMAND: &'static str = "superpage";
    type Row = Row;

    fn rows(&self) -> anyhow::Result<Vec<Row>> {
        match answer(self)? {
            Answer::Policies(rows) => Ok(rows),
            _ => bail!("--thresholds, --overlap, --speed and --end-to-end have other rows: leave them out"),
        }
    }
}

/// Runs the command.
///
/// # Errors
///
/// What is wrong with the trace, the policies, the sizes or the costs, in one line.
pub(crate) fn run(args: &SuperpageArgs) -> anyhow::Result<ExitCode> {
    match answer(args)? {
        Answer::Policies(rows) => rows::print(args.json, &rows)?,
        Answer::Thresholds(rows) => rows::print(args.json, &rows)?,
        Answer::EndToEnd(rows) => rows::print(args.json, &rows)?,
        Answer::Speed(rows) => rows::print(args.json, &rows)?,
        Answer::Overlap(rows) => rows::print(args.json, &rows)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Simulates, and answers what is asked.
fn answer(args: &SuperpageArgs) -> anyhow::Result<Answer> {
    let setup = setup(args)?;
    let mut policies: Vec<Named> = Vec::new();
    for name in args.policy.split(',') {
        let list = if name.eq_ignore_ascii_case("all") { ALL } else { name };
        for name in list.split(',') {
            let named = name.parse()?;
            if !policies.contains(&named) {
                policies.push(named);
            }
        }
    }
    if args.thresholds {
        policies = vec![Named::Offline];
    }
    if args.overlap && !policies.contains(&Named::Offline) {
        policies.push(Named::Offline);
    }
    if args.end_to_end && !policies.contains(&Named::Fixed(PageSize::K4)) {
        policies.insert(0, Named::Fixed(PageSize::K4));
    }
    if let Some(book) = args.book.iter().find(|book| !policies.contains(&book.policy)) {
        bail!("--book has cycles for {}, which is none of the policies: leave it out", book.policy);
    }
    if args.inactive_below > 0 && !policies.iter().any(|policy| policy.is_counting()) {
        bail!("--inactive-below is for policies that count: ONLINE, APPROX-ONLINE or THRIFT");
    }
    if args.promotions.is_some() && policies.len() != 1 {
        bail!("--promotions takes the promotions of one policy: name it with --policy");
    }
    if args.repeat > 1 && args.trace == Input::Stdin {
        bail!("standard input cannot be read {} times: name a file, or leave --repeat out", args.repeat);
    }
    let mut arenas = policies
        .iter()
        .map(|&named| Arena::new(named, &setup, args.tlb, args.segments))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut lab = Lab::new(args, &setup, &policies, &mut arenas)?;
    for pass in 0..args.repeat {
        lab.stream(args, pass)?;
    }
    lab.finish(args, &setup)
}

fn setup(args: &SuperpageArgs) -> anyhow::Result<Setup> {
    let sizes = args
        .sizes
        .split(',')
        .map(|text| {
            policies::size(text).with_context(|| {
                format!("`{text}` is no page size: give a power of two of bytes, as in 64K or 1T")
            })
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let page_sizes =
        PageSizes::new(PageSize::K4, &sizes).with_context(|| format!("--sizes {} is refused", args.sizes))?;
    let costs = Costs { r_per_kb: args.r_per_kb, ..Costs::PAPER };
    if args.r_per_kb == 0 {
        bail!("--r-per-kb 0 would make every promotion free: give at least 1");
    }
    Ok(Setup {
        page_sizes,
        split: args.tlb.instruction > 0,
        costs,
        activity: Activity { misses_per_million: args.inactive_below },
    })
}

/// Everything that runs beside one another on one stream.
struct Lab<'m> {
    name: String,
    simulations: Vec<(Named, Simulation<'m>)>,
    footprint: Footprint,
    yardstick: Option<Yardstick>,
    offline: Option<OfflineInput>,
    instructions: u64,
    skipped: u64,
    /// Rows of prefixes, and how many prefixes there were.
    prefixes: Vec<Row>,
    prefixes_taken: u64,
}

/// The base-page TLB whose misses OFFLINE works on.
struct OfflineInput {
    spool: Spool,
    lru: [Lru; 2],
    unit: u32,
}

impl<'m> Lab<'m> {
    fn new(
        args: &SuperpageArgs,
        setup: &Setup,
        policies: &[Named],
        arenas: &'m mut [Arena],
    ) -> anyhow::Result<Self> {
        let mut simulations = Vec::new();
        for (&named, arena) in policies.iter().zip(arenas) {
            let (sizing, book) = arena.build(named, setup, args.tlb)?;
            let mut simulation = Simulation::new(named.to_string(), sizing, book, args.tlb);
            if let Some(book) = args.book.iter().rfind(|book| book.policy == named) {
                simulation.book_per_miss = book.cycles;
            }
            if let (Some(path), true) = (&args.promotions, named != Named::Offline) {
                simulation.log = Some(Box::new(BufWriter::new(create(path)?)));
            }
            simulation.holes = named == Named::Subblock;
            simulation.memory = memory(args, setup, named);
            simulation.tells = named == Named::Thrift;
            simulations.push((named, simulation));
        }
        let unit = setup.page_sizes.size(0).map_or(0, |unit| unit.shift() - PageSize::K4.shift());
        let offline = policies
            .contains(&Named::Offline)
            .then(|| {
                let lru = [Lru::new(args.tlb.data), Lru::new(args.tlb.instruction)];
                Spool::new().map(|spool| OfflineInput { spool, lru, unit })
            })
            .transpose()
            .context("cannot make a temporary file for OFFLINE: set TMPDIR")?;
        let name = match &args.trace {
            Input::Stdin => "-".into(),
            Input::File(path) => {
                path.file_name().map_or("-".into(), |name| name.to_string_lossy().into_owned())
            }
        };
        let name = match args.repeat {
            1 => name,
            times => format!("{name} (extrapolated: {times} times over)"),
        };
        let yardstick = args.speed.then(|| Yardstick::new(args.tlb));
        Ok(Self {
            name,
            simulations,
            footprint: Footprint::default(),
            yardstick,
            offline,
            instructions: 0,
            skipped: 0,
            prefixes: Vec::new(),
            prefixes_taken: 0,
        })
    }

    /// Reads the trace once, and simulates as it comes.
    fn stream(&mut self, args: &SuperpageArgs, pass: u32) -> anyhow::Result<()> {
        let bar = bar(&format!("reading, pass {} of {}", pass + 1, args.repeat));
        let mut trace = trace::open(&args.trace, &bar)?;
        let mut piece = Vec::with_capacity(PIECE);
        let enough = args.instructions.map_or(u64::MAX, |n| n.saturating_add(self.instructions));
        while self.instructions < enough {
            if let Some(every) = args.every
                && self.instructions >= every * (self.prefixes_taken + 1)
            {
                self.simulate(&piece, args.tlb, &bar)?;
                piece.clear();
                self.prefix(args.r_per_kb);
            }
            let access = match trace.next() {
                None => break,
                Some(Ok(access)) => access,
                Some(Err(error @ TraceError::Line { .. })) if args.skip_bad => {
                    if self.skipped == 0 {
                        bar.suspend(|| progress::say(format!("tlblab: {error}; going on")));
                    }
                    self.skipped += 1;
                    continue;
                }
                Some(Err(error @ TraceError::Line { .. })) => {
                    return Err(error).context("use --skip-bad to go on after bad lines");
                }
                Some(Err(error)) => return Err(error.into()),
            };
            self.instructions += access.instructions();
            let fetch = access.kind.is_fetch();
            if args.tlb.route(fetch).is_some() {
                piece.push(Reference { page: access.page.get(), fetch, now: self.instructions });
                if piece.len() == PIECE {
                    self.simulate(&piece, args.tlb, &bar)?;
                    piece.clear();
                }
            }
        }
        self.simulate(&piece, args.tlb, &bar)?;
        bar.finish_and_clear();
        Ok(())
    }

    /// Adds the rows of the prefix that has been simulated.
    fn prefix(&mut self, r_per_kb: u32) {
        for (named, simulation) in &self.simulations {
            if *named != Named::Offline {
                self.prefixes.push(row(&self.name, self.instructions, &self.footprint, simulation, r_per_kb));
            }
        }
        self.prefixes_taken += 1;
    }

    fn simulate(&mut self, piece: &[Reference], tlbs: Tlbs, bar: &ProgressBar) -> anyhow::Result<()> {
        for reference in piece {
            self.footprint.touch(reference.page);
        }
        if let Some(yardstick) = &mut self.yardstick {
            yardstick.run(piece);
        }
        for (_, simulation) in &mut self.simulations {
            simulation.run(piece).context("cannot write the promotions")?;
            if let Some(page) = simulation.out_of_segments.take() {
                let name = &simulation.name;
                bar.suspend(|| {
                    progress::say(format!("tlblab: {name}: no memory for the counters of page {page}, no promotion there: raise --segments"));
                });
            }
        }
        if let Some(OfflineInput { spool, lru, unit }) = &mut self.offline {
            for reference in piece {
                let Some(tlb) = tlbs.route(reference.fetch) else { continue };
                let unit = reference.page >> *unit;
                if !lru[tlb].hit(unit) {
                    let evicted = lru[tlb].refill(Entry::around(unit, 0));
                    spool
                        .push(tlb, unit, evicted.map(|entry| entry.first))
                        .context("cannot write OFFLINE's temporary file")?;
                }
            }
        }
        Ok(())
    }

    fn finish(mut self, args: &SuperpageArgs, setup: &Setup) -> anyhow::Result<Answer> {
        if self.skipped > 0 {
            progress::say(format!("tlblab: skipped {} bad lines", self.skipped));
        }
        if self.instructions == 0 && self.footprint.pages() == 0 {
            return Err(TraceError::NoReference.into());
        }
        let (mut outcome, mut reserving) = (None, None);
        if let Some(OfflineInput { spool, unit, .. }) = &mut self.offline {
            let bar = bar("OFFLINE").with_style(ProgressStyle::with_template("{msg} {elapsed}")?);
            let told = |round, misses| {
                bar.set_message(format!("OFFLINE, round {round}: {misses} misses"));
                bar.tick();
            };
            let copying = offline::copying(&setup.page_sizes, args.r_per_kb);
            let choose = |spool: &mut Spool, memory: &Memory| {
                let cost = |node| if memory.has_reserved(setup, node, *unit) { 0 } else { copying(node) };
                offline::choose(spool, &setup.page_sizes, args.tlb, cost, told)
            };
            let found = choose(spool, &memory(args, setup, Named::Offline))?;
            if args.overlap {
                let found = choose(spool, &memory(args, setup, Named::Thrift))?;
                reserving = Some(offline_map(&found, setup, *unit));
            }
            bar.finish_and_clear();
            if let Some(path) = args.promotions.as_ref() {
                let mut log = BufWriter::new(create(path)?);
                for (&first, &level) in &found.chosen {
                    writeln!(
                        log,
                        "0 {:#x} {}",
                        first << *unit,
                        1u64 << (setup.page_sizes.shift(level) + *unit)
                    )?;
                }
            }
            outcome = Some((found, *unit));
        }
        if let (true, Some((found, _))) = (args.thresholds, &outcome) {
            return Ok(Answer::Thresholds(self.shares(found, setup)));
        }
        if let Some(yardstick) = self.yardstick.take() {
            return Ok(Answer::Speed(self.speeds(&yardstick)));
        }
        let mut rows = std::mem::take(&mut self.prefixes);
        for (named, simulation) in &mut self.simulations {
            if let (Named::Offline, Some((found, unit))) = (*named, &outcome) {
                simulation.misses = found.misses;
                simulation.map = offline_map(found, setup, *unit);
                for (&first, &level) in &found.chosen {
                    simulation.promotions += 1;
                    if !simulation.memory.has_reserved(setup, (first, level), *unit) {
                        simulation.kb_copied += 4 << (setup.page_sizes.shift(level) + unit);
                    }
                }
            }
            if let Some(mut log) = simulation.log.take() {
                log.flush().context("cannot write the promotions")?;
            }
            rows.push(row(&self.name, self.instructions, &self.footprint, simulation, args.r_per_kb));
        }
        if args.overlap {
            return Ok(Answer::Overlap(self.overlaps(reserving.as_ref())));
        }
        if !args.end_to_end {
            return Ok(Answer::Policies(rows));
        }
        Ok(Answer::EndToEnd(answers::end_to_end(&rows)))
    }
}

/// The memory that a policy's kernel has: the same for all if there is a word on reservations, otherwise what the policy's
/// authors assume.
fn memory(args: &SuperpageArgs, setup: &Setup, named: Named) -> Memory {
    let percent = args.reserved.or((named == Named::Thrift).then_some(50));
    // RESERVE and SUBBLOCK ask for nothing that they have not reserved.
    let size = Thrift::region(&setup.page_sizes).unwrap_or(PageSize::K4);
    Memory::new(percent.map(|percent| Reservations::new(size, percent)), args.refuse)
}

/// What OFFLINE maps; `unit` is the shift from base pages to units.
fn offline_map(found: &Outcome, setup: &Setup, unit: u32) -> tlb::Map {
    let mut map = tlb::Map::default();
    for (&first, &level) in &found.chosen {
        map.promote(Entry::around(first << unit, setup.page_sizes.shift(level) + unit));
    }
    map
}

fn create(path: &std::path::Path) -> anyhow::Result<File> {
    File::create(path)
        .with_context(|| format!("cannot write `{}`: choose another --promotions", path.display()))
}

/// A progress bar with the time left.
fn bar(what: &str) -> ProgressBar {
    let template = "{msg} {wide_bar} {bytes}/{total_bytes} {elapsed}, {eta} left";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    progress::bar(None).with_style(style).with_message(what.to_owned())
}
