//! QEMU's Malta board with MIPS32 CPUs, for the kernels of `examples/kernel` and `examples/mips32`; and what the latter shares
//! with `examples/mips3`, whose CPU has registers of 64 bits.
//!
//! ```text
//!   boot       the first instructions of a CPU: `start!`
//!   trap       to user mode and back, sleep, and the kernel's own use of user addresses
//!   cp0, tlb   coprocessor 0 and the TLB
//!   vectors    the exception vectors
//!   cores, gic the other cores, and interrupts between them
//!   uart, semihosting, firmware   the serial line, the way out, the command line
//!   check, stress                 random changes and accesses of any kind of table, against a model
//! ```
#![no_std]
#![feature(asm_experimental_arch)]

#[cfg(target_arch = "mips")]
mod boot;
pub mod check;
#[cfg(target_arch = "mips")]
pub mod cores;
#[cfg(target_arch = "mips")]
pub mod cp0;
pub mod firmware;
#[cfg(target_arch = "mips")]
pub mod gic;
#[cfg(target_arch = "mips")]
pub mod semihosting;
pub mod stress;
#[cfg(target_arch = "mips")]
pub mod tlb;
#[cfg(target_arch = "mips")]
pub mod trap;
pub mod uart;
#[cfg(target_arch = "mips")]
pub mod vectors;

/// Where physical memory is seen without translation.
pub const KSEG0: usize = 0x8000_0000_u32 as i32 as usize;

/// The most CPUs.
pub const CPUS: usize = 8;

/// Whether the CPU is of release 1.
pub const RELEASE_1: bool = cfg!(feature = "release1");
