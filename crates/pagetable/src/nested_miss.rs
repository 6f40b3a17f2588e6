//! The observer of nested TLB misses.

use tlbkit_addr::VirtAddr;

/// A model of the TLB, which a walk of a linear table in virtual memory queries.
///
/// This trait does not count loads: a storage that overrides [`Nodes::walked_at`](crate::nodes::Nodes::walked_at) can count them.
pub trait NestedMissObserver {
    /// Tells whether the TLB translates the page of the linear table at `page`. `level` is 0 for pages that hold the PTEs of the
    /// program's pages, 1 for pages that hold the PTEs of the pages of level 0, and so on. The root is in physical memory, so
    /// this function is not called for it.
    ///
    /// `false` means a nested miss: the walk loads the PTE of the page from the level above, and the observer adds the
    /// translation to its TLB. The function is also called for a page that the table does not have, because the machine looks
    /// that page up, too; a result of `true` is then ignored.
    fn translates(&mut self, level: usize, page: VirtAddr) -> bool;
}
