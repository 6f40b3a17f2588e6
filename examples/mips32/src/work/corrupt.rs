//! A planted fault: a guard that has become another one.

use tlbkit_pagetable::Leaf;
use tlbkit_pagetable::nodes::Chunk;

use crate::memory;
use crate::vm::structure::{GUARD, Structure};

/// A word that was changed, and is put right when this is dropped.
#[derive(Debug)]
pub struct Restore {
    cell: *mut u32,
    word: u32,
}

impl Drop for Restore {
    fn drop(&mut self) {
        if !self.cell.is_null() {
            // SAFETY: the word of a node, which no code has changed meanwhile.
            unsafe { self.cell.write_volatile(self.word) };
        }
    }
}

/// Changes the guard by which a walk finds a leaf: looked for in all memory for nodes, for that is all one must know.
pub fn guard<S: Structure>(leaf: &Leaf) -> Restore {
    let (first, chunks) = memory::node_range();
    for index in 0..chunks * size_of::<Chunk>() / 4 {
        let cell = core::ptr::with_exposed_provenance_mut::<u32>(first).wrapping_add(index);
        // SAFETY: memory for nodes; a planted fault changes it behind the table's back.
        unsafe {
            let word = cell.read_volatile();
            if S::is_guard(word, leaf) {
                cell.write_volatile(word ^ GUARD);
                return Restore { cell, word };
            }
        }
    }
    Restore { cell: core::ptr::null_mut(), word: 0 }
}
