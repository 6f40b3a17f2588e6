//! TLB refill handlers for MIPS32, as data.
#![no_std]

pub mod asm;
mod cpu;
mod error;
pub mod features;
pub mod handler;
pub mod interp;
mod log;

pub use cpu::Block;
pub use error::Error;
pub use log::{Evicted, Log, Miss};
