//! What a handler and its kernel share: a few words in kseg0 for each CPU.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, Ordering};

/// The words of one CPU, which only that CPU and its handler use.
///
/// A handler is assembled for the address of its block, so each CPU runs its own copy of the code: EBase is per CPU from
/// release 2 on, and there are no release 1 multiprocessors. The block lies in kseg0, as all statics of a kernel
/// that is linked there do; or a wired TLB entry maps it at the end of kseg3, from 0xffff_8000 on, where a handler loads
/// the root with one instruction.
///
/// ```text
///    0  root   of the table of the running address space, as `Walk::root` encodes it
///    4  next   where the next report goes   \  the log: see `Miss`
///    8  end    where the log ends           /
///   12  save   five words, the handler's own
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
    /// Returns a block without a table and without a log. A reporting handler passes every miss on until there is a log.
    /// Another handler must not run before [`set_root`](Self::set_root).
    pub const fn new() -> Self {
        Self {
            root: AtomicU32::new(0),
            next: AtomicU32::new(0),
            end: AtomicU32::new(0),
            save: [const { AtomicU32::new(0) }; 5],
        }
    }

    /// Makes `root` the word that the handler starts from: [`Walk::root`](crate::handler::Walk::root) says what it is.
    ///
    /// To be called on this CPU, with interrupts masked or before anything in kuseg is touched.
    pub fn set_root(&self, root: u32) {
        self.root.store(root, Ordering::Relaxed);
    }

    /// Returns the word that the handler starts from.
    pub fn root(&self) -> u32 {
        self.root.load(Ordering::Relaxed)
    }

    pub(crate) const ROOT: u32 = offset_of!(Self, root) as u32;
    pub(crate) const NEXT: u32 = offset_of!(Self, next) as u32;
    pub(crate) const END: u32 = offset_of!(Self, end) as u32;
    pub(crate) const SAVE: u32 = offset_of!(Self, save) as u32;
}

// The size and the alignment are 32, so no block crosses a 32 KiB boundary, and one `lui` serves all its words.
const _: () = assert!(size_of::<Block>() == 32);
