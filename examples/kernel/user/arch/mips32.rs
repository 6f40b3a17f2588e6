//! MIPS32.

use core::arch::{asm, global_asm};

/// Asks the kernel for something.
pub(crate) fn call(number: usize, [a, b, c]: [usize; 3]) -> usize {
    let answer;
    // SAFETY: the kernel keeps every register but v0. What it does to memory is the caller's affair: pages that programs map
    // and unmap hold no Rust object.
    unsafe {
        asm!("syscall", inout("$2") number => answer, in("$4") a, in("$5") b, in("$6") c, options(nostack));
    }
    answer
}

global_asm!(
    r#"
    .set push
    .set noreorder
    .section .text.start, "ax"
    .globl _start
_start:
    j       {main}
    nop

    .section .text
{load}:
    lw      $v1, 0($a0)
    jr      $ra
    move    $v0, $zero
{store}:
    sw      $a1, 0($a0)
    jr      $ra
    move    $v0, $zero
    # Where the kernel lets a thread go on whose access is not allowed.
{refused}:
    jr      $ra
    li      $v0, 1
    .set pop
    "#,
    main = sym crate::main,
    load = sym probe_load,
    store = sym probe_store,
    refused = sym refused,
);

unsafe extern "C" {
    /// Returns whether it was refused, in the lower half, and the word in the upper one.
    fn probe_load(at: usize) -> u64;
    fn probe_store(at: usize, word: usize) -> usize;
    pub(crate) fn refused();
}

/// Loads a word of the window; `None` if that is not allowed.
pub(crate) fn load(at: usize) -> Option<usize> {
    // SAFETY: a load of a word that is there, or a fault, which `catch` has seen to.
    let loaded = unsafe { probe_load(at) };
    (loaded as u32 == 0).then_some((loaded >> 32) as usize)
}

/// Stores a word in the window; tells whether that is allowed.
pub(crate) fn store(at: usize, word: usize) -> bool {
    // SAFETY: the window holds no Rust object but stacks, which no program stores to.
    unsafe { probe_store(at, word) == 0 }
}
