//! `cargo xtask cost`: the kernel of `examples/cost`, in QEMU.

use std::path::Path;

use clap::ValueEnum;
use serde_json::Value;

use super::kernel::{self, Architecture};
use tlbkit_shell::{Shell, tools};

/// A machine of `examples/cost`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Machine {
    /// Four levels, in a CPU of QEMU's machine `virt`. Four CPUs broadcast their flushes.
    Aarch64,
    /// Sv39, in a hart of QEMU's machine `virt`.
    Riscv64,
    /// Four levels, without PCIDs, in a CPU of QEMU's PC.
    #[value(name = "x86_64")]
    X86_64,
}

impl Machine {
    const fn architecture(self) -> Architecture {
        match self {
            Self::Aarch64 => Architecture::Aarch64,
            Self::Riscv64 => Architecture::Riscv64,
            Self::X86_64 => Architecture::X86_64,
        }
    }

    /// Returns the target for which its kernel is built, after seeing to the target's libraries.
    ///
    /// # Errors
    ///
    /// If they cannot be had.
    pub fn target(self, shell: &Shell) -> anyhow::Result<&'static str> {
        let target = self.architecture().board().target;
        tools::parts(shell, &[], &[target])?;
        Ok(target)
    }

    /// Boots a kernel on one CPU, and returns what it says of each call: `name`, `instructions`, and bytes of `stack`.
    ///
    /// # Errors
    ///
    /// If QEMU is missing, or the kernel has not come to its end, or a call failed.
    pub fn measure(self, shell: &Shell, kernel: &Path) -> anyhow::Result<Vec<Value>> {
        kernel::count(shell, self.architecture(), kernel, "call ")
    }
}
