//! The first instructions of a CPU.

/// Defines `_start`, the entry of the image: CPU 0 calls `$first` with the firmware's registers, the number of arguments and the
/// address of an array of their addresses, after it has cleared what the image leaves out. Every other CPU calls `$other` when the
/// power controller lets it run, out of reset. `$first` is an `extern "C" fn(usize, *const u32) -> !`, and `$other` an `extern "C"
/// fn() -> !`; each CPU has a stack of its own, and its TLB is in no particular state.
#[macro_export]
macro_rules! start {
    ($first:path, $other:path) => {
        core::arch::global_asm!(
            r#"
            .set push
            .set noreorder
            .set mips32r2
            .section .text.boot, "ax", @progbits
            # A core's reset address is a page boundary.
            .balign 4096
            .globl _start
        _start:
            # Kernel mode, interrupts masked, vectors in kseg0.
            mtc0    $zero, $12
            ehb
            # Which CPU is this? EBase.CPUNum; a CPU of release 1 is alone.
            .if {release1}
            move    $t0, $zero
            .else
            mfc0    $t0, $15, 1
            andi    $t0, $t0, 0x3ff
            .endif
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
            first = sym $first,
            other = sym $other,
            release1 = const $crate::RELEASE_1 as u32,
        );
    };
}
