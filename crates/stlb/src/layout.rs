//! The layout of a slot in memory, and the addresses that it serves.

use core::fmt;
use core::marker::PhantomData;

use tlbkit_addr::{Asid, PageSize};

use crate::Count;

/// The layout of a cache's entries, which Rust code and an assembly handler share.
///
/// An entry is a tag and a datum, in that order. The tag has the form of the MIPS `EntryHi` register, so that a
/// handler compares it with one instruction:
///
/// ```text
///   bit  w-1                 log2 UNIT        ASID_BITS           0
///       +---------------------------+----------------+-----------+
///       | virtual address of unit   | 0 (1: empty)   |   ASID    |
///       +---------------------------+----------------+-----------+
/// ```
///
/// The bit above the ASID is 0 in every address that the hardware presents. An empty slot has it set, and so matches no
/// address. A unit is the range that one entry translates: one page, or a pair of pages if the TLB's entries are pairs.
///
/// A superpage is cached unit by unit: each unit that was accessed has its own entry, whose datum contains the size of the
/// translation (PageMask, on MIPS). So a hit needs one probe, for any set of page sizes.
///
/// [`Mips32`] and [`Page64`] are layouts of this crate. A kernel can define its own:
///
/// ```
/// use tlbkit_addr::PageSize;
/// use tlbkit_stlb::{Counters, EntryLayout, folded};
///
/// /// 64-bit entries for 16 KiB pages, spread by a hash, counting hits and misses.
/// #[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// struct Mine;
///
/// impl EntryLayout for Mine {
///     type Tag = u64;
///     type Data = u64;
///     type Count = Counters;
///     const BASE: PageSize = PageSize::K16;
///     const UNIT: PageSize = PageSize::K16;
///     const ASID_BITS: u32 = 12;
///     fn index(unit: usize, asid: usize) -> usize {
///         folded(unit, asid)
///     }
/// }
/// ```
pub trait EntryLayout: Copy + Eq + fmt::Debug + 'static {
    /// The word that holds the tag.
    type Tag: Tag;
    /// The datum that a hit returns, of any type. With a `u32` tag and 12 bytes, or a `u64` tag and 8 bytes, an entry has 16
    /// bytes.
    type Data: Copy + Default + fmt::Debug;
    /// The counters: [`Counters`](crate::Counters), or `()`, which counts nothing and costs nothing.
    type Count: Count;
    /// The size in which the caller counts pages ([`Vpn`](tlbkit_addr::Vpn), [`Pages`](tlbkit_addr::Pages)).
    const BASE: PageSize;
    /// The size of a unit, which one entry translates: a power-of-two multiple of [`BASE`](Self::BASE).
    const UNIT: PageSize;
    /// The number of bits of an ASID: less than the number of address bits inside a unit, and at most 16.
    const ASID_BITS: u32;

    /// Returns a number whose low bits choose the set for a unit of an address space.
    ///
    /// The default is the unit's own number, as in the thesis: adjacent units do not conflict, and a handler computes it
    /// with two instructions. Address spaces with the same layout conflict; [`folded`](crate::folded) separates them for a
    /// few more instructions.
    #[inline]
    fn index(unit: usize, asid: usize) -> usize {
        let _ = asid;
        unit
    }
}

/// A word that can hold a tag: `u32` or `u64`.
pub trait Tag: Copy + Eq + fmt::Debug + From<u32> {
    /// Returns the tag with these bits, or `None` if the word is too narrow.
    fn new(bits: usize) -> Option<Self>;
    /// Returns the bits that [`new`](Self::new) was given.
    fn bits(self) -> usize;
}

impl Tag for u32 {
    #[inline]
    fn new(bits: usize) -> Option<Self> {
        bits.try_into().ok()
    }
    #[inline]
    fn bits(self) -> usize {
        self as usize
    }
}

impl Tag for u64 {
    #[inline]
    fn new(bits: usize) -> Option<Self> {
        Some(bits as Self)
    }
    #[inline]
    fn bits(self) -> usize {
        self as usize
    }
}

/// The content of a MIPS32 TLB entry without its `EntryHi`, in the order in which a handler loads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Pair {
    /// The PageMask register: the size of the two pages.
    pub page_mask: u32,
    /// The EntryLo0 register: frame and rights of the even page.
    pub lo0: u32,
    /// The EntryLo1 register: frame and rights of the odd page.
    pub lo1: u32,
}

/// The layout for MIPS32 with 4 KiB pages: 16 bytes of EntryHi, PageMask, EntryLo0 and EntryLo1 for a pair of pages.
///
/// The refill handler of 12 instructions computes the slot's address from the Context register (BadVPN2 times 16, and the
/// cache's address as PTEBase), moves both EntryLo registers, and compares the tag with EntryHi.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mips32;

impl EntryLayout for Mips32 {
    type Tag = u32;
    type Data = Pair;
    type Count = ();
    const BASE: PageSize = PageSize::K4;
    const UNIT: PageSize = match PageSize::from_shift(13) {
        Some(size) => size,
        None => PageSize::K4,
    };
    const ASID_BITS: u32 = 8;
}

/// The layout with one 64-bit datum for each 4 KiB page: 16 bytes of tag and datum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page64;

impl EntryLayout for Page64 {
    type Tag = u64;
    type Data = u64;
    type Count = ();
    const BASE: PageSize = PageSize::K4;
    const UNIT: PageSize = PageSize::K4;
    const ASID_BITS: u32 = 11;
}

/// An ASID that fits the tags of layout `L`.
///
/// The kernel makes it once for each address space, so that a hit needs no check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AsidTag<L>(usize, PhantomData<L>);

impl<L: EntryLayout> AsidTag<L> {
    /// Returns the tag part for `asid`.
    ///
    /// # Errors
    ///
    /// [`AsidRange`] if the tag's ASID field cannot hold `asid`.
    #[inline]
    pub const fn new(asid: Asid) -> Result<Self, AsidRange> {
        if asid.get() as usize >> L::ASID_BITS == 0 {
            Ok(Self(asid.get() as usize, PhantomData))
        } else {
            Err(AsidRange { asid: asid.get() as usize, bits: L::ASID_BITS })
        }
    }

    /// Returns the number of the address space.
    #[inline]
    pub const fn asid(self) -> usize {
        self.0
    }

    /// Returns the next number. This number must not be the last that fits the tag.
    pub(crate) const fn successor(self) -> Self {
        Self(self.0 + 1, PhantomData)
    }
}

/// The error of an ASID that the tag's ASID field cannot hold, or of an empty range of ASIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsidRange {
    /// The ASID.
    pub asid: usize,
    /// The number of bits of the tag's ASID field.
    pub bits: u32,
}

impl fmt::Display for AsidRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ASID {} does not fit into the {} bits that the tag has for it", self.asid, self.bits)
    }
}

impl core::error::Error for AsidRange {}
