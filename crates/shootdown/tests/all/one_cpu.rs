//! A system of one CPU: the CPU's own late status write must not outlive a change.

use std::cell::{Cell, RefCell};

use tlbkit_addr::{Asid, CpuSet, Flush};
use tlbkit_shootdown::{
    Algorithm, Edit, Hardware, LocalCpu, LowRights, OpId, Outcome, Plan, SharedSpace, Status, StatusBit,
    SwitchKind, Synchronous, System,
};

use crate::support::PAGE;

const VALID: u32 = 1;
const DIRTY: u32 = 2;

/// A page's entry, the word that the MMU will write into it, and what has been done.
struct Machine {
    entry: Cell<u32>,
    late: Cell<Option<u32>>,
    space: SharedSpace,
    done: RefCell<Vec<&'static str>>,
}

impl Machine {
    fn drain(&self, how: &'static str) {
        self.done.borrow_mut().push(how);
        if let Some(word) = self.late.take() {
            self.entry.set(word);
        }
    }
}

struct Unmap<'m>(&'m Machine);

impl Edit for Unmap<'_> {
    type Payload = ();

    fn exclude(&mut self) -> bool {
        true
    }
    fn release(&mut self) {}
    fn set_tentative(&mut self) {
        self.0.done.borrow_mut().push("tentative");
    }
    fn set_changing(&mut self, on: bool) {
        self.0.done.borrow_mut().push(if on { "changing" } else { "changed" });
    }
    fn update(&mut self) {
        self.0.done.borrow_mut().push("update");
        self.0.entry.set(0);
    }
    fn update_again(&mut self, _payload: &mut ()) {
        self.update();
    }
    fn check(&mut self) -> bool {
        self.0.entry.get() & VALID == 0
    }
    fn space(&self) -> &SharedSpace {
        &self.0.space
    }
    fn asid(&self) -> Asid {
        Asid::default()
    }
    fn flush(&self) -> &Flush {
        &PAGE[3]
    }
}

/// The CPU, which receives payloads only while the page is not mapped.
struct Cpu<'m>(&'m Machine);

impl LocalCpu<()> for Cpu<'_> {
    fn flush(&mut self, _space: Option<Asid>, _what: &Flush, _drain: bool) {
        self.0.drain("flush");
    }
    fn drain(&mut self) {
        self.0.drain("drain");
    }
    fn interrupt(&mut self, _cpus: CpuSet) {}
    fn complete(&mut self, _op: OpId, (): (), _outcome: Outcome) {
        assert_eq!(self.0.entry.get() & VALID, 0, "the page is free and mapped: {:?}", self.0.done.borrow());
    }
}

#[test]
fn a_late_write_of_the_only_cpu_comes_before_the_end() {
    let from_tlb = Hardware { dirty: StatusBit::by(Status::FromTlb), ..Hardware::RP3 };
    let cache = Hardware { lines_need_entry: true, ..Hardware::RP3 };
    let mut tried = Vec::new();
    for hardware in [from_tlb, cache, Hardware::I386, Hardware::RP3] {
        for algorithm in Algorithm::ALL {
            let Ok(plan) = Plan::new(algorithm, &hardware, LowRights::NeverWriteBack) else { continue };
            let machine = Machine {
                entry: Cell::new(VALID),
                late: Cell::new(None),
                space: SharedSpace::new(),
                done: RefCell::default(),
            };
            let system = System::<(), Synchronous<()>, 1, 2>::new(hardware);
            let (mut handle, mut cpu) = (system.attach(0).unwrap(), Cpu(&machine));
            let (space, asid) = (&machine.space, Asid::default());
            system.switch(&mut handle, &mut cpu, SwitchKind::In, space, asid).unwrap();
            // Of the machines here these two write the entry late.
            let is_late = hardware == from_tlb || hardware == cache;
            machine.late.set(is_late.then_some(VALID | DIRTY));
            machine.done.borrow_mut().clear();
            let (_, outcome) = system.run(&mut handle, &mut cpu, plan, &mut Unmap(&machine)).unwrap();
            assert_eq!((outcome, machine.entry.get()), (Outcome::Done, 0), "{algorithm}");
            if algorithm == Algorithm::TlbFirst {
                assert_eq!(*machine.done.borrow(), ["tentative", "changing", "flush", "update", "changed"]);
            }
            tried.push((is_late, algorithm));
        }
    }
    for algorithm in [Algorithm::TlbFirst, Algorithm::Optimistic, Algorithm::TwoPhase] {
        assert!(tried.contains(&(true, algorithm)), "{algorithm} meets a late write");
    }
}
