#![doc = include_str!("lib.md")]
#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), warn(unused_crate_dependencies))]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable))]

pub mod ipc;
pub mod objects;
pub mod pageout;
pub mod tolerance;
pub mod unmapping;
