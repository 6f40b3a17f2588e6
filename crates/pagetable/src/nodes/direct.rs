//! Whole pages from a kernel's frame allocator, reached through a direct map.

use core::fmt;
use core::marker::PhantomData;

use tlbkit_addr::{PageSize, PhysAddr};

use super::{Held, NodeAddr, Nodes, Reclaim, Record, Store};
use crate::Mode;
use crate::word::Word;
use crate::word::atomics::Ordering;

/// A kernel's physical frames, as far as one [`Direct`] uses them: where they come from and go to, where their memory is
/// mapped, and where the kernel keeps 32 bits for each.
///
/// # Safety
///
/// A frame that `take` returns is aligned to [`SIZE`](Self::SIZE) and belongs to the caller until it is given back. Until
/// then `memory` returns, at every call, where its `SIZE` bytes are mapped for reading and writing, aligned as the frame
/// is; and `record` returns the same cell at every call, which belongs to no other frame and which no other code
/// uses. What holds for `take` holds for `take_zeroed`, and all bytes are zero. `memory`, `record` and `stored` do not
/// unwind: tables call them in intermediate states.
pub unsafe trait FrameSource: Sync {
    /// The size of the frames: that of a node.
    const SIZE: PageSize = PageSize::K4;

    /// Takes a frame, or returns `None` if there is none.
    ///
    /// A frame that has no record, or whose address a link cannot hold, goes back at once, and the table reports that
    /// memory is exhausted. So a source hands out only frames that have a record and an address that a link can hold.
    fn take(&self) -> Option<PhysAddr>;

    /// Takes back a frame that `take` returned.
    fn give(&self, frame: PhysAddr);

    /// Takes a frame that is all zero, if there is one at hand: a node need not be cleared then.
    #[inline]
    fn take_zeroed(&self) -> Option<PhysAddr> {
        None
    }

    /// Takes back a frame that is all zero, as most nodes of a table are when they are freed. A kernel that keeps such frames apart
    /// hands them out by [`take_zeroed`](Self::take_zeroed).
    #[inline]
    fn give_zeroed(&self, frame: PhysAddr) {
        self.give(frame);
    }

    /// Returns where the memory of a frame is mapped: in a kernel with a direct map its address plus a constant, made a
    /// pointer by [`with_exposed_provenance_mut`](core::ptr::with_exposed_provenance_mut).
    fn memory(&self, frame: PhysAddr) -> *mut u8;

    /// Is called after each store to a word of a node: see [`Nodes::stored`]. Addresses are physical.
    #[inline(always)]
    fn stored(&self, store: Store) {
        let _ = store;
    }

    /// Returns the record of a frame: a field of the kernel's page structs, or an element of an array. `None` if the frame
    /// is not to be a node.
    fn record(&self, frame: PhysAddr) -> Option<&Record>;
}

/// Nodes that are whole frames: words hold physical addresses.
///
/// For tables whose nodes are all one page, such as those that hardware walks.
pub struct Direct<W, M: Mode, S> {
    source: S,
    held: Held,
    mode: PhantomData<(W, M::Lock)>,
}

impl<W: Word, M: Mode, S: FrameSource> Direct<W, M, S> {
    /// Returns storage of nodes from `source`.
    pub const fn new(source: S) -> Self {
        Self { source, held: Held::new(), mode: PhantomData }
    }

    /// Returns the frame source.
    pub const fn source(&self) -> &S {
        &self.source
    }

    /// Returns the record of a frame that is a node.
    #[inline(always)]
    fn record_of(&self, node: NodeAddr) -> *const Record {
        self.source.record(PhysAddr::new(node.get())).map_or(core::ptr::null(), core::ptr::from_ref)
    }
}

// SAFETY: the source hands out each frame once, with memory and a record of its own; frames without a record are refused,
// and so are those that end above `last`; a frame is cleared before it is handed on, unless it is zero by the source's promise.
unsafe impl<W: Word, M: Mode, S: FrameSource> Nodes for Direct<W, M, S> {
    type Word = W;
    type Mode = M;

    fn lowest(&self) -> NodeAddr {
        // Frame 0 is never a node.
        NodeAddr::new(S::SIZE.bytes())
    }

    fn take_within(&self, words: usize, last: usize) -> Option<NodeAddr> {
        if words.checked_mul(W::BYTES)? > S::SIZE.bytes() {
            return None;
        }
        let zeroed = self.source.take_zeroed();
        let frame = match zeroed {
            Some(frame) => frame,
            None => self.source.take()?,
        };
        let node = NodeAddr::new(frame.get());
        let end = node.get() | S::SIZE.mask();
        // Frame 0 cannot be told from no node, and the number of a frame is to fit a record.
        let fits = node.get() != 0
            && end <= last
            && end as u64 <= u64::MAX >> (64 - W::BITS)
            && (node.get() as u64) >> S::SIZE.shift() < 1 << 31;
        let Some(record) = self.source.record(frame).filter(|_| fits) else {
            match zeroed {
                Some(frame) => self.source.give_zeroed(frame),
                None => self.source.give(frame),
            }
            return None;
        };
        record.store(0, Ordering::Relaxed);
        if zeroed.is_none() {
            // SAFETY: `take` has given the frame to this storage alone, and `memory` maps all its `SIZE` bytes.
            unsafe { core::ptr::write_bytes(self.source.memory(frame), 0, S::SIZE.bytes()) };
        }
        Some(node)
    }

    #[inline(always)]
    fn stored(&self, store: Store) {
        self.source.stored(store);
    }

    fn room(&self, _words: usize) -> usize {
        usize::MAX
    }

    #[inline(always)]
    unsafe fn at(&self, node: NodeAddr) -> *const W::Cell {
        self.source.memory(PhysAddr::new(node.get())).cast_const().cast()
    }

    #[inline(always)]
    unsafe fn record(&self, node: NodeAddr, _words: usize) -> *const Record {
        self.record_of(node)
    }
}

// SAFETY: a record is the frame's own, by the source's promise; the number of a taken frame is below 2^31 and not zero. In
// shared mode all parts are `Sync`, the marker of the mode's lock included.
unsafe impl<W: Word, M: Mode, S: FrameSource> Reclaim for Direct<W, M, S> {
    unsafe fn free(&self, node: NodeAddr, clean: bool) {
        let frame = PhysAddr::new(node.get());
        // The rest of the frame was zero when the frame was taken, and no code has written to it.
        if clean { self.source.give_zeroed(frame) } else { self.source.give(frame) }
    }

    unsafe fn link(&self, node: NodeAddr) -> *const Record {
        self.record_of(node)
    }

    fn index_of(&self, node: NodeAddr) -> u32 {
        (node.get() >> S::SIZE.shift()) as u32
    }

    fn node_of(&self, index: u32) -> NodeAddr {
        NodeAddr::new((index as usize) << S::SIZE.shift())
    }

    fn held(&self) -> &Held {
        &self.held
    }

    fn shared(&self) -> bool {
        M::SHARED
    }
}

impl<W, M: Mode, S> fmt::Debug for Direct<W, M, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Direct").field("held", &self.held).finish_non_exhaustive()
    }
}
