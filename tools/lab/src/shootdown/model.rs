//! The model of Tzou 4.1: its parameters, and the measures of 4.1.4.

use serde::{Deserialize, Serialize};
use tlbkit_shootdown::Algorithm;

/// The parameters of sections 4.1.2 and 4.1.3. Rates per second, times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Parameters {
    /// CPUs of an operation, the requester among them.
    pub(crate) m: usize,
    /// CPUs of the machine.
    pub(crate) n: usize,
    /// Requester events that a CPU generates.
    pub(crate) lambda_t: f64,
    /// Interrupt-disabling events of a CPU.
    pub(crate) lambda_d: f64,
    /// Their mean service time.
    pub(crate) x_d: f64,
    /// The cost of dispatching an interrupt.
    pub(crate) x_i: f64,
    /// A request's mean computation: this...
    pub(crate) x_req1: f64,
    /// ... and this for each replier.
    pub(crate) x_req2: f64,
    /// A reply's mean computation.
    pub(crate) x_reply: f64,
    /// The time slice after which op-asynch looks into the queue.
    pub(crate) x_j: f64,
    /// The probability that a CPU overwrites the entry in a round.
    pub(crate) p0: f64,
}

impl Parameters {
    /// The canonical values (4.4.1), M = N = 16.
    pub(crate) const CANONICAL: Self = Self {
        m: 16,
        n: 16,
        lambda_t: 25.0,
        lambda_d: 100.0,
        x_d: 0.5e-3,
        x_i: 0.04e-3,
        x_req1: 0.04e-3,
        x_req2: 0.04e-3,
        x_reply: 0.04e-3,
        x_j: 25e-3,
        p0: 0.0002,
    };

    /// The share of time in interrupt-disabling events.
    pub(crate) fn rho_d(&self) -> f64 {
        self.lambda_d * self.x_d
    }

    /// A request's mean computation.
    pub(crate) fn x_req(&self) -> f64 {
        self.x_req1 + self.repliers() * self.x_req2
    }

    /// M-1.
    pub(crate) fn repliers(&self) -> f64 {
        self.m as f64 - 1.0
    }

    /// The probability that a round is not overwritten: one minus (4.20).
    pub(crate) fn passes(&self) -> f64 {
        (1.0 - self.p0).powf(self.repliers())
    }
}

/// The three algorithms that chapter 4 analyses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// 2-phase.
    #[serde(rename = "2-phase")]
    TwoPhase,
    /// Optimistic, synchronous.
    #[serde(rename = "op-synch")]
    OpSynch,
    /// Optimistic, asynchronous.
    #[serde(rename = "op-asynch")]
    OpAsynch,
}

impl Kind {
    /// Every algorithm.
    pub const ALL: [Self; 3] = [Self::TwoPhase, Self::OpSynch, Self::OpAsynch];

    /// Returns the thesis's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TwoPhase => "2-phase",
            Self::OpSynch => "op-synch",
            Self::OpAsynch => "op-asynch",
        }
    }

    /// Returns the algorithm of Table 3.1 that it is.
    pub(crate) const fn algorithm(self) -> Algorithm {
        match self {
            Self::TwoPhase => Algorithm::TwoPhase,
            Self::OpSynch => Algorithm::Optimistic,
            Self::OpAsynch => Algorithm::OptimisticAsync,
        }
    }
}

/// The measures of 4.1.4.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Measures {
    /// Share of a CPU's time, 0 to 1.
    pub(crate) overhead: f64,
    /// Seconds from an operation's start to its end.
    pub(crate) latency: f64,
    /// Operations per CPU and second.
    pub(crate) throughput: f64,
    /// Pages frozen per CPU.
    pub(crate) space: f64,
}
