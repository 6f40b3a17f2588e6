//! The `page_table_multiarch` crate's four-level table with x86-64 entries.

use memory_addr::{PhysAddr, VirtAddr};
use page_table_entry::MappingFlags;
use page_table_entry::x86_64::X64PTE;
use page_table_multiarch::{PageSize, PageTable64, PagingHandler, PagingMetaData};

use super::{give, take};
use crate::Subject;
use crate::frames::Frames;

/// The `page_table_multiarch` crate's four-level table with x86-64 entries.
pub struct Multiarch(PageTable64<Quiet, X64PTE, Handler>);

/// The crate's own x86-64 metadata executes `invlpg`; this one flushes nothing.
struct Quiet;

impl PagingMetaData for Quiet {
    const LEVELS: usize = 4;
    const PA_MAX_BITS: usize = 52;
    const VA_MAX_BITS: usize = 48;
    type VirtAddr = VirtAddr;

    #[inline(always)]
    fn flush_tlb(_at: Option<Self::VirtAddr>) {}
}

struct Handler;

impl PagingHandler for Handler {
    #[inline(always)]
    fn alloc_frames(frames: usize, _align: usize) -> Option<PhysAddr> {
        assert_eq!(frames, 1, "tables are single frames");
        take().map(PhysAddr::from_usize)
    }

    #[inline(always)]
    fn dealloc_frames(at: PhysAddr, _frames: usize) {
        give(at.as_usize());
    }

    #[inline(always)]
    fn phys_to_virt(at: PhysAddr) -> VirtAddr {
        VirtAddr::from_usize(Frames.pointer(at.as_usize()).expose_provenance())
    }
}

const FLAGS: MappingFlags = MappingFlags::READ.union(MappingFlags::WRITE).union(MappingFlags::USER);

#[inline(always)]
fn va(vpn: usize) -> VirtAddr {
    VirtAddr::from_usize(vpn << 12)
}

#[inline(always)]
fn pa(pfn: usize) -> PhysAddr {
    PhysAddr::from_usize(pfn << 12)
}

impl Subject for Multiarch {
    const NAME: &'static str = "page_table_multiarch";
    const BITS: u32 = 48;

    fn new() -> Self {
        Self(PageTable64::try_new().expect("a root"))
    }

    #[inline(always)]
    fn map(&mut self, vpn: usize, pfn: usize) {
        self.0.cursor().map(va(vpn), pa(pfn), PageSize::Size4K, FLAGS).expect("a free page");
    }

    #[inline(always)]
    fn unmap(&mut self, vpn: usize) {
        self.0.cursor().unmap(va(vpn)).expect("a mapped page");
    }

    #[inline(always)]
    fn translate(&self, va: usize) -> Option<usize> {
        self.0.query(VirtAddr::from_usize(va)).ok().map(|(pa, _, _)| pa.as_usize())
    }

    #[inline(always)]
    fn map_range(&mut self, vpn: usize, pfn: usize, pages: usize) {
        let frame = |at: VirtAddr| PhysAddr::from_usize((pfn << 12) + (at.as_usize() - (vpn << 12)));
        self.0.cursor().map_region(va(vpn), frame, pages << 12, FLAGS, false).expect("free pages");
    }

    #[inline(always)]
    fn unmap_range(&mut self, vpn: usize, pages: usize) {
        self.0.cursor().unmap_region(va(vpn), pages << 12).expect("mapped pages");
    }

    #[inline(always)]
    fn protect_range(&mut self, vpn: usize, pages: usize, writable: bool) {
        let flags = if writable { FLAGS } else { FLAGS.difference(MappingFlags::WRITE) };
        if pages == 1 {
            self.0.cursor().protect(va(vpn), flags).expect("a mapped page");
        } else {
            self.0.cursor().protect_region(va(vpn), pages << 12, flags).expect("mapped pages");
        }
    }

    #[inline(always)]
    fn replace(&mut self, vpn: usize, pfn: usize) {
        self.0.cursor().remap(va(vpn), pa(pfn), FLAGS).expect("a mapped page");
    }

    fn is_writable(&self, vpn: usize) -> bool {
        self.0.query(va(vpn)).is_ok_and(|(_, flags, _)| flags.contains(MappingFlags::WRITE))
    }

    fn destroy(self) {}
}
