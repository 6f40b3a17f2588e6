//! Where the kernel's memory is.
//!
//! ```text
//!   physical      kseg0
//!   0x0000_0000   0x8000_0000   exception vectors, firmware tables
//!   0x0010_0000   0x8010_0000   the image
//!                 _end          nodes of page tables: all of them below 8 MiB, the reach of a guarded table's link
//!   0x0080_0000   0x8080_0000   a window of 8 MiB, at whose beginning is the software TLB cache: Context.PTEBase, which
//!                               leads a handler there, has no bits below
//!   0x0100_0000   0x8100_0000   frames for pages
//!   0x1000_0000   0x9000_0000   the end of 256 MiB
//! ```

use core::mem::MaybeUninit;

use tlbkit_malta::KSEG0;
use tlbkit_pagetable::nodes::Chunk;

/// The window of the cache, and its bytes.
pub const WINDOW: usize = KSEG0 + (8 << 20);
const WINDOW_LEN: usize = 8 << 20;

/// The frames for pages, as physical addresses.
pub const FRAMES: core::ops::Range<usize> = 16 << 20..256 << 20;

unsafe extern "C" {
    static _end: u8;
}

/// Returns the address of the memory for nodes of page tables, in kseg0, and how many chunks it has.
pub fn node_range() -> (usize, usize) {
    let first = (&raw const _end).expose_provenance();
    (first, (WINDOW - first) / size_of::<Chunk>())
}

/// Takes that memory.
///
/// # Safety
///
/// Called once.
pub unsafe fn nodes() -> &'static mut [Chunk] {
    let (first, chunks) = node_range();
    // SAFETY: between the image, whose end is aligned, and the window there is nothing else, and the caller has this memory from no
    // other owner. A chunk is integers, so any bytes are one.
    unsafe { core::slice::from_raw_parts_mut(core::ptr::with_exposed_provenance_mut(first), chunks) }
}

/// Takes `bytes` bytes of the window.
///
/// # Safety
///
/// No other code uses what was taken before.
pub unsafe fn window(bytes: usize) -> &'static mut [MaybeUninit<u8>] {
    assert!(bytes <= WINDOW_LEN, "the window is too small");
    // SAFETY: the window is memory that nothing else uses.
    unsafe { core::slice::from_raw_parts_mut(core::ptr::with_exposed_provenance_mut(WINDOW), bytes) }
}
