//! The driver's memory orderings under loom: two or three threads, every interleaving with a few preemptions, every
//! value that the C11 model lets a load see.
//!
//! `RUSTFLAGS="--cfg tlbkit_loom" cargo test --release --features loom -p tlbkit-shootdown --test loom`

#![cfg(tlbkit_loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use tlbkit_addr::{Asid, CpuSet, Flush};
use tlbkit_shootdown::{
    Algorithm, Consistency, Duty, Edit, Hardware, LocalCpu, LowRights, Miss, MissAction, OpId, Outcome, Plan,
    PteFirst, Request, SharedSpace, Source, SwitchKind, System, Target,
};

#[path = "all/support/mod.rs"]
mod support;
use support::PAGE;

const SOFT: Hardware = Hardware::RP3;
/// What a freed frame holds.
const FREE: usize = 7;

struct Shared {
    entry: AtomicUsize,
    locked: AtomicUsize,
    changing: AtomicUsize,
    tentative: AtomicUsize,
    /// The frame that the entry maps; it is overwritten when the operation hands it back.
    frame: AtomicUsize,
    completed: AtomicUsize,
    space: SharedSpace,
}

/// Returns a page that `cpus` CPUs run the space of.
fn shared(cpus: usize) -> Arc<Shared> {
    let shared = Arc::new(Shared {
        entry: AtomicUsize::new(1),
        locked: AtomicUsize::new(0),
        changing: AtomicUsize::new(0),
        tentative: AtomicUsize::new(1),
        frame: AtomicUsize::new(0),
        completed: AtomicUsize::new(0),
        space: SharedSpace::new(),
    });
    for cpu in 0..cpus {
        shared.space.members.insert(cpu);
        shared.space.running.insert(cpu);
    }
    shared
}

struct Unmap(Arc<Shared>);

impl Edit<1> for Unmap {
    type Payload = ();

    fn exclude(&mut self) -> bool {
        self.0.locked.swap(1, Ordering::AcqRel) == 0
    }
    fn release(&mut self) {
        self.0.locked.store(0, Ordering::Release);
    }
    fn set_tentative(&mut self) {
        self.0.tentative.store(0, Ordering::SeqCst);
    }
    fn set_changing(&mut self, on: bool) {
        self.0.changing.store(usize::from(on), Ordering::SeqCst);
    }
    fn update(&mut self) {
        self.0.entry.store(0, Ordering::Relaxed);
    }
    fn is_walked(&self, (): &()) -> bool {
        false // It is a frame.
    }
    fn space(&self) -> &SharedSpace {
        &self.0.space
    }
    fn asid(&self) -> Asid {
        Asid::default()
    }
    fn flush(&self) -> &Flush {
        &PAGE[0]
    }
}

/// A CPU with a TLB of one entry.
struct Cpu {
    shared: Arc<Shared>,
    plan: Plan,
    held: usize,
}

impl LocalCpu<()> for Cpu {
    fn flush(&mut self, _space: Option<Asid>, _what: &Flush, _drain: bool) {
        self.held = 0;
    }
    fn interrupt(&mut self, _cpus: CpuSet) {}
    fn complete(&mut self, _op: OpId, (): (), outcome: Outcome) {
        assert_eq!(outcome, Outcome::Done);
        self.shared.frame.store(FREE, Ordering::Relaxed);
        self.shared.completed.fetch_add(1, Ordering::Release);
    }
}

impl Cpu {
    fn touch(&mut self) {
        if self.held == 0 {
            let (mut miss, mut word) = (Miss::new(&self.plan), 0);
            loop {
                let yes = match miss.next() {
                    MissAction::IsChanging => self.shared.changing.load(Ordering::SeqCst) != 0,
                    MissAction::Read(from) => {
                        word = match from {
                            Source::Table => self.shared.entry.load(Ordering::Relaxed),
                            Source::Tentative => self.shared.tentative.load(Ordering::Relaxed),
                        };
                        false
                    }
                    MissAction::Load => {
                        self.held = word;
                        false
                    }
                };
                if miss.did(yes) {
                    break;
                }
            }
        }
        if self.held != 0 {
            assert_ne!(self.shared.frame.load(Ordering::Relaxed), FREE, "a frame that has been handed back");
            if self.plan.algorithm().consistency() == Consistency::Always {
                let entry = self.shared.entry.load(Ordering::Relaxed);
                assert_eq!(entry, self.held, "a translation that the table no longer has");
            }
        }
    }
}

type Kernel<const CPUS: usize> = System<(), Unmap, CPUS, 1>;

/// Runs an unmap beside CPUs that poll. Loom looks for a race only with the last access to a word, and a thread's own
/// may hide another's: so of two CPUs either has its turn as the spawned thread, which runs last at first.
fn run<const CPUS: usize>(algorithm: Algorithm) {
    for requester_last in [false, true] {
        if requester_last && CPUS > 2 {
            // Too many interleavings of those that poll.
            break;
        }
        // Interleavings of three threads that poll are many.
        let preemptions = if CPUS > 2 { 1 } else { 2 };
        explore(Some(preemptions), move || play::<CPUS>(algorithm, requester_last));
    }
}

/// Plays in every interleaving with so many preemptions at the most, and prints how many those are.
fn explore(preemptions: Option<usize>, play: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    // Threads that poll take many branches.
    model.max_branches = 100_000;
    let played = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = played.clone();
    model.check(move || {
        play();
        count.fetch_add(1, Ordering::Relaxed);
    });
    println!("{} interleavings", played.load(Ordering::Relaxed));
}

fn play<const CPUS: usize>(algorithm: Algorithm, requester_last: bool) {
    let plan = Plan::new(algorithm, &SOFT, LowRights::NeverWriteBack).expect("it suits");
    let shared = shared(CPUS);
    let kernel: Arc<Kernel<CPUS>> = Arc::new(System::new(SOFT));
    let work = |me: usize| {
        let (shared, kernel) = (shared.clone(), kernel.clone());
        move || {
            let mut handle = kernel.attach(me).expect("it exists");
            let mut cpu = Cpu { shared: shared.clone(), plan, held: 0 };
            if me == 0 {
                assert!(kernel.start(&mut handle, &mut cpu, plan, Unmap(shared)).is_ok());
                return;
            }
            cpu.touch();
            while cpu.shared.completed.load(Ordering::Acquire) == 0 {
                kernel.poll(&mut handle, &mut cpu).expect("in flight");
                cpu.touch();
                thread::yield_now();
            }
        }
    };
    let here = usize::from(requester_last);
    let others: Vec<_> = (0..CPUS).filter(|&me| me != here).map(|me| thread::spawn(work(me))).collect();
    work(here)();
    for other in others {
        other.join().expect("it holds");
    }
    assert_eq!(shared.completed.load(Ordering::Relaxed), 1);
}

#[test]
fn pte_first_with_two() {
    run::<2>(Algorithm::PteFirst);
}

/// The same without the state machines.
#[test]
fn pte_first_straight_with_two() {
    for requester_last in [false, true] {
        explore(Some(2), move || play_straight(requester_last));
    }
}

fn play_straight(requester_last: bool) {
    let plan = Plan::new(Algorithm::PteFirst, &SOFT, LowRights::NeverWriteBack).expect("it suits");
    let shared = shared(2);
    let kernel: Arc<System<(), PteFirst<()>, 2, 1>> = Arc::new(System::new(SOFT));
    let work = |me: usize| {
        let (shared, kernel) = (shared.clone(), kernel.clone());
        move || {
            let mut handle = kernel.attach(me).expect("it exists");
            let mut cpu = Cpu { shared: shared.clone(), plan, held: 0 };
            if me == 0 {
                assert!(kernel.run(&mut handle, &mut cpu, plan, &mut Unmap(shared)).is_ok());
                return;
            }
            cpu.touch();
            while cpu.shared.completed.load(Ordering::Acquire) == 0 {
                kernel.poll(&mut handle, &mut cpu).expect("in flight");
                cpu.touch();
                thread::yield_now();
            }
        }
    };
    let here = usize::from(requester_last);
    let other = thread::spawn(work(1 - here));
    work(here)();
    other.join().expect("it holds");
    assert_eq!(shared.completed.load(Ordering::Relaxed), 1);
}

#[test]
fn pte_first_asynchronous_with_two() {
    run::<2>(Algorithm::PteFirstAsync);
}

#[test]
fn pte_first_asynchronous_with_three() {
    run::<3>(Algorithm::PteFirstAsync);
}

#[test]
fn tlb_first_with_two() {
    run::<2>(Algorithm::TlbFirst);
}

#[test]
fn two_phase_with_two() {
    run::<2>(Algorithm::TwoPhase);
}

/// What CPU 0 takes out of a table, and CPU 1 walks.
struct Node {
    /// Whether the table leads to the node.
    linked: AtomicUsize,
    contents: AtomicUsize,
    ended: AtomicUsize,
    space: SharedSpace,
}

/// The first time, its payload is the node.
struct Unlink(Arc<Node>);

impl Edit<1> for Unlink {
    type Payload = bool;

    fn exclude(&mut self) -> bool {
        true
    }
    fn release(&mut self) {}
    fn update(&mut self) -> bool {
        self.0.linked.swap(0, Ordering::Relaxed) == 1
    }
    fn space(&self) -> &SharedSpace {
        &self.0.space
    }
    fn asid(&self) -> Asid {
        Asid::default()
    }
    fn flush(&self) -> &Flush {
        &PAGE[0]
    }
}

struct Walker(Arc<Node>);

impl LocalCpu<bool> for Walker {
    fn flush(&mut self, _space: Option<Asid>, _what: &Flush, _drain: bool) {}
    fn interrupt(&mut self, _cpus: CpuSet) {}
    fn ended(&mut self, _op: OpId, _outcome: Outcome) {
        self.0.ended.fetch_add(1, Ordering::Release);
    }
    fn complete(&mut self, _op: OpId, node: bool, _outcome: Outcome) {
        if node {
            self.0.contents.store(FREE, Ordering::Relaxed);
        }
    }
}

/// Where a CPU acknowledges before the table changes, its next walk may still enter what the change takes out: that is
/// free when it has acknowledged once more, for the next operation, or to drain.
#[test]
fn what_a_walk_may_enter_after_its_acknowledgement_is_carried() {
    for (algorithm, drains) in [Algorithm::TlbFirst, Algorithm::TlbFirstAsync, Algorithm::PteFirst]
        .into_iter()
        .flat_map(|algorithm| [(algorithm, false), (algorithm, true)])
    {
        explore(Some(2), move || {
            let node = Arc::new(Node {
                linked: AtomicUsize::new(1),
                contents: AtomicUsize::new(0),
                ended: AtomicUsize::new(0),
                space: SharedSpace::new(),
            });
            for cpu in [0, 1] {
                node.space.members.insert(cpu);
                node.space.running.insert(cpu);
            }
            let plan = Plan::new(algorithm, &SOFT, LowRights::NeverWriteBack).expect("it suits");
            let kernel: Arc<System<bool, Unlink, 2, 1, 1, 2>> = Arc::new(System::new(SOFT));
            let ends = if drains { 1 } else { 2 };
            let walker = {
                let (node, kernel) = (node.clone(), kernel.clone());
                thread::spawn(move || {
                    let mut handle = kernel.attach(1).expect("it exists");
                    let mut cpu = Walker(node.clone());
                    while node.ended.load(Ordering::Acquire) < ends {
                        if node.linked.load(Ordering::Relaxed) == 1 {
                            assert_ne!(
                                node.contents.load(Ordering::Relaxed),
                                FREE,
                                "it is freed beneath a walk"
                            );
                        }
                        kernel.poll(&mut handle, &mut cpu).expect("in flight");
                        thread::yield_now();
                    }
                    kernel
                        .switch(&mut handle, &mut cpu, SwitchKind::Out, &node.space, Asid::default())
                        .expect("it fits");
                    kernel.poll(&mut handle, &mut cpu).expect("in flight");
                })
            };
            let mut handle = kernel.attach(0).expect("it exists");
            let mut cpu = Walker(node.clone());
            for _ in 0..ends {
                assert!(kernel.start(&mut handle, &mut cpu, plan, Unlink(node.clone())).is_ok());
            }
            walker.join().expect("it holds");
            kernel.drain(&mut handle, &mut cpu, &node.space).expect("a slot is free");
            assert_eq!(node.contents.load(Ordering::Relaxed), FREE);
        });
    }
}

/// A CPU has one slot, which carries a payload. While another CPU takes that to drain it, the slot is in use by no operation.
#[test]
fn a_slot_whose_payload_is_drained_is_not_busy() {
    explore(Some(2), || {
        let node = Arc::new(Node {
            linked: AtomicUsize::new(1),
            contents: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            space: SharedSpace::new(),
        });
        for cpu in [0, 1] {
            node.space.members.insert(cpu);
            node.space.running.insert(cpu);
        }
        let plan = Plan::new(Algorithm::TlbFirst, &SOFT, LowRights::NeverWriteBack).expect("it suits");
        let kernel: Arc<System<bool, Unlink, 2, 1>> = Arc::new(System::new(SOFT));
        let drains = {
            let (node, kernel) = (node.clone(), kernel.clone());
            thread::spawn(move || {
                let mut handle = kernel.attach(1).expect("it exists");
                let mut cpu = Walker(node.clone());
                for ended in [1, 2] {
                    while node.ended.load(Ordering::Acquire) < ended {
                        kernel.poll(&mut handle, &mut cpu).expect("in flight");
                        thread::yield_now();
                    }
                    kernel.drain(&mut handle, &mut cpu, &node.space).expect("its own slot is free");
                }
            })
        };
        let mut handle = kernel.attach(0).expect("it exists");
        let mut cpu = Walker(node.clone());
        for _ in 0..2 {
            let started = kernel.start(&mut handle, &mut cpu, plan, Unlink(node.clone()));
            assert!(started.is_ok(), "no operation is in flight");
        }
        drains.join().expect("it holds");
        assert_eq!(node.contents.load(Ordering::Relaxed), FREE);
    });
}

/// A CPU switches to the space, and another unmaps a page of it: one of them sees the other.
#[test]
fn a_lazy_cpu_and_a_requester_do_not_miss_each_other() {
    explore(None, || {
        let plan = Plan::new(Algorithm::PteFirst, &SOFT, LowRights::NeverWriteBack).expect("it suits");
        let shared = shared(1);
        shared.space.members.insert(1);
        let kernel: Arc<Kernel<2>> = Arc::new(System::new(SOFT));
        let lazy = {
            let (shared, kernel) = (shared.clone(), kernel.clone());
            thread::spawn(move || {
                let mut handle = kernel.attach(1).expect("it exists");
                // Held from when it last ran the space.
                let mut cpu = Cpu { shared, plan, held: 1 };
                let space = &cpu.shared.clone().space;
                kernel
                    .switch(&mut handle, &mut cpu, SwitchKind::In, space, Asid::default())
                    .expect("it fits");
                cpu.touch();
                while cpu.shared.completed.load(Ordering::Acquire) == 0 {
                    kernel.poll(&mut handle, &mut cpu).expect("in flight");
                    cpu.touch();
                    thread::yield_now();
                }
            })
        };
        let mut handle = kernel.attach(0).expect("it exists");
        let mut cpu = Cpu { shared: shared.clone(), plan, held: 0 };
        assert!(kernel.start(&mut handle, &mut cpu, plan, Unmap(shared.clone())).is_ok());
        lazy.join().expect("it holds");
    });
}

/// A CPU that goes offline is not waited for, and holds nothing any more when it has gone.
#[test]
fn a_cpu_that_goes_offline_holds_nobody_up() {
    explore(Some(2), || {
        let plan = Plan::new(Algorithm::PteFirst, &SOFT, LowRights::NeverWriteBack).expect("it suits");
        let shared = shared(2);
        let kernel: Arc<Kernel<2>> = Arc::new(System::new(SOFT));
        let requester = {
            let (shared, kernel) = (shared.clone(), kernel.clone());
            thread::spawn(move || {
                let mut handle = kernel.attach(0).expect("it exists");
                let mut cpu = Cpu { shared: shared.clone(), plan, held: 0 };
                assert!(kernel.start(&mut handle, &mut cpu, plan, Unmap(shared)).is_ok());
            })
        };
        let mut handle = kernel.attach(1).expect("it exists");
        let mut cpu = Cpu { shared: shared.clone(), plan, held: 0 };
        cpu.touch();
        kernel
            .switch(&mut handle, &mut cpu, SwitchKind::Offline, &shared.space, Asid::default())
            .expect("it fits");
        assert_eq!(cpu.held, 0);
        requester.join().expect("it holds");
        assert_eq!(shared.completed.load(Ordering::Relaxed), 1);
    });
}

/// Keeps how operations ended.
#[derive(Default)]
struct Ends(Vec<Outcome>);

impl LocalCpu<()> for Ends {
    fn flush(&mut self, _space: Option<Asid>, _what: &Flush, _drain: bool) {}
    fn interrupt(&mut self, _cpus: CpuSet) {}
    fn complete(&mut self, _op: OpId, (): (), outcome: Outcome) {
        self.0.push(outcome);
    }
}

/// A CPU that supersedes an operation that may be ending does so or is told, and never touches the slot's next one.
#[test]
fn superseding_reaches_no_later_operation() {
    explore(None, || {
        let plan = Plan::new(Algorithm::PteFirstAsync, &SOFT, LowRights::NeverWriteBack).expect("it suits");
        let shared = shared(2);
        let kernel: Arc<Kernel<2>> = Arc::new(System::new(SOFT));
        let first = OpId { cpu: 0, slot: 0, generation: 1 };
        let superseder = {
            let kernel = kernel.clone();
            thread::spawn(move || kernel.supersede(first) == Ok(true))
        };
        let mut handles = [0, 1].map(|cpu| kernel.attach(cpu).expect("it exists"));
        let mut ends = Ends::default();
        for _ in 0..2 {
            assert!(kernel.start(&mut handles[0], &mut ends, plan, Unmap(shared.clone())).is_ok());
            kernel.poll(&mut handles[1], &mut ends).expect("in flight");
        }
        let superseded = superseder.join().expect("it ends");
        let first = if superseded { Outcome::Superseded } else { Outcome::Done };
        assert_eq!(ends.0, [first, Outcome::Done]);
    });
}

/// Of two threads that do the same to a set, one is told that it has done so.
#[test]
fn a_cpu_enters_a_set_once_and_leaves_it_once() {
    explore(None, || {
        let space = Arc::new(SharedSpace::<1>::new());
        let both: [fn(&SharedSpace) -> bool; 2] =
            [|space| space.stale.insert(5), |space| space.stale.remove(5)];
        for go in both {
            let told = [(); 2].map(|()| {
                let space = space.clone();
                thread::spawn(move || go(&space))
            });
            let told = told.map(|thread| thread.join().expect("it ends"));
            assert_ne!(told[0], told[1]);
        }
    });
}

/// A mailbox of one request, two posters: nothing is lost when it overflows.
#[test]
fn an_overflow_loses_nothing() {
    explore(None, || {
        let mailbox: Arc<tlbkit_shootdown::Mailbox<1>> =
            Arc::new(tlbkit_shootdown::Mailbox::new().expect("room for one"));
        let post = |cpu: u16| {
            let mailbox = mailbox.clone();
            thread::spawn(move || {
                let request = Request {
                    op: OpId { cpu, slot: 0, generation: 1 },
                    what: Target::All,
                    duty: Duty::Flush,
                };
                assert_eq!(mailbox.post(request), Ok(true));
            })
        };
        let posters = [post(0), post(1)];
        for poster in posters {
            poster.join().expect("it posts");
        }
        let mut taken = 0;
        while let Some(work) = mailbox.take() {
            taken += match work {
                tlbkit_shootdown::Work::One(_) => 1,
                tlbkit_shootdown::Work::Everything(owed) => owed.len(),
            };
        }
        assert_eq!(taken, 2);
        assert!(mailbox.is_empty());
    });
}
