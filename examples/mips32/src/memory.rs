//! Where the kernel's memory is.
//!
//! ```text
//!   physical      kseg0
//!   0x0000_0000   0x8000_0000   exception vectors, firmware tables
//!   0x0010_0000   0x8010_0000   the image
//!                 __image_end   nodes of page tables: all of them below 8 MiB, the reach of a guarded table's link
//!   0x0080_0000   0x8080_0000   a window of 8 MiB for each CPU, at whose beginning is its software TLB cache:
//!                               Context.PTEBase, which leads a handler there, has no bits below
//!   0x0480_0000   0x8480_0000   frames for pages
//!   0x1000_0000   0x9000_0000   the end of 256 MiB
//! ```

use core::mem::MaybeUninit;

use tlbkit_pagetable::nodes::Chunk;

use crate::cpu::CPUS;

/// Where physical memory is, unmapped and cached.
pub const KSEG0: usize = 0x8000_0000;

/// The windows of the CPUs' caches.
pub const WINDOWS: usize = 8 << 20;
/// The bytes from one window to the next.
pub const WINDOW: usize = 8 << 20;

/// The frames for pages, as physical addresses.
pub const FRAMES: core::ops::Range<usize> = WINDOWS + CPUS * WINDOW..256 << 20;

unsafe extern "C" {
    static __image_end: u8;
}

/// Returns the address of the memory for nodes of page tables, in kseg0, and how many chunks it has.
pub fn node_range() -> (usize, usize) {
    let first = (&raw const __image_end).expose_provenance();
    (first, (KSEG0 + WINDOWS - first) / size_of::<Chunk>())
}

/// Takes that memory.
///
/// # Safety
///
/// Called once.
pub unsafe fn nodes() -> &'static mut [Chunk] {
    let (first, chunks) = node_range();
    // SAFETY: between the image, whose end is aligned, and the windows there is nothing else, and the caller has this
    // memory from no other owner. A chunk is integers, so any bytes are one.
    unsafe { core::slice::from_raw_parts_mut(core::ptr::with_exposed_provenance_mut(first), chunks) }
}

/// Returns the address of the window of a CPU.
pub const fn window_of(cpu: usize) -> usize {
    KSEG0 + WINDOWS + cpu * WINDOW
}

/// Takes `bytes` bytes of the window of a CPU.
///
/// # Safety
///
/// Called once for each CPU and use of it, with no more than [`WINDOW`] bytes.
pub unsafe fn window(cpu: usize, bytes: usize) -> &'static mut [MaybeUninit<u8>] {
    let first = core::ptr::with_exposed_provenance_mut(window_of(cpu));
    // SAFETY: the window is memory that nothing else uses.
    unsafe { core::slice::from_raw_parts_mut(first, bytes) }
}
