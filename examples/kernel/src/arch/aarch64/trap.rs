//! To user mode and back.

use core::arch::global_asm;

use tlbkit::{Access, VirtAddr};

use super::gic;
use crate::trap::{Convention, Frame, Trap};

/// What a frame has behind the registers x0 to x30 and SP_EL0 (at 8 times the number, 31 for SP), the address where the thread
/// goes on (256) and a word that is not used: why it stopped, the address of a fault, the processor's state, the vector
/// registers with theirs, and the thread's own words.
#[repr(C)]
#[derive(Clone, Debug)]
pub(crate) struct More {
    /// At 272. An interrupt has no syndrome.
    is_interrupt: usize,
    syndrome: usize,
    address: usize,
    state: usize,
    /// At 304: FPCR and FPSR.
    modes: [usize; 2],
    /// At 320.
    vectors: [u64; 64],
    /// At 832: TPIDR_EL0 and TPIDRRO_EL0, which only the kernel writes.
    own: [usize; 2],
}

impl More {
    /// EL0, with interrupts.
    pub(crate) const NEW: Self = Self {
        is_interrupt: 0,
        syndrome: 0,
        address: 0,
        state: 0,
        modes: [0; 2],
        vectors: [0; 64],
        own: [0; 2],
    };
}

/// SP, x0 to x3, x8. A call comes back to the instruction behind it: `run` undoes that, so that it can be made again.
pub(crate) const CONVENTION: Convention =
    Convention { stack: 31, arguments: 0, number: 8, answer: 0, room: 0, call: 4 };

global_asm!(
    r#"
    // All vector registers, to and from 320 on.
    .macro  vectors op
    add     x1, x0, #320
    \op     {{v0.2d, v1.2d, v2.2d, v3.2d}}, [x1], #64
    \op     {{v4.2d, v5.2d, v6.2d, v7.2d}}, [x1], #64
    \op     {{v8.2d, v9.2d, v10.2d, v11.2d}}, [x1], #64
    \op     {{v12.2d, v13.2d, v14.2d, v15.2d}}, [x1], #64
    \op     {{v16.2d, v17.2d, v18.2d, v19.2d}}, [x1], #64
    \op     {{v20.2d, v21.2d, v22.2d, v23.2d}}, [x1], #64
    \op     {{v24.2d, v25.2d, v26.2d, v27.2d}}, [x1], #64
    \op     {{v28.2d, v29.2d, v30.2d, v31.2d}}, [x1]
    .endm

    .section .text
{enter}:
    sub     sp, sp, #176
    stp     x19, x20, [sp]
    stp     x21, x22, [sp, #16]
    stp     x23, x24, [sp, #32]
    stp     x25, x26, [sp, #48]
    stp     x27, x28, [sp, #64]
    stp     x29, x30, [sp, #80]
    stp     d8, d9, [sp, #96]
    stp     d10, d11, [sp, #112]
    stp     d12, d13, [sp, #128]
    stp     d14, d15, [sp, #144]
    // The frame is on the stack while the thread runs.
    str     x0, [sp, #160]
    vectors ld1
    ldp     x1, x2, [x0, #304]
    msr     fpcr, x1
    msr     fpsr, x2
    ldr     x1, [x0, #832]
    msr     tpidr_el0, x1
    ldr     x1, [x0, #840]
    msr     tpidrro_el0, x1
    ldr     x1, [x0, #248]
    msr     sp_el0, x1
    ldr     x1, [x0, #256]
    msr     elr_el1, x1
    ldr     x1, [x0, #296]
    msr     spsr_el1, x1
    ldp     x2, x3, [x0, #16]
    ldp     x4, x5, [x0, #32]
    ldp     x6, x7, [x0, #48]
    ldp     x8, x9, [x0, #64]
    ldp     x10, x11, [x0, #80]
    ldp     x12, x13, [x0, #96]
    ldp     x14, x15, [x0, #112]
    ldp     x16, x17, [x0, #128]
    ldp     x18, x19, [x0, #144]
    ldp     x20, x21, [x0, #160]
    ldp     x22, x23, [x0, #176]
    ldp     x24, x25, [x0, #192]
    ldp     x26, x27, [x0, #208]
    ldp     x28, x29, [x0, #224]
    ldr     x30, [x0, #240]
    ldp     x0, x1, [x0]
    eret

    // From EL0: x0 and x1 are on the stack, and x1 tells whether it is an interrupt.
back:
    ldr     x0, [sp, #176]
    stp     x2, x3, [x0, #16]
    stp     x4, x5, [x0, #32]
    stp     x6, x7, [x0, #48]
    stp     x8, x9, [x0, #64]
    stp     x10, x11, [x0, #80]
    stp     x12, x13, [x0, #96]
    stp     x14, x15, [x0, #112]
    stp     x16, x17, [x0, #128]
    stp     x18, x19, [x0, #144]
    stp     x20, x21, [x0, #160]
    stp     x22, x23, [x0, #176]
    stp     x24, x25, [x0, #192]
    stp     x26, x27, [x0, #208]
    stp     x28, x29, [x0, #224]
    mrs     x2, sp_el0
    stp     x30, x2, [x0, #240]
    ldp     x2, x3, [sp], #16
    stp     x2, x3, [x0]
    mrs     x2, elr_el1
    str     x2, [x0, #256]
    mrs     x2, esr_el1
    stp     x1, x2, [x0, #272]
    mrs     x1, far_el1
    mrs     x2, spsr_el1
    stp     x1, x2, [x0, #288]
    vectors st1
    mrs     x1, fpcr
    mrs     x2, fpsr
    stp     x1, x2, [x0, #304]
    mrs     x1, tpidr_el0
    str     x1, [x0, #832]
    ldp     x19, x20, [sp]
    ldp     x21, x22, [sp, #16]
    ldp     x23, x24, [sp, #32]
    ldp     x25, x26, [sp, #48]
    ldp     x27, x28, [sp, #64]
    ldp     x29, x30, [sp, #80]
    ldp     d8, d9, [sp, #96]
    ldp     d10, d11, [sp, #112]
    ldp     d12, d13, [sp, #128]
    ldp     d14, d15, [sp, #144]
    add     sp, sp, #176
    ret

    .balign 2048
table:
    // From EL1: an exception of the kernel's own.
    .rept   8
    .balign 128
    b       unexpected
    .endr
    // From EL0.
    .balign 128
    stp     x0, x1, [sp, #-16]!
    mov     x1, #0
    b       back
    .balign 128
    stp     x0, x1, [sp, #-16]!
    mov     x1, #1
    b       back
    .rept   6
    .balign 128
    b       unexpected
    .endr
unexpected:
    mrs     x0, esr_el1
    mrs     x1, elr_el1
    mrs     x2, far_el1
    b       {unexpected}

{prepare}:
    adrp    x0, table
    add     x0, x0, :lo12:table
    msr     vbar_el1, x0
    isb
    ret
    "#,
    enter = sym enter,
    prepare = sym prepare_vectors,
    unexpected = sym unexpected,
);

unsafe extern "C" {
    fn enter(frame: *mut Frame);
    safe fn prepare_vectors();
}

extern "C" fn unexpected(syndrome: usize, at: usize, address: usize) -> ! {
    panic!("exception {syndrome:#x} at {at:#x}, address {address:#x}")
}

pub(super) fn prepare() {
    prepare_vectors();
}

/// Lets a thread run in user mode until it traps.
pub(crate) fn run(frame: &mut Frame) -> Trap {
    // SAFETY: user mode reaches the pages of the address space that this CPU runs and that are the user's; the registers
    // that a function call keeps are kept, and the trap comes back with interrupts masked.
    unsafe { enter(frame) };
    let More { is_interrupt, syndrome, address, .. } = frame.more;
    if is_interrupt != 0 {
        // One of another CPU may have been taken back meanwhile.
        return if gic::pending() == gic::TIMER { Trap::Timer } else { Trap::Interrupt };
    }
    if syndrome >> 26 == 0x15 {
        frame.go_to(frame.pc() - CONVENTION.call);
        return Trap::Call;
    }
    match Access::from_aarch64(syndrome as u64) {
        Some(access) => Trap::Fault(VirtAddr::new(address), access),
        None => Trap::Illegal,
    }
}
