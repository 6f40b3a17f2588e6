//! To user mode and back, sleep, and interrupts that are pending.
//!
//! A trap from user mode pushes what it pushes into the thread's frame, which is the stack of the task state. The kernel takes an
//! interrupt where it sleeps or looks for one: it is noted as pending, for user mode or until it is taken back.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicU8, Ordering};

use tlbkit::{Access, VirtAddr};

use super::vectors::{CALL, CALLED, ENTRY, SPURIOUS, TIMER, first_vector};
use super::{apic, tables};
use crate::arch::CPUS;
use crate::trap::{Convention, Frame, Trap};
use crate::witness;

/// What a frame has behind the registers (rax, rdi, rsi, rdx, rcx, r8 to r11, rbx, rbp, r12 to r15, rsp), the address where
/// the thread goes on (256) and the kernel's stack (264). From the vector on it is what a trap pushes, the last first; the end
/// is a multiple of 16, as the processor wants it.
#[repr(C, align(16))]
#[derive(Clone, Debug)]
pub(crate) struct More {
    /// CR2, at 272.
    address: usize,
    vector: usize,
    error: usize,
    /// At 296.
    rip: usize,
    cs: usize,
    rflags: usize,
    rsp: usize,
    ss: usize,
}

/// RFLAGS: interrupts are taken; and the bit that is always set.
const IF: usize = 1 << 9 | 1 << 1;

impl More {
    pub(crate) const NEW: Self = Self {
        address: 0,
        vector: 0,
        error: 0,
        rip: 0,
        cs: tables::USER_CODE as usize,
        rflags: IF,
        rsp: 0,
        ss: tables::USER_DATA as usize,
    };
}

/// rsp, rdi and those behind it, rax. A function that is called has a return address on its stack.
pub(crate) const CONVENTION: Convention =
    Convention { stack: 15, arguments: 1, number: 0, answer: 0, room: 8, call: 2 };

global_asm!(
    r#"
    # All registers but rsp and that which has the frame, to and from it.
    .macro  save register, number
    mov     [rsp - 280 + 8*\number], \register
    .endm
    .macro  restore register, number
    mov     \register, [rdi + 8*\number]
    .endm
    .macro  registers op
    \op     rax, 0
    \op     rsi, 2
    \op     rdx, 3
    \op     rcx, 4
    \op     r8, 5
    \op     r9, 6
    \op     r10, 7
    \op     r11, 8
    \op     rbx, 9
    \op     rbp, 10
    \op     r12, 11
    \op     r13, 12
    \op     r14, 13
    \op     r15, 14
    .endm

    .section .text
{enter}:
    .irp    register, rbx, rbp, r12, r13, r14, r15
    push    \register
    .endr
    mov     [rdi + 264], rsp
    mov     rax, [rdi + 256]
    mov     [rdi + 296], rax
    mov     rax, [rdi + 120]
    mov     [rdi + 320], rax
    lea     rsp, [rdi + 296]
    registers restore
    mov     rdi, [rdi + 8]
    iretq

    # What is pushed for every vector: an error code, the vector. Those with a stack of their own are not a thread's, whatever they
    # interrupt.
    .macro  vector number, has_error
    .balign {entry}
    .if     \has_error == 0
    push    0
    .endif
    push    \number
    .if     ({alone} >> \number & 1) && (\number < 32)
    jmp     6f
    .else
    jmp     5f
    .endif
    .endm

    .balign {entry}
{vectors}:
    .set    number, 0
    .rept   32
    # Those with an error code: 8, 10 to 14, 17, 21, 29 and 30.
    vector  number, (0x60227d00 >> number & 1)
    .set    number, number + 1
    .endr
    vector  {timer}, 0
    vector  {called}, 0
    vector  {call}, 0
    vector  {spurious}, 0

5:  test    byte ptr [rsp + 24], 3
    jz      6f
    # From user mode: the stack pointer is in the frame, at the vector.
    registers save
    save    rdi, 1
    lea     rdi, [rsp - 280]
    mov     rax, [rdi + 296]
    mov     [rdi + 256], rax
    mov     rax, [rdi + 320]
    mov     [rdi + 120], rax
    mov     rax, cr2
    mov     [rdi + 272], rax
    mov     rsp, [rdi + 264]
    # Of user mode's flags none stays: neither AC, which would open its pages, nor the direction.
    push    2
    popfq
    .irp    register, r15, r14, r13, r12, rbp, rbx
    pop     \register
    .endr
    ret

    # In the kernel: an interrupt that it has asked for, or an error.
6:  .irp    register, rax, rdi, rsi, rdx, rcx, r8, r9, r10, r11
    push    \register
    .endr
    mov     rdi, [rsp + 72]
    mov     rsi, [rsp + 80]
    mov     rdx, [rsp + 88]
    call    {interrupted}
    .irp    register, r11, r10, r9, r8, rcx, rdx, rsi, rdi, rax
    pop     \register
    .endr
    add     rsp, 16
    iretq
    "#,
    enter = sym enter,
    vectors = sym first_vector,
    entry = const ENTRY,
    timer = const TIMER,
    called = const CALLED,
    call = const CALL,
    spurious = const SPURIOUS,
    alone = const alone(),
    interrupted = sym interrupted,
);

unsafe extern "C" {
    fn enter(frame: *mut Frame);
}

/// Returns a bit for each vector that has a stack of its own.
const fn alone() -> u32 {
    let [one, two, three] = tables::ALONE;
    1 << one | 1 << two | 1 << three
}

/// What is pending on each CPU: bits of the two interrupts.
static PENDING: [AtomicU8; CPUS] = [const { AtomicU8::new(0) }; CPUS];
const OF_TIMER: u8 = 1;
const OF_CPUS: u8 = 2;

fn pending() -> &'static AtomicU8 {
    &PENDING[tables::cpu()]
}

/// Notes an interrupt that the kernel has taken.
extern "C" fn interrupted(vector: usize, error: usize, at: usize) {
    let bit = match vector as u8 {
        TIMER => OF_TIMER,
        CALLED => OF_CPUS,
        SPURIOUS => return,
        _ => unexpected(vector, error, at),
    };
    pending().fetch_or(bit, Ordering::Relaxed);
    apic::end();
}

fn unexpected(vector: usize, error: usize, at: usize) -> ! {
    let address: usize;
    // SAFETY: it reads a register.
    unsafe { asm!("mov {}, cr2", out(reg) address, options(nomem, nostack, preserves_flags)) };
    panic!("exception {vector}, error {error:#x}, at {at:#x}, address {address:#x}")
}

/// Lets interrupts come that have been sent.
fn look() {
    // SAFETY: the interrupt handler notes the interrupt, and no more.
    unsafe { asm!("sti", "nop", "cli") };
}

/// Waits for an interrupt, which is pending then.
pub(super) fn sleep() {
    if pending().load(Ordering::Relaxed) == 0 {
        // SAFETY: the interrupt handler notes the interrupt, and no more; none comes between `sti` and `hlt`.
        unsafe { asm!("sti", "hlt", "cli") };
    }
}

/// Takes the interrupt of other CPUs back. What it was sent for is looked for after that.
pub(crate) fn take_interrupt() {
    look();
    pending().fetch_and(!OF_CPUS, Ordering::Relaxed);
    witness::taken();
}

/// Lets the timer interrupt after so many microseconds, and takes its interrupt back.
pub(crate) fn set_timer(microseconds: u32) {
    apic::set_timer(0);
    look();
    pending().fetch_and(!OF_TIMER, Ordering::Relaxed);
    apic::set_timer(microseconds);
}

/// Lets a thread run in user mode until it traps.
pub(crate) fn run(frame: &mut Frame) -> Trap {
    let waiting = pending().load(Ordering::Relaxed);
    if waiting & OF_CPUS != 0 {
        return Trap::Interrupt;
    }
    if waiting & OF_TIMER != 0 {
        return Trap::Timer;
    }
    // The processor would fault in the kernel.
    if frame.pc() >> 47 != 0 {
        return Trap::Illegal;
    }
    tables::set_stack((&raw const frame.more).addr() + size_of::<More>());
    // SAFETY: user mode reaches the pages of the address space that this CPU runs and that are the user's; a trap pushes to the
    // end of the frame, which is the caller's; the registers that a function call keeps are kept, and the trap comes back with
    // interrupts masked.
    unsafe { enter(frame) };
    let More { address, vector, error, .. } = frame.more;
    match vector as u8 {
        14 => Trap::Fault(VirtAddr::new(address), Access::from_x86_64(error as u64)),
        CALL => {
            // The thread asks again, unless it gets an answer.
            frame.go_to(frame.pc() - CONVENTION.call);
            Trap::Call
        }
        CALLED => {
            apic::end();
            Trap::Interrupt
        }
        TIMER => {
            apic::end();
            Trap::Timer
        }
        // It has been taken back meanwhile.
        SPURIOUS => Trap::Interrupt,
        _ => Trap::Illegal,
    }
}
