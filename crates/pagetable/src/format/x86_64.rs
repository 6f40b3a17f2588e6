//! x86-64 page table entries, walked by hardware (Intel SDM volume 3, 4-level and 5-level paging).
//!
//! ```text
//!        63 62       52 51                       12 11  9  8  7  6  5  4   3   2   1   0
//!       +--+-----------+---------------------------+-----+--+--+--+--+---+---+---+---+---+
//! leaf  |XD|key ignored|      physical address     |  0  | G| *| D| A|PCD|PWT|U/S|R/W| 1 |
//! link  | 0|  ignored  |     address of the node   |  0  | 0| 0| 0| a| 0 | 0 | 1 | 1 | 1 |
//!       +--+-----------+---------------------------+-----+--+--+--+--+---+---+---+---+---+
//! closed| 1|     0     |      physical address     |1  c | G| *| D| A|PCD|PWT|U/S| 0 | 0 |
//! mark  |       software's, inverted           |0|          software's             | 0 |
//!       +--------------------------------------+-+---------------------------------+---+
//!          * PS in a 2 MiB or 1 GiB leaf, whose bit 12 is PAT; PAT in a 4 KiB one         P
//! ```
//!
//! At the last level, P or bit 11 distinguishes a leaf; above it, PS does. No change of attributes changes PS, so an entry
//! that points to a table cannot become a page. Links allow every access; the leaf determines the rights.
//!
//! Hardware ignores all other bits of an entry without P. A leaf without [`READ`](Attr::READ), which keeps its frame and
//! allows no access, has bit 11 instead of P (closed, in the drawing). A mark has neither. However, processors with the L1
//! terminal fault (CVE-2018-3620) speculate on the address in an entry without P. So a mark is stored with the bits from 12
//! on inverted, such that small payloads are addresses of memory that no machine has. A closed page has the address of its
//! own frame, which the process may access anyway.
//!
//! Hardware sets A and D in leaves, and A in links, with locked cycles, so edits are atomic read-modify-writes. A leaf with
//! A and D does not change any more, and is edited with a plain store. A read-only leaf without D can change: processors
//! without shadow stacks may set D for a store that began before R/W was cleared. Hardware does not cache absent entries, and
//! its walks see stores in order, so a new mapping needs no flush and no barrier.
//!
//! *Links* are cached by PCID (4.10.3). `INVLPG` invalidates all cached links of the current PCID, and `INVPCID` of type 0
//! those for its address and PCID, so a flush by address is sufficient ([`WalkCache::ByAddress`]). These are not sufficient:
//!
//! - a load of CR3 with bit 63 set;
//! - either instruction for the links of *other* PCIDs, also for global pages: a change of links that several address spaces
//!   share is flushed under each PCID (`INVPCID` of type 2 or 3, or a new PCID for each space);
//! - on AMD, `INVLPGB` with the bit for the final translation only and, with EFER.TCE, `INVLPG` for other addresses.
//!
//! A page fault invalidates the entries that led to it.
//!
//! *A change of the size* of a live page: either size may be used until the flush (4.10.2.3). So the size changes in place,
//! by one exchange of the entry. No A or D is lost: for a store through a TLB entry without D, the CPU walks the table again
//! and sets D by a locked cycle in the entry that the walk finds, which is the new one; Linux's deferred flushes rely on the
//! same (`mm/rmap.c`). A CPU that has cached the *link* to leaves that have become one page may set their bits until the
//! flush; the table reads these bits again after the flush. AMD's family 10h raises a machine check if its TLB holds both
//! sizes (erratum 383); the kernel must set bit 47 of DC_CFG (MSR C001_1022) there.
//!
//! | [`Attr`] | PAT | PCD | PWT | type with the PAT of reset |
//! |-|-|-|-|-|
//! | - | 0 | 0 | 0 | write-back |
//! | [`UNCACHED`](Attr::UNCACHED) | 0 | 1 | 0 | UC-, which an MTRR may turn into write-combining |
//! | [`DEVICE`](Attr::DEVICE), which brings `UNCACHED` with it | 0 | 1 | 1 | UC |
//!
//! With the parameter `PAT` of [`X86Of`], `UNCACHED` is PAT without PCD and PWT, which is write-combining if IA32_PAT (MSR
//! 277H) is
//! [`X86Of::IA32_PAT`]: the value after reset, except for that field. PAT is bit 7 of a 4 KiB leaf, and bit 12 of a larger
//! leaf, in which bit 7 is PS.
//!
//! With `KEYS`, bits 59 to 62 are the protection key ([`Attr::KEY`]), which the processor uses if CR4.PKE is set: for a page
//! of [`USER`](Attr::USER), PKRU says for each key whether data may be accessed and written (4.6.2). Otherwise the processor
//! ignores these bits. A page fault because of the key has bit 5 of its error code set; the entry does not show the reason.
//!
//! [`COPY_ON_WRITE`](Attr::COPY_ON_WRITE) is bit 9, the first that the processor ignores; [`SOFT_1`](Attr::SOFT_1) is bit
//! 10, and [`SOFT_2`](Attr::SOFT_2) bit 52.
//!
//! *Requirements*:
//!
//! - Shadow stacks of supervisor and user mode must be off (CR4.CET): a leaf can have D without R/W, because
//!   [`DIRTY`](Attr::DIRTY) stays when [`WRITE`](Attr::WRITE) goes, and with shadow stacks on such a leaf is a shadow-stack
//!   page (4.6).
//! - The kernel must map only frames that the machine has: address bits from MAXPHYADDR on are reserved.
//! - On processors without 1 GiB pages (CPUID, Page1GB), which reserve PS at that level, the geometry must have no such
//!   size:
//!   [`UpToM2`](crate::geometry::UpToM2).
//!
//! [`READ`](Attr::READ) is P: a page that can be written or executed can be read. [`EXEC`](Attr::EXEC) is the absence of XD,
//! so EFER.NXE must be on.
//! Without `NX` no entry has XD, which is reserved where EFER.NXE is off: a page that can be read can be executed.
//! [`GLOBAL`](Attr::GLOBAL) needs CR4.PGE.

use tlbkit_addr::{Attr, PageSize, Pfn, WalkCache};

use super::{ACCESS, Foreign, Format, Masks, Presence, bits_of, foreign_leaf, has, presence};
use crate::fields::Fields as _;
use crate::nodes::{LinkRange, NodeAddr};
use crate::{Change, Error, Word};

/// P, Present.
const P: u64 = 1 << 0;
/// R/W, Read/Write.
const RW: u64 = 1 << 1;
/// U/S, User/Supervisor.
const US: u64 = 1 << 2;
/// PWT, Page-level Write-Through.
const PWT: u64 = 1 << 3;
/// PCD, Page-level Cache Disable.
const PCD: u64 = 1 << 4;
/// A, Accessed.
const A: u64 = 1 << 5;
/// D, Dirty.
const D: u64 = 1 << 6;
/// PAT of a leaf at the last level.
const PAT_LAST: u64 = 1 << 7;
/// PAT of a leaf above the last level.
const PAT_LARGE: u64 = 1 << 12;
/// PS, Page Size: an entry above the last level is a page.
const PS: u64 = 1 << 7;
/// G, Global.
const G: u64 = 1 << 8;
/// The first of the bits that the processor ignores, for software.
const COPY_ON_WRITE: u64 = 1 << 9;
/// The second bit for software.
const SOFT_1: u64 = 1 << 10;
/// The third bit for software.
const SOFT_2: u64 = 1 << 52;
/// A bit that the processor ignores, which is set in a leaf without P.
const CLOSED: u64 = 1 << 11;
/// XD, eXecute Disable.
const XD: u64 = 1 << 63;
/// The physical address: bits 51 to 12.
const ADDRESS: u64 = (1 << 52) - (1 << PAGE_SHIFT);
const PAGE_SHIFT: u32 = 12;

/// The attributes that have bits of their own in every leaf.
const BITS: [(Attr, u64); 8] = [
    (Attr::WRITE, RW),
    (Attr::USER, US),
    (Attr::GLOBAL, G),
    (Attr::ACCESSED, A),
    (Attr::DIRTY, D),
    (Attr::COPY_ON_WRITE, COPY_ON_WRITE),
    (Attr::SOFT_1, SOFT_1),
    (Attr::SOFT_2, SOFT_2),
];
/// The memory types, with their bits.
const MEMORY: [(Attr, u64); 2] = [(Attr::UNCACHED, PCD), (Attr::DEVICE, PCD | PWT)];

/// The lowest bit of the protection key: bits 62 to 59, in the order of its attributes.
const KEY_SHIFT: u32 = 59;

/// The number of a mark's low bits, which are bits 1 to 10 of the word.
const LOW: u32 = 10;
/// The lowest bit of a mark's high bits in the word.
const HIGH: u32 = 12;

/// The bits of a leaf, except those of a protection key, that the processor ignores: 9 to 11 and 52 to 58.
const IGNORED: u64 = 7 << 9 | 0x7f << 52;
const KEY: u64 = 0xf << KEY_SHIFT;

/// 64-bit words that x86-64 walks: 4 KiB, 2 MiB and 1 GiB pages below 2^52 bytes of physical memory. `PAT` says whether
/// `UNCACHED` is encoded by the PAT bit, `KEYS` whether there are protection keys, and `NX` whether there is XD, No-Execute.
///
/// For [`Va48`](crate::geometry::Va48) and, with CR4.LA57, [`Va57`](crate::geometry::Va57); on processors without pages of 1
/// GiB for [`UpToM2`](crate::geometry::UpToM2) of them.
#[derive(Clone, Copy, Debug)]
pub struct X86Of<const PAT: bool, const KEYS: bool, const NX: bool = true>;

/// [`X86Of`] for the PAT after reset, without protection keys, and with XD.
pub type X86 = X86Of<false, false>;

impl<const PAT: bool, const KEYS: bool, const NX: bool> X86Of<PAT, KEYS, NX> {
    /// The value that IA32_PAT must have with `PAT`: the fifth field is write-combining.
    pub const IA32_PAT: u64 = 0x0007_0401_0007_0406;

    /// Returns the PAT bit of a leaf, or 0 without `PAT`.
    #[inline(always)]
    const fn pat(last: bool) -> u64 {
        match (PAT, last) {
            (false, _) => 0,
            (true, true) => PAT_LAST,
            (true, false) => PAT_LARGE,
        }
    }

    /// Returns the bits of a memory type.
    #[inline(always)]
    fn memory(attr: Attr, last: bool) -> u64 {
        if PAT && attr.intersection(Attr::MEMORY).bits() == Attr::UNCACHED.bits() {
            Self::pat(last)
        } else {
            bits_of(attr, &MEMORY)
        }
    }

    /// Returns the bits of a protection key.
    #[inline(always)]
    fn key(attr: Attr) -> u64 {
        if KEYS { u64::from(attr.key()) << KEY_SHIFT } else { 0 }
    }

    /// Returns the bits of a page with these attributes, except PS.
    #[inline(always)]
    fn encode(attr: Attr, last: bool) -> u64 {
        let present = if attr.intersects(ACCESS) { P } else { CLOSED };
        let execute = if !NX || attr.contains(Attr::EXEC) { 0 } else { XD };
        bits_of(attr, &BITS).with(Self::memory(attr, last)).with(execute).with(present).with(Self::key(attr))
    }
}

// SAFETY: above the last level PS distinguishes a leaf from a link, and a link's bits 12 to 51 are the node's address.
unsafe impl<const PAT: bool, const KEYS: bool, const NX: bool> Format for X86Of<PAT, KEYS, NX> {
    type Word = u64;

    const STEP: u64 = 1 << PAGE_SHIFT;
    const LINK_ALIGN: usize = 4096;
    const REACH: LinkRange = LinkRange::unsigned(52);
    const IMPLIED: Attr = if NX { Attr::empty() } else { Attr::READ.union(Attr::EXEC) };
    const CLOSES: bool = true;
    const OPTIONAL: Attr = Attr::WRITE
        .union(if NX { Attr::READ.union(Attr::EXEC) } else { Attr::empty() })
        .union(Attr::USER)
        .union(Attr::GLOBAL)
        .union(Attr::ACCESSED)
        .union(Attr::DIRTY)
        .union(Attr::MEMORY)
        .union(Attr::SOFTWARE)
        .union(if KEYS { Attr::KEY } else { Attr::empty() });
    const ABSENT: u32 = LOW + u64::BITS - HIGH;
    const WALK_CACHE: WalkCache = WalkCache::ByAddress;
    const STATUS: bool = true;
    const FLIPS: bool = true;

    #[inline(always)]
    fn leaf(frame: Pfn, size: PageSize, attr: Attr, last: bool) -> Result<u64, Error> {
        if frame.get() as u64 > ADDRESS >> PAGE_SHIFT {
            return Err(Error::FrameTooLarge { frame });
        }
        super::check_level(size, last)?;
        let kind = if last { 0 } else { PS };
        Ok(((frame.get() as u64) << PAGE_SHIFT).with(Self::encode(attr, last)).with(kind))
    }

    #[inline(always)]
    fn leading_to(first: u64, frame: Pfn) -> u64 {
        Word::advance(first, Self::STEP, frame.get())
    }

    #[inline(always)]
    fn link(node: NodeAddr) -> u64 {
        (node.get() as u64).with(US).with(RW).with(P)
    }

    #[inline(always)]
    fn is_leaf(word: u64, last: bool) -> bool {
        word & (if last { P | CLOSED } else { PS }) != 0
    }

    #[inline(always)]
    fn is_link(word: u64) -> bool {
        word & P != 0 && word & PS == 0
    }

    #[inline(always)]
    fn node(link: u64) -> NodeAddr {
        NodeAddr::new((link & ADDRESS) as usize)
    }

    #[inline(always)]
    fn frame(leaf: u64, size: PageSize) -> Pfn {
        // Bit 12 of a large page is its PAT bit.
        Pfn::new(((leaf & ADDRESS) as usize & !size.mask()) >> PAGE_SHIFT)
    }

    #[inline(always)]
    fn attr(leaf: u64, last: bool) -> Attr {
        let mut attr = has(leaf, &BITS).union(has(leaf, &MEMORY)).union(has(leaf, &[(Attr::READ, P)]));
        // Without XD a present page can be executed.
        attr.set(Attr::EXEC, if NX { leaf & XD == 0 } else { leaf & P != 0 });
        if PAT && leaf & Self::pat(last) != 0 {
            attr = attr.union(Attr::UNCACHED);
        }
        if KEYS { attr.union(Attr::of_key((leaf >> KEY_SHIFT) as u8)) } else { attr }
    }

    #[inline(always)]
    fn has_all_status(leaf: u64) -> bool {
        !leaf & (A | D) == 0
    }

    /// A link takes the rights that it lacks from all pages below it: R/W, U/S, and with XD that to execute. The bit of `above` for
    /// each of them is that of the link, R/W and U/S inverted. PCD and PWT of a link concern the node alone.
    fn foreign(word: u64, above: u64, slot: PageSize, last: bool) -> Foreign {
        if word & P == 0 {
            return Foreign::Absent;
        }
        let lost = above | !word & (RW | US) | word & XD;
        if !last && word & PS == 0 {
            return if NX || word & XD == 0 { Foreign::Link(lost) } else { Foreign::Unknown };
        }
        let word = word & !(lost & (RW | US)) | lost & XD;
        let word = word & !if KEYS { IGNORED } else { IGNORED | KEY };
        foreign_leaf::<Self>(word, 0, slot, last)
    }

    #[inline(always)]
    fn change(leaf: u64, change: Change, last: bool) -> u64 {
        if let Some(masks) = Self::masks(change, last) {
            return masks.apply(leaf);
        }
        let all = bits_of(Attr::all(), &BITS).with(bits_of(Attr::all(), &MEMORY));
        let all = all.with(XD).with(P).with(CLOSED).with(Self::pat(last)).with(Self::key(Attr::KEY));
        (leaf & !all).with(Self::encode(change.apply(Self::attr(leaf, last)), last))
    }

    #[inline(always)]
    fn masks(change: Change, _last: bool) -> Option<Masks<u64>> {
        let Change { clear, set } = change;
        let presence = presence(change);
        if clear.union(set).intersects(Attr::MEMORY) || matches!(presence, Presence::Depends) {
            // Two attributes share a bit, or the bit for presence depends on other bits.
            return None;
        }
        // An attribute that the change both clears and sets is set.
        let (mut off, mut on) =
            (bits_of(clear, &BITS) | Self::key(clear), bits_of(set, &BITS) | Self::key(set));
        if NX && set.contains(Attr::EXEC) {
            off |= XD;
        } else if NX && clear.contains(Attr::EXEC) {
            on |= XD;
        }
        match presence {
            Presence::Set => (off, on) = (off | CLOSED, on | P),
            Presence::Clear => (off, on) = (off | P, on | CLOSED),
            Presence::Kept | Presence::Depends => {}
        }
        Some(Masks { clear: off, set: on })
    }

    #[inline(always)]
    fn absent(bits: u64) -> u64 {
        if bits == 0 { 0 } else { (!(bits >> LOW) << HIGH).with((bits & ((1 << LOW) - 1)) << 1) }
    }

    #[inline(always)]
    fn absent_bits(word: u64) -> u64 {
        if word == 0 { 0 } else { (!word >> HIGH << LOW).with(word >> 1 & ((1 << LOW) - 1)) }
    }
}
