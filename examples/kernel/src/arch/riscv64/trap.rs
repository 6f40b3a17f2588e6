//! To user mode and back.

use core::arch::{asm, global_asm};

use tlbkit::{Access, VirtAddr};

use crate::trap::{Convention, Frame, Trap};

/// What a frame has behind the registers x1 to x31 (at 8 times the number), the address where the thread goes on (256) and the
/// kernel's stack (264): why it stopped, and the address of a fault.
#[repr(C)]
#[derive(Clone, Debug)]
pub(crate) struct More {
    /// At 272.
    cause: usize,
    value: usize,
}

impl More {
    pub(crate) const NEW: Self = Self { cause: 0, value: 0 };
}

/// sp, a0 to a3, a7.
pub(crate) const CONVENTION: Convention =
    Convention { stack: 2, arguments: 10, number: 17, answer: 10, room: 0, call: 4 };

global_asm!(
    r#"
    .section .text
    .balign 4
{enter}:
    addi    sp, sp, -128
    sd      ra, 0(sp)
    sd      gp, 8(sp)
    sd      tp, 16(sp)
    .irp    n, 0,1,2,3,4,5,6,7,8,9,10,11
    sd      s\n, 8*\n+24(sp)
    .endr
    sd      sp, 264(a0)
    csrw    sscratch, a0
    ld      t0, 256(a0)
    csrw    sepc, t0
    la      t0, 2f
    csrw    stvec, t0
    .irp    n, 1,2,3,4,5,6,7,8,9,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    ld      x\n, 8*\n(a0)
    .endr
    ld      a0, 80(a0)
    sret

    .balign 4
2:  csrrw   a0, sscratch, a0
    .irp    n, 1,2,3,4,5,6,7,8,9,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    sd      x\n, 8*\n(a0)
    .endr
    csrr    t0, sscratch
    sd      t0, 80(a0)
    csrr    t0, sepc
    sd      t0, 256(a0)
    csrr    t0, scause
    sd      t0, 272(a0)
    csrr    t0, stval
    sd      t0, 280(a0)
    la      t0, 3f
    csrw    stvec, t0
    ld      sp, 264(a0)
    ld      ra, 0(sp)
    ld      gp, 8(sp)
    ld      tp, 16(sp)
    .irp    n, 0,1,2,3,4,5,6,7,8,9,10,11
    ld      s\n, 8*\n+24(sp)
    .endr
    addi    sp, sp, 128
    ret

    # A trap of the kernel's own.
    .balign 4
3:  csrr    a0, scause
    csrr    a1, sepc
    csrr    a2, stval
    call    {unexpected}
{prepare}:
    la      t0, 3b
    csrw    stvec, t0
    ret
    "#,
    enter = sym enter,
    prepare = sym prepare_vector,
    unexpected = sym unexpected,
);

unsafe extern "C" {
    fn enter(frame: *mut Frame);
    safe fn prepare_vector();
}

extern "C" fn unexpected(cause: usize, at: usize, value: usize) -> ! {
    panic!("trap {cause} at {at:#x}, value {value:#x}")
}

pub(super) fn prepare() {
    prepare_vector();
}

/// Lets a thread run in user mode until it traps.
pub(crate) fn run(frame: &mut Frame) -> Trap {
    /// Where `sret` goes: user mode.
    const SPP: usize = 1 << 8;
    // SAFETY: user mode reaches the pages of the address space that this CPU runs and that are the user's; the registers
    // that a function call keeps are kept, and the trap comes back with interrupts masked.
    unsafe {
        asm!("csrc sstatus, {}", in(reg) SPP, options(nostack));
        enter(frame);
    }
    let More { cause, value } = frame.more;
    let sstatus: usize;
    // SAFETY: it reads a register, which has been as it is since the trap.
    unsafe { asm!("csrr {}, sstatus", out(reg) sstatus, options(nomem, nostack, preserves_flags)) };
    if let Some(access) = Access::from_riscv(cause, sstatus) {
        return Trap::Fault(VirtAddr::new(value), access);
    }
    match cause as isize {
        8 => Trap::Call,
        cause if cause == isize::MIN + 1 => Trap::Interrupt,
        cause if cause == isize::MIN + 5 => Trap::Timer,
        _ => Trap::Illegal,
    }
}
