//! The event-driven simulator of Tzou 4.3.1: the model of 4.1, without the simplifications of 4.2.
//!
//! It drives the crate's own machines. What takes no time in the model (looking at a flag, taking a request) is done
//! at once; a computation, a dispatch or a wait is where an event comes in:
//!
//! | action | takes |
//! |-|-|
//! | `Update` (2-phase: `Enter`, TLB-first: `SetTentative`) | the request's computation, or with [`Sends::Spread`] its fixed part |
//! | `Send` | nothing, or with [`Sends::Spread`] its share of the computation |
//! | the requester's `FlushLocally` | [`Options::x_page`] for each page after the first, [`Options::x_lines`] for each page |
//! | the replier's `Flush` | a reply's computation, and the same |
//! | `FlushRemotely` | the same, and with [`Sends::Spread`] its share of the computation |
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

use tlbkit_shootdown::{Algorithm, Form, Hardware, LowRights, Order, Plan, Style};

pub(crate) use self::clock::Shape;
use self::clock::{Clock, Random};
use self::processors::{Cpu, SLOTS, Simulator};
use super::MOST;
use super::model::{Measures, Parameters};
use super::recorded::Recorded;

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
pub(crate) struct Options<'a> {
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
    /// The distributions of the time between two unmaps, of what requests and replies compute, and of the events that disable
    /// interrupts.
    pub(crate) arrivals: Shape,
    pub(crate) services: Shape,
    pub(crate) masked: Shape,
    /// An event that disables interrupts lets pending ones in after so many seconds, and then goes on.
    pub(crate) masked_at_most: f64,
    /// A kernel's changes: what is between them, and how many pages and CPUs each concerns.
    pub(crate) recorded: Option<&'a Recorded>,
    /// Seconds in which a CPU flushes a page's lines from a virtually tagged cache.
    pub(crate) x_lines: f64,
    /// Seconds that each page after the first adds to what a requester and a replier compute. A whole address space counts
    /// as the most pages that a batch flushes one by one: more would cost more than the flush and the misses after it.
    pub(crate) x_page: f64,
    /// Share of the targets that do not run the address space.
    pub(crate) lazy: f64,
    /// Share of the unmaps whose inconsistency is tolerated (chapter 5).
    pub(crate) tolerated: f64,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            sends: Sends::After,
            seconds: 40.0,
            seed: 1,
            free_dispatch: false,
            slices_only: false,
            independent: false,
            arrivals: Shape::Exponential,
            services: Shape::Exponential,
            masked: Shape::Exponential,
            masked_at_most: f64::INFINITY,
            recorded: None,
            x_lines: 0.0,
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
    /// Seconds of the longest operation, and the longest time for which a CPU was kept from its program by synchronization.
    pub(crate) longest: f64,
    pub(crate) longest_busy: f64,
    /// Interprocessor interrupts that a CPU takes per second.
    pub(crate) interrupts: f64,
    /// Unmaps that a CPU gets done per second: tolerated, or flushed for.
    pub(crate) unmaps: f64,
}

/// Runs one simulation.
pub(crate) fn simulate(algorithm: Algorithm, p: &Parameters, o: &Options<'_>) -> anyhow::Result<Run> {
    simulate_form(algorithm, Form::Printed, p, o)
}

/// Runs one simulation of a form of an algorithm.
pub(crate) fn simulate_form(
    algorithm: Algorithm,
    form: Form,
    p: &Parameters,
    o: &Options<'_>,
) -> anyhow::Result<Run> {
    anyhow::ensure!(p.n <= MOST, "--n {} is more than the simulator's {MOST} CPUs: lower it", p.n);
    // A machine of Table 2.1 that the algorithm suits.
    let hardware = match algorithm.order() {
        Order::TlbFirst => Hardware::RP3,
        Order::PteFirst => Hardware::I386,
        Order::TwoPhase | Order::Optimistic => Hardware::VAX,
    };
    let hardware = Hardware { remote_flush: algorithm.style() == Style::Remote, ..hardware };
    let plan = Plan::new(algorithm, &hardware, LowRights::NeverWriteBack)?.with_form(form)?;
    let mut cpus = Vec::new();
    for _ in 0..p.n {
        cpus.push(Cpu::new(plan)?);
    }
    let mut simulator = Simulator {
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
        longest: 0.0,
        longest_busy: 0.0,
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
        longest: simulator.longest,
        longest_busy: simulator.longest_busy,
        interrupts: simulator.interrupts as f64 / counted,
        unmaps: simulator.unmaps as f64 / counted,
    })
}

#[cfg(test)]
mod tests {
    use super::super::analysis::{Bound, Solution, analyse};
    use super::super::model::Kind;
    use super::*;

    /// 4.3.2, at the canonical parameters.
    #[test]
    fn the_simulator_agrees_with_the_analysis() {
        let p = Parameters::CANONICAL;
        for kind in Kind::ALL {
            let run = simulate(kind.algorithm(), &p, &Options::default()).expect("it runs");
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
        for algorithm in Algorithm::ALL {
            let run =
                simulate(algorithm, &p, &Options { seconds: 5.0, ..Options::default() }).expect("it runs");
            assert!(run.interrupts == 0.0 && run.measures.throughput > 20.0, "{algorithm}: {run:?}");
        }
    }

    /// What 4.2 says of the algorithms that it does not analyse: without overwritten entries, changing the entry first or last is
    /// all the same; and a CPU that flushes the others' TLBs interrupts none.
    #[test]
    fn algorithms_cost_what_their_waits_and_interrupts_do() {
        let p = Parameters { p0: 0.0, ..Parameters::CANONICAL };
        let options = Options { seconds: 20.0, ..Options::default() };
        let runs =
            Algorithm::ALL.map(|algorithm| (algorithm, simulate(algorithm, &p, &options).expect("it runs")));
        let of = |wanted| &runs.iter().find(|(algorithm, _)| *algorithm == wanted).expect("it has run").1;
        let overhead = |algorithm| of(algorithm).measures.overhead;
        use Algorithm as A;
        for same in [
            [A::PteFirst, A::TlbFirst, A::Optimistic],
            [A::PteFirstAsync, A::TlbFirstAsync, A::OptimisticAsync],
            [A::PteFirstRemote, A::TlbFirstRemote, A::OptimisticRemote],
        ] {
            let [first, rest @ ..] = same.map(overhead);
            assert!(rest.iter().all(|rest| (rest / first - 1.0).abs() < 0.05), "{same:?}: {first} {rest:?}");
        }
        let order = [A::PteFirstRemote, A::PteFirstAsync, A::PteFirst, A::TwoPhase].map(overhead);
        assert!(order.is_sorted(), "{order:?}");
        for algorithm in A::ALL {
            let interrupts = algorithm.style() == Style::Synchronous;
            assert_eq!(of(algorithm).interrupts > 0.0, interrupts, "{algorithm}");
        }
    }

    /// Interrupts that are let in after a while shorten the longest wait, and cost no throughput.
    #[test]
    fn bounded_times_without_interrupts_bound_the_wait() {
        for algorithm in [Algorithm::TwoPhase, Algorithm::PteFirst] {
            let [free, bounded] = [f64::INFINITY, 0.05e-3].map(|masked_at_most| {
                // Constant: the longest wait is for interrupts alone.
                let options = Options {
                    masked_at_most,
                    services: Shape::Constant,
                    seconds: 20.0,
                    ..Options::default()
                };
                simulate(algorithm, &Parameters::CANONICAL, &options).expect("it runs")
            });
            assert!(bounded.longest < 0.7 * free.longest, "{algorithm}: {bounded:?} {free:?}");
            assert!(bounded.measures.latency < 0.9 * free.measures.latency, "{algorithm}");
            assert!(bounded.measures.throughput > 0.99 * free.measures.throughput, "{algorithm}");
        }
    }

    /// The mean of a distribution is what the rates are made of; its variance is what waits are made of.
    #[test]
    fn distributions_have_their_means() {
        let run = |options: Options<'_>| {
            let options = Options { seconds: 20.0, ..options };
            simulate(Algorithm::Optimistic, &Parameters::CANONICAL, &options).expect("it runs")
        };
        let shapes = [Shape::Constant, Shape::Uniform, Shape::Exponential, Shape::Bursty];
        let arrivals =
            shapes.map(|arrivals| run(Options { arrivals, ..Options::default() }).measures.throughput);
        assert!(arrivals.iter().all(|rate| (rate / arrivals[2] - 1.0).abs() < 0.03), "{arrivals:?}");
        let waits = shapes.map(|masked| run(Options { masked, ..Options::default() }).measures.latency);
        assert!(waits.is_sorted(), "{waits:?}");
    }

    /// The lines of a page are flushed by each CPU of an operation; a CPU that flushes the others' does it for all of them.
    #[test]
    fn cache_lines_cost_each_cpu() {
        let p = Parameters { m: 4, n: 4, ..Parameters::CANONICAL };
        for algorithm in [Algorithm::PteFirst, Algorithm::OptimisticAsync, Algorithm::TlbFirstRemote] {
            let [free, paid] = [0.0, 0.2e-3].map(|x_lines| {
                let run =
                    simulate(algorithm, &p, &Options { x_lines, ..Options::default() }).expect("it runs");
                run.measures.overhead / run.measures.throughput
            });
            let more = (paid - free) / (4.0 * 0.2e-3);
            // Who waits for the others' lines is busy, too.
            let most = if algorithm == Algorithm::PteFirst { 1.6 } else { 1.05 };
            assert!((0.95..most).contains(&more), "{algorithm}: {more}");
        }
    }

    /// A recorded kernel's changes ask whom they asked.
    #[test]
    fn recorded_changes_are_repeated() {
        let log = |sends: &str| {
            let change = format!("0 lower 1 0x1000\n{sends}0 done 1\n0 barrier fence\n3 barrier fence\n");
            Recorded::read(change.repeat(3).as_bytes()).expect("a log")
        };
        for (sends, asked) in [("", 0.0), ("0 ipi send 1 1\n", 5.0), ("0 ipi send 1,2,3 1\n", 15.0)] {
            let recorded = log(sends);
            let options = Options { recorded: Some(&recorded), ..Options::default() };
            let run = simulate(Algorithm::PteFirst, &Parameters::CANONICAL, &options).expect("it runs");
            assert!((run.measures.throughput - 23.0).abs() < 2.0, "{run:?}");
            // Those that come while a CPU is busy interrupt it no more.
            let each = run.interrupts / run.measures.throughput;
            assert!((0.8 * asked..=asked).contains(&each), "{asked}: {each}");
        }
    }

    /// A batch of many pages takes longer to flush than one of few, and the CPUs are busy for as long.
    #[test]
    fn a_batch_pays_for_its_pages() {
        let p = Parameters { m: 8, n: 8, lambda_t: 500.0, ..Parameters::CANONICAL };
        for algorithm in Algorithm::ALL {
            let overhead_of_an_operation = |batch, x_page| {
                let options = Options { seconds: 10.0, batch, x_page, ..Options::default() };
                let Measures { overhead, throughput, .. } =
                    simulate(algorithm, &p, &options).expect("it runs").measures;
                overhead / throughput
            };
            let [free, paid] = [0.0, 0.02e-3].map(|x_page| overhead_of_an_operation(32, x_page));
            // 31 further pages on each of eight CPUs.
            let more = (paid - free) / (8.0 * 31.0 * 0.02e-3);
            assert!((0.8..2.0).contains(&more), "{algorithm}: {more} of what the pages take");
            // Beyond what is flushed page by page, all is flushed: no more than for as many.
            let [most, beyond] = [64, 128].map(|batch| overhead_of_an_operation(batch, 0.02e-3));
            assert!((0.8..1.25).contains(&(beyond / most)), "{algorithm}: {beyond} after {most}");
        }
    }
}
