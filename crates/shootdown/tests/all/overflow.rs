//! After an overflow a 2-phase replier knows an operation by its slot alone, so that slot must not be another operation's
//! before the replier has left.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use tlbkit_addr::{Asid, CpuSet, Flush};
use tlbkit_shootdown::{
    Algorithm, Duty, Edit, Hardware, LocalCpu, LowRights, OpId, Outcome, Plan, Request, SharedSpace, System,
    Target,
};

use crate::support::PAGE;

/// A change of nothing, under an exclusion that another CPU may have.
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

impl<F: FnMut()> LocalCpu<()> for Cpu<F> {
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
    let mut handle = kernel.attach(1).expect("it exists");
    let wait = || {
        let told = at.send(Replier::Waits).is_ok() && go.recv().is_ok();
        assert!(told, "CPU 0 has ended");
    };
    go.recv().expect("CPU 0 has not ended");
    kernel.poll(&mut handle, &mut Cpu(wait)).expect("the requests are in order");
    at.send(Replier::Left).expect("CPU 0 has not ended");
}

/// With an overflow or without one, an operation ends when the CPU that stopped for it has gone on, and so has flushed: its
/// slot is not another operation's before. The CPU does not spin until it may go on, but pauses, and only there.
#[test]
fn an_operation_ends_when_its_replier_has_left() {
    for overflows in [false, true] {
        let (held, space) = (AtomicBool::new(false), space());
        let kernel = Kernel::new(Hardware::RP3);
        if overflows {
            // With this one in it, the mailbox overflows at the next request.
            let before = OpId { cpu: 1, slot: 0, generation: 0 };
            let before = Request { op: before, what: Target::All, duty: Duty::Stop };
            // SAFETY: CPU 1 starts no operation, so none of its own is in flight.
            assert_eq!(unsafe { kernel.post(1, before) }, Ok(true));
        }
        let ((tell, go), (at, heard)) = (channel(), channel());
        std::thread::scope(|scope| {
            let kernel = &kernel;
            scope.spawn(move || reply(kernel, &go, &at));
            let mut handle = kernel.attach(0).expect("it exists");
            let mut seen = Vec::new();
            let mut step = || {
                tell.send(()).expect("CPU 1 has not ended");
                seen.push(heard.recv().expect("CPU 1 has not ended"));
            };
            // CPU 1 stops for it, and waits for its continuing signal.
            let mut cpu = Cpu(&mut step);
            kernel.start(&mut handle, &mut cpu, plan(), Nothing(&held, &space)).expect("a slot is free");
            // The next one, in the same slot, concerns no CPU.
            space.running.remove(1);
            space.members.remove(1);
            kernel.start(&mut handle, &mut cpu, plan(), Nothing(&held, &space)).expect("a slot is free");
            drop(tell);
            assert_eq!(seen, [Replier::Waits, Replier::Left], "overflows: {overflows}");
        });
    }
}
