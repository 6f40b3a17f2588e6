//! The ten shootdown algorithms, each as the driver runs it: from the request to the time at which the frame is free.
//!
//! The hardware is what host threads have: TLBs loaded by software, no status bits, and for the algorithms with two primes a flush of
//! other CPUs' TLBs that costs a store for each of them. Interrupts are polled for, so what is compared is the algorithms' own work
//! and their waits, and not what an interrupt takes.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use crate::{Case, timed};
use tlbkit_addr::{Asid, CpuSet, Flush, FlushScope, Pages, Vpn};
use tlbkit_shootdown::{
    Algorithm, Edit, Hardware, LocalCpu, LowRights, OpId, Outcome, Plan, RemoteTlbs, SharedSpace, System,
};

const HARDWARE: Hardware = Hardware { remote_flush: true, ..Hardware::RP3 };
/// The most CPUs.
const CPUS: usize = 8;
/// Operations of a round: few enough to fit between two interruptions.
const TIMES: u32 = 64;

#[derive(Default)]
#[repr(align(64))]
struct Line(AtomicU32);

impl Line {
    fn add(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
    fn get(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}

/// What the CPUs of a case share.
struct Shared {
    kernel: System<(), Change, CPUS, 4>,
    space: SharedSpace,
    flush: Flush,
    entry: Line,
    /// How often each CPU's TLB has been flushed.
    flushed: [Line; CPUS],
    /// How many frames are free.
    done: Line,
}

impl Shared {
    fn new(cpus: usize) -> &'static Self {
        let mut flush = Flush::none();
        flush.add(FlushScope::Everywhere, Pages::one(Vpn::new(3)));
        let space = SharedSpace::new();
        for cpu in 0..cpus {
            space.members.insert(cpu);
            space.running.insert(cpu);
        }
        Box::leak(Box::new(Self {
            kernel: System::new(HARDWARE),
            space,
            flush,
            entry: Line::default(),
            flushed: Default::default(),
            done: Line::default(),
        }))
    }
}

/// A change of the page's entry.
struct Change(&'static Shared);

impl Edit for Change {
    type Payload = ();

    fn exclude(&mut self) -> bool {
        true
    }
    fn release(&mut self) {}
    fn update(&mut self) {
        self.0.entry.add();
    }
    fn is_walked(&self, (): &()) -> bool {
        false
    }
    fn space(&self) -> &SharedSpace {
        &self.0.space
    }
    fn asid(&self) -> Asid {
        Asid::default()
    }
    fn flush(&self) -> &Flush {
        &self.0.flush
    }
}

struct Cpu {
    shared: &'static Shared,
    me: usize,
}

impl LocalCpu<()> for Cpu {
    fn flush(&mut self, _space: Option<Asid>, _what: &Flush, _drain: bool) {
        self.shared.flushed[self.me].add();
    }
    fn interrupt(&mut self, _cpus: CpuSet) {}
    fn complete(&mut self, _op: OpId, (): (), outcome: Outcome) {
        assert_eq!(outcome, Outcome::Done);
        self.shared.done.add();
    }
    fn remote(&mut self) -> Option<&mut dyn RemoteTlbs> {
        Some(self)
    }
}

impl RemoteTlbs for Cpu {
    fn flush(&mut self, cpus: CpuSet, _space: Option<Asid>, _what: &Flush, _drain: bool) -> u32 {
        cpus.iter().for_each(|cpu| self.shared.flushed[cpu].add());
        1
    }
    fn is_flushed(&mut self, _ticket: u32) -> bool {
        true
    }
}

/// Returns rounds of an algorithm's operations by the first CPU.
fn rounds(algorithm: Algorithm, cpus: usize) -> impl FnMut() -> Duration {
    let plan = Plan::new(algorithm, &HARDWARE, LowRights::NeverWriteBack).expect("all suit this hardware");
    let shared = Shared::new(cpus);
    move || {
        let stop = AtomicBool::new(false);
        let before = shared.flushed.each_ref().map(Line::get);
        let time = thread::scope(|scope| {
            for me in 1..cpus {
                let stop = &stop;
                scope.spawn(move || {
                    let mut handle = shared.kernel.attach(me).expect("no other round runs");
                    let mut cpu = Cpu { shared, me };
                    while !stop.load(Ordering::Relaxed) {
                        shared
                            .kernel
                            .poll(&mut handle, &mut cpu)
                            .expect("requests are of operations in flight");
                        spin_loop();
                    }
                });
            }
            let mut handle = shared.kernel.attach(0).expect("no other round runs");
            let mut cpu = Cpu { shared, me: 0 };
            let mut operations = |times: u32| {
                let end = shared.done.get() + times;
                for _ in 0..times {
                    // An asynchronous one leaves; the next waits for the slot.
                    while shared.kernel.start(&mut handle, &mut cpu, plan, Change(shared)).is_err() {
                        shared
                            .kernel
                            .poll(&mut handle, &mut cpu)
                            .expect("requests are of operations in flight");
                    }
                }
                while shared.done.get() != end {
                    shared.kernel.poll(&mut handle, &mut cpu).expect("requests are of operations in flight");
                }
            };
            // The others run once the first operation has ended.
            operations(1);
            let (time, ()) = timed(|| operations(TIMES));
            stop.store(true, Ordering::Relaxed);
            time
        });
        for (now, before) in shared.flushed.iter().zip(before).take(cpus) {
            assert!(now.get() - before > TIMES, "each CPU is flushed for each change by {algorithm}");
        }
        time
    }
}

/// For two CPUs, and for as many as there are.
pub(super) fn cases() -> Vec<Case> {
    let all = thread::available_parallelism().map_or(1, usize::from).min(CPUS);
    let mut cases = Vec::new();
    for cpus in [Some(2), (all > 2).then_some(all)].into_iter().flatten() {
        for algorithm in Algorithm::ALL {
            let name = format!("{algorithm}, {cpus} CPUs").leak();
            let start = move || rounds(algorithm, cpus);
            cases.push(Case::new("shootdown, N CPUs", name, TIMES as usize, start));
        }
    }
    cases
}
