//! The shootdown's hot paths beside the least that the hardware lets one do: a locked add, a load, a mailbox of one
//! word in each direction, a [`Mailbox`] of requests and nothing else.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::{Case, timed};
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
const TIMES: usize = 64;
/// Places in memory for what two CPUs share, of which each round uses the next: how far a cache line travels from one CPU to
/// another depends on its address, by half of the way and more.
const PLACES: usize = 32;

/// Returns the time of [`TIMES`] operations.
fn repeated(mut operation: impl FnMut()) -> Duration {
    timed(|| (0..TIMES).for_each(|_| operation())).0
}

fn plan() -> Plan {
    Plan::new(Algorithm::PteFirst, &Hardware::I386, LowRights::NeverWriteBack).expect("it suits")
}

/// Returns a request to flush one page.
fn request() -> Request {
    Request {
        op: OpId { cpu: 1, slot: 0, generation: 1 },
        what: Target::Pages(Asid::default(), Pages::one(Vpn::new(3))),
        duty: Duty::Flush,
    }
}

/// Rounds of an atomic addition.
fn locked_add() -> impl FnMut() -> Duration {
    let word = AtomicU32::new(0);
    move || repeated(|| _ = black_box(black_box(&word).fetch_add(1, Ordering::SeqCst)))
}

/// What one CPU does alone.
fn one_cpu(cases: &mut Vec<Case>) {
    cases.push(Case::new("publish", "locked add", TIMES, locked_add));
    cases.push(Case::new("publish", "a request", TIMES, || {
        let mailbox = Mailbox::<TIMES>::new().expect("room for a round");
        move || {
            let time = repeated(|| _ = black_box(black_box(&mailbox).post(black_box(request())).is_ok()));
            let taken = std::iter::from_fn(|| mailbox.take()).filter(|work| matches!(work, Work::One(_)));
            assert_eq!(taken.count(), TIMES, "each request arrives");
            time
        }
    }));
    cases.push(Case::new("empty poll", "load", TIMES, || {
        let flag = AtomicBool::new(false);
        move || repeated(|| _ = black_box(black_box(&flag).load(Ordering::Acquire)))
    }));
    cases.push(Case::new("empty poll", "poll", TIMES, || {
        let kernel: &'static Kernel = Box::leak(Box::new(Kernel::new(Hardware::I386)));
        let mut handle = kernel.attach(0).expect("it exists");
        move || repeated(|| _ = black_box(black_box(kernel).poll(&mut handle, &mut Quiet).is_ok()))
    }));
    cases.push(Case::new("unshared", "locked add", TIMES, locked_add));
    cases.push(Case::new("unshared", "unmap", TIMES, || {
        let kernel: &'static Kernel = Box::leak(Box::new(Kernel::new(Hardware::I386)));
        let mut handle = kernel.attach(0).expect("it exists");
        let (plan, page, alone) = (plan(), one_page(), SharedSpace::new());
        alone.members.insert(0);
        alone.running.insert(0);
        move || {
            let mut done = 0;
            let time = repeated(|| {
                let run = kernel.run(&mut handle, &mut Quiet, plan, &mut Page(&alone, &page));
                done += usize::from(black_box(run).is_ok());
            });
            assert_eq!(done, TIMES, "each operation completes");
            time
        }
    }));
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

impl Shared {
    fn new() -> Self {
        Self {
            ask: Line::new(),
            answer: Line::new(),
            mailbox: Mailbox::new().expect("room for 4"),
            left: Line::new(),
            kernel: Kernel::new(Hardware::I386),
        }
    }
}

/// From the time that a requester says what it wants to the time that it knows that a responder, which polls on
/// another CPU, has done it:
///
/// - two words, one in each direction: the least that there is;
/// - the crate's [`Mailbox`], and nothing else of it: set the number of acknowledgements to come, post a request;
///   look whether there is one, take it, subtract one; wait until there is none to come;
/// - a whole operation of PTE-first on an entry that two CPUs may hold, its change and its flushes empty: from
///   `System::run` to the payload's return, with a `System::poll` on the other side.
fn two_cpus(cases: &mut Vec<Case>) {
    let job = "shootdown round trip";
    cases.push(Case::new(job, "mailbox of requests", TIMES, || {
        round_trips(mailbox_responder, |shared| Box::new(|| post(shared)))
    }));
    cases.push(Case::new(job, "two words", TIMES, || {
        round_trips(word_responder, |shared| {
            let mut number = 0;
            Box::new(move || {
                number += 1;
                shared.ask.0.store(number, Ordering::Release);
                while shared.answer.0.load(Ordering::Acquire) != number {
                    spin_loop();
                }
            })
        })
    }));
    cases.push(Case::new(job, "shootdown, polled", TIMES, || {
        round_trips(polling_responder, |shared| {
            let mut handle = shared.kernel.attach(0).expect("no other round runs");
            let (plan, page, space) = (plan(), one_page(), SharedSpace::new());
            for cpu in [0, 1] {
                space.members.insert(cpu);
                space.running.insert(cpu);
            }
            Box::new(move || {
                let run = shared.kernel.run(&mut handle, &mut Quiet, plan, &mut Page(&space, &page));
                assert!(black_box(run).is_ok(), "the operation completes");
            })
        })
    }));
}

/// A hundred looks of a responder between two looks whether the round is over.
fn respond(stop: &AtomicBool, mut look: impl FnMut()) {
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..100 {
            look();
            spin_loop();
        }
    }
}

fn word_responder(shared: &Shared, stop: &AtomicBool) {
    respond(stop, || {
        let now = shared.ask.0.load(Ordering::Acquire);
        if now != shared.answer.0.load(Ordering::Relaxed) {
            shared.answer.0.store(now, Ordering::Release);
        }
    });
}

fn mailbox_responder(shared: &Shared, stop: &AtomicBool) {
    respond(stop, || {
        if !shared.mailbox.is_empty()
            && let Some(work) = shared.mailbox.take()
        {
            black_box(work);
            shared.left.0.fetch_sub(1, Ordering::AcqRel);
        }
    });
}

fn polling_responder(shared: &Shared, stop: &AtomicBool) {
    let mut handle = shared.kernel.attach(1).expect("no other round runs");
    respond(stop, || _ = black_box(shared.kernel.poll(&mut handle, &mut Quiet).is_ok()));
}

fn post(shared: &Shared) {
    shared.left.0.store(1, Ordering::Release);
    black_box(shared.mailbox.post(black_box(request())).is_ok());
    while shared.left.0.load(Ordering::Acquire) != 0 {
        spin_loop();
    }
}

/// Returns rounds of trips between a requester here and a responder on another CPU, each at the next place in memory.
fn round_trips(
    responder: fn(&Shared, &AtomicBool),
    requester: for<'s> fn(&'s Shared) -> Box<dyn FnMut() + 's>,
) -> impl FnMut() -> Duration {
    let places: Vec<Box<Shared>> = (0..PLACES).map(|_| Box::new(Shared::new())).collect();
    let mut next = 0;
    move || {
        let shared = &*places[next];
        next = (next + 1) % PLACES;
        // The words of a round begin at zero, as their requester does.
        shared.ask.0.store(0, Ordering::Relaxed);
        shared.answer.0.store(0, Ordering::Relaxed);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| responder(shared, &stop));
            let mut trip = requester(shared);
            // The responder runs once the first trip has ended.
            trip();
            let time = repeated(&mut *trip);
            stop.store(true, Ordering::Relaxed);
            time
        })
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    one_cpu(&mut cases);
    two_cpus(&mut cases);
    cases
}
