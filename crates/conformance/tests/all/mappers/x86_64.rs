//! The `x86_64` crate's mapper over memory that is where its physical address says.

use tlbkit_addr::{Attr, PageSize};
use tlbkit_conformance::foreign::{Flushed, Foreign, frames};
use tlbkit_pagetable::{Half, Space};
use x86_64::structures::paging::mapper::{CleanUp, TranslateResult};
use x86_64::structures::paging::{
    FrameAllocator, FrameDeallocator, Mapper, OffsetPageTable, Page, PageTable, PageTableFlags as Flags,
    PhysFrame, Size2MiB, Size4KiB, Translate,
};
use x86_64::{PhysAddr, VirtAddr};

struct Frames;

// SAFETY: each frame is handed out once until it is given back.
unsafe impl FrameAllocator<Size4KiB> for Frames {
    fn allocate_frame(&mut self) -> Option<PhysFrame> {
        frames::take().map(|at| PhysFrame::containing_address(PhysAddr::new(at as u64)))
    }
}

impl FrameDeallocator<Size4KiB> for Frames {
    unsafe fn deallocate_frame(&mut self, frame: PhysFrame) {
        frames::give(frame.start_address().as_u64() as usize);
    }
}

/// It looks before it maps with `MAPS`, and before it protects with `PROTECTS`: see the bugs in foreign.rs.
pub(crate) struct X86<const MAPS: bool, const PROTECTS: bool> {
    table: OffsetPageTable<'static>,
    flushed: Vec<Flushed>,
}

fn flags(attr: Attr) -> Flags {
    if attr.contains(Attr::WRITE) { Flags::PRESENT | Flags::WRITABLE } else { Flags::PRESENT }
}

fn small(at: usize) -> Page<Size4KiB> {
    Page::containing_address(VirtAddr::new(at as u64))
}

fn large(at: usize) -> Page<Size2MiB> {
    Page::containing_address(VirtAddr::new(at as u64))
}

impl<const MAPS: bool, const PROTECTS: bool> Foreign for X86<MAPS, PROTECTS> {
    fn new() -> Self {
        let root: *mut PageTable = std::ptr::with_exposed_provenance_mut(frames::take().unwrap());
        // SAFETY: the frame is ours alone.
        let table = unsafe {
            (*root).zero();
            OffsetPageTable::new(&mut *root, VirtAddr::new(0))
        };
        Self { table, flushed: Vec::new() }
    }

    fn space(&self) -> Space {
        Space::new(48, Half::Both, PageSize::K4, &[PageSize::K4, PageSize::M2])
    }

    fn map(&mut self, at: usize, to: usize, size: PageSize, attr: Attr) -> bool {
        if MAPS && self.translate(at).is_some() {
            return false;
        }
        let (to, flags) = (PhysAddr::new(to as u64), flags(attr));
        // SAFETY: nothing runs on this table.
        unsafe {
            if size == PageSize::K4 {
                let frame = PhysFrame::containing_address(to);
                self.table.map_to(small(at), frame, flags, &mut Frames).map(|flush| flush.ignore()).is_ok()
            } else {
                let frame = PhysFrame::containing_address(to);
                self.table.map_to(large(at), frame, flags, &mut Frames).map(|flush| flush.ignore()).is_ok()
            }
        }
    }

    fn unmap(&mut self, at: usize, size: PageSize) -> bool {
        let done = if size == PageSize::K4 {
            self.table.unmap(small(at)).map(|(_, flush)| flush.page().start_address()).ok()
        } else {
            self.table.unmap(large(at)).map(|(_, flush)| flush.page().start_address()).ok()
        };
        self.flushed.extend(done.map(|at| Flushed::Page(at.as_u64() as usize)));
        done.is_some()
    }

    fn translate(&self, at: usize) -> Option<usize> {
        self.table.translate_addr(VirtAddr::new(at as u64)).map(|to| to.as_u64() as usize)
    }

    fn protect(&mut self, at: usize, size: PageSize, attr: Attr) -> Option<bool> {
        let found = self.table.translate(VirtAddr::new(at as u64));
        let has = |bytes| matches!(found, TranslateResult::Mapped { frame, .. } if frame.size() == bytes);
        if PROTECTS && !has(size.bytes() as u64) {
            return Some(false);
        }
        // SAFETY: nothing runs on this table.
        let done = unsafe {
            if size == PageSize::K4 {
                self.table.update_flags(small(at), flags(attr)).map(|flush| flush.page().start_address()).ok()
            } else {
                let flags = flags(attr) | Flags::HUGE_PAGE;
                self.table.update_flags(large(at), flags).map(|flush| flush.page().start_address()).ok()
            }
        };
        self.flushed.extend(done.map(|at| Flushed::Page(at.as_u64() as usize)));
        Some(done.is_some())
    }

    fn attr(&self, at: usize) -> Option<Attr> {
        match self.table.translate(VirtAddr::new(at as u64)) {
            TranslateResult::Mapped { flags, .. } if flags.contains(Flags::WRITABLE) => Some(Attr::WRITE),
            TranslateResult::Mapped { .. } => Some(Attr::empty()),
            _ => None,
        }
    }

    fn flushed(&mut self) -> Option<Vec<Flushed>> {
        Some(std::mem::take(&mut self.flushed))
    }

    fn keeps_empty(&self) -> bool {
        true
    }

    fn keeps_refused(&self) -> bool {
        true
    }

    fn refuses_other_sizes(&self) -> bool {
        true
    }

    fn nodes(&mut self) -> Option<usize> {
        // SAFETY: nothing runs on this table.
        unsafe { self.table.clean_up(&mut Frames) };
        frames::out()
    }
}
