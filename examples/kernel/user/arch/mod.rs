//! The machines, a file each: where the programs begin, how they call the kernel, and accesses that may be refused.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "mips")]
mod mips32;
#[cfg(target_arch = "riscv64")]
mod riscv64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{call, load, refused, store};
#[cfg(target_arch = "mips")]
pub(crate) use mips32::{call, load, refused, store};
#[cfg(target_arch = "riscv64")]
pub(crate) use riscv64::{call, load, refused, store};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{call, load, refused, store};
