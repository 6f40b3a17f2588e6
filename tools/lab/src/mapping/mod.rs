//! `tlblab mapping`: what creating a task and protecting its pages cost (Elphinstone et al. 3.3, Figures 7, 9, 10, 11).
//!
//! The benchmarks of the paper on tables in its layout, timed on this host: tables take turns round by round, so that
//! whatever else the host does meets all of them, and a row's ratio to MPT means more than its nanoseconds.
//!
//! | benchmark | does |
//! |-|-|
//! | `task` | creates a table, maps one page, takes the table apart |
//! | `PROT1` | write-protects 128 neighbouring pages one by one, unprotects them one by one in random order |
//! | `PROTN` | the same, protected in one call |
//! | `sparse` | write-protects a region that holds 16 pages at random places, unprotects them one by one |
//!
//! A task has a page of text, one of data and one of stack besides; under `--segment-mb`, as many as fill that.

use std::hint::black_box;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::ProgressStyle;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_names::{C128K, G16, GA, H8K, H128K, HR, MPT};
use tlbkit_pagetable::format::Paper;
use tlbkit_pagetable::geometry::Va64;
use tlbkit_pagetable::gpt::{self, Adaptive, Fixed, Gpt};
use tlbkit_pagetable::hpt::Hashed;
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Change, Error, Holes, Local, Private, Solo};

use crate::{Experiment, Name, progress, rows};

/// Time the creation of tasks and the protection of their pages in every page table
#[derive(Args, Debug)]
pub struct Mapping {
    /// Rounds of each benchmark; the median counts
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(3..=100_000))]
    rounds: u32,
    /// The size of the untouched segment of the second sparse benchmark, in MB
    #[arg(long, value_name = "MB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    segment_mb: u32,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

/// A table at a benchmark.
#[derive(Debug, Serialize, Deserialize)]
pub struct Row {
    /// `task`, `PROT1`, `PROTN` or `sparse`.
    pub benchmark: Name,
    /// The table.
    pub name: Name,
    /// The size of the region that is protected, in the sparse benchmark.
    pub region_kb: Option<u32>,
    /// What else the task has mapped, in MB.
    pub segment_mb: u32,
    /// Nanoseconds of a task, or of a page that is protected and unprotected.
    pub ns: f64,
    /// The time over that of MPT in the same round: the median.
    pub of_mpt: f64,
    /// The lower quartile of that.
    pub of_mpt_low: f64,
    /// The upper quartile.
    pub of_mpt_high: f64,
}

/// What is timed.
#[derive(Clone, Copy, Debug)]
struct Benchmark {
    name: &'static str,
    region_kb: Option<u32>,
    segment_mb: u32,
}

impl Benchmark {
    /// Returns all of them.
    fn all(segment_mb: u32) -> Vec<Self> {
        let compact = ["task", "PROT1", "PROTN"];
        let compact = compact.map(|name| Self { name, region_kb: None, segment_mb: 0 });
        let sparse = [0, segment_mb].into_iter().flat_map(|segment_mb| {
            let regions = [64, 256, 1024, 4096, 16384];
            regions.map(|kb| Self { name: "sparse", region_kb: Some(kb), segment_mb })
        });
        compact.into_iter().chain(sparse).collect()
    }
}

/// Tasks of a round: one takes less time than reading the clock.
const TASKS: usize = 16;
/// Pages of the compact benchmarks, and of the sparse one.
const COMPACT: usize = 128;
const SPARSE: usize = 16;
/// Where the client's pages are.
const TEXT: usize = 0x400;
const STACK: usize = 0x7_ffff_efff;
const REGION: usize = 0x10_0000;
const SEGMENT: usize = 0x80_0000;
const RIGHTS: Attr = Attr::READ.union(Attr::WRITE);

/// Does a round and returns how long what counts took.
type Round<'n> = Box<dyn FnMut() -> Result<Duration, Error> + 'n>;
type Nodes<'m> = Slab<'m, u32, Solo>;
type Start = for<'n> fn(&'n Nodes<'n>, Benchmark, u64) -> Result<Round<'n>, Error>;

/// Returns every table's name, and what sets it up for a benchmark.
fn structures() -> Vec<(&'static str, Start)> {
    macro_rules! structures {
        ($($name:ident $make:expr;)*) => {
            vec![$( ($name, |nodes, benchmark, seed| start(benchmark, seed, move || $make(nodes))) ),*]
        };
    }
    structures! {
        MPT Mpt::<Va64, Paper, _>::new;
        G16 Gpt::<Va64, Paper, _, gpt::TwoWords, Fixed<4>>::new;
        GA Gpt::<Va64, Paper, _, gpt::TwoWords, Adaptive>::new;
        H8K Hashed::<Va64, Paper, _, 1, 8, 0>::new;
        H128K Hashed::<Va64, Paper, _, 1, 12, 0>::new;
        HR Hashed::<Va64, Paper, _, 1, 1, 100>::new;
        C128K Hashed::<Va64, Paper, _, 3, 10, 0>::new;
    }
}

/// Sets a table up and returns its round.
fn start<'n, T: Private<'n> + 'n>(
    benchmark: Benchmark,
    seed: u64,
    make: impl Fn() -> Result<T, Error> + 'n,
) -> Result<Round<'n>, Error> {
    // Nothing walks beside this thread and there is no TLB: a flush is nothing.
    let task = move || Ok(Local::new(make()?, |_stale: &_| ()));
    if benchmark.name == "task" {
        return Ok(Box::new(move || {
            let start = Instant::now();
            for _ in 0..TASKS {
                let mut table = task()?;
                table.map(one(TEXT), Pfn::new(1), PageSize::K4, RIGHTS)?;
                black_box(&table);
                table.destroy();
            }
            Ok(start.elapsed() / TASKS as u32)
        }));
    }
    let mut table = task()?;
    for (frame, page) in [TEXT, TEXT + 1, STACK].into_iter().enumerate() {
        table.map(one(page), Pfn::new(frame), PageSize::K4, RIGHTS)?;
    }
    let segment = benchmark.segment_mb as usize * 256;
    if let Some(pages) = Pages::count(Vpn::new(SEGMENT), segment) {
        table.map(pages, Pfn::new(0), PageSize::K4, RIGHTS)?;
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let region = benchmark.region_kb.map_or(COMPACT, |kb| kb as usize / 4);
    let count = if benchmark.region_kb.is_some() { SPARSE } else { COMPACT };
    let mut pages: Vec<usize> = (REGION..REGION + region).collect();
    pages.shuffle(&mut random);
    pages.truncate(count);
    for (frame, &page) in pages.iter().enumerate() {
        table.map(one(page), Pfn::new(frame), PageSize::K4, RIGHTS)?;
    }
    let region = Pages::count(Vpn::new(REGION), region).unwrap_or(one(REGION));
    let (protect, unprotect) = (Change::clear(Attr::WRITE), Change::set(Attr::WRITE));
    let one_by_one = benchmark.name == "PROT1";
    Ok(Box::new(move || {
        let start = Instant::now();
        if one_by_one {
            for page in REGION..REGION + COMPACT {
                table.protect(one(black_box(page)), Holes::Refuse, protect)?;
            }
        } else {
            table.protect(black_box(region), Holes::Skip, protect)?;
        }
        for &page in &pages {
            table.protect(one(black_box(page)), Holes::Refuse, unprotect)?;
        }
        Ok(start.elapsed() / count as u32)
    }))
}

fn one(page: usize) -> Pages {
    Pages::one(Vpn::new(page))
}

/// Memory for the nodes of a table.
const CHUNKS: usize = 1 << 11;

impl Experiment for Mapping {
    const COMMAND: &'static str = "mapping";
    type Row = Row;

    fn rows(&self) -> anyhow::Result<Vec<Row>> {
        let benchmarks = Benchmark::all(self.segment_mb);
        let bar = progress::bar(Some(benchmarks.len() as u64))
            .with_style(ProgressStyle::with_template("{wide_bar} {pos} of {len} benchmarks, {eta} left")?);
        let mut rows = Vec::new();
        for &benchmark in bar.wrap_iter(benchmarks.iter()) {
            rows.extend(self.compare(benchmark)?);
        }
        Ok(rows)
    }
}

impl Mapping {
    /// Runs the command.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        rows::print(self.json, &self.rows()?)
    }

    /// Times every table at a benchmark, in turn.
    fn compare(&self, benchmark: Benchmark) -> anyhow::Result<Vec<Row>> {
        let structures = structures();
        // A chunk of leaves for every 1024 pages and more, for tables of which every page takes 16 bytes and up.
        let chunks = CHUNKS + benchmark.segment_mb as usize * 4;
        let mut memories: Vec<_> = structures.iter().map(|_| vec![Chunk::ZERO; chunks]).collect();
        let slabs: Vec<Nodes<'_>> = memories
            .iter_mut()
            .map(|memory| Slab::new(memory, 0))
            .collect::<Result<_, _>>()
            .map_err(anyhow::Error::msg)?;
        let mut rounds = Vec::new();
        for ((_, start), slab) in structures.iter().zip(&slabs) {
            rounds.push(start(slab, benchmark, self.seed)?);
        }
        let mut times = vec![Vec::new(); rounds.len()];
        for _ in 0..self.rounds {
            for (round, times) in rounds.iter_mut().zip(&mut times) {
                times.push(round()?.as_nanos() as f64);
            }
        }
        let rows = structures.iter().zip(&times).map(|((name, _), own)| {
            let ratios = own.iter().zip(&times[0]).map(|(own, mpt)| own / mpt.max(1.0)).collect();
            let [of_mpt_low, of_mpt, of_mpt_high] = quartiles(ratios);
            let [_, ns, _] = quartiles(own.clone());
            let Benchmark { name: benchmark, region_kb, segment_mb } = benchmark;
            let (benchmark, name) = (benchmark.into(), (*name).into());
            Row { benchmark, name, region_kb, segment_mb, ns, of_mpt, of_mpt_low, of_mpt_high }
        });
        Ok(rows.collect())
    }
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[values.len() * quarter / 4])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_does_every_benchmark_twice() {
        for benchmark in Benchmark::all(4) {
            for (name, start) in structures() {
                let mut memory = vec![Chunk::ZERO; CHUNKS];
                let slab = Slab::new(&mut memory, 0).unwrap();
                let mut round = start(&slab, benchmark, 1).unwrap();
                for _ in 0..2 {
                    round().unwrap_or_else(|error| panic!("{name}, {benchmark:?}: {error}"));
                }
            }
        }
    }
}
