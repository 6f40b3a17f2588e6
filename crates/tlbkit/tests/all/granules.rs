//! Granules of 16 and 64 KiB: a flush names the page that changed, by its address, with each granule.
#![cfg(target_pointer_width = "64")]

use std::alloc::{Layout, alloc_zeroed};
use std::marker::PhantomData;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tlbkit::pagetable::Geometry;
use tlbkit::{
    AddressSpace, Asid, Attr, CpuSet, Error, Flush, Kernel, Machine, Mmu, PageSize, Pages, Pfn, PhysAddr,
    Record, Run, VirtAddr, arch,
};

const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);

/// A machine that notes the addresses that it is asked to flush.
struct Probe<M> {
    pool: usize,
    next: AtomicUsize,
    records: Vec<Record>,
    asked: Mutex<Vec<usize>>,
    machine: PhantomData<fn() -> M>,
}

impl<M: Machine> Probe<M> {
    const SHIFT: u32 = M::Geometry::BASE.shift();

    fn machine() -> &'static Mmu<Self> {
        let layout = Layout::from_size_align(64 << Self::SHIFT, 1 << Self::SHIFT).unwrap();
        // SAFETY: the size is not zero.
        let pool = unsafe { alloc_zeroed(layout) }.expose_provenance();
        Box::leak(Box::new(Mmu::new(Self {
            pool,
            next: AtomicUsize::new(1 << Self::SHIFT),
            records: (0..64).map(|_| Record::new(0)).collect(),
            asked: Mutex::default(),
            machine: PhantomData,
        })))
    }
}

// SAFETY: a frame is handed out once, and has memory and a record of its own. There is one CPU, and no TLB.
unsafe impl<M: Machine> Kernel for Probe<M> {
    type Machine = M;

    fn cpu(&self) -> usize {
        0
    }

    fn take_frame(&self) -> Option<PhysAddr> {
        let frame = self.next.fetch_add(1 << Self::SHIFT, Relaxed);
        (frame < 64 << Self::SHIFT).then_some(PhysAddr::new(frame))
    }

    fn give_frame(&self, _: PhysAddr) {}

    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.pool + frame.get())
    }

    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        self.records.get(frame.get() >> Self::SHIFT)
    }

    fn release(&self, _: Run) {}

    fn flush(&self, flush: &Flush<'_>, _: Option<Asid>) {
        // The guide's code: `fence` for each address of `by_address`.
        self.asked.lock().unwrap().extend(flush.by_address(64).into_iter().flatten().map(VirtAddr::get));
    }

    fn interrupt(&self, _: CpuSet) {}

    fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        f()
    }

    fn load(&self, _: usize) {}

    fn unload(&self) {}
}

#[test]
fn a_flush_names_addresses_with_each_granule() {
    fn check<M: Machine>(size: PageSize, pages: [usize; 3]) {
        let mmu = Probe::<M>::machine();
        let space = AddressSpace::new(mmu).unwrap();
        space.activate().unwrap();
        let page = |at: usize| Pages::one(VirtAddr::new(at).vpn(size));
        for (at, frame) in pages.into_iter().zip([9, 20, 30]) {
            space.map(page(at), Pfn::new(frame), RW).unwrap();
        }
        mmu.kernel().asked.lock().unwrap().clear();
        let asked = || std::mem::take(&mut *mmu.kernel().asked.lock().unwrap());
        // The fast path, an edit, and ranges that do not touch.
        space.unmap(page(pages[0])).unwrap();
        assert_eq!(asked(), [pages[0]], "{size}");
        space.edit(|edit| edit.unmap(page(pages[1]))).unwrap();
        assert_eq!(asked(), [pages[1]], "{size}");
        for at in [pages[0], pages[1]] {
            space.map(page(at), Pfn::new(9), RW).unwrap();
        }
        asked();
        space.edit(|edit| pages.into_iter().try_for_each(|at| edit.unmap(page(at)).map(|_| ()))).unwrap();
        assert_eq!(asked(), pages, "{size}");
    }
    check::<arch::AArch64>(PageSize::K4, [0x7000, 0x9000, 0xffff_ffff_f000]);
    check::<arch::AArch64K16>(PageSize::K16, [0x4000, 0xc000, 0x7fff_ffff_c000]);
    check::<arch::AArch64K64>(PageSize::K64, [0x7_0000, 0x9_0000, 0xffff_ffff_0000]);
}

/// Pages and frames by their addresses: what is no whole page of the machine is refused, and what is mapped is where it was asked for.
#[test]
fn addresses_are_counted_in_the_machines_pages() {
    fn check<M: Machine>(size: PageSize) {
        type Space<M> = AddressSpace<Probe<M>>;
        let space = Space::<M>::new(Probe::machine()).unwrap();
        assert_eq!(Space::<M>::PAGE, size);
        let (at, phys) = (VirtAddr::new(0x70_0000), PhysAddr::new(0x30_0000));
        let pages = Space::<M>::pages(at, 2 * size.bytes()).unwrap();
        assert_eq!(pages.len(), 2);
        space.map(pages, Space::<M>::frame(phys).unwrap(), RW).unwrap();
        assert_eq!(space.translate(at), Some(phys));
        let leaf = space.lookup(VirtAddr::new(0x70_0000 + size.bytes())).unwrap();
        assert_eq!(Space::<M>::address(leaf.frame), PhysAddr::new(0x30_0000 + size.bytes()));
        assert_eq!(space.unmap(pages), Ok(2));
        // Parts of a page, as a program that counts in smaller pages names them.
        let (at, end) = (VirtAddr::new(0x70_0800), VirtAddr::new(0x70_07ff));
        assert_eq!(Space::<M>::pages(at, size.bytes()), Err(Error::Misaligned { at, size }));
        assert_eq!(
            Space::<M>::pages(VirtAddr::new(0x70_0000), 0x800),
            Err(Error::Misaligned { at: end, size })
        );
        if size > PageSize::K4 {
            let at = VirtAddr::new(0x70_1000);
            assert_eq!(Space::<M>::pages(at, 4096), Err(Error::Misaligned { at, size }));
        }
        assert!(matches!(Space::<M>::frame(PhysAddr::new(0x30_0800)), Err(Error::MisalignedFrame { .. })));
        let none = VirtAddr::new(0x70_0000);
        assert_eq!(Space::<M>::pages(none, 0), Err(Error::OutOfRange { at: none }));
        let top = VirtAddr::new(usize::MAX).align_down(size);
        assert_eq!(Space::<M>::pages(top, 2 * size.bytes()), Err(Error::OutOfRange { at: top }));
        assert!(Space::<M>::pages(top, size.bytes()).is_ok());
    }
    check::<arch::AArch64>(PageSize::K4);
    check::<arch::AArch64K16>(PageSize::K16);
    check::<arch::AArch64K64>(PageSize::K64);
}
