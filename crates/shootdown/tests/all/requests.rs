//! A request carries what a `Flush` carries: separate ranges, and whether links changed. All CPUs are asked at once.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use tlbkit_addr::{Asid, CpuSet, Flush, FlushScope, Pages, Vpn};
use tlbkit_shootdown::{
    Algorithm, Hardware, LocalCpu, LowRights, OpId, Outcome, Plan, Rendezvous, SharedSpace, System,
};

use crate::support::Nothing;

const CPUS: usize = 3;
/// What a CPU has flushed, and of which space: of all if there is none.
type Flushed = (Option<Asid>, Flush);
const SPACE: Asid = Asid::new(5, 8).unwrap();

/// What the CPUs have flushed, and how requesters interrupted them.
#[derive(Default)]
struct Seen {
    flushed: [Mutex<Vec<Flushed>>; CPUS],
    asked: Mutex<Vec<CpuSet>>,
    ended: AtomicBool,
}

struct Cpu<'s>(usize, &'s Seen);

impl LocalCpu<()> for Cpu<'_> {
    fn flush(&mut self, space: Option<Asid>, what: &Flush, _drain: bool) {
        self.1.flushed[self.0].lock().unwrap().push((space, what.clone()));
    }
    fn interrupt(&mut self, cpus: CpuSet) {
        self.1.asked.lock().unwrap().push(cpus);
    }
    fn ended(&mut self, _op: OpId, outcome: Outcome) {
        assert_eq!(outcome, Outcome::Done);
        self.1.ended.store(true, Ordering::SeqCst);
    }
    fn complete(&mut self, _op: OpId, (): (), _outcome: Outcome) {}
    fn pause(&mut self) {
        std::thread::yield_now();
    }
}

fn everywhere() -> SharedSpace {
    let space = SharedSpace::new();
    for cpu in 0..CPUS {
        space.members.insert(cpu);
        space.running.insert(cpu);
    }
    space
}

/// Runs an operation of CPU 0, to which the others reply, and returns what has been seen.
fn shoot(algorithm: Algorithm, rendezvous: Rendezvous, flushes: &[Flush]) -> Seen {
    let (seen, space) = (Seen::default(), everywhere());
    let kernel: System<(), Nothing<'_>, CPUS, 2> = System::new(Hardware::RP3).with_rendezvous(rendezvous);
    let plan = Plan::new(algorithm, &Hardware::RP3, LowRights::NeverWriteBack).unwrap();
    let (over, mut flushed) = (AtomicBool::new(false), true);
    std::thread::scope(|scope| {
        for me in 1..CPUS {
            let (seen, kernel, over) = (&seen, &kernel, &over);
            scope.spawn(move || {
                let mut handle = kernel.attach(me).unwrap();
                while !over.load(Ordering::SeqCst) {
                    kernel.poll(&mut handle, &mut Cpu(me, seen)).unwrap();
                    std::thread::yield_now();
                }
            });
        }
        let mut handle = kernel.attach(0).unwrap();
        for flush in flushes {
            seen.ended.store(false, Ordering::SeqCst);
            let change = Nothing { asid: SPACE, ..Nothing::new(&space, flush) };
            kernel.start(&mut handle, &mut Cpu(0, &seen), plan, change).unwrap();
            while !seen.ended.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            // It has ended, so every CPU has flushed.
            let last = |cpu: usize| seen.flushed[cpu].lock().unwrap().last().cloned();
            flushed &= (1..CPUS).all(|cpu| last(cpu).is_some_and(|(_, last)| last == *flush));
        }
        over.store(true, Ordering::SeqCst);
    });
    assert!(flushed, "{algorithm} {rendezvous:?}: a CPU had not flushed that when it ended");
    seen
}

/// Eight separate ranges, a range whose links changed, one page, everything: each CPU flushes that, and nothing else.
#[test]
fn every_cpu_flushes_what_was_asked_and_nothing_else() {
    let (mut apart, mut links, mut page, mut all) =
        (Flush::none(), Flush::none(), Flush::none(), Flush::none());
    for at in 0..Flush::RANGES {
        apart.add(FlushScope::Everywhere, Pages::one(Vpn::new(3 * at)));
    }
    links.add_links(FlushScope::Everywhere, Pages::one(Vpn::new(7)));
    page.add(FlushScope::Everywhere, Pages::one(Vpn::new(7)));
    all.add_all(FlushScope::Everywhere);
    assert_eq!((apart.ranges().len(), apart.is_all()), (Flush::RANGES, false));
    let asked = [apart.clone(), links, page, all, apart];
    for algorithm in Algorithm::ALL {
        if Plan::new(algorithm, &Hardware::RP3, LowRights::NeverWriteBack).is_err() {
            continue;
        }
        for rendezvous in [Rendezvous::Flag, Rendezvous::Serve] {
            let seen = shoot(algorithm, rendezvous, &asked);
            let expected: Vec<_> = asked.iter().map(|flush| (Some(SPACE), flush.clone())).collect();
            for flushed in seen.flushed {
                assert_eq!(flushed.into_inner().unwrap(), expected, "{algorithm} {rendezvous:?}");
            }
            // One interrupt for each operation, to all at once.
            let others = CpuSet::from_iter(1..CPUS);
            assert_eq!(seen.asked.into_inner().unwrap(), [others].repeat(asked.len()), "{algorithm}");
        }
    }
}
