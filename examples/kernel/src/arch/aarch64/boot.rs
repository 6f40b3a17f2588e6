//! From the boot loader to the kernel: by Linux's boot protocol for arm64, a flat image with a header, entered in EL1 without
//! translation and with the device tree's address in x0.

use core::arch::{asm, global_asm};
use core::slice;

use tlbkit::arch::AArch64Upper;

use super::{KERNEL, MEMORY, gic, physical, psci, timer, tlb, trap};
use crate::arch::Boot;

/// How much memory there is at most.
const MEMORY_LEN: usize = 1 << 30;

/// Attributes of an entry: a block, or a link; memory, or a device (AttrIndx, SH and AF); never executed
/// by EL0, or by no level.
const LINK: usize = 0b11;
const BLOCK: usize = 0b01;
const NORMAL: usize = 3 << 8 | 1 << 10 | 1 << 54;
const DEVICE: usize = 2 << 2 | 1 << 10 | 1 << 53 | 1 << 54;

/// 48 bits in each half (T0SZ, T1SZ) with a granule of 4 KiB (TG1), walks that are cached and inner shareable, physical
/// addresses of 32 bits, and ASIDs of 16.
const TCR: usize = (super::Machine::TSZ | AArch64Upper::TSZ << 16) as usize
    | 1 << 8
    | 1 << 10
    | 3 << 12
    | 1 << 24
    | 1 << 26
    | 3 << 28
    | 2 << 30
    | 1 << 36;
/// Hardware sets access flags and dirty states: TCR_EL1.HA and HD.
const MARKS: usize = 3 << 39;
const MAIR: u64 = super::Machine::MAIR_EL1;
/// SCTLR_EL1: M, C, I and SPAN; A, WXN, and UMA, by which EL0 could mask interrupts.
const ON: usize = 1 | 1 << 2 | 1 << 12 | 1 << 23;
const OFF: usize = 1 << 1 | 1 << 9 | 1 << 19;
/// CPACR_EL1.FPEN: compiled code, and programs, may use vector registers.
const VECTORS: usize = 3 << 20;

global_asm!(
    r#"
    .section .text.boot, "ax"
    .globl _start
_start:
    b       1f
    .word   0
    .quad   0x200000            // behind a multiple of 2 MiB
    .quad   _len
    .quad   1 << 1              // little endian, pages of 4 KiB
    .quad   0, 0, 0
    .ascii  "ARM\x64"
    .word   0
1:  mov     x19, x0
    mov     x20, xzr
    adr     x21, 2f
    b       translate
2:  adrp    x0, _bss
    add     x0, x0, :lo12:_bss
    adrp    x1, _bss_end
    add     x1, x1, :lo12:_bss_end
3:  cmp     x0, x1
    b.hs    4f
    stp     xzr, xzr, [x0], #16
    b       3b
4:  mov     x0, x19
    b       {first}

    // As above, on every other CPU; x0 is its number.
{entry}:
    mov     x20, x0
    adr     x21, 5f
    b       translate
5:  b       {other}

    // Goes to where the kernel sees x21, on the stack of CPU x20. The kernel's table serves both halves here: the lower one
    // has this code where it is.
translate:
    msr     daifset, #15
    ldr     x0, ={vectors}
    msr     cpacr_el1, x0
    ldr     x0, ={mair}
    msr     mair_el1, x0
    ldr     x0, ={tcr}
    msr     tcr_el1, x0
    adrp    x0, root
    msr     ttbr0_el1, x0
    msr     ttbr1_el1, x0
    dsb     ish
    isb
    tlbi    vmalle1
    dsb     nsh
    isb
    mrs     x0, sctlr_el1
    ldr     x1, ={on}
    orr     x0, x0, x1
    ldr     x1, ={off}
    bic     x0, x0, x1
    msr     sctlr_el1, x0
    isb
    ldr     x0, ={base}
    add     x21, x21, x0
    msr     tpidr_el1, x20
    msr     spsel, #1
    ldr     x0, =_stacks + 0x10000
    add     x0, x0, x20, lsl #16
    mov     sp, x0
    br      x21
    .ltorg

    // The kernel's table: physical addresses from 0 to 2 GiB at the beginning of both halves. The first gigabyte has devices.
    .section .data
    .balign 4096
root:
    .quad   2f - {base} + {link}
    .zero   4088
2:  .quad   {device} + {block}
    .quad   {memory} + {normal} + {block}
    .zero   4080
    "#,
    first = sym first,
    other = sym other,
    entry = sym entry,
    vectors = const VECTORS,
    mair = const MAIR,
    tcr = const TCR,
    on = const ON,
    off = const OFF,
    base = const KERNEL,
    link = const LINK,
    device = const DEVICE,
    block = const BLOCK,
    memory = const MEMORY,
    normal = const NORMAL,
);

unsafe extern "C" {
    safe fn entry();
}

extern "C" fn first(tree: usize) -> ! {
    prepare();
    crate::first(Boot::of_tree(tree, |at, len| {
        assert!(
            at >= MEMORY && len <= MEMORY_LEN && at - MEMORY <= MEMORY_LEN - len,
            "{at:#x} is outside of memory"
        );
        // SAFETY: it is memory that the boot loader has filled, outside of the kernel, and nothing writes it.
        unsafe { slice::from_raw_parts((KERNEL + at) as *const u8, len) }
    }))
}

extern "C" fn other() -> ! {
    prepare();
    crate::other()
}

/// Leaves the lower half, and lets the interrupts through that EL0 takes.
fn prepare() {
    trap::prepare();
    let features: usize;
    // SAFETY: the register says what the processor has.
    unsafe { asm!("mrs {}, id_aa64mmfr0_el1", out(reg) features, options(nomem, nostack, preserves_flags)) };
    assert!(features >> 4 & 15 == 2, "this CPU's ASIDs have 8 bits");
    let control = if notes() { TCR | MARKS } else { TCR };
    // SAFETY: the code and the stack are in the upper half, and what was translated otherwise is forgotten.
    unsafe {
        asm!(
            "msr tcr_el1, {control}", "msr ttbr0_el1, {empty}", "isb", "tlbi vmalle1", "dsb ish", "isb",
            control = in(reg) control, empty = in(reg) tlb::empty(), options(nostack)
        );
    }
    gic::prepare();
    timer::prepare();
}

/// Tells whether hardware sets access flags and dirty states: FEAT_HAFDBS. Without it a page fault sets them.
pub(crate) fn notes() -> bool {
    let features: usize;
    // SAFETY: the register says what the processor has.
    unsafe { asm!("mrs {}, id_aa64mmfr1_el1", out(reg) features, options(nomem, nostack, preserves_flags)) };
    features & 15 >= 2
}

/// Starts every other CPU below `limit`, and returns how many run then.
pub(crate) fn start_others(limit: usize) -> usize {
    let own = super::cpu();
    let at = physical(entry as *const () as usize);
    1 + (0..limit).filter(|&cpu| cpu != own && psci::start(cpu, at)).count()
}

/// Makes what has been stored executable on this CPU: QEMU's caches are coherent.
pub(crate) fn fetch_anew() {
    // SAFETY: forgetting what was fetched is always allowed.
    unsafe { asm!("dsb ish", "ic iallu", "dsb ish", "isb", options(nostack, preserves_flags)) };
}
