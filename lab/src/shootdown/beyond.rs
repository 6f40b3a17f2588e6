//! Beyond the text: what batching, lazy CPUs and tolerance save, in the same simulator. Each unmap is classified by
//! the crate's `classify`, and gathered by its `Batch`.

use clap::Args;
use serde::Serialize;

use super::model::{Kind, Parameters};
use super::simulator::{Options, simulate};

/// Arguments
#[derive(Debug, Args)]
pub(crate) struct Beyond {
    /// CPUs
    #[arg(long, default_value_t = 64)]
    m: usize,
    /// Unmaps per CPU and second
    #[arg(long, default_value_t = 1000.0)]
    rate: f64,
    /// Milliseconds that each page after the first adds to a request and to a reply. [default: 0.004, a few of the VAX's
    /// instructions (4.4.1); where a page's cache lines have to be flushed it is more]
    #[arg(long, default_value_t = 0.004, hide_default_value = true)]
    x_page: f64,
    /// Simulated seconds
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One way of doing it.
#[derive(Clone, Debug, Serialize)]
struct Way {
    way: &'static str,
    algorithm: Kind,
    batch: usize,
    lazy: f64,
    tolerated: f64,
    cpu_overhead: f64,
    latency_ms: f64,
    /// Unmaps per CPU and second that the CPUs got done.
    unmaps: f64,
    interrupts_per_unmap: f64,
    /// Against one synchronous operation per unmap, which sends M-1 interrupts at most.
    interrupts_removed: f64,
}

pub(super) fn run(args: &Beyond) -> anyhow::Result<()> {
    anyhow::ensure!((2..=super::MOST).contains(&args.m), "--m {}: give 2 to {}", args.m, super::MOST);
    anyhow::ensure!(args.rate.is_finite() && args.rate > 0.0, "--rate {}: give a number above 0", args.rate);
    anyhow::ensure!(
        args.seconds.is_finite() && args.seconds > 0.0,
        "--seconds {}: give a number above 0",
        args.seconds
    );
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
    let rows = crate::parallel::map(&ways, |&(way, algorithm, options)| {
        let run = simulate(algorithm, &p, &options)?;
        let interrupts_per_unmap = run.interrupts / run.unmaps;
        Ok(Way {
            way,
            algorithm,
            batch: options.batch,
            lazy: options.lazy,
            tolerated: options.tolerated,
            cpu_overhead: run.measures.overhead,
            latency_ms: run.measures.latency * 1e3,
            unmaps: run.unmaps,
            interrupts_per_unmap,
            interrupts_removed: 1.0 - interrupts_per_unmap / (p.m as f64 - 1.0),
        })
    })?;
    crate::rows::print(args.json, &rows)
}
