//! 3.3.3: two 2-phase requesters, each with interrupts disabled and waiting for the other one.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use tlbkit_addr::{Asid, CpuSet, Flush};
use tlbkit_shootdown::{
    Algorithm, Hardware, LocalCpu, LowRights, OpId, Outcome, Plan, Rendezvous, SharedSpace, System,
};

use crate::support::{EVERYTHING, Nothing};

/// A CPU. The first thing that it tells the other one is that it has entered the algorithm: both have, before either
/// asks the other.
struct Cpu<'m>(&'m AtomicUsize, Option<&'m Barrier>);

impl LocalCpu<()> for Cpu<'_> {
    fn flush(&mut self, _space: Option<Asid>, _what: &Flush, _drain: bool) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
    fn interrupt(&mut self, _cpus: CpuSet) {}
    fn complete(&mut self, _op: OpId, (): (), outcome: Outcome) {
        assert_eq!(outcome, Outcome::Done);
    }
    fn pause(&mut self) {
        std::thread::yield_now();
    }
    fn changed(&mut self) {
        if let Some(both) = self.1.take() {
            both.wait();
        }
    }
}

/// Either way around it: a CPU that has entered counts as stopped, or a CPU that waits serves its queue.
#[test]
fn two_requesters_do_not_wait_for_each_other_for_ever() {
    let plan = Plan::new(Algorithm::TwoPhase, &Hardware::RP3, LowRights::NeverWriteBack).expect("it suits");
    for rendezvous in [Rendezvous::Flag, Rendezvous::Serve] {
        let kernel = System::<(), Nothing<'_>, 2, 1>::new(Hardware::RP3).with_rendezvous(rendezvous);
        let (space, barrier) = (SharedSpace::new(), Barrier::new(2));
        let (flushes, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
        for cpu in [0, 1] {
            space.members.insert(cpu);
            space.running.insert(cpu);
        }
        std::thread::scope(|scope| {
            for me in [0, 1] {
                let (kernel, space, barrier, flushes, ended) = (&kernel, &space, &barrier, &flushes, &ended);
                scope.spawn(move || {
                    let mut handle = kernel.attach(me).expect("it exists");
                    let mut cpu = Cpu(flushes, Some(barrier));
                    let started = kernel.start(&mut handle, &mut cpu, plan, Nothing::new(space, &EVERYTHING));
                    assert!(started.is_ok());
                    ended.fetch_add(1, Ordering::SeqCst);
                    // The other one may ask only now: an interrupt.
                    while ended.load(Ordering::SeqCst) < 2 {
                        kernel.poll(&mut handle, &mut cpu).expect("it is in flight");
                        std::thread::yield_now();
                    }
                });
            }
        });
        assert_eq!(flushes.into_inner(), 4, "each for both");
    }
}
