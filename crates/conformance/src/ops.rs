//! Operations on a table, and their encoding in twelve bytes.
//!
//! Proptest and fuzzers use the same decoder: proptest draws the bytes and shrinks them, a fuzzer mutates them. Smaller bytes
//! decode to simpler operations (a base page near the bottom of the space, no fault), so shrinking the bytes shrinks the
//! operations.
//!
//! ```text
//!  byte   0      1       2        3       4      5       6     7      8..12
//!       +------+-------+--------+-------+------+-------+-----+------+----------+
//!       | kind | spot  | offset | count | size | twist | set | clear| number   |
//!       +------+-------+--------+-------+------+-------+-----+------+----------+
//! ```
//!
//! There are only a few spots, so that operations overlap: both ends of the space (of each half, if it has two), blocks of the
//! largest page size in the middle, and one anywhere. The offset is in pages of the size: added to a spot, or subtracted from an end.
//! Most values of the twist have no effect; the others modify the range: an end off by one page, beyond the space, over the hole
//! between the halves, the whole space, a size that the table does not have, or frames that are off by one. The twist of a
//! [`seam`] makes a range of a few base pages before and after a boundary of nodes, or of a half.

use proptest::prelude::*;
use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::{Change, Holes, Mark, Space};

use crate::Runner;

/// One call of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// [`Table::map`](tlbkit_pagetable::Table::map).
    Map {
        /// The range.
        pages: Pages,
        /// Its first frame.
        frame: Pfn,
        /// The size of its pages.
        size: PageSize,
        /// Their attributes.
        attr: Attr,
    },
    /// [`Table::unmap`](tlbkit_pagetable::Table::unmap).
    Unmap {
        /// The range.
        pages: Pages,
        /// The treatment of holes.
        holes: Holes,
    },
    /// [`Writer::drain`](tlbkit_pagetable::Writer::drain).
    Drain {
        /// The range.
        pages: Pages,
        /// The number of leaves and marks, with neighbours, after which the iterator is dropped.
        most: usize,
    },
    /// [`Table::move_pages`](tlbkit_pagetable::Table::move_pages).
    Move {
        /// The range.
        pages: Pages,
        /// The first page of its new place.
        to: Vpn,
    },
    /// [`Table::protect`](tlbkit_pagetable::Table::protect).
    Protect {
        /// The range.
        pages: Pages,
        /// The treatment of holes.
        holes: Holes,
        /// The change.
        change: Change,
    },
    /// [`Table::resize`](tlbkit_pagetable::Table::resize).
    Resize {
        /// The range.
        pages: Pages,
        /// The new size.
        to: PageSize,
    },
    /// [`Table::replace`](tlbkit_pagetable::Table::replace).
    Replace {
        /// An address in the page.
        at: VirtAddr,
        /// Its new frame.
        frame: Pfn,
        /// Its new attributes.
        attr: Attr,
    },
    /// [`Table::mark`](tlbkit_pagetable::Table::mark).
    Mark {
        /// The page.
        page: Vpn,
        /// The new mark.
        mark: Option<Mark>,
    },
    /// [`Table::fill`](tlbkit_pagetable::Table::fill).
    Fill {
        /// The page.
        page: Vpn,
        /// The payload of its mark.
        payload: u64,
        /// Its frame.
        frame: Pfn,
    },
    /// [`Table::lookup`](tlbkit_pagetable::Table::lookup) and
    /// [`Table::translate`](tlbkit_pagetable::Table::translate).
    Lookup {
        /// The address.
        at: VirtAddr,
    },
    /// [`Table::for_each`](tlbkit_pagetable::Table::for_each).
    ForEach {
        /// The range.
        pages: Pages,
        /// The number of leaves after which the visit stops.
        stop: usize,
    },
}

impl Op {
    /// The number of bytes that [`decode`](Self::decode) takes.
    pub const BYTES: usize = 12;

    /// Decodes an operation on a table of the given space. Every byte string decodes to an operation.
    pub fn decode(space: &Space, bytes: [u8; Self::BYTES]) -> Self {
        let [kind, spot, offset, count, size, twist, set, clear, number @ ..] = bytes;
        let number = u32::from_le_bytes(number) as usize;
        let sizes = space.sizes();
        // Half of all pages are base pages, and most others are one size larger: otherwise operations would rarely overlap. The
        // largest size has rules of its own in many tables.
        let pick = |byte: u8| match byte {
            0..128 => 0,
            128..208 => 1 % sizes.len(),
            208..240 => byte as usize % sizes.len(),
            _ => sizes.len() - 1,
        };
        // A range whose page size changes is mostly one whole larger page, so maps must often fill whole larger pages.
        let is_map = kind < 115;
        let fill = is_map && (110..199).contains(&twist);
        let resize = (180..209).contains(&kind);
        let size = if fill || resize { pick(size).max(1).min(sizes.len() - 1) } else { pick(size) };
        let size = sizes[size];
        let bent = match twist {
            230..=233 => PageSize::from_shift(size.shift() + 1).unwrap_or(size),
            234..=235 => PageSize::from_shift(space.base().shift() - 1).unwrap_or(size),
            _ => size,
        };
        let is_seam = (95..110).contains(&twist) && !resize;
        let pages = if is_seam {
            // A map of a whole block takes long.
            seam(space, spot, offset, count, offset >= if is_map { 192 } else { 96 })
        } else {
            range(space, spot, offset, count, size, twist, number)
        };
        // One page, whose number is that of an address.
        let one = pages.first().checked_address(space.base()).map_or(Vpn::new(0), |at| at.vpn(space.base()));
        // Few payloads, so that a fill often names the one that is there.
        let payload = if twist < 192 { number as u64 % 3 } else { number as u64 };
        let holes = if count & 1 == 0 { Holes::Refuse } else { Holes::Skip };
        match kind {
            0..=114 => {
                // A block of more small pages than one operation may make is mapped as what it is.
                let is_filled = fill && pages.len() <= Runner::MOST;
                let bent = if is_filled || is_seam { sizes[0] } else { bent };
                let frame = frame(space, pages, size, twist, set, number);
                Self::Map { pages, frame, size: bent, attr: attr(set) }
            }
            120..=149 => {
                let most = if clear < 128 { usize::MAX } else { (clear as usize - 128) / 16 };
                if set < 128 { Self::Unmap { pages, holes } } else { Self::Drain { pages, most } }
            }
            150..=179 => Self::Protect {
                pages,
                holes,
                change: Change { clear: attr_bits(clear), set: attr_bits(set) },
            },
            180..=208 => {
                let to = if bent == size { sizes[pick(set)] } else { bent };
                Self::Resize { pages, to }
            }
            115..=119 | 209..=214 => {
                // Mostly a few pages of some size after a spot, half of them where few other operations map pages.
                let spot = if set < 128 { 12 + set % 4 } else { set };
                let to = range(space, spot, 144 + clear % 112, 0, sizes[pick(clear)], 0, number).first();
                Self::Move { pages, to }
            }
            215..=226 => {
                let kept = if twist < 192 { Mark::KEPT } else { Attr::all() };
                let attr = attr(clear) & kept;
                let mark = match set % 4 {
                    0 => None,
                    1 => Some(Mark::Guard),
                    2 if set >= 240 => Some(Mark::Payload(u64::MAX >> (clear % 64), attr)),
                    _ => Some(Mark::Payload(payload, attr)),
                };
                Self::Mark { page: one, mark }
            }
            227..=234 => {
                let frame = frame(space, pages, sizes[0], twist, set, number);
                Self::Fill { page: one, payload, frame }
            }
            235..=248 => {
                let at = pages.first().address(space.base()).get();
                let at = VirtAddr::new(at | number & space.base().mask());
                match kind {
                    235..=237 => Self::Lookup { at },
                    _ => Self::Replace {
                        at,
                        frame: frame(space, pages, size, twist, set, number),
                        attr: attr(set),
                    },
                }
            }
            249.. => Self::ForEach { pages, stop: if set < 192 { usize::MAX } else { set as usize - 191 } },
        }
    }

    /// Decodes as many operations as the bytes hold, as a fuzz target does with its input.
    pub fn decode_all(space: Space, bytes: &[u8]) -> impl Iterator<Item = Self> + '_ {
        bytes.as_chunks().0.iter().map(move |&bytes| Self::decode(&space, bytes))
    }

    /// Returns the range of the operation, if it has one.
    pub const fn pages(&self) -> Option<Pages> {
        match *self {
            Self::Map { pages, .. }
            | Self::Unmap { pages, .. }
            | Self::Drain { pages, .. }
            | Self::Move { pages, .. }
            | Self::Protect { pages, .. }
            | Self::Resize { pages, .. }
            | Self::ForEach { pages, .. } => Some(pages),
            Self::Mark { page, .. } | Self::Fill { page, .. } => Some(Pages::one(page)),
            Self::Replace { .. } | Self::Lookup { .. } => None,
        }
    }
}

/// Returns the strategy for up to `most` operations on a table of the given space.
pub fn ops(space: Space, most: usize) -> impl Strategy<Value = Vec<Op>> {
    let one = any::<[u8; Op::BYTES]>().prop_map(move |bytes| Op::decode(&space, bytes));
    proptest::collection::vec(one, 1..=most)
}

/// Returns the range that these values encode.
fn range(space: &Space, spot: u8, offset: u8, count: u8, size: PageSize, twist: u8, number: usize) -> Pages {
    let unit = size.pages(space.base()).unwrap_or(1);
    let [low, high] = space.halves();
    let low = low.unwrap_or(Pages::one(Vpn::new(0)));
    let high = high.unwrap_or(low);
    let largest = space.sizes()[space.sizes().len() - 1].pages(space.base()).unwrap_or(1);
    let middle = (low.last().get() / 2 + 1) & !(largest - 1);

    let offset = match offset {
        0..144 => 0,
        144..200 => offset as usize % 4,
        200..240 => offset as usize % 16,
        _ => offset as usize,
    };
    let count = match count {
        0..128 => 1,
        128..192 => 2,
        192..240 => count as usize % 16 + 1,
        _ => count as usize,
    };
    let up = |from: usize| from.saturating_add(offset * unit);
    let down = |from: usize| (from + 1).saturating_sub((offset + count) * unit);
    let first = match spot % 16 {
        0..=5 => up(0),
        6 => down(low.last().get()),
        7 => up(high.first().get()),
        8..=11 => down(high.last().get()),
        12 => up(middle),
        // The block before, so that ranges extend from one block into the other.
        13 => down(middle.saturating_sub(1)),
        14 => up((high.first().get() / 2 + high.last().get() / 2) & !(largest * 4 - 1)),
        _ => {
            let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as usize);
            (hash % (high.last().get() - high.first().get() + 1) + high.first().get()) & !(unit - 1)
        }
    };
    let last = first.saturating_add(count * unit - 1);
    let (first, last) = match twist {
        200..=207 => (first + 1, last.max(first + 1)),
        208..=213 => (first, last.saturating_sub(1).max(first)),
        214..=219 => (first, last.saturating_add(1)),
        220..=221 => (low.last().get(), low.last().get() + 1 + offset),
        222..=223 => (low.last().get() + 1 + offset, low.last().get() + 1 + offset),
        224..=225 => (first.min(high.last().get()), high.last().get().saturating_add(1 + offset)),
        226..=227 => (first, usize::MAX),
        // All pages below, all pages above, and all pages of the space.
        236..=237 => (low.first().get(), first),
        238..=239 => (first.min(high.last().get()), high.last().get()),
        240..=241 => (high.first().get(), high.last().get()),
        242..=243 => (0, high.last().get()),
        _ => (first, last),
    };
    Pages::new(Vpn::new(first), Vpn::new(last)).unwrap_or(Pages::one(Vpn::new(first)))
}

/// Returns the number of base pages that a last-level node covers in most tables: those of the largest page of at most 1024, or 512; but
/// no more than a quarter of the smaller half, and at least 1.
pub(crate) fn block(space: &Space) -> usize {
    let units = space.sizes().iter().filter_map(|size| size.pages(space.base()));
    let most = space.halves().into_iter().flatten().map(|half| half.len() / 4).min().unwrap_or(1);
    units.filter(|units| (64..=1024).contains(units)).max().unwrap_or(512).min(most).max(1)
}

/// Returns the base pages from one to three before a boundary to one to three after it, or after the next boundary if `is_far`. At
/// the end of a half the range ends with the last page, or one or two before it.
///
/// ```text
///        |    block    |    block    |    block    |
///        |-------------|-------------|-------------|
///                    ###
///                    #################                if `is_far`
/// ```
fn seam(space: &Space, spot: u8, offset: u8, count: u8, is_far: bool) -> Pages {
    let (block, [low, high]) = (block(space), space.halves());
    let low = low.or(high).unwrap_or(Pages::one(Vpn::new(0)));
    let high = high.unwrap_or(low);
    let largest = space.sizes()[space.sizes().len() - 1].pages(space.base()).unwrap_or(1).max(block);
    let (head, tail) = (1 + offset as usize % 3, 1 + count as usize / 2 % 3);
    let (half, boundary) = match spot % 8 {
        0..=2 => (low, low.first().get() + block),
        3 => (low, low.first().get() + 2 * block),
        // A boundary of every level, in most tables.
        4 => (low, (low.last().get() / 2 + 1) & !(largest - 1)),
        5 => (low, low.last().get() + 1 - block),
        6 => (high, high.first().get() + block),
        _ => (high, high.last().get() + 1 - block),
    };
    let first = boundary.saturating_sub(head).max(half.first().get());
    let end = (boundary + tail - 1).saturating_add(if is_far { block } else { 0 });
    let last = end.min(half.last().get().saturating_sub(tail - 1));
    Pages::new(Vpn::new(first), Vpn::new(last)).unwrap_or(Pages::one(Vpn::new(first)))
}

/// Returns the first frame that these values encode.
fn frame(space: &Space, pages: Pages, size: PageSize, twist: u8, set: u8, number: usize) -> Pfn {
    let unit = size.pages(space.base()).unwrap_or(1);
    let top = usize::MAX >> space.base().shift();
    let frame = match set {
        // Frame numbers that follow the page numbers, so that pages from several maps can be promoted.
        0..128 => pages.first().get() & 0xffff,
        128..250 => (number % 0xffff) & !(unit - 1),
        // The top of physical memory, and beyond.
        250..=251 => top.saturating_sub(pages.len().saturating_sub(1)),
        252..=253 => number << 12 & !(unit - 1),
        _ => top.saturating_sub(number % 4),
    };
    // A run of consecutive frames that are not aligned to a larger page.
    Pfn::new(if (190..=199).contains(&twist) { frame + 1 } else { frame })
}

/// Returns attributes, mostly such that every format has.
fn attr(set: u8) -> Attr {
    match set % 8 {
        0 | 4 => Attr::READ | Attr::EXEC,
        1 | 5 => Attr::READ | Attr::WRITE | Attr::EXEC | Attr::USER,
        2 => Attr::READ | Attr::WRITE | Attr::EXEC | Attr::DIRTY,
        3 => Attr::READ | Attr::EXEC | Attr::GLOBAL,
        6 => Attr::READ | attr_bits(set),
        _ => Attr::READ | Attr::EXEC | attr_bits(set),
    }
}

/// Returns any attributes, a few at a time.
fn attr_bits(bits: u8) -> Attr {
    let one = |at: u8| Attr::from_bits_truncate(1 << (at % 12));
    one(bits) | if bits >= 128 { one(bits / 12) } else { Attr::empty() }
}
