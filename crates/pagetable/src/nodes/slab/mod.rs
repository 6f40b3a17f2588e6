//! A slab over memory that the caller provides.
//!
//! ```text
//!   chunk 0..        chunk k
//!   +-------------+  +----------------------------------------+---------------+
//!   | descriptors |  | node | node | node | ...               | ... | r1 | r0 |   a span of small nodes
//!   | 16 bytes a  |  +----------------------------------------+---------------+
//!   | chunk       |  +--------------------------------------------------------+
//!   |             |  | one node of a chunk or more, its record in its         |   a run of 2^n chunks
//!   +-------------+  | chunk's descriptor                                     |
//!                    +--------------------------------------------------------+
//! ```
//!
//! Chunks are 4 KiB. A buddy system allocates runs of 2^n chunks, for nodes of more than half a chunk and for **spans**. A
//! span is cut into nodes of one size class (powers of two and three times powers of two). Their records are packed at the
//! end of the span, so a node of a power-of-two size is aligned to its size, as a run is. A node of 4 KiB costs 16 bytes for
//! its descriptor, a node of 16 bytes costs 4 bytes for its record.
//!
//! Nodes are cleared when they are freed, unless they are known to be clean. So a take rarely has to clear a node.
//!
//! Some 32-bit links hold only addresses below 8 MiB. So there are two lists of each kind, for the memory below 8 MiB and
//! for the rest. A table that can use both gets memory of the rest first. For a table with another limit, a search goes
//! along the lists, run by run.

mod classes;
mod runs;
mod spans;
mod window;

use core::cell::{Cell, UnsafeCell};
use core::marker::PhantomData;
use core::mem::{offset_of, size_of};
use core::{fmt, ptr};

use self::classes::{CHUNK, KEPT, MAX_CHUNKS, UPPER};
pub(super) use self::classes::{CLASSES, class_bytes, class_of, index_at};
pub use self::window::{Identity, Offset, Window};
use super::{Held, ListLink, NodeAddr, Nodes, Reclaim, Record, take_each};
use crate::Mode;
use crate::mode::Lock;
use crate::word::Word;
use crate::word::atomics::Ordering;

/// The unit of memory of a [`Slab`]: 4 KiB, aligned.
#[derive(Clone, Debug)]
#[repr(C, align(4096))]
pub struct Chunk([u64; CHUNK / 8]);

impl Chunk {
    /// A chunk of zeroes.
    pub const ZERO: Self = Self([0; CHUNK / 8]);
}

/// The number of run lengths: runs have up to 2^(ORDERS-1) chunks, which is 4 GiB. A slab never has two runs of that length,
/// because its descriptors come first.
const ORDERS: usize = 21;
const _: () = assert!(MAX_CHUNKS == 1 << ORDERS);

/// The end of a list. Chunk 0 holds descriptors, so it is in no list.
const NONE: u32 = 0;

/// The use of a chunk. Lists are doubly linked through chunk numbers.
#[repr(C)]
struct Descriptor {
    next: Cell<u32>,
    previous: Cell<u32>,
    /// For a node of whole chunks, its record. For a span, the index plus one of the first free node (low half) and the
    /// number of nodes in use (high half).
    record: Record,
    /// For a span, the number of its nodes that were ever in use.
    fresh: Cell<u16>,
    /// The class of a span, or `RUN + order`, or `FREE + order`, or `INNER`.
    kind: Cell<u8>,
    /// Whether the chunk's bytes are all zero.
    clean: Cell<bool>,
}

/// Added to the order: the first chunk of a node of whole chunks.
const RUN: u8 = 64;
/// Added to the order: the first chunk of a free run.
const FREE: u8 = 128;
/// A chunk of a run or span that is not its first.
const INNER: u8 = 255;

/// The lists, which only the holder of the lock accesses.
#[derive(Debug)]
struct Lists {
    /// Free runs by order.
    free: [Heads; ORDERS],
    /// Spans with a free node by class.
    partial: [Heads; CLASSES],
    usage: Usage,
}

/// The first chunks of two lists: of memory below [`UPPER`], and of the rest.
type Heads = [u32; 2];

/// The memory that a [`Slab`] has allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The number of nodes in use, including retired nodes until they are reclaimed.
    pub nodes: usize,
    /// The size of the nodes in use, in bytes, rounded up to their classes.
    pub bytes: usize,
    /// The memory of the chunks that hold these nodes, and of their descriptors, in bytes. It includes records and the free
    /// space of spans.
    pub chunks: usize,
    /// The largest value of `chunks` so far, in bytes.
    pub peak: usize,
}

/// Why memory is unsuitable for a [`Slab`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlabError {
    /// The memory has fewer than two chunks: one for descriptors, and one for nodes.
    TooSmall,
    /// The memory has more than 8 GiB, or addresses that a word cannot hold.
    TooLarge,
    /// The base address is no multiple of a chunk's size.
    Misaligned,
}

impl fmt::Display for SlabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooSmall => "a slab needs at least two chunks of 4 KiB",
            Self::TooLarge => "the slab's addresses do not fit a word",
            Self::Misaligned => "the slab's base address is no multiple of 4 KiB",
        })
    }
}

impl core::error::Error for SlabError {}

/// Node storage over an array of chunks.
///
/// ```
/// use tlbkit_pagetable::nodes::{Chunk, Nodes, Slab};
/// use tlbkit_pagetable::Solo;
///
/// let mut memory = [Chunk::ZERO; 8];
/// let slab: Slab<'_, u64, Solo> = Slab::new(&mut memory, 0)?;
/// let node = slab.take(2).unwrap();
/// assert_eq!(slab.usage().bytes, 16);
/// # Ok::<(), tlbkit_pagetable::nodes::SlabError>(())
/// ```
pub struct Slab<'m, W, M: Mode, A = Offset> {
    window: A,
    base: usize,
    chunks: usize,
    lock: M::Lock,
    lists: UnsafeCell<Lists>,
    held: Held,
    memory: PhantomData<(&'m mut [Chunk], W)>,
}

// SAFETY: the slab owns its content: `'m` borrows the memory mutably, the lists are numbers, and a window (`Offset` or
// `Identity`) is at most a pointer into that memory.
unsafe impl<W, M: Mode, A> Send for Slab<'_, W, M, A> where M::Lock: Send {}
// SAFETY: a lock type that is `Sync` excludes other CPUs, and the lists are accessed only under the lock. The counts of
// `Held` are atomic. The cells of a node are atomic, or only its taker accesses them.
unsafe impl<W, M: Mode, A> Sync for Slab<'_, W, M, A> where M::Lock: Sync {}

impl<'m, W: Word, M: Mode> Slab<'m, W, M, Identity> {
    /// Returns storage over `memory` in which words hold the nodes' pointers as addresses.
    ///
    /// # Errors
    ///
    /// [`SlabError::TooSmall`] or [`SlabError::TooLarge`].
    pub fn identity(memory: &'m mut [Chunk]) -> Result<Self, SlabError> {
        // Walks convert words to pointers.
        let base = memory.as_mut_ptr().expose_provenance();
        Self::over(Identity, base, memory.len())
    }
}

impl<'m, W: Word, M: Mode> Slab<'m, W, M> {
    /// Returns storage over `memory`. `base` is the address of its first byte in words of tables: 0 for offsets into an
    /// arena, a physical address for tables that hardware walks.
    ///
    /// # Errors
    ///
    /// [`SlabError`] if the memory or the base is unsuitable.
    pub fn new(memory: &'m mut [Chunk], base: usize) -> Result<Self, SlabError> {
        let origin = memory.as_mut_ptr().cast::<u8>().wrapping_sub(base);
        Self::over(Offset { origin }, base, memory.len())
    }
}

impl<'m, W: Word, M: Mode, A: Window> Slab<'m, W, M, A> {
    /// Returns storage over `chunks` chunks from `base` on. It does not take the borrowed memory itself, because another
    /// mutable borrow would invalidate the window's pointer.
    fn over(window: A, base: usize, chunks: usize) -> Result<Self, SlabError> {
        let descriptors = Self::descriptors(base, chunks)?;
        // SAFETY: the slab owns the first chunks, which are large enough and aligned for the descriptors. A descriptor of
        // zeros is valid.
        unsafe { ptr::write_bytes(window.memory(base), 0, descriptors * CHUNK) };
        let lists =
            Lists { free: [[NONE; 2]; ORDERS], partial: [[NONE; 2]; CLASSES], usage: Usage::default() };
        let slab = Self {
            window,
            base,
            chunks,
            lock: M::Lock::default(),
            lists: UnsafeCell::new(lists),
            held: Held::default(),
            memory: PhantomData,
        };
        slab.locked(|lists| {
            let mut at = descriptors;
            while at < chunks {
                let aligned = slab.number(at as u32).trailing_zeros();
                let order = aligned.min((chunks - at).ilog2());
                slab.push_free(lists, at as u32, order);
                at += 1 << order;
            }
        });
        Ok(slab)
    }

    /// Returns how many chunks hold the descriptors of a slab over `chunks` chunks from `base` on.
    fn descriptors(base: usize, chunks: usize) -> Result<usize, SlabError> {
        let end = base.checked_add(chunks.saturating_mul(CHUNK));
        if chunks > MAX_CHUNKS
            || end.is_none_or(|end| (end as u64).saturating_sub(1) > u64::MAX >> (64 - W::BITS))
        {
            return Err(SlabError::TooLarge);
        }
        if !base.is_multiple_of(CHUNK) {
            return Err(SlabError::Misaligned);
        }
        let descriptors = (chunks * size_of::<Descriptor>()).div_ceil(CHUNK);
        if chunks <= descriptors { Err(SlabError::TooSmall) } else { Ok(descriptors) }
    }

    /// Returns the memory in use. The call takes the lock.
    pub fn usage(&self) -> Usage {
        self.locked(|lists| lists.usage)
    }

    /// Calls `f` with the lists, under the lock. `f` must not unwind, and must not call this function.
    #[inline]
    fn locked<T>(&self, f: impl FnOnce(&mut Lists) -> T) -> T {
        self.lock.lock();
        // SAFETY: this CPU holds the lock (in solo mode there is no other CPU), and `f` does not call `locked`, so this is
        // the only reference to the lists.
        let result = f(unsafe { &mut *self.lists.get() });
        self.lock.unlock();
        result
    }

    /// Returns the memory of a chunk.
    #[inline(always)]
    fn chunk(&self, chunk: u32) -> *mut u8 {
        self.window.memory(self.base + chunk as usize * CHUNK)
    }

    /// Returns the descriptor of a chunk, whose number must be less than `self.chunks`.
    #[inline(always)]
    fn descriptor(&self, chunk: u32) -> &Descriptor {
        debug_assert!((chunk as usize) < self.chunks, "chunk {chunk} is outside the slab");
        // SAFETY: chunk numbers come from taken nodes and from the lists, so they are less than `self.chunks`, and each
        // chunk has a descriptor, which `over` has initialized. All its fields are cells.
        unsafe { &*self.chunk(0).cast::<Descriptor>().add(chunk as usize) }
    }

    /// Takes a node of whole chunks whose last byte has an address of at most `last`.
    fn take_chunks(&self, bytes: usize, last: usize) -> Option<NodeAddr> {
        let order = bytes.div_ceil(CHUNK).next_power_of_two().ilog2();
        let chunk = self.locked(|lists| {
            let chunk = self.upper_first(last, |part| self.take_run(lists, part, order, last))?;
            self.descriptor(chunk).kind.set(RUN + order as u8);
            lists.usage.nodes += 1;
            lists.usage.bytes += CHUNK << order;
            Some(chunk)
        })?;
        self.descriptor(chunk).record.store(0, Ordering::Relaxed);
        self.clean_run(chunk, order);
        Some(NodeAddr::new(self.base + chunk as usize * CHUNK))
    }

    /// Returns the class of a node, from its chunk's descriptor; or, as an error, the order of a node of whole chunks.
    fn class_at(&self, node: NodeAddr) -> Result<usize, u32> {
        let mut number = (node.get() / CHUNK) as u32;
        let kind_at = |number: u32| self.descriptor(number.wrapping_sub(self.number(0))).kind.get();
        // The number of a span's first chunk is that of an inner chunk with low bits cleared.
        while kind_at(number) == INNER {
            number &= number - 1;
        }
        let kind = kind_at(number);
        if kind < RUN { Ok(kind as usize) } else { Err(u32::from(kind - RUN)) }
    }

    /// Returns the record of a node with the result of [`class_at`](Self::class_at).
    #[inline(always)]
    fn record_of(&self, node: NodeAddr, class: Result<usize, u32>) -> *const Record {
        match class {
            Ok(class) => {
                let (span, index) = self.place(node, class);
                self.small_record(span, class, index)
            }
            Err(_) => self.chunk_record(node),
        }
    }

    /// Returns the place of the record of a node of whole chunks.
    #[inline(always)]
    fn chunk_record(&self, node: NodeAddr) -> *const Record {
        let descriptor = node.get().wrapping_sub(self.base) / CHUNK * size_of::<Descriptor>();
        self.chunk(0).wrapping_add(descriptor + offset_of!(Descriptor, record)).cast::<Record>().cast_const()
    }

    /// Frees a node of a class, or of whole chunks.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - `node` was taken from this storage, is not free, and no walker can reach it any more;
    /// - `class` is the result of [`class_at`](Self::class_at) for it;
    /// - if `clean`, all its words are zero.
    unsafe fn free_at(&self, node: NodeAddr, class: Result<usize, u32>, clean: bool) {
        match class {
            // SAFETY: by this function's contract the node is taken, of this class, and no other code uses it.
            Ok(class) => unsafe { self.free_small(node, class, clean) },
            Err(order) => {
                let chunk = ((node.get() - self.base) / CHUNK) as u32;
                for at in chunk..chunk + (1 << order) {
                    self.descriptor(at).clean.set(clean);
                }
                self.locked(|lists| {
                    self.free_run(lists, chunk, order);
                    lists.usage.nodes -= 1;
                    lists.usage.bytes -= CHUNK << order;
                });
            }
        }
    }
}

// SAFETY: a node is taken under the lock from free memory, in a run that ends at `last` or below. `at` and `record` compute
// its place in memory that the slab owns. Spans and runs are aligned to a chunk, and nodes are at multiples of their size in
// them. Free nodes are zero, and the record is cleared when a node is taken.
unsafe impl<W: Word, M: Mode, A: Window> Nodes for Slab<'_, W, M, A> {
    type Word = W;
    type Mode = M;

    #[inline]
    fn lowest(&self) -> NodeAddr {
        NodeAddr::new(self.base)
    }

    #[inline]
    fn take_within(&self, words: usize, last: usize) -> Option<NodeAddr> {
        let bytes = words.checked_mul(W::BYTES)?;
        let class = class_of(bytes);
        if class < CLASSES { self.take_small(class, last) } else { self.take_chunks(bytes, last) }
    }

    fn take_list(&self, words: usize, mut count: usize, last: usize, head: &mut u32) -> bool {
        let class = words.checked_mul(W::BYTES).map_or(CLASSES, class_of);
        if class >= CLASSES {
            return take_each(self, words, count, last, head);
        }
        while count > 0 {
            match self.take_some(class, count, last, head) {
                0 => return false,
                some => count -= some,
            }
        }
        true
    }

    fn room(&self, words: usize) -> usize {
        let free = self.chunks * CHUNK - self.usage().bytes;
        free / words.saturating_mul(W::BYTES).max(1)
    }

    #[inline(always)]
    fn at(&self, node: NodeAddr) -> *const W::Cell {
        self.window.memory(node.get()).cast::<W::Cell>().cast_const()
    }

    #[inline(always)]
    fn record_at(&self, node: NodeAddr, words: usize) -> *const Record {
        let class = class_of(words * W::BYTES);
        if class < CLASSES {
            let (span, index) = self.place(node, class);
            self.small_record(span, class, index)
        } else {
            self.chunk_record(node)
        }
    }
}

// SAFETY: `link` returns the record that `record` computes, with the class from the chunk's descriptor. Node numbers count
// units of 4 bytes, of which a slab that `new` accepts has at most 2^31; they are not zero, because descriptors come first.
// The slab is `Sync` if its lock is.
unsafe impl<W: Word, M: Mode, A: Window> Reclaim for Slab<'_, W, M, A> {
    unsafe fn free(&self, node: NodeAddr, clean: bool) {
        // SAFETY: by the contract of `Reclaim::free` the node is taken, and no walker can reach it. The class is that of the
        // node.
        unsafe { self.free_at(node, self.class_at(node), clean) };
    }

    unsafe fn free_list(&self, head: &mut Option<NodeAddr>, count: &mut usize) {
        self.held.reclaim(*count, M::SHARED);
        // No call in this loop unwinds, so the list and the count may be inconsistent in between.
        while let Some(node) = *head {
            let class = self.class_at(node);
            // SAFETY: by the contract of `Reclaim::free_list` the node is taken, no walker can reach it, and its record is a
            // `ListLink`.
            unsafe {
                if let Ok(class) = class
                    && class_bytes(class) <= KEPT
                {
                    *head = self.free_some(node, class);
                    continue;
                }
                let (next, clean) = ListLink::read((*self.record_of(node, class)).load(Ordering::Relaxed));
                *head = (next != 0).then(|| self.node_of(next));
                self.free_at(node, class, clean);
            }
        }
        *count = 0;
    }

    unsafe fn link(&self, node: NodeAddr) -> *const Record {
        self.record_of(node, self.class_at(node))
    }

    #[inline]
    fn index_of(&self, node: NodeAddr) -> u32 {
        ((node.get() - self.base) / UNIT) as u32
    }

    #[inline]
    fn node_of(&self, index: u32) -> NodeAddr {
        NodeAddr::new(self.base + index as usize * UNIT)
    }

    #[inline]
    fn held(&self) -> &Held {
        &self.held
    }

    fn shared(&self) -> bool {
        M::SHARED
    }
}

/// The largest number of nodes that are freed under one hold of the lock.
const RUN_OF_NODES: usize = 32;

/// The unit of node numbers, in bytes: nodes begin at multiples of it.
const UNIT: usize = 4;

impl<W, M: Mode, A> fmt::Debug for Slab<'_, W, M, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab").field("base", &self.base).field("chunks", &self.chunks).finish_non_exhaustive()
    }
}

const _: () = assert!(size_of::<Descriptor>() == 16);

#[cfg(all(test, not(tlbkit_loom), target_pointer_width = "64"))]
mod tests {
    use super::{Slab, SlabError};
    use crate::Solo;

    #[test]
    fn a_slab_ends_at_eight_gibibytes() {
        let descriptors = Slab::<'_, u64, Solo>::descriptors;
        assert_eq!(descriptors(0, 1 << 21), Ok((1 << 21) / 256));
        assert_eq!(descriptors(0, (1 << 21) + 1), Err(SlabError::TooLarge));
    }
}
