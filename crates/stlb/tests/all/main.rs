//! The tests of this crate, in one program: what they share is compiled once.
#![cfg(not(tlbkit_loom))]

mod exact;
mod forms;
mod machine;
mod never_stale;
#[cfg(target_has_atomic = "64")]
mod ops;
mod shared_stress;
