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
    /// 65536 divided by `bytes`, rounded up: a multiplication by it replaces the division of a node's offset by `bytes`.
    inverse: u16,
    /// The number of bytes of a span: a power of two chunks.
    span: u16,
}

/// The length of the table of shapes: a power of two, so that a masked index needs no check.
const SHAPES: usize = CLASSES.next_power_of_two();
static SHAPE: [Shape; SHAPES] = {
    let mut shapes = [Shape { bytes: 0, nodes: 0, inverse: 0, span: 0 }; SHAPES];
    let mut class = 0;
    while class < CLASSES {
        let power = 8 << (class / 2);
        let bytes = if class.is_multiple_of(2) { power } else { power + power / 2 };
        // Large nodes get longer spans, so that little of a span is wasted at its end; but not longer than necessary,
        // because a table with one large node takes a whole span for it.
        let span = match bytes {
            0..=384 => CHUNK,
            385..=1024 => 2 * CHUNK,
            _ => 4 * CHUNK,
        };
        // A span also holds a record for each node.
        let nodes = span / (bytes + size_of::<Record>());
        let inverse = (1usize << 16).div_ceil(bytes);
        assert!(bytes < 1 << 16 && nodes < 1 << 16 && inverse < 1 << 16 && span < 1 << 16);
        shapes[class] =
            Shape { bytes: bytes as u16, nodes: nodes as u16, inverse: inverse as u16, span: span as u16 };
        class += 1;
    }
    shapes
};

/// Returns the node size of a class, in bytes.
#[inline(always)]
pub(in crate::nodes) const fn class_bytes(class: usize) -> usize {
    SHAPE[class % SHAPES].bytes as usize
}

/// Returns how many nodes of a class are before the one at offset `offset` of a span. The offset is a multiple of the node size.
#[inline(always)]
pub(in crate::nodes) const fn index_at(offset: usize, class: usize) -> usize {
    // An inverse is less than one above the quotient, and a span has less than 65536 bytes, so the product is less than 65536 above
    // the right one.
    (offset * SHAPE[class % SHAPES].inverse as usize) >> 16
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

/// Returns the number of bytes of a span.
#[inline(always)]
pub(super) fn span_bytes(class: usize) -> usize {
    SHAPE[class % SHAPES].span.into()
}

/// Returns the base-two logarithm of the number of chunks of a span.
#[inline(always)]
pub(super) fn span_order(class: usize) -> u32 {
    (span_bytes(class) / CHUNK).trailing_zeros()
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
        let last = SHAPE[class].nodes as usize - 1;
        assert!(index_at(bytes * last, class) == last);
        class += 1;
    }
    assert!(SHAPE[CLASSES - 1].bytes as usize == CHUNK / 2);
};
