//! MIPS32 EntryLo words: a refill handler loads a leaf and moves it to the register as it is.
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
//! | 1 | V, Valid | the page allows something |
//! | D | Dirty | stores are allowed: [`WRITE`](Attr::WRITE) and [`DIRTY`](Attr::DIRTY) together |
//! | C | cacheability and coherency | 2 is uncached; of cached pages it is the format's parameter, 3 for [`EntryLo`] ([below](#copy-on-write)) |
//! | PFN | physical address bits 35 to 12 | at a size of `4^n` frames without its low `2n` bits |
//! | S | RI and XI, or Fill | software's, see below |
//!
//! # What hardware ignores, and software uses
//!
//! *Bits 31 and 30* are Fill, ignored on write, unless the RIE and XIE bits of PageGrain turn them into the
//! read-inhibit and execute-inhibit bits (MIPS32 Privileged Resource Architecture, EntryLo0 and EntryLo1). **The CPU
//! must have RIE and XIE off**, as after reset; QEMU drops the bits under the same condition. A core on which they
//! are always on, as in Release 6, cannot use this format.
//!
//! *PFN bits under PageMask*: the address translation of the same manual takes the bits of a physical address below
//! the page size from the virtual one, so a page of 16 KiB does not use PFN bits 1 and 0, one of 64 KiB bits 3 to 0.
//!
//! Both together hold what the hardware has no bit for: the size, and what a page without D is. Take the ignored PFN
//! bits as digits of two bits:
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
//! With D the digit is 0 or 1. So write-protecting a dirty page does not lose its dirtiness.
//!
//! *Closed pages*, which keep their frame and allow nothing (`PROT_NONE`), are leaves without V. An access to one raises TLB
//! Invalid, whatever else stands in the word. S, or the digit, is 3, so that bit 30 is set in every such word, and D says that
//! the page was written. Marks and empty words have bit 30 clear. Above the last level every leaf has S = 1, which no link has: so
//! no node lies from 1 to 2 GiB, and of kseg0, from 2 to 2.5 GiB, nothing is lost.
//!
//! # For a refill handler
//!
//! A leaf needs no masking and no shifting before `mtc0`. At level 0 of a two-level table all leaves are larger than
//! 4 KiB, so their bit 31 is clear, and so is that of an empty word: one `bgez` sends both to the slow path, and what
//! falls through is the address of a node, to be loaded from at once. (Rust's side also accepts nodes outside of
//! kseg0, such as offsets into an arena: a link is any word without V, and with more than G, whose S is not 1.) What is closed
//! there goes the way of larger pages: the TLB gets an entry without V.
//!
//! A pair of 4 KiB pages is two neighbouring words. The partner of a larger page is as many words away as the page
//! has frames (`index ^ 4^n`): a handler that finds S = 1 loads that, and if it is a leaf of the same size, takes both. If it
//! is not, or other CPUs change the table, the handler loads a pair of a quarter of the size within the page: the other half may
//! hold smaller pages, and two TLB entries that match one address are a machine check.
//!
//! # Attributes
//!
//! Always there: [`READ`](Attr::READ) and [`EXEC`](Attr::EXEC), which V stands for, unless the page is closed, and
//! [`USER`](Attr::USER), which the address decides: user mode reaches kuseg only. To have or to lack: `WRITE`, `DIRTY`,
//! [`GLOBAL`](Attr::GLOBAL) and [`UNCACHED`](Attr::UNCACHED). What C is where that is lacking is one value for the machine: 3,
//! which every core has, or 5 where hardware keeps the caches of several CPUs coherent ([`EntryLoCoherent`]). C = 2 is as strict
//! as a device needs; [`DEVICE`](Attr::DEVICE) itself has no encoding, and neither has [`ACCESSED`](Attr::ACCESSED).
//!
//! # Copy on write
//!
//! No bit is left for [`COPY_ON_WRITE`](Attr::COPY_ON_WRITE), but C has two values that mean the same to the cache. A format
//! whose parameter `COW` is another value than `CCA` writes that one for a cached page that is copied on a write, and 7 in
//! the place of 2 for an uncached one. `fork` needs such a format.
//!
//! | format | CPUs | C of cached pages | and copied on a write |
//! |-|-|-|-|
//! | [`EntryLoCow`] | one, or caches that nothing keeps coherent: 4K to 74K | 3, write-back | 5, which these cores map to 3 |
//! | [`EntryLoCowCoherent`] | coherent multiprocessors: 1004K, interAptiv, P5600 | 5, coherent, a load asks for a shared line | 4, coherent, a load asks for an exclusive line |
//!
//! 7 is uncached, or uncached accelerated, which differs in how stores are gathered. A page that is copied on a write has no
//! D, and so no stores.
//!
//! # Links
//!
//! A handler loads from a link as it is, so a link is an address in kseg0. In [`EntryLo`] and [`EntryLoCoherent`] a node's
//! address is that address. With a third parameter, `KSEG0`, a node's address is physical, below 512 MiB, and its link is
//! 2 GiB above: so node storage can name frames, as [`Direct`](crate::nodes::Direct) does.

use tlbkit_addr::{Attr, FlushScope, PageSize, Pfn};

use super::{ACCESS, Format};
use crate::fields::Fields as _;
use crate::nodes::{LinkRange, NodeAddr};
use crate::{Change, Error};

/// G, Global.
const G: u32 = 1 << 0;
/// V, Valid.
const V: u32 = 1 << 1;
/// D, Dirty: in truth a write enable.
const D: u32 = 1 << 2;
/// C, the cache attribute.
const C: u32 = 7 << C_SHIFT;
const C_SHIFT: u32 = 3;
const UNCACHED: u32 = 2 << C_SHIFT;
/// C of an uncached page that is copied on a write, where pages can say so.
const UNCACHED_COPIED: u32 = 7 << C_SHIFT;
/// Where the PFN begins, and how many bits it has.
const PFN_SHIFT: u32 = 6;
const PFN_BITS: u32 = 24;
/// Where S stands.
const S_SHIFT: u32 = 30;

/// The smallest page, and what PageMask grows by.
const SMALL: u32 = 12;
/// The smallest page that has a digit.
const SMALL_SIZED: u32 = SMALL + 2;
/// The largest page that PageMask can have: 256 MiB.
const LARGE: u32 = 28;

// The values of S and of size digits.
const READ_ONLY: u32 = 0;
const SIZED: u32 = 1;
const WRITABLE: u32 = 2;
const WAS_DIRTY: u32 = 3;
/// Without V.
const CLOSED: u32 = 3;
/// What S has in every leaf without V, and in no mark.
const KEPT: u32 = SIZED << S_SHIFT;

/// Words that a MIPS32 TLB takes as they are: frames of 4 KiB below 64 GiB, PageMask sizes, in pairs. `CCA` is the
/// cacheability and coherency attribute, C, of pages that are cached: 0 to 7 and not 2. `COW` is what it is instead where
/// such a page is copied on a write, if that is another value: then neither is 7. `LINK` is how far a link is from its
/// node's address: 0, or [`KSEG0`].
#[derive(Clone, Copy, Debug)]
pub struct EntryLoOf<const CCA: u32, const COW: u32 = CCA, const LINK: u32 = 0>;

/// What a link has more than the physical address of its node, if nodes are named by physical addresses.
pub const KSEG0: u32 = 1 << 31;
/// The bits of a physical address that kseg0 shows.
const KSEG0_BITS: u32 = 29;

/// [`EntryLoOf`] with C = 3, cacheable: for one CPU, and for several whose caches nothing keeps coherent.
pub type EntryLo = EntryLoOf<3>;

/// [`EntryLoOf`] with C = 5, cacheable and coherent, shared: for multiprocessors whose caches hardware keeps coherent.
pub type EntryLoCoherent = EntryLoOf<5>;

/// [`EntryLo`] with [`Attr::COPY_ON_WRITE`] (C = 5), for nodes that are named by physical addresses.
pub type EntryLoCow = EntryLoOf<3, 5, KSEG0>;

/// [`EntryLoCoherent`] with [`Attr::COPY_ON_WRITE`] (C = 4), for nodes that are named by physical addresses.
pub type EntryLoCowCoherent = EntryLoOf<5, 4, KSEG0>;

impl<const CCA: u32, const COW: u32, const LINK: u32> EntryLoOf<CCA, COW, LINK> {
    /// C of a page that is cached.
    const CACHED: u32 = {
        assert!(CCA < 8 && CCA << C_SHIFT != UNCACHED, "C has three bits, and 2 is uncached");
        CCA << C_SHIFT
    };

    /// Whether a page can say that it is copied on a write.
    const COPIES: bool = COW != CCA;

    /// C of a page that is cached, and copied on a write.
    const COPIED: u32 = {
        let apart = CCA << C_SHIFT != UNCACHED_COPIED && COW << C_SHIFT != UNCACHED_COPIED;
        assert!(!Self::COPIES || (COW < 8 && COW << C_SHIFT != UNCACHED && apart), "each C says one thing");
        COW << C_SHIFT
    };

    /// C of a page with these attributes.
    #[inline(always)]
    fn cacheability(attr: Attr) -> u32 {
        match (attr.contains(Attr::UNCACHED), Self::COPIES && attr.contains(Attr::COPY_ON_WRITE)) {
            (false, false) => Self::CACHED,
            (false, true) => Self::COPIED,
            (true, false) => UNCACHED,
            (true, true) => UNCACHED_COPIED,
        }
    }

    /// Returns the attribute bits of a page, D included, and what S or the size digit says of it.
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

    /// Returns where the two bits stand that say what a page is: S, or its size digit.
    #[inline(always)]
    const fn state_shift(leaf: u32) -> u32 {
        if leaf >> S_SHIFT == SIZED {
            (leaf >> PFN_SHIFT).trailing_zeros() / 2 * 2 + PFN_SHIFT
        } else {
            S_SHIFT
        }
    }

    /// Returns what those two bits hold for a state: a size digit is never 0.
    #[inline(always)]
    const fn digit(state: u32, shift: u32) -> u32 {
        (if shift != S_SHIFT && state == READ_ONLY { SIZED } else { state }) << shift
    }
}

// SAFETY: a leaf is valid, or has S = 1, and a link has neither: it is the node's address, which leaves V clear, and lies within
// `REACH`.
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
        // S of a link is not 1.
        if LINK == 0 { LinkRange::apart(S_SHIFT, KSEG0 as usize) } else { LinkRange::unsigned(KSEG0_BITS) }
    };

    const CLOSES: bool = true;

    /// All but V, and G, which two words of a pair agree on, and S: so a refill handler that looks for larger pages takes a mark
    /// for the half of a pair of 4 KiB, which is not valid.
    const ABSENT: u32 = S_SHIFT - 2;

    /// The TLB may hold the pair with this half invalid.
    const APPEARS: FlushScope = FlushScope::Local;

    /// Two TLB entries that match one address are a machine check, or worse.
    const BREAK: bool = true;
    // Two entries for one pair would be a machine check, but there is one: a CPU that still has the old frame's does not
    // miss there before it has been flushed.
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
            // What stands above the last level is told by S = 1.
            SMALL if last => Ok(word.with(Self::digit(state, S_SHIFT))),
            shift @ SMALL_SIZED..=LARGE if shift.is_multiple_of(2) => {
                let digit = Self::digit(state, shift - SMALL - 2 + PFN_SHIFT);
                Ok(word.with(SIZED << S_SHIFT).with(digit))
            }
            _ => Err(Error::WrongSize { size }),
        }
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
        Pfn::new(frame & !(size.mask() >> SMALL))
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
            S_SHIFT => SMALL,
            digit => digit - PFN_SHIFT + 2 + SMALL,
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

    /// An absent half has the G bit of the half that is there, and nothing else: a global pair says so twice.
    #[inline(always)]
    fn beside(changed: u32, beside: u32) -> u32 {
        if beside & !G != 0 {
            beside
        } else if changed & (V | KEPT) != 0 {
            // A closed page, too: it may be opened.
            changed & G
        } else {
            0
        }
    }
}
