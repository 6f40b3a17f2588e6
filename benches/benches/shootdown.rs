//! The shootdown's hot paths beside the least that the hardware lets one do: a locked add, a load, a mailbox of one
//! word in each direction, a [`Mailbox`] of requests and nothing else. `cargo bench -p tlbkit-benches --bench shootdown`
//!
//! The subjects of a job take turns, round by round, in one run. Of each the fastest round counts: what another
//! program, or the scheduler, does in between makes rounds slower and none faster.
#![allow(missing_docs)]

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use tlbkit_addr::{Asid, Pages, Vpn};
use tlbkit_shootdown::{
    Algorithm, Edit, Hardware, Local, LowRights, Mailbox, OpId, Outcome, Plan, Request, SharedSpace, System,
    Target, Work,
};

struct Page<'a>(&'a SharedSpace);

impl Edit<1> for Page<'_> {
    fn exclude(&self) -> bool {
        true
    }
    fn release(&self) {}
    fn update(&self) {}
    fn space(&self) -> &SharedSpace {
        self.0
    }
    fn what(&self) -> Target {
        Target::Pages(Asid::default(), Pages::one(Vpn::new(3)))
    }
}

/// A CPU whose interrupts are polled for, and whose TLB is empty.
struct Quiet;

impl Local<()> for Quiet {
    fn flush(&mut self, what: Target, _drain: bool) {
        black_box(what);
    }
    fn interrupt(&mut self, _cpu: usize) {}
    fn complete(&mut self, (): (), outcome: Outcome) {
        black_box(outcome);
    }
}

type Kernel<'a> = System<(), Page<'a>, 2, 4>;

/// Operations of a round: few enough to fit between two interruptions.
const TIMES: u32 = 64;
/// Rounds of each subject; fewer where two CPUs must run at a time.
const ROUNDS: usize = 4000;
const ROUNDS_OF_TWO: usize = 400;

/// Runs the subjects in turn; prints the fastest round of each, by operation, and its ratio to the first subject's.
fn job(name: &str, bound: &str, rounds: usize, subjects: &mut [(&str, &mut dyn FnMut() -> f64)]) {
    let mut best = vec![f64::INFINITY; subjects.len()];
    for _ in 0..rounds {
        for (best, (_, round)) in best.iter_mut().zip(subjects.iter_mut()) {
            *best = best.min(round());
        }
    }
    for (time, (subject, _)) in best.iter().zip(subjects.iter()) {
        println!("{name:<12} {subject:<26} {time:>8.2} ns  {:>6.2}  {bound}", time / best[0]);
    }
}

/// Returns the time of one of [`TIMES`] operations.
fn timed(mut operation: impl FnMut()) -> f64 {
    let begin = Instant::now();
    for _ in 0..TIMES {
        operation();
    }
    begin.elapsed().as_nanos() as f64 / f64::from(TIMES)
}

fn plan() -> Plan {
    Plan::new(Algorithm::PteFirst, &Hardware::I386, LowRights::NeverWriteBack).expect("it suits")
}

fn one_cpu() {
    let word = AtomicU32::new(0);
    let mailbox = Mailbox::<{ TIMES as usize }>::new().expect("room for a round");
    let request = Request {
        op: OpId { cpu: 1, slot: 0, generation: 1 },
        what: Target::Pages(Asid::default(), Pages::one(Vpn::new(3))),
    };
    job(
        "publish",
        "at most 6",
        ROUNDS,
        &mut [
            ("locked add", &mut || {
                timed(|| {
                    black_box(black_box(&word).fetch_add(1, Ordering::SeqCst));
                })
            }),
            ("a request", &mut || {
                let time = timed(|| {
                    black_box(black_box(&mailbox).post(black_box(request)).is_ok());
                });
                while let Some(work) = mailbox.take() {
                    black_box(matches!(work, Work::One(_)));
                }
                time
            }),
        ],
    );
    let flag = AtomicBool::new(false);
    let kernel = Kernel::new(plan()).expect("sizes are not zero");
    let mut station = kernel.station(0).expect("it exists");
    job(
        "empty poll",
        "one load",
        ROUNDS,
        &mut [
            ("load", &mut || {
                timed(|| {
                    black_box(black_box(&flag).load(Ordering::Acquire));
                })
            }),
            ("poll", &mut || {
                timed(|| _ = black_box(black_box(&kernel).poll(&mut station, &mut Quiet).is_ok()))
            }),
        ],
    );
    let alone = SharedSpace::new();
    alone.members.insert(0);
    alone.running.insert(0);
    let mut station = kernel.station(0).expect("it exists");
    job(
        "unshared",
        "",
        ROUNDS,
        &mut [
            ("locked add", &mut || {
                timed(|| {
                    black_box(black_box(&word).fetch_add(1, Ordering::SeqCst));
                })
            }),
            ("unmap", &mut || {
                timed(|| _ = black_box(kernel.start(&mut station, &mut Quiet, (), Page(&alone)).is_ok()))
            }),
        ],
    );
}

#[repr(align(64))]
struct Line(AtomicU32);

/// A requester here and a responder that polls on another CPU; both subjects' responders spin only in their turns.
fn round_trips() {
    let (ask, answer) = (Line(AtomicU32::new(0)), Line(AtomicU32::new(0)));
    let space = SharedSpace::new();
    for cpu in [0, 1] {
        space.members.insert(cpu);
        space.running.insert(cpu);
    }
    let kernel = Kernel::new(plan()).expect("sizes are not zero");
    let (mailbox, left) = (Mailbox::<4>::new().expect("room for 4"), Line(AtomicU32::new(0)));
    let (turn, stop) = (Line(AtomicU32::new(0)), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut station = kernel.station(1).expect("it exists");
            while !stop.load(Ordering::Relaxed) {
                let turn = turn.0.load(Ordering::Acquire);
                // A hundred looks between two looks at whose turn it is.
                for _ in 0..100 {
                    match turn {
                        0 => {
                            let now = ask.0.load(Ordering::Acquire);
                            if now != answer.0.load(Ordering::Relaxed) {
                                answer.0.store(now, Ordering::Release);
                            }
                        }
                        1 if mailbox.is_empty() => {}
                        1 => {
                            if let Some(work) = mailbox.take() {
                                black_box(work);
                                left.0.fetch_sub(1, Ordering::AcqRel);
                            }
                        }
                        _ => _ = black_box(kernel.poll(&mut station, &mut Quiet).is_ok()),
                    }
                    spin_loop();
                }
            }
        });
        let mut station = kernel.station(0).expect("it exists");
        let mut n = 0;
        let mut bare = || {
            n += 1;
            ask.0.store(n, Ordering::Release);
            while answer.0.load(Ordering::Acquire) != n {
                spin_loop();
            }
        };
        let request = Request {
            op: OpId { cpu: 0, slot: 0, generation: 1 },
            what: Target::Pages(Asid::default(), Pages::one(Vpn::new(3))),
        };
        let mut posted = || {
            left.0.store(1, Ordering::Release);
            black_box(mailbox.post(black_box(request)).is_ok());
            while left.0.load(Ordering::Acquire) != 0 {
                spin_loop();
            }
        };
        job(
            "round trip",
            "shootdown at most 1.3 of a bare mailbox",
            ROUNDS_OF_TWO,
            &mut [
                ("two words", &mut || {
                    turn.0.store(0, Ordering::Release);
                    bare(); // The responder has seen whose turn it is.
                    timed(&mut bare)
                }),
                ("mailbox of requests", &mut || {
                    turn.0.store(1, Ordering::Release);
                    posted();
                    timed(&mut posted)
                }),
                ("shootdown, polled", &mut || {
                    turn.0.store(2, Ordering::Release);
                    let mut shootdown =
                        || _ = black_box(kernel.start(&mut station, &mut Quiet, (), Page(&space)).is_ok());
                    shootdown();
                    timed(shootdown)
                }),
            ],
        );
        stop.store(true, Ordering::Relaxed);
    });
}

fn main() {
    println!("{:<12} {:<26} {:>11}  {:>6}", "job", "subject", "fastest", "ratio");
    one_cpu();
    round_trips();
}
