//! The mappers of two crates that have never heard of tlbkit, behind the adapter.
#![cfg(all(target_arch = "x86_64", not(miri)))]

use std::cell::{Cell, RefCell};

use tlbkit_addr::PageSize;
use tlbkit_conformance::foreign::{Foreign, check};
use tlbkit_pagetable::Space;

const SIZES: &[PageSize] = &[PageSize::K4, PageSize::M2];

thread_local! {
    /// Frames that are free, by address.
    static FREE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    static OUT: Cell<usize> = const { Cell::new(0) };
    static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
}

#[repr(C, align(4096))]
struct Frame([u64; 512]);

fn take() -> Option<usize> {
    LEFT.set(LEFT.get().checked_sub(1)?);
    OUT.set(OUT.get() + 1);
    let fresh = || Box::leak(Box::new(Frame([0; 512]))).0.as_mut_ptr().expose_provenance();
    Some(FREE.with_borrow_mut(Vec::pop).unwrap_or_else(fresh))
}

fn give(frame: usize) {
    OUT.set(OUT.get() - 1);
    FREE.with_borrow_mut(|free| free.push(frame));
}

/// The `x86_64` crate's mapper over memory that is where its physical address says.
mod by_x86_64 {
    use x86_64::structures::paging::mapper::{CleanUp, TranslateResult};
    use x86_64::structures::paging::{
        FrameAllocator, FrameDeallocator, Mapper, OffsetPageTable, Page, PageTable, PageTableFlags as Flags,
        PhysFrame, Size2MiB, Size4KiB, Translate,
    };
    use x86_64::{PhysAddr, VirtAddr};

    use super::*;

    struct Frames;

    // SAFETY: each frame is handed out once until it is given back.
    unsafe impl FrameAllocator<Size4KiB> for Frames {
        fn allocate_frame(&mut self) -> Option<PhysFrame> {
            take().map(|at| PhysFrame::containing_address(PhysAddr::new(at as u64)))
        }
    }

    impl FrameDeallocator<Size4KiB> for Frames {
        unsafe fn deallocate_frame(&mut self, frame: PhysFrame) {
            give(frame.start_address().as_u64() as usize);
        }
    }

    struct X86 {
        table: OffsetPageTable<'static>,
        flushed: Vec<(usize, usize)>,
        /// Whether it looks before it maps: see `a_refused_map_gives_a_right`.
        looks: bool,
    }

    fn new(looks: bool) -> X86 {
        let root: *mut PageTable = std::ptr::with_exposed_provenance_mut(take().unwrap());
        // SAFETY: the frame is ours alone.
        let table = unsafe {
            (*root).zero();
            OffsetPageTable::new(&mut *root, VirtAddr::new(0))
        };
        X86 { table, flushed: Vec::new(), looks }
    }

    fn flags(writable: bool) -> Flags {
        if writable { Flags::PRESENT | Flags::WRITABLE } else { Flags::PRESENT }
    }

    fn small(at: usize) -> Page<Size4KiB> {
        Page::containing_address(VirtAddr::new(at as u64))
    }

    fn large(at: usize) -> Page<Size2MiB> {
        Page::containing_address(VirtAddr::new(at as u64))
    }

    impl Foreign for X86 {
        fn space(&self) -> Space {
            Space::new(48, true, PageSize::K4, SIZES)
        }

        fn map(&mut self, at: usize, to: usize, size: PageSize, writable: bool) -> bool {
            if self.looks && self.translate(at).is_some() {
                return false;
            }
            let (to, flags) = (PhysAddr::new(to as u64), flags(writable));
            // SAFETY: nothing runs on this table; so below.
            unsafe {
                if size == PageSize::K4 {
                    let frame = PhysFrame::containing_address(to);
                    self.table
                        .map_to(small(at), frame, flags, &mut Frames)
                        .map(|flush| flush.ignore())
                        .is_ok()
                } else {
                    let frame = PhysFrame::containing_address(to);
                    self.table
                        .map_to(large(at), frame, flags, &mut Frames)
                        .map(|flush| flush.ignore())
                        .is_ok()
                }
            }
        }

        fn unmap(&mut self, at: usize, size: PageSize) -> bool {
            let done = if size == PageSize::K4 {
                self.table.unmap(small(at)).map(|(_, flush)| flush.page().start_address()).ok()
            } else {
                self.table.unmap(large(at)).map(|(_, flush)| flush.page().start_address()).ok()
            };
            self.flushed.extend(done.map(|at| (at.as_u64() as usize, size.bytes())));
            done.is_some()
        }

        fn translate(&self, at: usize) -> Option<usize> {
            self.table.translate_addr(VirtAddr::new(at as u64)).map(|to| to.as_u64() as usize)
        }

        fn protect(&mut self, at: usize, size: PageSize, writable: bool) -> Option<bool> {
            // SAFETY: as above.
            let done = unsafe {
                if size == PageSize::K4 {
                    self.table
                        .update_flags(small(at), flags(writable))
                        .map(|flush| flush.page().start_address())
                        .ok()
                } else {
                    let flags = flags(writable) | Flags::HUGE_PAGE;
                    self.table.update_flags(large(at), flags).map(|flush| flush.page().start_address()).ok()
                }
            };
            self.flushed.extend(done.map(|at| (at.as_u64() as usize, size.bytes())));
            Some(done.is_some())
        }

        fn writable(&self, at: usize) -> Option<bool> {
            match self.table.translate(VirtAddr::new(at as u64)) {
                TranslateResult::Mapped { flags, .. } => Some(flags.contains(Flags::WRITABLE)),
                _ => None,
            }
        }

        fn flushed(&mut self) -> Option<Vec<(usize, usize)>> {
            Some(std::mem::take(&mut self.flushed))
        }

        fn fail_after(&mut self, takes: Option<usize>) -> bool {
            LEFT.set(takes.unwrap_or(usize::MAX));
            true
        }

        fn keeps_empty(&self) -> bool {
            true
        }

        fn nodes(&mut self) -> Option<usize> {
            // SAFETY: as above.
            unsafe { self.table.clean_up(&mut Frames) };
            Some(OUT.get())
        }
    }

    #[test]
    fn agrees() {
        assert_eq!(check(|| new(true), 64, 0), Ok(vec!["keeps_empty", "visit"]));
    }

    /// A bug of x86_64 0.15: `map_to` of a small page where a large one is mapped adds the small page's flags to the large
    /// one's entry, as if that were a link, before it fails with `ParentEntryHugePage`. Who is refused a writable page has
    /// made a read-only one writable.
    #[test]
    fn a_refused_map_gives_a_right() {
        let wrong = check(|| new(false), 64, 0).unwrap_err();
        assert!(wrong.contains("is writable: true; it should be the other way round"), "{wrong}");
    }
}

/// The `page_table_multiarch` crate's table, with the entries of x86-64.
mod by_multiarch {
    use memory_addr::{PhysAddr, VirtAddr};
    use page_table_entry::MappingFlags as Flags;
    use page_table_entry::x86_64::X64PTE;
    use page_table_multiarch::{PageSize as Size, PageTable64, PagingHandler, PagingMetaData};

    use super::*;

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
            take().map(PhysAddr::from_usize)
        }

        fn dealloc_frames(at: PhysAddr, _frames: usize) {
            give(at.as_usize());
        }

        fn phys_to_virt(at: PhysAddr) -> VirtAddr {
            VirtAddr::from_usize(at.as_usize())
        }
    }

    struct Multiarch(PageTable64<Meta, X64PTE, Frames>);

    fn flags(writable: bool) -> Flags {
        if writable { Flags::READ | Flags::EXECUTE | Flags::WRITE } else { Flags::READ | Flags::EXECUTE }
    }

    impl Foreign for Multiarch {
        fn space(&self) -> Space {
            // It takes no sign: the lower half.
            Space::new(47, false, PageSize::K4, SIZES)
        }

        fn map(&mut self, at: usize, to: usize, size: PageSize, writable: bool) -> bool {
            let size = if size == PageSize::K4 { Size::Size4K } else { Size::Size2M };
            let (at, to) = (VirtAddr::from_usize(at), PhysAddr::from_usize(to));
            self.0.cursor().map(at, to, size, flags(writable)).is_ok()
        }

        fn unmap(&mut self, at: usize, _size: PageSize) -> bool {
            self.0.cursor().unmap(VirtAddr::from_usize(at)).is_ok()
        }

        fn translate(&self, at: usize) -> Option<usize> {
            self.0.query(VirtAddr::from_usize(at)).ok().map(|(to, ..)| to.as_usize())
        }

        fn protect(&mut self, at: usize, _size: PageSize, writable: bool) -> Option<bool> {
            Some(self.0.cursor().protect(VirtAddr::from_usize(at), flags(writable)).is_ok())
        }

        fn writable(&self, at: usize) -> Option<bool> {
            self.0.query(VirtAddr::from_usize(at)).ok().map(|(_, flags, _)| flags.contains(Flags::WRITE))
        }

        fn keeps_empty(&self) -> bool {
            true
        }

        fn fail_after(&mut self, takes: Option<usize>) -> bool {
            LEFT.set(takes.unwrap_or(usize::MAX));
            true
        }
    }

    #[test]
    fn agrees() {
        let new = || Multiarch(PageTable64::try_new().unwrap());
        assert_eq!(check(new, 64, 0), Ok(vec!["flushed", "keeps_empty", "nodes", "visit"]));
    }
}

/// The ten lines that a mapper needs, and a bug of one that they find.
#[test]
fn a_map_of_nothing_is_tested() {
    #[derive(Default)]
    struct Least(std::collections::BTreeMap<usize, usize>, usize);

    impl Foreign for Least {
        fn space(&self) -> Space {
            Space::new(32, false, PageSize::K4, &[PageSize::K4])
        }

        fn map(&mut self, at: usize, to: usize, _size: PageSize, _writable: bool) -> bool {
            self.0.len() < self.1 && self.0.insert(at, to).is_none()
        }

        fn unmap(&mut self, at: usize, _size: PageSize) -> bool {
            self.0.remove(&at).is_some()
        }

        fn translate(&self, at: usize) -> Option<usize> {
            self.0.get(&(at & !0xfff)).map(|to| to + (at & 0xfff))
        }
    }

    // A map that is refused has replaced what was there.
    let wrong = check(|| Least(Default::default(), usize::MAX), 64, 0).unwrap_err();
    assert!(wrong.contains("is translated to") && wrong.contains("map(0x"), "{wrong}");
}
