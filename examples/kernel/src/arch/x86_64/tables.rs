//! Segments, task states and vectors. Intel SDM volume 3, 5.2, 7.10 and 8.7.
//!
//! A CPU's number is that of its task state, in the task register, which user mode can neither change nor read.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::vectors;

/// As many CPUs as there are stacks.
const CPUS: usize = 8;

/// Selectors: the kernel's code, the user's data and code, the first CPU's task state.
pub(super) const KERNEL_CODE: u16 = 0x08;
pub(super) const USER_DATA: u16 = 0x18 | 3;
pub(super) const USER_CODE: u16 = 0x20 | 3;
const TASK: u16 = 0x28;
/// The first entry of a task state, and how many each takes.
const TASK_ENTRY: usize = TASK as usize / 8;

static GDT: [AtomicU64; TASK_ENTRY + 2 * CPUS] = {
    let mut table = [const { AtomicU64::new(0) }; _];
    table[1] = AtomicU64::new(0x00af_9a00_0000_ffff);
    table[2] = AtomicU64::new(0x00cf_9200_0000_ffff);
    table[3] = AtomicU64::new(0x00cf_f200_0000_ffff);
    table[4] = AtomicU64::new(0x00af_fa00_0000_ffff);
    table
};

/// A task state: the stack that a trap from user mode comes to is its words 1 and 2, the one that vectors of [`ALONE`] come to
/// words 9 and 10.
type Task = [AtomicU32; 26];

static TASKS: [Task; CPUS] = [const { [const { AtomicU32::new(0) }; _] }; CPUS];

static VECTORS: [AtomicU64; 2 * 256] = [const { AtomicU64::new(0) }; _];

/// Vectors that come at any moment, or when the stack is not to be trusted: NMI, double fault, machine check.
pub(super) const ALONE: [usize; 3] = [2, 8, 18];
/// How much of a CPU's stack they have, at its end.
const ALONE_LEN: usize = 0x4000;

unsafe extern "C" {
    static _stacks: [[u8; 0x10000]; CPUS];
}

/// Returns the number of the CPU that calls this.
pub(crate) fn cpu() -> usize {
    let task: u64;
    // SAFETY: it reads a register.
    unsafe { asm!("str {}", out(reg) task, options(nomem, nostack, preserves_flags)) };
    (task as usize - usize::from(TASK)) / 16
}

/// Fills the table of vectors.
pub(super) fn prepare() {
    for (index, vector) in vectors::all() {
        let at = vector as u64;
        let ring = if index == usize::from(vectors::CALL) { 3 } else { 0 };
        let stack = u64::from(ALONE.contains(&index));
        // An interrupt gate: interrupts are masked behind it.
        let low = at & 0xffff
            | u64::from(KERNEL_CODE) << 16
            | stack << 32
            | (0x8e00 | ring << 13) << 32
            | (at >> 16 & 0xffff) << 48;
        VECTORS[2 * index].store(low, Ordering::Relaxed);
        VECTORS[2 * index + 1].store(at >> 32, Ordering::Relaxed);
    }
}

/// Makes these the tables of a CPU.
pub(super) fn load(cpu: usize) {
    fn pointer<const N: usize>(table: &'static [AtomicU64; N]) -> [u16; 5] {
        let at = table.as_ptr().addr();
        [size_of_val(table) as u16 - 1, at as u16, (at >> 16) as u16, (at >> 32) as u16, (at >> 48) as u16]
    }
    let task = TASKS[cpu].as_ptr().addr() as u64;
    let bytes = size_of::<Task>() as u64 - 1;
    let low = bytes | (task & 0xff_ffff) << 16 | 0x89 << 40 | (task >> 24 & 0xff) << 56;
    GDT[TASK_ENTRY + 2 * cpu].store(low, Ordering::Relaxed);
    GDT[TASK_ENTRY + 2 * cpu + 1].store(task >> 32, Ordering::Relaxed);
    set(cpu, 9, (&raw const _stacks).addr() + cpu * 0x10000 + ALONE_LEN);
    // The I/O bitmap is behind the end: user mode has no ports.
    TASKS[cpu][25].store((size_of::<Task>() as u32) << 16, Ordering::Relaxed);
    let (segments, vectors) = (pointer(&GDT), pointer(&VECTORS));
    // SAFETY: the tables are statics, and what the segment registers hold is the same in the first; the task state is this
    // CPU's, and it is loaded once.
    unsafe {
        asm!(
            "lgdt [{}]", "lidt [{}]", "ltr {:x}",
            in(reg) &segments, in(reg) &vectors, in(reg) TASK + 16 * cpu as u16, options(nostack)
        );
    }
}

fn set(cpu: usize, word: usize, value: usize) {
    TASKS[cpu][word].store(value as u32, Ordering::Relaxed);
    TASKS[cpu][word + 1].store((value >> 32) as u32, Ordering::Relaxed);
}

/// Says where the next trap from user mode puts what it pushes.
pub(super) fn set_stack(at: usize) {
    set(cpu(), 1, at);
}
