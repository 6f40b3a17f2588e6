//! To user mode and back, sleep, and the kernel's own use of user addresses.
//!
//! ```text
//!   enter(frame)    the kernel's registers to its stack, those of user mode from the frame, eret
//!        ...        user mode; TLB misses are served at their vector, unseen by this code
//!   general_entry   the registers to the frame, the kernel's from its stack: `enter` returns
//! ```
//!
//! The kernel takes no interrupt but where it sleeps. An exception in kernel mode is that interrupt, which ends the sleep and stays
//! pending; or a fault in [`load`] or [`store`], which is a returned error; or the kernel's error.

use core::arch::global_asm;

use crate::{CPUS, RELEASE_1, cp0};

/// A program's registers, and why it stopped.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct Frame {
    /// `$0` to `$31`, of which `$0`, k0 and k1 are not used.
    pub registers: [u32; 32],
    /// Where it goes on, at 128.
    pub pc: u32,
    /// The kernel's stack meanwhile.
    stack: u32,
    hi: u32,
    lo: u32,
    /// Status while it runs, at 144.
    pub status: u32,
    /// Cause when it stopped, and the address of a miss or a fault.
    pub cause: u32,
    pub bad_vaddr: u32,
}

/// Status: interrupts are on.
pub const IE: u32 = 1;
/// Status: exception level, which masks interrupts and keeps EPC; `eret` ends it.
pub const EXL: u32 = 1 << 1;
/// Status: user mode.
pub const UM: u32 = 1 << 4;

impl Frame {
    /// Returns the registers of a program that begins at `pc` with this stack pointer, without interrupts.
    pub const fn new(pc: u32, stack_pointer: u32) -> Self {
        let mut registers = [0; 32];
        registers[29] = stack_pointer;
        Self { registers, pc, stack: 0, hi: 0, lo: 0, status: UM | EXL, cause: 0, bad_vaddr: 0 }
    }
}

/// The code of an exception, of Cause.
pub const fn code(cause: u32) -> u32 {
    cause >> 2 & 31
}

/// A store to a page that may not be written, by what the TLB has.
pub const MODIFIED: u32 = 1;
/// A load or a fetch from a page that neither the TLB nor the table has, and a store to one.
pub const LOAD: u32 = 2;
pub const STORE: u32 = 3;
/// A system call.
pub const SYSCALL: u32 = 8;

/// Each CPU's frame, while it runs user mode.
static mut FRAMES: [*mut Frame; CPUS] = [core::ptr::null_mut(); CPUS];

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
    # The upper part of the address of this CPU's element of FRAMES; its lower part is an offset.
    .macro this_frame to by
    lui     \to, %hi({frames})
    .if !{release1}
    mfc0    \by, $15, 1
    ext     \by, \by, 0, 10
    sll     \by, \by, 2
    addu    \to, \to, \by
    .endif
    .endm
    .macro clear register bits
    srl     \register, \register, \bits
    sll     \register, \register, \bits
    .endm

    .section .text
    .globl  {enter}
    .globl  {general}
    .globl  {sleep}
    .globl  {load}
    .globl  {store}
{enter}:
    addiu   $sp, $sp, -48
    .irp    n, 0,1,2,3,4,5,6,7
    sw      $s\n, 4*\n($sp)
    .endr
    sw      $30, 32($sp)
    sw      $31, 36($sp)
    sw      $28, 40($sp)
    sw      $sp, 132($a0)
    this_frame $t0, $t1
    sw      $a0, %lo({frames})($t0)
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
    this_frame $k0, $k1
    lw      $k0, %lo({frames})($k0)
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
    clear   $t0, 5
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

    # In the kernel: an interrupt where it sleeps, a fault of `load` or `store`, or an error.
1:  mfc0    $k0, $13
    andi    $k0, $k0, 0x7c
    bnez    $k0, 2f
    mfc0    $k0, $14
    lui     $k0, %hi({awake})
    addiu   $k0, $k0, %lo({awake})
    mtc0    $k0, $14
    mfc0    $k0, $12
    clear   $k0, 1
    # EXL stays until `eret`, which ends it.
    ori     $k0, $k0, 2
    mtc0    $k0, $12
    ehb
    eret
2:  lui     $k1, %hi({load})
    addiu   $k1, $k1, %lo({load})
    subu    $k0, $k0, $k1
    # The eleven instructions of both.
    sltiu   $k0, $k0, 44
    beqz    $k0, 3f
    lui     $k0, %hi({fault})
    addiu   $k0, $k0, %lo({fault})
    mtc0    $k0, $14
    ehb
    eret
3:  mfc0    $a0, $13
    mfc0    $a1, $14
    mfc0    $a2, $8
    j       {unexpected}
    addiu   $sp, $sp, -16

{load}:
    mfc0    $t1, $9
    lw      $t0, 0($a0)
    mfc0    $t2, $9
    subu    $t2, $t2, $t1
    sw      $t0, 0($a1)
    sw      $t2, 4($a1)
    jr      $ra
    move    $v0, $zero
{store}:
    sw      $a1, 0($a0)
    jr      $ra
    move    $v0, $zero
{fault}:
    mfc0    $v0, $13
    jr      $ra
    ori     $v0, $v0, 1

    .if !{release1}
    # An interrupt from `ei` on ends the sleep, before `wait` too.
{sleep}:
    ei
    ehb
    wait
    di
    ehb
    .endif
{awake}:
    jr      $ra
    nop
    .set pop
    "#,
    enter = sym enter,
    general = sym general_entry,
    frames = sym FRAMES,
    load = sym touch_load,
    store = sym touch_store,
    fault = sym touch_fault,
    sleep = sym sleep,
    awake = sym awake,
    unexpected = sym unexpected,
    release1 = const RELEASE_1 as u32,
);

unsafe extern "C" {
    /// Runs user mode until its next exception that no refill handler serves.
    ///
    /// # Safety
    ///
    /// The frame is a program's, and the address space that it is to run in is current.
    pub unsafe fn enter(frame: *mut Frame);
    /// What the general vector goes to.
    pub unsafe fn general_entry();
    /// Waits for an interrupt, which stays pending. A CPU of release 1 has no such function.
    pub safe fn sleep();
    fn awake();
    safe fn touch_load(at: u32, touched: &mut Touched) -> u32;
    unsafe fn touch_store(at: u32, value: u32) -> u32;
    fn touch_fault();
}

extern "C" fn unexpected(cause: usize, at: usize, address: usize) -> ! {
    panic!("cause {cause:#x} at {at:#x}, address {address:#x}")
}

/// Why an access failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The exception's code.
    pub code: u32,
    /// The address that the hardware names.
    pub at: u32,
}

/// What a load found.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Touched {
    pub value: u32,
    /// Ticks of Count from just before the load to just after.
    pub ticks: u32,
}

/// Loads a word of the running address space, as a program does: a miss is served by the refill handler.
///
/// # Errors
///
/// The fault, if there was one.
pub fn load(at: u32) -> Result<Touched, Fault> {
    let mut touched = Touched::default();
    match touch_load(at, &mut touched) {
        0 => Ok(touched),
        cause => Err(Fault::of(cause)),
    }
}

/// Stores a word.
///
/// # Errors
///
/// The fault, if there was one.
///
/// # Safety
///
/// The address is a user's, or memory that no other code knows.
pub unsafe fn store(at: u32, value: u32) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    match unsafe { touch_store(at, value) } {
        0 => Ok(()),
        cause => Err(Fault::of(cause)),
    }
}

impl Fault {
    fn of(cause: u32) -> Self {
        Self { code: code(cause), at: cp0::bad_vaddr::read() }
    }
}
