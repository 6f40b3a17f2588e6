//! `tlblab mach`: Mach 3.0's TLB misses on an R3000, and what software TLBs and prefetching take away of them.
//!
//! The benchmarks of Bala's thesis (4.5) and of the OSDI paper (6.1) run on a model of the machine; the caches are
//! those of `tlbkit-stlb`. What the thesis leaves open is `Open` in `mach/benchmark.rs`, and `--sensitivity` says what
//! depends on it.

mod apps;
mod benchmark;
mod claims;
mod costs;
mod kernel;
mod level;
mod programs;
mod rng;
mod scheme;
mod tlb;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, bail, ensure};
use benchmark::{Inject, Open, Pattern, Record, Workload, replay, run};
use clap::{Args, ValueEnum};
use costs::Costs;
use indicatif::{ProgressBar, ProgressIterator, ProgressStyle};
use kernel::{Fill, For, Tally};
use programs::Programs;
use serde::{Deserialize, Serialize};
use tlbkit_stlb::Counters;

use crate::trace::Input;
use crate::{Experiment, Name, rows};

pub use apps::AppRow;
pub use scheme::Scheme;

/// Rerun the synthetic benchmarks of Bala's thesis under Mach 3.0 with and without STLB and PTLB.
#[derive(Debug, Args)]
pub struct Mach {
    /// Servers in the chain: a number, or a range such as 1..10 (both ends included)
    #[arg(long, value_name = "N,...", default_value = "1..10", value_parser = numbers::<1, 64>)]
    servers: Numbers,
    /// Client processes: a number or a range
    #[arg(long, value_name = "N,...", default_value = "1", value_parser = numbers::<1, 64>)]
    clients: Numbers,
    /// Words of data a process touches between messages: a number, a range, or a list such as 5,10,20
    #[arg(long, value_name = "WORDS,...", default_value = "30", value_parser = numbers::<0, 1000>)]
    words: Numbers,
    /// Which processes talk to each other
    #[arg(long, default_value = "chain")]
    pattern: Pattern,
    /// A trace of programs that were recorded together, in place of the benchmark's: a switch is a message
    #[arg(long, value_name = "FILE")]
    together: Option<PathBuf>,
    /// Schemes, separated by commas, or all
    #[arg(long, value_name = "NAME,...", default_value = "all", value_parser = schemes)]
    scheme: Schemes,
    /// Computation between messages, in units of a message's own time
    #[arg(long, default_value = "0", value_parser = ["0", "2", "5"])]
    granularity: String,
    /// Let a client hand the processor to the server and keep its turn for several requests
    #[arg(long)]
    handoff: bool,
    /// A published experiment in place of servers, clients and words
    #[arg(long)]
    preset: Option<Preset>,
    /// When the STLB takes an entry: on load into the TLB (thesis) or on eviction from it (OSDI paper)
    #[arg(long, default_value = "load")]
    fill: Fill,
    /// Whose first message records entries for prefetching: each process's (thesis) or each pair's (OSDI paper)
    #[arg(long, default_value = "process")]
    record: Record,
    /// Leave out one invalidation, and count what goes wrong
    #[arg(long, num_args = 0..=1, default_missing_value = "page")]
    inject: Option<Inject>,
    /// Messages for each row
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(100..=100_000_000))]
    ipcs: u64,
    /// Seed of everything random
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Show instead what the kernel misses are for (Table 3.1), with four servers
    #[arg(long)]
    address_types: bool,
    /// Show instead which claims of the thesis hold as what it leaves open is varied
    #[arg(long)]
    sensitivity: bool,
    /// Show instead the stand-ins for the thesis's six applications, beside what it printed for them
    #[arg(long)]
    apps: bool,
    /// Three recorded traces for `--apps`: client, X server, Unix server [default: stretches of the shipped one]
    #[arg(long, value_name = "FILE")]
    trace: Vec<Input>,
    /// Cycles of cache misses that an instruction takes, for `--apps` and `--together`: what `tlblab refill --machine r3000` counts, times 24
    #[arg(long, value_name = "CYCLES", default_value_t = 0.0)]
    stall: f64,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

/// Published experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Preset {
    /// OSDI paper 6.1: three clients query a database server
    #[value(name = "osdi-6.1")]
    Osdi61,
}

/// One row: a scheme in one configuration.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The scheme.
    pub scheme: Scheme,
    /// Servers in the chain.
    pub servers: usize,
    /// Client processes.
    pub clients: usize,
    /// Words of data that a process touches between messages.
    pub words: usize,
    /// Messages.
    pub ipcs: u64,
    /// Misses on pages of processes.
    pub l1u: u64,
    /// Misses on pages of kernel data.
    pub l1k: u64,
    /// Misses on pages of user page tables.
    pub l2: u64,
    /// Misses on pages of the kernel page table.
    pub l3: u64,
    /// TLB-invalid misses: first touches of a process's pages, none of which is paged out.
    pub invalid: u64,
    /// TLB-modify misses: first stores to pages that were mapped at a load; of recorded programs, for the thesis does not say which
    /// of its benchmark's words are stored to.
    pub modify: Option<u64>,
    /// Misses within the handler of another miss.
    pub cascaded: u64,
    /// Kernel misses for each message.
    pub kernel_misses_per_ipc: f64,
    /// Hits of the lookups in the STLB, from 0 to 1; none without one.
    pub stlb_hit_rate: Option<f64>,
    /// Cycles of kernel misses for each message.
    pub penalty_cycles_per_ipc: f64,
    /// Cycles of user misses for each message.
    pub user_cycles_per_ipc: f64,
    /// Cycles that the scheme adds for each message.
    pub overhead_cycles_per_ipc: f64,
    /// Cycles of a message and of all that goes with it.
    pub cycles_per_ipc: f64,
    /// Run time saved, in percent of that under Mach.
    pub speedup_pct: f64,
    /// Hits on entries that had been invalid.
    pub stale_hits: u64,
    /// Entries that were prefetched.
    pub prefetched: u64,
    /// Those of them that were used.
    pub prefetches_used: u64,
}

impl Row {
    fn new(workload: &Workload, scheme: Scheme, mach: &Tally, (tally, count): &(Tally, Counters)) -> Self {
        let per_ipc = |number: u64| number as f64 / tally.ipcs as f64;
        let lookups = count.hits() + count.misses();
        let Workload { servers, clients, words, .. } = *workload;
        Self {
            scheme,
            servers,
            clients,
            words,
            ipcs: tally.ipcs,
            l1u: tally.l1u,
            l1k: tally.l1k,
            l2: tally.l2,
            l3: tally.l3,
            invalid: tally.invalid,
            modify: workload.programs.is_some().then_some(tally.modify),
            cascaded: tally.cascaded,
            kernel_misses_per_ipc: per_ipc(tally.kernel_misses()),
            stlb_hit_rate: (lookups > 0).then(|| count.hits() as f64 / lookups as f64),
            penalty_cycles_per_ipc: per_ipc(tally.penalty),
            user_cycles_per_ipc: per_ipc(tally.user_penalty),
            overhead_cycles_per_ipc: per_ipc(tally.overhead),
            cycles_per_ipc: cycles_per_ipc(tally),
            speedup_pct: 100.0 * (1.0 - cycles_per_ipc(tally) / cycles_per_ipc(mach)),
            stale_hits: tally.stale,
            prefetched: count.prefetched(),
            prefetches_used: count.prefetches_used(),
        }
    }
}

/// Returns the run time of a message and all that goes with it.
fn cycles_per_ipc(tally: &Tally) -> f64 {
    (tally.work + tally.penalty + tally.user_penalty + tally.overhead) as f64 / tally.ipcs as f64
}

/// A row of Table 3.1.
#[derive(Debug, Serialize, Deserialize)]
pub struct AddressType {
    /// What is at the address, and the kind of miss.
    pub address_type: Name,
    /// Kernel misses.
    pub misses: u64,
    /// Their share of all, in percent.
    pub pct: f64,
    /// The share that the thesis prints.
    pub printed_pct: Option<f64>,
}

impl Experiment for Mach {
    const COMMAND: &'static str = "mach";
    type Row = Row;

    fn rows(&self) -> anyhow::Result<Vec<Row>> {
        if self.sensitivity || self.apps || self.address_types {
            bail!("--sensitivity, --apps and --address-types have other rows: leave them out");
        }
        self.benchmark()
    }
}

/// `mach --apps`: the stand-ins for the thesis's applications.
#[derive(Debug, Args)]
pub struct Apps {
    #[command(flatten)]
    args: Mach,
}

impl Experiment for Apps {
    const COMMAND: &'static str = Mach::COMMAND;
    type Row = AppRow;

    fn rows(&self) -> anyhow::Result<Vec<AppRow>> {
        ensure!(self.args.apps, "`mach` without --apps has other rows: add it");
        self.args.applications()
    }
}

/// `mach --address-types`: what the kernel misses are for.
#[derive(Debug, Args)]
pub struct AddressTypes {
    #[command(flatten)]
    args: Mach,
}

impl Experiment for AddressTypes {
    const COMMAND: &'static str = Mach::COMMAND;
    type Row = AddressType;

    fn rows(&self) -> anyhow::Result<Vec<AddressType>> {
        ensure!(self.args.address_types, "`mach` without --address-types has other rows: add it");
        self.args.address_types()
    }
}

impl Mach {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        if self.sensitivity {
            return rows::print(self.json, &claims::sensitivity(&self.workload()?));
        }
        if self.apps {
            return rows::print(self.json, &self.applications()?);
        }
        if self.address_types {
            return rows::print(self.json, &self.address_types()?);
        }
        rows::print(self.json, &self.benchmark()?)
    }

    fn applications(&self) -> anyhow::Result<Vec<AppRow>> {
        apps::rows(&self.workload()?, &self.trace, self.stall()?)
    }

    fn stall(&self) -> anyhow::Result<f64> {
        let stall = self.stall;
        ensure!((0.0..1e6).contains(&stall), "--stall is {stall}: give cycles from 0 to a million");
        Ok(stall)
    }

    /// Replays programs that were recorded together; the first is the client.
    fn replayed(&self, path: &Path, base: Workload) -> anyhow::Result<Vec<Row>> {
        let (talk, stretches) = apps::talk(path)?;
        let servers = stretches.len() - 1;
        ensure!(servers < 64, "{} programs: at most 64, the R3000's address-space numbers", servers + 1);
        let stretches = Rc::new(stretches);
        let programs = Programs { stretches, client: 0, service: 0, stall: self.stall()? };
        // Nothing is mapped anew: the programs ran to their ends.
        let open = Open { change_every: u64::MAX, ..base.open.clone() };
        let workload = Workload { servers, clients: 1, words: 0, programs: Some(programs), open, ..base };
        let (mach, _) = replay(&workload, &talk, Scheme::Mach);
        let row = |&scheme: &Scheme| Row::new(&workload, scheme, &mach, &replay(&workload, &talk, scheme));
        Ok(self.scheme.0.iter().map(row).collect())
    }

    fn address_types(&self) -> anyhow::Result<Vec<AddressType>> {
        Ok(address_types(&Workload { servers: 4, ..self.workload()? }))
    }

    /// Returns the workload without its ranges.
    fn workload(&self) -> anyhow::Result<Workload> {
        Ok(Workload {
            servers: 1,
            clients: 1,
            pattern: self.pattern,
            words: 30,
            ipcs: self.ipcs,
            granularity: self.granularity.parse()?,
            handoff: self.handoff,
            fill: self.fill,
            record: self.record,
            inject: self.inject,
            programs: None,
            costs: Costs::default(),
            open: Open::default(),
            seed: self.seed,
        })
    }

    fn benchmark(&self) -> anyhow::Result<Vec<Row>> {
        let base = self.workload()?;
        if let Some(path) = &self.together {
            return self.replayed(path, base);
        }
        let mut workloads = Vec::new();
        if self.preset == Some(Preset::Osdi61) {
            workloads.push(osdi_6_1(base));
        } else {
            for &servers in &self.servers.0 {
                for &clients in &self.clients.0 {
                    for &words in &self.words.0 {
                        workloads.push(Workload { servers, clients, words, ..base.clone() });
                    }
                }
            }
        }
        if let Some(workload) = workloads.iter().find(|workload| workload.servers + workload.clients > 64) {
            bail!(
                "{} servers and {} clients do not fit: at most 64 processes, the R3000's address-space numbers",
                workload.servers,
                workload.clients
            );
        }
        let mut rows = Vec::new();
        for workload in workloads.iter().progress_with(progress(workloads.len(), "workloads")) {
            // Everything is compared with Mach, shown or not, without the injected fault.
            let (mach, _) = run(&Workload { inject: None, ..workload.clone() }, Scheme::Mach);
            for &scheme in &self.scheme.0 {
                rows.push(Row::new(workload, scheme, &mach, &run(workload, scheme)));
            }
        }
        Ok(rows)
    }
}

/// Returns the benchmark of the OSDI paper: a server that looks up records all over a database in memory, for three
/// clients that do little else. The database's size is not given; the thesis's 4 MB is assumed.
fn osdi_6_1(base: Workload) -> Workload {
    let open = Open { client_words: Some(2), ..base.open.clone() };
    Workload { servers: 1, clients: 3, words: 30, open, ..base }
}

fn address_types(workload: &Workload) -> Vec<AddressType> {
    let (tally, _) = run(workload, Scheme::Mach);
    let total = tally.kernel_misses();
    let rows = [
        ("Kernel IPC data, L1K miss", For::KernelIpc, false, Some(14.0)),
        ("Kernel IPC data, L3 miss", For::KernelIpc, true, Some(11.0)),
        ("User PC, L2 miss", For::Pc, false, Some(10.0)),
        ("User SP, L2 miss", For::Sp, false, Some(15.0)),
        ("Message buffers, L2 miss", For::Message, false, Some(10.0)),
        // The cell is blank; the text has 20 % for both kinds together (3.1.4).
        ("Message buffers, L3 miss", For::Message, true, None),
        ("User PC, L3 miss", For::Pc, true, None),
        ("User SP, L3 miss", For::Sp, true, None),
        ("User data, L2 miss", For::Data, false, None),
        ("User data, L3 miss", For::Data, true, None),
        ("Other kernel data, L1K miss", For::OtherKernel, false, None),
        ("Other kernel data, L3 miss", For::OtherKernel, true, None),
    ];
    rows.map(|(address_type, what, is_l3, printed_pct)| {
        let misses = tally.by.get(&(what, is_l3)).copied().unwrap_or(0);
        let address_type = address_type.into();
        AddressType { address_type, misses, pct: 100.0 * misses as f64 / total as f64, printed_pct }
    })
    .into()
}

/// Returns a progress bar on standard error.
fn progress(steps: usize, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg}");
    let bar = crate::progress::bar(Some(steps as u64)).with_message(what);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Numbers from the command line.
#[derive(Clone, Debug)]
struct Numbers(Vec<usize>);

/// Schemes from the command line.
#[derive(Clone, Debug)]
struct Schemes(Vec<Scheme>);

fn numbers<const LOW: usize, const HIGH: usize>(text: &str) -> anyhow::Result<Numbers> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let range =
            range(part).with_context(|| format!("`{part}` is no number and no range such as 1..10"))?;
        if range.is_empty() {
            bail!("`{part}` is empty: put the smaller number first");
        }
        if *range.start() < LOW || *range.end() > HIGH {
            bail!("`{part}` is not within {LOW}..{HIGH}");
        }
        all.extend(range);
    }
    Ok(Numbers(all))
}

fn range(part: &str) -> anyhow::Result<RangeInclusive<usize>> {
    Ok(match part.split_once("..") {
        Some((low, high)) => low.trim().parse()?..=high.trim_start_matches('=').trim().parse()?,
        None => {
            let number = part.trim().parse()?;
            number..=number
        }
    })
}

fn schemes(text: &str) -> anyhow::Result<Schemes> {
    if text == "all" {
        return Ok(Schemes(Scheme::value_variants().to_vec()));
    }
    let known = |name: &str| {
        Scheme::from_str(name, false).map_err(|_| {
            let names: Vec<_> =
                Scheme::value_variants().iter().filter_map(|scheme| scheme.to_possible_value()).collect();
            let names: Vec<_> = names.iter().map(|value| value.get_name()).collect();
            anyhow::anyhow!("no scheme `{name}`: choose of {}, or all", names.join(", "))
        })
    };
    Ok(Schemes(text.split(',').map(known).collect::<Result<_, _>>()?))
}
