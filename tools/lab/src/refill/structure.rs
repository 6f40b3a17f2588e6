//! What a structure is to the machine: a table, and what its handler walks.

use tlbkit_pagetable::nodes::Slab;
use tlbkit_pagetable::{Error, Private, Solo};
use tlbkit_refill::mips3::{Block, Walk};

/// Node storage.
pub(super) type Storage<'m> = Slab<'m, u32, Solo>;

/// A table with a handler.
pub(super) trait Structure {
    /// The table.
    type Table<'n>: Private<'n>;

    /// Returns an empty table in `nodes`.
    fn build<'n>(nodes: &'n Storage<'n>) -> Result<Self::Table<'n>, Error>;

    /// Returns what its handler walks.
    fn walk() -> Result<Walk, tlbkit_refill::Error>;

    /// Returns what the handler starts from.
    fn root(table: &Self::Table<'_>) -> Block;
}
