//! AArch64: from the boot loader to the kernel in the upper half, by Linux's boot protocol, and its page faults. PAN is off, so EL1 loads
//! and stores in user pages.

use core::arch::{asm, global_asm};
use core::fmt;

use tlbkit::arch::{AArch64, AArch64Upper};
use tlbkit::{Access, VirtAddr};

#[path = "../../src/arch/aarch64/psci.rs"]
#[allow(dead_code, reason = "the kernel of several CPUs uses the rest")]
mod psci;

pub(crate) use psci::stop;

/// The machine's name.
pub(crate) const NAME: &str = "aarch64";

/// Where the kernel sees physical address 0.
const OFFSET: usize = 0xffff_0000_0000_0000;

/// Attributes of an entry: a block of memory, or of a device (AttrIndx, SH and AF), never executed by EL0, or by no level.
const MEMORY: usize = 0b01 | 3 << 8 | 1 << 10 | 1 << 54;
const DEVICE: usize = 0b01 | 2 << 2 | 1 << 10 | 1 << 53 | 1 << 54;

/// 48 bits in each half with a granule of 4 KiB (TG1), walks that are cached and inner shareable, physical addresses of 32 bits, and
/// ASIDs of 16.
const TCR: u64 =
    AArch64::TSZ | AArch64Upper::TSZ << 16 | 5 << 8 | 3 << 12 | 5 << 24 | 3 << 28 | 2 << 30 | 1 << 36;
/// SCTLR_EL1: M, C, I and SPAN.
const ON: usize = 1 | 1 << 2 | 1 << 12 | 1 << 23;

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
    // The boot's table serves both halves here: the lower one has this code where it is.
1:  msr     daifset, #15
    mov     x0, #3 << 20        // compiled code may use vector registers
    msr     cpacr_el1, x0
    ldr     x0, ={mair}
    msr     mair_el1, x0
    ldr     x0, ={tcr}
    msr     tcr_el1, x0
    adrp    x0, boot_root
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
    msr     sctlr_el1, x0
    isb
    ldr     x0, =high
    br      x0
    .ltorg
high:
    msr     spsel, #1
    ldr     x0, =_stacks + 0x10000
    mov     sp, x0
    ldr     x0, =vectors
    msr     vbar_el1, x0
    isb
    ldr     x0, =_bss
    ldr     x1, =_bss_end
2:  cmp     x0, x1
    b.hs    3f
    stp     xzr, xzr, [x0], #16
    b       2b
3:  b       {run}
    .ltorg

    .section .text
    .balign 2048
vectors:
    .rept   16
    .balign 128
    b       4f
    .endr
    // A page fault of the kernel's own access to a user page. Compiled code may have values in any register.
4:  sub     sp, sp, #768
    .irp    n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30
    str     x\n, [sp, #8*\n]
    .endr
    .irp    n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    str     q\n, [sp, #256 + 16*\n]
    .endr
    mrs     x0, esr_el1
    mrs     x1, far_el1
    bl      {fault}
    mrs     x1, elr_el1
    add     x1, x1, x0
    msr     elr_el1, x1
    .irp    n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    ldr     q\n, [sp, #256 + 16*\n]
    .endr
    .irp    n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30
    ldr     x\n, [sp, #8*\n]
    .endr
    add     sp, sp, #768
    eret

    // The boot's table: the serial line's 2 MiB, and 64 MiB of memory, at the beginning of both halves.
    .section .data
    .balign 4096
boot_root:
    .quad   5f - {offset} + 3
    .zero   4088
5:  .quad   6f - {offset} + 3
    .quad   7f - {offset} + 3
    .zero   4080
6:  .zero   8 * 72
    .quad   0x09000000 + {device}
    .zero   4096 - 8 * 73
7:  .set    block, 0
    .rept   32
    .quad   0x40000000 + block * 0x200000 + {memory}
    .set    block, block + 1
    .endr
    .zero   4096 - 8 * 32
    "#,
    mair = const AArch64::MAIR_EL1,
    tcr = const TCR,
    on = const ON,
    offset = const OFFSET,
    memory = const MEMORY,
    device = const DEVICE,
    fault = sym fault,
    run = sym crate::run,
);

/// Resolves a page fault. Returns how many bytes of instructions are left out.
extern "C" fn fault(syndrome: u64, at: usize) -> usize {
    let Some(access) = Access::from_aarch64(syndrome) else {
        panic!("exception {syndrome:#x}, address {at:#x}")
    };
    if crate::fault(VirtAddr::new(at), access) { 0 } else { 4 }
}

/// Loads a word of the process's; anything if it must not.
pub(crate) fn load(at: usize) -> u64 {
    let word: u64;
    // SAFETY: a load of a user page, or a fault that goes on behind it.
    unsafe { asm!("ldr {}, [{}]", out(reg) word, in(reg) at) };
    word
}

/// Stores a word of the process's, unless it must not.
pub(crate) fn store(at: usize, word: u64) {
    // SAFETY: a store to a user page, which holds no Rust object, or a fault that goes on behind it.
    unsafe { asm!("str {}, [{}]", in(reg) word, in(reg) at) };
}

/// A register of the serial line, a PL011: data, and flags.
fn register(at: usize) -> *mut u32 {
    core::ptr::with_exposed_provenance_mut(OFFSET + 0x0900_0000 + at)
}

/// The serial line.
pub(crate) struct Console;

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        const FULL: u32 = 1 << 5;
        for byte in text.bytes() {
            // SAFETY: both are registers of the UART: to read the one changes nothing, and the other takes a byte.
            unsafe {
                while register(0x18).read_volatile() & FULL != 0 {}
                register(0).write_volatile(byte.into());
            }
        }
        Ok(())
    }
}
