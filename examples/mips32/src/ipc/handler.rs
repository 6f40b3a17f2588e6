//! The refill handler: the linear table's, with a log of what it serves.
//!
//! ```text
//!   Context            | 1 | process: 8 bits | pair: 19 bits | 0000 |
//!   half of it     | 1   1 | process ...     | pair: 19 bits | 000  |    the pair's PTEs
//! ```
//!
//! Misses of the kernel's own addresses go to the general vector, as on the R3000. The log tells which L1U misses found
//! their L2 entry in the TLB: those that no L2 miss follows.

use core::cell::UnsafeCell;

use tlbkit_malta::vectors;

/// Most L1U misses between two messages.
pub const ROOM: usize = 4096;

/// The log: where the next entry goes, and EntryHi of each miss.
#[repr(C)]
pub struct Log {
    next: UnsafeCell<usize>,
    entries: UnsafeCell<[u32; ROOM]>,
}

// SAFETY: used by one CPU.
unsafe impl Sync for Log {}

#[unsafe(no_mangle)]
static IPC_LOG: Log = Log { next: UnsafeCell::new(0), entries: UnsafeCell::new([0; ROOM]) };

core::arch::global_asm!(
    ".set push",
    ".set noreorder",
    ".set noat",
    ".set mips32r2",
    ".section .rodata",
    ".balign 4",
    "ipc_refill:",
    "mfc0 $k0, $8",
    "bltz $k0, 1f",
    "lui  $k1, %hi(IPC_LOG)",
    "lw   $k0, %lo(IPC_LOG)($k1)",
    "mfc0 $k1, $10",
    "sw   $k1, 0($k0)",
    "addiu $k0, $k0, 4",
    "lui  $k1, %hi(IPC_LOG)",
    "sw   $k0, %lo(IPC_LOG)($k1)",
    "mfc0 $k0, $4",
    "sra  $k0, $k0, 1",
    "lw   $k1, 0($k0)",
    "lw   $k0, 4($k0)",
    "mtc0 $k1, $2",
    "mtc0 $k0, $3",
    "mfc0 $k0, $1",
    "mtc0 $k0, $0",
    "ehb",
    "tlbwi",
    "eret",
    // To the general vector: this code runs at the refill vector, 0x180 bytes before it.
    "1:",
    "lui  $k0, 0x8000",
    "ori  $k0, $k0, 0x180",
    "jr   $k0",
    "nop",
    "ipc_refill_end:",
    ".set pop",
);

unsafe extern "C" {
    static ipc_refill: u32;
    static ipc_refill_end: u32;
}

/// Lets the handler serve refills.
pub fn install() {
    // SAFETY: the words lie between the labels. The handler serves the processes of `super::kernel`.
    unsafe {
        let first = &raw const ipc_refill;
        let words = (&raw const ipc_refill_end).offset_from(first) as usize;
        vectors::install(core::slice::from_raw_parts(first, words), &[], &[]);
    }
    drain(|_| ());
}

/// Empties the log: `seen` is told EntryHi of each L1U miss since the last time, oldest first.
pub fn drain(mut seen: impl FnMut(u32)) {
    let first = IPC_LOG.entries.get().cast::<u32>();
    // SAFETY: the handler does not run meanwhile, and has written the entries up to `next`.
    unsafe {
        let mut entry = first;
        let end = core::ptr::with_exposed_provenance_mut::<u32>(IPC_LOG.next.get().read_volatile());
        while entry.addr() < end.addr() {
            seen(entry.read_volatile());
            entry = entry.add(1);
        }
        IPC_LOG.next.get().write_volatile(first.expose_provenance());
    }
}
