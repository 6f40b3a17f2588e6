//! 2-phase: a requester that finds a CPU stopped for another operation waits until that CPU has flushed for its own.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;

use tlbkit_addr::{Asid, CpuSet, Flush, FlushScope, Pages, Vpn};
use tlbkit_shootdown::{
    Algorithm, Duty, Edit, Hardware, LocalCpu, LowRights, OpId, Outcome, Plan, Request, SharedSpace,
    SwitchKind, Synchronous, System, Target,
};

/// What the three CPUs share: CPU 0 runs operation 0, CPU 1 operation 1, and CPU 2 replies.
#[derive(Default)]
struct Scene {
    space: SharedSpace,
    locked: AtomicBool,
    /// Whether CPU 2 is in its flush for operation 0.
    flushes: AtomicBool,
    /// For each operation, whether the entry has changed, and whether `run` has returned.
    updated: [AtomicBool; 2],
    returned: [AtomicBool; 2],
    /// The flushes of CPU 2, and how many there had been when the payload of operation 1 came back.
    flushed: AtomicUsize,
    completed: AtomicUsize,
}

/// Lets other threads run until `what` is set.
fn wait(what: &AtomicBool) {
    while !what.load(SeqCst) {
        thread::yield_now();
    }
}

struct Change<'s>(&'s Scene, usize, Flush);

impl Edit for Change<'_> {
    type Payload = usize;

    fn exclude(&mut self) -> bool {
        !self.0.locked.swap(true, SeqCst)
    }
    fn release(&mut self) {
        self.0.locked.store(false, SeqCst);
    }
    fn update(&mut self) -> usize {
        self.0.updated[self.1].store(true, SeqCst);
        self.1
    }
    fn space(&self) -> &SharedSpace {
        &self.0.space
    }
    fn asid(&self) -> Asid {
        Asid::default()
    }
    fn flush(&self) -> &Flush {
        &self.2
    }
}

struct Cpu<'s>(&'s Scene, usize);

impl LocalCpu<usize> for Cpu<'_> {
    fn flush(&mut self, _space: Option<Asid>, _what: &Flush, _drain: bool) {
        let Self(scene, cpu) = self;
        if *cpu == 2 && scene.flushed.load(SeqCst) == 0 {
            // CPU 2 is stopped, and has found no other request. Now operation 1 sends its request, and finds CPU 2 stopped.
            scene.flushes.store(true, SeqCst);
            wait(&scene.updated[1]);
        }
        if *cpu == 2 {
            scene.flushed.fetch_add(1, SeqCst);
        }
    }
    fn interrupt(&mut self, _cpus: CpuSet) {}
    fn complete(&mut self, _op: OpId, payload: usize, _outcome: Outcome) {
        if payload == 1 {
            self.0.completed.store(self.0.flushed.load(SeqCst), SeqCst);
        }
    }
    fn pause(&mut self) {
        thread::yield_now();
    }
    fn changed(&mut self) {
        // CPU 2 has continued, and looks at its queue again. Operation 1 must not return meanwhile, and has time to.
        if self.1 == 2 && self.0.flushed.load(SeqCst) == 1 {
            for _ in 0..if cfg!(miri) { 200 } else { 100_000 } {
                if self.0.returned[1].load(SeqCst) {
                    return;
                }
                thread::yield_now();
            }
        }
    }
}

#[test]
fn a_cpu_that_was_stopped_for_another_operation_flushes_first() {
    let system = System::<usize, Synchronous<usize>, 3, 4>::new(Hardware::I386);
    let plan = Plan::new(Algorithm::TwoPhase, &Hardware::I386, LowRights::NeverWriteBack).unwrap();
    let mut page = Flush::none();
    page.add(FlushScope::Everywhere, Pages::one(Vpn::new(3)));
    let scene = Scene::default();
    let run = |cpu: usize| {
        let mut handle = system.attach(cpu).unwrap();
        let mut change = Change(&scene, cpu, page.clone());
        system.run(&mut handle, &mut Cpu(&scene, cpu), plan, &mut change).unwrap();
        scene.returned[cpu].store(true, SeqCst);
    };
    let mut two = system.attach(2).unwrap();
    system.switch(&mut two, &mut Cpu(&scene, 2), SwitchKind::In, &scene.space, Asid::default()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| run(0));
        scope.spawn(|| {
            wait(&scene.flushes);
            run(1);
        });
        while !scene.returned.iter().all(|returned| returned.load(SeqCst)) {
            system.poll(&mut two, &mut Cpu(&scene, 2)).unwrap();
            thread::yield_now();
        }
    });
    assert_eq!(scene.completed.load(SeqCst), 2, "flushes of CPU 2 before payload 1 came back");
}

type Two = System<usize, Synchronous<usize>, 2, 4>;

/// Sends CPU 1 a request to stop, of an operation that does not exist. Returns whether CPU 1 accepts it.
fn ask(system: &Two) -> bool {
    let op = OpId { cpu: 0, slot: 0, generation: 0 };
    // SAFETY: no operation is in flight, and the request holds its target.
    unsafe { system.post(1, Request { op, what: Target::Nothing, duty: Duty::Stop }) }.unwrap()
}

/// CPU 1 while it goes offline: whenever its flag changes, it gets one more request, which it refuses.
struct Refuses<'s>(&'s Two);

impl LocalCpu<usize> for Refuses<'_> {
    fn flush(&mut self, _space: Option<Asid>, _what: &Flush, _drain: bool) {}
    fn interrupt(&mut self, _cpus: CpuSet) {}
    fn complete(&mut self, _op: OpId, _payload: usize, _outcome: Outcome) {}
    fn changed(&mut self) {
        static TIMES: AtomicUsize = AtomicUsize::new(0);
        if TIMES.fetch_add(1, SeqCst) < 5 {
            assert!(!ask(self.0), "an offline CPU refuses");
        }
    }
}

/// CPU 0: whether it has waited.
struct Waits<'s>(&'s AtomicBool);

impl LocalCpu<usize> for Waits<'_> {
    fn flush(&mut self, _space: Option<Asid>, _what: &Flush, _drain: bool) {}
    fn interrupt(&mut self, _cpus: CpuSet) {}
    fn complete(&mut self, _op: OpId, _payload: usize, _outcome: Outcome) {}
    fn pause(&mut self) {
        self.0.store(true, SeqCst);
        thread::yield_now();
    }
}

/// A change whose payload says whether CPU 0 had waited before the entry changed.
struct Asks<'s>(&'s SharedSpace, &'s AtomicBool, Flush, bool);

impl Edit for Asks<'_> {
    type Payload = usize;

    fn exclude(&mut self) -> bool {
        true
    }
    fn release(&mut self) {}
    fn update(&mut self) -> usize {
        self.3 = self.1.load(SeqCst);
        0
    }
    fn space(&self) -> &SharedSpace {
        self.0
    }
    fn asid(&self) -> Asid {
        Asid::default()
    }
    fn flush(&self) -> &Flush {
        &self.2
    }
}

#[test]
fn a_request_that_is_refused_leaves_no_cpu_stopped() {
    let system = Two::new(Hardware::I386);
    let plan = Plan::new(Algorithm::TwoPhase, &Hardware::I386, LowRights::NeverWriteBack).unwrap();
    let (space, waited, done) = (SharedSpace::default(), AtomicBool::default(), AtomicBool::default());
    let mut one = system.attach(1).unwrap();
    let asid = Asid::default();
    // The request that CPU 1 serves on its way offline; while it leaves 2-phase, it refuses another one.
    assert!(ask(&system));
    system.switch(&mut one, &mut Refuses(&system), SwitchKind::Offline, &space, asid).unwrap();
    system.switch(&mut one, &mut Waits(&waited), SwitchKind::In, &space, asid).unwrap();
    waited.store(false, SeqCst);
    let mut page = Flush::none();
    page.add(FlushScope::Everywhere, Pages::one(Vpn::new(3)));
    let mut change = Asks(&space, &waited, page, false);
    thread::scope(|scope| {
        scope.spawn(|| {
            wait(&waited);
            while !done.load(SeqCst) {
                system.poll(&mut one, &mut Waits(&AtomicBool::default())).unwrap();
                thread::yield_now();
            }
        });
        let mut zero = system.attach(0).unwrap();
        system.run(&mut zero, &mut Waits(&waited), plan, &mut change).unwrap();
        done.store(true, SeqCst);
    });
    assert!(change.3, "CPU 1 runs, and is not stopped before it is asked");
}
