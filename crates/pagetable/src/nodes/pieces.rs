//! Node storage of any node size up to a frame: nodes are cut from a kernel's frames, which are accessed through a direct
//! map.
//!
//! ```text
//!   0        16                      a frame of small nodes, all of one class
//!  +--------+----+----+----+-----+------+------+------+---
//!  | header | r0 | r1 | r2 |     |  n0  |  n1  |  n2  | ...       no node begins at the frame's begin
//!  +--------+----+----+----+-----+------+------+------+---
//!  +------------------------------------------------------+
//!  |  one node of more than half a frame                   |       its record is the frame's
//!  +------------------------------------------------------+
//! ```
//!
//! The frames of a class that have a free node are in a list. A frame whose last node is freed is given back at once. Larger
//! nodes are nodes of a [`Direct`].

use core::cell::{Cell, UnsafeCell};
use core::fmt;

use tlbkit_addr::{PageSize, PhysAddr};

use super::slab::{CLASSES, class_bytes, class_of, index_at};
use super::{Direct, FrameSource, Held, NodeAddr, Nodes, Reclaim, Record, Store};
use crate::Shared;
use crate::mode::{Lock as _, SpinLock};
use crate::word::Word;
use crate::word::atomics::Ordering;

/// The number of bytes of a frame.
const FRAME: usize = PageSize::K4.bytes();
/// The unit of node numbers, in bytes: nodes begin at multiples of it.
const UNIT: usize = 4;
/// The last address whose node number fits a record.
const REACH: usize = {
    let reach = UNIT as u64 * ((1 << 31) - 1);
    if reach < usize::MAX as u64 { reach as usize } else { usize::MAX }
};

/// The header of a frame of small nodes. Only the holder of the lock accesses it, except `class`, which is written before
/// the first node of the frame is taken.
#[repr(C)]
struct Header {
    /// The numbers of the next and the previous frame in the list of the class; 0 means none.
    next: Cell<u32>,
    previous: Cell<u32>,
    /// The index plus one of the first free node that was taken before, or 0 if there is none. Its record holds that of the
    /// next one.
    free: Cell<u16>,
    /// The number of nodes that are taken.
    used: Cell<u16>,
    /// The number of nodes that were ever taken.
    fresh: Cell<u16>,
    class: u16,
}

const HEADER: usize = size_of::<Header>();

/// The layout of a frame of a class.
#[derive(Clone, Copy)]
struct Cut {
    /// The offset of the first node, in bytes.
    first: u16,
    /// The number of nodes.
    nodes: u16,
}

static CUTS: [Cut; CLASSES] = {
    let mut cuts = [Cut { first: 0, nodes: 0 }; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        let bytes = class_bytes(class);
        // The alignment of a node.
        let align = 1 << bytes.trailing_zeros();
        let mut nodes = FRAME / bytes;
        while first(nodes, align) + nodes * bytes > FRAME {
            nodes -= 1;
        }
        assert!(nodes > 0 && first(nodes, align) >= HEADER + nodes * size_of::<Record>());
        cuts[class] = Cut { first: first(nodes, align) as u16, nodes: nodes as u16 };
        class += 1;
    }
    cuts
};

/// Returns the offset of the first of `nodes` nodes, in bytes.
const fn first(nodes: usize, align: usize) -> usize {
    (HEADER + nodes * size_of::<Record>()).next_multiple_of(align)
}

/// Storage of nodes of any size up to 4 KiB, from a kernel's frames, for tables with small nodes. Words hold physical
/// addresses.
///
/// A node of at most half a frame shares its frame with other nodes of its size class, of all tables of the storage. Only
/// larger nodes use [`FrameSource::record`].
pub struct Pieces<W, S> {
    frames: Direct<W, Shared, S>,
    lock: SpinLock,
    /// For each class, the number of the first frame with a free node; 0 if there is none.
    partial: UnsafeCell<[u32; CLASSES]>,
}

// SAFETY: only the holder of the lock accesses the lists, and the headers of the frames except `class`, which does not
// change while a node of the frame is taken. All other fields are `Sync`.
unsafe impl<W: Word, S: FrameSource> Sync for Pieces<W, S> {}

impl<W: Word, S: FrameSource> Pieces<W, S> {
    /// Returns storage of nodes from `source`.
    pub const fn new(source: S) -> Self {
        Self { frames: Direct::new(source), lock: SpinLock::new(), partial: UnsafeCell::new([0; CLASSES]) }
    }

    /// Returns the storage of whole frames, for tables whose nodes are all that large.
    pub const fn frames(&self) -> &Direct<W, Shared, S> {
        &self.frames
    }

    /// Returns the frame source.
    pub const fn source(&self) -> &S {
        self.frames.source()
    }

    /// Calls `f` with the lists, under the lock. `f` must not unwind, and must call no function of the source except
    /// `memory`.
    fn locked<T>(&self, f: impl FnOnce(&mut [u32; CLASSES]) -> T) -> T {
        self.lock.lock();
        // SAFETY: this CPU holds the lock, and `f` does not call `locked` again, so this is the only reference to the lists.
        let result = f(unsafe { &mut *self.partial.get() });
        self.lock.unlock();
        result
    }

    /// Returns the memory of the byte at an address in a taken frame.
    #[inline(always)]
    fn memory(&self, at: usize) -> *mut u8 {
        self.source().memory(PhysAddr::new(at & !(FRAME - 1))).wrapping_add(at % FRAME)
    }

    /// Returns the header of a frame of small nodes: one that is in a list, or of which a node is taken.
    #[inline(always)]
    fn header(&self, frame: usize) -> &Header {
        // SAFETY: such a frame belongs to this storage, and `take_first` has written its header. All fields are cells, except
        // `class`, which is not written any more.
        unsafe { &*self.memory(frame).cast() }
    }

    /// Returns the class of a small node that is taken.
    #[inline(always)]
    fn class_at(&self, node: NodeAddr) -> usize {
        self.header(frame_of(node)).class.into()
    }

    /// Returns the record of a small node of a frame that belongs to this storage.
    #[inline(always)]
    fn record_in(&self, node: NodeAddr, class: usize) -> &Record {
        // SAFETY: such a frame has a record, which is atomic, for each of its nodes.
        unsafe { &*self.small_record(node, class) }
    }

    /// Returns the place of the record of a small node.
    #[inline(always)]
    fn small_record(&self, node: NodeAddr, class: usize) -> *const Record {
        let index = index_at(node.get() % FRAME - usize::from(CUTS[class % CLASSES].first), class);
        self.memory(frame_of(node)).wrapping_add(HEADER).cast::<Record>().wrapping_add(index).cast_const()
    }

    /// Takes a node of a class from a frame in the list that ends at `last` or below.
    fn take_listed(&self, class: usize, last: usize) -> Option<NodeAddr> {
        self.locked(|partial| {
            let mut number = partial[class % CLASSES];
            while number != 0 && frame(number) | (FRAME - 1) > last {
                number = self.header(frame(number)).next.get();
            }
            if number == 0 {
                return None;
            }
            let (at, header) = (frame(number), self.header(frame(number)));
            let cut = CUTS[class % CLASSES];
            let index = match header.free.get().checked_sub(1) {
                Some(index) => {
                    // The record of a free node holds the index of the next free node.
                    let record = self.record_in(node_at(at, class, index), class);
                    header.free.set(record.load(Ordering::Relaxed) as u16);
                    index
                }
                None => header.fresh.replace(header.fresh.get() + 1),
            };
            header.used.set(header.used.get() + 1);
            if header.used.get() == cut.nodes {
                self.unlink(&mut partial[class % CLASSES], at);
            }
            Some(node_at(at, class, index))
        })
    }

    /// Takes a new frame for a class, and returns its first node.
    fn take_first(&self, class: usize, last: usize) -> Option<NodeAddr> {
        let at = self.frames.take_within(FRAME / W::BYTES, last)?.get();
        let (next, previous, free) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let (used, fresh) = (Cell::new(1), Cell::new(1));
        let header = Header { next, previous, free, used, fresh, class: class as u16 };
        // SAFETY: the frame was just taken, so no other code knows it. It is mapped there, and aligned to more than a header
        // needs.
        unsafe { self.memory(at).cast::<Header>().write(header) };
        if CUTS[class % CLASSES].nodes > 1 {
            self.locked(|partial| self.push(&mut partial[class % CLASSES], at));
        }
        Some(node_at(at, class, 0))
    }

    /// Puts a frame of small nodes, which is in no list, at the front of a list.
    fn push(&self, first: &mut u32, at: usize) {
        let (number, header) = ((at / FRAME) as u32, self.header(at));
        header.next.set(*first);
        header.previous.set(0);
        if *first != 0 {
            self.header(frame(*first)).previous.set(number);
        }
        *first = number;
    }

    /// Takes a frame out of its list.
    fn unlink(&self, first: &mut u32, at: usize) {
        let (next, previous) = (self.header(at).next.get(), self.header(at).previous.get());
        if next != 0 {
            self.header(frame(next)).previous.set(previous);
        }
        match previous {
            0 => *first = next,
            _ => self.header(frame(previous)).next.set(next),
        }
    }

    /// Frees a small node. Returns its frame if no other node of the frame is taken.
    ///
    /// # Safety
    ///
    /// The node was taken, and no code uses it any more.
    unsafe fn put_back(&self, node: NodeAddr) -> Option<NodeAddr> {
        let class = self.class_at(node);
        let (at, record, cut) = (frame_of(node), self.record_in(node, class), CUTS[class % CLASSES]);
        let header = self.header(at);
        self.locked(|partial| {
            record.store(header.free.get().into(), Ordering::Relaxed);
            header.free.set(index_at(node.get() % FRAME - usize::from(cut.first), class) as u16 + 1);
            let used = header.used.replace(header.used.get() - 1);
            // A frame is in the list exactly if it has a free node.
            match (used == 1, used == cut.nodes) {
                (true, false) => self.unlink(&mut partial[class % CLASSES], at),
                (false, true) => self.push(&mut partial[class % CLASSES], at),
                _ => {}
            }
            (used == 1).then_some(NodeAddr::new(at))
        })
    }
}

/// Returns the frame of a node.
#[inline(always)]
const fn frame_of(node: NodeAddr) -> usize {
    node.get() & !(FRAME - 1)
}

/// Returns the address of a frame.
#[inline(always)]
const fn frame(number: u32) -> usize {
    number as usize * FRAME
}

/// Returns a node of a frame.
#[inline(always)]
fn node_at(frame: usize, class: usize, index: u16) -> NodeAddr {
    NodeAddr::new(frame + usize::from(CUTS[class % CLASSES].first) + usize::from(index) * class_bytes(class))
}

/// Tells whether a node is a whole frame.
#[inline(always)]
const fn is_whole(node: NodeAddr) -> bool {
    node.get().is_multiple_of(FRAME)
}

// SAFETY: each frame belongs to this storage until it is given back. A node is taken under the lock, by one taker until it
// is freed. The nodes of a frame are behind the records, do not overlap, and are aligned as `CUTS` computes. Each has its
// own record. A node is cleared when it is taken, and frames that end above `last` are skipped. Larger nodes are nodes of
// `Direct`.
unsafe impl<W: Word, S: FrameSource> Nodes for Pieces<W, S> {
    type Word = W;
    type Mode = Shared;

    fn lowest(&self) -> NodeAddr {
        // Frame 0 is never a node's frame.
        NodeAddr::new(FRAME)
    }

    fn take_within(&self, words: usize, last: usize) -> Option<NodeAddr> {
        const { assert!(S::SIZE.bytes() == FRAME, "frames of 4 KiB") };
        let (class, last) = (class_of(words.checked_mul(W::BYTES)?), last.min(REACH));
        if class >= CLASSES {
            return self.frames.take_within(words, last);
        }
        let node = self.take_listed(class, last).or_else(|| self.take_first(class, last))?;
        // SAFETY: the node was just taken, so no other code uses it.
        unsafe { core::ptr::write_bytes(self.memory(node.get()), 0, class_bytes(class)) };
        self.record_in(node, class).store(0, Ordering::Relaxed);
        Some(node)
    }

    #[inline(always)]
    fn stored(&self, store: Store) {
        self.frames.stored(store);
    }

    #[inline(always)]
    fn at(&self, node: NodeAddr) -> *const W::Cell {
        self.memory(node.get()).cast_const().cast()
    }

    #[inline(always)]
    fn record_at(&self, node: NodeAddr, words: usize) -> *const Record {
        if is_whole(node) {
            return self.frames.record_at(node, words);
        }
        self.small_record(node, class_of(words * W::BYTES))
    }
}

// SAFETY: `link` returns the record that `record` computes, with the class from the frame's header. Node numbers are
// addresses divided by 4, which are not zero, and less than 2^31 up to `REACH`. The storage is `Sync`.
unsafe impl<W: Word, S: FrameSource> Reclaim for Pieces<W, S> {
    unsafe fn free(&self, node: NodeAddr, clean: bool) {
        // The frame is given back after the lock has been released, because that may unwind.
        // SAFETY: by the contract of `Reclaim::free` the node is taken, and no walker can reach it. A frame that `put_back`
        // returns has no taken node.
        unsafe {
            if is_whole(node) {
                self.frames.free(node, clean);
            } else if let Some(frame) = self.put_back(node) {
                self.frames.free(frame, false);
            }
        }
    }

    unsafe fn link(&self, node: NodeAddr) -> *const Record {
        if is_whole(node) {
            // Every frame has one record.
            return self.frames.record_at(node, FRAME / W::BYTES);
        }
        self.small_record(node, self.class_at(node))
    }

    fn index_of(&self, node: NodeAddr) -> u32 {
        (node.get() / UNIT) as u32
    }

    fn node_of(&self, index: u32) -> NodeAddr {
        NodeAddr::new(index as usize * UNIT)
    }

    fn held(&self) -> &Held {
        self.frames.held()
    }

    fn shared(&self) -> bool {
        true
    }
}

impl<W: Word, S: FrameSource> fmt::Debug for Pieces<W, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pieces").field("frames", &self.frames).finish_non_exhaustive()
    }
}
