//! Stand-ins for the six applications of thesis 4.1: real programs' references in the roles of client and servers.
//!
//! The applications, their servers and their inputs are not to be had. Three recorded traces (or three stretches of the
//! shipped one) take the roles of the client, the X server and the Unix server; they take turns after as many
//! instructions as lie between two IPCs, and message by message go through the same model as the synthetic benchmark.
//! What an application is known for is kept: which processes talk to each other, and how often. The thesis does not say
//! how often; it is estimated from the misses a second of Table 4.2, at 20 million instructions a second, and five
//! misses for each message with two servers, two with one. Printed values are shown beside; that they agree is not
//! claimed.

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, ensure};
use indicatif::ProgressIterator;
use serde::{Deserialize, Serialize};

use super::benchmark::{Workload, run};
use super::programs::{Programs, Reference, Stretch, Talk};
use super::scheme::Scheme;
use crate::Name;
use crate::superpage::PROGRAM;
use crate::trace::{self, Input, Kind};

/// The shipped trace, when no other is named.
const SHIPPED: &[u8] = include_bytes!("../../traces/cc1.tlbt");

/// Runs of references that are kept of each program: more than any run of the model uses before it begins anew.
const STRETCH: usize = 1_000_000;

/// Instructions after which a run may end, though it has not sent all its messages.
const ENOUGH: u64 = 20_000_000;

/// Instructions of a server for one request.
const SERVICE: u64 = 4_000;

/// 4 MiB regions of a process on the R3000: 2 GiB, less the last region, which holds the message buffer.
const REGIONS: usize = 511;

/// One application: what stands in for it, and what the thesis printed.
struct App {
    name: &'static str,
    servers: usize,
    /// Instructions of the client between two requests.
    client: u64,
    /// Kernel misses in thousands: Mach, PTLB, STLB 1K, STLB 4K, PTLB+STLB (Tables 4.3, 4.5, 4.8).
    misses: [f64; 5],
    /// STLB hit rates in percent: 1K, 4K, PTLB+STLB.
    hits: [f64; 3],
    /// Penalties in millions of cycles (Tables 4.4, 4.7, 4.9).
    penalty: [f64; 5],
}

const APPS: [App; 6] = [
    App {
        name: "video_play",
        servers: 2,
        client: 20_000,
        misses: [211.0, 103.9, 202.4, 163.3, 111.8],
        hits: [70.9, 100.0, 100.0],
        penalty: [108.0, 41.6, 60.7, 15.7, 11.4],
    },
    App {
        name: "jpeg_play",
        servers: 2,
        client: 200_000,
        misses: [25.6, 14.9, 20.2, 17.4, 13.8],
        hits: [84.4, 99.8, 99.7],
        penalty: [13.0, 6.0, 4.2, 1.9, 1.6],
    },
    App {
        name: "mpeg_play",
        servers: 2,
        client: 30_000,
        misses: [245.4, 116.1, 197.5, 173.8, 128.6],
        hits: [82.5, 97.2, 96.2],
        penalty: [124.6, 48.2, 41.7, 21.4, 18.4],
    },
    App {
        name: "IOzone",
        servers: 1,
        client: 800_000,
        misses: [5.9, 5.7, 4.4, 4.3, 4.1],
        hits: [98.5, 99.3, 99.3],
        penalty: [3.4, 2.7, 0.7, 0.6, 0.6],
    },
    App {
        name: "ousterhout",
        servers: 1,
        client: 50_000,
        misses: [43.0, 22.2, 33.2, 29.0, 21.1],
        hits: [85.9, 99.3, 99.1],
        penalty: [28.6, 17.4, 7.9, 3.9, 3.4],
    },
    App {
        name: "mab",
        servers: 1,
        client: 100_000,
        misses: [89.6, 67.0, 88.0, 63.9, 52.8],
        hits: [70.6, 92.5, 90.9],
        penalty: [52.0, 29.8, 31.6, 13.2, 13.6],
    },
];

/// An application under a scheme.
#[derive(Debug, Serialize, Deserialize)]
pub struct AppRow {
    /// The application.
    pub application: Name,
    /// The scheme.
    pub scheme: Scheme,
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
    /// TLB-modify misses: first stores to pages that were mapped at a load.
    pub modify: u64,
    /// Cycles of user misses for each message.
    pub user_cycles_per_ipc: f64,
    /// Cycles of kernel misses for each message.
    pub penalty_cycles_per_ipc: f64,
    /// Kernel misses for each message.
    pub kernel_misses_per_ipc: f64,
    /// Kernel misses that the scheme takes away, in percent of those under Mach.
    pub misses_removed_pct: f64,
    /// The same as the thesis prints it.
    pub printed_misses_removed_pct: f64,
    /// Hits of the lookups in the STLB, from 0 to 1; none without one.
    pub stlb_hit_rate: Option<f64>,
    /// The same as the thesis prints it.
    pub printed_stlb_hit_rate: Option<f64>,
    /// Cycles of kernel misses that the scheme saves, its overhead subtracted, in percent of those under Mach.
    pub penalty_saved_pct: f64,
    /// The same as the thesis prints it.
    pub printed_penalty_saved_pct: f64,
    /// Run time that the scheme saves, in percent of that under Mach.
    pub speedup_pct: f64,
    /// Hits on entries that had been invalid.
    pub stale_hits: u64,
}

/// Runs every application under the schemes for which the thesis has numbers.
pub(crate) fn rows(base: &Workload, traces: &[Input], stall: f64) -> anyhow::Result<Vec<AppRow>> {
    let stretches = Rc::new(stretches(traces)?);
    let schemes = [Scheme::Mach, Scheme::Ptlb, Scheme::Stlb1k, Scheme::Stlb4k, Scheme::Both];
    let mut rows = Vec::new();
    for app in APPS.iter().progress_with(super::progress(APPS.len(), "applications")) {
        let programs = Programs { stretches: stretches.clone(), client: app.client, service: SERVICE, stall };
        let ipcs = base.ipcs.min(ENOUGH / (app.client + SERVICE)).max(100);
        let workload =
            Workload { servers: app.servers, clients: 1, ipcs, programs: Some(programs), ..base.clone() };
        let mut mach = None;
        for (at, &scheme) in schemes.iter().enumerate() {
            let (tally, count) = run(&workload, scheme);
            let misses = tally.kernel_misses() as f64 / tally.ipcs as f64;
            let penalty = (tally.penalty + tally.overhead) as f64 / tally.ipcs as f64;
            let time = super::cycles_per_ipc(&tally);
            let (misses_of_mach, penalty_of_mach, time_of_mach) =
                *mach.get_or_insert((misses, penalty, time));
            let lookups = count.hits() + count.misses();
            let saved = |with: f64, without: f64| 100.0 * (1.0 - with / without);
            rows.push(AppRow {
                application: app.name.into(),
                scheme,
                ipcs: tally.ipcs,
                l1u: tally.l1u,
                l1k: tally.l1k,
                l2: tally.l2,
                l3: tally.l3,
                invalid: tally.invalid,
                modify: tally.modify,
                user_cycles_per_ipc: tally.user_penalty as f64 / tally.ipcs as f64,
                penalty_cycles_per_ipc: tally.penalty as f64 / tally.ipcs as f64,
                kernel_misses_per_ipc: misses,
                misses_removed_pct: saved(misses, misses_of_mach),
                printed_misses_removed_pct: saved(app.misses[at], app.misses[0]),
                stlb_hit_rate: (lookups > 0).then(|| count.hits() as f64 / lookups as f64),
                printed_stlb_hit_rate: at.checked_sub(2).map(|at| app.hits[at] / 100.0),
                penalty_saved_pct: saved(penalty, penalty_of_mach),
                printed_penalty_saved_pct: saved(app.penalty[at], app.penalty[0]),
                speedup_pct: saved(time, time_of_mach),
                stale_hits: tally.stale,
            });
        }
    }
    Ok(rows)
}

/// Returns client, X server and Unix server.
fn stretches(traces: &[Input]) -> anyhow::Result<Vec<Stretch>> {
    if traces.is_empty() {
        // Three phases of one program, far apart.
        let all = trace::read(SHIPPED).context("the shipped trace")?;
        let mut runs = all.collect::<Result<Vec<_>, _>>().context("the shipped trace")?.into_iter();
        return (0..3)
            .map(|_| {
                let stretch = fold(runs.by_ref().take(STRETCH).map(Ok))?;
                let _ = runs.nth(9 * STRETCH);
                Ok(stretch)
            })
            .collect();
    }
    ensure!(
        traces.len() == 3,
        "{} traces: give --trace three times, for client, X and Unix server",
        traces.len()
    );
    traces
        .iter()
        .map(|input| {
            let trace = trace::open(input, &crate::progress::bar(None))?;
            fold(trace.take(STRETCH)).with_context(|| input.to_string())
        })
        .collect()
}

fn fold(trace: impl Iterator<Item = Result<trace::Access, trace::TraceError>>) -> anyhow::Result<Stretch> {
    let (mut folding, mut runs) = (Folding::default(), Vec::new());
    for access in trace {
        let access = access?;
        runs.push(folding.of(access.page.get(), &access));
    }
    ensure!(
        runs.iter().any(|run| run.instructions > 0),
        "no instruction in it: capture one with `tlblab capture`"
    );
    folding.stretch(runs)
}

/// Reads programs that were recorded together: what they refer to, and each one's stack.
pub(super) fn talk(path: &Path) -> anyhow::Result<(Talk, Vec<Stretch>)> {
    let (mut programs, mut runs) = (Vec::<Folding>::new(), Vec::new());
    for access in trace::open(&Input::File(path.to_owned()), &crate::progress::bar(None))? {
        let access = access.with_context(|| path.display().to_string())?;
        let at = access.page.get();
        let program = at >> PROGRAM;
        programs.resize_with(programs.len().max(program + 1), Folding::default);
        runs.push((program, programs[program].of(at & ((1 << PROGRAM) - 1), &access)));
    }
    ensure!(
        programs.len() > 1,
        "{} is of one program: record several with `tlblab capture -- A '|' B`",
        path.display()
    );
    let stretches =
        programs.into_iter().map(|folding| folding.stretch(Vec::new())).collect::<Result<_, _>>()?;
    Ok((Talk { runs }, stretches))
}

/// How a program's regions of 4 MiB are folded into 2 GiB.
#[derive(Default)]
struct Folding {
    regions: HashMap<usize, usize>,
    /// The page of data with the highest address, where it is folded to, and where it was.
    stack: usize,
    top: usize,
}

impl Folding {
    fn of(&mut self, page: usize, access: &trace::Access) -> Reference {
        let next = self.regions.len();
        let region = *self.regions.entry(page / 1024).or_insert(next);
        let folded = region * 1024 + page % 1024;
        let fetch = access.kind.is_fetch();
        if page > self.top && !fetch {
            (self.stack, self.top) = (folded, page);
        }
        let store = matches!(access.kind, Kind::Store | Kind::Modify);
        Reference { page: folded, fetch, store, instructions: access.instructions() }
    }

    fn stretch(self, runs: Vec<Reference>) -> anyhow::Result<Stretch> {
        ensure!(
            self.regions.len() <= REGIONS,
            "{} regions of 4 MB do not fit into the R3000's 2 GB: take a smaller program",
            self.regions.len()
        );
        Ok(Stretch { runs, stack: self.stack })
    }
}
