//! The machine.
//!
//! ```text
//!   0x80000000  refill of 32-bit addresses: none is used
//!   0x80000080  refill of 64-bit addresses: a page table's handler
//!   0x80000180  everything else: a jump to `general_entry`
//!   0x80000400  the rest of the refill handler
//!   0x80001000  the handler's block
//! ```
//!
//! The kernel expects an exception only within [`load`] and [`store`], where a fault is a returned error.

use core::arch::{asm, global_asm};
use core::ptr::with_exposed_provenance_mut;

use tlbkit_malta::KSEG0;
use tlbkit_refill::mips3::{Block, GENERAL, Handler, TAIL, VECTOR};

/// The handlers' block, an offset from there.
pub const BLOCK: usize = 0x1000;
/// The entries of an R4000's TLB.
pub const ENTRIES: u32 = 48;
/// The address space that runs. 0 would match an empty entry of a software cache.
pub const ASID: u64 = 1;

/// The bytes of the stack.
const STACK: usize = 128 << 10;

#[repr(C, align(16))]
struct Stack([u8; STACK]);

#[unsafe(no_mangle)]
static mut BOOT_STACK: Stack = Stack([0; STACK]);

/// What the exception in [`load`] or [`store`] was.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// Cause: its exception code is in bits 2 to 6.
    pub cause: u64,
    pub bad_vaddr: u64,
    pub entry_hi: u64,
    pub epc: u64,
}

#[unsafe(no_mangle)]
static mut FAULT: Fault = Fault { cause: 0, bad_vaddr: 0, entry_hi: 0, epc: 0 };

unsafe extern "C" {
    fn general_entry();
    fn touch_load(at: u64, value: *mut u32) -> u64;
    fn touch_store(at: u64, value: u32) -> u64;
}

global_asm!(
    ".set push",
    ".set noreorder",
    ".set noat",
    ".set mips3",
    ".section .text.boot, \"ax\", @progbits",
    ".globl _start",
    "_start:",
    // Kernel mode, interrupts masked, vectors in kseg0, 64-bit addresses in user segments.
    "li $8, 0x20",
    "mtc0 $8, $12",
    "nop", "nop", "nop", "nop",
    // A symbol's low 32 bits, sign-extended, are its address.
    "lui $29, %hi(BOOT_STACK + {stack})",
    "daddiu $29, $29, %lo(BOOT_STACK + {stack})",
    "lui $8, %hi(__bss_start)",
    "daddiu $8, $8, %lo(__bss_start)",
    "lui $9, %hi(__bss_end)",
    "daddiu $9, $9, %lo(__bss_end)",
    "1:",
    "beq $8, $9, 2f",
    "nop",
    "sw $0, 0($8)",
    "b 1b",
    "daddiu $8, $8, 4",
    "2:",
    "j main",
    "nop",
    "",
    ".section .text",
    ".globl general_entry",
    "general_entry:",
    "lui $27, %hi(FAULT)",
    "daddiu $27, $27, %lo(FAULT)",
    "mfc0 $26, $13",
    "sd $26, 0($27)",
    "dmfc0 $26, $8",
    "sd $26, 8($27)",
    "dmfc0 $26, $10",
    "sd $26, 16($27)",
    "dmfc0 $26, $14",
    "sd $26, 24($27)",
    // Where did it come from?
    "lui $27, %hi(touch_load)",
    "daddiu $27, $27, %lo(touch_load)",
    "dsubu $27, $26, $27",
    "sltiu $27, $27, {touch}",
    "beqz $27, 3f",
    "lui $26, %hi(touch_fault)",
    "daddiu $26, $26, %lo(touch_fault)",
    "dmtc0 $26, $14",
    "nop", "nop", "nop",
    "eret",
    "3:",
    "j unexpected",
    "nop",
    "",
    ".globl touch_load",
    ".globl touch_store",
    "touch_load:",
    "lw $12, 0($4)",
    "sw $12, 0($5)",
    "jr $31",
    "move $2, $0",
    "touch_store:",
    "sw $5, 0($4)",
    "jr $31",
    "move $2, $0",
    "touch_fault:",
    "jr $31",
    "li $2, 1",
    ".set pop",
    stack = const STACK - 16,
    // Seven instructions.
    touch = const 28,
);

/// An exception that no [`load`] or [`store`] has raised.
#[unsafe(no_mangle)]
extern "C" fn unexpected() -> ! {
    panic!("an exception in the kernel: {:x?}", fault());
}

fn fault() -> Fault {
    // SAFETY: written by the exception that has just returned, and by no other code.
    unsafe { (&raw const FAULT).read_volatile() }
}

/// Loads a word of the running address space.
///
/// # Errors
///
/// The fault.
pub fn load(at: u64) -> Result<u32, Fault> {
    let mut value = 0;
    // SAFETY: a load changes nothing, and its fault is expected.
    if unsafe { touch_load(at, &mut value) } == 0 { Ok(value) } else { Err(fault()) }
}

/// Stores a word.
///
/// # Errors
///
/// The fault.
///
/// # Safety
///
/// What the page table maps there is a frame that holds nothing but what the caller keeps.
pub unsafe fn store(at: u64, value: u32) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    if unsafe { touch_store(at, value) } == 0 { Ok(()) } else { Err(fault()) }
}

/// Returns the memory cell at a physical address, unmapped.
pub fn cell(at: usize) -> *mut u32 {
    with_exposed_provenance_mut(KSEG0 + at)
}

/// Returns where the image ends, in kseg0.
pub fn image_end() -> usize {
    unsafe extern "C" {
        static __image_end: u8;
    }
    (&raw const __image_end).expose_provenance()
}

/// Says where the table is that the handler walks.
///
/// # Safety
///
/// It is a table that the handler can walk, of the address space that runs from now on.
pub unsafe fn set_root(block: Block) {
    for (at, word) in (BLOCK..).step_by(4).zip(block) {
        // SAFETY: the block is memory that belongs to this function alone.
        unsafe { cell(at).write_volatile(word) };
    }
}

/// Writes a handler's words to their vectors.
///
/// # Safety
///
/// The handler serves the address spaces that run from now on.
pub unsafe fn install(handler: &Handler) {
    let entry = general_entry as *const () as usize as u32;
    // lui k0, high; ori k0, k0, low; jr k0; nop
    let jump = [0x3c1a_0000 | entry >> 16, 0x375a_0000 | entry & 0xffff, 0x0340_0008, 0];
    let parts: [(usize, usize, &[u32]); 3] = [
        (VECTOR as usize, GENERAL as usize, handler.refill.words()),
        (GENERAL as usize, TAIL as usize, &jump),
        (TAIL as usize, BLOCK, handler.tail.words()),
    ];
    for (from, to, words) in parts {
        assert!(from + 4 * words.len() <= to, "a handler is longer than its room");
        for (at, word) in (from..to).step_by(4).zip(words.iter().copied().chain(core::iter::repeat(0))) {
            // SAFETY: the vectors are memory that belongs to this function alone. QEMU sees what was written
            // to code; a machine with caches wants `cache` here.
            unsafe { cell(at).write_volatile(word) };
        }
    }
}

/// Moves to and from coprocessor 0; a write waits as long as an R4000 needs.
macro_rules! register {
    ($name:ident, $set:ident, $number:literal) => {
        pub fn $name() -> u64 {
            let value;
            // SAFETY: reading changes nothing.
            unsafe {
                asm!(".set push", ".set noat", ".set mips3", concat!("dmfc0 {}, $", $number), ".set pop", out(reg) value,
                    options(nomem, nostack));
            }
            value
        }

        #[allow(dead_code, reason = "a register is described whole")]
        fn $set(value: u64) {
            // SAFETY: the registers of this file choose and describe TLB entries, and the running address space, of which
            // there is one.
            unsafe {
                asm!(".set push", ".set noat", ".set mips3", concat!("dmtc0 {}, $", $number), "nop", "nop", "nop", "nop",
                    ".set pop", in(reg) value, options(nostack));
            }
        }
    };
}

register!(index, set_index, 0);
register!(entry_lo0, set_entry_lo0, 2);
register!(entry_lo1, set_entry_lo1, 3);
register!(context, set_context, 4);
register!(page_mask, set_page_mask, 5);
register!(wired, set_wired, 6);
register!(entry_hi, set_entry_hi, 10);
register!(prid, set_prid, 15);

/// What an entry of the TLB maps: EntryHi and both EntryLos.
pub type Entry = (u64, [u64; 2]);

/// Reads an entry.
pub fn entry(number: u32) -> Entry {
    set_index(u64::from(number));
    // SAFETY: reads an entry into the registers that stand for one.
    unsafe { asm!("tlbr", "nop", "nop", "nop", "nop", options(nostack)) };
    let entry = (entry_hi(), [entry_lo0(), entry_lo1()]);
    set_entry_hi(ASID);
    set_page_mask(0);
    entry
}

fn clear(number: u64) {
    set_index(number);
    set_page_mask(0);
    // Addresses in kseg0 are never looked up; each entry has its own.
    set_entry_hi(KSEG0 as u64 | number << 13);
    set_entry_lo0(0);
    set_entry_lo1(0);
    // SAFETY: an entry that maps nothing.
    unsafe { asm!("tlbwi", "nop", "nop", "nop", "nop", options(nostack)) };
    set_entry_hi(ASID);
}

/// Returns the entry that matches an address.
pub fn probe(at: u64) -> Option<u64> {
    set_entry_hi(at & !0x1fff | ASID);
    // SAFETY: changes Index alone.
    unsafe { asm!("tlbp", "nop", "nop", "nop", "nop", options(nostack)) };
    set_entry_hi(ASID);
    let found = index();
    (found as i32 >= 0).then_some(found)
}

/// Forgets the entry that matches an address.
pub fn forget(at: u64) {
    if let Some(number) = probe(at) {
        clear(number);
    }
}

/// Forgets everything.
pub fn forget_all() {
    set_wired(0);
    set_context(0);
    (0..u64::from(ENTRIES)).for_each(clear);
}

/// Ends the machine: the board is reset, which QEMU is told to take for the end.
pub fn exit() -> ! {
    loop {
        // SAFETY: the board's register for that, uncached.
        unsafe { with_exposed_provenance_mut::<u32>(0xffff_ffff_bf00_0500).write_volatile(0x42) };
    }
}
