//! The event-driven simulator of Tzou 4.3.1: the model of 4.1, without the simplifications of 4.2.
//!
//! It drives the crate's own machines. What takes no time in the model (looking at a flag, taking a request) is done
//! at once; a computation, a dispatch or a wait is where an event comes in:
//!
//! | action | takes |
//! |-|-|
//! | `Update` (2-phase: `Enter`) | the request's computation, or with [`Sends::Spread`] its fixed part |
//! | `Send` | nothing, or with [`Sends::Spread`] its share of the computation |
//! | the replier's `Flush` | a reply's computation, and [`Options::x_page`] for each page after the first |
//! | an interrupt on a CPU that is not busy | the dispatch |
//! | `AllAcknowledged`, `IsStopped`, `MayContinue` | until it is so |
//!
//! | file | holds |
//! |-|-|
//! | `clock` | time, events, chance |
//! | `changes` | what is unmapped, gathered and classified by the crate |
//! | `processors` | what a CPU does when: idle, disabled, dispatching, synchronizing |
//! | `machines` | the crate's machines, action by action |

use std::collections::VecDeque;

use tlbkit_shootdown::{Algorithm, Hardware, LowRights, Plan};

use self::clock::{Clock, Random};
use self::processors::{Cpu, SLOTS, Simulator};
use super::model::{Kind, Measures, Parameters};

mod changes;
mod clock;
mod machines;
mod processors;

/// When a request is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sends {
    /// All of them when the requester's computation is over, as in the analysis (Figure 4.1).
    #[default]
    After,
    /// Each in its place in the computation: the first repliers are interrupted early, and wait longer for the last.
    Spread,
}

/// What the simulator is told beyond the parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Options {
    pub(crate) sends: Sends,
    /// Simulated seconds, of which the first tenth is not counted.
    pub(crate) seconds: f64,
    pub(crate) seed: u64,
    /// Simplification of 4.2.2.2: dispatching an interrupt does not delay the acknowledgement.
    pub(crate) free_dispatch: bool,
    /// Simplification of 4.2.3.2: the only thing that delays a reply is the time slice, and other replies.
    pub(crate) slices_only: bool,
    /// The simplification of 4.2.1.1 and 4.2.3.2: processors acknowledge independently. What delays each of them is
    /// drawn for each reply, whatever else the processor does.
    pub(crate) independent: bool,
    /// Unmaps that one operation covers.
    pub(crate) batch: usize,
    /// Seconds that each page after the first adds to what a requester and a replier compute. A whole address space counts
    /// as the most pages that a batch flushes one by one: more would cost more than the flush and the misses after it.
    pub(crate) x_page: f64,
    /// Share of the targets that do not run the address space.
    pub(crate) lazy: f64,
    /// Share of the unmaps whose inconsistency is tolerated (chapter 5).
    pub(crate) tolerated: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            sends: Sends::After,
            seconds: 40.0,
            seed: 1,
            free_dispatch: false,
            slices_only: false,
            independent: false,
            batch: 1,
            x_page: 0.0,
            lazy: 0.0,
            tolerated: 0.0,
        }
    }
}

/// What a run measured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Run {
    pub(crate) measures: Measures,
    /// Interprocessor interrupts that a CPU takes per second.
    pub(crate) interrupts: f64,
    /// Unmaps that a CPU gets done per second: tolerated, or flushed for.
    pub(crate) unmaps: f64,
}

/// Runs one simulation.
pub(crate) fn simulate(kind: Kind, p: &Parameters, o: &Options) -> anyhow::Result<Run> {
    let algorithm = match kind {
        Kind::TwoPhase => Algorithm::TwoPhase,
        Kind::OpSynch => Algorithm::Optimistic,
        Kind::OpAsynch => Algorithm::OptimisticAsync,
    };
    let plan = Plan::new(algorithm, &Hardware::VAX, LowRights::NeverWriteBack)?;
    let mut cpus = Vec::new();
    for _ in 0..p.n {
        cpus.push(Cpu::new(plan)?);
    }
    let mut simulator = Simulator {
        kind,
        p,
        o,
        plan,
        random: Random::new(o.seed),
        clock: Clock::default(),
        cpus,
        ops: Vec::new(),
        free_ops: Vec::new(),
        by_slot: vec![None; p.n * SLOTS],
        awake: VecDeque::new(),
        busy: 0.0,
        latencies: 0.0,
        ended: 0,
        frozen: 0.0,
        interrupts: 0,
        unmaps: 0,
    };
    simulator.run()?;
    let counted = o.seconds * 0.9 * p.n as f64;
    let ended = simulator.ended.max(1) as f64;
    Ok(Run {
        measures: Measures {
            overhead: simulator.busy / counted,
            latency: simulator.latencies / ended,
            throughput: simulator.ended as f64 / counted,
            space: simulator.frozen / counted,
        },
        interrupts: simulator.interrupts as f64 / counted,
        unmaps: simulator.unmaps as f64 / counted,
    })
}

#[cfg(test)]
mod tests {
    use super::super::analysis::{Bound, Solution, analyse};
    use super::*;

    /// 4.3.2, at the canonical parameters.
    #[test]
    fn the_simulator_agrees_with_the_analysis() {
        let p = Parameters::CANONICAL;
        for kind in Kind::ALL {
            let run = simulate(kind, &p, &Options::default()).expect("it runs");
            let Solution::Converged(lower) = analyse(kind, Bound::Lower, &p) else {
                panic!("{kind:?} is saturated")
            };
            let Solution::Converged(upper) = analyse(kind, Bound::Upper, &p) else {
                panic!("{kind:?} is saturated")
            };
            let middle = 0.5 * (lower.overhead + upper.overhead);
            let off = run.measures.overhead / middle - 1.0;
            assert!(off.abs() < 0.07, "{kind:?}: simulated {}, analysed {middle}", run.measures.overhead);
        }
    }

    /// One CPU has no CPU to ask.
    #[test]
    fn an_operation_of_one_cpu_interrupts_nobody() {
        let p = Parameters { m: 1, n: 4, ..Parameters::CANONICAL };
        for kind in Kind::ALL {
            let run = simulate(kind, &p, &Options { seconds: 5.0, ..Options::default() }).expect("it runs");
            assert!(run.interrupts == 0.0 && run.measures.throughput > 20.0, "{kind:?}: {run:?}");
        }
    }

    /// A batch of many pages takes longer to flush than one of few, and the CPUs are busy for as long.
    #[test]
    fn a_batch_pays_for_its_pages() {
        let p = Parameters { m: 8, n: 8, lambda_t: 500.0, ..Parameters::CANONICAL };
        for kind in Kind::ALL {
            let overhead_of_an_operation = |batch, x_page| {
                let options = Options { seconds: 10.0, batch, x_page, ..Options::default() };
                let Measures { overhead, throughput, .. } =
                    simulate(kind, &p, &options).expect("it runs").measures;
                overhead / throughput
            };
            let [free, paid] = [0.0, 0.02e-3].map(|x_page| overhead_of_an_operation(32, x_page));
            // 31 further pages on each of eight CPUs.
            let more = (paid - free) / (8.0 * 31.0 * 0.02e-3);
            assert!((0.8..2.0).contains(&more), "{kind:?}: {more} of what the pages take");
            // Beyond what is flushed page by page, all is flushed: no more than for as many.
            let [most, beyond] = [64, 128].map(|batch| overhead_of_an_operation(batch, 0.02e-3));
            assert!((0.8..1.25).contains(&(beyond / most)), "{kind:?}: {beyond} after {most}");
        }
    }
}
