//! The tests of this crate, in one program: what they share is compiled once.
#![cfg(not(tlbkit_loom))]

mod aarch64;
mod adversary;
mod attacked_writers;
mod broadcast;
mod calls;
mod copies;
mod cpus;
mod deferred;
#[macro_use]
mod driven;
mod edges;
mod granules;
mod guide;
#[cfg(target_pointer_width = "64")]
mod host;
mod kernel_pages;
mod kernels_half;
mod marks;
mod mips32;
mod moves;
mod one_cpu;
mod promises;
mod properties;
mod ranges;
mod refused;
mod settings;
mod several_writers;
mod slow;
mod support;
mod swap;
mod take_over;
mod user;
mod waits;
mod witness;
mod x86_64;
