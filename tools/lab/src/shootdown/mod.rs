//! `tlblab shootdown`: chapter 4 of Tzou, by its equations and by a simulator that drives the crate's machines.

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};

use self::analysis::{Bound, Solution, analyse};
use self::model::{Measures, Parameters};
use self::simulator::{Options, Sends, simulate};
use crate::{Experiment, Name};

pub use self::beyond::{Beyond, Way};
pub use self::claims::{Claim, Claims};
pub use self::model::Kind;
pub use self::sweep::{Point, Sweep};

mod analysis;
mod beyond;
mod claims;
mod model;
mod simplify;
mod simulator;
mod sweep;

/// The performance of TLB shootdown (Tzou chapter 4)
#[derive(Debug, Args)]
pub struct Shootdown {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// By the equations of 4.2: lower and upper bounds
    Analyse(Model),
    /// By simulation, of the crate's state machines under the model of 4.1
    Simulate(Simulate),
    /// The sweeps of Figures 4.2 to 4.7
    Sweep(Sweep),
    /// Each simplification of 4.2 in the simulator: which one makes analysis and simulation differ
    Simplify(simplify::Simplify),
    /// The text's claims against these numbers
    Claims(Claims),
    /// Beyond the text: batching, lazy CPUs, tolerance
    Beyond(Beyond),
}

/// The parameters of 4.1: rates per second, times in milliseconds
#[derive(Clone, Copy, Debug, Args)]
pub struct Model {
    /// CPUs of an operation, the requester among them
    #[arg(long, value_name = "CPUS", default_value_t = 16)]
    m: usize,
    /// CPUs of the machine [default: M]
    #[arg(long, value_name = "CPUS")]
    n: Option<usize>,
    /// Requester events per CPU and second
    #[arg(long, value_name = "PER_S", default_value_t = 25.0)]
    lambda_t: f64,
    /// Interrupt-disabling events per CPU and second
    #[arg(long, value_name = "PER_S", default_value_t = 100.0)]
    lambda_d: f64,
    /// Mean time of an interrupt-disabling event, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0.5)]
    x_d: f64,
    /// Time to dispatch an interrupt, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0.04)]
    x_i: f64,
    /// Mean computation of a request, its fixed part, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0.04)]
    x_req1: f64,
    /// Mean computation of a request for each replier, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0.04)]
    x_req2: f64,
    /// Mean computation of a reply, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0.04)]
    x_reply: f64,
    /// Time slice of op-asynch, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 25.0)]
    x_j: f64,
    /// Probability that a CPU overwrites the entry in a round
    #[arg(long, value_name = "SHARE", default_value_t = 0.0002)]
    p0: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, Args)]
struct Simulate {
    #[command(flatten)]
    model: Model,
    #[command(flatten)]
    run: RunArgs,
}

/// How to simulate
#[derive(Clone, Copy, Debug, Args)]
struct RunArgs {
    /// When requests are sent: after the requester's computation, or each in its place in it
    #[arg(long, value_enum, default_value_t = Sends::After)]
    sends: Sends,
    /// Simulated seconds; the first tenth is not counted
    #[arg(long, value_name = "S", default_value_t = 40.0, value_parser = seconds)]
    seconds: f64,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Simplify as 4.2.2.2: dispatching an interrupt does not delay the acknowledgement
    #[arg(long)]
    free_dispatch: bool,
    /// Simplify as 4.2.3.2: only slices and other replies delay op-asynch's replies
    #[arg(long)]
    slices_only: bool,
    /// Simplify as 4.2.1.1: what delays a processor's reply is drawn for each reply
    #[arg(long)]
    independent: bool,
}

impl RunArgs {
    fn options(self) -> Options {
        Options {
            sends: self.sends,
            seconds: self.seconds,
            seed: self.seed,
            free_dispatch: self.free_dispatch,
            slices_only: self.slices_only,
            independent: self.independent,
            ..Options::default()
        }
    }
}

/// Reads how many seconds to simulate.
fn seconds(text: &str) -> anyhow::Result<f64> {
    let seconds = text.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds > 0.0);
    seconds.context("give a number of seconds above 0")
}

impl Model {
    fn parameters(&self) -> anyhow::Result<Parameters> {
        let n = self.n.unwrap_or(self.m);
        ensure!(self.m >= 1, "--m 0 is no operation: give at least 1 CPU");
        ensure!(
            n >= self.m,
            "--n {n} is less than --m {}: an operation cannot involve more CPUs than there are",
            self.m
        );
        let positive = [
            ("--x-d", self.x_d),
            ("--x-i", self.x_i),
            ("--x-req1", self.x_req1),
            ("--x-req2", self.x_req2),
            ("--x-reply", self.x_reply),
            ("--x-j", self.x_j),
            ("--lambda-t", self.lambda_t),
        ];
        for (name, value) in positive {
            ensure!(
                value.is_finite() && value > 0.0,
                "{name} {value} does not make sense: give a number above 0"
            );
        }
        ensure!(
            self.lambda_d.is_finite() && self.lambda_d >= 0.0,
            "--lambda-d {} does not make sense: give a number from 0 on",
            self.lambda_d
        );
        ensure!((0.0..1.0).contains(&self.p0), "--p0 {} is no probability below 1", self.p0);
        let parameters = Parameters {
            m: self.m,
            n,
            lambda_t: self.lambda_t,
            lambda_d: self.lambda_d,
            x_d: self.x_d * 1e-3,
            x_i: self.x_i * 1e-3,
            x_req1: self.x_req1 * 1e-3,
            x_req2: self.x_req2 * 1e-3,
            x_reply: self.x_reply * 1e-3,
            x_j: self.x_j * 1e-3,
            p0: self.p0,
        };
        if parameters.rho_d() >= 1.0 {
            bail!(
                "--lambda-d {} times --x-d {} ms leaves no time for anything else: lower one of them",
                self.lambda_d,
                self.x_d
            );
        }
        Ok(parameters)
    }
}

/// One result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The algorithm.
    pub algorithm: Kind,
    /// Where the numbers come from.
    pub source: Source,
    /// CPUs of an operation.
    pub m: usize,
    /// CPUs of the machine.
    pub n: usize,
    /// The share of a CPU's time, from 0 to 1; this and the rest none where the equations have no solution.
    pub cpu_overhead_share: Option<f64>,
    /// Milliseconds of an operation.
    pub latency_ms: Option<f64>,
    /// Operations for each CPU and second.
    pub ops_per_cpu_s: Option<f64>,
    /// Pages frozen for each CPU.
    pub frozen_pages_per_cpu: Option<f64>,
    /// `ok`, or `saturated` where the equations have no solution.
    pub status: Name,
}

/// Where a result comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The equations, the lower bound.
    Lower,
    /// The equations, the upper bound.
    Upper,
    /// The simulator.
    Simulation,
}

impl Row {
    fn new(algorithm: Kind, source: Source, p: &Parameters, measures: Option<Measures>) -> Self {
        Self {
            algorithm,
            source,
            m: p.m,
            n: p.n,
            cpu_overhead_share: measures.map(|m| m.overhead),
            latency_ms: measures.map(|m| m.latency * 1e3),
            ops_per_cpu_s: measures.map(|m| m.throughput),
            frozen_pages_per_cpu: measures.map(|m| m.space),
            status: if measures.is_some() { "ok" } else { "saturated" }.into(),
        }
    }
}

fn bounds(kind: Kind, p: &Parameters) -> [Row; 2] {
    [(Source::Lower, Bound::Lower), (Source::Upper, Bound::Upper)].map(|(source, bound)| {
        let measures = match analyse(kind, bound, p) {
            Solution::Converged(measures) => Some(measures),
            Solution::Saturated => None,
        };
        Row::new(kind, source, p, measures)
    })
}

/// The most CPUs that the simulator's sets hold.
const MOST: usize = 256;

fn simulated(kind: Kind, p: &Parameters, options: &Options) -> anyhow::Result<Row> {
    ensure!(p.n <= MOST, "--n {} is more than the simulator's {MOST} CPUs: lower it", p.n);
    Ok(Row::new(kind, Source::Simulation, p, Some(simulate(kind, p, options)?.measures)))
}

impl Experiment for Model {
    const COMMAND: &'static str = "shootdown analyse";
    type Row = Row;

    fn rows(&self) -> anyhow::Result<Vec<Row>> {
        let p = self.parameters()?;
        Ok(Kind::ALL.into_iter().flat_map(|kind| bounds(kind, &p)).collect())
    }
}

pub(crate) fn run(args: &Shootdown) -> anyhow::Result<()> {
    match &args.what {
        What::Analyse(model) => crate::rows::print(model.json, &model.rows()?),
        What::Simulate(args) => {
            let (p, options) = (args.model.parameters()?, args.run.options());
            let rows = crate::parallel::map(&Kind::ALL, |&kind| simulated(kind, &p, &options))?;
            crate::rows::print(args.model.json, &rows)
        }
        What::Sweep(sweep) => sweep::run(sweep),
        What::Simplify(simplify) => simplify::run(simplify),
        What::Claims(claims) => claims::run(claims),
        What::Beyond(beyond) => beyond::run(beyond),
    }
}
