//! Storage that corrupts one store, to test that a check can fail.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use tlbkit_pagetable::Word;
use tlbkit_pagetable::nodes::{NodeAddr, Nodes, Reclaim};

use crate::wrap::forward;

/// A fault in the store of a PTE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An unmap loses its store: the old translation remains, and a second clear of the entry does not remove it.
    Stale,
    /// A map loses its store: the translation never appears.
    Lost,
    /// A map stores the wrong frame: one bit of its number is flipped.
    Wrong,
}

/// Storage that injects one [`Fault`].
///
/// Only stores of PTEs are corrupted, never those of links: a wrong link is a wild pointer, which no check survives. So the
/// caller decides which words are PTEs. In a table whose frame numbers differ from the addresses of its nodes, for example, a PTE
/// is a word whose [`Format::frame`](tlbkit_pagetable::format::Format::frame) is one of the table's frames.
///
/// ```
/// use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr};
/// use tlbkit_conformance::{Fault, Faulty};
/// use tlbkit_pagetable::format::{Compact, Format};
/// use tlbkit_pagetable::nodes::{Chunk, Slab};
/// use tlbkit_pagetable::{Local, Solo, mpt};
///
/// let mut memory = vec![Chunk::ZERO; 16];
/// let slab = Slab::<u64, Solo>::new(&mut memory, 0)?;
/// let frames = 0x10_0000..0x20_0000;
/// let pte = |word| Compact::is_leaf(word, true) && frames.contains(&Compact::frame(word, PageSize::K4).get());
/// // The second PTE that is stored gets a wrong frame.
/// let nodes = Faulty::new(slab, Fault::Wrong, 1, Compact::STEP, pte);
///
/// let mut table = Local::new(mpt::Mpt4::new(&nodes)?, |_flush| ());
/// let pages = Pages::count(VirtAddr::new(0x40_0000).vpn(PageSize::K4), 2).unwrap();
/// table.map(pages, Pfn::new(0x10_0000), PageSize::K4, Attr::READ)?;
/// let frame = |at| table.lookup(VirtAddr::new(at)).unwrap().frame.get();
/// assert_eq!((frame(0x40_0000), frame(0x40_1000)), (0x10_0000, 0x10_0000));
/// # table.destroy();
/// assert!(nodes.planted());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Faulty<N: Nodes, P> {
    inner: N,
    fault: Fault,
    /// The number of correct stores before the corrupted one.
    left: AtomicUsize,
    /// The entry whose clearing store was lost. A table may clear an entry twice, and the second store must not repair the fault.
    stale: OnceLock<(NodeAddr, usize)>,
    bit: N::Word,
    pte: P,
}

impl<N: Nodes, P: Fn(N::Word) -> bool> Faulty<N, P> {
    /// Wraps a storage. The fault corrupts the store that follows `stores` stores of its kind. `bit` is the bit that
    /// [`Fault::Wrong`] flips: a format's [`STEP`](tlbkit_pagetable::format::Format::STEP) is the lowest bit of a frame number.
    /// `pte` tells whether a word is a PTE.
    pub const fn new(inner: N, fault: Fault, stores: usize, bit: N::Word, pte: P) -> Self {
        Self { inner, fault, left: AtomicUsize::new(stores), stale: OnceLock::new(), bit, pte }
    }

    /// Tells whether the fault has happened.
    pub fn planted(&self) -> bool {
        self.left.load(Ordering::Relaxed) == DONE
    }

    /// Returns the inner storage.
    pub const fn inner(&self) -> &N {
        &self.inner
    }

    /// Returns the word to store instead of `word`, or `None` if the store is lost.
    ///
    /// # Safety
    ///
    /// The contract of [`Nodes::store_relaxed`].
    unsafe fn corrupt(&self, node: NodeAddr, index: usize, word: N::Word) -> Option<N::Word> {
        let hit = match self.fault {
            // SAFETY: this function has the contract of `Nodes::store_relaxed`, under which the writer may read the word.
            Fault::Stale => !(self.pte)(word) && (self.pte)(unsafe { self.inner.read(node, index) }),
            Fault::Lost | Fault::Wrong => (self.pte)(word),
        };
        if hit && self.stale.get() == Some(&(node, index)) {
            return None;
        }
        let left = self.left.load(Ordering::Relaxed);
        if hit && left != DONE {
            // There is one writer, so a load and a store are enough.
            self.left.store(left.checked_sub(1).unwrap_or(DONE), Ordering::Relaxed);
        }
        if !hit || left != 0 {
            return Some(word);
        }
        if self.fault == Fault::Stale {
            // The cell is set only once, because one store is corrupted.
            let _ = self.stale.set((node, index));
        }
        (self.fault == Fault::Wrong).then(|| (word | self.bit) & !(word & self.bit))
    }
}

/// The fault has happened.
const DONE: usize = usize::MAX;

// SAFETY: the nodes are those of the inner storage. A fault changes a PTE and no link. `free` passes no node on as clean, because
// a lost store may have left it dirty.
unsafe impl<N: Nodes, P: Fn(N::Word) -> bool> Nodes for Faulty<N, P> {
    type Word = N::Word;
    type Mode = N::Mode;

    forward!(take);
    forward!(cells);
    forward!(follow);

    // Stores of several words are made one by one, because the inner storage would make them without the fault.
    unsafe fn fill(&self, node: NodeAddr, first: usize, count: usize, word: N::Word, step: N::Word) {
        for at in 0..count {
            // SAFETY: the contract of `Nodes::fill` is that of `store_relaxed` for every word.
            unsafe { self.store_relaxed(node, first + at, word.advance(step, at)) };
        }
    }

    unsafe fn edit(&self, node: NodeAddr, first: usize, count: usize, change: impl Fn(N::Word) -> N::Word) {
        for at in first..first + count {
            // SAFETY: the contract of `Nodes::edit` is that of `store_relaxed` for every word.
            unsafe { self.store_relaxed(node, at, change(self.read(node, at))) };
        }
    }

    unsafe fn publish(&self, node: NodeAddr, index: usize, word: N::Word) {
        // SAFETY: this function's contract holds for the inner storage.
        unsafe {
            if let Some(word) = self.corrupt(node, index, word) {
                self.inner.publish(node, index, word);
            }
        }
    }

    unsafe fn store_relaxed(&self, node: NodeAddr, index: usize, word: N::Word) {
        // SAFETY: this function's contract holds for the inner storage.
        unsafe {
            if let Some(word) = self.corrupt(node, index, word) {
                self.inner.store_relaxed(node, index, word);
            }
        }
    }
}

// SAFETY: every result is that of the inner storage. If the inner storage is `Sync`, so is every field of this one except `pte`.
// If `pte` is not `Sync`, this type is not, so no table can use it on another CPU.
unsafe impl<N: Nodes, P: Fn(N::Word) -> bool> Reclaim for Faulty<N, P> {
    unsafe fn free(&self, node: NodeAddr, _clean: bool) {
        // SAFETY: this function's contract holds for the inner storage. The table may think a lost store happened.
        unsafe { self.inner.free(node, false) };
    }

    forward!(reclaim);
    forward!(shared);
}

impl<N: Nodes, P> fmt::Debug for Faulty<N, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty")
            .field("inner", &self.inner)
            .field("fault", &self.fault)
            .finish_non_exhaustive()
    }
}
