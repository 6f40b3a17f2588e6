//! RISC-V.

use core::arch::{asm, global_asm};

/// Asks the kernel for something.
pub(crate) fn call(number: usize, [a, b, c]: [usize; 3]) -> usize {
    let answer;
    // SAFETY: the kernel keeps every register but a0. What it does to memory is the caller's affair: pages that programs map
    // and unmap hold no Rust object.
    unsafe {
        asm!("ecall", inout("a0") a => answer, in("a1") b, in("a2") c, in("a7") number, options(nostack));
    }
    answer
}

global_asm!(
    r#"
    .section .text.start, "ax"
    .globl _start
_start:
    tail    {main}

    .section .text
{load}:
    ld      a1, (a0)
    li      a0, 0
    ret
{store}:
    sd      a1, (a0)
    li      a0, 0
    ret
    # Where the kernel lets a thread go on whose access is not allowed.
{refused}:
    li      a0, 1
    ret
    "#,
    main = sym crate::main,
    load = sym super::probe_load,
    store = sym super::probe_store,
    refused = sym super::refused,
);
