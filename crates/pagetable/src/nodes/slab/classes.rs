//! Size classes: which nodes share a span, and how long that is.

use core::mem::size_of;

use crate::nodes::Record;

/// The bytes of a chunk.
pub(super) const CHUNK: usize = 4096;

/// So many that node numbers, which count 4 bytes, stay below 2^31.
pub(super) const MAX_CHUNKS: usize = 1 << 21;

/// The chunk number at which the upper part of memory begins: 8 MiB, which is what the links of 32-bit words hold
/// ([`gpt::Link`](crate::gpt::Link)).
pub(super) const UPPER: usize = (1 << 23) / CHUNK;

/// Size classes in bytes: `2^(n/2 + 3)`, and half as much again for odd `n`.
pub(in crate::nodes) const CLASSES: usize = 17;

/// What a class makes of its spans, computed once.
#[derive(Clone, Copy)]
struct Shape {
    bytes: u16,
    /// The nodes in a span.
    nodes: u16,
    /// The base-two logarithm of a span's chunks.
    order: u8,
}

/// The shapes by class; a power of two, so that an index needs no check.
const SHAPES: usize = CLASSES.next_power_of_two();
static SHAPE: [Shape; SHAPES] = {
    let mut shapes = [Shape { bytes: 0, nodes: 0, order: 0 }; SHAPES];
    let mut class = 0;
    while class < CLASSES {
        let power = 8 << (class / 2);
        let bytes = if class.is_multiple_of(2) { power } else { power + power / 2 };
        // Large nodes get longer spans, so that little of a span is wasted at its end; but not longer than necessary, because a
        // table with one large node takes a whole span for it.
        let order = match bytes {
            0..=384 => 0,
            385..=1024 => 1,
            _ => 2,
        };
        // Each node needs its record besides.
        let nodes = (CHUNK << order) / (bytes + size_of::<Record>());
        assert!(bytes < 1 << 16 && nodes < 1 << 16);
        shapes[class] = Shape { bytes: bytes as u16, nodes: nodes as u16, order };
        class += 1;
    }
    shapes
};

/// The size of class `class` in bytes.
#[inline(always)]
pub(in crate::nodes) const fn class_bytes(class: usize) -> usize {
    SHAPE[class % SHAPES].bytes as usize
}

/// Returns how many nodes of a class lie in `bytes` bytes: by a shift, and a division by three for odd classes.
#[inline(always)]
pub(in crate::nodes) const fn index_within(bytes: usize, class: usize) -> usize {
    let units = bytes >> (class / 2 + 2);
    if class.is_multiple_of(2) { units / 2 } else { units / 3 }
}

/// The smallest class of at least `bytes` bytes; [`CLASSES`] or more for whole chunks.
#[inline(always)]
pub(in crate::nodes) const fn class_of(bytes: usize) -> usize {
    if bytes <= 8 {
        return 0;
    }
    // The highest bit of `bytes - 1` says between which powers of two it lies, the next one in which half.
    let below = bytes - 1;
    let log = below.ilog2() as usize;
    2 * (log - 3) + 1 + (below >> (log - 1) & 1)
}

/// The chunks of a span, as a power of two.
#[inline(always)]
pub(super) fn span_order(class: usize) -> u32 {
    SHAPE[class % SHAPES].order.into()
}

/// The largest class, in bytes, that keeps an empty span.
pub(super) const KEPT: usize = 128;

/// The nodes in a span of the class.
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
