//! A slot of a cache, and the arithmetic of its tag.

use core::marker::PhantomData;

use tlbkit_addr::{Pages, VirtAddr};

use crate::{AsidTag, EntryLayout, Mips32, Page64, Tag};

/// A slot: the tag, then the datum.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub(crate) struct Entry<L: EntryLayout> {
    pub(crate) tag: L::Tag,
    pub(crate) data: L::Data,
}

const _: () = assert!(size_of::<Entry<Mips32>>() == 16 && size_of::<Entry<Page64>>() == 16);

/// The arithmetic of tags, and of the units that a range of pages overlaps.
pub(crate) struct Bits<L>(PhantomData<L>);

impl<L: EntryLayout> Bits<L> {
    /// The bit that only the tags of empty slots have. The assertions ensure that address, this bit and ASID do not overlap
    /// in a tag.
    pub(crate) const EMPTY: usize = {
        assert!(L::ASID_BITS <= u16::BITS, "an ASID has at most 16 bits");
        assert!(L::ASID_BITS < L::UNIT.shift(), "no room for the ASID and the empty bit inside a unit");
        assert!(L::BASE.shift() <= L::UNIT.shift(), "an entry translates at least one page");
        1 << L::ASID_BITS
    };

    /// Returns the tag of `at` in `space`, or `None` if the tag's word is too narrow for the address: such an address
    /// is never cached.
    #[inline]
    pub(crate) fn tag(at: VirtAddr, space: AsidTag<L>) -> Option<L::Tag> {
        L::Tag::new(at.get() & !L::UNIT.mask() | space.asid())
    }

    #[inline]
    pub(crate) fn index(at: VirtAddr, space: AsidTag<L>) -> usize {
        L::index(Self::unit(at), space.asid())
    }

    #[inline]
    fn unit(at: VirtAddr) -> usize {
        at.get() >> L::UNIT.shift()
    }

    #[inline]
    pub(crate) fn is_empty(tag: L::Tag) -> bool {
        tag.bits() & Self::EMPTY != 0
    }

    /// Tells whether a tag belongs to an address space, for any page.
    #[inline]
    pub(crate) fn is_in(tag: L::Tag, space: AsidTag<L>) -> bool {
        tag.bits() & (Self::EMPTY | (Self::EMPTY - 1)) == space.asid()
    }

    /// Tells whether a tag belongs to one of `units`, in any address space.
    #[inline]
    pub(crate) fn within(tag: L::Tag, units: Units) -> bool {
        let unit = tag.bits() >> L::UNIT.shift();
        units.first <= unit && unit <= units.last
    }

    /// Returns the units that `pages` overlaps, or `None` if all pages are beyond the end of the address space.
    #[inline]
    pub(crate) fn units(pages: Pages) -> Option<Units> {
        let top = usize::MAX >> L::BASE.shift();
        let shift = L::UNIT.shift() - L::BASE.shift();
        let (first, last) = (pages.first().get(), pages.last().get().min(top));
        (first <= top).then_some(Units { first: first >> shift, last: last >> shift, shift: L::UNIT.shift() })
    }
}

/// The range of units `first..=last`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Units {
    first: usize,
    last: usize,
    shift: u32,
}

impl Units {
    /// Returns the number of units.
    #[inline]
    pub(crate) fn len(self) -> usize {
        // A unit has at least two bytes, because a tag has the empty bit in place of an address bit. So the sum does not
        // overflow.
        self.last - self.first + 1
    }

    /// Returns the first address of each unit.
    #[inline]
    pub(crate) fn addresses(self) -> impl Iterator<Item = VirtAddr> {
        (self.first..=self.last).map(move |unit| VirtAddr::new(unit << self.shift))
    }
}

impl<L: EntryLayout> Entry<L> {
    /// Returns an empty slot.
    #[inline]
    pub(crate) fn empty() -> Self {
        Self { tag: L::Tag::from(Bits::<L>::EMPTY as u32), data: L::Data::default() }
    }
}
