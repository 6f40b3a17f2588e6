//! From the firmware to the kernel, on each CPU, and what the boot loader hands over.
//!
//! QEMU starts CPU 0 with the firmware's registers: `a0` arguments at the addresses in the array `a1`. The others come when
//! the power controller lets them run. `_start` is a page boundary because a core's reset address must be one.

use core::arch::global_asm;
use core::slice;

use super::timer::{self, TIMER};
use super::{IPI, cores, cp0, firmware, gic, refill};
use crate::arch::Boot;

global_asm!(
    r#"
    .set push
    .set noreorder
    .set mips32r2
    .section .text.boot, "ax", @progbits
    .balign 4096
    .globl _start
_start:
    # Kernel mode, interrupts masked, vectors in kseg0.
    mtc0    $zero, $12
    ehb
    # Which CPU is this? EBase.CPUNum.
    mfc0    $t0, $15, 1
    andi    $t0, $t0, 0x3ff
    lui     $sp, %hi(_stacks)
    addiu   $sp, $sp, %lo(_stacks)
    addiu   $t1, $t0, 1
    sll     $t1, $t1, 17
    addu    $sp, $sp, $t1
    # Room for four arguments, as every caller leaves.
    addiu   $sp, $sp, -16
    bnez    $t0, 3f
    nop
    lui     $t1, %hi(_bss)
    addiu   $t1, $t1, %lo(_bss)
    lui     $t2, %hi(_bss_end)
    addiu   $t2, $t2, %lo(_bss_end)
1:  beq     $t1, $t2, 2f
    nop
    sw      $zero, 0($t1)
    b       1b
    addiu   $t1, $t1, 4
2:  j       {first}
    nop
3:  j       {other}
    nop
    .set pop
    "#,
    first = sym first,
    other = sym other,
);

extern "C" fn first(count: usize, arguments: *const u32) -> ! {
    // SAFETY: the firmware's registers, as they came.
    let words = unsafe { firmware::command_line(count, arguments) };
    let found = |name: &str| {
        words.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default()
    };
    // The address is in kseg0, and may be extended to 64 bits.
    let start = found("rd_start").trim_start_matches("0x");
    let start = usize::from_str_radix(&start[start.len().saturating_sub(8)..], 16).unwrap_or(0);
    let len = found("rd_size").parse().unwrap_or(0);
    assert!(start >> 29 == 0b100 && len > 0, "there are no programs: QEMU takes them as -initrd");
    if super::SEVERAL {
        gic::route(gic::find());
    }
    prepare();
    // SAFETY: it is memory that the boot loader has filled, behind the kernel, and nothing writes it.
    let programs = unsafe { slice::from_raw_parts(core::ptr::with_exposed_provenance(start), len) };
    crate::first(Boot { words, programs })
}

extern "C" fn other() -> ! {
    prepare();
    crate::other()
}

/// Empties the TLB and what stands behind it, and lets the interrupts through that user mode takes.
fn prepare() {
    refill::prepare();
    timer::prepare();
    // SAFETY: in kernel mode no interrupt is taken; user mode takes these two.
    unsafe { cp0::status::write(IPI | TIMER) };
}

/// Starts every other CPU below `limit` that the machine has, and returns how many run then.
pub(crate) fn start_others(limit: usize) -> usize {
    if !super::SEVERAL {
        return 1;
    }
    let cpus = gic::find().min(limit);
    cores::start(cpus);
    cpus
}
