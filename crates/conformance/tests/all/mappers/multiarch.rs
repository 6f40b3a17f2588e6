//! The `page_table_multiarch` crate's table, with the entries of x86-64.

use memory_addr::{PhysAddr, VirtAddr};
use page_table_entry::MappingFlags as Flags;
use page_table_entry::x86_64::X64PTE;
use page_table_multiarch::{PageSize as Size, PageTable64, PagingHandler, PagingMetaData};
use tlbkit_addr::{Attr, PageSize};
use tlbkit_conformance::foreign::{Foreign, frames};
use tlbkit_pagetable::{Half, Space};

struct Meta;

impl PagingMetaData for Meta {
    const LEVELS: usize = 4;
    const PA_MAX_BITS: usize = 52;
    const VA_MAX_BITS: usize = 48;
    type VirtAddr = VirtAddr;

    fn flush_tlb(_at: Option<VirtAddr>) {}
}

struct Frames;

impl PagingHandler for Frames {
    fn alloc_frames(frames: usize, _align: usize) -> Option<PhysAddr> {
        assert_eq!(frames, 1, "tables are single frames");
        frames::take().map(PhysAddr::from_usize)
    }

    fn dealloc_frames(at: PhysAddr, _frames: usize) {
        frames::give(at.as_usize());
    }

    fn phys_to_virt(at: PhysAddr) -> VirtAddr {
        VirtAddr::from_usize(at.as_usize())
    }
}

pub(crate) struct Multiarch(PageTable64<Meta, X64PTE, Frames>);

fn flags(attr: Attr) -> Flags {
    if attr.contains(Attr::WRITE) {
        Flags::READ | Flags::EXECUTE | Flags::WRITE
    } else {
        Flags::READ | Flags::EXECUTE
    }
}

impl Foreign for Multiarch {
    fn new() -> Self {
        Self(PageTable64::try_new().unwrap())
    }

    fn space(&self) -> Space {
        // It takes no sign: the lower half.
        Space::new(47, Half::Lower, PageSize::K4, &[PageSize::K4, PageSize::M2])
    }

    fn map(&mut self, at: usize, to: usize, size: PageSize, attr: Attr) -> bool {
        let size = if size == PageSize::K4 { Size::Size4K } else { Size::Size2M };
        let (at, to) = (VirtAddr::from_usize(at), PhysAddr::from_usize(to));
        self.0.cursor().map(at, to, size, flags(attr)).is_ok()
    }

    fn unmap(&mut self, at: usize, _size: PageSize) -> bool {
        self.0.cursor().unmap(VirtAddr::from_usize(at)).is_ok()
    }

    fn translate(&self, at: usize) -> Option<usize> {
        self.0.query(VirtAddr::from_usize(at)).ok().map(|(to, ..)| to.as_usize())
    }

    fn protect(&mut self, at: usize, _size: PageSize, attr: Attr) -> Option<bool> {
        Some(self.0.cursor().protect(VirtAddr::from_usize(at), flags(attr)).is_ok())
    }

    fn attr(&self, at: usize) -> Option<Attr> {
        let (_, flags, _) = self.0.query(VirtAddr::from_usize(at)).ok()?;
        Some(if flags.contains(Flags::WRITE) { Attr::WRITE } else { Attr::empty() })
    }

    fn keeps_empty(&self) -> bool {
        true
    }

    fn keeps_refused(&self) -> bool {
        true
    }
}
