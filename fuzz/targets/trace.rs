//! The readers of traces: bytes as they come, and lines that begin as lackey's do.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Input {
    Lines(Vec<(u8, Vec<u8>)>),
    Bytes(Vec<u8>),
}

fuzz_target!(|input: Input| match input {
    Input::Lines(lines) => tlblab::fuzzing::lackey(&lines),
    Input::Bytes(bytes) => tlblab::fuzzing::trace(&bytes),
});
