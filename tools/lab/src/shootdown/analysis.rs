//! The analysis of Tzou 4.2, with its equation numbers.
//!
//! Where the printed forms cancel or divide by zero, stable ones stand here: the alternating sum of (4.6) and the
//! integrals of (4.31) and (4.42) are means of a maximum, hence integrals of `1 - F(t)^(M-1)`, which no term of
//! cancels; (4.27) and (4.28) divide by the difference of two rates, whose limit is an Erlang term.

use super::model::{Kind, Measures, Parameters};

/// Which bound of T'reply is used (4.19), (4.36).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    /// Zero.
    Lower,
    /// All events of a busy period one after the other.
    Upper,
}

/// How a calculation ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Solution {
    /// The fixed point was reached.
    Converged(Measures),
    /// There is no fixed point between 0 and 1: the load is too high.
    Saturated,
}

/// The procedure of 4.2.1.4 (and 4.2.2.4), or the closed form of 4.2.3.
pub(crate) fn analyse(kind: Kind, bound: Bound, p: &Parameters) -> Solution {
    if kind == Kind::OpAsynch {
        return op_asynch(p);
    }
    let step = |rho: f64| match kind {
        Kind::TwoPhase => two_phase(p, rho, bound),
        _ => op_synch(p, rho, bound),
    };
    match fixed_point(|rho| step(rho).map(|m| m.overhead)) {
        Some(rho) => step(rho).map_or(Solution::Saturated, Solution::Converged),
        None => Solution::Saturated,
    }
}

/// P1-P6, with a cap; where the iteration swings or crawls, a bisection of `f(rho) - rho`.
fn fixed_point(f: impl Fn(f64) -> Option<f64>) -> Option<f64> {
    const CLOSE: f64 = 1e-12;
    let mut rho = 0.1;
    for _ in 0..200 {
        let Some(next) = f(rho) else { break };
        if (next - rho).abs() <= CLOSE {
            return Some(next);
        }
        if !(0.0..1.0).contains(&next) {
            break;
        }
        rho = next;
    }
    // A step that fails has T'reply too large for its load: the overhead is beyond any rho.
    let above = |rho: f64| f(rho).is_none_or(|next| next > rho);
    let (mut low, mut high) = (0.0, 1.0);
    if !above(low) || above(high - 1e-9) {
        return None;
    }
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        if above(middle) { low = middle } else { high = middle }
    }
    // A jump across the diagonal is no fixed point.
    f(high).filter(|next| (next - high).abs() < 1e-6)
}

/// Busy periods and overhead from SYNC and the two durations: (4.12), (4.17), (4.18).
struct Busy {
    lambda_req: f64,
    lambda_reply: f64,
    t_req: f64,
    t_reply: f64,
    t_reply_within: f64,
    initial: f64,
}

impl Busy {
    fn measures(&self) -> Option<Measures> {
        let idle = 1.0 - self.lambda_reply * self.t_reply_within;
        if idle <= 0.0 {
            return None;
        }
        let b_req = self.t_req / idle; // (4.12)
        let b_reply = (self.t_reply + self.initial * self.lambda_reply * self.t_reply_within) / idle; // (4.17)
        let overhead = b_req * self.lambda_req
            + b_reply * self.lambda_reply * (1.0 - self.lambda_req * b_req)
                / (1.0 + self.lambda_reply * (b_reply + self.initial)); // (4.18)
        Some(Measures {
            overhead,
            latency: b_req,
            throughput: self.lambda_req,
            space: self.lambda_req * self.t_req,
        })
    }
}

/// One pass of the 2-phase procedure (4.2.1.4).
fn two_phase(p: &Parameters, rho_t: f64, bound: Bound) -> Option<Measures> {
    let rho_d = p.rho_d();
    // (4.2): the distribution function of the acknowledgement time.
    let ack = |t: f64| if t < p.x_i { rho_t } else { 1.0 - rho_d * (-(t - p.x_i) / p.x_d).exp() };
    let sync = if p.m < 2 {
        0.0
    } else {
        // (4.6), as the integral of 1 - ACK^(M-1).
        let k = p.repliers();
        let before = p.x_i * (1.0 - rho_t.powf(k));
        before + integral(p.x_d, |t| 1.0 - ack(t + p.x_i).powf(k))
    };
    let lambda_req = (1.0 - rho_d - rho_t).max(0.0) * p.lambda_t; // (4.7)
    let initial = rho_d * p.x_d; // (4.14)
    Busy {
        lambda_req,
        lambda_reply: lambda_req * p.repliers(),        // (4.8)
        t_req: p.x_req() + sync,                        // (4.10)
        t_reply: (sync - initial).max(0.0) + p.x_reply, // (4.15)
        t_reply_within: if bound == Bound::Lower { 0.0 } else { p.x_reply + sync }, // (4.19)
        initial,
    }
    .measures()
}

/// One pass of the op-synch procedure (4.2.2.4).
fn op_synch(p: &Parameters, rho_t: f64, bound: Bound) -> Option<Measures> {
    let rho_d = p.rho_d();
    let lambda_req = (1.0 - rho_d - rho_t).max(0.0) * p.lambda_t; // (4.7)
    let lambda_req0 = lambda_req / p.passes(); // (4.21)
    let lambda_reply = lambda_req0 * p.repliers(); // (4.22)
    let sync = if p.m < 2 { 0.0 } else { op_synch_sync(p, lambda_req0, lambda_reply)? };
    Busy {
        lambda_req,
        lambda_reply,
        t_req: (p.x_req() + sync) / p.passes(), // (4.33)
        t_reply: p.x_i + p.x_reply,             // (4.35)
        t_reply_within: if bound == Bound::Lower { 0.0 } else { p.x_reply }, // (4.36)
        initial: rho_d * p.x_d + lambda_req0 * p.x_req() * p.x_req(), // (4.34)
    }
    .measures()
}

/// (4.31), with the acknowledgement time of (4.30).
fn op_synch_sync(p: &Parameters, lambda_req0: f64, lambda_reply: f64) -> Option<f64> {
    let (mu1, mu2, mu3) = (1.0 / p.x_d, 1.0 / p.x_req(), 1.0 / p.x_reply); // (4.25)
    let rate = mu3 - lambda_reply;
    if rate <= 0.0 {
        return None;
    }
    // One term of 1 - ACK: c (e^-mu t - e^-rate t) with c of (4.27), (4.28), which has a limit where mu = rate.
    let term = |share: f64, mu: f64, t: f64| {
        let gap = rate - mu;
        if (gap * t).abs() < 1e-6 {
            share * mu3 * t * (-rate * t).exp()
        } else {
            share * mu3 * ((-mu * t).exp() - (-rate * t).exp()) / gap
        }
    };
    let late = |t: f64| {
        let late = (-rate * t).exp() + term(p.rho_d(), mu1, t) + term(lambda_req0 / mu2, mu2, t);
        late.clamp(0.0, 1.0)
    };
    let slowest = p.x_d.max(p.x_req()).max(1.0 / rate);
    Some(integral(slowest, |t| 1.0 - (1.0 - late(t)).powf(p.repliers())))
}

/// 4.2.3: in closed form but for one integral.
fn op_asynch(p: &Parameters) -> Solution {
    let work = p.lambda_t * (p.x_req1 + p.repliers() * (p.x_req2 + p.x_reply));
    let overhead = (1.0 - p.rho_d()) * work / (p.passes() + work); // (4.38)
    let throughput = (1.0 - p.rho_d() - overhead) * p.lambda_t; // (4.7)
    let rate = 1.0 / p.x_reply - throughput * p.repliers() / p.passes(); // mu2 - lambda2, (4.22)
    if rate <= 0.0 {
        return Solution::Saturated;
    }
    // (4.41), one minus.
    let late = |t: f64| {
        let late = if t <= p.x_j {
            1.0 - t / p.x_j + -(-rate * t).exp_m1() / (rate * p.x_j)
        } else {
            -(-rate * p.x_j).exp_m1() / (rate * p.x_j) * (-rate * (t - p.x_j)).exp()
        };
        late.clamp(0.0, 1.0)
    };
    let slowest = if p.m < 2 {
        0.0
    } else {
        let maximum = |t: f64| 1.0 - (1.0 - late(t)).powf(p.repliers());
        simpson(0.0, p.x_j, 4096, maximum) + integral(1.0 / rate, |t| maximum(t + p.x_j))
    };
    let latency = (p.x_req() + slowest) / p.passes(); // (4.42), (4.43)
    Solution::Converged(Measures { overhead, latency, throughput, space: throughput * latency })
}

/// Integrates a function that falls off like `e^(-t/scale)` from 0 on.
fn integral(scale: f64, f: impl Fn(f64) -> f64) -> f64 {
    // Finer where it falls: 60 scales away even M-1 = 10^6 of them have gone.
    simpson(0.0, 4.0 * scale, 4096, &f) + simpson(4.0 * scale, 60.0 * scale, 8192, &f)
}

fn simpson(from: f64, to: f64, steps: usize, f: impl Fn(f64) -> f64) -> f64 {
    let width = (to - from) / steps as f64;
    let inner: f64 =
        (1..steps).map(|at| f(from + at as f64 * width) * if at % 2 == 1 { 4.0 } else { 2.0 }).sum();
    (f(from) + inner + f(to)) * width / 3.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measures(kind: Kind, bound: Bound, m: usize) -> Measures {
        let p = Parameters { m, n: m, ..Parameters::CANONICAL };
        match analyse(kind, bound, &p) {
            Solution::Converged(measures) => measures,
            Solution::Saturated => panic!("{kind:?} at M = {m} has no solution"),
        }
    }

    #[test]
    fn canonical_values_are_the_papers() {
        let lower = measures(Kind::TwoPhase, Bound::Lower, 16).overhead;
        let upper = measures(Kind::TwoPhase, Bound::Upper, 16).overhead;
        assert!(0.115 < lower && lower < upper && upper < 0.14, "2-phase {lower} {upper}");
        let synch = measures(Kind::OpSynch, Bound::Lower, 16).overhead;
        assert!((0.050..0.053).contains(&synch), "op-synch {synch}");
        let asynch = measures(Kind::OpAsynch, Bound::Lower, 16).overhead;
        assert!((asynch - 0.0286).abs() < 0.0001, "op-asynch {asynch}");
        let fifty = measures(Kind::OpAsynch, Bound::Lower, 50);
        assert!((fifty.overhead - 0.086).abs() < 0.001, "op-asynch at 50: {}", fifty.overhead);
        assert!((fifty.latency * 1e3 - 27.0).abs() < 1.5, "op-asynch at 50: {}", fifty.latency);
    }

    /// (4.6) as printed: fine while M is small.
    #[test]
    fn the_stable_form_of_4_6_is_the_printed_one() {
        let p = Parameters { m: 6, n: 6, ..Parameters::CANONICAL };
        let (rho_t, rho_d, x) = (0.1, p.rho_d(), p.x_i / p.x_d);
        let k = 5.0;
        let binomial = [1.0, 4.0, 6.0, 4.0, 1.0];
        let sum: f64 = binomial
            .iter()
            .enumerate()
            .map(|(i, b)| {
                let j = i as f64 + 1.0;
                b * (-rho_d).powi(i as i32) * (1.0 + j * x) / (j * j)
            })
            .sum();
        let printed = p.x_i * ((1.0 - rho_d).powf(k) - f64::powf(rho_t, k)) + k * rho_d * p.x_d * sum;
        let ack = |t: f64| 1.0 - rho_d * (-t / p.x_d).exp();
        let stable = p.x_i * (1.0 - f64::powf(rho_t, k)) + integral(p.x_d, |t| 1.0 - ack(t).powf(k));
        assert!((printed - stable).abs() < 1e-9, "{printed} {stable}");
    }

    /// Equal rates make (4.27) divide by zero.
    #[test]
    fn op_synch_has_a_value_where_two_rates_are_equal() {
        let near = Parameters { x_d: 0.4e-3, lambda_d: 1.0, ..Parameters::CANONICAL };
        for x_reply in [0.399e-3, 0.4e-3, 0.401e-3] {
            let p = Parameters { x_reply, m: 2, n: 2, ..near };
            assert!(
                matches!(analyse(Kind::OpSynch, Bound::Lower, &p), Solution::Converged(m) if m.overhead > 0.0)
            );
        }
    }
}
