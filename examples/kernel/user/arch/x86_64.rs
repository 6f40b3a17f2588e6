//! x86-64.

use core::arch::{asm, global_asm};

/// Asks the kernel for something.
pub(crate) fn call(number: usize, [a, b, c]: [usize; 3]) -> usize {
    let answer;
    // SAFETY: the kernel keeps every register but rax. What it does to memory is the caller's affair: pages that programs map
    // and unmap hold no Rust object.
    unsafe {
        asm!("int 0x80", inout("rax") number => answer, in("rdi") a, in("rsi") b, in("rdx") c, options(nostack));
    }
    answer
}

global_asm!(
    r#"
    .section .text.start, "ax"
    .globl _start
_start:
    jmp     {main}

    .section .text
{load}:
    mov     rdx, [rdi]
    xor     eax, eax
    ret
{store}:
    mov     [rdi], rsi
    xor     eax, eax
    ret
    # Where the kernel lets a thread go on whose access is not allowed.
{refused}:
    mov     eax, 1
    ret
    "#,
    main = sym crate::main,
    load = sym super::probe_load,
    store = sym super::probe_store,
    refused = sym super::refused,
);
