//! Panics in a kernel's callbacks: no payload is dropped while a CPU may reach it, and no CPU replies for a handle that is gone.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use tlbkit_addr::{Asid, CpuSet, Flush};
use tlbkit_shootdown::{
    Algorithm, CpuHandle, Edit, Hardware, LocalCpu, LowRights, Misuse, OpId, Outcome, Plan, SharedSpace,
    SwitchKind, Synchronous, System,
};

use crate::support::{Nothing, PAGE};

/// A payload that counts its drops.
struct Counted<'c>(&'c Cell<usize>);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

/// The callback that panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Flush,
    IsWalked,
    /// After the update.
    Space,
}

/// A change. In [`update`](Edit::update) another CPU begins to run the space.
struct Unmap<'c> {
    space: &'c SharedSpace,
    drops: &'c Cell<usize>,
    at: At,
    updated: bool,
}

impl<'c> Edit for Unmap<'c> {
    type Payload = Counted<'c>;

    fn exclude(&mut self) -> bool {
        true
    }
    fn release(&mut self) {}
    fn update(&mut self) -> Counted<'c> {
        self.updated = true;
        self.space.running.insert(1);
        Counted(self.drops)
    }
    fn is_walked(&self, _payload: &Counted<'c>) -> bool {
        assert_ne!(self.at, At::IsWalked, "planned");
        true
    }
    fn space(&self) -> &SharedSpace {
        assert!(self.at != At::Space || !self.updated, "planned");
        self.space
    }
    fn asid(&self) -> Asid {
        Asid::default()
    }
    fn flush(&self) -> &Flush {
        &PAGE[3]
    }
}

struct Cpu(At);

impl<P> LocalCpu<P> for Cpu {
    fn flush(&mut self, _space: Option<Asid>, _what: &Flush, _drain: bool) {
        assert_ne!(self.0, At::Flush, "planned");
    }
    fn interrupt(&mut self, _cpus: CpuSet) {}
    fn complete(&mut self, _op: OpId, _payload: P, _outcome: Outcome) {
        unreachable!("the operation does not end");
    }
}

/// Runs an operation of CPU 0 in which a callback panics, and returns how many payloads were dropped.
fn dropped<const CPUS: usize>(algorithm: Algorithm, at: At) -> usize {
    let (space, drops) = (SharedSpace::new(), Cell::new(0));
    let system = System::<Counted<'_>, Synchronous<Counted<'_>>, CPUS, 2>::new(Hardware::RP3);
    let mut handle = system.attach(0).unwrap();
    // The space is the CPU's already, so nothing is flushed as it begins to run it.
    system.switch(&mut handle, &mut Cpu(at), SwitchKind::In, &space, Asid::default()).unwrap();
    let plan = Plan::new(algorithm, &Hardware::RP3, LowRights::NeverWriteBack).unwrap();
    let mut edit = Unmap { space: &space, drops: &drops, at, updated: false };
    let ended =
        catch_unwind(AssertUnwindSafe(|| system.run(&mut handle, &mut Cpu(at), plan, &mut edit).map(|_| ())));
    assert!(ended.is_err(), "{at:?} panics");
    drops.get()
}

#[test]
fn a_payload_is_leaked_and_not_dropped() {
    assert_eq!(dropped::<1>(Algorithm::PteFirst, At::Flush), 0);
    assert_eq!(dropped::<2>(Algorithm::PteFirst, At::Flush), 0);
    for at in [At::IsWalked, At::Space] {
        assert_eq!(dropped::<2>(Algorithm::TlbFirst, at), 0, "{at:?}");
    }
}

type Three = System<(), Synchronous<()>, 3, 4>;

/// CPU 0, which waits in 2-phase for CPU 1, and CPU 1, which panics while it is stopped.
struct Waits<'s, 'c> {
    system: &'s Three,
    one: &'c RefCell<Option<CpuHandle<'s, 4>>>,
    /// The answer to CPU 1's second `attach`.
    attached: &'c Cell<Option<Misuse>>,
    is_one: bool,
}

impl LocalCpu<()> for Waits<'_, '_> {
    fn flush(&mut self, _space: Option<Asid>, _what: &Flush, _drain: bool) {}
    fn interrupt(&mut self, _cpus: CpuSet) {}
    fn complete(&mut self, _op: OpId, (): (), _outcome: Outcome) {
        unreachable!("CPU 1 has not flushed");
    }
    fn pause(&mut self) {
        assert!(!self.is_one, "planned: CPU 1 panics");
        let Some(mut one) = self.one.take() else { panic!("planned: CPU 0 waits for ever") };
        let mut cpu = Waits { is_one: true, ..*self };
        assert!(catch_unwind(AssertUnwindSafe(|| self.system.poll(&mut one, &mut cpu))).is_err());
        drop(one);
        self.attached.set(self.system.attach(1).err());
    }
}

#[test]
fn a_cpu_that_panicked_while_stopped_stays_attached() {
    let (system, space) = (Three::new(Hardware::I386), SharedSpace::new());
    let plan = Plan::new(Algorithm::TwoPhase, &Hardware::I386, LowRights::NeverWriteBack).unwrap();
    let (one, attached) = (RefCell::new(None), Cell::new(None));
    let mut cpu = Waits { system: &system, one: &one, attached: &attached, is_one: false };
    let mut handle = system.attach(1).unwrap();
    system.switch(&mut handle, &mut cpu, SwitchKind::In, &space, Asid::default()).unwrap();
    one.replace(Some(handle));
    let mut zero = system.attach(0).unwrap();
    let ended = catch_unwind(AssertUnwindSafe(|| {
        system.run(&mut zero, &mut cpu, plan, &mut Nothing::new(&space, &PAGE[3]))
    }));
    assert!(ended.is_err(), "CPU 0 waits");
    // A new handle would answer for requests that only the old one knew.
    assert_eq!(attached.get(), Some(Misuse::Attached { cpu: 1 }));
    // A CPU that replies to no request and is not in 2-phase is detached.
    drop(zero);
    assert!(system.attach(0).is_ok());
}
