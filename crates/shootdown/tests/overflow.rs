//! After an overflow a 2-phase replier knows an operation by its slot alone. It must not take the next operation in that
//! slot for it: that one may get its turn only when the replier has left.

#![cfg(not(tlbkit_loom))]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use tlbkit_addr::{Asid, CpuSet, Flush};
use tlbkit_shootdown::{
    Algorithm, Duty, Edit, Hardware, Local, LowRights, OpId, Outcome, Plan, Request, SharedSpace, System,
    Target,
};

mod support;
use support::PAGE;

/// A change of nothing, under an exclusion that somebody may have.
#[derive(Clone, Copy, Debug)]
struct Nothing<'m>(&'m AtomicBool, &'m SharedSpace);

impl Edit<1> for Nothing<'_> {
    type Payload = ();

    fn exclude(&mut self) -> bool {
        !self.0.load(Ordering::SeqCst)
    }
    fn release(&mut self) {}
    fn update(&mut self) {}
    fn space(&self) -> &SharedSpace {
        self.1
    }
    fn asid(&self) -> Asid {
        Asid::default()
    }
    fn flush(&self) -> &Flush {
        &PAGE[0]
    }
}

/// What a CPU does where it waits.
struct Cpu<F>(F);

impl<F: FnMut()> Local<()> for Cpu<F> {
    fn flush(&mut self, _space: Option<Asid>, _what: &Flush, _drain: bool) {}
    fn interrupt(&mut self, _cpus: CpuSet) {}
    fn complete(&mut self, _op: OpId, (): (), outcome: Outcome) {
        assert_eq!(outcome, Outcome::Done);
    }
    fn pause(&mut self) {
        self.0();
    }
}

/// Where CPU 1 has got to.
#[derive(Debug, PartialEq, Eq)]
enum Replier {
    Waits,
    Left,
}

type Kernel<'m> = System<(), Nothing<'m>, 2, 1>;

fn plan() -> Plan {
    Plan::new(Algorithm::TwoPhase, &Hardware::RP3, LowRights::NeverWriteBack).expect("it suits")
}

/// A space that CPU 1 runs.
fn space() -> SharedSpace {
    let space = SharedSpace::new();
    space.members.insert(1);
    space.running.insert(1);
    space
}

/// CPU 1: replies once, and goes on where it waits only when it is told to.
fn reply(kernel: &Kernel<'_>, go: &Receiver<()>, at: &Sender<Replier>) {
    let mut station = kernel.station(1).expect("it exists");
    let wait = || {
        let told = at.send(Replier::Waits).is_ok() && go.recv().is_ok();
        assert!(told, "CPU 0 has ended");
    };
    go.recv().expect("CPU 0 has not ended");
    kernel.poll(&mut station, &mut Cpu(wait)).expect("the requests are in order");
    at.send(Replier::Left).expect("CPU 0 has not ended");
}

#[test]
fn a_replier_does_not_wait_for_the_next_operation_in_the_slot() {
    let (held, space) = (AtomicBool::new(false), space());
    let kernel = Kernel::new(Hardware::RP3);
    // With this one in it, the mailbox overflows at the next request.
    let before = Request { op: OpId { cpu: 1, slot: 0, generation: 0 }, what: Target::All, duty: Duty::Stop };
    // SAFETY: CPU 1 starts no operation, so none of its own is in flight.
    assert_eq!(unsafe { kernel.post(1, before) }, Ok(true));
    let ((tell, go), (at, heard)) = (channel(), channel());
    std::thread::scope(|scope| {
        let kernel = &kernel;
        scope.spawn(move || reply(kernel, &go, &at));
        let mut station = kernel.station(0).expect("it exists");
        let mut seen = Vec::new();
        let mut step = || {
            tell.send(()).expect("CPU 1 has not ended");
            seen.push(heard.recv().expect("CPU 1 has not ended"));
            // Whoever held it gives it up when CPU 1 has left.
            held.store(false, Ordering::SeqCst);
        };
        // The first operation: CPU 1 stops for it, and waits for its continuing signal.
        kernel
            .start(&mut station, &mut Cpu(&mut step), plan(), Nothing(&held, &space))
            .expect("a slot is free");
        // The second, in the same slot, has to wait for the exclusion. Only now does CPU 1 look again.
        space.running.remove(1);
        space.members.remove(1);
        held.store(true, Ordering::SeqCst);
        kernel
            .start(&mut station, &mut Cpu(&mut step), plan(), Nothing(&held, &space))
            .expect("a slot is free");
        // Without anybody to tell it more, CPU 1 ends in any case.
        drop(tell);
        assert_eq!(seen, [Replier::Waits, Replier::Left]);
    });
}

/// Nor does it spin before: it pauses where it waits, and only there.
#[test]
fn a_replier_pauses_until_it_may_continue() {
    let (held, space) = (AtomicBool::new(false), space());
    let kernel = Kernel::new(Hardware::RP3);
    let ((tell, go), (at, heard)) = (channel(), channel());
    std::thread::scope(|scope| {
        let kernel = &kernel;
        scope.spawn(move || reply(kernel, &go, &at));
        let mut station = kernel.station(0).expect("it exists");
        let mut seen = Vec::new();
        let mut step = || {
            tell.send(()).expect("CPU 1 has not ended");
            seen.push(heard.recv().expect("CPU 1 has not ended"));
        };
        kernel
            .start(&mut station, &mut Cpu(&mut step), plan(), Nothing(&held, &space))
            .expect("a slot is free");
        step();
        assert_eq!(seen, [Replier::Waits, Replier::Left]);
    });
}
