//! Whole pages from a kernel's frame allocator, reached through a direct map.

use core::fmt;
use core::marker::PhantomData;

use tlbkit_addr::{PageSize, PhysAddr};

use super::{Held, NodeAddr, Nodes, Reclaim, Record};
use crate::Mode;
use crate::word::Word;
use crate::word::atomics::Ordering;

/// A kernel's allocator of physical frames.
///
/// # Safety
///
/// A frame that `take` returns is aligned to its size and belongs to the caller until it is given back.
pub unsafe trait FrameSource: Sync {
    /// Takes a frame of `size`, or returns `None` if there is none.
    fn take(&self, size: PageSize) -> Option<PhysAddr>;

    /// Takes back a frame that `take` returned.
    fn give(&self, frame: PhysAddr, size: PageSize);
}

/// Nodes that are whole frames: words hold physical addresses, memory is `offset` further up.
///
/// For tables whose nodes are all one page, such as those that hardware walks. The records live in an array that the
/// kernel hands over, one per frame of memory, as a field of its page structs would.
pub struct Direct<'m, W, M: Mode, S> {
    source: S,
    offset: usize,
    size: PageSize,
    records: &'m [Record],
    held: Held,
    mode: PhantomData<(W, M::Lock)>,
}

impl<'m, W: Word, M: Mode, S: FrameSource> Direct<'m, W, M, S> {
    /// Returns storage of nodes of `size` from `source`.
    ///
    /// `offset` is the virtual address at which physical address 0 is mapped; `records[n]` belongs to frame `n`,
    /// counted in frames of `size` from physical address 0.
    ///
    /// # Safety
    ///
    /// Every frame of `size` that the source hands out is mapped there for reading and writing, its provenance
    /// [exposed](core::ptr::with_exposed_provenance) if it has one. There are fewer than 2^31 records, and until the last
    /// table and batch with nodes from here is gone, nobody else uses them, no other storage either.
    pub const unsafe fn new(source: S, offset: usize, size: PageSize, records: &'m [Record]) -> Self {
        Self { source, offset, size, records, held: Held::new(), mode: PhantomData }
    }

    /// Returns the frame source.
    pub const fn source(&self) -> &S {
        &self.source
    }

    fn number(&self, node: NodeAddr) -> usize {
        node.get() >> self.size.shift()
    }
}

// SAFETY: the source hands out each frame once, mapped at `offset`; frames without a record are refused; a frame is
// cleared before it is handed on.
unsafe impl<W: Word, M: Mode, S: FrameSource> Nodes for Direct<'_, W, M, S> {
    type Word = W;
    type Mode = M;

    fn take(&self, words: usize) -> Option<NodeAddr> {
        if words.checked_mul(W::BYTES)? > self.size.bytes() {
            return None;
        }
        let frame = self.source.take(self.size)?;
        let node = NodeAddr::new(frame.get());
        // A frame beyond the records cannot be a node, nor one that a word cannot lead to, and frame 0 cannot be told
        // from no node.
        let fits = node.get() != 0 && node.get() as u64 <= u64::MAX >> (64 - W::BITS);
        let Some(record) = self.records.get(self.number(node)).filter(|_| fits) else {
            self.source.give(frame, self.size);
            return None;
        };
        record.store(0, Ordering::Relaxed);
        // SAFETY: the frame is ours and mapped.
        unsafe { core::ptr::write_bytes(self.at(node).cast::<u8>().cast_mut(), 0, self.size.bytes()) };
        Some(node)
    }

    fn room(&self, _words: usize) -> usize {
        self.records.len()
    }

    #[inline(always)]
    unsafe fn at(&self, node: NodeAddr) -> *const W::Cell {
        // A kernel's direct map is memory that Rust never allocated: its addresses have no other provenance.
        core::ptr::with_exposed_provenance(self.offset.wrapping_add(node.get()))
    }

    #[inline(always)]
    unsafe fn record(&self, node: NodeAddr, _words: usize) -> *const Record {
        self.records.as_ptr().wrapping_add(self.number(node))
    }
}

// SAFETY: records are by frame number, which is below the number of records for every taken frame. In shared
// mode all parts are `Sync`, the marker of the mode's lock included.
unsafe impl<W: Word, M: Mode, S: FrameSource> Reclaim for Direct<'_, W, M, S> {
    unsafe fn free(&self, node: NodeAddr, _clean: bool) {
        self.source.give(PhysAddr::new(node.get()), self.size);
    }

    unsafe fn link(&self, node: NodeAddr) -> *const Record {
        self.records.as_ptr().wrapping_add(self.number(node))
    }

    fn index_of(&self, node: NodeAddr) -> u32 {
        self.number(node) as u32
    }

    fn node_of(&self, index: u32) -> NodeAddr {
        NodeAddr::new((index as usize) << self.size.shift())
    }

    fn held(&self) -> &Held {
        &self.held
    }

    fn shared(&self) -> bool {
        M::SHARED
    }
}

impl<W, M: Mode, S> fmt::Debug for Direct<'_, W, M, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Direct")
            .field("offset", &self.offset)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}
