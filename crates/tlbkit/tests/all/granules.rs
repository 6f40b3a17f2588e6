//! Granules of 16 and 64 KiB: every call takes and gives the addresses of the pages that it concerns, with each granule. That numbers
//! which count something else do not compile is shown at [`tlbkit::BasePage`].
#![cfg(target_pointer_width = "64")]

use std::alloc::{Layout, alloc_zeroed};
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tlbkit::pagetable::Geometry;
use tlbkit::{
    Access, AddressSpace, Asid, Attr, Change, CpuSet, Entry, Error, Fault, Flush, Frame, FrameOf, Kernel,
    Machine, Mark, Mmu, PageSize, Pages, PagesOf, Pfn, PhysAddr, Record, Run, Span, SupervisorPages,
    VirtAddr, arch,
};

const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);
const STORE: Access = Access::STORE.by_user();

/// A machine that notes the addresses that it is asked to flush, and of the frames that it is told of.
struct Probe<M> {
    pool: usize,
    next: AtomicUsize,
    records: Vec<Record>,
    asked: Mutex<Vec<usize>>,
    released: Mutex<Vec<usize>>,
    shared: Mutex<Vec<usize>>,
    machine: PhantomData<fn() -> M>,
}

type Space<M> = AddressSpace<Probe<M>>;

/// Returns the page at an address, which is one of a page.
fn page<M: Machine>(at: usize) -> PagesOf<Probe<M>> {
    Space::<M>::pages(VirtAddr::new(at), Space::<M>::PAGE.bytes()).unwrap()
}

fn frame<M: Machine>(at: usize) -> FrameOf<Probe<M>> {
    Space::<M>::frame(PhysAddr::new(at)).unwrap()
}

fn address<M: Machine>(frame: FrameOf<Probe<M>>) -> usize {
    Space::<M>::address(frame).get()
}

impl<M: Machine> Probe<M> {
    const SHIFT: u32 = M::Geometry::BASE.shift();

    fn machine() -> &'static Mmu<Self> {
        let layout = Layout::from_size_align(0x80 << Self::SHIFT, 1 << Self::SHIFT).unwrap();
        // SAFETY: the size is not zero.
        let pool = unsafe { alloc_zeroed(layout) }.expose_provenance();
        Box::leak(Box::new(Mmu::new(Self {
            pool,
            next: AtomicUsize::new(1 << Self::SHIFT),
            records: (0..64).map(|_| Record::new(0)).collect(),
            asked: Mutex::default(),
            released: Mutex::default(),
            shared: Mutex::default(),
            machine: PhantomData,
        })))
    }
}

/// Returns what was noted since the last call.
fn noted(list: &Mutex<Vec<usize>>) -> Vec<usize> {
    std::mem::take(&mut *list.lock().unwrap())
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

    /// The second half of the pool is the users'.
    fn user_memory<R>(&self, frame: PhysAddr, access: impl FnOnce(*mut u8) -> R) -> Option<R> {
        (0x40..0x80).contains(&(frame.get() >> Self::SHIFT)).then(|| access(self.memory(frame)))
    }

    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        self.records.get(frame.get() >> Self::SHIFT)
    }

    fn release(&self, run: Run<FrameOf<Self>>) {
        self.released.lock().unwrap().extend(run.frames().map(address::<M>));
    }

    fn share(&self, run: Run<FrameOf<Self>>) {
        self.shared.lock().unwrap().extend(run.frames().map(address::<M>));
    }

    fn flush(&self, flush: &Flush<'_>, _: Option<Asid>) {
        // The guide's code: `fence` for each address of `by_address`.
        self.asked.lock().unwrap().extend(flush.by_address().into_iter().flatten().map(VirtAddr::get));
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
        for (at, number) in pages.into_iter().zip([9, 20, 30]) {
            space.map(page::<M>(at), frame::<M>(number * size.bytes()), RW).unwrap();
        }
        let asked = || noted(&mmu.kernel().asked);
        asked();
        // The fast path, an edit, and ranges that do not touch.
        space.unmap(page::<M>(pages[0])).unwrap();
        assert_eq!(asked(), [pages[0]], "{size}");
        space.edit(|edit| edit.unmap(page::<M>(pages[1]))).unwrap();
        assert_eq!(asked(), [pages[1]], "{size}");
        for at in [pages[0], pages[1]] {
            space.map(page::<M>(at), frame::<M>(9 * size.bytes()), RW).unwrap();
        }
        asked();
        space
            .edit(|edit| pages.into_iter().try_for_each(|at| edit.unmap(page::<M>(at)).map(|_| ())))
            .unwrap();
        assert_eq!(asked(), pages, "{size}");
    }
    check::<arch::AArch64>(PageSize::K4, [0x7000, 0x9000, 0xffff_ffff_f000]);
    check::<arch::AArch64K16>(PageSize::K16, [0x4000, 0xc000, 0x7fff_ffff_c000]);
    check::<arch::AArch64K64>(PageSize::K64, [0x7_0000, 0x9_0000, 0xffff_ffff_0000]);
}

/// What each call takes and gives, by address: the pages and frames are where they were asked for.
#[test]
fn every_call_takes_and_gives_the_machines_pages() {
    fn check<M: Machine>(size: PageSize) {
        let mmu = Probe::<M>::machine();
        let (kernel, bytes) = (mmu.kernel(), size.bytes());
        let space = Space::<M>::new(mmu).unwrap();
        space.activate().unwrap();
        let (at, phys) =
            (|page: usize| VirtAddr::new(page * bytes), |frame: usize| PhysAddr::new(frame * bytes));
        let at_phys = |frames: [usize; 2]| frames.map(|frame| frame * bytes);

        // A run, frames one by one, and a range in the largest pages.
        space.map(Space::<M>::pages(at(8), 2 * bytes).unwrap(), frame::<M>(0x50 * bytes), RW).unwrap();
        let scattered = [0x63, 0x61].map(|number| frame::<M>(number * bytes));
        space.map_each(Space::<M>::pages_between(at(10), at(11)).unwrap(), scattered, RW).unwrap();
        let large = M::Geometry::SIZES[1];
        let linear = Space::<M>::pages(VirtAddr::new(4 * large.bytes()), large.bytes()).unwrap();
        space.map_linear(linear, frame::<M>(8 * large.bytes()), RW).unwrap();
        for (page, number) in [(8, 0x50), (9, 0x51), (10, 0x63), (11, 0x61)] {
            let inside = VirtAddr::new(page * bytes + 0x123);
            assert_eq!(space.translate(inside), Some(PhysAddr::new(number * bytes + 0x123)), "{size}");
            let leaf = space.lookup(inside).unwrap();
            assert_eq!((leaf.at, leaf.size), (at(page), size));
            assert_eq!(Space::<M>::address(leaf.frame), phys(number), "{size}");
            assert_eq!(space.entry(inside), Entry::Leaf(leaf));
        }
        let leaf = space.lookup(VirtAddr::new(5 * large.bytes() - 1)).unwrap();
        assert_eq!((leaf.size, address::<M>(leaf.frame)), (large, 8 * large.bytes()), "{size}");

        // A visit and a cursor have them in order.
        let all = Space::<M>::pages_between(at(0), VirtAddr::new(5 * large.bytes() - 1)).unwrap();
        let mut visited = Vec::new();
        let flow = space.for_each(all, |leaf| {
            visited.push((leaf.at.get(), address::<M>(leaf.frame)));
            ControlFlow::Continue(())
        });
        assert_eq!(flow, Ok(ControlFlow::Continue(())));
        let small = [(8, 0x50), (9, 0x51), (10, 0x63), (11, 0x61)].map(|(at, to)| (at * bytes, to * bytes));
        assert_eq!(visited, [&small[..], &[(4 * large.bytes(), 8 * large.bytes())]].concat(), "{size}");
        let next = space.edit(|edit| Ok(edit.cursor(at(9))?.next_mapped(at(11)))).unwrap().unwrap();
        assert_eq!((next.at, address::<M>(next.frame)), (at(10), 0x63 * bytes), "{size}");

        // A copy over the end of a page, whole frames, and a frame that is none of the users'.
        let (end, mut read) = (VirtAddr::new(10 * bytes - 3), [0; 6]);
        let handler = |space: &Space<M>, at, access| Ok(space.fault(at, access)? == Fault::Retry);
        mmu.clear_frame(frame::<M>(0x63 * bytes)).unwrap();
        assert_eq!(space.copy_to_user(end, &[1, 2, 3, 4, 5, 6], handler), Ok(()), "{size}");
        assert_eq!(space.copy_from_user(end, &mut read, handler), Ok(()), "{size}");
        let there = |at: usize| {
            kernel.user_memory(phys(at), |memory| {
                // SAFETY: the frame is one of the pool, and no other code uses it now.
                let memory = unsafe { std::slice::from_raw_parts(memory, bytes) };
                [&memory[..4], &memory[bytes - 4..]].concat()
            })
        };
        assert_eq!(read, [1, 2, 3, 4, 5, 6], "{size}");
        assert_eq!(there(0x51).unwrap()[4..], [0, 1, 2, 3], "{size}");
        assert_eq!(there(0x63).unwrap(), [4, 5, 6, 0, 0, 0, 0, 0], "{size}");
        mmu.copy_frame(frame::<M>(0x51 * bytes), frame::<M>(0x63 * bytes)).unwrap();
        assert_eq!(there(0x63), there(0x51), "{size}");
        let none = mmu.clear_frame(frame::<M>(bytes));
        assert!(matches!(none, Err(Error::NotUserMemory { frame }) if frame == Pfn::new(1)), "{size}");

        // A fork, a fault and its copy: the frame is that of the page, and so is what is released.
        noted(&kernel.shared);
        let child = space.fork(SupervisorPages::LeftOut).unwrap();
        assert_eq!(
            noted(&kernel.shared)[..4],
            [0x50, 0x51, 0x63, 0x61].map(|number| number * bytes),
            "{size}"
        );
        let inside = VirtAddr::new(10 * bytes + 0x10);
        let Fault::CopyOnWrite(leaf) = child.fault(inside, STORE).unwrap() else { panic!("it is copied") };
        assert_eq!((leaf.at, address::<M>(leaf.frame)), (at(10), 0x63 * bytes), "{size}");
        noted(&kernel.asked);
        child
            .unshare(
                inside,
                |_| false,
                |of| {
                    assert_eq!(address::<M>(of), 0x63 * bytes, "{size}");
                    Ok(frame::<M>(0x70 * bytes))
                },
            )
            .unwrap();
        assert_eq!(noted(&kernel.released), [0x63 * bytes], "{size}");
        assert_eq!(child.translate(inside), Some(PhysAddr::new(0x70 * bytes + 0x10)), "{size}");
        assert_eq!(space.translate(inside), Some(PhysAddr::new(0x63 * bytes + 0x10)), "{size}");
        child.replace(at(10), frame::<M>(0x71 * bytes), RW).unwrap();
        assert_eq!(noted(&kernel.released), [0x70 * bytes], "{size}");

        // A page that goes out and comes back.
        let frozen = space.freeze(at(9)).unwrap();
        assert_eq!((frozen.at, address::<M>(frozen.frame)), (at(9), 0x51 * bytes), "{size}");
        assert_eq!(noted(&kernel.shared), [0x51 * bytes], "{size}");
        space.page_out(at(9), frozen.frame, 7).unwrap();
        assert_eq!(noted(&kernel.released), [0x51 * bytes], "{size}");
        let mut marks = Vec::new();
        let flow = space.for_each_mark(all, |at, mark| {
            marks.push((at, matches!(mark, Mark::Payload(7, _))));
            ControlFlow::Continue(())
        });
        assert_eq!((flow, marks), (Ok(ControlFlow::Continue(())), vec![(at(9), true)]), "{size}");
        assert_eq!(space.fault(VirtAddr::new(9 * bytes + 1), STORE), Ok(Fault::Swapped(7)), "{size}");
        space.fill(at(9), 7, frame::<M>(0x72 * bytes)).unwrap();
        assert_eq!(space.translate(at(9)), Some(phys(0x72)), "{size}");

        // A range whose ends are in larger pages, and the flush of what it removes.
        noted(&kernel.asked);
        assert_eq!(space.protect(page::<M>(8 * bytes), Change::clear(Attr::READ)), Ok(1));
        assert_eq!(noted(&kernel.asked), [8 * bytes], "{size}");
        let unmapped = Space::<M>::pages(VirtAddr::new(4 * large.bytes() + bytes), 2 * bytes).unwrap();
        assert_eq!(space.unmap(unmapped), Ok(2));
        let first = 8 * large.bytes() / bytes;
        assert_eq!(noted(&kernel.released), at_phys([first + 1, first + 2]), "{size}");
        assert_eq!(
            space.translate(VirtAddr::new(4 * large.bytes() + 3 * bytes)),
            Some(phys(first + 3)),
            "{size}"
        );
        assert_eq!(space.translate(VirtAddr::new(4 * large.bytes() + bytes)), None, "{size}");

        // Supervisor pages, copied.
        space.map(page::<M>(12 * bytes), frame::<M>(0x74 * bytes), Attr::READ | Attr::WRITE).unwrap();
        let mut copied = Vec::new();
        let mut copy = |leaf: tlbkit::Leaf<FrameOf<Probe<M>>>| {
            copied.push((leaf.at, address::<M>(leaf.frame)));
            Ok(frame::<M>(0x75 * bytes))
        };
        let second = space.fork(SupervisorPages::Copied(&mut copy)).unwrap();
        assert_eq!(copied, [(at(12), 0x74 * bytes)], "{size}");
        assert_eq!(second.translate(at(12)), Some(phys(0x75)), "{size}");

        // The end of an address space.
        noted(&kernel.released);
        drop(child);
        let released = noted(&kernel.released);
        for number in [0x50, 0x51, 0x71, 0x61] {
            assert!(released.contains(&(number * bytes)), "{size}: {released:x?}");
        }
    }
    check::<arch::AArch64>(PageSize::K4);
    check::<arch::AArch64K16>(PageSize::K16);
    check::<arch::AArch64K64>(PageSize::K64);
}

/// Pages and frames by their addresses: what is no whole page of the machine is refused.
#[test]
fn addresses_are_counted_in_the_machines_pages() {
    fn check<M: Machine>(size: PageSize) {
        assert_eq!(Space::<M>::PAGE, size);
        let pages = |at: usize, len: usize| Space::<M>::pages(VirtAddr::new(at), len);
        let between =
            |first: usize, last: usize| Space::<M>::pages_between(VirtAddr::new(first), VirtAddr::new(last));
        let two = pages(0x70_0000, 2 * size.bytes()).unwrap();
        assert_eq!(between(0x70_0800, 0x70_0000 + size.bytes()), Some(two));
        assert_eq!(Space::<M>::page(VirtAddr::new(0x70_0800)), pages(0x70_0000, size.bytes()).unwrap());
        assert_eq!(between(0x70_0000, 0x6f_0000), None);
        assert!(between(0, usize::MAX).is_some());
        // What a program names, however it is aligned.
        let covering = |at: usize, len: usize| Space::<M>::pages_covering(VirtAddr::new(at), len);
        assert_eq!(covering(0x70_0800, size.bytes()), Ok(two));
        assert_eq!(covering(0x70_0fff, 1), pages(0x70_0000, size.bytes()));
        assert_eq!(covering(usize::MAX, 1), Ok(Space::<M>::page(VirtAddr::new(usize::MAX))));
        for (at, len) in [(usize::MAX, 2), (0x1000, 0), (2, usize::MAX)] {
            assert_eq!(covering(at, len), Err(Error::OutOfRange { at: VirtAddr::new(at) }));
        }
        // Parts of a page, as a program that counts in smaller pages names them.
        let (at, end) = (VirtAddr::new(0x70_0800), VirtAddr::new(0x70_07ff));
        assert_eq!(pages(0x70_0800, size.bytes()), Err(Error::Misaligned { at, size }));
        assert_eq!(pages(0x70_0000, 0x800), Err(Error::Misaligned { at: end, size }));
        if size > PageSize::K4 {
            let at = VirtAddr::new(0x70_1000);
            assert_eq!(pages(0x70_1000, 4096), Err(Error::Misaligned { at, size }));
        }
        let at = PhysAddr::new(0x30_0800);
        assert_eq!(Space::<M>::frame(at), Err(Error::MisalignedAddress { at, size }));
        assert_eq!(Space::<M>::address(frame::<M>(0x30_0000)), PhysAddr::new(0x30_0000));
        let none = VirtAddr::new(0x70_0000);
        assert_eq!(pages(0x70_0000, 0), Err(Error::OutOfRange { at: none }));
        let top = VirtAddr::new(usize::MAX).align_down(size);
        assert_eq!(pages(top.get(), 2 * size.bytes()), Err(Error::OutOfRange { at: top }));
        assert!(pages(top.get(), size.bytes()).is_ok());
    }
    check::<arch::AArch64>(PageSize::K4);
    check::<arch::AArch64K16>(PageSize::K16);
    check::<arch::AArch64K64>(PageSize::K64);
}

/// With pages of 4 KiB the numbers are plain; with others they say their addresses, and are made in constants, too.
#[test]
fn numbers_of_other_sizes_are_addresses() {
    let _: PagesOf<Probe<arch::AArch64>> = Pages::one(VirtAddr::new(0x1000).vpn(PageSize::K4));
    let _: FrameOf<Probe<arch::AArch64>> = Pfn::new(1);
    const DEVICE: Result<Span<16>, Error> = Span::new(VirtAddr::new(0x8_0000), 0x2_0000);
    const UART: Result<Frame<16>, Error> = Frame::new(PhysAddr::new(0x900_0000));
    let (pages, uart) = (DEVICE.unwrap(), UART.unwrap());
    assert_eq!(Space::<arch::AArch64K64>::pages(pages.at(), 0x2_0000), Ok(pages));
    assert_eq!((pages.len(), uart.address()), (2, PhysAddr::new(0x900_0000)));
    assert_eq!(Span::covering(VirtAddr::new(0x8_0001), 0x1_0000), Ok(pages));
    assert_eq!(
        format!("{pages:?}, {uart:?}, {uart}"),
        "Span(2 pages at 0x80000), Frame(0x9000000), 0x9000000"
    );
    assert_eq!(Frame::<16>::new(PhysAddr::new(0x901_0000)).ok(), uart_next(uart));
}

fn uart_next(frame: Frame<16>) -> Option<Frame<16>> {
    Run { first: frame, len: 2, dirty: false }.frames().nth(1)
}
