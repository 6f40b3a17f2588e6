//! AArch64 stage 2 descriptors with the granule of 4 KiB, walked by hardware (Arm ARM, VMSAv8-64).
//!
//! ```text
//!        63   59 58    56 55  54  53 52  51 50  48 47            12 11 10 9  8   7 6   5    2 1  0
//!       +-------+--------+---+---+---+--+---+-----+----------------+--+--+-----+------+------+----+
//! leaf  |   0   | s  s c | S | XN| 0 | 0|DBM|  0  | output address | 0|AF|  SH | S2AP |Attr  | *1 |
//! link  |                        0                | next table     |            0             | 11 |
//! closed|                 as a leaf               | output address | as a leaf                | *0 |
//! mark  |                               software's                                          | 00 |
//!       +-----------------------------------------+----------------+--------------------------+----+
//!          * 1 for a page of the last level, 0 for a block above it
//! ```
//!
//! Leaves, links, closed pages and marks are told apart as in stage 1 ([`Aarch64Of`](super::Aarch64Of)): by bit 1 at the last level,
//! above it by SH, which is inner shareable in every leaf. So is everything that this page does not name: break before make, the access
//! flag, the bits for software.
//!
//! *Rights*: a leaf with bit 0 has S2AP\[0\], so a page that can be written or executed can be read. XN is bit 54. Bit 53, which
//! distinguishes EL1 from EL0 with FEAT_XNX, is 0: a page can be executed by both or by neither.
//!
//! *Dirty state* (FEAT_HAFDBS, VTCR_EL2.HD) is that of stage 1 with the opposite bit: DBM says that stores are allowed, and hardware
//! sets S2AP\[1\] at the first store. Without it that store is a permission fault, at which the hypervisor sets
//! [`DIRTY`](Attr::DIRTY) through the writer. Hardware sets AF if VTCR_EL2.HA is set.
//!
//! | [`WRITE`](Attr::WRITE) | [`DIRTY`](Attr::DIRTY) | DBM | S2AP\[1\] | S |
//! |-|-|-|-|-|
//! | no | no | 0 | 0 | 0 |
//! | no | yes | 0 | 0 | 1 |
//! | yes | no | 1 | 0 | 0 |
//! | yes | yes | 1 | 1 | any |
//!
//! *Memory types*: MemAttr, bits 5 to 2, as it is without FEAT_S2FWB (HCR_EL2.FWB is 0). The type of an access is the stricter of
//! this one and the guest's.
//!
//! | [`Attr`] | MemAttr | type |
//! |-|-|-|
//! | - | 1111 | normal, write-back |
//! | [`UNCACHED`](Attr::UNCACHED) | 0101 | normal, non-cacheable |
//! | [`WRITE_THROUGH`](Attr::WRITE_THROUGH) | 1010 | normal, write-through |
//! | [`DEVICE`](Attr::DEVICE), which brings `UNCACHED` with it | 0001 | Device-nGnRE |
//! | [`STRICT`](Attr::STRICT) | 0000 | Device-nGnRnE |
//! | [`REORDERED`](Attr::REORDERED) | 0010 | Device-nGRE |
//! | [`GATHERED`](Attr::GATHERED) | 0011 | Device-GRE |
//!
//! Another [variety](Attr::VARIETY) is refused ([`Error::WrongAttr`]); so is [`TAGGED`](Attr::TAGGED), which stage 2 has with FEAT_S2FWB
//! only.
//!
//! *Flushes*: `TLBI IPAS2E1IS` with bits 47 to 12 of the address evicts stage 2's entries and links for it, on all CPUs and for the VMID
//! in VTTBR_EL2; `TLBI IPAS2LE1IS` evicts leaf entries only. Neither evicts what a TLB has combined of both stages, under the guest's
//! virtual address. So `DSB ISH` follows, and then `TLBI VMALLE1IS`, which evicts all combined entries of the VMID: once for any number
//! of pages. `TLBI VMALLS12E1IS` evicts everything of the VMID. Around them, `DSB ISHST` before, `DSB ISH; ISB` after. A hypervisor that
//! flushes another guest than the one that its CPU last ran sets VTTBR_EL2 first. With HCR_EL2.E2H and TGE set, `VMALLE1IS` would be
//! about the host's own addresses: the hypervisor clears TGE before, and sets it afterwards.
//!
//! *The root* is one table of 4 KiB or less, or 2 to 16 concatenated tables, aligned to its size:
//! [`GuestIpa`](crate::geometry::GuestIpa).

use tlbkit_addr::{Attr, FlushScope, PageSize, Pfn, WalkCache};

use super::{ACCESS, Format, bits_of, has};
use crate::fields::Fields as _;
use crate::nodes::{LinkRange, NodeAddr};
use crate::{Change, Error, Stage, Word};

/// Bit 0, valid.
const VALID: u64 = 1 << 0;
/// Bit 1: a table, or a page of the last level; clear in a block.
const TABLE: u64 = 1 << 1;
/// MemAttr.
const MEM_ATTR_SHIFT: u32 = 2;
const MEM_ATTR: u64 = 15 << MEM_ATTR_SHIFT;
/// S2AP\[0\]: loads are allowed.
const S2AP_READ: u64 = 1 << 6;
/// S2AP\[1\]: stores are allowed.
const S2AP_WRITE: u64 = 1 << 7;
/// SH, inner shareable.
const INNER_SHAREABLE: u64 = 3 << 8;
/// AF, Access Flag.
const AF: u64 = 1 << 10;
/// DBM, Dirty Bit Modifier.
const DBM: u64 = 1 << 51;
/// XN\[1\], eXecute-Never.
const XN: u64 = 1 << 54;
/// S, the first bit that is reserved for software.
const WAS_DIRTY: u64 = 1 << 55;
const COPY_ON_WRITE: u64 = 1 << 56;
const SOFT_1: u64 = 1 << 57;
const SOFT_2: u64 = 1 << 58;
const ADDRESS_BITS: u32 = 48;
const PAGE_SHIFT: u32 = 12;
/// The output address, or the next table's: bits 47 to 12.
const ADDRESS: u64 = (1 << ADDRESS_BITS) - (1 << PAGE_SHIFT);

/// The memory types with their MemAttr.
const TYPES: [(Attr, u64); 7] = [
    (Attr::empty(), 0b1111),
    (Attr::UNCACHED, 0b0101),
    (Attr::WRITE_THROUGH, 0b1010),
    (Attr::MEMORY, 0b0001),
    (Attr::STRICT, 0b0000),
    (Attr::REORDERED, 0b0010),
    (Attr::GATHERED, 0b0011),
];

/// The attributes that have their own bits.
const BITS: [(Attr, u64); 5] = [
    (Attr::WRITE, DBM),
    (Attr::ACCESSED, AF),
    (Attr::COPY_ON_WRITE, COPY_ON_WRITE),
    (Attr::SOFT_1, SOFT_1),
    (Attr::SOFT_2, SOFT_2),
];

/// All bits that depend on attributes, except the memory type.
const ALL: u64 = VALID | S2AP_WRITE | AF | DBM | XN | WAS_DIRTY | COPY_ON_WRITE | SOFT_1 | SOFT_2;

/// Returns MemAttr, at its place, of a page with these attributes.
///
/// # Errors
///
/// [`Error::WrongAttr`] if there is no such memory type.
#[inline(always)]
fn memory_of(attr: Attr) -> Result<u64, Error> {
    let mut kind = attr.intersection(Attr::MEMORY.union(Attr::VARIETY));
    kind.set(Attr::UNCACHED, kind.intersects(Attr::MEMORY));
    let found = TYPES.iter().find(|&&(memory, _)| memory == kind);
    found.map(|&(_, bits)| bits << MEM_ATTR_SHIFT).ok_or(Error::WrongAttr { attr })
}

/// Returns the bits of a page with these attributes, except the memory type.
#[inline(always)]
fn encode(attr: Attr) -> u64 {
    let dirty = match (attr.contains(Attr::WRITE), attr.contains(Attr::DIRTY)) {
        (true, true) => S2AP_WRITE,
        (false, true) => WAS_DIRTY,
        (_, false) => 0,
    };
    let never = if attr.contains(Attr::EXEC) { 0 } else { XN };
    let valid = if attr.intersects(ACCESS) { VALID } else { 0 };
    bits_of(attr, &BITS).with(valid).with(dirty).with(never)
}

/// 64-bit words that AArch64 walks for a guest: 4 KiB, 2 MiB and 1 GiB pages below 2^48 bytes of physical memory.
///
/// For [`GuestIpa`](crate::geometry::GuestIpa).
#[derive(Clone, Copy, Debug)]
pub struct Aarch64Guest;

// SAFETY: above the last level, SH distinguishes a leaf from a link, and bits 47 to 12 of a link are the node's address.
unsafe impl Format for Aarch64Guest {
    type Word = u64;

    const STEP: u64 = 1 << PAGE_SHIFT;
    const LINK_ALIGN: usize = 4096;
    const REACH: LinkRange = LinkRange::unsigned(ADDRESS_BITS);
    const IMPLIED: Attr = Attr::empty();
    const OPTIONAL: Attr = ACCESS
        .union(Attr::ACCESSED)
        .union(Attr::DIRTY)
        .union(Attr::MEMORY)
        .union(Attr::VARIETY)
        .union(Attr::SOFTWARE);
    const ABSENT: u32 = u64::BITS - 2;
    const FIXED: Attr = Attr::MEMORY.union(Attr::VARIETY);
    const APPEARS: FlushScope = FlushScope::Barrier;
    const WALK_CACHE: WalkCache = WalkCache::ByAddress;
    const STAGE: Stage = Stage::Aarch64;
    const STATUS: bool = true;
    const BREAK: bool = true;

    #[inline(always)]
    fn leaf(frame: Pfn, size: PageSize, attr: Attr, last: bool) -> Result<u64, Error> {
        if frame.get() as u64 > ADDRESS >> PAGE_SHIFT {
            return Err(Error::FrameTooLarge { frame });
        }
        super::check_level(size, last)?;
        let kind = S2AP_READ.with(INNER_SHAREABLE).with(if last { TABLE } else { 0 });
        Ok(((frame.get() as u64) << PAGE_SHIFT).with(encode(attr)).with(memory_of(attr)?).with(kind))
    }

    #[inline(always)]
    fn leading_to(first: u64, frame: Pfn) -> u64 {
        Word::advance(first, Self::STEP, frame.get())
    }

    #[inline(always)]
    fn link(node: NodeAddr) -> u64 {
        (node.get() as u64).with(TABLE).with(VALID)
    }

    #[inline(always)]
    fn is_leaf(word: u64, last: bool) -> bool {
        word & (if last { TABLE } else { INNER_SHAREABLE }) != 0
    }

    #[inline(always)]
    fn is_link(word: u64) -> bool {
        word & VALID != 0 && word & TABLE != 0
    }

    #[inline(always)]
    fn node(link: u64) -> NodeAddr {
        NodeAddr::new((link & ADDRESS) as usize)
    }

    #[inline(always)]
    fn frame(leaf: u64, _size: PageSize) -> Pfn {
        Pfn::new((leaf & ADDRESS) as usize >> PAGE_SHIFT)
    }

    #[inline(always)]
    fn attr(leaf: u64, _last: bool) -> Attr {
        let mut attr = has(leaf, &BITS).union(has(leaf, &[(Attr::READ, VALID)]));
        attr.set(Attr::EXEC, leaf & XN == 0);
        attr.set(Attr::DIRTY, leaf & (S2AP_WRITE | WAS_DIRTY) != 0);
        let found = TYPES.iter().find(|&&(_, bits)| leaf & MEM_ATTR == bits << MEM_ATTR_SHIFT);
        found.map_or(attr, |&(memory, _)| attr.union(memory))
    }

    #[inline(always)]
    fn has_all_status(leaf: u64) -> bool {
        !leaf & (AF | S2AP_WRITE) == 0
    }

    #[inline(always)]
    fn change(leaf: u64, change: Change, last: bool) -> u64 {
        (leaf & !ALL).with(encode(change.apply(Self::attr(leaf, last))))
    }
}
