//! Node storage of whole frames from a kernel's frame allocator, accessed through a direct map.

use core::marker::PhantomData;
use core::{fmt, ptr};

use tlbkit_addr::{PageSize, PhysAddr};

use super::{Held, NodeAddr, Nodes, Reclaim, Record, Store};
use crate::Mode;
use crate::word::Word;
use crate::word::atomics::Ordering;

/// The interface of a [`Direct`] or [`Pieces`](super::Pieces) to a kernel's physical frames: their allocation, the mapping
/// of their memory, and a record of 32 bits for each.
///
/// # Safety
///
/// An implementation ensures:
///
/// - a frame that `take` or `take_zeroed` returns is aligned to [`SIZE`](Self::SIZE), and belongs to the caller until the
///   caller gives it back;
/// - until then, every call of `memory` returns the address at which the frame's `SIZE` bytes are mapped for reads and
///   writes, aligned like the frame;
/// - until then, every call of `record` returns the same cell, which belongs to no other frame and which no other code uses;
/// - all bytes of a frame that `take_zeroed` returns are zero;
/// - the same holds for a block that `take_block` returns, with its own size instead of `SIZE`: its memory is in one piece. A call of
///   `give` or `give_zeroed` for its first frame gives back the whole block;
/// - `memory`, `record` and `stored` do not unwind, because tables call them in intermediate states.
pub unsafe trait FrameSource: Sync {
    /// The size of the frames, which is that of a node.
    const SIZE: PageSize = PageSize::K4;

    /// Takes a frame, or returns `None` if there is none.
    ///
    /// The storage gives a frame without a record, or whose address a link cannot hold, back at once, and the table reports
    /// that memory is exhausted. So a source should return only frames with a record and an address that a link can hold, and of the
    /// first 2<sup>31</sup> frames, below 8 TiB where they have 4 KiB.
    fn take(&self) -> Option<PhysAddr>;

    /// Takes back a frame that `take` returned.
    fn give(&self, frame: PhysAddr);

    /// Takes a frame whose bytes are all zero, if the source has one: the storage need not clear it then.
    #[inline]
    fn take_zeroed(&self) -> Option<PhysAddr> {
        None
    }

    /// Takes `size` bytes of contiguous frames, aligned to `size`, which is larger than [`SIZE`](Self::SIZE): a root of several
    /// pages, as second stages of translation have ([`GuestX4`](crate::geometry::GuestX4), [`GuestIpa`](crate::geometry::GuestIpa)).
    /// A table takes one when it is made, and gives it back when it is destroyed; all its other nodes are single frames.
    ///
    /// The storage gives a block back by [`give`](Self::give) with its first frame. So a source that has blocks records how large each
    /// one is, for instance beside the record of its first frame. The default is that there are no blocks: then the table
    /// reports that memory is exhausted.
    #[inline]
    fn take_block(&self, size: PageSize) -> Option<PhysAddr> {
        let _ = size;
        None
    }

    /// Takes back a frame whose bytes are all zero, as most nodes are when they are freed. A kernel that keeps such frames
    /// separately can return them by [`take_zeroed`](Self::take_zeroed).
    #[inline]
    fn give_zeroed(&self, frame: PhysAddr) {
        self.give(frame);
    }

    /// Returns the address at which the memory of a frame is mapped. In a kernel with a direct map, it is the frame's
    /// address plus a constant, converted by [`with_exposed_provenance_mut`](core::ptr::with_exposed_provenance_mut).
    fn memory(&self, frame: PhysAddr) -> *mut u8;

    /// Receives each store to a word of a node, after the store: see [`Nodes::stored`]. Addresses are physical.
    #[inline(always)]
    fn stored(&self, store: Store) {
        let _ = store;
    }

    /// Returns the record of a frame, for instance a field of the kernel's page structs or an element of an array. Returns
    /// `None` if the frame must not be a node.
    ///
    /// Each change of a page writes the record of the page's node. So where several CPUs write a table at a time, a record on a cache line
    /// of its own, as in a page struct, keeps them from waiting for each other's line.
    fn record(&self, frame: PhysAddr) -> Option<&Record>;
}

/// Storage whose nodes are whole frames. Words hold physical addresses.
///
/// It is for tables whose nodes are all one page, such as those that hardware walks. A root may be larger, if the source has
/// [blocks](FrameSource::take_block).
pub struct Direct<W, M: Mode, S> {
    source: S,
    held: Held,
    mode: PhantomData<(W, M::Lock)>,
}

impl<W: Word, M: Mode, S: FrameSource> Direct<W, M, S> {
    /// The number of frames, from address 0 on, of which nodes can be: a record holds the number of another frame in 31 bits.
    const FRAMES: u64 = 1 << 31;

    /// Returns storage of nodes from `source`.
    pub const fn new(source: S) -> Self {
        Self { source, held: Held::new(), mode: PhantomData }
    }

    /// Returns the frame source.
    pub const fn source(&self) -> &S {
        &self.source
    }

    /// Returns the record of a frame that is a node. By the contract of `FrameSource` every call returns the record that the frame
    /// had when the node was taken, until the frame is given back. For another frame the result may be null.
    #[inline(always)]
    fn record_of(&self, node: NodeAddr) -> *const Record {
        self.source.record(PhysAddr::new(node.get())).map_or(ptr::null(), ptr::from_ref)
    }
}

// SAFETY: by the contract of `FrameSource`, the source returns each frame or block to one taker at a time, aligned to its size, with
// its own memory and record. Those without a record, and those that end above `last`, are refused. A frame is cleared before it is
// returned, unless the source guarantees that it is zero.
unsafe impl<W: Word, M: Mode, S: FrameSource> Nodes for Direct<W, M, S> {
    type Word = W;
    type Mode = M;

    fn lowest(&self) -> NodeAddr {
        // Frame 0 is never a node.
        NodeAddr::new(S::SIZE.bytes())
    }

    fn take_within(&self, words: usize, last: usize) -> Option<NodeAddr> {
        let bytes = words.checked_mul(W::BYTES)?;
        let (frame, size, zeroed) = if bytes > S::SIZE.bytes() {
            let size = PageSize::from_shift(bytes.checked_next_power_of_two()?.ilog2())?;
            (self.source.take_block(size)?, size, false)
        } else if let Some(frame) = self.source.take_zeroed() {
            (frame, S::SIZE, true)
        } else {
            (self.source.take()?, S::SIZE, false)
        };
        let node = NodeAddr::new(frame.get());
        let end = node.get() | size.mask();
        // Address 0 means no node, and a record must be able to hold the frame's number: `Direct::FRAMES`.
        let fits = node.get() != 0
            && end <= last
            && end as u64 <= u64::MAX >> (64 - W::BITS)
            && (node.get() as u64) >> S::SIZE.shift() < Self::FRAMES;
        let Some(record) = self.source.record(frame).filter(|_| fits) else {
            if zeroed {
                self.source.give_zeroed(frame);
            } else {
                self.source.give(frame);
            }
            return None;
        };
        record.store(0, Ordering::Relaxed);
        if !zeroed {
            // SAFETY: by the contract of `FrameSource` the frame or block belongs to this storage, and `memory` maps its `size`
            // bytes.
            unsafe { ptr::write_bytes(self.source.memory(frame), 0, size.bytes()) };
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
    fn at(&self, node: NodeAddr) -> *const W::Cell {
        self.source.memory(PhysAddr::new(node.get())).cast_const().cast()
    }

    #[inline(always)]
    fn record_at(&self, node: NodeAddr, _words: usize) -> *const Record {
        self.record_of(node)
    }
}

// SAFETY: by the contract of `FrameSource` each frame has its own record. The number of a taken frame is not zero and less
// than 2^31. In shared mode all fields are `Sync`, including the marker with the mode's lock.
unsafe impl<W: Word, M: Mode, S: FrameSource> Reclaim for Direct<W, M, S> {
    unsafe fn free(&self, node: NodeAddr, clean: bool) {
        let frame = PhysAddr::new(node.get());
        // If the node's words are zero, the whole frame is: the rest was zero when the frame was taken, and no code has
        // written to it.
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
