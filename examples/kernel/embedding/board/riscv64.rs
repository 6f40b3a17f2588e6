//! RISC-V: from OpenSBI to the kernel, and its page faults. SUM is set, so supervisor mode loads and stores in user pages.

use core::arch::{asm, global_asm};

use tlbkit::{Access, VirtAddr};

#[path = "../../src/arch/riscv64/sbi.rs"]
#[allow(dead_code, reason = "the kernel of several harts uses the rest")]
mod sbi;

pub(crate) use sbi::{Console, stop};

/// The machine's name.
pub(crate) const NAME: &str = "riscv64";

global_asm!(
    r#"
    .section .text.boot, "ax"
    .globl _start
_start:
    la      t0, _bss
    la      t1, _bss_end
1:  bgeu    t0, t1, 2f
    sd      zero, (t0)
    addi    t0, t0, 8
    j       1b
2:  la      sp, _stacks + 0x10000
    la      t0, 3f
    csrw    stvec, t0
    li      t0, 1 << 18                     # SUM: user pages are for the kernel, too.
    csrs    sstatus, t0
    tail    {run}

    # A page fault of the kernel's own access to a user page.
    .balign 4
3:  addi    sp, sp, -256
    .irp    n, 1,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    sd      x\n, 8*\n(sp)
    .endr
    csrr    a0, scause
    csrr    a1, stval
    csrr    a2, sstatus
    call    {fault}
    csrr    a1, sepc
    add     a0, a0, a1
    csrw    sepc, a0
    .irp    n, 1,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    ld      x\n, 8*\n(sp)
    .endr
    addi    sp, sp, 256
    sret
    "#,
    fault = sym fault,
    run = sym crate::run,
);

/// Resolves a page fault. Returns how many bytes of instructions are left out.
extern "C" fn fault(cause: usize, at: usize, status: usize) -> usize {
    let Some(access) = Access::from_riscv(cause, status) else { panic!("trap {cause}, value {at:#x}") };
    if crate::fault(VirtAddr::new(at), access) { 0 } else { 4 }
}

/// Loads a word of the process's; anything if it must not.
pub(crate) fn load(at: usize) -> u64 {
    let word: u64;
    // SAFETY: a load of a user page, or a fault that goes on behind it.
    unsafe {
        asm!(".option push", ".option norvc", "ld {}, ({})", ".option pop", out(reg) word, in(reg) at);
    }
    word
}

/// Stores a word of the process's, unless it must not.
pub(crate) fn store(at: usize, word: u64) {
    // SAFETY: a store to a user page, which holds no Rust object, or a fault that goes on behind it.
    unsafe { asm!(".option push", ".option norvc", "sd {}, ({})", ".option pop", in(reg) word, in(reg) at) };
}
