//! From OpenSBI to the kernel, and what the boot loader hands over.

use core::arch::{asm, global_asm};
use core::slice;

use super::{KERNEL as MEMORY, MAPPED_LEN as MEMORY_LEN, SOFTWARE, TIMER, sbi};
use crate::arch::Boot;

global_asm!(
    r#"
    .section .text.boot, "ax"
    .globl _start
    # a0 is the hart, a1 the device tree.
_start:
    la      t0, _bss
    la      t1, _bss_end
1:  bgeu    t0, t1, 2f
    sd      zero, (t0)
    addi    t0, t0, 8
    j       1b
2:  call    hart_stack
    j       {first}

    # The entry of every other hart, whose number is in a0.
    .balign 4
{entry}:
    call    hart_stack
    j       {other}

hart_stack:
    mv      tp, a0
    la      sp, _stacks
    addi    t0, a0, 1
    slli    t0, t0, 16
    add     sp, sp, t0
    ret
    "#,
    entry = sym entry,
    first = sym first,
    other = sym other,
);

unsafe extern "C" {
    safe fn entry();
}

extern "C" fn first(_hart: usize, tree: usize) -> ! {
    prepare();
    crate::first(Boot::of_tree(tree, |at, len| {
        assert!(
            at >= MEMORY && len <= MEMORY_LEN && at - MEMORY <= MEMORY_LEN - len,
            "{at:#x} is outside of memory"
        );
        // SAFETY: it is memory that OpenSBI and the boot loader have filled, outside of the kernel, and nothing writes it.
        unsafe { slice::from_raw_parts(at as *const u8, len) }
    }))
}

extern "C" fn other(_hart: usize) -> ! {
    prepare();
    crate::other()
}

/// Lets the interrupts through that user mode takes.
fn prepare() {
    super::trap::prepare();
    // SAFETY: supervisor mode takes no interrupt; user mode takes these two.
    unsafe { asm!("csrw sie, {}", in(reg) SOFTWARE | TIMER, options(nostack)) };
}

/// Starts every other hart below `limit`, and returns how many harts run then.
pub(crate) fn start_others(limit: usize) -> usize {
    let own = super::cpu();
    1 + (0..limit).filter(|&hart| hart != own && sbi::start(hart, entry as *const () as usize)).count()
}
