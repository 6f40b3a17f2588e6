//! Storage that counts the loads of walkers.

use std::sync::atomic::{AtomicUsize, Ordering};

use tlbkit_pagetable::nodes::{NodeAddr, Nodes, Reclaim};

use crate::wrap::forward;

/// Storage that sees every word that a walker follows: memory references are counted, not declared.
///
/// The writer's own reads are not counted.
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

    /// Returns how many words walkers have loaded so far.
    pub fn loads(&self) -> u64 {
        self.loads.load(Ordering::Relaxed) as u64
    }

    /// Returns the storage inside.
    pub const fn inner(&self) -> &N {
        &self.inner
    }
}

// SAFETY: whatever it hands out came from the storage inside, as it was.
unsafe impl<N: Nodes> Nodes for Counting<N> {
    type Word = N::Word;
    type Mode = N::Mode;

    forward!(take);
    forward!(cells);
    forward!(store);

    unsafe fn follow(&self, node: NodeAddr, index: usize) -> N::Word {
        self.loads.fetch_add(1, Ordering::Relaxed);
        // SAFETY: this function's contract, about the storage inside.
        unsafe { self.inner.follow(node, index) }
    }
}

// SAFETY: every answer is that of the storage inside; the counter is atomic, so the wrapper is `Sync` if that is.
unsafe impl<N: Nodes> Reclaim for Counting<N> {
    forward!(free);
    forward!(reclaim);
    forward!(shared);
}
