//! What a slot looks like in memory, and which addresses it serves.

use core::fmt;
use core::marker::PhantomData;

use tlbkit_addr::{Asid, PageSize};

use crate::Count;

/// The shape of a cache's entries: the bytes that Rust and an assembly handler agree on.
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
/// The bit above the ASID is 0 in every address that hardware presents; a slot that holds nothing has it set, and so
/// matches nothing. A unit is what one entry translates: one page, or a pair of pages where the TLB's entries are pairs.
///
/// A superpage is cached unit by unit: each unit that was touched has its own entry, whose datum says how far the
/// translation really reaches (PageMask, on MIPS). A hit therefore needs one probe whatever the sizes in use.
///
/// [`Mips32`] and [`Page64`] are ready to use. One's own takes five lines:
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
    /// What a hit returns: anything. With 12 bytes beside a `u32` tag, or 8 beside a `u64`, an entry has 16 bytes.
    type Data: Copy + Default + fmt::Debug;
    /// What is counted: [`Counters`](crate::Counters), or nothing at no cost, `()`.
    type Count: Count;
    /// The size in which the caller counts pages ([`Vpn`](tlbkit_addr::Vpn), [`Pages`](tlbkit_addr::Pages)).
    const BASE: PageSize;
    /// How much one entry translates; a power-of-two multiple of [`BASE`](Self::BASE).
    const UNIT: PageSize;
    /// How many bits an ASID has; fewer than the address bits inside a unit.
    const ASID_BITS: u32;

    /// Returns a number whose low bits choose the set for a unit of an address space.
    ///
    /// The unit's own number by default, as in the thesis: neighbours never conflict, and a handler computes it in
    /// two instructions. Address spaces that are laid out alike do conflict; [`folded`](crate::folded) keeps them
    /// apart for a few instructions more.
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

/// What a MIPS32 TLB entry holds beside its `EntryHi`, in the order in which a handler loads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Pair {
    /// The PageMask register: how large the two pages are.
    pub page_mask: u32,
    /// The EntryLo0 register: frame and rights of the even page.
    pub lo0: u32,
    /// The EntryLo1 register: frame and rights of the odd page.
    pub lo1: u32,
}

/// MIPS32 with 4 KiB pages: 16 bytes of EntryHi, PageMask, EntryLo0, EntryLo1 for a pair of pages.
///
/// The refill handler of 12 instructions finds the slot in the Context register alone (BadVPN2 times 16, below the
/// base in PTEBase), moves both EntryLo registers, and compares the tag with EntryHi.
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

/// One 64-bit entry for each 4 KiB page: 16 bytes of tag and datum.
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

/// An address space as a cache of layout `L` knows it: an ASID that is known to fit into the tag.
///
/// Made once for each address space, so that nothing needs checking on a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AsidTag<L>(usize, PhantomData<L>);

impl<L: EntryLayout> AsidTag<L> {
    /// Returns the address space numbered `asid`.
    ///
    /// # Errors
    ///
    /// [`AsidRange`] if the tag has no room for the number.
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

    /// Returns the address space with the next number. It must not be the last one.
    pub(crate) const fn successor(self) -> Self {
        Self(self.0 + 1, PhantomData)
    }
}

/// An ASID, or a number of ASIDs, for which the tag has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsidRange {
    /// The number.
    pub asid: usize,
    /// How many bits the tag has for it.
    pub bits: u32,
}

impl fmt::Display for AsidRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ASID {} does not fit into the {} bits that the tag has for it", self.asid, self.bits)
    }
}

impl core::error::Error for AsidRange {}
