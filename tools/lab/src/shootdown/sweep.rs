//! The sweeps of Figures 4.2 to 4.7.

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::model::{Kind, Parameters};
use super::simulator::Options;
use super::{Row, bounds, simulated};
use crate::{Experiment, Name};

/// Arguments
#[derive(Debug, Args)]
pub struct Sweep {
    /// The figure
    #[arg(value_enum)]
    figure: Figure,
    /// Simulated seconds of each point
    #[arg(long, value_name = "S", default_value_t = 20.0, value_parser = super::seconds)]
    seconds: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// Simulation against analysis, 2-phase
    #[value(name = "4.2")]
    F42,
    /// Simulation against analysis, op-synch
    #[value(name = "4.3")]
    F43,
    /// Simulation against analysis, op-asynch
    #[value(name = "4.4")]
    F44,
    /// The number of CPUs
    #[value(name = "4.5")]
    F45,
    /// The time between two requests
    #[value(name = "4.6")]
    F46,
    /// The service time of a reply, all else canonical
    #[value(name = "4.7")]
    F47,
    /// The same, with Xreq1 = Xreply as the caption can be read
    #[value(name = "4.7-req1")]
    F47Req1,
    /// The same, with Xreq2 = Xreply as the caption can be read
    #[value(name = "4.7-req2")]
    F47Req2,
}

/// One point.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    /// What the figure varies.
    pub x: f64,
    /// Its unit: `CPUs` of an operation, or `ms`.
    pub x_unit: Name,
    /// The result there.
    #[serde(flatten)]
    pub row: Row,
    /// CPU overhead by simulation against the middle of the bounds, in percent of it.
    pub overhead_deviation_pct: Option<f64>,
    /// The same of the latency.
    pub latency_deviation_pct: Option<f64>,
}

/// The unit of a figure that varies the CPUs.
const CPUS: &str = "CPUs";

fn plain(x: f64, unit: &'static str, row: Row) -> Point {
    Point { x, x_unit: unit.into(), row, overhead_deviation_pct: None, latency_deviation_pct: None }
}

impl Experiment for Sweep {
    const COMMAND: &'static str = "shootdown sweep";
    type Row = Point;

    fn rows(&self) -> anyhow::Result<Vec<Point>> {
        points(self)
    }
}

pub(super) fn run(args: &Sweep) -> anyhow::Result<()> {
    crate::rows::print(args.json, &args.rows()?)
}

fn points(args: &Sweep) -> anyhow::Result<Vec<Point>> {
    let canonical = Parameters::CANONICAL;
    let sizes = [2, 4, 8, 12, 16, 20, 24, 32, 40, 50].map(|m| Parameters { m, n: m, ..canonical });
    let replies = [0.02, 0.04, 0.08, 0.12, 0.16, 0.2, 0.25, 0.3, 0.4].map(|ms| ms * 1e-3);
    let service = |of: fn(f64) -> Parameters| -> Vec<(f64, Parameters)> {
        replies.iter().map(|&x| (x * 1e3, of(x))).collect()
    };
    let by_m = || sizes.iter().map(|p| (p.m as f64, *p)).collect::<Vec<_>>();
    Ok(match args.figure {
        Figure::F42 => compare(Kind::TwoPhase, &by_m(), args.seconds)?,
        Figure::F43 => compare(Kind::OpSynch, &by_m(), args.seconds)?,
        Figure::F44 => compare(Kind::OpAsynch, &by_m(), args.seconds)?,
        Figure::F45 => analysed(CPUS, &by_m()),
        Figure::F46 => analysed(
            "ms",
            &[5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 80.0, 100.0]
                .map(|ms| (ms, Parameters { lambda_t: 1e3 / ms, ..canonical })),
        ),
        Figure::F47 => analysed("ms", &service(|x_reply| Parameters { x_reply, ..Parameters::CANONICAL })),
        Figure::F47Req1 => {
            analysed("ms", &service(|x| Parameters { x_reply: x, x_req1: x, ..Parameters::CANONICAL }))
        }
        Figure::F47Req2 => {
            analysed("ms", &service(|x| Parameters { x_reply: x, x_req2: x, ..Parameters::CANONICAL }))
        }
    })
}

fn analysed(unit: &'static str, points: &[(f64, Parameters)]) -> Vec<Point> {
    let all = points.iter().flat_map(|(x, p)| {
        Kind::ALL.into_iter().flat_map(|kind| bounds(kind, p).map(|row| plain(*x, unit, row)))
    });
    all.collect()
}

/// Bounds, and simulations with N = M and N = 4M.
fn compare(kind: Kind, points: &[(f64, Parameters)], seconds: f64) -> anyhow::Result<Vec<Point>> {
    let runs: Vec<_> =
        points.iter().flat_map(|&(x, p)| [(x, p), (x, Parameters { n: 4 * p.m, ..p })]).collect();
    let options = Options { seconds, ..Options::default() };
    let rows = crate::parallel::map(&runs, |(_, p)| simulated(kind, p, &options))?;
    let mut all = Vec::new();
    for (at, (x, p)) in points.iter().enumerate() {
        let [lower, upper] = bounds(kind, p);
        let off = |value: Option<f64>, low: Option<f64>, high: Option<f64>| {
            let middle = 0.5 * (low? + high.or(low)?);
            Some(100.0 * (value? / middle - 1.0))
        };
        for row in &rows[2 * at..2 * at + 2] {
            all.push(Point {
                x: *x,
                x_unit: CPUS.into(),
                overhead_deviation_pct: off(
                    row.cpu_overhead_share,
                    lower.cpu_overhead_share,
                    upper.cpu_overhead_share,
                ),
                latency_deviation_pct: off(row.latency_ms, lower.latency_ms, upper.latency_ms),
                row: row.clone(),
            });
        }
        all.extend([plain(*x, CPUS, lower), plain(*x, CPUS, upper)]);
    }
    Ok(all)
}
