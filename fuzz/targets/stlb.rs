//! Every form of the software TLB cache and the prefetch TLB on one machine each: page tables that change, a hardware
//! TLB, address spaces that die and numbers that are used again. No translation may be given that the table would not.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use machine::{
    Alone, Both, GLOBAL, Machine, OfMany, Op, PAGES, Paired, Prefetching, SPACES, Single, Subject,
};
use tlbkit_stlb::{Assoc, CacheMemory, Direct, EntryLayout, Integrated, Ptlb, Shared, Victim};

#[path = "../../crates/stlb/tests/all/machine/mod.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod machine;

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Step {
    kind: u8,
    space: u8,
    page: u8,
}

impl Step {
    fn op(self) -> Op {
        let (space, page) = (usize::from(self.space) % SPACES, usize::from(self.page) % PAGES);
        let global = page % 8;
        let predicted = if self.page >= 192 { GLOBAL + global } else { page };
        match self.kind % 18 {
            0..=4 => Op::Access(space, page),
            5 => Op::AccessGlobal(space, global),
            6 | 7 => Op::Map(space, page),
            8 => Op::Unmap(space, page),
            9 => Op::Remap(space, page),
            10 => Op::UnmapRange(space, page, 1 + usize::from(self.space >> 2) % 40),
            11 => Op::RemapGlobal(global),
            12 => Op::Promote(space, page),
            13 => Op::Split(space, page),
            14 => Op::Exit(space),
            15 => Op::Record(space, predicted),
            _ => Op::Prefetch(space, predicted),
        }
    }
}

fn run<L: EntryLayout<Data = u64>>(name: &str, steps: &[Step], mut subject: impl Subject<L>) {
    let mut machine = Machine::new(&mut subject, None);
    for (at, step) in steps.iter().enumerate() {
        assert!(machine.step(step.op()).is_ok(), "{name} is stale at step {at}: {:?}", step.op());
    }
}

macro_rules! forms {
    ($steps:ident: $($layout:ty, |$memory:ident| $subject:expr;)+) => {$({
        let mut $memory = CacheMemory::<4096>::new();
        run::<$layout>(stringify!($subject), $steps, $subject);
    })+};
}

/// The most steps of an input.
const STEPS: usize = 400;

fuzz_target!(|steps: Vec<Step>| {
    let steps = &steps[..steps.len().min(STEPS)];
    forms! {
        steps:
        Single, |memory| Alone(Direct::<Single, 16>::new(memory.bytes()).unwrap());
        Single, |memory| Alone(Direct::<Single, 128>::new(memory.bytes()).unwrap());
        Paired, |memory| Alone(Direct::<Paired, 16>::new(memory.bytes()).unwrap());
        Single, |memory| Alone(Assoc::<Single, 8, 2>::new(memory.bytes()).unwrap());
        Paired, |memory| Alone(Assoc::<Paired, 8, 4>::new(memory.bytes()).unwrap());
        Single, |memory| Alone(Victim::<Single, 16, 8>::new(memory.bytes()).unwrap());
        Paired, |memory| Alone(Victim::<Paired, 4, 4>::new(memory.bytes()).unwrap());
        Single, |memory| Prefetching(Ptlb::<Single, 32>::new(memory.bytes()).unwrap());
        Paired, |memory| Prefetching(Ptlb::<Paired, 32>::new(memory.bytes()).unwrap());
        Single, |memory| Both(Integrated::new(Direct::<Single, 32>::new(memory.bytes()).unwrap()));
        Paired, |memory| Both(Integrated::new(Victim::<Paired, 16, 8>::new(memory.bytes()).unwrap()));
        Single, |memory| OfMany::new(Shared::<Single, 16, 1>::new(memory.bytes()).unwrap());
        Paired, |memory| OfMany::new(Shared::<Paired, 8, 4>::new(memory.bytes()).unwrap());
    }
});
