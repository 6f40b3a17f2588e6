//! x86-64's second stage: entries of the extended page tables (EPT), walked by hardware (Intel SDM volume 3, *The Extended Page Table
//! Mechanism*).
//!
//! ```text
//!        63 57 56   52 51                       12 11 10  9  8  7  6   5 3   2  1  0
//!       +-----+-------+---------------------------+--+--+--+--+--+----+-----+--+--+--+
//! leaf  |  0  | s s c |      physical address     | 0| 0| D| A| *|IPAT|type | X| W| 1|
//! link  |  0  |   0   |     address of the node   | 0| 0| 0| a| 0|  0 |  0  | 1| 1| 1|
//! closed|  0  | s s c |      physical address     | 1| 0| D| A| *|IPAT|type | 0| 0| 0|
//! mark  |       software's, inverted              | 0|      software's       | 0| 0| 0|
//!       +-----------------------------------------+--+-----------------------+--------+
//!                 * 1 in a 2 MiB or 1 GiB leaf                                  X  W  R
//! ```
//!
//! An entry is not present if R, W and X are 0, and the processor ignores its other bits. At the last level, R or bit 11, which the
//! processor ignores, distinguishes a leaf; above it, bit 7 does. Links allow every access; the leaf determines the rights. Bit 11 is
//! set in a leaf that is not present, which keeps its frame and allows no access (closed, in the drawing). As on x86-64's own tables, a
//! mark is stored with the bits from 12 on inverted, because a processor with the L1 terminal fault speculates on the address in an
//! entry that is not present.
//!
//! *Misconfigurations*, at which the guest exits with reason 49, cannot be written: a leaf that can be written or executed can
//! be read, so no entry has W or X without R (execute-only pages are an option of the processor); the memory type is one of three; and no
//! reserved bit is set in a leaf of a frame that the machine has. The processor ignores or reserves bits 10 and 57 to 63 unless the
//! hypervisor switches on what uses them: mode-based execute control, guest-paging verification, paging-write, supervisor shadow stacks,
//! sub-page permissions. These must be off; so must "EPT-violation #VE", for which bit 63 would have to be set in every entry that is
//! not present.
//!
//! *A and D*: with `AD` ([`EptOf`]), the hypervisor has set bit 6 of EPTP, and the processor sets A in links and leaves, and D in leaves, with locked
//! cycles. Then it also treats its accesses to the guest's own tables as writes. Without `AD` it ignores these two bits, which software
//! keeps: no access faults for lack of them.
//!
//! | [`Attr`] | type |
//! |-|-|
//! | - | 6, write-back |
//! | [`UNCACHED`](Attr::UNCACHED) | 1, write-combining |
//! | [`DEVICE`](Attr::DEVICE), which brings `UNCACHED` with it | 0, uncacheable |
//!
//! The processor combines the type with that of the guest's PAT as if it came from an MTRR. With `IPAT`, bit 6 is set in every leaf, and
//! the processor ignores the guest's PAT: for machines in which no device needs another type than the hypervisor has chosen.
//!
//! *Flushes*: `INVEPT` of type 1 (single-context) with the EPTP of the table, or of type 2 (all contexts), on each CPU that may run
//! the guest. Neither takes an address: [`WALK_CACHE`](Format::WALK_CACHE) is [`WalkCache::NoAddress`], and
//! [`by_address`](tlbkit_addr::Flush::by_address) returns `None` if there is anything to flush. `INVVPID` does not evict what
//! comes from EPT entries alone. The processor caches no entry that is not present, so a new page needs no flush. An EPT
//! violation evicts the translations that led to it: a guest that faults on a page which the table allows is resumed.
//!
//! *A change of the size* of a live page: either size may be used until the flush, as on x86-64, so the size changes in place.
//!
//! [`COPY_ON_WRITE`](Attr::COPY_ON_WRITE), [`SOFT_1`](Attr::SOFT_1) and [`SOFT_2`](Attr::SOFT_2) are bits 52 to 54, which the
//! processor ignores.
//!
//! *Requirements*: `IA32_VMX_EPT_VPID_CAP` says what a processor has. The walk length of EPTP is that of the geometry: 3 for four levels,
//! 4 for five. Without pages of 1 GiB (bit 17) the geometry is [`UpToM2`](crate::geometry::UpToM2); without A and D (bit 21), `AD` is
//! `false`.

use tlbkit_addr::{Attr, PageSize, Pfn, WalkCache};

use super::{ACCESS, Format, Masks, Presence, bits_of, has, presence};
use crate::fields::Fields as _;
use crate::nodes::{LinkRange, NodeAddr};
use crate::{Change, Error, Stage, Word};

/// Read access.
const R: u64 = 1 << 0;
/// Write access.
const W: u64 = 1 << 1;
/// Execute access.
const X: u64 = 1 << 2;
/// The memory type of a leaf.
const TYPE: u64 = 7 << 3;
const WRITE_COMBINING: u64 = 1 << 3;
const WRITE_BACK: u64 = 6 << 3;
/// Ignore PAT.
const IGNORE_PAT: u64 = 1 << 6;
/// An entry above the last level is a page.
const PAGE: u64 = 1 << 7;
/// Accessed.
const A: u64 = 1 << 8;
/// Dirty.
const D: u64 = 1 << 9;
/// A bit that the processor ignores, which is set in a leaf that is not present.
const CLOSED: u64 = 1 << 11;
/// The first of the bits that the processor ignores, for software.
const COPY_ON_WRITE: u64 = 1 << 52;
const SOFT_1: u64 = 1 << 53;
const SOFT_2: u64 = 1 << 54;
/// The physical address: bits 51 to 12.
const ADDRESS: u64 = (1 << 52) - (1 << PAGE_SHIFT);
const PAGE_SHIFT: u32 = 12;

/// The attributes that have bits of their own in every leaf.
const BITS: [(Attr, u64); 7] = [
    (Attr::WRITE, W),
    (Attr::EXEC, X),
    (Attr::ACCESSED, A),
    (Attr::DIRTY, D),
    (Attr::COPY_ON_WRITE, COPY_ON_WRITE),
    (Attr::SOFT_1, SOFT_1),
    (Attr::SOFT_2, SOFT_2),
];

/// All bits that depend on attributes.
const ALL: u64 = R | W | X | TYPE | A | D | CLOSED | COPY_ON_WRITE | SOFT_1 | SOFT_2;

/// The number of a mark's low bits, which are bits 3 to 10 of the word.
const LOW: u32 = 8;
const LOW_SHIFT: u32 = 3;
/// The lowest bit of a mark's high bits in the word.
const HIGH: u32 = 12;

/// Returns the bits of a page with these attributes.
#[inline(always)]
fn encode(attr: Attr) -> u64 {
    let memory = match (attr.contains(Attr::DEVICE), attr.contains(Attr::UNCACHED)) {
        (true, _) => 0,
        (false, true) => WRITE_COMBINING,
        (false, false) => WRITE_BACK,
    };
    let readable = if attr.intersects(ACCESS) { R } else { CLOSED };
    bits_of(attr, &BITS).with(memory).with(readable)
}

/// 64-bit words that an x86-64 processor walks for a guest: 4 KiB, 2 MiB and 1 GiB pages below 2^52 bytes of physical memory. `AD`
/// says whether the processor sets A and D, and `IPAT` whether it ignores the guest's PAT.
///
/// For [`GuestEpt`](crate::geometry::GuestEpt), on processors without pages of 1 GiB for [`UpToM2`](crate::geometry::UpToM2) of it.
#[derive(Clone, Copy, Debug)]
pub struct EptOf<const AD: bool, const IPAT: bool>;

/// [`EptOf`] for processors that set A and D, and for guests with a PAT.
pub type Ept = EptOf<true, false>;

// SAFETY: above the last level bit 7 distinguishes a leaf from a link, and a link's bits 12 to 51 are the node's address.
unsafe impl<const AD: bool, const IPAT: bool> Format for EptOf<AD, IPAT> {
    type Word = u64;

    const STEP: u64 = 1 << PAGE_SHIFT;
    const LINK_ALIGN: usize = 4096;
    const REACH: LinkRange = LinkRange::unsigned(52);
    const IMPLIED: Attr = Attr::empty();
    const OPTIONAL: Attr =
        ACCESS.union(Attr::ACCESSED).union(Attr::DIRTY).union(Attr::MEMORY).union(Attr::SOFTWARE);
    const ABSENT: u32 = LOW + u64::BITS - HIGH;
    const WALK_CACHE: WalkCache = WalkCache::NoAddress;
    const STAGE: Stage = Stage::Ept;
    const STATUS: bool = AD;
    const FLIPS: bool = true;

    #[inline(always)]
    fn leaf(frame: Pfn, size: PageSize, attr: Attr, last: bool) -> Result<u64, Error> {
        if frame.get() as u64 > ADDRESS >> PAGE_SHIFT {
            return Err(Error::FrameTooLarge { frame });
        }
        super::check_level(size, last)?;
        let kind = if last { 0 } else { PAGE }.with(if IPAT { IGNORE_PAT } else { 0 });
        Ok(((frame.get() as u64) << PAGE_SHIFT).with(encode(attr)).with(kind))
    }

    #[inline(always)]
    fn leading_to(first: u64, frame: Pfn) -> u64 {
        Word::advance(first, Self::STEP, frame.get())
    }

    #[inline(always)]
    fn link(node: NodeAddr) -> u64 {
        (node.get() as u64).with(X).with(W).with(R)
    }

    #[inline(always)]
    fn is_leaf(word: u64, last: bool) -> bool {
        word & (if last { R | CLOSED } else { PAGE }) != 0
    }

    #[inline(always)]
    fn is_link(word: u64) -> bool {
        word & R != 0 && word & PAGE == 0
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
        let attr = has(leaf, &BITS).union(has(leaf, &[(Attr::READ, R)]));
        match leaf & TYPE {
            WRITE_BACK => attr,
            WRITE_COMBINING => attr.union(Attr::UNCACHED),
            _ => attr.union(Attr::MEMORY),
        }
    }

    #[inline(always)]
    fn has_all_status(leaf: u64) -> bool {
        !leaf & (A | D) == 0
    }

    #[inline(always)]
    fn change(leaf: u64, change: Change, last: bool) -> u64 {
        match Self::masks(change, last) {
            Some(masks) => masks.apply(leaf),
            None => (leaf & !ALL).with(encode(change.apply(Self::attr(leaf, last)))),
        }
    }

    #[inline(always)]
    fn masks(change: Change, _last: bool) -> Option<Masks<u64>> {
        let Change { clear, set } = change;
        if clear.union(set).intersects(Attr::MEMORY) {
            // Two attributes share a field.
            return None;
        }
        let (off, on) = (bits_of(clear, &BITS), bits_of(set, &BITS));
        match presence(change) {
            Presence::Kept => Some(Masks { clear: off, set: on }),
            Presence::Set => Some(Masks { clear: off | CLOSED, set: on | R }),
            Presence::Clear => Some(Masks { clear: off | R, set: on | CLOSED }),
            Presence::Depends => None,
        }
    }

    #[inline(always)]
    fn absent(bits: u64) -> u64 {
        if bits == 0 { 0 } else { (!(bits >> LOW) << HIGH).with((bits & ((1 << LOW) - 1)) << LOW_SHIFT) }
    }

    #[inline(always)]
    fn absent_bits(word: u64) -> u64 {
        if word == 0 { 0 } else { (!word >> HIGH << LOW).with(word >> LOW_SHIFT & ((1 << LOW) - 1)) }
    }
}
