//! Address spaces against the model of `crates/tlbkit/tests/all/driven`, on the machine, with the CPUs and with the number of ASID
//! bits that the input chooses: results, frames, nodes, marks, copies, and what TLBs hold. Frames run out as the steps say.
#![no_main]

use driven::kernel::Arch;
use driven::{Fault, STEP, run};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use tlbkit::{Guarded, arch};

#[macro_use]
#[path = "../../crates/tlbkit/tests/all/driven/mod.rs"]
mod driven;

#[derive(Arbitrary, Debug)]
struct Input {
    machine: u8,
    asid_bits: u8,
    steps: Vec<[u8; STEP]>,
}

/// The most steps of an input; more of them find nothing that fewer do not.
const STEPS: usize = 96;
const SEVERAL: usize = 3;

fn on<A: Arch>(input: &Input) {
    let steps = &input.steps[..input.steps.len().min(STEPS)];
    let bits = u32::from(input.asid_bits % 17);
    match input.machine % 2 {
        0 => run::<A, 1>(bits, steps, Fault::default()),
        _ => run::<A, SEVERAL>(bits, steps, Fault::default()),
    }
}

fuzz_target!(|input: Input| {
    let mut machines: Vec<fn(&Input)> = Vec::new();
    macro_rules! add {
        ($name:ident, $machine:ty, $when:ident) => {
            machines.push(on::<$machine>);
        };
    }
    each_machine!(add);
    machines[usize::from(input.machine / 2) % machines.len()](&input);
});
