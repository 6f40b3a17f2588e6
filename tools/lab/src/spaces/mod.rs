//! `tlblab spaces`: several programs on one CPU, each in an address space of its own.
//!
//! The programs take turns of so many instructions; the entries of the TLB have their numbers, and so has what is behind it:
//!
//! | rows | compare |
//! |-|-|
//! | `stlb` | one software TLB for all address spaces, one for each in as much memory together, one for each that is as large; and one without numbers, which is emptied at every switch |
//! | `asids` | as many numbers as programs, and fewer: when they run out, the TLB and the software TLB are emptied ([`Asids`]) |
//! | `table` | one hashed table for all address spaces, also behind an anchor table, or one for each |
//! | `prefetch` | nothing, and up to so many entries, the latest that the program's last turn left in the TLB, loaded at the switch to it |
//!
//! A turn is of as many instructions as `--turns` says where the traces are of programs that ran alone. With `--together` the turns are
//! those of one trace of several programs, each of which ends where a program waited for another.

use std::collections::HashSet;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use tlbkit_addr::{Asid, Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_names::{H8K, H128K, HR};
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Error, Pinned, Table, Writer};
use tlbkit_stlb::{
    AsidTag, Asids, Cache, CacheMemory, Context, Direct, EntryLayout, Invalidate, Page64, folded,
};
use tlblab_tables::Storage;

use crate::superpage::{FETCH, PROGRAM, Work, recorded, turns};
use crate::tlb::{Tlb, TlbArgs};
use crate::{Experiment, Name, parallel, rows};

/// Let programs take turns, each in its address space
#[derive(Args, Debug)]
pub struct Spaces {
    /// The programs' traces
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    traces: Vec<PathBuf>,
    /// A trace of several programs, which take turns as they did when they were recorded
    #[arg(long, value_name = "FILE")]
    together: Option<PathBuf>,
    /// Instructions of a turn
    #[arg(long, value_name = "INSTRUCTIONS", value_delimiter = ',', default_values_t = [2_000, 20_000, 200_000], value_parser = clap::value_parser!(u64).range(1..))]
    turns: Vec<u64>,
    /// Stop each program after so many instructions, or all together
    #[arg(long, value_name = "INSTRUCTIONS")]
    instructions: Option<u64>,
    /// Numbers of address spaces [default: from one to as many as programs, doubling]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..2048))]
    asids: Vec<u16>,
    /// Seed of random replacement
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    tlb: TlbArgs,
}

/// What one way to serve the programs took.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// `stlb`, `asids`, `table` or `prefetch`.
    pub what: Name,
    /// The way.
    pub scheme: String,
    /// Instructions of a turn; where turns are recorded, in the mean.
    pub turn: u64,
    /// How many programs there are.
    pub programs: usize,
    /// Switches from one to another.
    pub switches: u64,
    /// TLB misses.
    pub tlb_misses: u64,
    /// Bytes of the software TLBs, or of the tables.
    pub bytes: Option<u64>,
    /// Misses that a software TLB serves.
    pub stlb_hit_rate: Option<f64>,
    /// Loads of a refill's walk, of 32-bit words.
    pub loads_mean: Option<f64>,
    /// How often the numbers ran out.
    pub generations: Option<u64>,
    /// Entries loaded at switches.
    pub prefetched: Option<u64>,
    /// Those that were used before they were replaced.
    pub used: Option<u64>,
}

/// A miss: the program, and the number of what an entry of the TLB maps.
type Miss = (usize, usize);

/// What an entry of the software TLB is for: as [`Page64`], the address space's number mixed into the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Folded;

impl EntryLayout for Folded {
    type Tag = u64;
    type Data = u64;
    type Count = ();
    const BASE: PageSize = PageSize::K4;
    const UNIT: PageSize = PageSize::K4;
    const ASID_BITS: u32 = Page64::ASID_BITS;

    fn index(unit: usize, asid: usize) -> usize {
        folded(unit, asid)
    }
}

/// The bytes of an entry of the software TLB.
const ENTRY: usize = 16;

/// A run of turns, and what it missed in a TLB with a number for each program.
struct Run<'a> {
    work: &'a Work,
    turn: u64,
    misses: Vec<Miss>,
    /// At which misses switches are.
    switches: Vec<usize>,
}

fn program_of(reference: u64) -> (usize, Vpn) {
    let at = (reference & !FETCH) as usize;
    (at >> PROGRAM, Vpn::new(at))
}

impl Run<'_> {
    fn row(&self, what: &'static str, scheme: impl Into<String>) -> Row {
        Row {
            what: what.into(),
            scheme: scheme.into(),
            turn: self.turn,
            programs: self.work.programs,
            switches: self.switches.len() as u64,
            tlb_misses: self.misses.len() as u64,
            bytes: None,
            stlb_hit_rate: None,
            loads_mean: None,
            generations: None,
            prefetched: None,
            used: None,
        }
    }
}

/// Returns the address by which software TLBs know what an entry maps.
fn address((_, unit): Miss) -> VirtAddr {
    Vpn::new(unit & ((1 << PROGRAM) - 1)).address(PageSize::K4)
}

fn tag<L: EntryLayout>(number: usize) -> anyhow::Result<AsidTag<L>> {
    let asid = u16::try_from(number).ok().and_then(|number| Asid::new(number, L::ASID_BITS));
    AsidTag::new(asid.context("too many programs")?).map_err(anyhow::Error::msg)
}

/// Who has a software TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    /// All address spaces one.
    One,
    /// Each its own.
    Each,
    /// All one without numbers, which is emptied at every switch.
    Emptied,
}

/// Returns the row of software TLBs of `SETS` entries each.
fn stlb<L: EntryLayout<Data = u64>, const SETS: usize, const BYTES: usize>(
    run: &Run<'_>,
    share: Share,
    name: String,
) -> anyhow::Result<Row> {
    let count = if share == Share::Each { run.work.programs } else { 1 };
    let mut memory: Vec<_> = (0..count).map(|_| Box::new(CacheMemory::<BYTES>::new())).collect();
    let caches = memory.iter_mut().map(|memory| Direct::<L, SETS>::new(memory.bytes()));
    let mut caches: Vec<_> = caches.collect::<Result<_, _>>().map_err(anyhow::Error::msg)?;
    let tags = (1..=run.work.programs).map(tag::<L>).collect::<anyhow::Result<Vec<_>>>()?;
    let (mut hits, mut switches) = (0u64, run.switches.iter().peekable());
    for (at, &miss) in run.misses.iter().enumerate() {
        while switches.next_if(|&&switch| switch <= at).is_some() {
            if share == Share::Emptied {
                caches[0].invalidate_all();
            }
        }
        let cache = &mut caches[if share == Share::Each { miss.0 } else { 0 }];
        let space = tags[if share == Share::One { miss.0 } else { 0 }];
        match cache.find(address(miss), space) {
            Some(_) => hits += 1,
            None => cache.fill(address(miss), space, 0),
        }
    }
    let bytes = Some((count * BYTES) as u64);
    let stlb_hit_rate = Some(hits as f64 / run.misses.len().max(1) as f64);
    Ok(Row { bytes, stlb_hit_rate, ..run.row("stlb", name) })
}

/// Returns the rows of software TLBs whose size for all is `SETS` entries, a quarter of it `QUARTER`.
fn stlbs<const SETS: usize, const BYTES: usize, const QUARTER: usize, const QUARTER_BYTES: usize>(
    run: &Run<'_>,
) -> anyhow::Result<Vec<Row>> {
    let kb = |bytes: usize| format!("{} KB", bytes as f64 / 1024.0);
    Ok(vec![
        stlb::<Page64, SETS, BYTES>(run, Share::One, format!("one of {}", kb(BYTES)))?,
        stlb::<Folded, SETS, BYTES>(run, Share::One, format!("one of {}, folded", kb(BYTES)))?,
        stlb::<Page64, QUARTER, QUARTER_BYTES>(run, Share::Each, format!("{} each", kb(QUARTER_BYTES)))?,
        stlb::<Page64, SETS, BYTES>(run, Share::Each, format!("{} each", kb(BYTES)))?,
        stlb::<Page64, SETS, BYTES>(run, Share::Emptied, format!("one of {}, emptied", kb(BYTES)))?,
    ])
}

/// Notes that everything with numbers must be emptied.
struct Numbered(bool);

impl<L: EntryLayout> Invalidate<L> for Numbered {
    fn invalidate_pages(&mut self, _: AsidTag<L>, _: Pages) {}

    fn invalidate_global(&mut self, _: Pages) {}

    fn invalidate_space(&mut self, _: AsidTag<L>) {}

    fn invalidate_all(&mut self) {
        self.0 = true;
    }
}

/// Returns the row of so many numbers.
fn asids(run: &Run<'_>, args: &Spaces, count: u16) -> anyhow::Result<Row> {
    const SETS: usize = 2048;
    let mut memory = Box::new(CacheMemory::<{ SETS * ENTRY }>::new());
    let mut cache = Direct::<Folded, SETS>::new(memory.bytes()).map_err(anyhow::Error::msg)?;
    let mut asids = Asids::<Folded>::new(1, count).map_err(anyhow::Error::msg)?;
    let mut contexts: Vec<_> = (0..run.work.programs).map(|_| Context::default()).collect();
    let mut tlb = Tlb::new(&args.tlb, args.seed)?;
    let (mut running, mut misses, mut hits, mut generations) = (None, 0u64, 0u64, 0u64);
    for &reference in &run.work.references {
        let (program, page) = program_of(reference);
        let space = match running {
            Some((known, space)) if known == program => space,
            _ => {
                let mut all = Numbered(false);
                let space = asids.activate(&mut contexts[program], &mut (&mut cache, &mut all));
                if all.0 {
                    tlb.flush();
                    generations += 1;
                }
                running = Some((program, space));
                space
            }
        };
        if !tlb.hits(page) {
            misses += 1;
            tlb.load(page);
            let at = address((program, page.get() >> (args.tlb.entry_pages - 1)));
            match cache.find(at, space) {
                Some(_) => hits += 1,
                None => cache.fill(at, space, 0),
            }
        }
    }
    Ok(Row {
        tlb_misses: misses,
        bytes: Some((SETS * ENTRY) as u64),
        stlb_hit_rate: Some(hits as f64 / misses.max(1) as f64),
        generations: Some(generations),
        ..run.row("asids", format!("{count} numbers"))
    })
}

/// Chunks of node memory for a table.
const CHUNKS: usize = 1 << 13;
/// Where an address space's number is in the addresses of a table for all.
const SPACE: u32 = 48;
/// Bytes of an entry of the paper's hashed tables, and of a word of an anchor table.
const BUCKET: u64 = 32;
const ANCHOR: u64 = 4;
/// First buckets of H128k.
const HEADS: u64 = 4096;

/// Returns what the walks of these misses load in one table of this name, and its bytes with all of their pages mapped.
fn walk(name: &str, misses: &[Miss], pair: u32) -> anyhow::Result<(u64, u64)> {
    let mut memory = vec![Chunk::ZERO; CHUNKS];
    let storage = Storage::new(Slab::new(&mut memory, 0).map_err(anyhow::Error::msg)?);
    let structure = tlblab_tables::paper().into_iter().find(|structure| structure.name == name);
    let form = structure.and_then(|structure| structure.form).context("a table of the paper's")?;
    let built = (form.build)(&storage)?;
    let page = |(_, unit): Miss| unit << pair & ((1 << PROGRAM) - 1);
    let at = |miss: Miss| VirtAddr::new(miss.0 << SPACE | page(miss) << PageSize::K4.shift());
    ensure!(
        misses.iter().all(|&miss| page(miss) >> (SPACE - PageSize::K4.shift()) == 0),
        "an address has more than {SPACE} bits, where a table for all address spaces has their numbers"
    );
    let mut mapped = HashSet::new();
    for &miss in misses {
        if mapped.insert(miss) {
            map(built.table(), at(miss)).with_context(|| name.to_owned())?;
        }
    }
    let before = storage.loads();
    for &miss in misses {
        // SAFETY: nothing is reclaimed during the walk: this thread is the only one.
        let pinned = unsafe { Pinned::by(&storage) };
        ensure!(built.table().lookup(pinned, at(miss)).is_some(), "{name} has lost a page");
    }
    let (loads, bytes) = (storage.loads() - before, storage.bytes() as u64);
    // SAFETY: no other thread walks the table, and this one does not now.
    unsafe { built.destroy().reclaim() };
    Ok((loads, bytes))
}

fn map<'t, 'n>(table: &'t (dyn Table<'n> + 't), at: VirtAddr) -> Result<(), Error> {
    let mut writer = Writer::new(table)?;
    let page = Pages::one(at.vpn(PageSize::K4));
    let done = writer.map(page, Pfn::new(1), PageSize::K4, Attr::READ | Attr::USER);
    // SAFETY: no other thread walks the table, this one does not now, and there is no TLB.
    unsafe { writer.finish().reclaim() };
    done
}

/// Returns the rows of hashed tables.
fn tables(run: &Run<'_>, pair: u32) -> anyhow::Result<Vec<Row>> {
    let row = |scheme: String, loads: u64, bytes: u64| Row {
        bytes: Some(bytes),
        loads_mean: Some(loads as f64 / run.misses.len().max(1) as f64),
        ..run.row("table", scheme)
    };
    let mut rows = Vec::new();
    let mut own = vec![Vec::new(); run.work.programs];
    run.misses.iter().for_each(|&(program, unit)| own[program].push((program, unit)));
    for name in [H8K, H128K, HR] {
        let (mut loads, mut bytes) = (0, 0);
        for own in &own {
            let (more, larger) = walk(name, own, pair)?;
            (loads, bytes) = (loads + more, bytes + larger);
        }
        rows.push(row(format!("{name} each"), loads, bytes));
        let (loads, bytes) = walk(name, &run.misses, pair)?;
        rows.push(row(format!("one {name}"), loads, bytes));
        if name == H128K {
            // Every entry is a node, to which a word of the anchor table leads: a load more.
            let entries = run.misses.iter().collect::<HashSet<_>>().len() as u64;
            let loads = loads + run.misses.len() as u64;
            let bytes = HEADS * ANCHOR + entries * BUCKET;
            rows.push(row(format!("one {name}, anchor table"), loads, bytes));
        }
    }
    Ok(rows)
}

/// Returns the row of so many entries loaded at a switch.
fn prefetch(run: &Run<'_>, args: &Spaces, count: usize) -> anyhow::Result<Row> {
    let mut tlb = Tlb::new(&args.tlb, args.seed)?;
    let pair = args.tlb.entry_pages - 1;
    // What each program's last turn left in the TLB, the latest of its entries.
    let mut kept = vec![Vec::new(); run.work.programs];
    // What has been loaded at the last switch and not been used yet.
    let mut unused = HashSet::new();
    let (mut running, mut misses, mut prefetched, mut used) = (None::<usize>, 0u64, 0u64, 0u64);
    for &reference in &run.work.references {
        let (program, page) = program_of(reference);
        let unit = page.get() >> pair;
        if running != Some(program) {
            if let Some(before) = running.replace(program) {
                kept[before] = tlb.latest(|page| page.get() >> PROGRAM == before, count);
            }
            unused.clear();
            for &page in &kept[program] {
                if !tlb.hits(page) {
                    tlb.load(page);
                    prefetched += 1;
                    unused.insert(page.get() >> pair);
                }
            }
        }
        let hits = tlb.hits(page);
        used += u64::from(!unused.is_empty() && unused.remove(&unit) && hits);
        if !hits {
            tlb.load(page);
            misses += 1;
        }
    }
    let row = run.row("prefetch", format!("{count} entries"));
    Ok(Row { tlb_misses: misses, prefetched: Some(prefetched), used: Some(used), ..row })
}

impl Spaces {
    /// Returns what the programs miss by turns of this length, with a number for each.
    fn run<'a>(&self, work: &'a Work, turn: u64) -> anyhow::Result<Run<'a>> {
        let mut tlb = Tlb::new(&self.tlb, self.seed)?;
        let pair = self.tlb.entry_pages - 1;
        let (mut misses, mut switches, mut running) = (Vec::new(), Vec::new(), None);
        for &reference in &work.references {
            let (program, page) = program_of(reference);
            if running.replace(program).is_some_and(|before| before != program) {
                switches.push(misses.len());
            }
            if !tlb.hits(page) {
                tlb.load(page);
                misses.push((program, page.get() >> pair));
            }
        }
        Ok(Run { work, turn, misses, switches })
    }

    fn of_turn(&self, turn: u64) -> anyhow::Result<Vec<Row>> {
        self.of_work(&turns(&self.traces, turn, self.instructions)?, turn)
    }

    fn of_work(&self, work: &Work, turn: u64) -> anyhow::Result<Vec<Row>> {
        let run = self.run(work, turn)?;
        let mut rows = stlbs::<512, { 512 * ENTRY }, 128, { 128 * ENTRY }>(&run)?;
        rows.extend(stlbs::<2048, { 2048 * ENTRY }, 512, { 512 * ENTRY }>(&run)?);
        rows.extend(stlbs::<8192, { 8192 * ENTRY }, 2048, { 2048 * ENTRY }>(&run)?);
        let numbers = match &*self.asids {
            [] => std::iter::successors(Some(1u16), |number| Some(number * 2))
                .take_while(|&number| usize::from(number) < work.programs)
                .chain([u16::try_from(work.programs)?])
                .collect(),
            numbers => numbers.to_vec(),
        };
        for count in numbers {
            rows.push(asids(&run, self, count)?);
        }
        rows.extend(tables(&run, self.tlb.entry_pages - 1)?);
        for count in [0, 2, 4, 8, 16, 32] {
            rows.push(prefetch(&run, self, count)?);
        }
        Ok(rows)
    }

    pub(crate) fn run_command(&self) -> anyhow::Result<()> {
        rows::print(self.json, &self.rows()?)
    }
}

impl Experiment for Spaces {
    const COMMAND: &'static str = "spaces";
    type Row = Row;

    fn rows(&self) -> anyhow::Result<Vec<Row>> {
        ensure!(self.traces.len() < 1 << 11, "at most 2047 programs have numbers");
        if let Some(path) = &self.together {
            let work = recorded(path, self.instructions)?;
            let of = |reference: &u64| program_of(*reference).0;
            let switches = work.references.windows(2).filter(|pair| of(&pair[0]) != of(&pair[1])).count();
            return self.of_work(&work, work.instructions / (switches as u64 + 1));
        }
        ensure!(!self.traces.is_empty(), "give --traces FILES, or --together FILE");
        Ok(parallel::map(&self.turns, |&turn| self.of_turn(turn))?.into_iter().flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tlb::Replacement;

    const TLB: TlbArgs = TlbArgs { entries: 4, ways: None, replacement: Replacement::Lru, entry_pages: 1 };

    fn args() -> Spaces {
        let (traces, together, turns, instructions, asids) = Default::default();
        Spaces { traces, together, turns, instructions, asids, seed: 1, json: false, tlb: TLB }
    }

    /// Two programs take turns, ten each; each refers to the same three pages of its own every time, and then to one of ten.
    fn work() -> Work {
        let page = |program: u64, page: u64| program << PROGRAM | page;
        let turn = |n: u64| [0, 1, 2, 10 + n / 2].map(|at| page(n % 2, at));
        Work::of((0..20).flat_map(turn).collect(), 2)
    }

    #[test]
    fn what_is_loaded_at_a_switch_is_not_missed() {
        let (work, args) = (work(), args());
        let run = args.run(&work, 4).unwrap();
        assert_eq!((run.switches.len(), run.misses.len()), (19, 80));
        assert_eq!(prefetch(&run, &args, 0).unwrap().tlb_misses, 80);
        // All four, from each program's second turn on: the program uses three of them again.
        let row = prefetch(&run, &args, 4).unwrap();
        assert_eq!((row.prefetched, row.used), (Some(4 * 18), Some(3 * 18)));
        assert_eq!(row.tlb_misses, 80 - 3 * 18);
        // One entry alone is that of the page which the program does not use again.
        let row = prefetch(&run, &args, 1).unwrap();
        assert_eq!((row.prefetched, row.used, row.tlb_misses), (Some(18), Some(0), 80));
    }

    #[test]
    fn numbers_that_run_out_empty_everything() {
        let (work, mut args) = (work(), args());
        args.tlb.entries = 64;
        let run = args.run(&work, 4).unwrap();
        // Three pages and ten others of each program.
        assert_eq!(run.misses.len(), 26);
        let two = asids(&run, &args, 2).unwrap();
        assert_eq!((two.tlb_misses, two.generations, two.stlb_hit_rate), (26, Some(0), Some(0.0)));
        // With one, each switch begins a generation.
        let one = asids(&run, &args, 1).unwrap();
        assert_eq!((one.tlb_misses, one.generations), (80, Some(19)));
    }

    #[test]
    fn software_tlbs_for_all_and_for_each() {
        let (work, args) = (work(), args());
        let run = args.run(&work, 4).unwrap();
        let rate = |misses: f64| Some(1.0 - misses / 80.0);
        let row =
            |share| stlb::<Page64, 64, { 64 * ENTRY }>(&run, share, String::new()).unwrap().stlb_hit_rate;
        assert_eq!(row(Share::Each), rate(26.0));
        // The programs' pages of the same numbers take turns in the same entries, but with the number in the index.
        assert_eq!(row(Share::One), rate(80.0));
        let folded = stlb::<Folded, 64, { 64 * ENTRY }>(&run, Share::One, String::new()).unwrap();
        assert_eq!(folded.stlb_hit_rate, rate(26.0));
        assert_eq!(row(Share::Emptied), rate(80.0));
    }

    #[test]
    fn one_table_has_the_pages_of_all() {
        let (work, args) = (work(), args());
        let run = args.run(&work, 4).unwrap();
        let rows = tables(&run, 0).unwrap();
        let of = |name: &str| rows.iter().find(|row| row.scheme == name).unwrap();
        assert_eq!((of("H8k each").bytes, of("one H8k").bytes), (Some(2 * 8192), Some(8192)));
        let (array, anchor) = (of("one H128k"), of("one H128k, anchor table"));
        assert_eq!(anchor.loads_mean, array.loads_mean.map(|loads| loads + 1.0));
        // A page is an entry, of the 26 pages.
        assert_eq!(anchor.bytes, Some(4096 * 4 + 26 * 32));
    }
}
