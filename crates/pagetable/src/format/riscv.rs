//! RISC-V page table entries, walked by hardware (RISC-V Privileged Architecture, Sv32, Sv39, Sv48 and Sv57).
//!
//! ```text
//!        63 62  61 60      54 53                       10 9   8  7  6  5  4  3  2  1  0
//!       +--+------+----------+---------------------------+-----+--+--+--+--+--+--+--+--+
//! leaf  | n| type |    0     |            PPN            |d  c | D| A| G| U| X| W| 1| 1|
//! link  | 0|  0   |    0     |       PPN of the node     |  0  | 0| 0| 0| 0| 0| 0| 0| 1|
//! closed| n| type |    0     |            PPN            |d  c | D| A| G| U| 0| 0| 1| 0|
//! mark  |                              software's                             | 0| 0|
//!       +--+------+----------+---------------------------+-----+--+--+--+--+--+--+--+--+
//!        N  PBMT                                            RSW             R  V
//! ```
//!
//! An entry with R, W and X all clear is a link, at any level; every leaf has R. So leaves and links stay distinct whatever
//! a change clears, and there are no execute-only pages: a page that can be written or executed can be read. Hardware
//! ignores all other bits of an entry without V. So a leaf without [`READ`](Attr::READ), which keeps its frame and allows no
//! access, is a leaf without V (closed, in the drawing).
//!
//! *A and D.* With Svadu on, hardware sets A and D. Without it (Svade), an access to a page without A, or a store to a page
//! without D, is a page fault, and the kernel sets the bits through the writer. The words are the same in both cases.
//! [`Sv39`] allows for Svadu, so that one kernel runs on both: edits are atomic read-modify-writes. A kernel without Svadu
//! that does not use A and D maps pages with both set. A leaf with both does not change any more, and is edited with a plain
//! store.
//!
//! *A new mapping* needs a flush: a hart may hold the invalid entry in its address-translation cache, unless it has Svvptc.
//! It costs a local `SFENCE.VMA`; another hart that holds the invalid entry faults once, and then executes a fence.
//!
//! *Links*: `SFENCE.VMA` with an address affects leaf entries only (section *Supervisor Memory-Management Fence
//! Instruction*). After a change of a link, also after a new one, the kernel executes it without an address
//! ([`WalkCache::Whole`]). It may name the ASID, unless a page under the link is global. A hart that faults on a mapped page
//! does the same, because it may hold the invalid link. `SFENCE.VMA` also orders the stores before it with the walks after
//! it, so no other barrier is needed. The release that orders a node's words before the link to it is a `fence rw, w`.
//!
//! *A change of the size* of a live page is well defined: either translation may be used until the fence. So the size
//! changes in place, by one exchange of the entry. No A or D is lost: to set D, a hart that has cached the old leaf without
//! D compares the entry in memory with its copy, atomically, and walks again if they differ (section *Virtual Address
//! Translation Process*). So it sets D in the new leaf. A hart that has cached the *link* to leaves that have become one
//! page may set their bits until the fence; the table reads these bits again after the fence.
//!
//! *Extensions* are parameters of the format ([`RiscvOf`]), because a hart without an extension faults on its bits:
//!
//! | extension | a hart with it | one without |
//! |-|-|-|
//! | Svadu | sets A and D | Svade: faults, and software sets them; edits are plain stores |
//! | Svnapot | 64 KiB pages, in 16 slots that hold the same word, with N and a PPN that ends in 1000; hardware may set A and D in any of the slots | only the page sizes of the levels |
//! | Svpbmt | PBMT 1, NC, for [`UNCACHED`](Attr::UNCACHED); 2, IO, for [`DEVICE`](Attr::DEVICE), which brings `UNCACHED` with it; bit 9 is [`SOFT_1`](Attr::SOFT_1) | `DEVICE` is kept in bit 9, and changes nothing; `UNCACHED` is refused |
//!
//! Without Svpbmt the physical memory attributes determine what is cached: a device's registers are not, whatever the entry
//! is. With Svpbmt, the kernel may change a page's memory type only if no hart caches the memory with the old type (by CMO
//! instructions).
//!
//! *A change of a 64 KiB page* is one exchange for each slot. Until the fence, which names all 16 pages, a hart may use the
//! old translation or the new one (section *Svnapot*).
//!
//! [`COPY_ON_WRITE`](Attr::COPY_ON_WRITE) is bit 8, the first of RSW.
//!
//! [`Sv32`] has the same bits in words of 32 bits, with PPNs of 22 bits from bit 10 on: 34 bits of physical address, and no
//! extension but Svadu.
//!
//! *The G-stage*, a guest's physical addresses ([`RiscvOf`] with `GUEST`; chapter *Hypervisor Extension*, Sv39x4, Sv48x4 and Sv57x4):
//! the same entries, but hardware accesses the guest's memory as user mode does, so every leaf has U, and G, which is reserved, is 0:
//! [`USER`](Attr::USER) and [`GLOBAL`](Attr::GLOBAL) have no meaning and are refused. The root has 16 KiB and is aligned to them;
//! `hgatp` has the number of its first page. `HFENCE.GVMA` is what `SFENCE.VMA` is above, with two differences: it takes the
//! guest-physical address shifted right by 2 bits, and a VMID. The A and D bits are those of the G-stage: menvcfg.ADUE says whether
//! hardware sets them, and menvcfg.PBMTE whether PBMT is allowed. A hart that takes a guest-page fault on a page which the table allows
//! executes `HFENCE.GVMA` without an address before it resumes the guest.
//!
//! The kernel writes the root's physical page number to `satp`, so the base of the node storage must be a physical address.

use tlbkit_addr::{Attr, FlushScope, PageSize, Pfn, WalkCache};

use super::{ACCESS, Foreign, Format, Masks, Presence, bits_of, foreign_leaf, has, presence};
use crate::fields::Fields as _;
use crate::nodes::{LinkRange, NodeAddr};
use crate::{Change, Error, Word};

/// V, Valid.
const V: u64 = 1 << 0;
/// R, Read.
const R: u64 = 1 << 1;
/// W, Write.
const W: u64 = 1 << 2;
/// X, eXecute.
const X: u64 = 1 << 3;
/// U, User: supervisor mode can access such pages only with SUM set.
const U: u64 = 1 << 4;
/// G, Global.
const G: u64 = 1 << 5;
/// A, Accessed.
const A: u64 = 1 << 6;
/// D, Dirty.
const D: u64 = 1 << 7;
/// The first of the two bits that are reserved for software (RSW).
const RSW_1: u64 = 1 << 8;
/// The second bit of RSW.
const RSW_2: u64 = 1 << 9;
/// The lowest bit of the PPN, the physical page number: bits 53 to 10, or 31 to 10.
const PPN_SHIFT: u32 = 10;
const PAGE_SHIFT: u32 = 12;

/// Returns each attribute with its bit. The second bit of RSW is for `rsw`. For a guest, no attribute has U, which is in every leaf,
/// and G, which is in none.
const fn bits(rsw: Attr, guest: bool) -> [(Attr, u64); 8] {
    let [user, global] = if guest { [(Attr::empty(), 0); 2] } else { [(Attr::USER, U), (Attr::GLOBAL, G)] };
    [
        (Attr::WRITE, W),
        (Attr::EXEC, X),
        user,
        global,
        (Attr::ACCESSED, A),
        (Attr::DIRTY, D),
        (Attr::COPY_ON_WRITE, RSW_1),
        (rsw, RSW_2),
    ]
}

/// The optional attributes of every mode.
const OPTIONAL: Attr = Attr::READ
    .union(Attr::WRITE)
    .union(Attr::EXEC)
    .union(Attr::USER)
    .union(Attr::GLOBAL)
    .union(Attr::ACCESSED)
    .union(Attr::DIRTY)
    .union(Attr::COPY_ON_WRITE)
    .union(Attr::DEVICE);

/// Returns the low ten bits of a leaf.
#[inline(always)]
fn encode(attr: Attr, bits: &[(Attr, u64)]) -> u64 {
    bits_of(attr, bits).with(R).with(if attr.intersects(ACCESS) { V } else { 0 })
}

/// Returns the attributes that the low ten bits of a leaf encode.
#[inline(always)]
fn decode(leaf: u64, bits: &[(Attr, u64)]) -> Attr {
    has(leaf, bits).union(has(leaf, &[(Attr::READ, V)]))
}

/// Returns a leaf after a change of attributes in its low ten bits.
#[inline(always)]
fn changed(leaf: u64, change: Change, bits: &[(Attr, u64)]) -> u64 {
    let word = leaf & !bits_of(change.clear, bits) | bits_of(change.set, bits);
    match presence(change) {
        Presence::Kept => word,
        Presence::Set => word | V,
        Presence::Depends if word & (W | X) != 0 => word,
        Presence::Clear | Presence::Depends => word & !V,
    }
}

/// Returns the bits that a change clears and sets in the low ten bits of every leaf; `None` if V depends on other bits.
#[inline(always)]
fn masks(change: Change, bits: &[(Attr, u64)]) -> Option<Masks<u64>> {
    let (clear, set) = (bits_of(change.clear, bits), bits_of(change.set, bits));
    match presence(change) {
        Presence::Kept => Some(Masks { clear, set }),
        Presence::Set => Some(Masks { clear, set: set | V }),
        Presence::Clear => Some(Masks { clear: clear | V, set }),
        Presence::Depends => None,
    }
}

/// See [`Format::foreign`]. A link with G makes all pages below it global; A, D and U of a link are reserved, and so are bits from
/// `end` on.
fn foreign<F: Format>(word: F::Word, above: u64, slot: PageSize, last: bool, end: u32) -> Foreign {
    let bits = word.to_u64();
    if bits & V == 0 {
        return Foreign::Absent;
    }
    let global = above | bits & G;
    if bits & (R | W | X) != 0 {
        let word = F::Word::from_u64((bits | global) & !(RSW_1 | RSW_2));
        return foreign_leaf::<F>(word, F::Word::ZERO, slot, last);
    }
    if last || bits & (U | A | D) != 0 || bits.checked_shr(end).unwrap_or(0) != 0 {
        return Foreign::Unknown;
    }
    Foreign::Link(global)
}

#[cfg(target_has_atomic = "64")]
mod wide {
    use super::*;
    use crate::Stage;

    const PPN_BITS: u32 = 44;
    /// N: the page is one of 64 KiB, in 16 slots.
    const N: u64 = 1 << 63;
    /// The low bits of the PPN of a page of 64 KiB.
    const NAPOT: u64 = 1 << (PPN_SHIFT + 3);
    const NAPOT_SHIFT: u32 = 16;
    /// PBMT, Page-Based Memory Type: non-cacheable memory, and I/O.
    const NC: u64 = 1 << 61;
    const IO: u64 = 2 << 61;
    const PBMT: u64 = 3 << 61;

    /// 64-bit words that RISC-V walks in Sv39, Sv48 and Sv57: 4 KiB, 2 MiB and 1 GiB pages, and with Svnapot 64 KiB, below
    /// 2^56 bytes of physical memory. The parameters say which extensions the harts have.
    ///
    /// The three modes have the same entries, and differ in the number of levels: for [`Va39`](crate::geometry::Va39),
    /// [`Va48`](crate::geometry::Va48) and [`Va57`](crate::geometry::Va57), and with Svnapot for
    /// [`Napot`](crate::geometry::Napot) of them.
    ///
    /// With `GUEST` they are the entries of the G-stage, for [`GuestX4`](crate::geometry::GuestX4) of these three, and for
    /// [`Napot`](crate::geometry::Napot) of that.
    #[derive(Clone, Copy, Debug)]
    pub struct RiscvOf<const SVADU: bool, const SVNAPOT: bool, const SVPBMT: bool, const GUEST: bool = false>;

    /// The entries for harts without extensions, or with Svadu only. A kernel with this format also runs on harts without
    /// Svadu.
    pub type Sv39 = RiscvOf<true, false, false>;

    /// The same for the G-stage: Sv39x4, Sv48x4 and Sv57x4.
    pub type Sv39x4 = RiscvOf<true, false, false, true>;

    impl<const SVADU: bool, const SVNAPOT: bool, const SVPBMT: bool, const GUEST: bool>
        RiscvOf<SVADU, SVNAPOT, SVPBMT, GUEST>
    {
        const BITS: [(Attr, u64); 8] = bits(if SVPBMT { Attr::SOFT_1 } else { Attr::DEVICE }, GUEST);
        /// The bits of every leaf.
        const ALWAYS: u64 = if GUEST { U } else { 0 };

        /// Returns the PBMT field of a page with these attributes.
        #[inline(always)]
        fn memory(attr: Attr) -> u64 {
            if !SVPBMT || !attr.intersects(Attr::MEMORY) {
                0
            } else if attr.contains(Attr::DEVICE) {
                IO
            } else {
                NC
            }
        }
    }

    // SAFETY: a leaf has R and a link does not, and a link's bits 10 to 53 are the number of the node's frame.
    unsafe impl<const SVADU: bool, const SVNAPOT: bool, const SVPBMT: bool, const GUEST: bool> Format
        for RiscvOf<SVADU, SVNAPOT, SVPBMT, GUEST>
    {
        type Word = u64;

        const STEP: u64 = 1 << PPN_SHIFT;
        const LINK_ALIGN: usize = 4096;
        const REACH: LinkRange = LinkRange::unsigned(56);
        const IMPLIED: Attr = Attr::empty();
        const OPTIONAL: Attr = OPTIONAL
            .union(if SVPBMT { Attr::UNCACHED.union(Attr::SOFT_1) } else { Attr::empty() })
            .difference(if GUEST { Attr::USER.union(Attr::GLOBAL) } else { Attr::empty() });
        const ABSENT: u32 = u64::BITS - 2;
        const APPEARS: FlushScope = FlushScope::Local;
        const WALK_CACHE: WalkCache = WalkCache::Whole;
        const STAGE: Stage = if GUEST { Stage::Riscv } else { Stage::One };
        const STATUS: bool = SVADU;
        const FLIPS: bool = true;

        #[inline(always)]
        fn leaf(frame: Pfn, size: PageSize, attr: Attr, last: bool) -> Result<u64, Error> {
            if frame.get() as u64 >> PPN_BITS != 0 {
                return Err(Error::FrameTooLarge { frame });
            }
            let run = if SVNAPOT && last && size.shift() == NAPOT_SHIFT {
                N.with(NAPOT)
            } else {
                super::super::check_level(size, last)?;
                0
            };
            let word = ((frame.get() as u64) << PPN_SHIFT).with(run);
            Ok(word.with(encode(attr, &Self::BITS)).with(Self::ALWAYS).with(Self::memory(attr)))
        }

        #[inline(always)]
        fn leading_to(first: u64, frame: Pfn) -> u64 {
            Word::advance(first, Self::STEP, frame.get())
        }

        #[inline(always)]
        fn link(node: NodeAddr) -> u64 {
            (node.get() as u64 >> PAGE_SHIFT << PPN_SHIFT).with(V)
        }

        #[inline(always)]
        fn is_leaf(word: u64, _last: bool) -> bool {
            word & R != 0
        }

        #[inline(always)]
        fn is_link(word: u64) -> bool {
            // Below the PPN, a link has only V: hardware sets no bit in a link.
            word as u8 == V as u8
        }

        #[inline(always)]
        fn node(link: u64) -> NodeAddr {
            NodeAddr::new((link.wrapping_sub(V) << (PAGE_SHIFT - PPN_SHIFT)) as usize)
        }

        #[inline(always)]
        fn frame(leaf: u64, size: PageSize) -> Pfn {
            // Without these extensions the bits above the PPN are zero.
            let bits = if SVNAPOT || SVPBMT { PPN_BITS } else { u64::BITS - PPN_SHIFT };
            let number = (leaf >> PPN_SHIFT & ((1 << bits) - 1)) as usize;
            Pfn::new(if SVNAPOT { number & !(size.mask() >> PAGE_SHIFT) } else { number })
        }

        #[inline(always)]
        fn attr(leaf: u64, _last: bool) -> Attr {
            let mut attr = decode(leaf, &Self::BITS);
            if SVPBMT {
                attr.set(Attr::UNCACHED, leaf & PBMT != 0);
                attr.set(Attr::DEVICE, leaf & PBMT == IO);
            }
            attr
        }

        #[inline(always)]
        fn size(leaf: u64, slot: PageSize) -> PageSize {
            if SVNAPOT && leaf & N != 0 { PageSize::K64 } else { slot }
        }

        #[inline(always)]
        fn has_all_status(leaf: u64) -> bool {
            !leaf & (A | D) == 0
        }

        fn foreign(word: u64, above: u64, slot: PageSize, last: bool) -> Foreign {
            foreign::<Self>(word, above, slot, last, PPN_SHIFT + PPN_BITS)
        }

        #[inline(always)]
        fn change(leaf: u64, change: Change, last: bool) -> u64 {
            let word = changed(leaf, change, &Self::BITS);
            if SVPBMT && change.clear.union(change.set).intersects(Attr::MEMORY) {
                return (word & !PBMT).with(Self::memory(change.apply(Self::attr(leaf, last))));
            }
            word
        }

        #[inline(always)]
        fn masks(change: Change, _last: bool) -> Option<Masks<u64>> {
            let retypes = SVPBMT && change.clear.union(change.set).intersects(Attr::MEMORY);
            if retypes { None } else { masks(change, &Self::BITS) }
        }
    }
}

#[cfg(target_has_atomic = "64")]
pub use wide::{RiscvOf, Sv39, Sv39x4};

/// 32-bit words that RISC-V walks in Sv32: 4 KiB and 4 MiB pages below 2^34 bytes of physical memory.
///
/// For [`Va32M4`](crate::geometry::Va32M4).
#[derive(Clone, Copy, Debug)]
pub struct Sv32;

impl Sv32 {
    const BITS: [(Attr, u64); 8] = bits(Attr::DEVICE, false);
    const PPN_BITS: u32 = 22;
}

// SAFETY: a leaf has R and a link does not, and a link's bits 10 to 31 are the number of the node's frame.
unsafe impl Format for Sv32 {
    type Word = u32;

    const STEP: u32 = 1 << PPN_SHIFT;
    const LINK_ALIGN: usize = 4096;
    const REACH: LinkRange = LinkRange::unsigned(PAGE_SHIFT + Self::PPN_BITS);
    const IMPLIED: Attr = Attr::empty();
    const OPTIONAL: Attr = OPTIONAL;
    const ABSENT: u32 = u32::BITS - 2;
    const APPEARS: FlushScope = FlushScope::Local;
    const WALK_CACHE: WalkCache = WalkCache::Whole;
    const STATUS: bool = true;
    const FLIPS: bool = true;

    #[inline(always)]
    fn leaf(frame: Pfn, size: PageSize, attr: Attr, last: bool) -> Result<u32, Error> {
        if frame.get() >> Self::PPN_BITS != 0 {
            return Err(Error::FrameTooLarge { frame });
        }
        if !matches!((last, size.shift()), (true, 12) | (false, 22)) {
            return Err(Error::WrongSize { size });
        }
        Ok(((frame.get() as u32) << PPN_SHIFT).with(encode(attr, &Self::BITS) as u32))
    }

    #[inline(always)]
    fn leading_to(first: u32, frame: Pfn) -> u32 {
        Word::advance(first, Self::STEP, frame.get())
    }

    #[inline(always)]
    fn link(node: NodeAddr) -> u32 {
        ((node.get() >> PAGE_SHIFT) as u32) << PPN_SHIFT | V as u32
    }

    #[inline(always)]
    fn is_leaf(word: u32, _last: bool) -> bool {
        word & R as u32 != 0
    }

    #[inline(always)]
    fn is_link(word: u32) -> bool {
        word & V as u32 != 0 && word & R as u32 == 0
    }

    #[inline(always)]
    fn node(link: u32) -> NodeAddr {
        NodeAddr::new(((link >> PPN_SHIFT) as usize) << PAGE_SHIFT)
    }

    #[inline(always)]
    fn frame(leaf: u32, _size: PageSize) -> Pfn {
        Pfn::new((leaf >> PPN_SHIFT) as usize)
    }

    #[inline(always)]
    fn attr(leaf: u32, _last: bool) -> Attr {
        decode(leaf.into(), &Self::BITS)
    }

    #[inline(always)]
    fn has_all_status(leaf: u32) -> bool {
        !leaf & (A | D) as u32 == 0
    }

    fn foreign(word: u32, above: u64, slot: PageSize, last: bool) -> Foreign {
        foreign::<Self>(word, above, slot, last, u32::BITS)
    }

    #[inline(always)]
    fn change(leaf: u32, change: Change, _last: bool) -> u32 {
        changed(leaf.into(), change, &Self::BITS) as u32
    }

    #[inline(always)]
    fn masks(change: Change, _last: bool) -> Option<Masks<u32>> {
        let Masks { clear, set } = masks(change, &Self::BITS)?;
        Some(Masks { clear: clear as u32, set: set as u32 })
    }
}
