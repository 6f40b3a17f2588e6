//! Size classes: the nodes that share a span, and the length of a span.

use core::mem::size_of;

use crate::nodes::Record;

/// The number of bytes of a chunk.
pub(super) const CHUNK: usize = 4096;

/// The largest number of chunks: node numbers, which count units of 4 bytes, stay below 2^31.
pub(super) const MAX_CHUNKS: usize = 1 << 21;

/// The chunk number at which the upper part of memory begins: 8 MiB, because some 32-bit links hold only addresses below
/// that ([`gpt::Link`](crate::gpt::Link)).
pub(super) const UPPER: usize = (1 << 23) / CHUNK;

/// The number of size classes. Class `n` has nodes of `2^(n/2 + 3)` bytes if `n` is even, and one and a half times that of
/// class `n - 1` if `n` is odd.
pub(in crate::nodes) const CLASSES: usize = 17;

/// The properties of a class.
#[derive(Clone, Copy)]
struct Shape {
    bytes: u16,
    /// The number of nodes in a span.
    nodes: u16,
    /// The base-two logarithm of the number of chunks of a span.
    order: u8,
}

/// The length of the table of shapes: a power of two, so that a masked index needs no check.
const SHAPES: usize = CLASSES.next_power_of_two();
static SHAPE: [Shape; SHAPES] = {
    let mut shapes = [Shape { bytes: 0, nodes: 0, order: 0 }; SHAPES];
    let mut class = 0;
    while class < CLASSES {
        let power = 8 << (class / 2);
        let bytes = if class.is_multiple_of(2) { power } else { power + power / 2 };
        // Large nodes get longer spans, so that little of a span is wasted at its end; but not longer than necessary,
        // because a table with one large node takes a whole span for it.
        let order = match bytes {
            0..=384 => 0,
            385..=1024 => 1,
            _ => 2,
        };
        // A span also holds a record for each node.
        let nodes = (CHUNK << order) / (bytes + size_of::<Record>());
        assert!(bytes < 1 << 16 && nodes < 1 << 16);
        shapes[class] = Shape { bytes: bytes as u16, nodes: nodes as u16, order };
        class += 1;
    }
    shapes
};

/// Returns the node size of a class, in bytes.
#[inline(always)]
pub(in crate::nodes) const fn class_bytes(class: usize) -> usize {
    SHAPE[class % SHAPES].bytes as usize
}

/// Returns how many nodes of a class fit into `bytes` bytes: by a shift, and a division by three for odd classes.
#[inline(always)]
pub(in crate::nodes) const fn index_within(bytes: usize, class: usize) -> usize {
    let units = bytes >> (class / 2 + 2);
    if class.is_multiple_of(2) { units / 2 } else { units / 3 }
}

/// Returns the smallest class of at least `bytes` bytes; [`CLASSES`] or more if the node needs whole chunks.
#[inline(always)]
pub(in crate::nodes) const fn class_of(bytes: usize) -> usize {
    if bytes <= 8 {
        return 0;
    }
    // The highest bit of `bytes - 1` says between which powers of two `bytes` is, the next bit in which half.
    let below = bytes - 1;
    let log = below.ilog2() as usize;
    2 * (log - 3) + 1 + (below >> (log - 1) & 1)
}

/// Returns the base-two logarithm of the number of chunks of a span.
#[inline(always)]
pub(super) fn span_order(class: usize) -> u32 {
    SHAPE[class % SHAPES].order.into()
}

/// The largest node size, in bytes, of a class that keeps an empty span.
pub(super) const KEPT: usize = 128;

/// Returns the number of nodes in a span of a class.
#[inline(always)]
pub(super) fn span_nodes(class: usize) -> usize {
    SHAPE[class % SHAPES].nodes.into()
}

const _: () = {
    let mut class = 0;
    while class < CLASSES {
        let bytes = SHAPE[class].bytes as usize;
        assert!(class_of(bytes) == class && class_of(bytes + 1) == class + 1);
        assert!(index_within(bytes * 20, class) == 20);
        class += 1;
    }
    assert!(SHAPE[CLASSES - 1].bytes as usize == CHUNK / 2);
};
