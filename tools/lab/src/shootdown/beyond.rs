//! Beyond the text: what batching, lazy CPUs and tolerance save, in the same simulator. Each unmap is classified by
//! the crate's `classify`, and gathered by its `Batch`.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::model::{Kind, Parameters};
use super::simulator::{Options, simulate};
use crate::{Experiment, Name};

/// Arguments
#[derive(Debug, Args)]
pub struct Beyond {
    /// CPUs
    #[arg(long, value_name = "CPUS", default_value_t = 64)]
    m: usize,
    /// Unmaps per CPU and second
    #[arg(long, value_name = "PER_S", default_value_t = 1000.0)]
    rate: f64,
    /// Milliseconds that each page after the first adds to a request and to a reply. [default: 0.004, a few of the VAX's
    /// instructions (4.4.1); where a page's cache lines have to be flushed it is more]
    #[arg(long, value_name = "MS", default_value_t = 0.004, hide_default_value = true)]
    x_page: f64,
    /// Simulated seconds
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = super::seconds)]
    seconds: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One way of doing it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Way {
    /// The way, in words.
    pub way: Name,
    /// The algorithm.
    pub algorithm: Kind,
    /// Unmaps of an operation.
    pub batch: usize,
    /// The share of targets that are lazy.
    pub lazy_share: f64,
    /// The share of unmaps whose inconsistency is tolerated.
    pub tolerated_share: f64,
    /// The share of a CPU's time, from 0 to 1.
    pub cpu_overhead_share: f64,
    /// Milliseconds of an operation.
    pub latency_ms: f64,
    /// Unmaps per CPU and second that the CPUs got done.
    pub unmaps_per_cpu_s: f64,
    /// Interrupts for each of them.
    pub interrupts_per_unmap: f64,
    /// Against one synchronous operation per unmap, which sends M-1 interrupts at most.
    pub interrupts_removed_share: f64,
}

impl Experiment for Beyond {
    const COMMAND: &'static str = "shootdown beyond";
    type Row = Way;

    fn rows(&self) -> anyhow::Result<Vec<Way>> {
        ways(self)
    }
}

pub(super) fn run(args: &Beyond) -> anyhow::Result<()> {
    crate::rows::print(args.json, &args.rows()?)
}

fn ways(args: &Beyond) -> anyhow::Result<Vec<Way>> {
    anyhow::ensure!((2..=super::MOST).contains(&args.m), "--m {}: give 2 to {}", args.m, super::MOST);
    anyhow::ensure!(args.rate.is_finite() && args.rate > 0.0, "--rate {}: give a number above 0", args.rate);
    anyhow::ensure!(
        args.x_page.is_finite() && args.x_page >= 0.0,
        "--x-page {}: give a number from 0 on",
        args.x_page
    );
    let p = Parameters { m: args.m, n: args.m, lambda_t: args.rate, ..Parameters::CANONICAL };
    let base = Options { seconds: args.seconds, x_page: args.x_page * 1e-3, ..Options::default() };
    let ways = [
        ("one by one, synchronous", Kind::OpSynch, base),
        ("Linux-like: synchronous, 32 unmaps a flush", Kind::OpSynch, Options { batch: 32, ..base }),
        ("asynchronous, 32 unmaps an operation", Kind::OpAsynch, Options { batch: 32, ..base }),
        ("the same, 3 of 4 targets lazy", Kind::OpAsynch, Options { batch: 32, lazy: 0.75, ..base }),
        (
            "the same, half of the unmaps tolerated",
            Kind::OpAsynch,
            Options { batch: 32, lazy: 0.75, tolerated: 0.5, ..base },
        ),
        ("page-out: synchronous, 128 pages a batch", Kind::OpSynch, Options { batch: 128, ..base }),
        ("page-out: asynchronous, 128 pages a batch", Kind::OpAsynch, Options { batch: 128, ..base }),
    ];
    crate::parallel::map(&ways, |&(way, algorithm, options)| {
        let run = simulate(algorithm.algorithm(), &p, &options)?;
        let interrupts_per_unmap = run.interrupts / run.unmaps;
        Ok(Way {
            way: way.into(),
            algorithm,
            batch: options.batch,
            lazy_share: options.lazy,
            tolerated_share: options.tolerated,
            cpu_overhead_share: run.measures.overhead,
            latency_ms: run.measures.latency * 1e3,
            unmaps_per_cpu_s: run.unmaps,
            interrupts_per_unmap,
            interrupts_removed_share: 1.0 - interrupts_per_unmap / (p.m as f64 - 1.0),
        })
    })
}
