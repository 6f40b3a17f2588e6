//! AArch64 stage 1 descriptors with granules of 4, 16 and 64 KiB, walked by hardware (Arm ARM, VMSAv8-64).
//!
//! ```text
//!        63   59 58    56 55  54  53 52  51 50  48 47            12 11 10 9  8  7  6  5 4   2 1  0
//!       +-------+--------+---+---+---+--+---+-----+----------------+--+--+-----+-----+-+-----+----+
//! leaf  |   0   | s  s c | S |UXN|PXN| C|DBM|  0  | output address |nG|AF|  SH |  AP |0|Attr | *1 |
//! link  |                        0                | next table     |          0               | 11 |
//! closed|                 as a leaf               | output address | as a leaf                | *0 |
//! mark  |                               software's                                          | 00 |
//!       +-----------------------------------------+----------------+--------------------------+----+
//!          * 1 for a page of the last level, 0 for a block above it; an address begins at bit 14 or 16 in the larger granules
//! ```
//!
//! Above the last level, bit 1 distinguishes a block from a table, and no change of attributes changes it. Hardware ignores
//! all other bits of an entry without bit 0. A leaf without [`READ`](Attr::READ), which keeps its frame and allows no
//! access, is a leaf with bit 0 clear (closed, in the drawing). Software recognizes leaves by bit 1 at the last level, and
//! above it by SH, which links do not have.
//!
//! *Dirty state* is that of the architecture (FEAT_HAFDBS, TCR.HD): DBM says that stores are allowed, AP\[2\] that the page
//! is clean, and hardware clears AP\[2\] at the first store. Without FEAT_HAFDBS that store is a permission fault, at which
//! the kernel clears AP\[2\] through the writer. S, a bit for software, records that a page was dirty before it was
//! write-protected. Hardware sets AF if TCR.HA is set. So edits are atomic read-modify-writes. A leaf with AF and without
//! AP\[2\] does not change any more, and is edited with a plain store.
//!
//! | [`WRITE`](Attr::WRITE) | [`DIRTY`](Attr::DIRTY) | DBM | AP\[2\] | S |
//! |-|-|-|-|-|
//! | no | no | 0 | 1 | 0 |
//! | no | yes | 0 | 1 | 1 |
//! | yes | no | 1 | 1 | 0 |
//! | yes | yes | 1 | 0 | any |
//!
//! *Break before make*: a change of the size of a live page needs an invalid entry in between, and a flush of every TLB. The
//! memory type of a page, and whether it is global, cannot change ([`FIXED`](Format::FIXED)): the kernel unmaps the page,
//! and maps it again in another batch. A CPU with FEAT_BBM level 2 needs no break for a change of size ([`Aarch64Of`] with
//! `BBM2`): it may use either translation until the flush. The architecture allows such a CPU to raise a TLB conflict abort
//! in this time. `BBM2` is for CPUs whose manuals exclude that (Linux has a list of them, `bbml2_noabort`), or for kernels
//! that flush the whole TLB in that abort and continue. A page cannot change its frame in place, with or without `BBM2`.
//!
//! *Contiguous runs* ([`Aarch64Of`] with `RUNS`): bit 52, C, in each leaf of an aligned run says that the leaves map
//! consecutive memory, so that one TLB entry can hold the run. Each leaf has its own address. Hardware may set AF and dirty
//! state in any of them. The rights of the whole run may change without a break: each leaf is the old one or the new one
//! until the flush.
//!
//! | granule | levels | pages | blocks | runs |
//! |-|-|-|-|-|
//! | 4 KiB | 9 bits each | 4 KiB | 2 MiB, 1 GiB | 16 of each: 64 KiB, 32 MiB, 16 GiB |
//! | 16 KiB | 11 bits each | 16 KiB | 32 MiB | 128 pages: 2 MiB; 32 blocks: 1 GiB |
//! | 64 KiB | 13 bits each | 64 KiB | 512 MiB | 32 of each: 2 MiB, 16 GiB |
//!
//! With addresses of 52 bits there are blocks one level higher, without runs: 512 GiB, 64 GiB and 4 TiB.
//!
//! *A new mapping* needs no flush, because TLBs hold no entries that fault. It needs a barrier ([`FlushScope::Barrier`]):
//! `dsb ishst; isb` on the CPU that made it, after the last store and before the first use. The store of a link contains the
//! release (`stlr`, or `dmb ish`) that orders a node's words before the link.
//!
//! *Links* are cached (the walk cache): after a change of one, `TLBI VAE1IS` or `VAAE1IS`, not the forms for the last
//! level, `VALE1IS` and `VAALE1IS` ([`WalkCache::ByAddress`]). Around any TLBI: `dsb ishst` before, `dsb ish; isb`
//! after. A permission fault does not evict the TLB entry that caused it: a CPU that faults on an access that the table
//! allows executes its own TLBI, of the first kind, before it repeats the access.
//!
//! *Memory types*: SH is inner shareable, and AttrIndx names one of the eight fields of MAIR_EL1, which must hold
//! [`Aarch64::MAIR`].
//!
//! | [`Attr`] | AttrIndx | MAIR field | type |
//! |-|-|-|-|
//! | - | 0 | 0xff | normal, write-back, read and write allocate |
//! | [`UNCACHED`](Attr::UNCACHED) | 1 | 0x44 | normal, non-cacheable |
//! | [`DEVICE`](Attr::DEVICE), which brings `UNCACHED` with it | 2 | 0x04 | Device-nGnRE |
//! | [`WRITE_THROUGH`](Attr::WRITE_THROUGH) | 3 | 0xbb | normal, write-through, read and write allocate |
//! | [`TAGGED`](Attr::TAGGED), which needs FEAT_MTE2 | 4 | 0xf0 | normal, write-back, with allocation tags |
//! | [`STRICT`](Attr::STRICT) | 5 | 0x00 | Device-nGnRnE |
//! | [`REORDERED`](Attr::REORDERED) | 6 | 0x08 | Device-nGRE |
//! | [`GATHERED`](Attr::GATHERED) | 7 | 0x0c | Device-GRE |
//!
//! Another [variety](Attr::VARIETY) is refused ([`Error::WrongAttr`]).
//!
//! [`COPY_ON_WRITE`](Attr::COPY_ON_WRITE), [`SOFT_1`](Attr::SOFT_1) and [`SOFT_2`](Attr::SOFT_2) are bits 56 to 58, reserved
//! for software, as S is.
//!
//! *Rights*: [`READ`](Attr::READ) is bit 0; a page that can be written or executed can be read. Only user mode can execute a
//! page of [`USER`](Attr::USER) (PXN), and only the kernel can execute other pages (UXN).
//!
//! *52 bits* ([`Aarch64Of`] with `WIDE`): FEAT_LPA2 with granules of 4 and 16 KiB, where TCR_EL1.DS must be set, and
//! FEAT_LPA with one of 64 KiB. The highest bits of an address are in another field than the others:
//!
//! | granule | bits of the address below | above | SH is |
//! |-|-|-|-|
//! | 4, 16 KiB | 49 to 12 or 14, at their places | 51 and 50, in bits 9 and 8 | in TCR_EL1, for all pages |
//! | 64 KiB | 47 to 16, at their places | 51 to 48, in bits 15 to 12 | in the entry |
//!
//! So a map of a range is refused if its frames are on both sides of a multiple of 2^50 bytes (2^48 with 64 KiB):
//! [`Error::FrameTooLarge`] with the last frame. If entries have no SH, software recognizes a leaf above the last level by
//! PXN and UXN, of which each leaf has at least one.
//!
//! Each half may have a table of its own: [`Arm`](crate::geometry::Arm) is a half of any width, with a root that is no larger than a
//! granule. Or one table of [`Va48`](crate::geometry::Va48) serves both translation table base registers: with T0SZ = T1SZ = 17,
//! TTBR0 gets the root, and TTBR1 the root plus 2 KiB, its upper half. So it is with
//! [`Va48K16`](crate::geometry::Va48K16), whose upper half is at 16 KiB, and [`Va48K64`](crate::geometry::Va48K64), at 256
//! bytes. With `WIDE` a half can have 52 bits, T0SZ = T1SZ = 12: [`Va53`](crate::geometry::Va53), whose upper half is at 128
//! bytes, [`Va53K16`](crate::geometry::Va53K16), at 256 bytes, and [`Va53K64`](crate::geometry::Va53K64), at 8 KiB. Bits 51
//! to 48 of a root's address go to bits 5 to 2 of TTBR0 and TTBR1.

use tlbkit_addr::{Attr, FlushScope, PageSize, Pfn, WalkCache};

use super::{ACCESS, Foreign, Format, Presence, bits_of, foreign_leaf, has, presence};
use crate::fields::Fields as _;
use crate::nodes::{LinkRange, NodeAddr};
use crate::{Change, Error};

/// Bit 0, valid.
const VALID: u64 = 1 << 0;
/// Bit 1: a table, or a page of the last level; clear in a block.
const TABLE: u64 = 1 << 1;
/// AttrIndx\[2:0\], the index of a MAIR field.
const ATTR_INDX_SHIFT: u32 = 2;
/// AP\[1\]: EL0 may access.
const AP_EL0: u64 = 1 << 6;
/// AP\[2\]: read-only.
const AP_READ_ONLY: u64 = 1 << 7;
/// SH\[1:0\], inner shareable.
const INNER_SHAREABLE: u64 = 3 << 8;
/// AF, Access Flag.
const AF: u64 = 1 << 10;
/// nG, not Global.
const NG: u64 = 1 << 11;
/// The number of bits of an output address or of the next table's address.
const ADDRESS_BITS: u32 = 48;
/// The number of bits of an output address or of the next table's address, with `WIDE`.
const WIDE_BITS: u32 = 52;
/// Contiguous.
const CONTIGUOUS: u64 = 1 << 52;
/// DBM, Dirty Bit Modifier.
const DBM: u64 = 1 << 51;
/// PXN, Privileged eXecute-Never.
const PXN: u64 = 1 << 53;
/// UXN, Unprivileged eXecute-Never.
const UXN: u64 = 1 << 54;
/// S, the first bit that is reserved for software.
const WAS_DIRTY: u64 = 1 << 55;
/// The second bit that is reserved for software.
const COPY_ON_WRITE: u64 = 1 << 56;

/// The third bit that is reserved for software.
const SOFT_1: u64 = 1 << 57;
/// The fourth bit that is reserved for software.
const SOFT_2: u64 = 1 << 58;

/// PXNTable, UXNTable, APTable\[0\] (no access by EL0) and APTable\[1\] (read-only) of a link: they hold for all pages below it.
const PXN_TABLE: u64 = 1 << 59;
const UXN_TABLE: u64 = 1 << 60;
const AP_TABLE_NO_EL0: u64 = 1 << 61;
const AP_TABLE_READ_ONLY: u64 = 1 << 62;
/// NSTable, which means something in secure state only.
const NS_TABLE: u64 = 1 << 63;
/// The bits of a leaf for software: 55 to 58.
const SOFTWARE: u64 = 0xf << 55;
/// The bits of a link that hardware ignores: 51 to 58, and of 2 to 11 those that hold no address.
const LINK_IGNORED: u64 = 0xff << 51 | 0x3ff << 2;

/// The memory types and their fields of MAIR_EL1, by AttrIndx.
const TYPES: [(Attr, u8); 8] = [
    (Attr::empty(), 0xff),
    (Attr::UNCACHED, 0x44),
    (Attr::MEMORY, 0x04),
    (Attr::WRITE_THROUGH, 0xbb),
    (Attr::TAGGED, 0xf0),
    (Attr::STRICT, 0x00),
    (Attr::REORDERED, 0x08),
    (Attr::GATHERED, 0x0c),
];

/// Returns AttrIndx, at its place, of a page with these attributes.
///
/// # Errors
///
/// [`Error::WrongAttr`] if there is no such memory type.
#[inline(always)]
fn index_of(attr: Attr) -> Result<u64, Error> {
    let mut kind = attr.intersection(Attr::MEMORY.union(Attr::VARIETY));
    if kind.is_empty() {
        return Ok(0);
    }
    kind.set(Attr::UNCACHED, kind.intersects(Attr::MEMORY));
    let index = TYPES.iter().position(|&(memory, _)| memory == kind).ok_or(Error::WrongAttr { attr })?;
    Ok((index as u64) << ATTR_INDX_SHIFT)
}

/// The attributes that have their own bits.
const BITS: [(Attr, u64); 6] = [
    (Attr::WRITE, DBM),
    (Attr::USER, AP_EL0),
    (Attr::ACCESSED, AF),
    (Attr::COPY_ON_WRITE, COPY_ON_WRITE),
    (Attr::SOFT_1, SOFT_1),
    (Attr::SOFT_2, SOFT_2),
];

/// Returns AP\[2\] and S of a page that stores may reach, or not, and that is dirty, or clean.
#[inline(always)]
const fn dirty_state(is_writable: bool, is_dirty: bool) -> u64 {
    match (is_writable, is_dirty) {
        (true, true) => 0,
        (false, true) => AP_READ_ONLY | WAS_DIRTY,
        (_, false) => AP_READ_ONLY,
    }
}

/// Returns PXN and UXN of a page that is executable, or not, and a user's, or the kernel's.
#[inline(always)]
const fn execute_never(is_executable: bool, is_users: bool) -> u64 {
    match (is_executable, is_users) {
        (true, true) => PXN,
        (true, false) => UXN,
        (false, _) => PXN | UXN,
    }
}

/// Tells whether a leaf is executable: by user mode, if it is a user's page, and by the kernel otherwise.
#[inline(always)]
const fn is_executable(leaf: u64) -> bool {
    leaf & (if leaf & AP_EL0 != 0 { UXN } else { PXN }) == 0
}

/// Tells whether a leaf is dirty.
#[inline(always)]
const fn is_dirty(leaf: u64) -> bool {
    leaf & AP_READ_ONLY == 0 || leaf & WAS_DIRTY != 0
}

/// Returns the bits of a page with these attributes, except the memory type.
#[inline(always)]
fn encode(attr: Attr) -> u64 {
    let dirty = dirty_state(attr.contains(Attr::WRITE), attr.contains(Attr::DIRTY));
    let never = execute_never(attr.contains(Attr::EXEC), attr.contains(Attr::USER));
    let ng = if attr.contains(Attr::GLOBAL) { 0 } else { NG };
    let valid = if attr.intersects(ACCESS) { VALID } else { 0 };
    bits_of(attr, &BITS).with(valid).with(dirty).with(never).with(ng)
}

/// 64-bit words that AArch64 walks: pages, blocks and, with `RUNS`, contiguous runs, below 2^48 bytes of physical memory.
/// The granule has `1 << SHIFT` bytes; `SHIFT` is 12, 14 or 16. `BBM2` says that every CPU has FEAT_BBM level 2 and raises
/// no TLB conflict abort. `WIDE` says that every CPU has FEAT_LPA2 or, with 64 KiB, FEAT_LPA, for 2^52 bytes of physical
/// memory.
///
/// For [`Arm`](crate::geometry::Arm), with `WIDE` if it has 52 bits; for [`Va48`](crate::geometry::Va48), [`Va48K16`](crate::geometry::Va48K16) and [`Va48K64`](crate::geometry::Va48K64),
/// with `WIDE` also for [`Va53`](crate::geometry::Va53), [`Va53K16`](crate::geometry::Va53K16) and
/// [`Va53K64`](crate::geometry::Va53K64), and with `RUNS` for [`Runs`](crate::geometry::Runs) of them.
#[derive(Clone, Copy, Debug)]
pub struct Aarch64Of<const SHIFT: u32, const RUNS: bool, const BBM2: bool, const WIDE: bool = false>;

/// The granule of 4 KiB, without runs, for every CPU.
pub type Aarch64 = Aarch64Of<12, false, false>;

/// Returns the base-two logarithm of the number of slots of a run.
#[inline(always)]
const fn run_bits(granule: u32, slot: u32) -> u32 {
    match (granule, slot) {
        (12, _) => 4,
        (14, 14) => 7,
        _ => 5,
    }
}

/// Tells whether a leaf of `size`, a base-two logarithm of bytes, is a run of several slots; `None` if there is no such
/// leaf.
#[inline(always)]
fn is_run(granule: u32, runs: bool, wide: bool, size: u32, last: bool) -> Option<bool> {
    // A slot of the level above the last maps as many pages as a node has words of eight bytes.
    let block = 2 * granule - 3;
    // With 4 KiB there are blocks at two levels.
    let huge = if granule == 12 { 30 } else { block };
    // With addresses of 52 bits there are blocks at one more level, whose contiguous bit is RES0.
    let top = if wide { huge + granule - 3 } else { huge };
    if last && size == granule || !last && (size == block || size == huge || size == top) {
        return Some(false);
    }
    let run_of = |slot: u32| size == slot + run_bits(granule, slot);
    let run = if last { run_of(granule) } else { run_of(block) || run_of(huge) };
    (runs && run).then_some(true)
}

impl<const SHIFT: u32, const RUNS: bool, const BBM2: bool, const WIDE: bool>
    Aarch64Of<SHIFT, RUNS, BBM2, WIDE>
{
    /// The value that MAIR_EL1 must have.
    pub const MAIR: u64 = {
        let (mut mair, mut index) = (0, 0);
        while index < TYPES.len() {
            mair |= (TYPES[index].1 as u64) << (8 * index);
            index += 1;
        }
        mair
    };

    /// Whether the entry has two bits of the address in place of SH.
    const LPA2: bool = WIDE && SHIFT < 16;
    /// The number of low bits of an address that are at their places in the entry.
    const IN_PLACE: u32 = if Self::LPA2 { 50 } else { ADDRESS_BITS };
    /// The mask of the address bits that are at their places: bits 47 or 49 to `SHIFT`.
    const ADDRESS: u64 = (1 << Self::IN_PLACE) - (1 << SHIFT);
    /// The lowest bit, in the entry, of the higher address bits.
    const HIGH_SHIFT: u32 = if SHIFT < 16 { 8 } else { 12 };
    const HIGH: u64 = if WIDE { ((1 << (WIDE_BITS - Self::IN_PLACE)) - 1) << Self::HIGH_SHIFT } else { 0 };
    /// SH, if the entry has it.
    const SHAREABLE: u64 = if Self::LPA2 { 0 } else { INNER_SHAREABLE };
    /// The bits of which each leaf above the last level has at least one, and no link has any.
    const LEAF: u64 = if Self::LPA2 { PXN | UXN } else { INNER_SHAREABLE };

    /// Encodes an address.
    #[inline(always)]
    fn pack(address: u64) -> u64 {
        if WIDE {
            (address & Self::ADDRESS).with(address >> Self::IN_PLACE << Self::HIGH_SHIFT)
        } else {
            address
        }
    }

    /// Decodes an address.
    #[inline(always)]
    const fn unpack(word: u64) -> u64 {
        word & Self::ADDRESS | (word & Self::HIGH) >> Self::HIGH_SHIFT << Self::IN_PLACE
    }
}

// SAFETY: above the last level, SH (PXN and UXN if entries have no SH) distinguishes a leaf from a link, and `unpack` of a
// link returns the node's address.
unsafe impl<const SHIFT: u32, const RUNS: bool, const BBM2: bool, const WIDE: bool> Format
    for Aarch64Of<SHIFT, RUNS, BBM2, WIDE>
{
    type Word = u64;

    const BASE: PageSize = match PageSize::from_shift(SHIFT) {
        Some(size) if SHIFT == 12 || SHIFT == 14 || SHIFT == 16 => size,
        _ => panic!("granules have 4, 16 or 64 KiB"),
    };
    const STEP: u64 = 1 << SHIFT;
    const LINK_ALIGN: usize = 1 << SHIFT;
    const REACH: LinkRange = LinkRange::unsigned(if WIDE { WIDE_BITS } else { ADDRESS_BITS });
    const IMPLIED: Attr = Attr::empty();
    const OPTIONAL: Attr = Attr::READ
        .union(Attr::WRITE)
        .union(Attr::EXEC)
        .union(Attr::USER)
        .union(Attr::GLOBAL)
        .union(Attr::ACCESSED)
        .union(Attr::DIRTY)
        .union(Attr::MEMORY)
        .union(Attr::VARIETY)
        .union(Attr::SOFTWARE);
    const ABSENT: u32 = u64::BITS - 2;
    const FIXED: Attr = Attr::MEMORY.union(Attr::VARIETY).union(Attr::GLOBAL);
    const APPEARS: FlushScope = FlushScope::Barrier;
    const WALK_CACHE: WalkCache = WalkCache::ByAddress;
    const STATUS: bool = true;
    const SPREAD: bool = true;
    const BREAK: bool = !BBM2;
    const BREAK_FRAME: bool = true;

    #[inline(always)]
    fn leaf(frame: Pfn, size: PageSize, attr: Attr, last: bool) -> Result<u64, Error> {
        if frame.get() as u64 > Self::unpack(u64::MAX) >> SHIFT {
            return Err(Error::FrameTooLarge { frame });
        }
        let run = match is_run(SHIFT, RUNS, WIDE, size.shift(), last) {
            Some(true) => CONTIGUOUS,
            Some(false) => 0,
            None => return Err(Error::WrongSize { size }),
        };
        let kind = if last { TABLE } else { 0 };
        let address = Self::pack((frame.get() as u64) << SHIFT);
        Ok(address.with(encode(attr)).with(index_of(attr)?).with(Self::SHAREABLE).with(kind).with(run))
    }

    #[inline(always)]
    fn leading_to(first: u64, frame: Pfn) -> u64 {
        first.wrapping_add(Self::pack((frame.get() as u64) << SHIFT))
    }

    #[inline(always)]
    fn link(node: NodeAddr) -> u64 {
        Self::pack(node.get() as u64).with(TABLE).with(VALID)
    }

    #[inline(always)]
    fn is_leaf(word: u64, last: bool) -> bool {
        word & (if last { TABLE } else { Self::LEAF }) != 0
    }

    #[inline(always)]
    fn is_link(word: u64) -> bool {
        word & VALID != 0 && word & TABLE != 0
    }

    #[inline(always)]
    fn node(link: u64) -> NodeAddr {
        NodeAddr::new(Self::unpack(link) as usize)
    }

    #[inline(always)]
    fn frame(leaf: u64, size: PageSize) -> Pfn {
        let number = (Self::unpack(leaf) >> SHIFT) as usize;
        Pfn::new(if RUNS { number & !(size.mask() >> SHIFT) } else { number })
    }

    #[inline(always)]
    fn attr(leaf: u64, _last: bool) -> Attr {
        let mut attr = has(leaf, &BITS).union(has(leaf, &[(Attr::READ, VALID)]));
        attr.set(Attr::EXEC, is_executable(leaf));
        attr.set(Attr::DIRTY, is_dirty(leaf));
        attr.set(Attr::GLOBAL, leaf & NG == 0);
        attr.union(TYPES[(leaf >> ATTR_INDX_SHIFT) as usize % TYPES.len()].0)
    }

    #[inline(always)]
    fn size(leaf: u64, slot: PageSize) -> PageSize {
        if RUNS && leaf & CONTIGUOUS != 0 {
            PageSize::from_shift(slot.shift() + run_bits(SHIFT, slot.shift())).unwrap_or(slot)
        } else {
            slot
        }
    }

    #[inline(always)]
    fn has_all_status(leaf: u64) -> bool {
        leaf & (AF | AP_READ_ONLY) == AF
    }

    /// `above` has the bits of the links that hold for the pages below them. AttrIndx is an index of [`Self::MAIR`], as in own entries.
    ///
    /// A page that is not the user's never allows EL0 to execute it here, whatever UXN says. SH of device memory and of non-cacheable
    /// memory has no effect.
    fn foreign(word: u64, above: u64, slot: PageSize, last: bool) -> Foreign {
        if word & VALID == 0 || last && word & TABLE == 0 {
            return Foreign::Absent;
        }
        if !last && word & TABLE != 0 {
            let held = word & (PXN_TABLE | UXN_TABLE | AP_TABLE_NO_EL0 | AP_TABLE_READ_ONLY);
            let rest = word & !held & !(LINK_IGNORED & !Self::HIGH);
            let is_own = word & NS_TABLE == 0 && rest == Self::link(Self::node(word));
            return if is_own { Foreign::Link(above | held) } else { Foreign::Unknown };
        }
        let bit = |table: u64, bit: u64| if above & table != 0 { bit } else { 0 };
        let mut word = word & !SOFTWARE & !bit(AP_TABLE_NO_EL0, AP_EL0)
            | bit(PXN_TABLE, PXN)
            | bit(UXN_TABLE, UXN)
            | bit(AP_TABLE_READ_ONLY, AP_READ_ONLY);
        if above & AP_TABLE_READ_ONLY != 0 {
            word &= !DBM;
        }
        if word & AP_READ_ONLY == 0 {
            // Without DBM the page is writable, too. What EL0 can write, EL1 does not execute.
            word |= DBM | if word & AP_EL0 != 0 { PXN } else { 0 };
        }
        if word & AP_EL0 == 0 {
            word |= UXN;
        }
        let memory = TYPES[(word >> ATTR_INDX_SHIFT) as usize % TYPES.len()].0;
        if memory.intersects(Attr::MEMORY) {
            word |= Self::SHAREABLE;
        }
        let size = Self::size(word, slot);
        let low = if size > slot { (size.mask() & !slot.mask()) as u64 } else { 0 };
        foreign_leaf::<Self>(word, low, slot, last)
    }

    /// Changes the bits of the attributes in `change`, and no others: if `change` is a constant, so are the masks.
    #[inline(always)]
    fn change(leaf: u64, change: Change, _last: bool) -> u64 {
        let Change { clear, set } = change;
        let touched = clear.union(set);
        // An attribute that the change both clears and sets is set.
        let becomes = |attr, was| set.contains(attr) || !clear.contains(attr) && was;
        let mut word = leaf & !bits_of(clear, &BITS) | bits_of(set, &BITS);
        if touched.contains(Attr::GLOBAL) {
            word = word & !NG | if set.contains(Attr::GLOBAL) { 0 } else { NG };
        }
        if touched.intersects(Attr::WRITE.union(Attr::DIRTY)) {
            let dirty = becomes(Attr::DIRTY, is_dirty(leaf));
            word = word & !(AP_READ_ONLY | WAS_DIRTY) | dirty_state(word & DBM != 0, dirty);
        }
        if touched.intersects(Attr::EXEC.union(Attr::USER)) {
            let executable = becomes(Attr::EXEC, is_executable(leaf));
            word = word & !(PXN | UXN) | execute_never(executable, word & AP_EL0 != 0);
        }
        let is_valid = match presence(change) {
            Presence::Kept => return word,
            Presence::Set => true,
            Presence::Clear => false,
            Presence::Depends => word & DBM != 0 || is_executable(word),
        };
        word & !VALID | if is_valid { VALID } else { 0 }
    }
}
