//! The shootdown's hot paths beside the least that the hardware lets one do: a locked add, a load, a mailbox of one
//! word in each direction, a [`Mailbox`] of requests and nothing else. `cargo bench -p tlbkit-benches --bench shootdown`
//!
//! The subjects of a job take turns, round by round, in one run. Of each the fastest round counts: what another
//! program, or the scheduler, does in between makes rounds slower and none faster.
#![allow(missing_docs)]

use std::hint::{black_box, spin_loop};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use tlbkit_addr::{Asid, CpuSet, Flush, FlushScope, Pages, Vpn};
use tlbkit_shootdown::{
    Algorithm, Duty, Edit, Hardware, LocalCpu, LowRights, Mailbox, OpId, Outcome, Plan, Request, SharedSpace,
    Synchronous, System, Target, Work,
};

struct Page<'a>(&'a SharedSpace, &'a Flush);

impl Edit for Page<'_> {
    type Payload = ();

    fn exclude(&mut self) -> bool {
        true
    }
    fn release(&mut self) {}
    fn update(&mut self) {}
    fn space(&self) -> &SharedSpace {
        self.0
    }
    fn asid(&self) -> Asid {
        Asid::default()
    }
    fn flush(&self) -> &Flush {
        self.1
    }
}

/// Returns the flush of one page.
fn one_page() -> Flush {
    let mut flush = Flush::none();
    flush.add(FlushScope::Everywhere, Pages::one(Vpn::new(3)));
    flush
}

/// A CPU whose interrupts are polled for, and whose TLB is empty.
struct Quiet;

impl LocalCpu<()> for Quiet {
    fn flush(&mut self, _space: Option<Asid>, what: &Flush, _drain: bool) {
        black_box(what);
    }
    fn interrupt(&mut self, _cpus: CpuSet) {}
    fn complete(&mut self, _op: OpId, (): (), outcome: Outcome) {
        black_box(outcome);
    }
}

type Kernel = System<(), Synchronous<()>, 2, 4>;

/// Operations of a round: few enough to fit between two interruptions.
const TIMES: u32 = 64;
/// Rounds of each subject; fewer where two CPUs must run at a time.
const ROUNDS: usize = 4000;
const ROUNDS_OF_TWO: usize = 400;
/// Places in memory for what two CPUs share. How far a cache line travels from one CPU to another depends on its
/// address, by half of the way and more; no two subjects can be at the same one.
const PLACES: usize = 32;

/// Runs the subjects in turn, and returns the fastest round of each, by operation.
fn fastest<const N: usize>(rounds: usize, mut subjects: [&mut dyn FnMut() -> f64; N]) -> [f64; N] {
    let mut best = [f64::INFINITY; N];
    for _ in 0..rounds {
        for (best, round) in best.iter_mut().zip(&mut subjects) {
            *best = best.min(round());
        }
    }
    best
}

/// Prints the time of each subject, and its ratio to that of the subject `one`.
fn print<const N: usize>(job: &str, bound: &str, subjects: [&str; N], times: [f64; N], one: usize) {
    for (subject, time) in subjects.iter().zip(times) {
        println!("{job:<12} {subject:<26} {time:>8.2} ns  {:>6.2}  {bound}", time / times[one]);
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

fn one_cpu(wanted: &dyn Fn(&str) -> bool) {
    let word = AtomicU32::new(0);
    let mailbox = Mailbox::<{ TIMES as usize }>::new().expect("room for a round");
    let request = Request {
        op: OpId { cpu: 1, slot: 0, generation: 1 },
        what: Target::Pages(Asid::default(), Pages::one(Vpn::new(3))),
        duty: Duty::Flush,
    };
    let mut locked_add = || {
        timed(|| {
            black_box(black_box(&word).fetch_add(1, Ordering::SeqCst));
        })
    };
    let mut publish = || {
        let time = timed(|| {
            black_box(black_box(&mailbox).post(black_box(request)).is_ok());
        });
        while let Some(work) = mailbox.take() {
            black_box(matches!(work, Work::One(_)));
        }
        time
    };
    if wanted("publish") {
        let times = fastest(ROUNDS, [&mut locked_add, &mut publish]);
        print("publish", "at most 6", ["locked add", "a request"], times, 0);
    }
    let flag = AtomicBool::new(false);
    let alone = SharedSpace::new();
    let kernel = Kernel::new(Hardware::I386);
    let mut handle = kernel.attach(0).expect("it exists");
    let mut load = || {
        timed(|| {
            black_box(black_box(&flag).load(Ordering::Acquire));
        })
    };
    let mut poll = || timed(|| _ = black_box(black_box(&kernel).poll(&mut handle, &mut Quiet).is_ok()));
    if wanted("empty poll") {
        print("empty poll", "one load", ["load", "poll"], fastest(ROUNDS, [&mut load, &mut poll]), 0);
    }
    let (plan, page) = (plan(), one_page());
    alone.members.insert(0);
    alone.running.insert(0);
    let mut unmap = || {
        timed(|| _ = black_box(kernel.run(&mut handle, &mut Quiet, plan, &mut Page(&alone, &page)).is_ok()))
    };
    if wanted("unshared") {
        let times = fastest(ROUNDS, [&mut locked_add, &mut unmap]);
        print("unshared", "", ["locked add", "unmap"], times, 0);
    }
}

#[repr(align(64))]
struct Line(AtomicU32);

impl Line {
    fn new() -> Self {
        Self(AtomicU32::new(0))
    }
}

/// What the requester and the responder share: each subject's, side by side.
struct Shared {
    /// Two words: a number to be answered by the same number.
    ask: Line,
    answer: Line,
    /// A mailbox, and how many acknowledgements are to come.
    mailbox: Mailbox<4>,
    left: Line,
    kernel: Kernel,
}

/// The subjects of [`round_trips`], whose turns these are.
const SUBJECTS: [&str; 3] = ["two words", "mailbox of requests", "shootdown, polled"];

/// From the time that a requester says what it wants to the time that it knows that a responder, which polls on
/// another CPU, has done it. In this order:
///
/// - two words, one in each direction: the least that there is;
/// - the crate's [`Mailbox`], and nothing else of it: set the number of acknowledgements to come, post a request;
///   look whether there is one, take it, subtract one; wait until there is none to come;
/// - a whole operation of PTE-first on an entry that two CPUs may hold, its change and its flushes empty: from
///   `System::run` to the payload's return, with a `System::poll` on the other side.
fn round_trips() {
    let space = SharedSpace::new();
    for cpu in [0, 1] {
        space.members.insert(cpu);
        space.running.insert(cpu);
    }
    // Each stays where it is until the end, so that the next one is elsewhere.
    let places: Vec<_> = (0..PLACES)
        .map(|_| {
            Box::new(Shared {
                ask: Line::new(),
                answer: Line::new(),
                mailbox: Mailbox::new().expect("room for 4"),
                left: Line::new(),
                kernel: Kernel::new(Hardware::I386),
            })
        })
        .collect();
    let mut sums = [0.0; SUBJECTS.len()];
    for shared in &places {
        for (sum, time) in sums.iter_mut().zip(round_trips_at(shared, &space)) {
            *sum += time / PLACES as f64;
        }
    }
    print("round trip", "shootdown at most 1.3", SUBJECTS, sums, 1);
}

/// A requester here and a responder on another CPU, which spins for the subject whose turn it is.
fn round_trips_at(shared: &Shared, space: &SharedSpace) -> [f64; SUBJECTS.len()] {
    let Shared { ask, answer, mailbox, left, kernel } = shared;
    let (turn, stop) = (Line::new(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut handle = kernel.attach(1).expect("it exists");
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
                        _ => _ = black_box(kernel.poll(&mut handle, &mut Quiet).is_ok()),
                    }
                    spin_loop();
                }
            }
        });
        let mut n = 0;
        let mut words = || {
            n += 1;
            ask.0.store(n, Ordering::Release);
            while answer.0.load(Ordering::Acquire) != n {
                spin_loop();
            }
        };
        let request = Request {
            op: OpId { cpu: 0, slot: 0, generation: 1 },
            what: Target::Pages(Asid::default(), Pages::one(Vpn::new(3))),
            duty: Duty::Flush,
        };
        let posted = || {
            left.0.store(1, Ordering::Release);
            black_box(mailbox.post(black_box(request)).is_ok());
            while left.0.load(Ordering::Acquire) != 0 {
                spin_loop();
            }
        };
        let mut handle = kernel.attach(0).expect("it exists");
        let (plan, page) = (plan(), one_page());
        let mut shootdown =
            || _ = black_box(kernel.run(&mut handle, &mut Quiet, plan, &mut Page(space, &page)).is_ok());
        let times = fastest(
            ROUNDS_OF_TWO,
            [&mut || round(&turn, 0, &mut words), &mut || round(&turn, 1, posted), &mut || {
                round(&turn, 2, &mut shootdown)
            }],
        );
        stop.store(true, Ordering::Relaxed);
        times
    })
}

/// Returns the time of one of [`TIMES`] trips of the subject whose turn it becomes.
fn round(turn: &Line, subject: u32, mut trip: impl FnMut()) -> f64 {
    turn.0.store(subject, Ordering::Release);
    trip(); // The responder has seen whose turn it is.
    timed(trip)
}

/// The jobs and the subjects of each.
const NAMES: [(&str, &[&str]); 4] = [
    ("publish", &["locked add", "a request"]),
    ("empty poll", &["load", "poll"]),
    ("unshared", &["locked add", "unmap"]),
    ("round trip", &SUBJECTS),
];

/// Runs the jobs in whose names, or a subject's of them, one of the arguments is; all without arguments. `--list` prints
/// the names.
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let names = NAMES
        .iter()
        .flat_map(|(job, subjects)| subjects.iter().map(move |subject| format!("{job}/{subject}")));
    let names: Vec<String> = names.collect();
    if arguments.iter().any(|argument| argument == "--list") {
        names.iter().for_each(|name| println!("{name}: benchmark"));
        return ExitCode::SUCCESS;
    }
    let parts: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with("--")).collect();
    let wanted = |job: &str| {
        let of_job = |name: &&String| name.split('/').next() == Some(job);
        let chosen =
            |name: &String| parts.is_empty() || parts.iter().any(|part| name.contains(part.as_str()));
        names.iter().filter(of_job).any(chosen)
    };
    if !NAMES.iter().any(|(job, _)| wanted(job)) {
        eprintln!("nothing is called so; there are: {}", names.join(", "));
        return ExitCode::FAILURE;
    }
    println!("{:<12} {:<26} {:>11}  {:>6}", "job", "subject", "fastest", "ratio");
    one_cpu(&wanted);
    if wanted("round trip") {
        round_trips();
    }
    ExitCode::SUCCESS
}
