//! The shootdown machines under schedules that the input chooses, on up to four CPUs: more than can be searched.
//!
//! An interrupt is taken whenever the schedule says so: late, in any order, or not until the CPU looks for itself.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    algorithm: u8,
    hardware: u8,
    case: u8,
    cpus: u8,
    choices: Vec<u8>,
}

/// The most choices of an input; what is left ends in turn.
const CHOICES: usize = 300;

fuzz_target!(|input: Input| {
    let choices = &input.choices[..input.choices.len().min(CHOICES)];
    tlblab::fuzzing::schedule(input.algorithm, input.hardware, input.case, input.cpus, choices);
});
