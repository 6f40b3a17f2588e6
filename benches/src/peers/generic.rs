//! The `page-table-generic` crate's four-level table. The crate leaves the entry format to its user: this is x86-64's.

use page_table_generic::{
    FrameAllocator, MapConfig, PageTable, PageTableEntry, PhysAddr, TableMeta, UnmapConfig, VirtAddr,
};

use super::{give, take};
use crate::Subject;
use crate::frames::Frames;

/// A table over the frames.
pub struct Generic(PageTable<FourLevels, Frames>);

#[derive(Clone, Copy)]
struct FourLevels;

impl TableMeta for FourLevels {
    type P = Entry;
    const PAGE_SIZE: usize = 4096;
    const LEVEL_BITS: &[usize] = &[9, 9, 9, 9];
    const MAX_BLOCK_LEVEL: usize = 3;

    #[inline(always)]
    fn flush(_at: Option<VirtAddr>) {}
}

impl FrameAllocator for Frames {
    #[inline(always)]
    fn alloc_frame(&self) -> Option<PhysAddr> {
        take().map(PhysAddr::from_usize)
    }

    #[inline(always)]
    fn dealloc_frame(&self, frame: PhysAddr) {
        give(frame.as_usize());
    }

    #[inline(always)]
    fn phys_to_virt(&self, at: PhysAddr) -> *mut u8 {
        self.pointer(at.as_usize())
    }
}

/// An entry: present, writable and user in bits 0 to 2, large in bit 7, the frame in bits 12 to 51.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
struct Entry(u64);

const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const USER: u64 = 4;
const HUGE: u64 = 1 << 7;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const FRAME: u64 = 0xf_ffff_ffff_f000;

impl PageTableEntry for Entry {
    /// The flags as they are in the entry.
    type PteConfig = u64;

    #[inline(always)]
    fn new_page(at: PhysAddr, flags: u64, is_huge: bool) -> Self {
        Self(at.as_usize() as u64 | flags | if is_huge { HUGE } else { 0 })
    }

    #[inline(always)]
    fn new_table(at: PhysAddr) -> Self {
        Self(at.as_usize() as u64 | PRESENT | WRITABLE | USER)
    }

    #[inline(always)]
    fn paddr(&self, _is_dir: bool) -> PhysAddr {
        PhysAddr::from_usize((self.0 & FRAME) as usize)
    }

    #[inline(always)]
    fn config(&self, _is_dir: bool) -> u64 {
        self.0 & RW
    }

    #[inline(always)]
    fn present(&self) -> bool {
        self.0 & PRESENT != 0
    }

    #[inline(always)]
    fn huge(&self, is_dir: bool) -> bool {
        is_dir && self.0 & HUGE != 0
    }

    #[inline(always)]
    fn unused(&self) -> bool {
        self.0 == 0
    }

    #[inline(always)]
    fn clear(&mut self) {
        self.0 = 0;
    }
}

const UNTOUCHED: u64 = PRESENT | WRITABLE | USER;
const RW: u64 = UNTOUCHED | ACCESSED | DIRTY;

#[inline(always)]
fn va(vpn: usize) -> VirtAddr {
    VirtAddr::from_usize(vpn << 12)
}

impl Generic {
    #[inline(always)]
    fn map_with(&mut self, vpn: usize, pfn: usize, pages: usize, flags: u64) {
        let config = MapConfig {
            vaddr: va(vpn),
            paddr: PhysAddr::from_usize(pfn << 12),
            size: pages << 12,
            pte: flags,
            allow_huge: false,
            flush: false,
        };
        self.0.map(&config).expect("free pages");
    }
}

impl Subject for Generic {
    const NAME: &'static str = "page-table-generic";
    const BITS: u32 = 48;

    fn new() -> Self {
        Self(PageTable::new(Frames).expect("a root"))
    }

    #[inline(always)]
    fn map(&mut self, vpn: usize, pfn: usize) {
        self.map_range(vpn, pfn, 1);
    }

    #[inline(always)]
    fn unmap(&mut self, vpn: usize) {
        self.unmap_range(vpn, 1);
    }

    #[inline(always)]
    fn translate(&self, at: usize) -> Option<usize> {
        self.0.translate_phys(VirtAddr::from_usize(at)).ok().map(PhysAddr::as_usize)
    }

    #[inline(always)]
    fn map_untouched(&mut self, vpn: usize, pfn: usize) {
        self.map_with(vpn, pfn, 1, UNTOUCHED);
    }

    #[inline(always)]
    fn map_range(&mut self, vpn: usize, pfn: usize, pages: usize) {
        self.map_with(vpn, pfn, pages, RW);
    }

    #[inline(always)]
    fn unmap_range(&mut self, vpn: usize, pages: usize) {
        let config = UnmapConfig { start_vaddr: va(vpn), size: pages << 12, flush: false };
        self.0.unmap_with_config(&config).expect("mapped pages");
    }

    #[inline(always)]
    fn protect_range(&mut self, vpn: usize, pages: usize, writable: bool) {
        let flags = if writable { RW } else { RW & !WRITABLE };
        if pages == 1 {
            self.0.protect_page(va(vpn), flags).expect("a mapped page");
        } else {
            self.0.protect_region(va(vpn), pages << 12, flags).expect("mapped pages");
        }
    }

    #[inline(always)]
    fn replace(&mut self, vpn: usize, pfn: usize) {
        self.0.remap_page(va(vpn), PhysAddr::from_usize(pfn << 12), RW).expect("a mapped page");
    }

    fn is_writable(&self, vpn: usize) -> bool {
        self.0.query(va(vpn)).is_ok_and(|(_, flags, _)| flags & WRITABLE != 0)
    }

    fn destroy(self) {
        // SAFETY: nothing runs on this table, and no CPU walks it.
        unsafe { self.0.destroy() };
    }
}
