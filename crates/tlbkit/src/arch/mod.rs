//! The machines, one file each. All but MIPS32 have addresses of 64 bits.
//!
//! | machine | walks | ASID | root register |
//! |-|-|-|-|
//! | [`Sv39`], [`Sv48`], [`Sv57`] | RISC-V, three, four or five levels | 16 bits at most | `satp` |
//! | [`Sv39Svnapot`] | Sv39 with pages of 64 KiB | 16 bits at most | `satp` |
//! | [`X86_64`], [`X86_64La57`] | x86-64, four or five levels | PCID, 12 bits | `CR3` |
//! | [`AArch64`] | Armv8-A, 4 KiB granule, four levels | 16 bits at most | `TTBR0_EL1` |
//! | [`AArch64Runs`] | the same with contiguous runs | 16 bits at most | `TTBR0_EL1` |
//! | [`Mips32`], [`Mips32Coherent`] | a refill handler, two levels | 8 bits | the kernel's choice, and `EntryHi` |

#[cfg(target_pointer_width = "64")]
mod aarch64;
mod mips32;
#[cfg(target_pointer_width = "64")]
mod riscv64;
#[cfg(target_pointer_width = "64")]
mod x86_64;

#[cfg(target_pointer_width = "64")]
pub use aarch64::{AArch64, AArch64Runs};
pub use mips32::{Mips32, Mips32Coherent};
#[cfg(target_pointer_width = "64")]
pub use riscv64::{Sv39, Sv39Svnapot, Sv48, Sv57};
#[cfg(target_pointer_width = "64")]
pub use x86_64::{X86_64, X86_64La57};
