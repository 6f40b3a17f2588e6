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

use clap::Args;
use indicatif::ProgressStyle;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use tlbkit_addr::{Pages, Vpn};
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlblab_tables::mapping::{self, Job, Nodes};

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

impl Benchmark {
    /// Returns what a table is to do.
    fn job(&self, seed: u64) -> Job {
        if self.name == "task" {
            return Job::Tasks(TASKS);
        }
        let client = [TEXT, TEXT + 1, STACK].map(one);
        let segment = Pages::count(Vpn::new(SEGMENT), self.segment_mb as usize * 256);
        let region = self.region_kb.map_or(COMPACT, |kb| kb as usize / 4);
        let mut pages: Vec<_> = (REGION..REGION + region).map(Vpn::new).collect();
        pages.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        pages.truncate(if self.region_kb.is_some() { SPARSE } else { COMPACT });
        Job::Protect {
            others: client.into_iter().chain(segment).collect(),
            pages,
            region: Pages::count(Vpn::new(REGION), region).unwrap_or(one(REGION)),
            one_by_one: self.name == "PROT1",
        }
    }
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
        let structures = mapping::all();
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
            rounds.push(start(slab, benchmark.job(self.seed))?);
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
            for (name, start) in mapping::all() {
                let mut memory = vec![Chunk::ZERO; CHUNKS];
                let slab = Slab::new(&mut memory, 0).unwrap();
                let mut round = start(&slab, benchmark.job(1)).unwrap();
                for _ in 0..2 {
                    round().unwrap_or_else(|error| panic!("{name}, {benchmark:?}: {error}"));
                }
            }
        }
    }
}
