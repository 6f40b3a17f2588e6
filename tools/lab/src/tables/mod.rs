//! `tlblab tables`: every page table on the same pages and the same refills.
//!
//! What a program touched, or a workload draws, is mapped into each structure; the references go through a modelled
//! TLB, and every miss is looked up in each. Loads are counted and nodes weighed by the storage underneath
//! (`tlblab_tables::Storage`), every answer is compared with a plain map (`measure`), and the best guarded table that any choice
//! of node sizes could make is computed beside (`optimum`).

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use indicatif::ProgressStyle;
use serde::{Deserialize, Serialize};
use tlbkit_addr::{PageSize, Vpn};
use tlbkit_names::{GA, LPT};
use tlblab_tables::Named;

use crate::cache::Machine;
use crate::cycles::{self, Cycles, Program};
use crate::rows::{self, Aside};
use crate::tlb::TlbArgs;
use crate::trace::{Header, Input};
use crate::workload::{FileSizes, Workload};
use crate::{Experiment, Name, progress};

mod load;
mod machine;
mod measure;
mod optimum;
pub(crate) mod pieces;
mod refs;

pub(crate) use machine::Refill;

/// Map a program's pages into every page table, replay its TLB misses, compare
#[derive(Args, Debug)]
pub struct TablesArgs {
    /// Structures to run, by name [default: all that map the same pages]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Replay a trace: a file, or `-` for standard input [default: the shipped cc1.tlbt]
    #[arg(long, value_name = "FILE")]
    trace: Option<Input>,
    /// Stop after this many instructions of the trace
    #[arg(long, value_name = "INSTRUCTIONS", value_parser = clap::value_parser!(u64).range(1..))]
    instructions: Option<u64>,
    /// Map synthetic pages instead and refer to each once
    #[arg(long, value_enum)]
    workload: Option<Workload>,
    /// Pages of the workload [default: 8192; conventional: 2381, the paper's gcc]
    #[arg(long, value_name = "N")]
    pages: Option<usize>,
    /// The size of a page, in KB: pages of a trace are joined, and a workload is drawn in such pages. The structures resolve page numbers
    /// of 52 bits whatever the size
    #[arg(long, value_name = "KB", default_value_t = 4, value_parser = base_kb())]
    base_kb: usize,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Sizes of nodes and entries
    #[arg(long, value_enum, default_value_t = Layout::Paper)]
    layout: Layout,
    /// Count cycles of the walks' loads on a machine, on a trace of lines
    #[arg(long, value_name = "NAME", value_parser = cycles::machines())]
    machine: Option<Machine>,
    /// Plant a fault in each structure: `verified` must turn false
    #[arg(long, value_enum)]
    inject: Option<Inject>,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sizes: FileSizes,
    #[command(flatten)]
    tlb: TlbArgs,
}

/// The sizes of a base page that there are: a granule of AArch64, and so on.
fn base_kb() -> impl TypedValueParser<Value = usize> {
    PossibleValuesParser::new(["4", "8", "16", "64"]).try_map(|kb| kb.parse())
}

/// How large nodes and entries are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Elphinstone et al. section 3.2, to the byte; bytes are those of live nodes
    Paper,
    /// Ours; bytes are all that the nodes take from memory, records and rounding included
    Compact,
}

impl Layout {
    /// Returns every structure in the layout.
    fn structures(self) -> Vec<Named> {
        match self {
            Self::Paper => tlblab_tables::paper(),
            Self::Compact => tlblab_tables::compact(),
        }
    }

    /// Returns what the machine of the layout's linear table asks for.
    fn way(self) -> machine::Way {
        match self {
            Self::Paper => tlblab_tables::paper_way,
            Self::Compact => tlblab_tables::compact_way,
        }
    }
}

/// A fault to plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Inject {
    /// An entry that survives its unmapping
    Stale,
    /// An entry that is gone though it was never unmapped
    Lost,
    /// An entry that leads to another frame
    Wrong,
}

/// What a structure took and did.
#[derive(Debug, Serialize, Deserialize)]
pub struct Row {
    /// The table.
    pub name: Name,
    /// The trace or the workload.
    pub workload: String,
    /// The size of a page, in KB.
    pub base_kb: usize,
    /// How many pages are mapped.
    pub pages: usize,
    /// The seed of everything random.
    pub seed: u64,
    /// The sizes of nodes and entries.
    pub layout: Layout,
    /// How many refills there were.
    pub refills: u64,
    /// Loads of a refill's walk, of 32-bit words.
    pub refs_per_lookup_mean: f64,
    /// The most of 99 of 100 refills.
    pub refs_per_lookup_p99: u64,
    /// The most.
    pub refs_per_lookup_max: u64,
    /// Pages of the linear table that missed, too, for each refill; none for other tables.
    pub nested_misses_mean: Option<f64>,
    /// Bytes of the table with all pages mapped.
    pub bytes: usize,
    /// How many PTEs there are.
    pub ptes: usize,
    /// Bytes for each page.
    pub bytes_per_pte: f64,
    /// Bytes of inner nodes for each page.
    pub bytes_per_pte_inner: f64,
    /// The best that any node sizes could do, for guarded tables in the paper's layout.
    pub bytes_per_pte_optimum: Option<f64>,
    /// The most bytes of live nodes while the pages were mapped one by one.
    pub peak_bytes: usize,
    /// The most entries that one operation moved, for tables that grow by moving.
    pub moved_max: Option<usize>,
    /// How many nodes there are of each size in bytes, external leaf nodes left out.
    pub node_bytes: BTreeMap<usize, usize>,
    /// The same for the best guarded table.
    pub node_bytes_optimum: Option<BTreeMap<u64, u64>>,
    /// Whether every lookup gave what a plain map says, and nothing was left after all was unmapped.
    pub verified: bool,
    /// Cycles of the loads, each after the other, on a machine.
    #[serde(flatten)]
    pub cycles: Option<Cycles>,
    /// Loads of the walk of each refill, in order.
    #[serde(skip)]
    walks: Vec<u32>,
}

/// What every table did to serve the refills of a trace.
pub(crate) struct Walks {
    /// The pages of the trace.
    pub(crate) pages: Vec<Vpn>,
    /// The page of each refill, by its place in `pages`.
    pub(crate) refills: Vec<u32>,
    /// Each table's name, and the loads of each refill's walk.
    pub(crate) tables: Vec<(String, Vec<u32>)>,
}

/// The pages that a program needs, and its TLB's misses.
pub(crate) struct Misses {
    /// The trace's name, or the workload's.
    pub(crate) name: String,
    /// The pages, in the order in which they are first needed.
    pub(crate) pages: Vec<Vpn>,
    /// The refills, while the page table was in physical memory.
    pub(crate) refills: Vec<Refill>,
    /// The same, while it was a linear one in virtual memory.
    pub(crate) linear: Vec<Refill>,
    /// Instructions of the program, if a trace was recorded.
    pub(crate) instructions: Option<u64>,
    /// The program's references to lines, if they are kept.
    pub(crate) program: Option<Program>,
}

/// Returns what a trace misses, the shipped one if none is named, or a workload; with its references to lines, if `keep`. Of
/// the trace this many instructions at most, if `most` says so.
///
/// # Errors
///
/// If the trace or a number is no good.
pub(crate) fn misses(
    trace: Option<&Input>,
    workload: Option<(Workload, Option<usize>, FileSizes)>,
    tlb: &TlbArgs,
    seed: u64,
    keep: bool,
    most: Option<u64>,
) -> anyhow::Result<Misses> {
    let machines = load::Machines::new(tlb, seed, Some(tlblab_tables::paper_way))?.keeping(keep);
    let load = match workload {
        Some((workload, pages, sizes)) => {
            load::Load::from_workload(workload, pages, PageSize::K4, sizes, machines, seed)?
        }
        None => load::Load::from_trace(trace, PageSize::K4, most, machines)?,
    };
    let instructions = load.about.as_ref().map(|about| about.counts.instructions);
    let load::Load { name, pages, refills, linear, program, .. } = load;
    Ok(Misses { name, pages, refills, linear, instructions, program })
}

/// Replays a trace into every structure in the paper's layout but the linear table.
///
/// # Errors
///
/// If the trace is no good.
pub(crate) fn walks(trace: Option<&Input>, tlb: &TlbArgs, seed: u64) -> anyhow::Result<Walks> {
    let load = load::Load::from_trace(trace, PageSize::K4, None, load::Machines::new(tlb, seed, None)?)?;
    let optimum = optimum::Optimum::of(load.pages.iter().copied().collect::<BTreeSet<_>>());
    let run = measure::Run {
        load: &load,
        base_kb: 4,
        seed,
        layout: Layout::Paper,
        inject: None,
        optimum,
        on: None,
    };
    let mut tables = Vec::new();
    // A table in virtual memory has misses of its own.
    let others = tlblab_tables::paper();
    for structure in others.iter().filter(|structure| !structure.linear && !structure.only_if_named()) {
        if let Some(row) = measure::measure(structure, &run)? {
            tables.push((structure.name.to_owned(), row.walks));
        }
    }
    let refills = load.refills.iter().map(|refill| refill.place).collect();
    Ok(Walks { pages: load.pages, refills, tables })
}

impl Experiment for TablesArgs {
    const COMMAND: &'static str = "tables";
    type Row = Row;

    fn rows(&self) -> anyhow::Result<Vec<Row>> {
        let mut structures = self.layout.structures();
        for name in &self.names {
            if !structures.iter().any(|structure| structure.name == *name) {
                let names: Vec<_> = structures.iter().map(|structure| structure.name).collect();
                bail!("there is no structure `{name}`: choose from {}", names.join(", "));
            }
        }
        structures.retain(|structure| match self.names.as_slice() {
            [] => !structure.only_if_named(),
            names => names.iter().any(|name| name == structure.name),
        });
        // Without one there is no need to model its machine.
        let way = structures.iter().any(|structure| structure.name == LPT).then(|| self.layout.way());
        let machines = load::Machines::new(&self.tlb, self.seed, way)?.keeping(self.machine.is_some());
        let base = PageSize::from_bytes(self.base_kb << 10).context("--base-kb is a power of two")?;
        let load = match self.workload {
            Some(workload) => {
                load::Load::from_workload(workload, self.pages, base, self.sizes, machines, self.seed)?
            }
            None => load::Load::from_trace(self.trace.as_ref(), base, self.instructions, machines)?,
        };
        if let Some(Header { program, args, counts, .. }) = &load.about {
            let (instructions, references) = (counts.instructions, counts.references);
            let args = args.join(" ");
            progress::say(format!("{program} {args}: {instructions} instructions, {references} references"));
        }
        let pages: BTreeSet<_> = load.pages.iter().copied().collect();
        let optimum = optimum::Optimum::of(pages);
        let run = measure::Run {
            load: &load,
            base_kb: self.base_kb,
            seed: self.seed,
            layout: self.layout,
            inject: self.inject,
            optimum,
            on: self.machine,
        };
        let bar = progress::bar(Some(structures.len() as u64)).with_style(ProgressStyle::with_template(
            "{msg} {wide_bar} {pos} of {len} structures, {eta} left",
        )?);
        let mut results = Vec::new();
        for structure in bar.wrap_iter(structures.iter()) {
            bar.set_message(structure.name);
            let row = measure::measure(structure, &run)?;
            results.push(row.with_context(|| {
                format!(
                    "{} needs more than 4 GB of nodes: give fewer --pages, or name others",
                    structure.name
                )
            })?);
        }
        Ok(results)
    }
}

/// Runs the structures and prints a row for each.
///
/// # Errors
///
/// If a name, a number or the trace is no good.
pub(crate) fn run(args: &TablesArgs) -> anyhow::Result<()> {
    // Long, of few structures, or mostly the same.
    let fields = &["base_kb", "peak_bytes", "moved_max", "node_bytes", "node_bytes_optimum"];
    rows::print_aside(args.json, &args.rows()?, Aside { fields, of: GA })
}
