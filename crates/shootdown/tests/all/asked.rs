//! A CPU is asked from the request on until it takes the request, and no other CPU is.

use tlbkit_addr::{Asid, CpuSet, Flush};
use tlbkit_shootdown::{
    Algorithm, Hardware, LocalCpu, LowRights, OpId, Outcome, Plan, SharedSpace, SwitchKind, System,
};

use crate::support::{Nothing, PAGE};

struct Cpu;

impl LocalCpu<()> for Cpu {
    fn flush(&mut self, _space: Option<Asid>, _what: &Flush, _drain: bool) {}
    fn interrupt(&mut self, _cpus: CpuSet) {}
    fn complete(&mut self, _op: OpId, (): (), _outcome: Outcome) {}
}

#[test]
fn a_cpu_is_asked_until_it_polls() {
    let hardware = Hardware::RISCV_SVADU;
    let (space, kernel) = (SharedSpace::new(), System::<(), Nothing<'_>, 3, 2>::new(hardware));
    let [mut zero, mut one, mut two] = [0, 1, 2].map(|cpu| kernel.attach(cpu).unwrap());
    for handle in [&mut one, &mut two] {
        kernel.switch(handle, &mut Cpu, SwitchKind::In, &space, Asid::default()).unwrap();
    }
    let asked = || [0, 1, 2, 3, usize::MAX].map(|cpu| kernel.is_asked(cpu));
    assert_eq!(asked(), [false; 5]);
    let plan = Plan::new(Algorithm::PteFirstAsync, &hardware, LowRights::NeverWriteBack).unwrap();
    kernel.start(&mut zero, &mut Cpu, plan, Nothing::new(&space, &PAGE[0])).unwrap();
    assert_eq!(asked(), [false, true, true, false, false]);
    kernel.poll(&mut one, &mut Cpu).unwrap();
    assert_eq!(asked(), [false, false, true, false, false]);
    kernel.poll(&mut two, &mut Cpu).unwrap();
    assert_eq!(asked(), [false; 5]);
}
