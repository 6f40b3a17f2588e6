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
    load = sym probe_load,
    store = sym probe_store,
    refused = sym refused,
);

#[repr(C)]
struct Loaded {
    refused: usize,
    word: usize,
}

unsafe extern "C" {
    fn probe_load(at: usize) -> Loaded;
    fn probe_store(at: usize, word: usize) -> usize;
    pub(crate) fn refused();
}

/// Loads a word of the window; `None` if that is not allowed.
pub(crate) fn load(at: usize) -> Option<usize> {
    // SAFETY: a load of a word that is there, or a fault, which `catch` has seen to.
    let loaded = unsafe { probe_load(at) };
    (loaded.refused == 0).then_some(loaded.word)
}

/// Stores a word in the window; tells whether that is allowed.
pub(crate) fn store(at: usize, word: usize) -> bool {
    // SAFETY: the window holds no Rust object but stacks, which no program stores to.
    unsafe { probe_store(at, word) == 0 }
}
