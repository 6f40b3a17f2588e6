//! What a CPU does to itself, through the driver: leaving keeps what it may keep, and offline is a CPU, not a space.

use tlbkit_addr::{Asid, CpuSet, Flush};
use tlbkit_shootdown::{
    Algorithm, Hardware, LocalCpu, LowRights, Misuse, OpId, Outcome, Plan, SharedSpace, SwitchKind, System,
};

use crate::support::{Nothing, PAGE};

/// A CPU that counts what it does to its own TLB.
#[derive(Debug, Default, PartialEq, Eq)]
struct Cpu {
    /// One address space flushed, all of them, and status writes waited for.
    flushes: usize,
    all: usize,
    drains: usize,
    asked: Vec<usize>,
    ended: usize,
}

impl LocalCpu<()> for Cpu {
    fn flush(&mut self, space: Option<Asid>, _what: &Flush, _drain: bool) {
        match space {
            Some(_) => self.flushes += 1,
            None => self.all += 1,
        }
    }
    fn drain(&mut self) {
        self.drains += 1;
    }
    fn interrupt(&mut self, cpus: CpuSet) {
        self.asked.extend(cpus.iter());
    }
    fn ended(&mut self, _op: OpId, _outcome: Outcome) {
        self.ended += 1;
    }
    fn complete(&mut self, _op: OpId, (): (), _outcome: Outcome) {}
}

type Kernel<'s> = System<(), Nothing<'s>, 2, 2>;

fn plan(hardware: &Hardware) -> Plan {
    let suits = |algorithm| Plan::new(algorithm, hardware, LowRights::NeverWriteBack);
    suits(Algorithm::PteFirstAsync).or_else(|_| suits(Algorithm::OptimisticAsync)).unwrap()
}

/// 3.3.2: a CPU that stops running a space keeps its translations. It waits for its status writes where one could undo a
/// change about which no CPU asks it. Nothing else costs anything, until the space has changed: then it flushes as it
/// comes back.
#[test]
fn leaving_keeps_translations() {
    for (name, hardware) in Hardware::TABLE {
        let (space, kernel) = (SharedSpace::new(), Kernel::new(hardware));
        let [mut zero, mut one] = [0, 1].map(|cpu| kernel.attach(cpu).unwrap());
        let mut here = Cpu::default();
        let mut switch = |cpu: &mut Cpu, change| {
            kernel.switch(&mut one, cpu, change, &space, Asid::default()).unwrap();
            std::mem::take(cpu)
        };
        let drains = usize::from(hardware.status_overwrites());
        assert_eq!(switch(&mut here, SwitchKind::In), Cpu::default(), "{name}: it has nothing yet");
        assert_eq!(switch(&mut here, SwitchKind::Out), Cpu { drains, ..Cpu::default() }, "{name}");
        assert!(space.members.contains(1) && !space.running.contains(1), "{name}");
        assert_eq!(switch(&mut here, SwitchKind::In), Cpu::default(), "{name}: it has kept what it had");
        switch(&mut here, SwitchKind::Out);
        let mut requester = Cpu::default();
        kernel.start(&mut zero, &mut requester, plan(&hardware), Nothing::new(&space, &PAGE[0])).unwrap();
        assert_eq!((requester.asked.len(), requester.ended), (0, 1), "{name}: no CPU waits for it");
        assert_eq!(switch(&mut here, SwitchKind::In), Cpu { flushes: 1, ..Cpu::default() }, "{name}");
        let forgets = Cpu { flushes: 1, drains, ..Cpu::default() };
        assert_eq!(switch(&mut here, SwitchKind::OutAndForget), forgets, "{name}");
        assert!(!space.members.contains(1), "{name}");
    }
}

/// Lines of a virtually tagged cache that need the entry must not outlive the running of their space (2.3.3).
#[test]
fn a_cache_that_needs_the_entry_keeps_nothing() {
    let (space, kernel) =
        (SharedSpace::new(), Kernel::new(Hardware { lines_need_entry: true, ..Hardware::RP3 }));
    let (mut one, mut cpu) = (kernel.attach(1).unwrap(), Cpu::default());
    for change in [SwitchKind::In, SwitchKind::Out] {
        kernel.switch(&mut one, &mut cpu, change, &space, Asid::default()).unwrap();
    }
    assert!(cpu.flushes > 0 && !space.members.contains(1));
}

/// A CPU that leaves: whether it ran the space at its first flush.
struct Leaves<'s>(&'s SharedSpace, Option<bool>);

impl LocalCpu<()> for Leaves<'_> {
    fn flush(&mut self, _space: Option<Asid>, _what: &Flush, _drain: bool) {
        self.1.get_or_insert(self.0.running.contains(1));
    }
    fn interrupt(&mut self, _cpus: CpuSet) {}
    fn complete(&mut self, _op: OpId, (): (), _outcome: Outcome) {}
}

/// An operation waits only for CPUs that run the space, so the lines of a CPU that leaves are written back before it says so.
#[test]
fn a_cache_that_needs_the_entry_is_flushed_before_its_cpu_leaves() {
    let hardware = Hardware { lines_need_entry: true, ..Hardware::RP3 };
    for change in [SwitchKind::Out, SwitchKind::OutAndForget, SwitchKind::Offline] {
        let (space, kernel) = (SharedSpace::new(), Kernel::new(hardware));
        let mut one = kernel.attach(1).unwrap();
        let mut cpu = Leaves(&space, None);
        kernel.switch(&mut one, &mut cpu, SwitchKind::In, &space, Asid::default()).unwrap();
        kernel.switch(&mut one, &mut cpu, change, &space, Asid::default()).unwrap();
        assert_eq!(cpu.1, Some(true), "{change:?}");
    }
}

/// A CPU that still runs another space would be acknowledged for, and go on with what it has of that.
#[test]
fn a_cpu_that_runs_another_space_does_not_go_offline() {
    let (one_space, other, kernel) = (SharedSpace::new(), SharedSpace::new(), Kernel::new(Hardware::I386));
    let [mut zero, mut one] = [0, 1].map(|cpu| kernel.attach(cpu).unwrap());
    let (mut here, mut there) = (Cpu::default(), Cpu::default());
    let mut switch = |cpu: &mut Cpu, change, space: &SharedSpace| {
        kernel.switch(&mut one, cpu, change, space, Asid::default())
    };
    switch(&mut there, SwitchKind::In, &one_space).unwrap();
    switch(&mut there, SwitchKind::In, &other).unwrap();
    let refused = Err(Misuse::StillRuns { cpu: 1 });
    let before = std::mem::take(&mut there);
    assert_eq!(before, Cpu::default());
    assert_eq!(switch(&mut there, SwitchKind::Offline, &one_space), refused);
    assert_eq!(switch(&mut there, SwitchKind::Offline, &SharedSpace::new()), refused);
    assert_eq!((there, one_space.running.contains(1)), (Cpu::default(), true), "nothing has been done");
    let mut there = Cpu::default();
    kernel.start(&mut zero, &mut here, plan(&Hardware::I386), Nothing::new(&other, &PAGE[0])).unwrap();
    assert_eq!((here.asked.as_slice(), here.ended), ([1].as_slice(), 0), "it is asked");
    // Having left that one, it goes offline with the other, and replies before it does.
    switch(&mut there, SwitchKind::Out, &other).unwrap();
    switch(&mut there, SwitchKind::Offline, &one_space).unwrap();
    assert_eq!((there.ended, there.all), (1, 1));
    assert!(refused.is_err_and(|why| why.to_string().contains("leave that first")));
}
