//! `tlblab locks`: threads of one address space that fault at once, under one lock for the space and under locks of nodes.
//!
//! A simulation of events: a CPU works, asks for the right to change a part of the table, waits, holds the right for as long as the
//! change takes, and works on. Time is counted in cycles, of which an instruction takes one; what a cache line takes from one CPU to
//! another is not in it, so a lock that many CPUs want is dearer than it is here. `simulation` has the schemes.
//!
//! | change | takes the right to | cycles |
//! |-|-|-|
//! | a fault | its last-level node, 2 MiB | `--fault` |
//! | the first fault of 2 MiB, which makes the node | the node above, 1 GiB | `--first-touch` |
//! | an unmap | the node above | `--unmap` |

use anyhow::ensure;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use self::simulation::{Outcome, simulate};
use crate::{Experiment, parallel, rows};

pub use self::simulation::Scheme;

mod simulation;
#[cfg(test)]
mod tests;

/// Instructions of calls, as `cargo xtask cost --machine riscv64` counts them for four CPUs; docs/costs.md has its table.
mod counted {
    /// `map`: of one page, in a node that has others.
    pub(super) const MAP: u64 = 157;
    /// `page fault at the first use`, of which `map` is a part.
    pub(super) const FAULT: u64 = 364;
    /// `clear frame`: 4 KiB.
    pub(super) const CLEAR: u64 = 657;
    /// `unmap, a page of 100`.
    pub(super) const UNMAP: u64 = 358;
}

/// The pages that an unmap takes out, and the faults that have put them in.
const UNMAPPED: u64 = 100;

/// What a thread does with a page before it touches the next one: two instructions for each word of 8 bytes. This is assumed.
const USE: u64 = 2 * 512;

/// The instructions that a node's lock may take beyond those of the lock of the space: what the design is held to.
const NODE_LOCK: u64 = 8;

/// Pages below a last-level node.
const NODE: u64 = 512;

/// Simulate threads that fault in one address space, under one lock and under locks of nodes
///
/// Without options, the lengths of the changes are those that `cargo xtask cost` counts.
#[derive(Args, Clone, Copy, Debug)]
pub struct Locks {
    /// Where the threads fault [default: each of these in turn]
    #[arg(long, value_enum)]
    regions: Option<Regions>,
    /// The most CPUs, each with a thread: 1, 2, 4 and so on up to as many
    #[arg(long, value_name = "CPUS", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    cpus: u32,
    /// How long a fault holds its right, in cycles
    #[arg(long, value_name = "CYCLES", default_value_t = counted::MAP, value_parser = cycles(1))]
    fault: u64,
    /// How long the first fault of 2 MiB holds its right, in cycles: it clears a node, too
    #[arg(long, value_name = "CYCLES", default_value_t = counted::MAP + counted::CLEAR, value_parser = cycles(1))]
    first_touch: u64,
    /// How long an unmap holds its right, in cycles: that of 100 pages
    #[arg(long, value_name = "CYCLES", default_value_t = UNMAPPED * counted::UNMAP, value_parser = cycles(1))]
    unmap: u64,
    /// The share of changes that are unmaps
    #[arg(long, value_name = "SHARE", default_value_t = 1.0 / (1 + UNMAPPED) as f64)]
    unmap_share: f64,
    /// Mean time of a thread between two changes, in cycles, exponentially distributed: the rest of a fault, a cleared frame, the use of
    /// the page
    #[arg(long, value_name = "CYCLES", default_value_t = counted::FAULT - counted::MAP + counted::CLEAR + USE, value_parser = cycles(0))]
    between: u64,
    /// What a right costs more under the locks of nodes, in cycles
    #[arg(long, value_name = "CYCLES", default_value_t = NODE_LOCK, value_parser = cycles(0))]
    node_lock: u64,
    /// Changes of each thread
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    changes: u32,
    /// Seed of everything random
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

/// Returns what reads a number of cycles.
fn cycles(least: i64) -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(least as u64..=1 << 32)
}

/// Where the threads fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Regions {
    /// Each in 1 GiB of its own
    Disjoint,
    /// Each in regions of 2 MiB of its own, all within 1 GiB
    Near,
    /// All in one region of 2 MiB
    Shared,
    /// All within 1 GiB, each fault the first of its 2 MiB
    FirstTouch,
}

/// A scheme with as many CPUs. Waits and queues are of CPUs that ask for a right and have not got it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Where the threads fault.
    pub regions: Regions,
    /// How rights exclude each other.
    pub scheme: Scheme,
    /// CPUs, each with a thread.
    pub cpus: u32,
    /// Changes of all CPUs in a million cycles.
    pub changes_per_mcycle: f64,
    /// That as a multiple of one CPU's.
    pub times_one_cpu: f64,
    /// Mean wait of a change.
    pub wait_mean_cycles: f64,
    /// Longest wait of a change of one last-level node.
    pub wait_max_cycles: u64,
    /// Longest wait of a change of the node above.
    pub wait_above_max_cycles: u64,
    /// CPUs that wait, over time.
    pub waiting_mean_cpus: f64,
    /// The most CPUs that waited.
    pub waiting_max_cpus: u32,
}

impl Row {
    fn new(regions: Regions, scheme: Scheme, cpus: u32, outcome: &Outcome, one: &Outcome) -> Self {
        let rate = |outcome: &Outcome| outcome.changes as f64 * 1e6 / outcome.cycles as f64;
        Self {
            regions,
            scheme,
            cpus,
            changes_per_mcycle: rate(outcome),
            times_one_cpu: rate(outcome) / rate(one),
            wait_mean_cycles: outcome.waited as f64 / outcome.changes as f64,
            wait_max_cycles: outcome.longest,
            wait_above_max_cycles: outcome.longest_above,
            waiting_mean_cpus: outcome.waited as f64 / outcome.cycles as f64,
            waiting_max_cpus: outcome.most_waiting,
        }
    }
}

impl Experiment for Locks {
    const COMMAND: &'static str = "locks";
    type Row = Row;

    fn rows(&self) -> anyhow::Result<Vec<Row>> {
        ensure!(
            (0.0..=1.0).contains(&self.unmap_share),
            "--unmap-share {} is no share: give a number from 0 to 1",
            self.unmap_share
        );
        let all = self.regions.as_ref().map_or(Regions::value_variants(), std::slice::from_ref);
        let mut cpus: Vec<_> = (0..).map(|shift| 1 << shift).take_while(|cpus| *cpus < self.cpus).collect();
        cpus.push(self.cpus);
        let mut runs = Vec::new();
        for &regions in all {
            for scheme in [Scheme::OneWriter, Scheme::NodeLocks] {
                runs.extend(cpus.iter().map(|&cpus| (regions, scheme, cpus)));
            }
        }
        let outcomes = parallel::map(&runs, |&(regions, scheme, cpus)| {
            Ok(simulate(self, regions, scheme, cpus, |_, _| ()))
        })?;
        // Each scheme begins with one CPU.
        let ones = outcomes.chunks(cpus.len()).flat_map(|of_scheme| of_scheme.iter().map(|_| &of_scheme[0]));
        let rows = runs.iter().zip(&outcomes).zip(ones);
        Ok(rows
            .map(|((&(regions, scheme, cpus), outcome), one)| Row::new(regions, scheme, cpus, outcome, one))
            .collect())
    }
}

impl Locks {
    /// Runs the command.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        rows::print(self.json, &self.rows()?)
    }
}
