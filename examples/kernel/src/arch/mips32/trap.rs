//! To user mode and back, and sleep.
//!
//! The kernel takes no interrupt but where it sleeps: an exception in kernel mode is that interrupt, which ends the sleep
//! and stays pending, or the kernel's error.

use core::arch::global_asm;

use tlbkit::{Access, VirtAddr};

use super::IPI;
use super::timer::TIMER;
use crate::trap::{Convention, Frame, Trap};

/// What a frame has behind the registers $1 to $31 (at 4 times the number; k0 and k1 are not used), the address where the
/// thread goes on (128) and the kernel's stack (132).
#[repr(C)]
#[derive(Clone, Debug)]
pub(crate) struct More {
    /// At 136.
    hi: usize,
    lo: usize,
    /// At 144.
    status: u32,
    /// Why it stopped, and the address of a fault.
    cause: u32,
    bad_vaddr: usize,
}

/// Status: interrupts on, exception level (which `eret` ends), user mode.
const IE: u32 = 1;
const EXL: u32 = 1 << 1;
const UM: u32 = 1 << 4;

impl More {
    pub(crate) const NEW: Self =
        Self { hi: 0, lo: 0, status: UM | EXL | IE | IPI | TIMER, cause: 0, bad_vaddr: 0 };
}

/// $29, $4 to $7, $2. Every caller leaves room for four arguments.
pub(crate) const CONVENTION: Convention =
    Convention { stack: 29, arguments: 4, number: 2, answer: 2, room: 16, call: 4 };

global_asm!(
    r#"
    .set push
    .set noreorder
    .set noat
    .set mips32r2
    # All registers but $0, k0, k1 and the stack pointer, to and from the frame at \at.
    .macro registers op at
    .irp    n, 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,28,30,31
    \op     $\n, 4*\n(\at)
    .endr
    .endm

    .section .text
{enter}:
    addiu   $sp, $sp, -48
    .irp    n, 0,1,2,3,4,5,6,7
    sw      $s\n, 4*\n($sp)
    .endr
    sw      $30, 32($sp)
    sw      $31, 36($sp)
    sw      $28, 40($sp)
    sw      $sp, 132($a0)
    # The frame is in KScratch1 while the thread runs.
    mtc0    $a0, $31, 2
    move    $k1, $a0
    lw      $t0, 136($k1)
    mthi    $t0
    lw      $t0, 140($k1)
    mtlo    $t0
    # From here on no exception may come: EXL is set.
    lw      $t0, 144($k1)
    mtc0    $t0, $12
    ehb
    lw      $t0, 128($k1)
    mtc0    $t0, $14
    ehb
    registers lw $k1
    lw      $29, 116($k1)
    eret

{general}:
    mfc0    $k0, $12
    andi    $k0, $k0, 0x10
    beqz    $k0, 1f
    nop
    mfc0    $k0, $31, 2
    registers sw $k0
    sw      $29, 116($k0)
    mfhi    $t0
    sw      $t0, 136($k0)
    mflo    $t0
    sw      $t0, 140($k0)
    mfc0    $t0, $14
    sw      $t0, 128($k0)
    mfc0    $t0, $13
    sw      $t0, 148($k0)
    mfc0    $t0, $8
    sw      $t0, 152($k0)
    lw      $sp, 132($k0)
    # Kernel mode, no exception level, interrupts masked.
    mfc0    $t0, $12
    ins     $t0, $zero, 0, 5
    mtc0    $t0, $12
    ehb
    .irp    n, 0,1,2,3,4,5,6,7
    lw      $s\n, 4*\n($sp)
    .endr
    lw      $30, 32($sp)
    lw      $31, 36($sp)
    lw      $28, 40($sp)
    jr      $ra
    addiu   $sp, $sp, 48

    # In the kernel: an interrupt where it sleeps, or an error.
1:  mfc0    $k0, $13
    andi    $k0, $k0, 0x7c
    bnez    $k0, 2f
    nop
    lui     $k0, %hi({awake})
    addiu   $k0, $k0, %lo({awake})
    mtc0    $k0, $14
    mfc0    $k0, $12
    ins     $k0, $zero, 0, 1
    mtc0    $k0, $12
    ehb
    eret
2:  mfc0    $a0, $13
    mfc0    $a1, $14
    mfc0    $a2, $8
    j       {unexpected}
    addiu   $sp, $sp, -16

    # An interrupt from `ei` on ends the sleep, before `wait` too.
{sleep}:
    ei
    ehb
    wait
    di
    ehb
{awake}:
    jr      $ra
    nop
    .set pop
    "#,
    enter = sym enter,
    general = sym general_entry,
    sleep = sym sleep,
    awake = sym awake,
    unexpected = sym unexpected,
);

unsafe extern "C" {
    fn enter(frame: *mut Frame);
    /// What the general vector goes to.
    pub(super) fn general_entry();
    /// Waits for an interrupt, which stays pending.
    pub(super) safe fn sleep();
    fn awake();
}

extern "C" fn unexpected(cause: usize, at: usize, address: usize) -> ! {
    panic!("cause {cause:#x} at {at:#x}, address {address:#x}")
}

/// Lets a thread run in user mode until it traps.
pub(crate) fn run(frame: &mut Frame) -> Trap {
    // SAFETY: user mode reaches the pages of the address space that this CPU runs; the registers that a function call keeps
    // are kept, and the trap comes back with interrupts masked.
    unsafe { enter(frame) };
    // The mode is that in which the thread was begun.
    if let Some(access) = Access::from_mips32(frame.more.cause, frame.more.status) {
        return Trap::Fault(VirtAddr::new(frame.more.bad_vaddr), access);
    }
    match frame.more.cause >> 2 & 31 {
        0 if frame.more.cause & IPI != 0 => Trap::Interrupt,
        0 if frame.more.cause & TIMER != 0 => Trap::Timer,
        // It has been taken back meanwhile.
        0 => Trap::Interrupt,
        8 => Trap::Call,
        _ => Trap::Illegal,
    }
}
