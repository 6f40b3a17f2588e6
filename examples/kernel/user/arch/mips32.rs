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
    load = sym super::probe_load,
    store = sym super::probe_store,
    refused = sym super::refused,
);
