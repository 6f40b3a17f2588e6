//! RISC-V page table entries of 64 bits, walked by hardware (RISC-V Privileged Architecture, Sv39, Sv48 and Sv57).
//!
//! ```text
//!        63 62  61 60      54 53                       10 9   8  7  6  5  4  3  2  1  0
//!       +--+------+----------+---------------------------+-----+--+--+--+--+--+--+--+--+
//! leaf  | 0|  0   |    0     |            PPN            |d  c | D| A| G| U| X| W| 1| 1|
//! link  | 0|  0   |    0     |       PPN of the node     |  0  | 0| 0| 0| 0| 0| 0| 0| 1|
//! closed| 0|  0   |    0     |            PPN            |d  c | D| A| G| U| 0| 0| 1| 0|
//! mark  |                              software's                             | 0| 0|
//!       +--+------+----------+---------------------------+-----+--+--+--+--+--+--+--+--+
//!        N  PBMT                                            RSW             R  V
//! ```
//!
//! An entry with R, W and X all clear is a link, at any level; R is set in every leaf. That keeps the encodings apart
//! whatever a protect clears, and gives up execute-only pages: a page that can be written or executed can be read. Of an entry
//! without V hardware reads nothing else, so that a leaf without [`READ`](Attr::READ), which keeps its frame and allows
//! nothing, is one without V (closed, in the drawing).
//!
//! *A and D.* With Svadu on, hardware sets them; without (Svade) an access to a page without A, or a store to one
//! without D, is a page fault, and the kernel sets them through the writer. The words are the same, and the
//! format allows for the first, so that one kernel runs on both: edits swap. A kernel without Svadu that does not
//! care for either maps with both set.
//!
//! *A mapping that appears* is not free: a hart may hold the invalid entry in its address-translation cache, unless
//! it has Svvptc. It costs a local `SFENCE.VMA`; a hart that still has the old entry faults once and fences then.
//!
//! *Links*: `SFENCE.VMA` with an address orders accesses to leaf entries alone (section *Supervisor Memory-Management
//! Fence Instruction*). After a change of a link, a new one included, it is executed without an address
//! ([`WalkCache::Whole`]); the ASID may be named, unless a page on the way is global. A hart that faults on a page that is
//! mapped does the same, for it may hold the invalid link. `SFENCE.VMA` also orders the stores before it with the walks
//! after it, so that no other barrier is needed. The release that orders a node's words before the link to it is a
//! `fence rw, w`.
//!
//! *Changing the size* of a live page is well defined here: either translation may be used until the fence. So the size
//! changes in place, by one exchange of the entry. No A or D is lost: to set D, a hart that has cached the old leaf
//! without it compares the entry in memory with what it has, atomically, and walks again if they differ (section *Virtual
//! Address Translation Process*); so it sets D in the new leaf. A hart that has cached the *link* to leaves that have
//! become one page may set their bits until the fence: they are read again after it.
//!
//! *Memory types* need Svpbmt, and sizes between the levels' Svnapot; neither is supported. The physical memory
//! attributes decide what is cached: a device's registers are not, whatever the entry says. So
//! [`DEVICE`](Attr::DEVICE) is accepted, kept in bit 9, the second of RSW, and changes nothing; memory cannot be made
//! [`UNCACHED`](Attr::UNCACHED), and that is refused.
//!
//! [`COPY_ON_WRITE`](Attr::COPY_ON_WRITE) is bit 8, the first of RSW.
//!
//! The root's physical page number goes into `satp`; give the storage physical addresses as its base.

use tlbkit_addr::{Attr, PageSize, Pfn, Reach, WalkCache};

use super::{ACCESS, Format, Presence, bits_of, has, presence};
use crate::fields::Fields as _;
use crate::nodes::{LinkRange, NodeAddr};
use crate::{Change, Error};

/// V, Valid.
const V: u64 = 1 << 0;
/// R, Read.
const R: u64 = 1 << 1;
/// W, Write.
const W: u64 = 1 << 2;
/// X, eXecute.
const X: u64 = 1 << 3;
/// U, User: supervisor mode reaches such pages only with SUM set.
const U: u64 = 1 << 4;
/// G, Global.
const G: u64 = 1 << 5;
/// A, Accessed.
const A: u64 = 1 << 6;
/// D, Dirty.
const D: u64 = 1 << 7;
/// The first of the two bits that are reserved for software (RSW).
const COPY_ON_WRITE: u64 = 1 << 8;
/// The second of them: the page is a device's.
const DEVICE: u64 = 1 << 9;
/// Where the PPN stands, physical page number: bits 53 to 10.
const PPN_SHIFT: u32 = 10;
const PPN_BITS: u32 = 44;
const PAGE_SHIFT: u32 = 12;

/// Each attribute with its bit.
const BITS: [(Attr, u64); 8] = [
    (Attr::WRITE, W),
    (Attr::EXEC, X),
    (Attr::USER, U),
    (Attr::GLOBAL, G),
    (Attr::ACCESSED, A),
    (Attr::DIRTY, D),
    (Attr::COPY_ON_WRITE, COPY_ON_WRITE),
    (Attr::DEVICE, DEVICE),
];

/// 64-bit words that RISC-V walks in Sv39, Sv48 and Sv57: 4 KiB, 2 MiB and 1 GiB pages below 2^56 bytes of physical memory.
///
/// For [`Va39`](crate::geometry::Va39), [`Va48`](crate::geometry::Va48) and [`Va57`](crate::geometry::Va57): the three modes
/// have the same entries, and differ in the number of levels.
#[derive(Clone, Copy, Debug)]
pub struct Sv39;

// SAFETY: a leaf has R and a link has not, and a link's bits 10 to 53 are the number of the node's frame.
unsafe impl Format for Sv39 {
    type Word = u64;

    const STEP: u64 = 1 << PPN_SHIFT;
    const LINK_ALIGN: usize = 4096;
    const REACH: LinkRange = LinkRange::unsigned(56);
    const IMPLIED: Attr = Attr::empty();
    const OPTIONAL: Attr = Attr::READ
        .union(Attr::WRITE)
        .union(Attr::EXEC)
        .union(Attr::USER)
        .union(Attr::GLOBAL)
        .union(Attr::ACCESSED)
        .union(Attr::DIRTY)
        .union(Attr::COPY_ON_WRITE)
        .union(Attr::DEVICE);
    const ABSENT: u32 = u64::BITS - 2;
    const APPEARS: Reach = Reach::Local;
    const WALK_CACHE: WalkCache = WalkCache::Whole;
    const STATUS: bool = true;

    #[inline(always)]
    fn leaf(frame: Pfn, size: PageSize, attr: Attr, last: bool) -> Result<u64, Error> {
        if frame.get() as u64 >> PPN_BITS != 0 {
            return Err(Error::FrameTooLarge { frame });
        }
        super::check_level(size, last)?;
        let present = if attr.intersects(ACCESS) { V } else { 0 };
        Ok(((frame.get() as u64) << PPN_SHIFT).with(bits_of(attr, &BITS)).with(R).with(present))
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
        word & V != 0 && word & R == 0
    }

    #[inline(always)]
    fn node(link: u64) -> NodeAddr {
        NodeAddr::new((link >> PPN_SHIFT << PAGE_SHIFT) as usize)
    }

    #[inline(always)]
    fn frame(leaf: u64, _size: PageSize) -> Pfn {
        Pfn::new((leaf >> PPN_SHIFT & ((1 << PPN_BITS) - 1)) as usize)
    }

    #[inline(always)]
    fn attr(leaf: u64, _last: bool) -> Attr {
        has(leaf, &BITS).union(has(leaf, &[(Attr::READ, V)]))
    }

    #[inline(always)]
    fn change(leaf: u64, change: Change, _last: bool) -> u64 {
        let word = leaf & !bits_of(change.clear, &BITS) | bits_of(change.set, &BITS);
        match presence(change) {
            Presence::Kept => word,
            Presence::Set => word | V,
            Presence::Depends if word & (W | X) != 0 => word,
            Presence::Clear | Presence::Depends => word & !V,
        }
    }

    #[inline(always)]
    fn absent(bits: u64) -> u64 {
        bits << 2
    }

    #[inline(always)]
    fn absent_bits(word: u64) -> u64 {
        word >> 2
    }
}
