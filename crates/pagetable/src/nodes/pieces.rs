//! Nodes of any size up to a frame, cut from a kernel's frames, which are reached through a direct map.
//!
//! ```text
//!   0        16                      a frame of small nodes, all of one class
//!  +--------+----+----+----+-----+------+------+------+---
//!  | header | r0 | r1 | r2 |     |  n0  |  n1  |  n2  | ...       no node begins where the frame does
//!  +--------+----+----+----+-----+------+------+------+---
//!  +------------------------------------------------------+
//!  |  one node of more than half a frame                   |       its record is the frame's
//!  +------------------------------------------------------+
//! ```
//!
//! The frames of a class with a free node are in a list. A frame whose last node goes back is given back at once. Larger nodes
//! are those of a [`Direct`].

use core::cell::UnsafeCell;
use core::fmt;

use tlbkit_addr::{PageSize, PhysAddr};

use super::slab::{CLASSES, class_bytes, class_of, index_within};
use super::{Direct, FrameSource, Held, NodeAddr, Nodes, Reclaim, Record, Store};
use crate::Shared;
use crate::mode::{Lock as _, SpinLock};
use crate::word::Word;
use crate::word::atomics::Ordering;

/// The bytes of a frame.
const FRAME: usize = PageSize::K4.bytes();
/// What node numbers count: nodes begin at multiples of 4 bytes.
const UNIT: usize = 4;
/// The last address whose node number fits a record.
const REACH: usize = {
    let reach = UNIT as u64 * ((1 << 31) - 1);
    if reach < usize::MAX as u64 { reach as usize } else { usize::MAX }
};

/// What a frame of small nodes begins with. All of it but the class is for the holder of the lock; the class is written before
/// the first node of the frame is taken.
#[repr(C)]
struct Header {
    /// The frames before and behind it in its class's list, by number; 0 is none.
    next: u32,
    previous: u32,
    /// The first free node that was taken before, counted from one; 0 if there is none. Its record leads to the next one.
    free: u16,
    /// How many nodes are taken.
    used: u16,
    /// How many nodes were ever taken.
    fresh: u16,
    class: u16,
}

const HEADER: usize = size_of::<Header>();

/// How a frame is cut.
#[derive(Clone, Copy)]
struct Cut {
    /// Where the first node begins.
    first: u16,
    /// How many there are.
    nodes: u16,
}

static CUTS: [Cut; CLASSES] = {
    let mut cuts = [Cut { first: 0, nodes: 0 }; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        let bytes = class_bytes(class);
        // What a node is aligned to.
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

/// Returns where the first of `nodes` nodes begins.
const fn first(nodes: usize, align: usize) -> usize {
    (HEADER + nodes * size_of::<Record>()).next_multiple_of(align)
}

/// Nodes of any size up to 4 KiB from a kernel's frames: words hold physical addresses. For tables whose nodes are small.
///
/// Every node of up to half a frame is in a frame with others of its size class; all tables of the storage share these frames. A
/// [`FrameSource::record`] is used for larger nodes only.
pub struct Pieces<W, S> {
    frames: Direct<W, Shared, S>,
    lock: SpinLock,
    /// By class, the first frame with a free node; 0 if there is none.
    partial: UnsafeCell<[u32; CLASSES]>,
}

// SAFETY: the lists, and the headers of the frames in them, are the lock's holder's alone. The rest is `Sync`.
unsafe impl<W: Word, S: FrameSource> Sync for Pieces<W, S> {}

impl<W: Word, S: FrameSource> Pieces<W, S> {
    /// Returns storage of nodes from `source`.
    pub const fn new(source: S) -> Self {
        Self { frames: Direct::new(source), lock: SpinLock::new(), partial: UnsafeCell::new([0; CLASSES]) }
    }

    /// Returns the storage of whole frames, for tables whose nodes are no smaller.
    pub const fn frames(&self) -> &Direct<W, Shared, S> {
        &self.frames
    }

    /// Returns the frame source.
    pub const fn source(&self) -> &S {
        self.frames.source()
    }

    /// Calls `f` with the lists, under the lock. `f` does not unwind, and calls nothing of the source's but `memory`.
    fn locked<T>(&self, f: impl FnOnce(&mut [u32; CLASSES]) -> T) -> T {
        self.lock.lock();
        // SAFETY: the lock is held, and `f` does not take it again.
        let result = f(unsafe { &mut *self.partial.get() });
        self.lock.unlock();
        result
    }

    /// Returns where a byte of a taken frame is.
    #[inline(always)]
    fn memory(&self, at: usize) -> *mut u8 {
        self.source().memory(PhysAddr::new(at & !(FRAME - 1))).wrapping_add(at % FRAME)
    }

    /// Returns the header of a frame of small nodes.
    #[inline(always)]
    fn header(&self, frame: usize) -> *mut Header {
        self.memory(frame).cast()
    }

    /// Returns the class of a small node.
    ///
    /// # Safety
    ///
    /// The node is taken.
    #[inline(always)]
    unsafe fn class_at(&self, node: NodeAddr) -> usize {
        // SAFETY: the frame is ours, and its class is not written while one of its nodes is taken.
        unsafe { (*self.header(frame_of(node))).class.into() }
    }

    /// Returns the record of a small node.
    #[inline(always)]
    fn small_record(&self, node: NodeAddr, class: usize) -> *const Record {
        let index = index_within(node.get() % FRAME - usize::from(CUTS[class % CLASSES].first), class);
        self.memory(frame_of(node)).wrapping_add(HEADER).cast::<Record>().wrapping_add(index).cast_const()
    }

    /// Takes a node of a class from a frame in the list.
    fn take_listed(&self, class: usize, last: usize) -> Option<NodeAddr> {
        self.locked(|partial| {
            let mut number = partial[class % CLASSES];
            while number != 0 && frame(number) | (FRAME - 1) > last {
                // SAFETY: the frame is in the list, and the lock is held: its header is ours.
                number = unsafe { (*self.header(frame(number))).next };
            }
            if number == 0 {
                return None;
            }
            let (at, header) = (frame(number), self.header(frame(number)));
            let cut = CUTS[class % CLASSES];
            // SAFETY: the frame is in the list, and the lock is held: its header is ours. A free node's record is
            // a link of its frame's list.
            unsafe {
                let index = match (*header).free.checked_sub(1) {
                    Some(index) => {
                        let record = self.small_record(node_at(at, class, index), class);
                        (*header).free = (*record).load(Ordering::Relaxed) as u16;
                        index
                    }
                    None => {
                        (*header).fresh += 1;
                        (*header).fresh - 1
                    }
                };
                (*header).used += 1;
                if (*header).used == cut.nodes {
                    self.unlink(&mut partial[class % CLASSES], at);
                }
                Some(node_at(at, class, index))
            }
        })
    }

    /// Cuts a new frame, and takes its first node.
    fn take_first(&self, class: usize, last: usize) -> Option<NodeAddr> {
        let at = self.frames.take_within(FRAME / W::BYTES, last)?.get();
        let header = Header { next: 0, previous: 0, free: 0, used: 1, fresh: 1, class: class as u16 };
        // SAFETY: the frame is ours, mapped there, and aligned to more than a header.
        unsafe { self.header(at).write(header) };
        if CUTS[class % CLASSES].nodes > 1 {
            // SAFETY: the frame is in no list.
            self.locked(|partial| unsafe { self.push(&mut partial[class % CLASSES], at) });
        }
        Some(node_at(at, class, 0))
    }

    /// Puts a frame at the front of a list.
    ///
    /// # Safety
    ///
    /// The lock is held, and the frame, one of small nodes, is in no list.
    unsafe fn push(&self, first: &mut u32, at: usize) {
        let (number, header) = ((at / FRAME) as u32, self.header(at));
        // SAFETY: this function's contract; what is in the list is a frame of small nodes.
        unsafe {
            ((*header).next, (*header).previous) = (*first, 0);
            if *first != 0 {
                (*self.header(frame(*first))).previous = number;
            }
        }
        *first = number;
    }

    /// Takes a frame out of its list.
    ///
    /// # Safety
    ///
    /// The lock is held, and the frame is in the list.
    unsafe fn unlink(&self, first: &mut u32, at: usize) {
        // SAFETY: by this function's contract the lock is held, and the frame is in the list.
        unsafe {
            let (next, previous) = ((*self.header(at)).next, (*self.header(at)).previous);
            if next != 0 {
                (*self.header(frame(next))).previous = previous;
            }
            match previous {
                0 => *first = next,
                _ => (*self.header(frame(previous))).next = next,
            }
        }
    }

    /// Puts a small node back, and returns its frame if that has no other one.
    ///
    /// # Safety
    ///
    /// The node was taken, and no code uses it any more.
    unsafe fn put_back(&self, node: NodeAddr) -> Option<NodeAddr> {
        // SAFETY: by this function's contract the node was taken, and no code uses it any more.
        let class = unsafe { self.class_at(node) };
        let (at, record) = (frame_of(node), self.small_record(node, class));
        let header = self.header(at);
        // SAFETY: the lock is held, the frame is ours, and the node's record with it. A frame is in the list if it has a free node.
        self.locked(|partial| unsafe {
            (*record).store((*header).free.into(), Ordering::Relaxed);
            let index = index_within(node.get() % FRAME - usize::from(CUTS[class % CLASSES].first), class);
            (*header).free = index as u16 + 1;
            let was_full = (*header).used == CUTS[class % CLASSES].nodes;
            (*header).used -= 1;
            match ((*header).used == 0, was_full) {
                (true, false) => self.unlink(&mut partial[class % CLASSES], at),
                (false, true) => self.push(&mut partial[class % CLASSES], at),
                _ => {}
            }
            ((*header).used == 0).then_some(NodeAddr::new(at))
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

/// Tells whether a node is a frame of its own.
#[inline(always)]
const fn is_whole(node: NodeAddr) -> bool {
    node.get().is_multiple_of(FRAME)
}

// SAFETY: each frame is ours until it goes back, and its nodes are taken under the lock, each by one taker until it is put back;
// they lie behind the records and not in each other, aligned to what divides their class. Each has a record of its own. A node is
// cleared when it is taken; frames that end above `last` are passed over. Larger nodes are those of `Direct`.
unsafe impl<W: Word, S: FrameSource> Nodes for Pieces<W, S> {
    type Word = W;
    type Mode = Shared;

    fn lowest(&self) -> NodeAddr {
        // Frame 0 is never one.
        NodeAddr::new(FRAME)
    }

    fn take_within(&self, words: usize, last: usize) -> Option<NodeAddr> {
        const { assert!(S::SIZE.bytes() == FRAME, "frames of 4 KiB") };
        let (class, last) = (class_of(words.checked_mul(W::BYTES)?), last.min(REACH));
        if class >= CLASSES {
            return self.frames.take_within(words, last);
        }
        let node = self.take_listed(class, last).or_else(|| self.take_first(class, last))?;
        // SAFETY: the node is ours, and no code has seen it; and so is its record.
        unsafe {
            core::ptr::write_bytes(self.memory(node.get()), 0, class_bytes(class));
            (*self.small_record(node, class)).store(0, Ordering::Relaxed);
        }
        Some(node)
    }

    #[inline(always)]
    fn stored(&self, store: Store) {
        self.frames.stored(store);
    }

    #[inline(always)]
    unsafe fn at(&self, node: NodeAddr) -> *const W::Cell {
        self.memory(node.get()).cast_const().cast()
    }

    #[inline(always)]
    unsafe fn record(&self, node: NodeAddr, words: usize) -> *const Record {
        if is_whole(node) {
            // SAFETY: the node is taken and `words` is what it was taken with, by the contract of `Nodes::record`; so
            // they are for `frames`.
            return unsafe { self.frames.record(node, words) };
        }
        self.small_record(node, class_of(words * W::BYTES))
    }
}

// SAFETY: `link` is the record that `record` computes, found by the class in the frame's header; numbers count 4 bytes, and are
// below 2^31 and not zero up to `REACH`. The storage is `Sync`.
unsafe impl<W: Word, S: FrameSource> Reclaim for Pieces<W, S> {
    unsafe fn free(&self, node: NodeAddr, clean: bool) {
        // SAFETY: by the contract of `Reclaim::free` the node is taken, and no walker can reach it. The frame goes back
        // outside of the lock, as that may unwind; it has no other node.
        unsafe {
            if is_whole(node) {
                self.frames.free(node, clean);
            } else if let Some(frame) = self.put_back(node) {
                self.frames.free(frame, false);
            }
        }
    }

    unsafe fn link(&self, node: NodeAddr) -> *const Record {
        // SAFETY: the node is taken or retired, by the contract of `Reclaim::link`: so its frame has a class, or it is
        // one of `frames`.
        unsafe {
            if is_whole(node) { self.frames.link(node) } else { self.small_record(node, self.class_at(node)) }
        }
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
