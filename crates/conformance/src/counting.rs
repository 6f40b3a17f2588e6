//! Storage that counts the loads of walkers.

use std::sync::atomic::{AtomicUsize, Ordering};

use tlbkit_pagetable::nodes::{NodeAddr, Nodes, Reclaim};

use crate::wrap::forward;

/// Storage that counts the words that walkers load.
///
/// The writer's own loads are not counted.
///
/// ```
/// use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr};
/// use tlbkit_conformance::Counting;
/// use tlbkit_pagetable::nodes::{Chunk, Slab};
/// use tlbkit_pagetable::{Local, Solo, mpt};
///
/// let mut memory = vec![Chunk::ZERO; 16];
/// let nodes = Counting::new(Slab::<u64, Solo>::new(&mut memory, 0)?);
/// let mut table = Local::new(mpt::Mpt4::new(&nodes)?, |_flush| ());
/// let at = VirtAddr::new(0x40_0000);
/// table.map(Pages::one(at.vpn(PageSize::K4)), Pfn::new(3), PageSize::K4, Attr::READ)?;
/// let before = nodes.loads();
/// table.lookup(at).unwrap();
/// assert_eq!(nodes.loads() - before, 4);
/// table.destroy();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Counting<N> {
    inner: N,
    loads: AtomicUsize,
}

impl<N> Counting<N> {
    /// Wraps a storage.
    pub const fn new(inner: N) -> Self {
        Self { inner, loads: AtomicUsize::new(0) }
    }

    /// Returns the number of words that walkers have loaded so far.
    pub fn loads(&self) -> u64 {
        self.loads.load(Ordering::Relaxed) as u64
    }

    /// Returns the inner storage.
    pub const fn inner(&self) -> &N {
        &self.inner
    }
}

// SAFETY: it returns the nodes of the inner storage unchanged.
unsafe impl<N: Nodes> Nodes for Counting<N> {
    type Word = N::Word;
    type Mode = N::Mode;

    forward!(take);
    forward!(cells);
    forward!(store);

    unsafe fn follow(&self, node: NodeAddr, index: usize) -> N::Word {
        self.loads.fetch_add(1, Ordering::Relaxed);
        // SAFETY: this function's contract holds for the inner storage.
        unsafe { self.inner.follow(node, index) }
    }
}

// SAFETY: every result is that of the inner storage; the counter is atomic, so the wrapper is `Sync` if the inner storage is.
unsafe impl<N: Nodes> Reclaim for Counting<N> {
    forward!(free);
    forward!(reclaim);
    forward!(shared);
}
