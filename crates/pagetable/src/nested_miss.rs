//! What a walk through virtual memory asks.

use tlbkit_addr::VirtAddr;

/// The TLB, as a walk through a linear table in virtual memory meets it.
///
/// Loads are counted elsewhere: a storage that wraps [`Nodes::follow`](crate::nodes::Nodes::follow) sees every one.
pub trait NestedMissObserver {
    /// Tells whether the TLB translates the page of the linear table at `page`. `level` is 0 for pages that hold the
    /// PTEs of the program's pages, 1 for pages that hold the PTEs of those, and so on; the root is in physical
    /// memory and never asked about.
    ///
    /// If not, it is a nested miss: the walk loads the page's own PTE one level up, and the observer will find the
    /// translation in its TLB from then on, unless it evicts it. A page that the table does not have is asked about
    /// like any other, for the machine looks for it too; a yes is then taken as a no.
    fn translates(&mut self, level: usize, page: VirtAddr) -> bool;
}
