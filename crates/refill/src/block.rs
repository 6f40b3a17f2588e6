//! The words of each CPU that a handler and its kernel share.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, Ordering};

/// The words of one CPU. Only that CPU and its handler access them.
///
/// A handler is assembled for the address of its block, so each CPU runs its own copy of the code: each CPU has its own
/// EBase from release 2 on, and there are no release 1 multiprocessors. The block is in kseg0, like all statics of a kernel
/// that is linked there. A wired TLB entry may also map it at the end of kseg3, from 0xffff_8000 on, where a handler loads
/// the root with one instruction.
///
/// ```text
///    0  root   root of the running address space's table, as `Walk::root` encodes it
///    4  next   address of the next record   \  the log: see `Miss`
///    8  end    address of the log's end     /
///   12  save   five words for the handler's temporary values
/// ```
#[derive(Debug, Default)]
#[repr(C, align(32))]
pub struct Block {
    root: AtomicU32,
    pub(crate) next: AtomicU32,
    pub(crate) end: AtomicU32,
    save: [AtomicU32; 5],
}

impl Block {
    /// Returns a block without a table and without a log. Until there is a log, a reporting handler passes every miss on to
    /// the general vector. Another handler must not run before [`set_root`](Self::set_root).
    pub const fn new() -> Self {
        Self {
            root: AtomicU32::new(0),
            next: AtomicU32::new(0),
            end: AtomicU32::new(0),
            save: [const { AtomicU32::new(0) }; 5],
        }
    }

    /// Sets the root word, which [`Walk::root`](crate::handler::Walk::root) returns.
    ///
    /// The kernel calls it on the CPU that the block belongs to, with interrupts masked, or before that CPU accesses kuseg.
    pub fn set_root(&self, root: u32) {
        self.root.store(root, Ordering::Relaxed);
    }

    /// Returns the root word.
    pub fn root(&self) -> u32 {
        self.root.load(Ordering::Relaxed)
    }

    pub(crate) const ROOT: u32 = offset_of!(Self, root) as u32;
    pub(crate) const NEXT: u32 = offset_of!(Self, next) as u32;
    pub(crate) const END: u32 = offset_of!(Self, end) as u32;
    pub(crate) const SAVE: u32 = offset_of!(Self, save) as u32;
}

// The size and the alignment are 32 bytes, so no block crosses a 32 KiB boundary, and one `lui` makes the base for all its
// words.
const _: () = assert!(size_of::<Block>() == 32);
