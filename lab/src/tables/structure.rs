//! What a structure is to the measurements.

use tlbkit_pagetable::nodes::LinkRange;
use tlbkit_pagetable::{Error, Table, Word};

use super::storage::Storage;

/// A page table to measure.
pub(super) trait Structure {
    /// The words of its nodes.
    type Word: Word;
    /// The table itself.
    type Table<'n>: Table<'n>;

    /// Whether it lies in virtual memory and competes for the TLB.
    const LINEAR: bool = false;
    /// Whether aligned runs of pages are mapped as superpages.
    const SUPERPAGES: bool = false;
    /// The node addresses that its links can hold.
    const REACH: LinkRange = LinkRange::unsigned(32);

    /// Returns an empty table in `nodes`.
    fn build<'n>(nodes: &'n Storage<'n, Self::Word>) -> Result<Self::Table<'n>, Error>;

    /// Returns the most entries that one operation has moved, if the table moves any.
    fn moved_max(_table: &Self::Table<'_>) -> Option<usize> {
        None
    }
}
