//! MIPS32 EntryLo words: a refill handler loads a leaf and moves it to the register unchanged.
//!
//! ```text
//!         31 30 29                              6 5   3  2  1  0
//!        +-----+---------------------------------+-----+--+--+--+
//!  leaf  |  S  |               PFN               |  C  | D| 1| G|
//!  link  | 1 0   0 |      address of the node in kseg0    | 0  0|
//!  closed|  S  |               PFN               |  C  | d| 0| G|   bit 30 is set
//!  empty |                      0                         | 0| G|
//!  mark  | 0 0 |          software's                      | 0| G|   at the last level
//!        +-----+---------------------------------+-----+--+--+--+
//! ```
//!
//! | field | manual | means |
//! |-|-|-|
//! | G | Global | the TLB entry ignores the ASID, if **both** words of its pair say so |
//! | 1 | V, Valid | the page allows an access |
//! | D | Dirty | stores are allowed: [`WRITE`](Attr::WRITE) and [`DIRTY`](Attr::DIRTY) together |
//! | C | cacheability and coherency | 2 is uncached; for cached pages it is the format's parameter, 3 for [`EntryLo`] ([below](#copy-on-write)) |
//! | PFN | physical address bits 35 to 12 | for a page of `4^n` frames, without the low `2n` bits |
//! | S | RI and XI, or Fill | used by software, see below |
//!
//! # Bits that hardware ignores and software uses
//!
//! *Bits 31 and 30* are Fill, ignored on write, unless the RIE and XIE bits of PageGrain turn them into the
//! read-inhibit and execute-inhibit bits (MIPS32 Privileged Resource Architecture, EntryLo0 and EntryLo1). **The CPU
//! must have RIE and XIE off**, as after reset; QEMU drops the bits under the same condition. A core on which they
//! are always on, as in Release 6, cannot use this format.
//!
//! *PFN bits under PageMask*: the address translation of the same manual takes the bits of a physical address below
//! the page size from the virtual one, so a page of 16 KiB does not use PFN bits 1 and 0, one of 64 KiB bits 3 to 0.
//!
//! Both together hold the properties for which the hardware has no bit: the size, and the state of a page without D. The
//! ignored PFN bits are digits of two bits:
//!
//! | S | lowest digit of the PFN that is not 0 | page | without D it is |
//! |-|-|-|-|
//! | 0 | (address) | 4 KiB | read-only and clean |
//! | 2 | (address) | 4 KiB | writable but clean: the first store traps (TLB Modified) |
//! | 3 | (address) | 4 KiB | read-only but dirty: written before it was protected |
//! | 1 | digit n is 1 | 4 KiB times `4^(n+1)` | read-only and clean |
//! | 1 | digit n is 2 | 4 KiB times `4^(n+1)` | writable but clean |
//! | 1 | digit n is 3 | 4 KiB times `4^(n+1)` | read-only but dirty |
//!
//! With D the digit is 0 or 1. So a dirty page that is write-protected stays dirty.
//!
//! *Closed pages*, which keep their frame and allow no access (`PROT_NONE`), are leaves without V. An access to one raises
//! TLB Invalid, whatever the other bits are. S, or the digit, is 3, so bit 30 is set in every such word, and D says that the
//! page was written. Marks and empty words have bit 30 clear. Above the last level every leaf has S = 1, which no link has.
//! So no node may be at addresses from 1 to 2 GiB; kseg0, from 2 to 2.5 GiB, is not affected.
//!
//! # For a refill handler
//!
//! A leaf needs no mask and no shift before `mtc0`. At level 0 of a two-level table all leaves are larger than 4 KiB, so
//! their bit 31 is clear, as that of an empty word is: one `bgez` branches to the slow path for both. Otherwise the word is
//! the address of a node, from which the handler loads at once. (Rust code also accepts nodes outside of kseg0, such as
//! offsets into an arena: a link is any word without V, with a bit other than G, whose S is not 1.) A closed page at level 0
//! is handled like other larger pages: the TLB gets an entry without V.
//!
//! A pair of 4 KiB pages is two adjacent words. The partner of a larger page is as many words away as the page has frames
//! (`index ^ 4^n`). A handler that finds S = 1 loads the partner, and if that is a leaf of the same size, makes one TLB
//! entry of both. Otherwise, or if other CPUs change the table, the handler makes an entry for a pair within the page, of a
//! quarter of the size each: the other half may hold smaller pages, and two TLB entries that match one address are a machine
//! check.
//!
//! # Attributes
//!
//! Implied attributes are [`READ`](Attr::READ) and [`EXEC`](Attr::EXEC), which V encodes, unless the page is closed, and
//! [`USER`](Attr::USER), which depends on the address: user mode can access kuseg only. Optional attributes are `WRITE`,
//! `DIRTY`, [`GLOBAL`](Attr::GLOBAL) and [`UNCACHED`](Attr::UNCACHED). C of a page without `UNCACHED` is one value for the
//! machine: 3, which every core has, or 5 if hardware keeps the caches of several CPUs coherent ([`EntryLoCoherent`]). C = 2 is
//! as strict as a device needs. [`DEVICE`](Attr::DEVICE) and [`ACCESSED`](Attr::ACCESSED) have no encoding.
//!
//! # Copy on write
//!
//! There is no free bit for [`COPY_ON_WRITE`](Attr::COPY_ON_WRITE), but C has two values with the same meaning for the
//! cache. A format whose parameter `COW` differs from `CCA` uses `COW` as C of a cached copy-on-write page, and 7 instead of
//! 2 as C of an uncached one. `fork` needs such a format.
//!
//! | format | CPUs | C of cached pages | C of cached copy-on-write pages |
//! |-|-|-|-|
//! | [`EntryLoCow`] | one, or several with caches that hardware does not keep coherent: 4K to 74K | 3, write-back | 5, which these cores map to 3 |
//! | [`EntryLoCowCoherent`] | coherent multiprocessors: 1004K, interAptiv, P5600 | 5, coherent, a load asks for a shared line | 4, coherent, a load asks for an exclusive line |
//!
//! 7 is uncached, or uncached accelerated, which differs in how stores are gathered. A copy-on-write page has no D, and so
//! no stores.
//!
//! # Links
//!
//! A handler uses a link as an address without change, so a link is an address in kseg0. In [`EntryLo`] and
//! [`EntryLoCoherent`] the link equals the node's address. With the third parameter `KSEG0`, a node's address is physical,
//! below 512 MiB, and its link is 2 GiB above, so that a node can be a frame, as in [`Direct`](crate::nodes::Direct).

use tlbkit_addr::{Attr, FlushScope, PageSize, Pfn};

use super::{ACCESS, Format};
use crate::fields::Fields as _;
use crate::nodes::{LinkRange, NodeAddr};
use crate::{Change, Error, Word};

/// G, Global.
const G: u32 = 1 << 0;
/// V, Valid.
const V: u32 = 1 << 1;
/// D, Dirty: the hardware uses it as a write enable.
const D: u32 = 1 << 2;
/// C, the cache attribute.
const C: u32 = 7 << C_SHIFT;
const C_SHIFT: u32 = 3;
const UNCACHED: u32 = 2 << C_SHIFT;
/// C of an uncached copy-on-write page, in formats with such pages.
const UNCACHED_COPIED: u32 = 7 << C_SHIFT;
/// The lowest bit of the PFN.
const PFN_SHIFT: u32 = 6;
/// The number of bits of the PFN.
const PFN_BITS: u32 = 24;
/// The lowest bit of S.
const S_SHIFT: u32 = 30;

/// The base-two logarithm of the smallest page, in bytes.
const SMALL_LOG: u32 = 12;
/// The base-two logarithm of the smallest page with a size digit, in bytes.
const SMALL_SIZED_LOG: u32 = SMALL_LOG + 2;
/// The base-two logarithm of the largest page that PageMask can encode, 256 MiB, in bytes.
const LARGE_LOG: u32 = 28;

// The values of S and of size digits.
const READ_ONLY: u32 = 0;
const SIZED: u32 = 1;
const WRITABLE: u32 = 2;
const WAS_DIRTY: u32 = 3;
/// The value for a page without V.
const CLOSED: u32 = 3;
/// The bit of S that every leaf without V has, and no mark.
const KEPT: u32 = SIZED << S_SHIFT;

/// Words that a MIPS32 TLB takes unchanged: frames of 4 KiB below 64 GiB, PageMask sizes, in pairs. `CCA` is the
/// cacheability and coherency attribute, C, of cached pages: 0 to 7 and not 2. `COW` is C of cached copy-on-write pages, if
/// it differs from `CCA`; then neither may be 7. `LINK` is the difference between a link and its node's address: 0, or
/// [`KSEG0`].
#[derive(Clone, Copy, Debug)]
pub struct EntryLoOf<const CCA: u32, const COW: u32 = CCA, const LINK: u32 = 0>;

/// The difference between a link and its node's address, if nodes have physical addresses.
pub const KSEG0: u32 = 1 << 31;
/// The number of bits of a physical address that kseg0 maps.
const KSEG0_BITS: u32 = 29;

/// [`EntryLoOf`] with C = 3, cacheable: for one CPU, and for several CPUs whose caches hardware does not keep coherent.
pub type EntryLo = EntryLoOf<3>;

/// [`EntryLoOf`] with C = 5, cacheable and coherent, shared: for multiprocessors whose caches hardware keeps coherent.
pub type EntryLoCoherent = EntryLoOf<5>;

/// [`EntryLo`] with [`Attr::COPY_ON_WRITE`] (C = 5), for nodes with physical addresses.
pub type EntryLoCow = EntryLoOf<3, 5, KSEG0>;

/// [`EntryLoCoherent`] with [`Attr::COPY_ON_WRITE`] (C = 4), for nodes with physical addresses.
pub type EntryLoCowCoherent = EntryLoOf<5, 4, KSEG0>;

impl<const CCA: u32, const COW: u32, const LINK: u32> EntryLoOf<CCA, COW, LINK> {
    /// C of a cached page.
    const CACHED: u32 = {
        assert!(CCA < 8 && CCA << C_SHIFT != UNCACHED, "C has three bits, and 2 is uncached");
        CCA << C_SHIFT
    };

    /// Whether the format encodes [`Attr::COPY_ON_WRITE`].
    const COPIES: bool = COW != CCA;

    /// C of a cached copy-on-write page.
    const COPIED: u32 = {
        let apart = CCA << C_SHIFT != UNCACHED_COPIED && COW << C_SHIFT != UNCACHED_COPIED;
        assert!(!Self::COPIES || (COW < 8 && COW << C_SHIFT != UNCACHED && apart), "each C says one thing");
        COW << C_SHIFT
    };

    /// Returns C of a page with these attributes.
    #[inline(always)]
    fn cacheability(attr: Attr) -> u32 {
        match (attr.contains(Attr::UNCACHED), Self::COPIES && attr.contains(Attr::COPY_ON_WRITE)) {
            (false, false) => Self::CACHED,
            (false, true) => Self::COPIED,
            (true, false) => UNCACHED,
            (true, true) => UNCACHED_COPIED,
        }
    }

    /// Returns the attribute bits of a page, including D, and its state for S or the size digit.
    #[inline(always)]
    fn encode(attr: Attr) -> (u32, u32) {
        let (write, dirty) = (attr.contains(Attr::WRITE), attr.contains(Attr::DIRTY));
        let c = Self::cacheability(attr);
        let g = if attr.contains(Attr::GLOBAL) { G } else { 0 };
        if !attr.intersects(ACCESS) {
            return (c.with(if dirty { D } else { 0 }).with(g), CLOSED);
        }
        let (d, state) = match (write, dirty) {
            (true, true) => (D, READ_ONLY),
            (true, false) => (0, WRITABLE),
            (false, true) => (0, WAS_DIRTY),
            (false, false) => (0, READ_ONLY),
        };
        (c.with(d).with(V).with(g), state)
    }

    /// Returns the lowest of the two bits that hold a page's state: S, or its size digit.
    #[inline(always)]
    const fn state_shift(leaf: u32) -> u32 {
        if leaf >> S_SHIFT == SIZED {
            (leaf >> PFN_SHIFT).trailing_zeros() / 2 * 2 + PFN_SHIFT
        } else {
            S_SHIFT
        }
    }

    /// Returns the two bits for a state, in their place. A size digit is never 0.
    #[inline(always)]
    const fn digit(state: u32, shift: u32) -> u32 {
        (if shift != S_SHIFT && state == READ_ONLY { SIZED } else { state }) << shift
    }
}

// SAFETY: at a level with links, a leaf has S = 1. A link has not, because `REACH` excludes such addresses. A link is the
// node's address plus `LINK`, and its V is clear because of `LINK_ALIGN`.
unsafe impl<const CCA: u32, const COW: u32, const LINK: u32> Format for EntryLoOf<CCA, COW, LINK> {
    type Word = u32;

    const STEP: u32 = 1 << PFN_SHIFT;
    const LINK_ALIGN: usize = 4;
    const IMPLIED: Attr = Attr::READ.union(Attr::EXEC).union(Attr::USER);
    const OPTIONAL: Attr = {
        let always = Attr::WRITE.union(Attr::DIRTY).union(Attr::GLOBAL).union(Attr::UNCACHED);
        if Self::COPIES { always.union(Attr::COPY_ON_WRITE) } else { always }
    };
    const REACH: LinkRange = {
        assert!(LINK == 0 || LINK == KSEG0, "a link is its node's address, or that address in kseg0");
        // `REACH` excludes the addresses whose S would be 1.
        if LINK == 0 { LinkRange::apart(S_SHIFT, KSEG0 as usize) } else { LinkRange::unsigned(KSEG0_BITS) }
    };

    const CLOSES: bool = true;

    /// All bits except V, G, on which the two words of a pair must agree, and S. So a refill handler for larger pages treats
    /// a mark as an invalid page of 4 KiB.
    const ABSENT: u32 = S_SHIFT - 2;

    /// The TLB may hold an entry for the pair in which this half is invalid.
    const APPEARS: FlushScope = FlushScope::Local;

    /// Two TLB entries that match one address are a machine check, or undefined.
    const BREAK: bool = true;
    // A change of frame makes no second TLB entry for a pair: a CPU that holds the old entry does not miss there before the
    // flush.
    const BREAK_FRAME: bool = false;

    const PAIRED: bool = true;

    #[inline(always)]
    fn leaf(frame: Pfn, size: PageSize, attr: Attr, last: bool) -> Result<u32, Error> {
        if frame.get() >> PFN_BITS != 0 {
            return Err(Error::FrameTooLarge { frame });
        }
        let (low, state) = Self::encode(attr);
        let word = ((frame.get() as u32) << PFN_SHIFT).with(low);
        match size.shift() {
            // A leaf above the last level must have S = 1, so a page of 4 KiB is possible at the last level only.
            SMALL_LOG if last => Ok(word.with(Self::digit(state, S_SHIFT))),
            shift @ SMALL_SIZED_LOG..=LARGE_LOG if shift.is_multiple_of(2) => {
                let digit = Self::digit(state, shift - SMALL_LOG - 2 + PFN_SHIFT);
                Ok(word.with(SIZED << S_SHIFT).with(digit))
            }
            _ => Err(Error::WrongSize { size }),
        }
    }

    #[inline(always)]
    fn leading_to(first: u32, frame: Pfn) -> u32 {
        Word::advance(first, Self::STEP, frame.get())
    }

    #[inline(always)]
    fn link(node: NodeAddr) -> u32 {
        node.get() as u32 | LINK
    }

    #[inline(always)]
    fn is_leaf(word: u32, last: bool) -> bool {
        if last { word & (V | KEPT) != 0 } else { word >> S_SHIFT == SIZED }
    }

    #[inline(always)]
    fn is_link(word: u32) -> bool {
        word & V == 0 && word >> S_SHIFT != SIZED && word & !G != 0
    }

    #[inline(always)]
    fn node(link: u32) -> NodeAddr {
        NodeAddr::new((link & !LINK) as usize)
    }

    #[inline(always)]
    fn frame(leaf: u32, size: PageSize) -> Pfn {
        let frame = (leaf >> PFN_SHIFT & ((1 << PFN_BITS) - 1)) as usize;
        Pfn::new(frame & !(size.mask() >> SMALL_LOG))
    }

    #[inline(always)]
    fn attr(leaf: u32, _last: bool) -> Attr {
        let state = leaf >> Self::state_shift(leaf) & 3;
        let open = leaf & V != 0;
        let mut attr = if open { Self::IMPLIED } else { Self::IMPLIED.difference(ACCESS) };
        attr.set(Attr::WRITE, open && leaf & D != 0 || state == WRITABLE);
        attr.set(Attr::DIRTY, leaf & D != 0 || open && state == WAS_DIRTY);
        attr.set(Attr::GLOBAL, leaf & G != 0);
        let c = leaf & C;
        attr.set(Attr::UNCACHED, c == UNCACHED || (Self::COPIES && c == UNCACHED_COPIED));
        attr.set(Attr::COPY_ON_WRITE, Self::COPIES && (c == Self::COPIED || c == UNCACHED_COPIED));
        attr
    }

    #[inline(always)]
    fn size(leaf: u32, slot: PageSize) -> PageSize {
        let shift = match Self::state_shift(leaf) {
            S_SHIFT => SMALL_LOG,
            digit => digit - PFN_SHIFT + 2 + SMALL_LOG,
        };
        PageSize::from_shift(shift).unwrap_or(slot)
    }

    #[inline(always)]
    fn change(leaf: u32, change: Change, last: bool) -> u32 {
        let shift = Self::state_shift(leaf);
        let (low, state) = Self::encode(change.apply(Self::attr(leaf, last)));
        let kept = leaf & !(3 << shift).with(C).with(D).with(V).with(G);
        kept.with(low).with(Self::digit(state, shift))
    }

    #[inline(always)]
    fn absent(bits: u64) -> u32 {
        (bits as u32) << 2
    }

    #[inline(always)]
    fn absent_bits(word: u32) -> u64 {
        u64::from(word >> 2)
    }

    /// Returns the half `beside`, if it is absent, with the G bit of the other half, because both words of a global pair
    /// must have G.
    #[inline(always)]
    fn beside(changed: u32, beside: u32) -> u32 {
        if beside & !G != 0 {
            beside
        } else if changed & (V | KEPT) != 0 {
            // This includes a closed page, because it may be opened.
            changed & G
        } else {
            0
        }
    }
}
