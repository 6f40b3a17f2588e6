//! The machines, a folder each: all that is done by instructions of one architecture.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "mips")]
mod mips32;
#[cfg(target_arch = "riscv64")]
mod riscv64;
#[cfg(any(target_arch = "aarch64", target_arch = "riscv64"))]
mod tree;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
#[cfg(target_arch = "mips")]
pub(crate) use mips32::*;
#[cfg(target_arch = "riscv64")]
pub(crate) use riscv64::*;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

/// The most CPUs.
pub(crate) const CPUS: usize = if cfg!(feature = "one-cpu") { 1 } else { 8 };

/// What the boot loader hands over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Boot {
    /// The kernel's command line.
    pub(crate) words: &'static str,
    /// The user programs, an ELF file.
    pub(crate) programs: &'static [u8],
}
