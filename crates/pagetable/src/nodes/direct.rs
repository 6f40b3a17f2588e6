//! Whole pages from a kernel's frame allocator, reached through a direct map.

use core::fmt;
use core::marker::PhantomData;

use tlbkit_addr::{PageSize, PhysAddr};

use super::{Held, NodeAddr, Nodes, Reclaim, Record};
use crate::Mode;
use crate::word::Word;
use crate::word::atomics::Ordering;

/// A kernel's allocator of physical frames, as far as one [`Direct`] uses it: frames of one size.
///
/// # Safety
///
/// A frame that `take` returns is aligned to [`SIZE`](Self::SIZE) and belongs to the caller until it is given back.
pub unsafe trait FrameSource: Sync {
    /// The size of the frames: that of a node.
    const SIZE: PageSize = PageSize::K4;

    /// Takes a frame, or returns `None` if there is none.
    ///
    /// A frame that has no record in the storage, or whose address a link cannot hold, goes back at once, and the table
    /// reports that memory is exhausted. So a source chooses among the frames of which both is true.
    fn take(&self) -> Option<PhysAddr>;

    /// Takes back a frame that `take` returned.
    fn give(&self, frame: PhysAddr);
}

/// Nodes that are whole frames: words hold physical addresses, memory is `offset` further up.
///
/// For tables whose nodes are all one page, such as those that hardware walks. The records live in an array that the
/// kernel hands over, one per frame of its memory, as a field of its page structs would: 4 bytes for a frame of 4 KiB,
/// from where memory begins.
///
/// ```text
///   physical   0              first                                  first + records.len() frames
///              |   (nothing)   | frame 0 | frame 1 | frame 2 | ...    |
///   records                    | r0      | r1      | r2      | ...    |
/// ```
pub struct Direct<'m, W, M: Mode, S> {
    source: S,
    offset: usize,
    /// The number of the frame of the first record.
    first: usize,
    records: &'m [Record],
    held: Held,
    mode: PhantomData<(W, M::Lock)>,
}

impl<'m, W: Word, M: Mode, S: FrameSource> Direct<'m, W, M, S> {
    /// Returns storage of nodes from `source`.
    ///
    /// `offset` is what is added to a physical address to reach its memory, wrapping; `records[n]` belongs to frame `n`,
    /// counted in frames from the one at `first`.
    ///
    /// # Safety
    ///
    /// Every frame that the source hands out is mapped there for reading and writing, its provenance
    /// [exposed](core::ptr::with_exposed_provenance) if it has one. There are fewer than 2^31 records, the frames of all of
    /// them have addresses, and until the last table and batch with nodes from here is gone, nobody else uses them, no
    /// other storage either.
    pub const unsafe fn new(source: S, offset: usize, first: PhysAddr, records: &'m [Record]) -> Self {
        Self {
            source,
            offset,
            first: first.get() >> S::SIZE.shift(),
            records,
            held: Held::new(),
            mode: PhantomData,
        }
    }

    /// Returns the frame source.
    pub const fn source(&self) -> &S {
        &self.source
    }

    /// Returns the number of a frame among those that have a record; of frames below, one beyond all of them.
    #[inline(always)]
    fn number(&self, node: NodeAddr) -> usize {
        (node.get() >> S::SIZE.shift()).wrapping_sub(self.first)
    }
}

// SAFETY: the source hands out each frame once, mapped at `offset`; frames without a record are refused, so none lies
// below the first that has one, and so are those that end above `last`; a frame is cleared before it is handed on.
unsafe impl<W: Word, M: Mode, S: FrameSource> Nodes for Direct<'_, W, M, S> {
    type Word = W;
    type Mode = M;

    fn lowest(&self) -> NodeAddr {
        NodeAddr::new(self.first << S::SIZE.shift())
    }

    fn take_within(&self, words: usize, last: usize) -> Option<NodeAddr> {
        if words.checked_mul(W::BYTES)? > S::SIZE.bytes() {
            return None;
        }
        let frame = self.source.take()?;
        let node = NodeAddr::new(frame.get());
        let end = node.get() | S::SIZE.mask();
        // Frame 0 cannot be told from no node.
        let fits = node.get() != 0 && end <= last && end as u64 <= u64::MAX >> (64 - W::BITS);
        let Some(record) = self.records.get(self.number(node)).filter(|_| fits) else {
            self.source.give(frame);
            return None;
        };
        record.store(0, Ordering::Relaxed);
        // SAFETY: the frame is ours and mapped.
        unsafe { core::ptr::write_bytes(self.at(node).cast::<u8>().cast_mut(), 0, S::SIZE.bytes()) };
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

// SAFETY: records are by frame number, which is below the number of records for every taken frame, so that one more is below
// 2^31 and not zero. In shared
// mode all parts are `Sync`, the marker of the mode's lock included.
unsafe impl<W: Word, M: Mode, S: FrameSource> Reclaim for Direct<'_, W, M, S> {
    unsafe fn free(&self, node: NodeAddr, _clean: bool) {
        self.source.give(PhysAddr::new(node.get()));
    }

    unsafe fn link(&self, node: NodeAddr) -> *const Record {
        self.records.as_ptr().wrapping_add(self.number(node))
    }

    fn index_of(&self, node: NodeAddr) -> u32 {
        // Counted from one: zero is no node.
        self.number(node) as u32 + 1
    }

    fn node_of(&self, index: u32) -> NodeAddr {
        NodeAddr::new((self.first + (index - 1) as usize) << S::SIZE.shift())
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
            .field("first", &self.first)
            .finish_non_exhaustive()
    }
}
