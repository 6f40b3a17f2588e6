//! The published peers, each on a host arena through a direct map.

use std::cell::Cell;
use std::collections::BTreeMap;

use aarch64_paging::descriptor::{El1Attributes, PhysicalAddress};
use aarch64_paging::paging::{
    Constraints, El1And0, MemoryRegion, PageTable as ArmTable, Translation, VaRange,
};
use page_table_entry::MappingFlags;
use page_table_entry::x86_64::X64PTE;
use page_table_multiarch::{PageTable64, PagingHandler, PagingMetaData};
use x86_64::structures::paging::mapper::CleanUp;
use x86_64::structures::paging::{
    FrameAllocator, FrameDeallocator, Mapper, OffsetPageTable, Page, PageTable, PageTableFlags, PhysFrame,
    Size4KiB, Translate,
};
use x86_64::{PhysAddr, VirtAddr};

use crate::{Iterate, Subject, arena};

mod generic;

pub use generic::Generic;

/// Two GiB of frames, touched as they are used, with a free list: what a kernel's frame allocator is at its best.
/// "Physical" address 0 is the arena's first byte; frame 0 is never handed out.
struct Arena {
    start: usize,
    fresh: Cell<usize>,
    free: Cell<usize>,
}

const ARENA: usize = 2 << 30;

impl Arena {
    fn new() -> Self {
        let start = arena(ARENA).expose_provenance();
        Self { start, fresh: Cell::new(4096), free: Cell::new(0) }
    }

    #[inline]
    fn take(&self) -> Option<usize> {
        let free = self.free.get();
        if free != 0 {
            // SAFETY: a free frame of the arena holds the next one's address.
            self.free.set(unsafe { *std::ptr::with_exposed_provenance::<usize>(self.start + free) });
            return Some(free);
        }
        let fresh = self.fresh.get();
        self.fresh.set(fresh + 4096);
        (fresh < ARENA).then_some(fresh)
    }

    #[inline]
    fn give(&self, frame: usize) {
        // SAFETY: the frame is a table of the arena that no code uses any more.
        unsafe { *std::ptr::with_exposed_provenance_mut::<usize>(self.start + frame) = self.free.get() };
        self.free.set(frame);
    }
}

thread_local! {
    static FRAMES: &'static Arena = Box::leak(Box::new(Arena::new()));
}

struct Frames(&'static Arena);

// SAFETY: each frame is handed out once until it is given back.
unsafe impl FrameAllocator<Size4KiB> for Frames {
    #[inline]
    fn allocate_frame(&mut self) -> Option<PhysFrame<Size4KiB>> {
        self.0.take().map(|frame| PhysFrame::containing_address(PhysAddr::new_truncate(frame as u64)))
    }
}

impl FrameDeallocator<Size4KiB> for Frames {
    #[inline]
    unsafe fn deallocate_frame(&mut self, frame: PhysFrame<Size4KiB>) {
        self.0.give(frame.start_address().as_u64() as usize);
    }
}

/// `x86_64::OffsetPageTable`, flushes ignored as its documentation allows.
pub struct X86 {
    table: OffsetPageTable<'static>,
    root: usize,
    frames: Frames,
}

const USER_RW: PageTableFlags =
    PageTableFlags::PRESENT.union(PageTableFlags::WRITABLE).union(PageTableFlags::USER_ACCESSIBLE);

#[inline(always)]
fn page(vpn: usize) -> Page<Size4KiB> {
    Page::containing_address(VirtAddr::new_truncate((vpn as u64) << 12))
}

impl Subject for X86 {
    const NAME: &'static str = "x86_64";
    const BITS: u32 = 48;

    fn new() -> Self {
        let frames = Frames(FRAMES.with(|frames| *frames));
        let root = frames.0.take().expect("a root");
        let level4: *mut PageTable = std::ptr::with_exposed_provenance_mut(frames.0.start + root);
        // SAFETY: the frame is ours, aligned, and the arena is mapped at its start.
        let table = unsafe {
            (*level4).zero();
            OffsetPageTable::new(&mut *level4, VirtAddr::new(frames.0.start as u64))
        };
        Self { table, root, frames }
    }

    #[inline(always)]
    fn map(&mut self, vpn: usize, pfn: usize) {
        let frame = PhysFrame::containing_address(PhysAddr::new_truncate((pfn as u64) << 12));
        // SAFETY: nothing runs on this table.
        unsafe { self.table.map_to(page(vpn), frame, USER_RW, &mut self.frames) }
            .expect("a free page")
            .ignore();
    }

    #[inline(always)]
    fn unmap(&mut self, vpn: usize) {
        self.table.unmap(page(vpn)).expect("a mapped page").1.ignore();
    }

    #[inline(always)]
    fn translate(&self, va: usize) -> Option<usize> {
        self.table.translate_addr(VirtAddr::new_truncate(va as u64)).map(|pa| pa.as_u64() as usize)
    }

    #[inline(always)]
    fn protect_range(&mut self, vpn: usize, pages: usize, writable: bool) {
        let flags = if writable { USER_RW } else { USER_RW.difference(PageTableFlags::WRITABLE) };
        for at in vpn..vpn + pages {
            // SAFETY: nothing runs on this table.
            unsafe { self.table.update_flags(page(at), flags) }.expect("a mapped page").ignore();
        }
    }

    fn destroy(mut self) {
        // `clean_up` frees empty tables only: unmap first. The root stays.
        // SAFETY: nothing runs on this table.
        unsafe { self.table.clean_up(&mut self.frames) };
        self.frames.0.give(self.root);
    }
}

/// `x86_64` again, with every unmap followed by the clean-up of what it may have emptied.
pub struct X86Freeing(X86);

impl Subject for X86Freeing {
    const NAME: &'static str = "x86_64 freeing";
    const BITS: u32 = 48;

    fn new() -> Self {
        Self(X86::new())
    }

    #[inline(always)]
    fn map(&mut self, vpn: usize, pfn: usize) {
        self.0.map(vpn, pfn);
    }

    #[inline(always)]
    fn unmap(&mut self, vpn: usize) {
        self.0.unmap(vpn);
        let range = Page::range_inclusive(page(vpn), page(vpn));
        // SAFETY: nothing runs on this table.
        unsafe { self.0.table.clean_up_addr_range(range, &mut self.0.frames) };
    }

    #[inline(always)]
    fn translate(&self, va: usize) -> Option<usize> {
        self.0.translate(va)
    }

    fn protect_range(&mut self, vpn: usize, pages: usize, writable: bool) {
        self.0.protect_range(vpn, pages, writable);
    }

    fn destroy(self) {
        self.0.destroy();
    }
}

/// The `page_table_multiarch` crate's four-level table with x86-64 entries.
pub struct Multiarch(PageTable64<Quiet, X64PTE, Handler>);

/// The crate's own x86-64 metadata executes `invlpg`; this one flushes nothing.
struct Quiet;

impl PagingMetaData for Quiet {
    const LEVELS: usize = 4;
    const PA_MAX_BITS: usize = 52;
    const VA_MAX_BITS: usize = 48;
    type VirtAddr = memory_addr::VirtAddr;

    #[inline]
    fn flush_tlb(_at: Option<Self::VirtAddr>) {}
}

struct Handler;

impl PagingHandler for Handler {
    fn alloc_frames(frames: usize, _align: usize) -> Option<memory_addr::PhysAddr> {
        assert_eq!(frames, 1, "tables are single frames");
        FRAMES.with(|frames| frames.take()).map(memory_addr::PhysAddr::from_usize)
    }

    fn dealloc_frames(at: memory_addr::PhysAddr, _frames: usize) {
        FRAMES.with(|frames| frames.give(at.as_usize()));
    }

    #[inline(always)]
    fn phys_to_virt(at: memory_addr::PhysAddr) -> memory_addr::VirtAddr {
        memory_addr::VirtAddr::from_usize(FRAMES.with(|frames| frames.start) + at.as_usize())
    }
}

const FLAGS: MappingFlags = MappingFlags::READ.union(MappingFlags::WRITE).union(MappingFlags::USER);

impl Subject for Multiarch {
    const NAME: &'static str = "page_table_multiarch";
    const BITS: u32 = 48;

    fn new() -> Self {
        Self(PageTable64::try_new().expect("a root"))
    }

    #[inline(always)]
    fn map(&mut self, vpn: usize, pfn: usize) {
        let (at, to) =
            (memory_addr::VirtAddr::from_usize(vpn << 12), memory_addr::PhysAddr::from_usize(pfn << 12));
        self.0.cursor().map(at, to, page_table_multiarch::PageSize::Size4K, FLAGS).expect("a free page");
    }

    #[inline(always)]
    fn unmap(&mut self, vpn: usize) {
        self.0.cursor().unmap(memory_addr::VirtAddr::from_usize(vpn << 12)).expect("a mapped page");
    }

    #[inline(always)]
    fn translate(&self, va: usize) -> Option<usize> {
        self.0.query(memory_addr::VirtAddr::from_usize(va)).ok().map(|(pa, _, _)| pa.as_usize())
    }

    #[inline(always)]
    fn map_range(&mut self, vpn: usize, pfn: usize, pages: usize) {
        let at = memory_addr::VirtAddr::from_usize(vpn << 12);
        let first = vpn << 12;
        self.0
            .cursor()
            .map_region(
                at,
                |va| memory_addr::PhysAddr::from_usize((pfn << 12) + (va.as_usize() - first)),
                pages << 12,
                FLAGS,
                false,
            )
            .expect("free pages");
    }

    #[inline(always)]
    fn unmap_range(&mut self, vpn: usize, pages: usize) {
        self.0
            .cursor()
            .unmap_region(memory_addr::VirtAddr::from_usize(vpn << 12), pages << 12)
            .expect("mapped pages");
    }

    #[inline(always)]
    fn protect_range(&mut self, vpn: usize, pages: usize, writable: bool) {
        let flags = if writable { FLAGS } else { FLAGS.difference(MappingFlags::WRITE) };
        let at = memory_addr::VirtAddr::from_usize(vpn << 12);
        self.0.cursor().protect_region(at, pages << 12, flags).expect("mapped pages");
    }

    fn destroy(self) {}
}

/// The `aarch64-paging` crate's mapping over a linear map of the arena.
pub struct Aarch64(aarch64_paging::Mapping<Linear, El1And0>);

/// The arena at an offset, as the crate's own `LinearMap` has its global allocator.
struct Linear(&'static Arena);

impl Translation<El1Attributes> for Linear {
    fn allocate_table(&mut self) -> (std::ptr::NonNull<ArmTable<El1Attributes>>, PhysicalAddress) {
        let frame = self.0.take().expect("a frame");
        let at = self.physical_to_virtual(PhysicalAddress(frame));
        // SAFETY: the frame is ours; a zeroed table is empty.
        unsafe { at.cast::<u8>().write_bytes(0, 4096) };
        (at, PhysicalAddress(frame))
    }

    unsafe fn deallocate_table(&mut self, table: std::ptr::NonNull<ArmTable<El1Attributes>>) {
        self.0.give(table.addr().get() - self.0.start);
    }

    #[inline(always)]
    fn physical_to_virtual(&self, pa: PhysicalAddress) -> std::ptr::NonNull<ArmTable<El1Attributes>> {
        std::ptr::NonNull::new(std::ptr::with_exposed_provenance_mut(self.0.start + pa.0))
            .expect("an arena above zero")
    }
}

const ARM_RW: El1Attributes = El1Attributes::VALID
    .union(El1Attributes::ATTRIBUTE_INDEX_0)
    .union(El1Attributes::ACCESSED)
    .union(El1Attributes::NON_GLOBAL)
    .union(El1Attributes::USER);

impl Aarch64 {
    fn region(vpn: usize, pages: usize) -> MemoryRegion {
        MemoryRegion::new(vpn << 12, (vpn + pages) << 12)
    }
}

impl Subject for Aarch64 {
    const NAME: &'static str = "aarch64-paging";
    const BITS: u32 = 48;

    fn new() -> Self {
        let arena = FRAMES.with(|frames| *frames);
        Self(aarch64_paging::Mapping::with_asid_and_va_range(Linear(arena), 1, 0, El1And0, VaRange::Lower))
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

/// `hashbrown::HashMap` from page number to frame: what a hashed table would be without a layout to keep.
pub struct HashBrown(hashbrown::HashMap<usize, u64>);

impl Subject for HashBrown {
    const NAME: &'static str = "hashbrown";
    const BITS: u32 = 48;

    fn new() -> Self {
        Self(hashbrown::HashMap::new())
    }

    #[inline(always)]
    fn map(&mut self, vpn: usize, pfn: usize) {
        self.0.insert(vpn, (pfn as u64) << 12 | 1);
    }

    #[inline(always)]
    fn unmap(&mut self, vpn: usize) {
        self.0.remove(&vpn);
    }

    #[inline(always)]
    fn translate(&self, va: usize) -> Option<usize> {
        self.0.get(&(va >> 12)).map(|&pte| pte as usize & !0xfff | va & 0xfff)
    }

    fn protect_range(&mut self, vpn: usize, pages: usize, writable: bool) {
        for at in vpn..vpn + pages {
            if let Some(pte) = self.0.get_mut(&at) {
                *pte = *pte & !2 | u64::from(writable) << 1;
            }
        }
    }

    fn destroy(self) {}
}

impl Iterate for HashBrown {
    fn count(&self) -> usize {
        self.0.values().filter(|&&pte| pte & 1 == 1).count()
    }
}

/// `BTreeMap` from page number to frame: what an ordered map of the standard library would be, its ranges used.
pub struct BTree(BTreeMap<usize, u64>);

impl Subject for BTree {
    const NAME: &'static str = "BTreeMap";
    const BITS: u32 = 48;

    fn new() -> Self {
        Self(BTreeMap::new())
    }

    #[inline(always)]
    fn map(&mut self, vpn: usize, pfn: usize) {
        self.0.insert(vpn, (pfn as u64) << 12 | 1);
    }

    #[inline(always)]
    fn unmap(&mut self, vpn: usize) {
        self.0.remove(&vpn);
    }

    #[inline(always)]
    fn translate(&self, va: usize) -> Option<usize> {
        self.0.get(&(va >> 12)).map(|&pte| pte as usize & !0xfff | va & 0xfff)
    }

    fn protect_range(&mut self, vpn: usize, pages: usize, writable: bool) {
        for (_, pte) in self.0.range_mut(vpn..vpn + pages) {
            *pte = *pte & !2 | u64::from(writable) << 1;
        }
    }

    fn destroy(self) {}
}

impl Iterate for BTree {
    fn count(&self) -> usize {
        self.0.values().filter(|&&pte| pte & 1 == 1).count()
    }
}
