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
pub(crate) use aarch64::call;
#[cfg(target_arch = "mips")]
pub(crate) use mips32::call;
#[cfg(target_arch = "riscv64")]
pub(crate) use riscv64::call;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::call;

/// What a load answers: whether it was refused in the lower half, and the word in the upper one.
#[cfg(target_arch = "mips")]
type Loaded = u64;
/// What a load answers, in two registers.
#[cfg(not(target_arch = "mips"))]
#[repr(C)]
struct Loaded {
    refused: usize,
    word: usize,
}

// Each machine's file has their instructions.
unsafe extern "C" {
    fn probe_load(at: usize) -> Loaded;
    /// Returns whether it was refused.
    fn probe_store(at: usize, word: usize) -> usize;
    pub(crate) fn refused();
}

/// Loads a word of the window; `None` if that is not allowed.
pub(crate) fn load(at: usize) -> Option<usize> {
    // SAFETY: a load of a word that is there, or a fault, which `catch` has seen to.
    let loaded = unsafe { probe_load(at) };
    #[cfg(target_arch = "mips")]
    let (refused, word) = (loaded as u32 as usize, (loaded >> 32) as usize);
    #[cfg(not(target_arch = "mips"))]
    let Loaded { refused, word } = loaded;
    (refused == 0).then_some(word)
}

/// Stores a word in the window; tells whether that is allowed.
pub(crate) fn store(at: usize, word: usize) -> bool {
    // SAFETY: the window holds no Rust object but stacks, which no program stores to.
    unsafe { probe_store(at, word) == 0 }
}
