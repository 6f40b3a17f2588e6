#![doc = include_str!("lib.md")]
#![no_std]
#![cfg_attr(not(test), warn(unused_crate_dependencies))]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable))]
#![forbid(unsafe_code)]

#[cfg(feature = "check")]
extern crate std;

#[cfg(feature = "check")]
pub mod check;
pub mod event;
mod record;
mod text;

pub use record::Recorder;
pub use text::{Malformed, parse};
