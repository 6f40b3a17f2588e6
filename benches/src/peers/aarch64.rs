//! The `aarch64-paging` crate's mapping over a linear map of the frames.

use std::ptr::NonNull;

use aarch64_paging::descriptor::{El1Attributes, PhysicalAddress};
use aarch64_paging::paging::{Constraints, El1And0, MemoryRegion, PageTable, Translation, VaRange};

use super::{give, take};
use crate::frames::Frames;
use crate::{Iterate, Subject};

/// The `aarch64-paging` crate's mapping over a linear map of the arena.
pub struct Aarch64(aarch64_paging::Mapping<Linear, El1And0>);

/// The frames at an offset, as the crate's own `LinearMap` has its global allocator.
struct Linear;

impl Translation<El1Attributes> for Linear {
    #[inline(always)]
    fn allocate_table(&mut self) -> (NonNull<PageTable<El1Attributes>>, PhysicalAddress) {
        let frame = take().expect("a frame");
        let at = self.physical_to_virtual(PhysicalAddress(frame));
        // SAFETY: the frame is ours; a zeroed table is empty.
        unsafe { at.cast::<u8>().write_bytes(0, 4096) };
        (at, PhysicalAddress(frame))
    }

    #[inline(always)]
    unsafe fn deallocate_table(&mut self, table: NonNull<PageTable<El1Attributes>>) {
        give(table.addr().get() - Frames.pointer(0).addr());
    }

    #[inline(always)]
    fn physical_to_virtual(&self, pa: PhysicalAddress) -> NonNull<PageTable<El1Attributes>> {
        NonNull::new(Frames.pointer(pa.0).cast()).expect("frames above zero")
    }
}

const ARM_RW: El1Attributes = El1Attributes::VALID
    .union(El1Attributes::ATTRIBUTE_INDEX_0)
    .union(El1Attributes::ACCESSED)
    .union(El1Attributes::NON_GLOBAL)
    .union(El1Attributes::USER);

/// What `map_range` makes of them at the last level.
const PAGE_RW: El1Attributes = ARM_RW.union(El1Attributes::TABLE_OR_PAGE);

impl Aarch64 {
    #[inline(always)]
    fn region(vpn: usize, pages: usize) -> MemoryRegion {
        MemoryRegion::new(vpn << 12, (vpn + pages) << 12)
    }
}

impl Subject for Aarch64 {
    const NAME: &'static str = "aarch64-paging";
    const BITS: u32 = 48;

    fn new() -> Self {
        Self(aarch64_paging::Mapping::with_asid_and_va_range(Linear, 1, 0, El1And0, VaRange::Lower))
    }

    #[inline(always)]
    fn map(&mut self, vpn: usize, pfn: usize) {
        self.map_range(vpn, pfn, 1);
    }

    #[inline(always)]
    fn unmap(&mut self, vpn: usize) {
        self.unmap_range(vpn, 1);
    }

    /// The crate has no translation function; its walk over a range of one page is the way its users do it.
    #[inline(always)]
    fn translate(&self, va: usize) -> Option<usize> {
        let mut found = None;
        let page = va & !0xfff;
        self.0
            .walk_range(&MemoryRegion::new(page, page + 0x1000), &mut |_, descriptor, _| {
                if descriptor.is_valid() {
                    found = Some(descriptor.output_address().0 | va & 0xfff);
                }
                Ok(())
            })
            .ok()?;
        found
    }

    #[inline(always)]
    fn map_range(&mut self, vpn: usize, pfn: usize, pages: usize) {
        // The table is not live, so no break-before-make rule applies; pages, not blocks, as the others map.
        self.0
            .map_range(
                &Self::region(vpn, pages),
                PhysicalAddress(pfn << 12),
                ARM_RW,
                Constraints::NO_BLOCK_MAPPINGS,
            )
            .expect("free pages");
    }

    #[inline(always)]
    fn unmap_range(&mut self, vpn: usize, pages: usize) {
        self.0
            .modify_range(&Self::region(vpn, pages), &|_, descriptor| {
                descriptor.set(PhysicalAddress(0), El1Attributes::empty())
            })
            .expect("mapped pages");
    }

    #[inline(always)]
    fn protect_range(&mut self, vpn: usize, pages: usize, writable: bool) {
        let (set, clear) = if writable {
            (El1Attributes::empty(), El1Attributes::READ_ONLY)
        } else {
            (El1Attributes::READ_ONLY, El1Attributes::empty())
        };
        self.0
            .modify_range(&Self::region(vpn, pages), &|_, descriptor| descriptor.modify_flags(set, clear))
            .expect("mapped pages");
    }

    /// The frame and the attributes of a descriptor are stored at once.
    #[inline(always)]
    fn replace(&mut self, vpn: usize, pfn: usize) {
        self.0
            .modify_range(&Self::region(vpn, 1), &|_, descriptor| {
                descriptor.set(PhysicalAddress(pfn << 12), PAGE_RW)
            })
            .expect("a mapped page");
    }

    fn is_writable(&self, vpn: usize) -> bool {
        let mut is_writable = false;
        let walked = self.0.walk_range(&Self::region(vpn, 1), &mut |_, descriptor, _| {
            let flags = descriptor.flags();
            is_writable = descriptor.is_valid() && !flags.contains(El1Attributes::READ_ONLY);
            Ok(())
        });
        walked.is_ok() && is_writable
    }

    fn destroy(self) {}
}

impl Iterate for Aarch64 {
    fn count(&self) -> usize {
        let mut count = 0;
        let visited = self.0.walk_range(&MemoryRegion::new(0, 1 << 48), &mut |_, descriptor, level| {
            count += usize::from(level == 3 && descriptor.is_valid());
            Ok(())
        });
        visited.map_or(0, |()| count)
    }
}
