//! To user mode and back.

use tlbkit::{Access, VirtAddr};
use tlbkit_malta::trap::{EXL, IE, SYSCALL, UM, code, enter};

use super::IPI;
use super::timer::TIMER;
use crate::trap::{Convention, Frame, Trap};

/// What a frame has behind the registers, the address where the thread goes on and the kernel's stack.
#[repr(C)]
#[derive(Clone, Debug)]
pub(crate) struct More {
    hi: usize,
    lo: usize,
    status: u32,
    /// Why it stopped, and the address of a fault.
    cause: u32,
    bad_vaddr: usize,
}

impl More {
    pub(crate) const NEW: Self =
        Self { hi: 0, lo: 0, status: UM | EXL | IE | IPI | TIMER, cause: 0, bad_vaddr: 0 };
}

/// $29, $4 to $7, $2. Every caller leaves room for four arguments.
pub(crate) const CONVENTION: Convention =
    Convention { stack: 29, arguments: 4, number: 2, answer: 2, room: 16, call: 4 };

const _: () = assert!(size_of::<Frame>() == size_of::<tlbkit_malta::trap::Frame>());

/// Lets a thread run in user mode until it traps.
pub(crate) fn run(frame: &mut Frame) -> Trap {
    // SAFETY: the frame is laid out as the board's. User mode reaches the pages of the address space that this CPU runs, and the
    // trap comes back with interrupts masked.
    unsafe { enter(core::ptr::from_mut(frame).cast()) };
    // The mode is that in which the thread was begun.
    if let Some(access) = Access::from_mips32(frame.more.cause, frame.more.status) {
        return Trap::Fault(VirtAddr::new(frame.more.bad_vaddr), access);
    }
    match code(frame.more.cause) {
        0 if frame.more.cause & IPI != 0 => Trap::Interrupt,
        0 if frame.more.cause & TIMER != 0 => Trap::Timer,
        // It has been taken back meanwhile.
        0 => Trap::Interrupt,
        SYSCALL => Trap::Call,
        _ => Trap::Illegal,
    }
}
