//! A mapper that has never heard of tlbkit, against the model: the `x86_64` crate's, looking before it maps and protects
//! (see its bugs in `crates/conformance/tests/all/foreign.rs`).
#![no_main]

use libfuzzer_sys::fuzz_target;
use tlbkit_conformance::fuzz;

#[path = "../../crates/conformance/tests/all/mappers/x86_64.rs"]
mod x86_64_mapper;

fuzz_target!(|input: &[u8]| fuzz::mapper::<x86_64_mapper::X86<true, true>>(input));
