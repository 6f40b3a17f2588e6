//! `tlblab shootdown`: chapter 4 of Tzou, by its equations and by a simulator that drives the crate's machines.

use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use tlbkit_shootdown::{Algorithm, Form};

use self::analysis::{Bound, Solution, analyse};
use self::model::{Measures, Parameters};
use self::recorded::Recorded;
use self::simulator::{Options, Sends, Shape, simulate, simulate_form};
use crate::explore::FORMS;
use crate::{Experiment, Name};

pub use self::beyond::{Beyond, Way};
pub use self::claims::{Claim, Claims};
pub use self::model::Kind;
pub use self::sweep::{Point, Sweep};

mod analysis;
mod beyond;
mod claims;
mod model;
mod recorded;
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
    /// By simulation, of the crate's state machines under the model of 4.1: all ten algorithms
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

/// Arguments
#[derive(Clone, Debug, Args)]
pub struct Simulate {
    /// The later forms, too: concurrent flushes, early acknowledgement, requests that are swept
    #[arg(long)]
    forms: bool,
    #[command(flatten)]
    model: Model,
    #[command(flatten)]
    run: RunArgs,
}

/// How to simulate
#[derive(Clone, Debug, Args)]
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
    /// The distribution of the time between two requests of a CPU
    #[arg(long, value_enum, default_value_t = Shape::Exponential)]
    arrivals: Shape,
    /// The distribution of what a request and a reply compute
    #[arg(long, value_enum, default_value_t = Shape::Exponential)]
    services: Shape,
    /// The distribution of the time of an interrupt-disabling event
    #[arg(long, value_enum, default_value_t = Shape::Exponential)]
    masked: Shape,
    /// Interrupt-disabling events let pending interrupts in after so many milliseconds [default: never]
    #[arg(long, value_name = "MS")]
    masked_at_most: Option<f64>,
    /// Cache lines of a page that each CPU flushes with it: a virtually tagged cache
    #[arg(long, value_name = "N", default_value_t = 0)]
    lines: u32,
    /// Milliseconds that a line takes
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    x_line: f64,
    /// Milliseconds that each page of a request after the first adds
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    x_page: f64,
    /// A kernel's log (docs/witness.md): what is between its changes, with the mean of --lambda-t, and how many pages and which
    /// share of the CPUs each concerns
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

impl RunArgs {
    fn options<'a>(&self, recorded: Option<&'a Recorded>) -> anyhow::Result<Options<'a>> {
        let at_most = self.masked_at_most.unwrap_or(f64::INFINITY);
        ensure!(at_most > 0.0, "--masked-at-most {at_most} is no time: give a number above 0");
        for (name, value) in [("--x-line", self.x_line), ("--x-page", self.x_page)] {
            ensure!(value.is_finite() && value >= 0.0, "{name} {value}: give a number from 0 on");
        }
        Ok(Options {
            sends: self.sends,
            seconds: self.seconds,
            seed: self.seed,
            free_dispatch: self.free_dispatch,
            slices_only: self.slices_only,
            independent: self.independent,
            arrivals: self.arrivals,
            services: self.services,
            masked: self.masked,
            masked_at_most: at_most * 1e-3,
            recorded,
            x_lines: f64::from(self.lines) * self.x_line * 1e-3,
            x_page: self.x_page * 1e-3,
            ..Options::default()
        })
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

fn simulated(kind: Kind, p: &Parameters, options: &Options<'_>) -> anyhow::Result<Row> {
    Ok(Row::new(kind, Source::Simulation, p, Some(simulate(kind.algorithm(), p, options)?.measures)))
}

/// An algorithm in the simulator.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Simulated {
    /// The algorithm, by its name in Table 3.1.
    pub algorithm: Name,
    /// CPUs of an operation.
    pub m: usize,
    /// CPUs of the machine.
    pub n: usize,
    /// The share of a CPU's time, from 0 to 1.
    pub cpu_overhead: f64,
    /// Milliseconds of an operation: the mean, and the longest.
    pub latency_ms: f64,
    /// See there.
    pub longest_ms: f64,
    /// The longest time for which a CPU was kept from its program.
    pub longest_busy_ms: f64,
    /// Operations for each CPU and second.
    pub throughput: f64,
    /// Pages frozen for each CPU.
    pub space: f64,
    /// Interprocessor interrupts that a CPU takes in a second.
    pub interrupts: f64,
}

impl Experiment for Simulate {
    const COMMAND: &'static str = "shootdown simulate";
    type Row = Simulated;

    fn rows(&self) -> anyhow::Result<Vec<Simulated>> {
        let recorded = self.run.log.as_deref().map(Recorded::open).transpose()?;
        let (p, options) = (self.model.parameters()?, self.run.options(recorded.as_ref())?);
        let mut all: Vec<_> = Algorithm::ALL.map(|one| (one.name(), one, Form::Printed)).into();
        if self.forms {
            all.extend(FORMS);
        }
        crate::parallel::map(&all, |&(name, algorithm, form)| {
            let run = simulate_form(algorithm, form, &p, &options)?;
            let measures = run.measures;
            Ok(Simulated {
                algorithm: name.into(),
                m: p.m,
                n: p.n,
                cpu_overhead: measures.overhead,
                latency_ms: measures.latency * 1e3,
                longest_ms: run.longest * 1e3,
                longest_busy_ms: run.longest_busy * 1e3,
                throughput: measures.throughput,
                space: measures.space,
                interrupts: run.interrupts,
            })
        })
    }
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
        What::Simulate(args) => crate::rows::print(args.model.json, &args.rows()?),
        What::Sweep(sweep) => sweep::run(sweep),
        What::Simplify(simplify) => simplify::run(simplify),
        What::Claims(claims) => claims::run(claims),
        What::Beyond(beyond) => beyond::run(beyond),
    }
}
