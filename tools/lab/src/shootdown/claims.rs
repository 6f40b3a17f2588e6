//! The claims of Tzou 4.4 and 4.5, each with our number and whether it holds.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::analysis::{Bound, Solution, analyse};
use super::model::{Kind, Measures, Parameters};
use crate::{Experiment, Name};

/// Arguments
#[derive(Debug, Args)]
pub struct Claims {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What the text says, and whether it holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Claim {
    /// The section.
    pub section: Name,
    /// What it says.
    pub claim: Name,
    /// `pass`, `partly` or `fail`.
    pub verdict: Name,
    /// Our number, in words.
    pub ours: String,
}

/// The values of 4.4: lower bounds for 2-phase's latency, means of the bounds otherwise.
fn value(kind: Kind, p: &Parameters) -> Option<Measures> {
    let solve = |bound| match analyse(kind, bound, p) {
        Solution::Converged(measures) => Some(measures),
        Solution::Saturated => None,
    };
    let lower = solve(Bound::Lower)?;
    let upper = solve(Bound::Upper).unwrap_or(lower);
    let overhead = 0.5 * (lower.overhead + upper.overhead);
    let throughput = (1.0 - p.rho_d() - overhead) * p.lambda_t;
    let latency = if kind == Kind::TwoPhase { lower.latency } else { 0.5 * (lower.latency + upper.latency) };
    Some(Measures { overhead, latency, throughput, space: throughput * latency })
}

/// Where the overhead crosses 10 %, by bisection.
fn crossing(kind: Kind, mut low: f64, mut high: f64, of: impl Fn(f64) -> Parameters) -> f64 {
    let above = |x: f64| value(kind, &of(x)).is_none_or(|m| m.overhead > 0.1);
    let rising = above(high);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if above(middle) == rising { high = middle } else { low = middle }
    }
    high
}

const fn verdict(pass: bool, partly: bool) -> &'static str {
    match (pass, partly) {
        (true, _) => "pass",
        (false, true) => "partly",
        (false, false) => "fail",
    }
}

fn near(value: f64, claimed: f64, tolerance: f64) -> bool {
    (value / claimed - 1.0).abs() <= tolerance
}

impl Experiment for Claims {
    const COMMAND: &'static str = "shootdown claims";
    type Row = Claim;

    fn rows(&self) -> anyhow::Result<Vec<Claim>> {
        Ok(claims())
    }
}

pub(super) fn run(args: &Claims) -> anyhow::Result<()> {
    crate::rows::print(args.json, &args.rows()?)
}

fn claims() -> Vec<Claim> {
    let canonical = Parameters::CANONICAL;
    let sized = |m: f64| Parameters { m: m as usize, n: m as usize, ..canonical };
    let at = |kind, m: usize| value(kind, &sized(m as f64)).unwrap_or_default();
    let mut claims = Vec::new();
    let mut add = |section: &'static str, claim: &'static str, verdict: &'static str, ours| {
        claims.push(Claim { section: section.into(), claim: claim.into(), verdict: verdict.into(), ours });
    };

    let two = crossing(Kind::TwoPhase, 2.0, 60.0, sized);
    add(
        "4.4.2",
        "2-phase is above 10 % from M = 15 on",
        verdict(near(two, 15.0, 0.15), near(two, 15.0, 0.3)),
        format!("from M = {}", two as usize),
    );
    let fifty = at(Kind::OpAsynch, 50).overhead;
    add(
        "4.4.2",
        "op-asynch is at about 10 % at M = 50",
        verdict(near(fifty, 0.1, 0.1), near(fifty, 0.1, 0.2)),
        format!("{:.1} %", 100.0 * fifty),
    );
    let drop = 1.0 - at(Kind::TwoPhase, 50).throughput / at(Kind::TwoPhase, 2).throughput;
    add(
        "4.4.2",
        "2-phase's throughput drops by 40 % as M goes to 50",
        verdict(near(drop, 0.4, 0.15), near(drop, 0.4, 0.4)),
        format!("{:.0} %", 100.0 * drop),
    );
    let order = (2..=50).filter(|&m| {
        let latency = Kind::ALL.map(|kind| at(kind, m).latency);
        latency[0] <= latency[1] && latency[1] <= latency[2]
    });
    let ordered = order.count();
    add(
        "4.4.2",
        "latency: 2-phase < op-synch < op-asynch",
        verdict(ordered == 49, ordered > 24),
        format!("for {ordered} of M = 2..50"),
    );
    for (kind, claimed, claim) in [
        (Kind::TwoPhase, 20.0, "2-phase does 20 operations/s at 10 % overhead"),
        (Kind::OpSynch, 40.0, "op-synch does 40"),
        (Kind::OpAsynch, 80.0, "op-asynch does 80"),
    ] {
        let rate = crossing(kind, 1.0, 500.0, |lambda_t| Parameters { lambda_t, ..canonical });
        let done = value(kind, &Parameters { lambda_t: rate, ..canonical }).unwrap_or_default().throughput;
        add(
            "4.4.3",
            claim,
            verdict(near(done, claimed, 0.2), near(done, claimed, 0.4)),
            format!("{done:.1}"),
        );
    }
    let flat = Kind::ALL.map(|kind| {
        let of = |lambda_t| value(kind, &Parameters { lambda_t, ..canonical }).unwrap_or_default().latency;
        of(50.0) / of(10.0)
    });
    let worst = flat.iter().fold(0.0, |worst: f64, ratio| worst.max((ratio - 1.0).abs()));
    add(
        "4.4.3",
        "the request rate has almost no effect on latency",
        verdict(worst < 0.1, worst < 0.3),
        format!("latency at 50/s over that at 10/s: {:.2}, {:.2}, {:.2}", flat[0], flat[1], flat[2]),
    );
    let pages = value(Kind::OpAsynch, &Parameters { lambda_t: 200.0, ..canonical }).unwrap_or_default().space;
    add(
        "4.4.3",
        "fewer than 5 pages are frozen in the worst case",
        verdict(pages < 5.0, pages < 6.0),
        format!("{pages:.1} at 200/s"),
    );
    type Reading = fn(f64) -> Parameters;
    let readings: [(&str, Reading); 3] = [
        ("all above 10 % beyond Xreply = 250 us; all else canonical", |x| Parameters {
            x_reply: x,
            ..Parameters::CANONICAL
        }),
        ("the same; caption read as Xreq1 = Xreply", |x| Parameters {
            x_reply: x,
            x_req1: x,
            ..Parameters::CANONICAL
        }),
        ("the same; caption read as Xreq2 = Xreply", |x| Parameters {
            x_reply: x,
            x_req2: x,
            ..Parameters::CANONICAL
        }),
    ];
    for (claim, reading) in readings {
        let at = Kind::ALL.map(|kind| crossing(kind, 1e-6, 2e-3, reading) * 1e6);
        let all = at.iter().fold(0.0, |most: f64, x| most.max(*x));
        add(
            "4.4.4",
            claim,
            verdict(near(all, 250.0, 0.2), all < 250.0),
            format!("{:.0}, {:.0}, {:.0} us", at[0], at[1], at[2]),
        );
    }
    let ratios: Vec<f64> = (8..=50)
        .step_by(6)
        .flat_map(|m| {
            [Kind::OpSynch, Kind::OpAsynch].map(|kind| at(Kind::TwoPhase, m).overhead / at(kind, m).overhead)
        })
        .collect();
    let least = ratios.iter().fold(f64::INFINITY, |least, r| least.min(*r));
    let most = ratios.iter().fold(0.0, |most: f64, r| most.max(*r));
    let over = ratios.iter().filter(|&&r| r > 2.0).count();
    add(
        "4.5",
        "2-phase's overhead is usually more than 2:1 of the others'",
        verdict(2 * over > ratios.len(), over > 0),
        format!("{least:.2} to {most:.2} for M = 8..50, above 2 in {over} of {}", ratios.len()),
    );
    claims
}
