//! AArch64.

use core::arch::{asm, global_asm};

/// Asks the kernel for something.
pub(crate) fn call(number: usize, [a, b, c]: [usize; 3]) -> usize {
    let answer;
    // SAFETY: the kernel keeps every register but x0. What it does to memory is the caller's affair: pages that programs map
    // and unmap hold no Rust object.
    unsafe {
        asm!("svc #0", inout("x0") a => answer, in("x1") b, in("x2") c, in("x8") number, options(nostack));
    }
    answer
}

global_asm!(
    r#"
    .section .text.start, "ax"
    .globl _start
_start:
    b       {main}

    .section .text
{load}:
    ldr     x1, [x0]
    mov     x0, #0
    ret
{store}:
    str     x1, [x0]
    mov     x0, #0
    ret
    // Where the kernel lets a thread go on whose access is not allowed.
{refused}:
    mov     x0, #1
    ret
    "#,
    main = sym crate::main,
    load = sym super::probe_load,
    store = sym super::probe_store,
    refused = sym super::refused,
);
