//! Page and frame numbers, counted as a machine's address spaces count them.
//!
//! ```text
//!   the machine's base page     pages that calls take     frames that calls take and give
//!   4 KiB     Base<12>          Pages                     Pfn             plain numbers
//!   16 KiB    Base<14>          Span<14>                  Frame<14>       made from addresses alone
//!   64 KiB    Base<16>          Span<16>                  Frame<16>
//! ```
//!
//! A plain number does not say what it counts, and kernels count 4 KiB by habit. So it is an argument only where it means 4 KiB.

use core::fmt;
use core::hash::Hash;

use tlbkit_addr::{PageSize, Pages, Pfn, PhysAddr, VirtAddr};
use tlbkit_pagetable::{Entry, Error, FrameNumber, Geometry as _, Leaf, Run};

use crate::block::Shape;
use crate::{AddressSpace, Fault, Kernel, Machine};

/// Base pages of `1 << SHIFT` bytes: [`Machine::Base`].
#[derive(Debug)]
pub struct Base<const SHIFT: u32>;

/// The size of a machine's base pages and frames, and the types that number them: [`Base`] of 12 to 16 alone.
///
/// Where base pages have 4 KiB, every call takes plain numbers, [`Pages`] and [`Pfn`]. With any other size the numbers are types of
/// their own, which are made from addresses, and a plain number does not compile:
///
/// ```
/// # use tlbkit::{AddressSpace, Attr, Error, Kernel, PhysAddr, VirtAddr, arch};
/// fn map<K: Kernel<Machine = arch::AArch64K16>>(space: &AddressSpace<K>) -> Result<(), Error> {
///     let pages = AddressSpace::<K>::pages(VirtAddr::new(0x40_0000), 0x8000)?;
///     space.map(pages, AddressSpace::<K>::frame(PhysAddr::new(0x8000_0000))?, Attr::READ)
/// }
/// ```
///
/// ```compile_fail,E0308
/// # use tlbkit::{AddressSpace, Attr, Error, Kernel, PageSize, Pages, PhysAddr, VirtAddr, arch};
/// fn map<K: Kernel<Machine = arch::AArch64K16>>(space: &AddressSpace<K>) -> Result<(), Error> {
///     let pages = Pages::one(VirtAddr::new(0x40_0000).vpn(PageSize::K4));
///     space.map(pages, AddressSpace::<K>::frame(PhysAddr::new(0x8000_0000))?, Attr::READ)
/// }
/// ```
///
/// ```compile_fail,E0308
/// # use tlbkit::{AddressSpace, Attr, Error, Kernel, PageSize, PhysAddr, VirtAddr, arch};
/// fn map<K: Kernel<Machine = arch::AArch64K16>>(space: &AddressSpace<K>) -> Result<(), Error> {
///     let pages = AddressSpace::<K>::pages(VirtAddr::new(0x40_0000), 0x8000)?;
///     space.map(pages, PhysAddr::new(0x8000_0000).pfn(PageSize::K4), Attr::READ)
/// }
/// ```
///
/// Nor do numbers of another size:
///
/// ```compile_fail,E0308
/// # use tlbkit::{AddressSpace, Error, Kernel, Span, VirtAddr, arch};
/// fn unmap<K: Kernel<Machine = arch::AArch64K16>>(space: &AddressSpace<K>) -> Result<usize, Error> {
///     space.unmap(Span::<16>::new(VirtAddr::new(0x40_0000), 0x1_0000)?)
/// }
/// ```
///
/// The leaves and runs that a call or a method of [`Kernel`] gets have such numbers, too ([`Kernel::release`] a `Run<Frame<14>>`), and
/// no size is to be named for their address:
///
/// ```
/// # use tlbkit::{AddressSpace, Kernel, PhysAddr, VirtAddr, arch};
/// fn frame_of<K: Kernel<Machine = arch::AArch64K16>>(space: &AddressSpace<K>, at: VirtAddr) -> Option<PhysAddr> {
///     space.lookup(at).map(|leaf| leaf.frame.address())
/// }
/// ```
///
/// ```compile_fail,E0061
/// # use tlbkit::{AddressSpace, Kernel, PageSize, PhysAddr, VirtAddr, arch};
/// fn frame_of<K: Kernel<Machine = arch::AArch64K16>>(space: &AddressSpace<K>, at: VirtAddr) -> Option<PhysAddr> {
///     space.lookup(at).map(|leaf| leaf.frame.address(PageSize::K4))
/// }
/// ```
///
/// A machine whose [`Machine::Base`] is not the base page of its geometry has no [`Mmu`](crate::Mmu):
///
/// ```
/// # use tlbkit::pagetable::{format, geometry};
/// # use tlbkit::shootdown::Hardware;
/// # use tlbkit::{AddressSpace, Asid, Base, Flush, FrameOf, Kernel, Machine, Mmu, MultiLevel, PhysAddr, Record, Run, arch};
/// struct Mine;
/// // SAFETY: no CPU walks the table.
/// unsafe impl Machine for Mine {
///     type Geometry = geometry::Arm<48, 16>;
///     type Base = Base<16>;
/// #   type Format = format::Aarch64Of<16, false, false>;
/// #   type Table = MultiLevel;
/// #   const HARDWARE: Hardware = Hardware::AARCH64_HAFDBS;
/// #   const ASID_BITS: u32 = 16;
/// #   fn root(node: PhysAddr, asid: Asid) -> usize { arch::AArch64K64::root(node, asid) }
/// }
/// # struct NoFrames;
/// # unsafe impl Kernel for NoFrames {
/// #   type Machine = Mine;
/// #   fn take_frame(&self) -> Option<PhysAddr> { None }
/// #   fn give_frame(&self, _: PhysAddr) {}
/// #   fn memory(&self, _: PhysAddr) -> *mut u8 { core::ptr::null_mut() }
/// #   fn record(&self, _: PhysAddr) -> Option<&Record> { None }
/// #   fn release(&self, _: Run<FrameOf<Self>>) {}
/// #   fn flush(&self, _: &Flush, _: Option<Asid>) {}
/// #   fn masked<R>(&self, f: impl FnOnce() -> R) -> R { f() }
/// #   fn load(&self, _: usize) {}
/// #   fn unload(&self) {}
/// # }
/// static MMU: Mmu<NoFrames> = Mmu::new(NoFrames);
/// # assert!(AddressSpace::new(&MMU).is_err(), "there is no frame");
/// ```
///
/// ```compile_fail,E0080
/// # use tlbkit::pagetable::{format, geometry};
/// # use tlbkit::shootdown::Hardware;
/// # use tlbkit::{AddressSpace, Asid, Base, Flush, FrameOf, Kernel, Machine, Mmu, MultiLevel, PhysAddr, Record, Run, arch};
/// struct Mine;
/// // SAFETY: no CPU walks the table.
/// unsafe impl Machine for Mine {
///     type Geometry = geometry::Arm<48, 16>;
///     type Base = Base<12>;
/// #   type Format = format::Aarch64Of<16, false, false>;
/// #   type Table = MultiLevel;
/// #   const HARDWARE: Hardware = Hardware::AARCH64_HAFDBS;
/// #   const ASID_BITS: u32 = 16;
/// #   fn root(node: PhysAddr, asid: Asid) -> usize { arch::AArch64K64::root(node, asid) }
/// }
/// # struct NoFrames;
/// # unsafe impl Kernel for NoFrames {
/// #   type Machine = Mine;
/// #   fn take_frame(&self) -> Option<PhysAddr> { None }
/// #   fn give_frame(&self, _: PhysAddr) {}
/// #   fn memory(&self, _: PhysAddr) -> *mut u8 { core::ptr::null_mut() }
/// #   fn record(&self, _: PhysAddr) -> Option<&Record> { None }
/// #   fn release(&self, _: Run<FrameOf<Self>>) {}
/// #   fn flush(&self, _: &Flush, _: Option<Asid>) {}
/// #   fn masked<R>(&self, f: impl FnOnce() -> R) -> R { f() }
/// #   fn load(&self, _: usize) {}
/// #   fn unload(&self) {}
/// # }
/// static MMU: Mmu<NoFrames> = Mmu::new(NoFrames);
/// # assert!(AddressSpace::new(&MMU).is_err(), "there is no frame");
/// ```
pub trait BasePage: Sealed + fmt::Debug + 'static {
    /// The size.
    const SIZE: PageSize;
    /// A range of pages: [`Pages`], or [`Span`].
    type Pages: Copy + fmt::Debug + Eq + Hash + Send + Sync + 'static;
    /// A frame: [`Pfn`], or [`Frame`].
    type Frame: FrameNumber + fmt::Debug + Eq + Ord + Hash + Send + Sync + 'static;

    #[doc(hidden)]
    fn pages(counted: Pages) -> Self::Pages;
    #[doc(hidden)]
    fn counted(pages: Self::Pages) -> Pages;
    #[doc(hidden)]
    fn pfn(frame: Self::Frame) -> Pfn;
    /// Returns `value` with the machine's numbers in the place of plain ones.
    #[doc(hidden)]
    fn typed<T: Numbered<By<Pfn> = T>>(value: T) -> T::By<Self::Frame>;
    #[doc(hidden)]
    fn typed_runs(runs: &[Run]) -> &[Run<Self::Frame>];
}

/// Is implemented in this crate alone.
pub trait Sealed {}

impl<const SHIFT: u32> Sealed for Base<SHIFT> {}

/// Plain numbers, as they come. Each conversion is its argument, so it costs nothing wherever the value is.
impl BasePage for Base<12> {
    const SIZE: PageSize = PageSize::K4;
    type Pages = Pages;
    type Frame = Pfn;

    #[inline(always)]
    fn pages(counted: Pages) -> Pages {
        counted
    }
    #[inline(always)]
    fn counted(pages: Pages) -> Pages {
        pages
    }
    #[inline(always)]
    fn pfn(frame: Pfn) -> Pfn {
        frame
    }
    #[inline(always)]
    fn typed<T: Numbered<By<Pfn> = T>>(value: T) -> T {
        value
    }
    #[inline(always)]
    fn typed_runs(runs: &[Run]) -> &[Run] {
        runs
    }
}

macro_rules! typed {
    ($($shift:literal)+) => {$(
        impl BasePage for Base<$shift> {
            const SIZE: PageSize = Frame::<$shift>::SIZE;
            type Pages = Span<$shift>;
            type Frame = Frame<$shift>;

            #[inline(always)]
            fn pages(counted: Pages) -> Span<$shift> {
                Span(counted)
            }
            #[inline(always)]
            fn counted(pages: Span<$shift>) -> Pages {
                pages.0
            }
            #[inline(always)]
            fn pfn(frame: Frame<$shift>) -> Pfn {
                frame.0
            }
            #[inline(always)]
            fn typed<T: Numbered<By<Pfn> = T>>(value: T) -> T::By<Frame<$shift>> {
                value.by(Frame)
            }
            #[inline(always)]
            fn typed_runs(runs: &[Run]) -> &[Run<Frame<$shift>>] {
                // SAFETY: `Run` has the layout of C, and a `Frame` that of its number, so a run of either is one of the other.
                unsafe { core::slice::from_raw_parts(runs.as_ptr().cast(), runs.len()) }
            }
        }
    )+};
}

typed! { 13 14 15 16 }

/// A value that has frame numbers.
pub trait Numbered {
    /// The value with other numbers.
    type By<F>;

    fn by<F>(self, number: fn(Pfn) -> F) -> Self::By<F>;
}

impl Numbered for Pfn {
    type By<F> = F;

    #[inline(always)]
    fn by<F>(self, number: fn(Pfn) -> F) -> F {
        number(self)
    }
}

impl Numbered for Leaf {
    type By<F> = Leaf<F>;

    #[inline(always)]
    fn by<F>(self, number: fn(Pfn) -> F) -> Leaf<F> {
        let Self { at, size, frame, attr } = self;
        Leaf { at, size, frame: number(frame), attr }
    }
}

impl Numbered for Run {
    type By<F> = Run<F>;

    #[inline(always)]
    fn by<F>(self, number: fn(Pfn) -> F) -> Run<F> {
        let Self { first, len, dirty } = self;
        Run { first: number(first), len, dirty }
    }
}

impl Numbered for Entry {
    type By<F> = Entry<F>;

    #[inline]
    fn by<F>(self, number: fn(Pfn) -> F) -> Entry<F> {
        match self {
            Self::Empty => Entry::Empty,
            Self::Leaf(leaf) => Entry::Leaf(leaf.by(number)),
            Self::Mark(mark) => Entry::Mark(mark),
        }
    }
}

impl Numbered for Fault {
    type By<F> = Fault<F>;

    #[inline]
    fn by<F>(self, number: fn(Pfn) -> F) -> Fault<F> {
        match self {
            Self::Retry => Fault::Retry,
            Self::NotMapped => Fault::NotMapped,
            Self::Swapped(payload) => Fault::Swapped(payload),
            Self::Guard => Fault::Guard,
            Self::CopyOnWrite(leaf) => Fault::CopyOnWrite(leaf.by(number)),
            Self::Refused(reason) => Fault::Refused(reason),
            Self::NoRight(leaf) => Fault::NoRight(leaf.by(number)),
            Self::Closed(leaf) => Fault::Closed(leaf.by(number)),
        }
    }
}

impl<T: Numbered> Numbered for Option<T> {
    type By<F> = Option<T::By<F>>;

    #[inline]
    fn by<F>(self, number: fn(Pfn) -> F) -> Option<T::By<F>> {
        self.map(|value| value.by(number))
    }
}

impl<T: Numbered> Numbered for Result<T, Error> {
    type By<F> = Result<T::By<F>, Error>;

    #[inline]
    fn by<F>(self, number: fn(Pfn) -> F) -> Result<T::By<F>, Error> {
        self.map(|value| value.by(number))
    }
}

/// A frame of `1 << SHIFT` bytes, where base pages have another size than 4 KiB. It is made from a physical address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Frame<const SHIFT: u32>(Pfn);

impl<const SHIFT: u32> Frame<SHIFT> {
    /// The size.
    pub const SIZE: PageSize = size(SHIFT);

    /// Returns the frame at a physical address.
    ///
    /// # Errors
    ///
    /// [`Error::MisalignedAddress`] if no frame begins there.
    #[inline]
    pub const fn new(at: PhysAddr) -> Result<Self, Error> {
        match frame_at(at, Self::SIZE) {
            Ok(frame) => Ok(Self(frame)),
            Err(why) => Err(why),
        }
    }

    /// Returns the physical address of the frame.
    #[inline]
    pub const fn address(self) -> PhysAddr {
        self.0.address(Self::SIZE)
    }
}

impl<const SHIFT: u32> FrameNumber for Frame<SHIFT> {
    #[inline]
    fn checked_add(self, frames: usize) -> Option<Self> {
        self.0.checked_add(frames).map(Self)
    }
}

impl<const SHIFT: u32> fmt::Debug for Frame<SHIFT> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({})", self.address())
    }
}

/// Prints the address.
impl<const SHIFT: u32> fmt::Display for Frame<SHIFT> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address().fmt(f)
    }
}

/// A range of pages of `1 << SHIFT` bytes, never empty, where base pages have another size than 4 KiB. It is made from addresses.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Span<const SHIFT: u32>(Pages);

impl<const SHIFT: u32> Span<SHIFT> {
    /// The size of a page.
    pub const PAGE: PageSize = size(SHIFT);

    /// Returns the pages of the `len` bytes from `at` on.
    ///
    /// # Errors
    ///
    /// As [`AddressSpace::pages`].
    pub const fn new(at: VirtAddr, len: usize) -> Result<Self, Error> {
        match pages_at(at, len, Self::PAGE) {
            Ok(pages) => Ok(Self(pages)),
            Err(why) => Err(why),
        }
    }

    /// Returns the fewest pages that hold the `len` bytes from `at` on.
    ///
    /// # Errors
    ///
    /// As [`AddressSpace::pages_covering`].
    pub const fn covering(at: VirtAddr, len: usize) -> Result<Self, Error> {
        match covering(at, len, Self::PAGE) {
            Ok(pages) => Ok(Self(pages)),
            Err(why) => Err(why),
        }
    }

    /// Returns the first address.
    #[inline]
    pub const fn at(self) -> VirtAddr {
        self.0.first().address(Self::PAGE)
    }

    /// Returns the number of pages, at least one.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a range of pages is never empty")]
    pub const fn len(self) -> usize {
        self.0.len()
    }
}

impl<const SHIFT: u32> fmt::Debug for Span<SHIFT> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({} pages at {})", self.len(), self.at())
    }
}

#[expect(clippy::panic, reason = "called only in a constant, where a panic is a compile-time error")]
const fn size(shift: u32) -> PageSize {
    match PageSize::from_shift(shift) {
        Some(size) => size,
        None => panic!("a page is smaller than the address space"),
    }
}

const fn pages_at(at: VirtAddr, len: usize, page: PageSize) -> Result<Pages, Error> {
    if !at.is_aligned(page) {
        return Err(Error::Misaligned { at, size: page });
    }
    match covering(at, len, page) {
        Ok(_) if len & page.mask() != 0 => {
            Err(Error::Misaligned { at: VirtAddr::new(at.get() + (len - 1)), size: page })
        }
        pages => pages,
    }
}

const fn covering(at: VirtAddr, len: usize, page: PageSize) -> Result<Pages, Error> {
    match Pages::covering(at, len, page) {
        Some(pages) => Ok(pages),
        None => Err(Error::OutOfRange { at }),
    }
}

const fn frame_at(at: PhysAddr, size: PageSize) -> Result<Pfn, Error> {
    if at.is_aligned(size) { Ok(at.pfn(size)) } else { Err(Error::MisalignedAddress { at, size }) }
}

/// The base page of a kernel's machine.
type BaseOf<K> = <<K as Kernel>::Machine as Machine>::Base;

/// A range of pages, as the calls of a kernel's address spaces take it: [`Pages`] where base pages have 4 KiB, else [`Span`].
pub type PagesOf<K> = <BaseOf<K> as BasePage>::Pages;

/// A frame, as the calls of a kernel's address spaces take and give it: [`Pfn`] where base pages have 4 KiB, else [`Frame`].
pub type FrameOf<K> = <BaseOf<K> as BasePage>::Frame;

/// Returns the machine's type for a counted range of pages.
#[inline(always)]
pub(crate) fn to_pages<K: Kernel>(counted: Pages) -> PagesOf<K> {
    BaseOf::<K>::pages(counted)
}

/// Returns the pages as their number.
#[inline(always)]
pub(crate) fn counted<K: Kernel>(pages: PagesOf<K>) -> Pages {
    BaseOf::<K>::counted(pages)
}

/// Returns the frame as its number.
#[inline(always)]
pub(crate) fn pfn<K: Kernel>(frame: FrameOf<K>) -> Pfn {
    BaseOf::<K>::pfn(frame)
}

/// Returns what a caller gets: `value` with frames of the machine's type.
#[inline(always)]
pub(crate) fn typed<K: Kernel, T: Numbered<By<Pfn> = T>>(value: T) -> T::By<FrameOf<K>> {
    BaseOf::<K>::typed(value)
}

/// Returns what the kernel gets: runs of frames of the machine's type.
#[inline(always)]
pub(crate) fn typed_runs<K: Kernel>(runs: &[Run]) -> &[Run<FrameOf<K>>] {
    BaseOf::<K>::typed_runs(runs)
}

/// Conversions between addresses and the numbers that every call takes and returns: numbers count base pages of the
/// [`Machine`], which have 16 or 64 KiB with such a granule. No call here names a page size, so none can name another
/// one than the machine's. A kernel for one machine whose base pages have 4 KiB can do without: its numbers are [`Pages`] and [`Pfn`].
impl<K: Kernel, const CPUS: usize> AddressSpace<K, CPUS> {
    /// The machine's base page, which is also the size of a frame.
    pub const PAGE: PageSize = <Shape<K>>::BASE;

    /// Returns the pages of the `len` bytes from `at` on.
    ///
    /// # Errors
    ///
    /// [`Error::Misaligned`] if the bytes do not begin and end with a base page; [`Error::OutOfRange`] if there are none, or if they
    /// extend beyond the last address.
    pub fn pages(at: VirtAddr, len: usize) -> Result<PagesOf<K>, Error> {
        pages_at(at, len, Self::PAGE).map(to_pages::<K>)
    }

    /// Returns the fewest pages that hold the `len` bytes from `at` on, which may begin and end anywhere: what `munmap`, `mprotect` and
    /// `brk` get.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if there are none, or if they extend beyond the last address.
    pub fn pages_covering(at: VirtAddr, len: usize) -> Result<PagesOf<K>, Error> {
        covering(at, len, Self::PAGE).map(to_pages::<K>)
    }

    /// Returns the pages that hold the bytes from `first` to `last`, both included, or `None` if `last` is below `first`.
    #[inline]
    pub fn pages_between(first: VirtAddr, last: VirtAddr) -> Option<PagesOf<K>> {
        Pages::new(first.vpn(Self::PAGE), last.vpn(Self::PAGE)).map(to_pages::<K>)
    }

    /// Returns the page of an address.
    #[inline]
    pub fn page(at: VirtAddr) -> PagesOf<K> {
        to_pages::<K>(Pages::one(at.vpn(Self::PAGE)))
    }

    /// Returns the frame at a physical address.
    ///
    /// # Errors
    ///
    /// [`Error::MisalignedAddress`] if no frame begins there.
    pub fn frame(at: PhysAddr) -> Result<FrameOf<K>, Error> {
        frame_at(at, Self::PAGE).map(typed::<K, _>)
    }

    /// Returns the physical address of a frame.
    #[inline]
    pub fn address(frame: FrameOf<K>) -> PhysAddr {
        pfn::<K>(frame).address(Self::PAGE)
    }
}
