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
