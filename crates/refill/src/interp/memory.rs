//! The physical memory of the interpreter's machine.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, Ordering};

/// The machine's physical memory, in aligned words.
///
/// A word is a value: the guest loads the value that Rust code has stored, in either byte order. The byte order affects only
/// bytes, half words and double words, which the interpreter extracts from words and combines from words.
pub trait Memory {
    /// Returns the word at a physical address, which is a multiple of four, or `None` if there is no memory.
    fn load(&mut self, at: u64) -> Option<u32>;

    /// Stores a word at a physical address, which is a multiple of four. Returns whether there is memory.
    fn store(&mut self, at: u64, word: u32) -> bool;
}

/// A range of the host's memory that the guest accesses at a physical address.
#[derive(Clone, Copy, Debug)]
pub struct Window<'m> {
    at: u64,
    first: *const AtomicU32,
    words: usize,
    memory: PhantomData<&'m [AtomicU32]>,
}

impl<'m> Window<'m> {
    /// Maps these words to the physical address `at`.
    pub const fn new(at: u64, words: &'m [AtomicU32]) -> Self {
        Self { at, first: words.as_ptr(), words: words.len(), memory: PhantomData }
    }

    /// Maps `words` words from `first` on to the physical address `at`, for memory that holds a table or a cache.
    ///
    /// # Safety
    ///
    /// The caller ensures both for the lifetime `'m`:
    ///
    /// - `words` words from `first` on are valid for reads and writes, and `first` is aligned for `AtomicU32`;
    /// - while the machine runs, other code accesses these words only atomically.
    pub const unsafe fn from_raw(at: u64, first: *const AtomicU32, words: usize) -> Self {
        Self { at, first, words, memory: PhantomData }
    }

    fn cell(&self, at: u64) -> Option<&AtomicU32> {
        let index = usize::try_from(at.checked_sub(self.at)? / 4).ok()?;
        // SAFETY: `index` is less than `words`, and the window's words are valid for `'m`: `new` took them from a slice, and
        // the caller of `from_raw` has guaranteed it.
        (index < self.words).then(|| unsafe { &*self.first.add(index) })
    }
}

/// Memory that consists of windows. If several windows contain an address, the first one applies.
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
