//! What each CPU has of its own, found by its number.
//!
//! ```text
//!   EBase.CPUNum --> CPU_DATA[number]   the assembly of `arch::exception` knows the first two words
//! ```

use core::cell::UnsafeCell;

use crate::arch::cp0;
use crate::arch::frame::Frame;

/// The most CPUs.
pub const CPUS: usize = 8;

/// Bytes of a CPU's stack.
pub const STACK: usize = 128 * 1024;

/// The base-two logarithm of the bytes of a [`Cpu`]: the assembly finds it by a shift.
pub const SHIFT: u32 = 6;

/// A CPU's data.
#[repr(C, align(64))]
pub struct Cpu {
    /// Where the kernel's stack was when it went to user mode.
    pub kernel_sp: usize,
    /// Where user mode's registers go when it comes back.
    pub frame: *mut Frame,
    /// Cause and address of the last fault of `arch::touch`.
    pub fault: (u32, u32),
}

const _: () = assert!(size_of::<Cpu>() == 1 << SHIFT);

/// One for each CPU.
#[repr(C)]
pub struct All([UnsafeCell<Cpu>; CPUS]);

// SAFETY: a CPU touches its own element only.
unsafe impl Sync for All {}

/// The CPUs' data.
#[unsafe(no_mangle)]
pub static CPU_DATA: All =
    All([const { UnsafeCell::new(Cpu { kernel_sp: 0, frame: core::ptr::null_mut(), fault: (0, 0) }) }; CPUS]);

/// Returns the data of this CPU.
pub fn this() -> *mut Cpu {
    CPU_DATA.0[cp0::cpu()].get()
}
