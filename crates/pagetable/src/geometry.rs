//! The addresses and page sizes that a table can map, fixed at compile time.

#[cfg(target_pointer_width = "64")]
use core::marker::PhantomData;

use tlbkit_addr::{PageSize, Pages, Pfn, VirtAddr, Vpn};

use crate::{Error, Leaf};

#[cfg(target_pointer_width = "64")]
mod guest;

#[cfg(target_pointer_width = "64")]
pub use guest::{GuestEpt, GuestIpa, GuestX4};

/// The part of all addresses that a space of fewer bits has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// The addresses from 0 on: the bits above the significant ones are zeros.
    Lower,
    /// The addresses up to the last one: the bits above the significant ones are ones. AArch64 translates them by `TTBR1_EL1`.
    Upper,
    /// Two halves with a hole between them: the bits above the significant ones repeat the highest of those.
    Both,
}

/// The walker that a table of a geometry is for. A table's format must be for the same one ([`Format::STAGE`]): a walker of another
/// stage would load a root of another size.
///
/// A second stage translates a guest's physical addresses, which are zero-extended.
///
/// ```compile_fail,E0080
/// # use tlbkit_pagetable::format::Sv39x4;
/// # use tlbkit_pagetable::geometry::Va39;
/// # use tlbkit_pagetable::nodes::{Chunk, Slab};
/// # use tlbkit_pagetable::{Solo, mpt};
/// # let mut memory = vec![Chunk::ZERO; 16];
/// let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
/// // The entries of RISC-V's G-stage, which has a root of 16 KiB, in a table with one of 4 KiB.
/// let table = mpt::Mpt::<Va39, Sv39x4, _>::new(&slab).unwrap();
/// ```
///
/// [`Format::STAGE`]: crate::format::Format::STAGE
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The virtual addresses of a kernel and its processes, whatever walks the table.
    One,
    /// The second stage of RISC-V, the G-stage: `hgatp`.
    Riscv,
    /// The second stage of x86-64 with VMX: EPT.
    Ept,
    /// The second stage of AArch64: `VTTBR_EL2`.
    Aarch64,
}

/// The shape of an address space: its width, its base page and the sizes that can be mapped.
///
/// The values are constants, so that the shifts and masks of a walk are immediate operands and need no loads.
pub trait Geometry: core::fmt::Debug + 'static {
    /// Significant bits of a virtual address, at most `usize::BITS`.
    const VA_BITS: u32;
    /// The base page size.
    const BASE: PageSize;
    /// The bits above [`VA_BITS`](Self::VA_BITS), in every address that can be mapped.
    const HALF: Half = Half::Lower;
    /// The walker that tables of this geometry are for.
    const STAGE: Stage = Stage::One;
    /// The mappable sizes in ascending order, the base page first.
    const SIZES: &'static [PageSize];
}

/// The checked space of a geometry. It is not an item of [`Geometry`], because an implementation could override it there.
pub(crate) trait Checked: Geometry {
    const SPACE: Space;
}

impl<G: Geometry> Checked for G {
    const SPACE: Space = Space::of::<G>();
}

/// The shape of a radix table: a [`Geometry`] and the number of address bits that index each level.
///
/// A page between the sizes of two levels occupies several slots. Where hardware notes status bits in any of them
/// ([`Format::STATUS`](crate::format::Format::STATUS)), they are 128 at most:
///
/// ```compile_fail,E0080
/// # use tlbkit_addr::{PageSize, VirtAddr};
/// # use tlbkit_pagetable::format::RiscvOf;
/// # use tlbkit_pagetable::nodes::{Chunk, Slab};
/// # use tlbkit_pagetable::{Geometry, Half, Local, Radix, Solo, mpt};
/// #[derive(Debug)]
/// struct Mine;
/// impl Geometry for Mine {
///     const VA_BITS: u32 = 39;
///     const BASE: PageSize = PageSize::K4;
///     const HALF: Half = Half::Both;
///     // A page of 1 MiB occupies 256 slots of 4 KiB.
///     const SIZES: &'static [PageSize] = &[PageSize::K4, PageSize::from_shift(20).unwrap()];
/// }
/// impl Radix for Mine {
///     const WIDTHS: &'static [u32] = &[9, 9, 9];
/// }
/// # let mut memory = vec![Chunk::ZERO; 16];
/// let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
/// let table = mpt::Mpt::<Mine, RiscvOf<true, true, false>, _>::new(&slab).unwrap();
/// let table = Local::new(table, |_flush| ());
/// table.lookup(VirtAddr::new(0));
/// ```
pub trait Radix: Geometry {
    /// Index bits per level, the root first. Together with the base page's offset bits they make up
    /// [`VA_BITS`](Geometry::VA_BITS).
    const WIDTHS: &'static [u32];

    /// The virtual address of the table, if it is a [linear](crate::lpt) one. All nodes of such a table except the root are pages
    /// there, and only the last level has leaves.
    const LINEAR: Option<VirtAddr> = None;
}

/// A [`Geometry`] as a value, for code that is not generic over geometries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    va_bits: u32,
    half: Half,
    base: PageSize,
    sizes: &'static [PageSize],
}

impl Space {
    /// Returns the space of a geometry.
    ///
    /// # Panics
    ///
    /// If the geometry is inconsistent: addresses do not fit a `usize`, or the sizes do not ascend from the base page. In all
    /// tables the panic is a compile-time error.
    pub const fn of<G: Geometry>() -> Self {
        Self::new(G::VA_BITS, G::HALF, G::BASE, G::SIZES)
    }

    /// Returns the space of `va_bits` significant bits in a half, or in both, with pages of `sizes`, the first of which is `base`: for
    /// code that has no geometry as a type.
    ///
    /// # Panics
    ///
    /// As [`of`](Self::of).
    pub const fn new(va_bits: u32, half: Half, base: PageSize, sizes: &'static [PageSize]) -> Self {
        assert!(va_bits <= usize::BITS && va_bits > base.shift(), "the address must fit a usize");
        assert!(!sizes.is_empty() && sizes[0].shift() == base.shift(), "the first size is the base page");
        assert!(ascend(sizes), "sizes ascend");
        assert!(sizes[sizes.len() - 1].shift() < va_bits, "a page is smaller than the address space");
        Self { va_bits, half, base, sizes }
    }

    /// Returns the number of significant bits of an address.
    #[inline]
    pub const fn va_bits(&self) -> u32 {
        self.va_bits
    }

    /// Returns which addresses the space has: a half of them, or the ends of both halves.
    #[inline]
    pub const fn half(&self) -> Half {
        self.half
    }

    /// Returns the base page size.
    #[inline]
    pub const fn base(&self) -> PageSize {
        self.base
    }

    /// Returns the mappable sizes in ascending order.
    #[inline]
    pub const fn sizes(&self) -> &'static [PageSize] {
        self.sizes
    }

    /// Tells whether the table can map `at`. Costs a shift and a comparison, or nothing in a space of full width.
    #[inline(always)]
    pub const fn holds(&self, at: VirtAddr) -> bool {
        let spare = usize::BITS - self.va_bits;
        if spare == 0 {
            return true;
        }
        match self.half {
            Half::Lower => at.get() >> self.va_bits == 0,
            Half::Upper => at.get() >> self.va_bits == usize::MAX >> self.va_bits,
            Half::Both => (((at.get() << spare) as isize) >> spare) as usize == at.get(),
        }
    }

    /// Returns the pages of the space: the lower (or only) half, and the upper half of a space that has both.
    pub const fn halves(&self) -> [Option<Pages>; 2] {
        let last = usize::MAX >> self.base.shift();
        // The last significant address of the lower half.
        let bits = if matches!(self.half, Half::Both) { self.va_bits - 1 } else { self.va_bits };
        let low = usize::MAX >> (usize::BITS - bits);
        let (lower, upper) = (low >> self.base.shift(), !low >> self.base.shift());
        let (lower, upper) =
            (Pages::new(Vpn::new(0), Vpn::new(lower)), Pages::new(Vpn::new(upper), Vpn::new(last)));
        match self.half {
            Half::Lower => [lower, None],
            Half::Upper => [upper, None],
            Half::Both => [lower, upper],
        }
    }

    /// Checks that every page of a range can be mapped.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] with the first page's address if that page cannot be mapped, else with the last page's address.
    #[inline(always)]
    pub const fn check_pages(&self, pages: Pages) -> Result<(), Error> {
        let (first, last) = (pages.first().address(self.base), pages.last().address(self.base));
        let one_half = !matches!(self.half, Half::Both) || ((first.get() ^ last.get()) as isize) >= 0;
        // Only the last page needs `has`: if the last page number is that of an address, so is the first.
        if self.has(pages.last()) && self.holds(first) && one_half {
            return Ok(());
        }
        Err(Error::OutOfRange { at: if self.has(pages.first()) { last } else { first } })
    }

    /// Tells whether the table can map a page. The page number may be larger than that of any address. Costs two shifts and a
    /// comparison at most.
    #[inline(always)]
    pub(crate) const fn has(&self, page: Vpn) -> bool {
        let (page, shift, spare) = (page.get(), self.base.shift(), usize::BITS - self.va_bits);
        match self.half {
            Half::Lower => page >> (self.va_bits - shift) == 0,
            // The page number of the last address, without its significant bits.
            Half::Upper => page >> (self.va_bits - shift) == (usize::MAX >> shift) >> (self.va_bits - shift),
            // The lower half, which user space has, costs less.
            Half::Both if page >> (self.va_bits - 1 - shift) == 0 => true,
            // Sign-extends the page's address and compares the page number of the result.
            Half::Both => (((page << (shift + spare)) as isize) >> spare) as usize >> shift == page,
        }
    }

    /// Checks that a range can be mapped in pages of `size`, as every `map` and `resize` does.
    ///
    /// # Errors
    ///
    /// [`Error::WrongSize`], [`Error::OutOfRange`] or [`Error::Misaligned`].
    #[inline(always)]
    pub const fn check_sized(&self, pages: Pages, size: PageSize) -> Result<(), Error> {
        // The base size needs no search.
        if size.shift() != self.base.shift() {
            let mut at = 1;
            loop {
                if at >= self.sizes.len() {
                    return Err(Error::WrongSize { size });
                }
                if self.sizes[at].shift() == size.shift() {
                    break;
                }
                at += 1;
            }
        }
        if let Err(error) = self.check_pages(pages) {
            return Err(error);
        }
        let mask = (1usize << (size.shift() - self.base.shift())) - 1;
        if pages.first().get() & mask != 0 {
            return Err(Error::Misaligned { at: pages.first().address(self.base), size });
        }
        if pages.last().get() & mask != mask {
            return Err(Error::Misaligned { at: pages.last().address(self.base), size });
        }
        Ok(())
    }

    /// Checks that `frames` base frames from `frame` on exist and are aligned to `size`.
    ///
    /// # Errors
    ///
    /// [`Error::MisalignedFrame`] or [`Error::FrameTooLarge`], either with `frame`.
    #[inline(always)]
    pub const fn check_frames(&self, frame: Pfn, frames: usize, size: PageSize) -> Result<(), Error> {
        if !frame.is_aligned(size, self.base) {
            return Err(Error::MisalignedFrame { frame, size });
        }
        match frame.checked_add(frames - 1) {
            Some(last) if last.get() <= usize::MAX >> self.base.shift() => Ok(()),
            _ => Err(Error::FrameTooLarge { frame }),
        }
    }

    /// Returns the base pages of a leaf.
    #[inline]
    pub fn pages_of(&self, leaf: &Leaf) -> Pages {
        let first = leaf.at.vpn(self.base);
        let last = Vpn::new(first.get() + (leaf.size.mask() >> self.base.shift()));
        Pages::new(first, last).unwrap_or(Pages::one(first))
    }

    /// Returns the parts of a range that are in the space: at most one in each half. Costs no loads.
    #[inline]
    pub fn parts(&self, pages: Pages) -> impl Iterator<Item = Pages> {
        self.halves().into_iter().flatten().filter_map(move |half| half.intersect(pages))
    }

    /// Checks that a leaf is wholly inside a range.
    ///
    /// # Errors
    ///
    /// [`Error::Partial`] if the leaf extends beyond the range.
    #[inline]
    pub(crate) fn check_whole(&self, leaf: Leaf, pages: Pages) -> Result<(), Error> {
        let whole = self.pages_of(&leaf);
        if whole.intersect(pages) == Some(whole) { Ok(()) } else { Err(Error::partial(&leaf)) }
    }
}

/// Tells whether each size is larger than the one before.
const fn ascend(sizes: &[PageSize]) -> bool {
    match sizes {
        [one, next, ..] if one.shift() >= next.shift() => false,
        [_, rest @ ..] => ascend(rest),
        [] => true,
    }
}

/// Returns the page sizes of `1 << shift` bytes, for use in constants.
#[expect(clippy::panic, reason = "called only in constants, where a panic is a compile-time error")]
const fn sizes<const N: usize>(shifts: [u32; N]) -> [PageSize; N] {
    let mut sizes = [PageSize::K4; N];
    let mut at = 0;
    while at < N {
        sizes[at] = match PageSize::from_shift(shifts[at]) {
            Some(size) => size,
            None => panic!("a page size beyond the address"),
        };
        at += 1;
    }
    sizes
}

/// Returns the index bits of `levels` levels, and as many zeros as make up five: each level has `width` bits, as a page of
/// `width` + 3 bits holds them, and the root has the rest of an address of `bits` bits.
#[cfg(target_pointer_width = "64")]
const fn widths(bits: u32, levels: usize, width: u32) -> [u32; 5] {
    let mut widths = [0; 5];
    let mut level = 1;
    while level < levels {
        widths[level] = width;
        level += 1;
    }
    widths[0] = bits - (width + 3) - width * (levels as u32 - 1);
    widths
}

/// The sizes that MIPS PageMask can have, up to 16 MiB.
const PAGE_MASK: &[PageSize] = &sizes([12, 14, 16, 18, 20, 22, 24]);

/// A 32-bit space of 4 KiB pages in two levels of 10 bits: MIPS32 with its PageMask sizes.
#[derive(Clone, Copy, Debug)]
pub struct Va32;

impl Geometry for Va32 {
    const VA_BITS: u32 = 32;
    const BASE: PageSize = PageSize::K4;
    const SIZES: &'static [PageSize] = PAGE_MASK;
}

impl Radix for Va32 {
    const WIDTHS: &'static [u32] = &[10, 10];
}

/// A 32-bit space of 4 KiB pages in two levels of 10 bits, with pages of 4 MiB: RISC-V Sv32.
#[derive(Clone, Copy, Debug)]
pub struct Va32M4;

impl Geometry for Va32M4 {
    const VA_BITS: u32 = 32;
    const BASE: PageSize = PageSize::K4;
    const SIZES: &'static [PageSize] = &sizes([12, 22]);
}

impl Radix for Va32M4 {
    const WIDTHS: &'static [u32] = &[10, 10];
}

/// A signed 39-bit space in three levels of 9 bits: RISC-V Sv39.
#[cfg(target_pointer_width = "64")]
#[derive(Clone, Copy, Debug)]
pub struct Va39;

#[cfg(target_pointer_width = "64")]
impl Geometry for Va39 {
    const VA_BITS: u32 = 39;
    const BASE: PageSize = PageSize::K4;
    const HALF: Half = Half::Both;
    const SIZES: &'static [PageSize] = &sizes([12, 21, 30]);
}

#[cfg(target_pointer_width = "64")]
impl Radix for Va39 {
    const WIDTHS: &'static [u32] = &[9, 9, 9];
}

/// A signed 48-bit space in four levels of 9 bits: RISC-V Sv48, x86-64; AArch64 with 47 bits in each half of one table.
#[cfg(target_pointer_width = "64")]
#[derive(Clone, Copy, Debug)]
pub struct Va48;

#[cfg(target_pointer_width = "64")]
impl Geometry for Va48 {
    const VA_BITS: u32 = 48;
    const BASE: PageSize = PageSize::K4;
    const HALF: Half = Half::Both;
    const SIZES: &'static [PageSize] = &sizes([12, 21, 30]);
}

#[cfg(target_pointer_width = "64")]
impl Radix for Va48 {
    const WIDTHS: &'static [u32] = &[9, 9, 9, 9];
}

/// A signed 57-bit space in five levels of 9 bits: RISC-V Sv57, x86-64 with LA57.
#[cfg(target_pointer_width = "64")]
#[derive(Clone, Copy, Debug)]
pub struct Va57;

#[cfg(target_pointer_width = "64")]
impl Geometry for Va57 {
    const VA_BITS: u32 = 57;
    const BASE: PageSize = PageSize::K4;
    const HALF: Half = Half::Both;
    const SIZES: &'static [PageSize] = &sizes([12, 21, 30]);
}

#[cfg(target_pointer_width = "64")]
impl Radix for Va57 {
    const WIDTHS: &'static [u32] = &[9, 9, 9, 9, 9];
}

/// A signed 48-bit space of 16 KiB pages, 47 bits for each half: AArch64 with the 16 KiB granule. The root has 32 KiB; the two
/// levels below have 11 bits each.
#[cfg(target_pointer_width = "64")]
#[derive(Clone, Copy, Debug)]
pub struct Va48K16;

#[cfg(target_pointer_width = "64")]
impl Geometry for Va48K16 {
    const VA_BITS: u32 = 48;
    const BASE: PageSize = PageSize::K16;
    const HALF: Half = Half::Both;
    const SIZES: &'static [PageSize] = &sizes([14, 25]);
}

#[cfg(target_pointer_width = "64")]
impl Radix for Va48K16 {
    const WIDTHS: &'static [u32] = &[12, 11, 11];
}

/// A signed 48-bit space of 64 KiB pages, 47 bits for each half: AArch64 with the 64 KiB granule. The root has 512 bytes; the two
/// levels below have 13 bits each.
#[cfg(target_pointer_width = "64")]
#[derive(Clone, Copy, Debug)]
pub struct Va48K64;

#[cfg(target_pointer_width = "64")]
impl Geometry for Va48K64 {
    const VA_BITS: u32 = 48;
    const BASE: PageSize = PageSize::K64;
    const HALF: Half = Half::Both;
    const SIZES: &'static [PageSize] = &sizes([16, 29]);
}

#[cfg(target_pointer_width = "64")]
impl Radix for Va48K64 {
    const WIDTHS: &'static [u32] = &[6, 13, 13];
}

macro_rules! va53 {
    ($(#[$doc:meta])* $name:ident, $base:ident, $sizes:expr, $widths:expr) => {
        $(#[$doc])*
        #[cfg(target_pointer_width = "64")]
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        #[cfg(target_pointer_width = "64")]
        impl Geometry for $name {
            const VA_BITS: u32 = 53;
            const BASE: PageSize = PageSize::$base;
            const HALF: Half = Half::Both;
            const SIZES: &'static [PageSize] = &sizes($sizes);
        }

        #[cfg(target_pointer_width = "64")]
        impl Radix for $name {
            const WIDTHS: &'static [u32] = &$widths;
        }
    };
}

va53! {
    /// A signed 53-bit space of 4 KiB pages, 52 bits for each half: AArch64 with FEAT_LPA2. The root has 256 bytes; the four
    /// levels below have 9 bits each.
    Va53, K4, [12, 21, 30, 39], [5, 9, 9, 9, 9]
}

va53! {
    /// A signed 53-bit space of 16 KiB pages, 52 bits for each half: AArch64 with FEAT_LPA2 and the 16 KiB granule. The root has
    /// 512 bytes; the three levels below have 11 bits each.
    Va53K16, K16, [14, 25, 36], [6, 11, 11, 11]
}

va53! {
    /// A signed 53-bit space of 64 KiB pages, 52 bits for each half: AArch64 with FEAT_LVA, FEAT_LPA and the 64 KiB granule. The
    /// root has 16 KiB; the two levels below have 13 bits each.
    Va53K64, K64, [16, 29, 42], [11, 13, 13]
}

/// One half of AArch64's addresses, which has a root of its own: `BITS` bits with a granule of `1 << GRANULE` bytes (`GRANULE` is 12,
/// 14 or 16). It is the lower half, which `TTBR0_EL1` translates, or, with `UPPER`, the upper half, which `TTBR1_EL1` translates.
/// T0SZ or T1SZ of TCR_EL1 is 64 - `BITS`. `BITS` is 36 to 48; or 52, with FEAT_LPA2 or, where the granule has 64 KiB, FEAT_LVA and
/// FEAT_LPA.
///
/// Each level but the root has `GRANULE` - 3 index bits, the root the rest of the bits: 39 bits in granules of 4 KiB are three levels,
/// 42 are four with a root of eight entries. The root is never larger than a granule.
#[cfg(target_pointer_width = "64")]
#[derive(Clone, Copy, Debug)]
pub struct Arm<const BITS: u32, const GRANULE: u32, const UPPER: bool = false>;

#[cfg(target_pointer_width = "64")]
impl<const BITS: u32, const GRANULE: u32, const UPPER: bool> Arm<BITS, GRANULE, UPPER> {
    const LEVELS: usize = (BITS - GRANULE).div_ceil(GRANULE - 3) as usize;
    const ALL: &'static [u32; 5] = &widths(BITS, Self::LEVELS, GRANULE - 3);
}

#[cfg(target_pointer_width = "64")]
impl<const BITS: u32, const GRANULE: u32, const UPPER: bool> Geometry for Arm<BITS, GRANULE, UPPER> {
    const VA_BITS: u32 = {
        assert!(BITS >= 36 && BITS <= 48 || BITS == 52, "a half has 36 to 48 bits, or 52");
        BITS
    };
    const BASE: PageSize = Self::SIZES[0];
    const HALF: Half = if UPPER { Half::Upper } else { Half::Lower };
    const SIZES: &'static [PageSize] = match (GRANULE, BITS) {
        (12, 52) => &sizes([12, 21, 30, 39]),
        (14, 52) => &sizes([14, 25, 36]),
        (16, 52) => &sizes([16, 29, 42]),
        (12, _) => &sizes([12, 21, 30]),
        (14, _) => &sizes([14, 25]),
        (16, _) => &sizes([16, 29]),
        _ => panic!("a granule has 4, 16 or 64 KiB"),
    };
}

#[cfg(target_pointer_width = "64")]
impl<const BITS: u32, const GRANULE: u32, const UPPER: bool> Radix for Arm<BITS, GRANULE, UPPER> {
    const WIDTHS: &'static [u32] = Self::ALL.split_at(Self::LEVELS).0;
}

/// A space with RISC-V's Svnapot: pages of 64 KiB in addition to the sizes of `G`, which is [`Va39`], [`Va48`], [`Va57`], or
/// [`GuestX4`] of one of them.
#[cfg(target_pointer_width = "64")]
#[derive(Clone, Copy, Debug)]
pub struct Napot<G>(PhantomData<G>);

#[cfg(target_pointer_width = "64")]
impl<G: Geometry> Geometry for Napot<G> {
    const VA_BITS: u32 = G::VA_BITS;
    const BASE: PageSize = G::BASE;
    const HALF: Half = G::HALF;
    const STAGE: Stage = G::STAGE;
    const SIZES: &'static [PageSize] = {
        assert!(G::BASE.shift() == 12 && G::SIZES.len() == 3, "4 KiB, 2 MiB and 1 GiB");
        &sizes([12, 16, 21, 30])
    };
}

#[cfg(target_pointer_width = "64")]
impl<G: Radix> Radix for Napot<G> {
    const WIDTHS: &'static [u32] = G::WIDTHS;
}

/// The space `G`, which is [`Va48`], [`Va57`] or [`GuestEpt`], without pages larger than 2 MiB: x86-64 on processors without pages of
/// 1 GiB.
#[cfg(target_pointer_width = "64")]
#[derive(Clone, Copy, Debug)]
pub struct UpToM2<G>(PhantomData<G>);

#[cfg(target_pointer_width = "64")]
impl<G: Geometry> Geometry for UpToM2<G> {
    const VA_BITS: u32 = G::VA_BITS;
    const BASE: PageSize = G::BASE;
    const HALF: Half = G::HALF;
    const STAGE: Stage = G::STAGE;
    const SIZES: &'static [PageSize] = {
        assert!(G::BASE.shift() == 12 && G::SIZES.len() == 3, "4 KiB, 2 MiB and 1 GiB");
        &sizes([12, 21])
    };
}

#[cfg(target_pointer_width = "64")]
impl<G: Radix> Radix for UpToM2<G> {
    const WIDTHS: &'static [u32] = G::WIDTHS;
}

/// A space with AArch64's contiguous runs in addition to the sizes of the levels of `G`, which is an [`Arm`], [`Va48`], [`Va48K16`],
/// [`Va48K64`], or one of 53 bits.
#[cfg(target_pointer_width = "64")]
#[derive(Clone, Copy, Debug)]
pub struct Runs<G>(PhantomData<G>);

#[cfg(target_pointer_width = "64")]
impl<G: Geometry> Geometry for Runs<G> {
    const VA_BITS: u32 = G::VA_BITS;
    const BASE: PageSize = G::BASE;
    const HALF: Half = G::HALF;
    const STAGE: Stage = G::STAGE;
    // With 52 bits in a half, the block sizes that FEAT_LPA2 and FEAT_LPA add have no contiguous runs.
    const SIZES: &'static [PageSize] = match (G::BASE.shift(), G::VA_BITS) {
        (12, 52 | 53) => &sizes([12, 16, 21, 25, 30, 34, 39]),
        (14, 52 | 53) => &sizes([14, 21, 25, 30, 36]),
        (16, 52 | 53) => &sizes([16, 21, 29, 34, 42]),
        (12, _) => &sizes([12, 16, 21, 25, 30, 34]),
        (14, _) => &sizes([14, 21, 25, 30]),
        (16, _) => &sizes([16, 21, 29, 34]),
        _ => panic!("a granule has 4, 16 or 64 KiB"),
    };
}

#[cfg(target_pointer_width = "64")]
impl<G: Radix> Radix for Runs<G> {
    const WIDTHS: &'static [u32] = G::WIDTHS;
}

/// The paper's 64-bit space: all 64 bits, six levels indexed by bits 63-61, 60-51, 50-41, 40-31, 30-21 and 20-12
/// (Elphinstone et al. 3.2 prints 20-13 for the last: it counts page pairs).
#[cfg(target_pointer_width = "64")]
#[derive(Clone, Copy, Debug)]
pub struct Va64;

#[cfg(target_pointer_width = "64")]
impl Geometry for Va64 {
    const VA_BITS: u32 = 64;
    const BASE: PageSize = PageSize::K4;
    const SIZES: &'static [PageSize] = PAGE_MASK;
}

#[cfg(target_pointer_width = "64")]
impl Radix for Va64 {
    const WIDTHS: &'static [u32] = &[3, 10, 10, 10, 10, 9];
}

#[cfg(test)]
mod tests {
    use super::{ascend, sizes};

    #[test]
    fn sizes_are_powers_of_two() {
        assert_eq!(sizes([12, 13, 30]).map(|size| size.bytes()), [0x1000, 0x2000, 0x4000_0000]);
        assert_eq!(sizes([]), []);
    }

    #[test]
    fn no_size_comes_after_a_larger_one_or_itself() {
        for shifts in [[12, 13, 30], [12, 14, 16]] {
            assert!(ascend(&sizes(shifts)), "{shifts:?}");
        }
        for shifts in [[12, 12, 30], [13, 12, 30], [12, 30, 13], [12, 30, 30]] {
            assert!(!ascend(&sizes(shifts)), "{shifts:?}");
        }
        assert!(ascend(&sizes([12])) && ascend(&[]));
    }
}
