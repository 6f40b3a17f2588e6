//! Simulation against analysis, with each simplification of 4.2 in the simulator too: which one makes them differ.

use clap::Args;
use serde::Serialize;

use super::bounds;
use super::model::{Kind, Parameters};
use super::simulator::{Options, Sends, simulate};

/// Arguments
#[derive(Debug, Args)]
pub(crate) struct Simplify {
    /// CPUs of an operation
    #[arg(long, value_name = "CPUS,...", value_delimiter = ',', default_values_t = [8, 16, 32])]
    m: Vec<usize>,
    /// Simulated seconds
    #[arg(long, value_name = "S", default_value_t = 40.0, value_parser = super::seconds)]
    seconds: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One simulation, and how far it is from the middle of the bounds.
#[derive(Clone, Debug, Serialize)]
struct Row {
    algorithm: Kind,
    m: usize,
    n: usize,
    simplified: &'static str,
    cpu_overhead_share: f64,
    latency_ms: f64,
    overhead_deviation_pct: Option<f64>,
    latency_deviation_pct: Option<f64>,
}

pub(super) fn run(args: &Simplify) -> anyhow::Result<()> {
    let plain = Options { seconds: args.seconds, ..Options::default() };
    let ways = [
        ("nothing", 1, plain),
        (
            "sends in their places in the computation (no simplification)",
            1,
            Options { sends: Sends::Spread, ..plain },
        ),
        ("4.2.1.1: processors acknowledge independently", 1, Options { independent: true, ..plain }),
        ("4.2.1.1: arrivals do not depend on the state (N = 4M)", 4, plain),
        ("4.2.2.2: dispatching delays no acknowledgement", 1, Options { free_dispatch: true, ..plain }),
        ("4.2.3.2: slices alone delay replies", 1, Options { slices_only: true, ..plain }),
    ];
    let mut runs = Vec::new();
    for kind in Kind::ALL {
        for &m in &args.m {
            anyhow::ensure!((1..=super::MOST / 4).contains(&m), "--m {m}: give 1 to {}", super::MOST / 4);
            runs.extend(ways.map(|(name, times, options)| (kind, m, name, times * m, options)));
        }
    }
    // Nothing is dispatched but by interrupts, and nothing has slices but op-asynch.
    runs.retain(|(kind, .., o)| !(o.free_dispatch && *kind == Kind::OpAsynch));
    runs.retain(|(kind, .., o)| !(o.slices_only && *kind != Kind::OpAsynch));
    let rows = crate::parallel::map(&runs, |&(algorithm, m, simplified, n, options)| {
        let p = Parameters { m, n, ..Parameters::CANONICAL };
        let measures = simulate(algorithm.algorithm(), &p, &options)?.measures;
        let [lower, upper] = bounds(algorithm, &p);
        let off = |value: f64, low: Option<f64>, high: Option<f64>| {
            let middle = 0.5 * (low? + high.or(low)?);
            Some(100.0 * (value / middle - 1.0))
        };
        let latency_ms = measures.latency * 1e3;
        Ok(Row {
            algorithm,
            m,
            n,
            simplified,
            cpu_overhead_share: measures.overhead,
            latency_ms,
            overhead_deviation_pct: off(
                measures.overhead,
                lower.cpu_overhead_share,
                upper.cpu_overhead_share,
            ),
            latency_deviation_pct: off(latency_ms, lower.latency_ms, upper.latency_ms),
        })
    })?;
    crate::rows::print(args.json, &rows)
}
