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
pub(super) const CLASSES: usize = 17;

/// The size of class `class` in bytes.
#[inline(always)]
pub(super) const fn class_bytes(class: usize) -> usize {
    let power = 8 << (class / 2);
    if class.is_multiple_of(2) { power } else { power + power / 2 }
}

/// Returns how many nodes of a class lie in the `bytes` before one of its span: by a shift, and a division by three for odd classes.
#[inline(always)]
pub(super) const fn index_within(bytes: usize, class: usize) -> usize {
    let units = bytes >> (class / 2 + 2);
    if class.is_multiple_of(2) { units / 2 } else { units / 3 }
}

/// The smallest class of at least `bytes` bytes; [`CLASSES`] or more for whole chunks.
#[inline(always)]
pub(super) const fn class_of(bytes: usize) -> usize {
    if bytes <= 8 {
        return 0;
    }
    // The highest bit of `bytes - 1` says between which powers of two it lies, the next one in which half.
    let below = bytes - 1;
    let log = below.ilog2() as usize;
    2 * (log - 3) + 1 + (below >> (log - 1) & 1)
}

/// The chunks of a span, as a power of two: large nodes get longer spans, so that little is lost at the end, but no
/// longer ones than that takes: a table with one large node takes a whole span for it.
#[inline(always)]
pub(super) const fn span_order(class: usize) -> u32 {
    match class_bytes(class) {
        0..=384 => 0,
        385..=1024 => 1,
        _ => 2,
    }
}

/// The largest class, in bytes, that keeps an empty span.
pub(super) const KEPT: usize = 128;

/// The nodes in a span of the class: each needs its record besides.
#[inline(always)]
pub(super) const fn span_nodes(class: usize) -> usize {
    (CHUNK << span_order(class)) / (class_bytes(class) + size_of::<Record>())
}

const _: () = {
    let mut class = 0;
    while class < CLASSES {
        assert!(class_of(class_bytes(class)) == class && class_of(class_bytes(class) + 1) == class + 1);
        assert!(span_nodes(class) < 1 << 16);
        assert!(index_within(class_bytes(class) * 20, class) == 20);
        class += 1;
    }
    assert!(class_bytes(CLASSES - 1) == CHUNK / 2);
};
