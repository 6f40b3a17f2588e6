//! The page tables by name, and what the kernel must know of each.

use tlbkit_pagetable::nodes::{Chunk, Identity, Offset, Slab, SlabError, Window};
use tlbkit_pagetable::{Error, Solo, Table};

use crate::memory::KSEG0;

/// Node storage of a table on one CPU.
pub type Nodes<A> = Slab<'static, u32, Solo, A>;

/// A kind of page table.
pub trait Structure: 'static {
    /// What the words of the table hold of a node: its address in kseg0, or its physical address.
    type Window: Window;
    /// The table itself.
    type Table<'n>: Table<'n>;

    /// Returns storage for its nodes.
    ///
    /// # Errors
    ///
    /// If the memory does not do.
    fn nodes(memory: &'static mut [Chunk]) -> Result<Nodes<Self::Window>, SlabError>;

    /// Returns an empty table.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`].
    fn create<'n>(nodes: &'n Nodes<Self::Window>) -> Result<Self::Table<'n>, Error>;

    /// Returns the word by which the refill handler finds the table: it may change with every change of the table.
    fn root(table: &Self::Table<'_>) -> u32;
}

/// Storage whose words are addresses in kseg0.
fn in_kseg0(memory: &'static mut [Chunk]) -> Result<Nodes<Identity>, SlabError> {
    Slab::identity(memory)
}

/// Storage whose words are physical addresses.
fn physical(memory: &'static mut [Chunk]) -> Result<Nodes<Offset>, SlabError> {
    let base = memory.as_ptr().addr() - KSEG0;
    Slab::new(memory, base)
}
