//! Page and frame numbers, counted as a machine's address spaces count them.

use tlbkit_addr::{PageSize, Pages, Pfn, PhysAddr, VirtAddr};
use tlbkit_pagetable::{Error, Geometry as _};

use crate::block::Shape;
use crate::{AddressSpace, Kernel};

/// Conversions between addresses and the numbers that every call takes and returns: numbers count base pages of the
/// [`Machine`](crate::Machine), which have 16 or 64 KiB with such a granule. No call here names a page size, so none can name another
/// one than the machine's.
impl<K: Kernel, const CPUS: usize> AddressSpace<K, CPUS> {
    /// The machine's base page, which is also the size of a frame.
    pub const PAGE: PageSize = <Shape<K>>::BASE;

    /// Returns the pages of the `len` bytes from `at` on.
    ///
    /// # Errors
    ///
    /// [`Error::Misaligned`] if the bytes do not begin and end with a base page; [`Error::OutOfRange`] if there are none, or if they
    /// extend beyond the last address.
    pub const fn pages(at: VirtAddr, len: usize) -> Result<Pages, Error> {
        if !at.is_aligned(Self::PAGE) {
            return Err(Error::Misaligned { at, size: Self::PAGE });
        }
        let Some(more) = len.checked_sub(1) else { return Err(Error::OutOfRange { at }) };
        let Some(last) = at.checked_add(more) else { return Err(Error::OutOfRange { at }) };
        if len & Self::PAGE.mask() != 0 {
            return Err(Error::Misaligned { at: last, size: Self::PAGE });
        }
        match Pages::new(at.vpn(Self::PAGE), last.vpn(Self::PAGE)) {
            Some(pages) => Ok(pages),
            None => Err(Error::OutOfRange { at }),
        }
    }

    /// Returns the frame at a physical address.
    ///
    /// # Errors
    ///
    /// [`Error::MisalignedFrame`] if no frame begins there.
    pub const fn frame(at: PhysAddr) -> Result<Pfn, Error> {
        let frame = at.pfn(Self::PAGE);
        if at.is_aligned(Self::PAGE) {
            Ok(frame)
        } else {
            Err(Error::MisalignedFrame { frame, size: Self::PAGE })
        }
    }

    /// Returns the physical address of a frame.
    pub const fn address(frame: Pfn) -> PhysAddr {
        frame.address(Self::PAGE)
    }
}
