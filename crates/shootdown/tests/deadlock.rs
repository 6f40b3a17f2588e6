//! 3.3.3: two 2-phase requesters, each with interrupts disabled and waiting for the other one.

#![cfg(not(tlbkit_loom))]

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use tlbkit_addr::Asid;
use tlbkit_shootdown::{
    Algorithm, Edit, Hardware, Local, LowRights, Outcome, Plan, Rendezvous, SharedSpace, System, Target,
};

/// A change of an entry of its own. Both have entered the algorithm before either asks the other.
struct Change<'m>(&'m Barrier, &'m SharedSpace);

impl Edit<1> for Change<'_> {
    fn exclude(&self) -> bool {
        true
    }
    fn release(&self) {}
    fn set_changing(&self, on: bool) {
        if on {
            self.0.wait();
        }
    }
    fn update(&self) {}
    fn space(&self) -> &SharedSpace {
        self.1
    }
    fn what(&self) -> Target {
        Target::Space(Asid::default())
    }
}

struct Cpu<'m>(&'m AtomicUsize);

impl Local<()> for Cpu<'_> {
    fn flush(&mut self, _what: Target, _drain: bool) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
    fn interrupt(&mut self, _cpu: usize) {}
    fn complete(&mut self, (): (), outcome: Outcome) {
        assert_eq!(outcome, Outcome::Done);
    }
    fn pause(&mut self) {
        std::thread::yield_now();
    }
}

/// Either way around it: who has entered counts as stopped, or who waits serves his queue.
#[test]
fn two_requesters_do_not_wait_for_each_other_for_ever() {
    let plan = Plan::new(Algorithm::TwoPhase, &Hardware::RP3, LowRights::NeverWriteBack).expect("it suits");
    for rendezvous in [Rendezvous::Flag, Rendezvous::Serve] {
        let kernel = System::<(), Change<'_>, 2, 1>::new(plan.with_rendezvous(rendezvous));
        let kernel = kernel.expect("sizes are not zero");
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
                    let mut station = kernel.station(me).expect("it exists");
                    let started = kernel.start(&mut station, &mut Cpu(flushes), (), Change(barrier, space));
                    assert!(started.is_ok());
                    ended.fetch_add(1, Ordering::SeqCst);
                    // The other one may ask only now: an interrupt.
                    while ended.load(Ordering::SeqCst) < 2 {
                        kernel.poll(&mut station, &mut Cpu(flushes)).expect("it is in flight");
                        std::thread::yield_now();
                    }
                });
            }
        });
        assert_eq!(flushes.into_inner(), 4, "each for both");
    }
}
