//! The tests of this crate, in one program: what they share is compiled once.

mod assembler;
mod can_fail;
mod common;
mod coprocessor;
mod counts;
mod errors;
mod exceptions;
mod gpt;
mod guest;
mod hashed;
mod hazards;
mod instructions;
mod listing;
mod log;
mod properties;
mod shared;
mod tlb;
mod wide;
