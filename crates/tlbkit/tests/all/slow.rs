//! Walks by software that another CPU's change meets half-way, on a machine that broadcasts its flushes.
#![cfg(target_pointer_width = "64")]

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::host::{Host, Use, keep, run_as};
use tlbkit::{
    AddressSpace, Asid, Attr, Broadcast, CpuSet, Flush, Kernel, Mmu, Overdue, PageSize, Pages, Pfn, PhysAddr,
    Record, Run, VirtAddr, arch,
};

const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);

thread_local! {
    /// What this thread does at each load of an entry.
    static AT_LOAD: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

/// Calls `f` at each load of an entry by this thread while `walk` runs.
fn at_each_load<R>(f: impl FnMut() + 'static, walk: impl FnOnce() -> R) -> R {
    AT_LOAD.set(Some(Box::new(f)));
    let result = walk();
    AT_LOAD.set(None);
    result
}

/// The host, whose CPUs may take long in a walk by software, and whose kernel unwinds where it is told to.
struct Slow {
    host: Host<true>,
    /// `give_frame` unwinds once.
    unwinds: AtomicBool,
    /// `take_frame` calls `Mmu::reclaim` of this machine if there is no frame.
    short: OnceLock<&'static Mmu<Slow, 2>>,
    reclaims: AtomicUsize,
}

// SAFETY: the promises of the host. `memory` runs the test's code, which may wait, and does not unwind.
unsafe impl Kernel for Slow {
    type Machine = arch::Sv39;
    const BROADCAST: Option<Broadcast<Self>> = Some(|slow, flush, asid, cpus| {
        <Host<true> as Kernel>::BROADCAST.is_some_and(|broadcast| broadcast(&slow.host, flush, asid, cpus))
    });
    fn cpu(&self) -> usize {
        self.host.cpu()
    }
    fn take_frame(&self) -> Option<PhysAddr> {
        self.host.take_frame().or_else(|| {
            let mmu = self.short.get()?;
            self.reclaims.fetch_add(1, Ordering::Relaxed);
            let _ = mmu.reclaim();
            self.host.take_frame()
        })
    }
    fn give_frame(&self, frame: PhysAddr) {
        self.host.give_frame(frame);
        if self.unwinds.swap(false, Ordering::Relaxed) {
            resume_unwind(Box::new("the kernel unwinds"));
        }
    }
    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        if let Some(mut at_load) = AT_LOAD.take() {
            at_load();
            AT_LOAD.set(Some(at_load));
        }
        self.host.memory(frame)
    }
    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        self.host.record(frame)
    }
    fn release(&self, run: Run) {
        self.host.release(run);
    }
    fn flush(&self, flush: &Flush<'_>, asid: Option<Asid>) {
        self.host.flush(flush, asid);
    }
    fn interrupt(&self, cpus: CpuSet) {
        self.host.interrupt(cpus);
    }
    const PATIENCE: u32 = 1 << 12;
    fn overdue(&self, what: Overdue) {
        self.host.overdue(what);
    }
    fn pause(&self) {
        self.host.pause();
    }
    fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        self.host.masked(f)
    }
    fn load(&self, root: usize) {
        self.host.load(root);
    }
    fn unload(&self) {
        self.host.unload();
    }
}

type Space = AddressSpace<Slow, 2>;

fn machine() -> &'static Mmu<Slow, 2> {
    let mmu: &'static Mmu<Slow, 2> = Box::leak(Box::new(Mmu::new(Slow {
        host: Host::new(64, 2),
        unwinds: AtomicBool::new(false),
        short: OnceLock::new(),
        reclaims: AtomicUsize::new(0),
    })));
    keep(Box::new(mmu));
    mmu
}

/// An address space that both CPUs run; this thread is CPU 0.
fn on_both(mmu: &'static Mmu<Slow, 2>) -> Space {
    let space = Space::new(mmu).unwrap();
    for cpu in [1, 0] {
        run_as(cpu);
        space.activate().unwrap();
    }
    space
}

fn page(number: usize) -> Pages {
    Pages::one(VirtAddr::new(number << 12).vpn(PageSize::K4))
}

fn address(pages: Pages) -> VirtAddr {
    pages.first().address(PageSize::K4)
}

fn map(space: &Space, at: usize) -> Pfn {
    let frame = space.mmu().kernel().host.data(at as u64).unwrap();
    space.map(page(at), frame, RW).unwrap();
    frame
}

/// Runs `change` on CPU 0 while CPU 1 is in a lookup of `at`, before its load number `load`. The lookup goes on when the change has
/// ended, or waits. Returns what the lookup finds.
fn beside_a_lookup(space: &Space, at: Pages, load: usize, change: impl FnOnce()) -> Option<Pfn> {
    let host = &space.mmu().kernel().host;
    let pauses = host.pauses.load(Ordering::SeqCst);
    let state: &'static AtomicUsize = Box::leak(Box::new(AtomicUsize::new(0)));
    let mmu = space.mmu();
    std::thread::scope(|scope| {
        let walker = scope.spawn(move || {
            run_as(1);
            let mut loads = 0;
            let wait = move || {
                loads += 1;
                if loads == load {
                    state.store(1, Ordering::SeqCst);
                    while state.load(Ordering::SeqCst) != 2
                        && mmu.kernel().host.pauses.load(Ordering::SeqCst) == pauses
                    {
                        std::thread::yield_now();
                    }
                }
            };
            let found = at_each_load(wait, || space.lookup(address(at)));
            state.store(2, Ordering::SeqCst);
            found.map(|leaf| leaf.frame)
        });
        while state.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        change();
        state.store(2, Ordering::SeqCst);
        walker.join().unwrap()
    })
}

/// A move takes a node of pages as a whole. A lookup of the old place that is in the node finds what was there, or nothing; and not what
/// a later change maps at the new place.
#[test]
fn a_lookup_finds_no_page_that_was_never_at_its_address() {
    for load in 1..=4 {
        let mmu = machine();
        let host = &mmu.kernel().host;
        let space = on_both(mmu);
        let [old, _] = [512, 513].map(|at| map(&space, at));
        let other = host.data(9).unwrap();
        let node = Pages::count(page(512).first(), 512).unwrap();
        let found = beside_a_lookup(&space, page(512), load, || {
            assert_eq!(space.move_pages(node, address(page(2048))), Ok(2));
            space.replace(address(page(2048)), other, RW).unwrap();
        });
        assert!(
            found.is_none_or(|found| found == old),
            "load {load}: the page was never mapped to {other:?}"
        );
    }
}

/// Nodes of an earlier change go back while a later change ends. If the kernel unwinds meanwhile, the later change's frame is released
/// nevertheless.
#[test]
fn a_frame_is_released_though_an_earlier_node_unwinds() {
    let mmu = machine();
    let host = &mmu.kernel().host;
    let space = on_both(mmu);
    let [_, second, third] = [512, 2048, 2049].map(|at| map(&space, at));
    let _ = beside_a_lookup(&space, page(512), 2, || assert_eq!(space.unmap(page(512)), Ok(1)));
    run_as(0);
    assert_eq!(host.mappings(second), Use::Data(1));
    mmu.kernel().unwinds.store(true, Ordering::Relaxed);
    let unwound = catch_unwind(AssertUnwindSafe(|| space.unmap(page(2048))));
    assert!(unwound.is_err(), "a node of the first change waited, and was given back");
    assert_eq!(space.lookup(address(page(2048))), None);
    assert_eq!(host.mappings(second), Use::Free, "its page is unmapped, and nothing else has the frame");
    assert_eq!(host.mappings(third), Use::Data(1));
}

/// A kernel that is short of memory may ask for the nodes that wait where it takes a frame.
#[test]
fn a_kernel_reclaims_where_it_takes_a_frame() {
    let mmu = machine();
    let host = &mmu.kernel().host;
    assert!(mmu.kernel().short.set(mmu).is_ok());
    let space = on_both(mmu);
    let _ = map(&space, 512);
    let _ = beside_a_lookup(&space, page(512), 2, || assert_eq!(space.unmap(page(512)), Ok(1)));
    run_as(0);
    let frame = host.data(7).unwrap();
    host.allowance.store(0, Ordering::Relaxed);
    let used = host.in_use();
    // The allowance refuses all frames: the nodes go back, and the change fails as a whole.
    assert!(space.map(page(4096), frame, RW).is_err());
    assert!(mmu.kernel().reclaims.load(Ordering::Relaxed) > 0);
    assert!(host.in_use() < used, "the nodes that waited are given back");
    host.allowance.store(usize::MAX, Ordering::Relaxed);
    space.map(page(4096), frame, RW).unwrap();
}
