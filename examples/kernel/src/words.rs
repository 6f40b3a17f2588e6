//! A frame of memory as words, and what is done to all of its words.

use core::sync::atomic::{AtomicUsize, Ordering};

use tlbkit::{PageSize, Pfn};

use crate::arch;

/// A frame of memory. It holds nothing but words that any code may read and write.
#[repr(C, align(4096))]
pub(crate) struct Words(pub(crate) Page);

/// The words of a frame.
pub(crate) type Page = [AtomicUsize; PageSize::K4.bytes() / size_of::<usize>()];

impl Words {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicUsize::new(0) }; _])
    }

    /// Returns the frame's number.
    pub(crate) fn frame(&self) -> Pfn {
        Pfn::new(arch::physical(core::ptr::from_ref(self).addr()) >> PageSize::K4.shift())
    }
}

/// Stores a word everywhere in a frame.
pub(crate) fn fill(words: &Page, word: usize) {
    words.iter().for_each(|at| at.store(word, Ordering::Relaxed));
}

/// Copies a frame, eight words at a time: in a loop of single ones every other instruction would count.
pub(crate) fn copy(from: &Page, to: &Page) {
    for (from, to) in from.chunks_exact(8).zip(to.chunks_exact(8)) {
        (0..8).for_each(|at| to[at].store(from[at].load(Ordering::Relaxed), Ordering::Relaxed));
    }
}
