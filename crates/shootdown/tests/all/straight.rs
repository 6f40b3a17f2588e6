//! A system whose operations are all PTE-first: the steps of the state machines, without them.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use tlbkit_addr::{Asid, CpuSet, Flush, FlushScope, Pages, Vpn};
use tlbkit_shootdown::{
    Algorithm, CpuHandle, Hardware, LocalCpu, LowRights, Misuse, OpId, Outcome, Plan, PteFirst, SharedSpace,
    SwitchKind, System,
};

use crate::support::{Nothing, PAGE};

const CPUS: usize = 4;
type Kernel = System<(), PteFirst<()>, CPUS, 1>;
type Seat<'k> = CpuHandle<'k, 1>;

fn plan(algorithm: Algorithm) -> Plan {
    Plan::new(algorithm, &Hardware::RP3, LowRights::NeverWriteBack).unwrap()
}

/// A CPU that notes what it does. While it waits, `meanwhile` is called.
struct Cpu<'c> {
    flushed: Vec<(Option<Asid>, Flush)>,
    asked: Vec<CpuSet>,
    completed: usize,
    meanwhile: &'c mut dyn FnMut(),
}

impl<'c> Cpu<'c> {
    fn new(meanwhile: &'c mut dyn FnMut()) -> Self {
        Self { flushed: Vec::new(), asked: Vec::new(), completed: 0, meanwhile }
    }
}

impl LocalCpu<()> for Cpu<'_> {
    fn flush(&mut self, space: Option<Asid>, what: &Flush, _drain: bool) {
        self.flushed.push((space, what.clone()));
    }
    fn interrupt(&mut self, cpus: CpuSet) {
        self.asked.push(cpus);
    }
    fn complete(&mut self, _op: OpId, (): (), outcome: Outcome) {
        assert_eq!(outcome, Outcome::Done);
        self.completed += 1;
    }
    fn pause(&mut self) {
        (self.meanwhile)();
    }
}

fn only(cpu: usize) -> CpuSet {
    [cpu].into_iter().collect()
}

/// Makes a CPU run the space, and returns its handle.
fn seat<'k>(kernel: &'k Kernel, cpu: usize, space: &SharedSpace) -> Seat<'k> {
    let mut seat = kernel.attach(cpu).unwrap();
    switch(kernel, &mut seat, SwitchKind::In, space);
    seat
}

/// Returns what the CPU has flushed.
fn switch(
    kernel: &Kernel,
    seat: &mut Seat<'_>,
    change: SwitchKind,
    space: &SharedSpace,
) -> Vec<(Option<Asid>, Flush)> {
    let mut nothing = || ();
    let mut cpu = Cpu::new(&mut nothing);
    kernel.switch(seat, &mut cpu, change, space, Asid::default()).unwrap();
    cpu.flushed
}

fn poll(kernel: &Kernel, seat: &mut Seat<'_>) -> Vec<(Option<Asid>, Flush)> {
    let mut nothing = || ();
    let mut cpu = Cpu::new(&mut nothing);
    kernel.poll(seat, &mut cpu).unwrap();
    cpu.flushed
}

/// A CPU that runs the space is asked, one that has left it is marked, and one that is offline is not waited for.
#[test]
fn each_cpu_flushes_when_it_must() {
    let (kernel, space) = (Kernel::new(Hardware::RP3), SharedSpace::new());
    let [mut zero, mut one, mut two, mut three] = [0, 1, 2, 3].map(|cpu| seat(&kernel, cpu, &space));
    switch(&kernel, &mut two, SwitchKind::Out, &space);
    switch(&kernel, &mut three, SwitchKind::Offline, &space);
    // It is asked nevertheless, and its mailbox is closed.
    assert!(space.members.insert(3) && space.running.insert(3));
    let mut replies = Vec::new();
    let mut meanwhile = || replies.extend(poll(&kernel, &mut one));
    let mut cpu = Cpu::new(&mut meanwhile);
    let ran = kernel.run(&mut zero, &mut cpu, plan(Algorithm::PteFirst), &mut Nothing::new(&space, &PAGE[0]));
    assert_eq!(ran.map(|(_, outcome)| outcome), Ok(Outcome::Done));
    let page = (Some(Asid::default()), PAGE[0].clone());
    assert_eq!((&cpu.flushed, &cpu.asked, cpu.completed), (&vec![page.clone()], &vec![only(1)], 1));
    assert_eq!(replies, [page]);
    assert_eq!(switch(&kernel, &mut two, SwitchKind::In, &space).len(), 1, "it was marked");
    assert_eq!(switch(&kernel, &mut one, SwitchKind::In, &space), [], "it was asked");
}

/// A request has room for one range. Of more, the CPU reads the operation's own list.
#[test]
fn a_list_of_ranges_reaches_the_other_cpu() {
    let (kernel, space) = (Kernel::new(Hardware::RP3), SharedSpace::new());
    let [mut zero, mut one] = [0, 1].map(|cpu| seat(&kernel, cpu, &space));
    let mut ranges = Flush::none();
    for page in [3, 7] {
        ranges.add(FlushScope::Everywhere, Pages::one(Vpn::new(page)));
    }
    let mut replies = Vec::new();
    let mut meanwhile = || replies.extend(poll(&kernel, &mut one));
    let mut cpu = Cpu::new(&mut meanwhile);
    let mut edit = Nothing::new(&space, &ranges);
    assert!(kernel.run(&mut zero, &mut cpu, plan(Algorithm::PteFirst), &mut edit).is_ok());
    assert_eq!(replies, [(Some(Asid::default()), ranges)]);
}

/// Two CPUs ask one whose queue has room for one request: it flushes everything, and acknowledges both.
#[test]
fn a_queue_that_overflows_acknowledges_each_operation() {
    let kernel = Kernel::new(Hardware::RP3);
    let [of_zero, of_two] = [SharedSpace::new(), SharedSpace::new()];
    let [mut zero, mut two] = [seat(&kernel, 0, &of_zero), seat(&kernel, 2, &of_two)];
    let mut one = seat(&kernel, 1, &of_zero);
    switch(&kernel, &mut one, SwitchKind::In, &of_two);
    let (replies, completed) = (RefCell::new(Vec::new()), Cell::new(0));
    let mut second = || {
        let mut last = || replies.borrow_mut().extend(poll(&kernel, &mut one));
        let mut cpu = Cpu::new(&mut last);
        let mut edit = Nothing::new(&of_two, &PAGE[1]);
        assert!(kernel.run(&mut two, &mut cpu, plan(Algorithm::PteFirst), &mut edit).is_ok());
        completed.set(completed.get() + cpu.completed);
    };
    let mut cpu = Cpu::new(&mut second);
    let mut edit = Nothing::new(&of_zero, &PAGE[0]);
    assert!(kernel.run(&mut zero, &mut cpu, plan(Algorithm::PteFirst), &mut edit).is_ok());
    assert_eq!((completed.get(), cpu.completed), (1, 1));
    let replies = replies.into_inner();
    assert!(matches!(&replies[..], [(None, flush)] if flush.is_all()), "{replies:?}");
}

#[test]
fn another_plan_is_refused() {
    let (kernel, space) = (Kernel::new(Hardware::RP3), SharedSpace::new());
    let mut zero = seat(&kernel, 0, &space);
    for algorithm in Algorithm::ALL {
        let Ok(plan) = Plan::new(algorithm, &Hardware::RP3, LowRights::NeverWriteBack) else { continue };
        let mut nothing = || ();
        let mut cpu = Cpu::new(&mut nothing);
        let ran = kernel.run(&mut zero, &mut cpu, plan, &mut Nothing::new(&space, &PAGE[0])).map(|_| ());
        // An asynchronous plan runs in its synchronous form.
        let is_pte_first = matches!(algorithm, Algorithm::PteFirst | Algorithm::PteFirstAsync);
        assert_eq!(ran, if is_pte_first { Ok(()) } else { Err(Misuse::OtherPlan) }, "{algorithm:?}");
    }
}

/// A CPU that panics while it flushes has not replied: it serves nothing more, and no new handle replies for it.
#[test]
fn a_cpu_that_panicked_in_a_reply_stays_attached() {
    struct Panics;
    impl LocalCpu<()> for Panics {
        fn flush(&mut self, _space: Option<Asid>, _what: &Flush, _drain: bool) {
            panic!("planned");
        }
        fn interrupt(&mut self, _cpus: CpuSet) {}
        fn complete(&mut self, _op: OpId, (): (), _outcome: Outcome) {}
    }
    let (kernel, space) = (Kernel::new(Hardware::RP3), SharedSpace::new());
    let [mut zero, one] = [0, 1].map(|cpu| seat(&kernel, cpu, &space));
    let mut one = Some(one);
    let mut meanwhile = || {
        let mut seat = one.take().expect("planned: nobody replies any more");
        assert!(catch_unwind(AssertUnwindSafe(|| kernel.poll(&mut seat, &mut Panics))).is_err());
        assert_eq!(poll(&kernel, &mut seat), []);
        drop(seat);
        assert_eq!(kernel.attach(1).err(), Some(Misuse::Attached { cpu: 1 }));
    };
    let mut cpu = Cpu::new(&mut meanwhile);
    let mut edit = Nothing::new(&space, &PAGE[0]);
    let ran = catch_unwind(AssertUnwindSafe(|| {
        kernel.run(&mut zero, &mut cpu, plan(Algorithm::PteFirst), &mut edit).map(|_| ())
    }));
    assert!(ran.is_err(), "it waits for a reply that never comes");
    assert_eq!(cpu.completed, 0);
}
