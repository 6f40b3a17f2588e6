//! Physical memory.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, Ordering};

/// The machine's physical memory, in aligned words.
///
/// A word is a value: what the guest loads is what Rust stored, in either byte order. The order shows in bytes, half
/// words and double words only, which the interpreter takes apart and puts together itself.
pub trait Memory {
    /// Returns the word at a physical address, a multiple of four, or `None` if there is no memory.
    fn load(&mut self, at: u64) -> Option<u32>;

    /// Stores a word at a physical address, a multiple of four, and tells whether there is memory.
    fn store(&mut self, at: u64, word: u32) -> bool;
}

/// A piece of the host's memory that the guest sees at a physical address.
#[derive(Clone, Copy, Debug)]
pub struct Window<'m> {
    at: u64,
    first: *const AtomicU32,
    words: usize,
    memory: PhantomData<&'m [AtomicU32]>,
}

impl<'m> Window<'m> {
    /// Shows these words at the physical address `at`.
    pub const fn new(at: u64, words: &'m [AtomicU32]) -> Self {
        Self { at, first: words.as_ptr(), words: words.len(), memory: PhantomData }
    }

    /// Shows `words` words from `first` on at the physical address `at`: memory that a table or a cache was built in.
    ///
    /// # Safety
    ///
    /// The memory is there for reading and writing for as long as `'m`, and while the machine runs other code accesses
    /// it only with atomic instructions.
    pub const unsafe fn from_raw(at: u64, first: *const AtomicU32, words: usize) -> Self {
        Self { at, first, words, memory: PhantomData }
    }

    fn cell(&self, at: u64) -> Option<&AtomicU32> {
        let index = usize::try_from(at.checked_sub(self.at)? / 4).ok()?;
        // SAFETY: the index is within the window, whose memory is live: a slice, or the caller of `from_raw` says so.
        (index < self.words).then(|| unsafe { &*self.first.add(index) })
    }
}

/// Memory that is made of windows. The first that has an address is it.
#[derive(Clone, Copy, Debug)]
pub struct Windows<'m, const W: usize>(pub [Window<'m>; W]);

impl<const W: usize> Memory for Windows<'_, W> {
    fn load(&mut self, at: u64) -> Option<u32> {
        let cell = self.0.iter().find_map(|window| window.cell(at))?;
        Some(cell.load(Ordering::Relaxed))
    }

    fn store(&mut self, at: u64, word: u32) -> bool {
        let cell = self.0.iter().find_map(|window| window.cell(at));
        cell.map(|cell| cell.store(word, Ordering::Relaxed)).is_some()
    }
}
