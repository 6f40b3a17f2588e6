//! Address spaces against the model of `crates/tlbkit/tests/all/driven`, on the machine, with the CPUs and with the number of ASID
//! bits that the input chooses: results, frames, nodes, marks, copies, and what TLBs hold. Frames run out as the steps say.
#![no_main]

use driven::kernel::Arch;
use driven::{Fault, STEP, run};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use tlbkit::{Guarded, arch};

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
    match input.machine & 4 {
        0 => run::<A, 1>(bits, steps, Fault::default()),
        _ => run::<A, SEVERAL>(bits, steps, Fault::default()),
    }
}

fuzz_target!(|input: Input| match input.machine % 4 {
    0 if input.machine & 16 != 0 => on::<arch::Sv32>(&input),
    0 if input.machine & 8 != 0 => on::<arch::Sv39Svnapot>(&input),
    0 => on::<arch::Sv39>(&input),
    1 => on::<arch::X86_64>(&input),
    2 if input.machine & 16 != 0 => on::<arch::AArch64K64>(&input),
    2 if input.machine & 8 != 0 => on::<arch::AArch64K16>(&input),
    2 => on::<arch::AArch64>(&input),
    _ if input.machine & 8 == 0 => on::<arch::Mips32>(&input),
    _ => on::<arch::Mips32<Guarded>>(&input),
});
