//! The `x86_64` crate's two tables over a direct map.

use std::marker::PhantomData;

use x86_64::structures::paging::mapper::{CleanUp, MappedFrame, PageTableFrameMapping, TranslateResult};
use x86_64::structures::paging::{
    FrameAllocator, FrameDeallocator, MappedPageTable, Mapper, OffsetPageTable, Page, PageTable,
    PageTableFlags, PhysFrame, Size4KiB, Translate,
};
use x86_64::{PhysAddr, VirtAddr};

use super::{give, take};
use crate::Subject;
use crate::frames::Frames;

// SAFETY: each frame is handed out once until it is given back.
unsafe impl FrameAllocator<Size4KiB> for Frames {
    #[inline(always)]
    fn allocate_frame(&mut self) -> Option<PhysFrame<Size4KiB>> {
        take().map(|frame| PhysFrame::containing_address(PhysAddr::new_truncate(frame as u64)))
    }
}

impl FrameDeallocator<Size4KiB> for Frames {
    #[inline(always)]
    unsafe fn deallocate_frame(&mut self, frame: PhysFrame<Size4KiB>) {
        give(frame.start_address().as_u64() as usize);
    }
}

/// The direct map, whose beginning is a constant.
pub struct DirectMap;

// SAFETY: every frame of a table is one of `Frames`, whose memory this is.
unsafe impl PageTableFrameMapping for DirectMap {
    #[inline(always)]
    fn frame_to_pointer(&self, frame: PhysFrame) -> *mut PageTable {
        Frames.pointer(frame.start_address().as_u64() as usize).cast()
    }
}

/// One of the crate's tables, and what it is called.
pub trait Kind {
    /// In 48 bits, and in 39.
    const NAMES: [&'static str; 2];
    type Table: Mapper<Size4KiB> + Translate + CleanUp;

    /// Makes a table of an empty root.
    fn make(root: &'static mut PageTable) -> Self::Table;
}

/// `OffsetPageTable`: the beginning of the direct map is a variable. This is what its users take, and what ratios are to.
pub struct Offset;

impl Kind for Offset {
    const NAMES: [&'static str; 2] = ["x86_64", "x86_64, 39 bits"];
    type Table = OffsetPageTable<'static>;

    fn make(root: &'static mut PageTable) -> Self::Table {
        let start = VirtAddr::from_ptr(Frames.pointer(0));
        // SAFETY: the root is empty, and all frames are mapped from there on.
        unsafe { OffsetPageTable::new(root, start) }
    }
}

/// `MappedPageTable` with [`DirectMap`]: as fast as the crate can be made to be.
pub struct Linear;

impl Kind for Linear {
    const NAMES: [&'static str; 2] = ["x86_64 linear", "x86_64 linear, 39 bits"];
    type Table = MappedPageTable<'static, DirectMap>;

    fn make(root: &'static mut PageTable) -> Self::Table {
        // SAFETY: the root is empty, and the mapping is right.
        unsafe { MappedPageTable::new(root, DirectMap) }
    }
}

/// A table of the crate, flushes ignored as its documentation allows. Jobs use so many bits of an address: as many as the subject that
/// is compared with it has.
pub struct On<T: Kind, const BITS: u32> {
    table: T::Table,
    root: usize,
    kind: PhantomData<T>,
}

pub type X86<const BITS: u32 = 48> = On<Offset, BITS>;
pub type X86Linear<const BITS: u32 = 48> = On<Linear, BITS>;

const UNTOUCHED: PageTableFlags =
    PageTableFlags::PRESENT.union(PageTableFlags::WRITABLE).union(PageTableFlags::USER_ACCESSIBLE);
const RW: PageTableFlags = UNTOUCHED.union(PageTableFlags::ACCESSED).union(PageTableFlags::DIRTY);

#[inline(always)]
fn page(vpn: usize) -> Page<Size4KiB> {
    Page::containing_address(VirtAddr::new_truncate((vpn as u64) << 12))
}

impl<T: Kind, const BITS: u32> On<T, BITS> {
    #[inline(always)]
    fn map_with(&mut self, vpn: usize, pfn: usize, flags: PageTableFlags) {
        let frame = PhysFrame::containing_address(PhysAddr::new_truncate((pfn as u64) << 12));
        // SAFETY: nothing runs on this table.
        let mapped = unsafe { self.table.map_to(page(vpn), frame, flags, &mut Frames) };
        mapped.expect("a free page").ignore();
    }
}

impl<T: Kind, const BITS: u32> Subject for On<T, BITS> {
    const NAME: &'static str = T::NAMES[(BITS < 48) as usize];
    const BITS: u32 = BITS;

    fn new() -> Self {
        let root = take().expect("a root");
        // SAFETY: the frame is this table's alone, aligned, and large enough.
        let level4 = unsafe { &mut *Frames.pointer(root).cast::<PageTable>() };
        level4.zero();
        Self { table: T::make(level4), root, kind: PhantomData }
    }

    #[inline(always)]
    fn map(&mut self, vpn: usize, pfn: usize) {
        self.map_with(vpn, pfn, RW);
    }

    #[inline(always)]
    fn map_untouched(&mut self, vpn: usize, pfn: usize) {
        self.map_with(vpn, pfn, UNTOUCHED);
    }

    #[inline(always)]
    fn unmap(&mut self, vpn: usize) {
        self.table.unmap(page(vpn)).expect("a mapped page").1.ignore();
    }

    #[inline(always)]
    fn translate(&self, va: usize) -> Option<usize> {
        self.table.translate_addr(VirtAddr::new_truncate(va as u64)).map(|pa| pa.as_u64() as usize)
    }

    fn is_writable(&self, vpn: usize) -> bool {
        match self.table.translate(page(vpn).start_address()) {
            TranslateResult::Mapped { frame: MappedFrame::Size4KiB(_), flags, .. } => {
                flags.contains(PageTableFlags::WRITABLE)
            }
            _ => false,
        }
    }

    #[inline(always)]
    fn protect_range(&mut self, vpn: usize, pages: usize, writable: bool) {
        let flags = if writable { RW } else { RW.difference(PageTableFlags::WRITABLE) };
        for at in vpn..vpn + pages {
            // SAFETY: nothing runs on this table.
            unsafe { self.table.update_flags(page(at), flags) }.expect("a mapped page").ignore();
        }
    }

    fn destroy(mut self) {
        // `clean_up` frees empty tables only: unmap first. The root stays.
        // SAFETY: nothing runs on this table.
        unsafe { self.table.clean_up(&mut Frames) };
        give(self.root);
    }
}

/// `OffsetPageTable` again, with every unmap followed by the clean-up of what it may have emptied.
pub struct X86Freeing<const BITS: u32 = 48>(X86<BITS>);

impl<const BITS: u32> Subject for X86Freeing<BITS> {
    const NAME: &'static str = ["x86_64 freeing", "x86_64 freeing, 39 bits"][(BITS < 48) as usize];
    const BITS: u32 = BITS;

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
        unsafe { self.0.table.clean_up_addr_range(range, &mut Frames) };
    }

    #[inline(always)]
    fn translate(&self, va: usize) -> Option<usize> {
        self.0.translate(va)
    }

    fn is_writable(&self, vpn: usize) -> bool {
        self.0.is_writable(vpn)
    }

    #[inline(always)]
    fn protect_range(&mut self, vpn: usize, pages: usize, writable: bool) {
        self.0.protect_range(vpn, pages, writable);
    }

    fn destroy(self) {
        self.0.destroy();
    }
}
