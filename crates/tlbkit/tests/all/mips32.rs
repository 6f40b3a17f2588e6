//! Address spaces on MIPS32: a CPU whose TLB is loaded by a refill handler, which `tlbkit-refill` assembles and interprets.
//! The handler walks the words that the address spaces have edited, in the same memory.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use tlbkit::pagetable::format::EntryLoCow;
use tlbkit::pagetable::geometry::Va32;
use tlbkit::{
    Access, AddressSpace, Asid, Attr, Change, Error, Fault, Flush, Guarded, Kernel, Mark, Mmu, MultiLevel,
    PageSize, Pages, Pfn, PhysAddr, Record, Run, Stopped, SupervisorPages, TableKind, VirtAddr, Vpn, arch,
};
use tlbkit_refill::features::Features;
use tlbkit_refill::handler::{Form, Front, Gpt, Handler, Mpt, Place, Root, Spec, Walk, Write};
use tlbkit_refill::interp::{self, Machine, Stop};

/// Where the arena begins, and its frames.
const RAM: usize = 0x10_0000;
const FRAMES: usize = 512;
const ASID: u64 = 0xff;
/// Where the handler keeps what it cannot keep in two registers.
const BLOCK: u32 = 0x8000_1000;

/// The handler of a kind of table.
trait Handled: TableKind<Va32, EntryLoCow> + Send + Sync {
    const ROOT: Root;
    const WALK: Walk;

    const SPEC: Spec = Spec {
        features: Features::R2,
        place: Place::VECTOR,
        block: BLOCK,
        root: Self::ROOT,
        front: Front::None,
        walk: Self::WALK,
        form: Form::SIZED,
        write: Write::Random,
    };
    const HANDLER: Handler = match Self::SPEC.assemble() {
        Ok(handler) => handler,
        Err(_) => panic!("the handler fits"),
    };
}

impl Handled for MultiLevel {
    const ROOT: Root = Root::ErrorEpc;
    const WALK: Walk = match Mpt::of::<Va32>() {
        Ok(walk) => Walk::Mpt(walk),
        Err(_) => panic!("two levels"),
    };
}

impl Handled for Guarded {
    const ROOT: Root = Root::Cell;
    const WALK: Walk = match Gpt::fixed::<Va32>(Guarded::WIDTH) {
        Ok(walk) => Walk::Gpt(walk),
        Err(_) => panic!("nodes of 16 slots"),
    };
}

#[repr(C, align(4096))]
struct Frame([AtomicU32; 1024]);

/// What the interpreter sees of memory: the vectors, the handler's block, and the arena.
struct Memory {
    block: Frame,
    arena: &'static [Frame],
    handler: &'static Handler,
}

impl Memory {
    fn cell(&self, at: u64) -> Option<&AtomicU32> {
        let at = usize::try_from(at).ok()?;
        let frame = match at.checked_sub(RAM) {
            Some(inside) => self.arena.get(inside / 4096)?,
            None if at >> 12 == (BLOCK as usize & 0x1fff_ffff) >> 12 => &self.block,
            None => return None,
        };
        Some(&frame.0[at % 4096 / 4])
    }
}

impl interp::Memory for Memory {
    fn load(&mut self, at: u64) -> Option<u32> {
        let code =
            |from: i32, words: &[u32]| words.get((at as usize).checked_sub(from as usize)? / 4).copied();
        let vectors =
            || code(Place::VECTOR.tail, self.handler.tail.words()).or(code(0, self.handler.refill.words()));
        self.cell(at).map(|cell| cell.load(Ordering::Relaxed)).or_else(vectors)
    }

    fn store(&mut self, at: u64, word: u32) -> bool {
        self.cell(at).map(|cell| cell.store(word, Ordering::Relaxed)).is_some()
    }
}

/// How a frame is used: not at all, by the kernel, or mapped so often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Free,
    Taken,
    Data(usize),
}

struct Host<T> {
    kind: PhantomData<T>,
    arena: &'static [Frame],
    records: &'static [Record],
    uses: Mutex<Vec<Use>>,
    cpu: Mutex<Machine<Memory, 16>>,
    /// Whether flushes are left out: what the test must notice.
    forgets: AtomicBool,
    dirty: AtomicUsize,
}

impl<T: Handled> Host<T> {
    fn machine() -> &'static Mmu<Self> {
        let frame = || Frame([const { AtomicU32::new(0) }; 1024]);
        let arena: Vec<Frame> = (0..FRAMES).map(|_| frame()).collect();
        let arena: &'static [Frame] = arena.leak();
        let mmu: &'static Mmu<Self> = Box::leak(Box::new(Mmu::new(Self {
            kind: PhantomData,
            arena,
            records: Vec::leak((0..FRAMES).map(|_| Record::new(0)).collect()),
            uses: Mutex::new(vec![Use::Free; FRAMES]),
            cpu: Mutex::new(Machine::new(
                T::SPEC.features,
                Memory { block: frame(), arena, handler: &T::HANDLER },
            )),
            forgets: AtomicBool::new(false),
            dirty: AtomicUsize::new(0),
        })));
        // A kernel has its machine in a static.
        static MACHINES: Mutex<Vec<&'static (dyn Send + Sync)>> = Mutex::new(Vec::new());
        MACHINES.lock().unwrap_or_else(|poison| poison.into_inner()).push(mmu);
        mmu
    }

    fn uses(&self) -> MutexGuard<'_, Vec<Use>> {
        self.uses.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    fn machine_cpu(&self) -> MutexGuard<'_, Machine<Memory, 16>> {
        self.cpu.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    fn index(frame: PhysAddr) -> usize {
        (frame.get() - RAM) / 4096
    }

    fn in_use(&self) -> usize {
        self.uses().iter().filter(|&&used| used != Use::Free).count()
    }

    /// Takes neighbouring frames for pages, aligned to as many.
    fn data(&self, count: usize) -> Pfn {
        let mut uses = self.uses();
        let is_free = |at: &usize| uses[*at..at + count].iter().all(|&used| used == Use::Free);
        let first = (0..FRAMES).step_by(count).find(is_free).expect("there is memory");
        uses[first..first + count].fill(Use::Data(1));
        Pfn::new(RAM / 4096 + first)
    }

    /// Returns the first word of a page's memory.
    fn word(&self, at: PhysAddr) -> &AtomicU32 {
        &self.arena[Self::index(at)].0[at.get() % 4096 / 4]
    }

    fn of_run(&self, run: Run, f: impl Fn(&mut usize) -> bool) {
        let first = run.first.get() - RAM / 4096;
        for used in &mut self.uses()[first..first + run.len] {
            let Use::Data(count) = used else { panic!("{used:?} is no page") };
            if f(count) {
                *used = Use::Free;
            }
        }
    }
}

// SAFETY: frames are the arena's, each handed out once until it is given back, at a fixed address; records are an array
// beside it. One thread is the CPU. The TLB is the interpreter's, which walks while `access` has it and not otherwise.
unsafe impl<T: Handled> Kernel for Host<T> {
    type Machine = arch::Mips32<T>;

    fn cpu(&self) -> usize {
        0
    }

    fn take_frame(&self) -> Option<PhysAddr> {
        let mut uses = self.uses();
        let free = uses.iter().rposition(|&used| used == Use::Free)?;
        uses[free] = Use::Taken;
        Some(PhysAddr::new(RAM + free * 4096))
    }

    fn give_frame(&self, frame: PhysAddr) {
        let was = std::mem::replace(&mut self.uses()[Self::index(frame)], Use::Free);
        assert_eq!(was, Use::Taken, "{frame} is given back");
    }

    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        self.arena[Self::index(frame)].0.as_ptr().cast_mut().cast()
    }

    fn user_memory<R>(&self, frame: PhysAddr, access: impl FnOnce(*mut u8) -> R) -> Option<R> {
        let used = *self.uses().get(frame.get().checked_sub(RAM)? / 4096)?;
        matches!(used, Use::Data(_)).then(|| access(self.memory(frame)))
    }

    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        self.records.get(Self::index(frame))
    }

    fn share(&self, run: Run) {
        self.of_run(run, |count| {
            *count += 1;
            false
        });
    }

    fn release(&self, run: Run) {
        self.dirty.fetch_add(usize::from(run.dirty), Ordering::Relaxed);
        self.of_run(run, |count| {
            *count -= 1;
            *count == 0
        });
    }

    fn flush(&self, flush: &Flush<'_>, asid: Option<Asid>) {
        if self.forgets.load(Ordering::Relaxed) {
            return;
        }
        let mut cpu = self.machine_cpu();
        let Some(asid) = asid else { return cpu.tlb.flush() };
        let pages: Option<Vec<u64>> =
            flush.by_address_up_to(32).map(|pages| pages.map(|at| at.get() as u64).collect());
        cpu.tlb.retain(|entry| {
            let covers = |at: &u64| (entry.hi ^ at) & !0x1fff & !entry.page_mask == 0;
            let named = pages.as_ref().is_none_or(|pages| pages.iter().any(covers));
            !(named && entry.hi & ASID == u64::from(asid.get()))
        });
    }

    fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        f()
    }

    fn load(&self, root: usize) {
        let mut cpu = self.machine_cpu();
        cpu.cp0.entry_hi = root as u64 & ASID;
        // As `mtc0` extends it.
        cpu.cp0.error_epc = u64::from(0x8000_0000 | root as u32 & !0xfff) | !0xffff_ffff;
    }

    fn unload(&self) {
        self.machine_cpu().cp0.entry_hi = 0;
    }

    fn asid_bits(&self) -> u32 {
        // Few, so that they begin anew.
        3
    }
}

const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);

fn page(number: usize) -> Pages {
    Pages::one(Vpn::new(number))
}

fn at(page: usize) -> VirtAddr {
    VirtAddr::new(page * 4096)
}

/// Gives a process a copy of its own of a page that others may have.
fn unshare<T: Handled>(space: &AddressSpace<Host<T>>, number: usize) -> Result<(), Error> {
    let host = space.mmu().kernel();
    let copy = |from: Pfn| {
        let frame = host.data(1);
        let word = |frame: Pfn| host.word(PhysAddr::new(frame.get() * 4096));
        word(frame).store(word(from).load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(frame)
    };
    space.unshare(at(number), |_| false, copy)
}

/// A load or store of the running program's, with the kernel's page-fault handler behind it.
fn access<T: Handled>(space: &AddressSpace<Host<T>>, number: usize, store: bool) -> Result<PhysAddr, Fault> {
    let host = space.mmu().kernel();
    let (what, how) = if store {
        (interp::Access::Store, Access::STORE.by_user())
    } else {
        (interp::Access::Load, Access::LOAD.by_user())
    };
    for _ in 0..4 {
        let met = {
            let mut cpu = host.machine_cpu();
            let met = cpu.settle(at(number).get() as u64, what);
            cpu.cp0.status = 0;
            met
        };
        match met {
            Ok(phys) => return Ok(PhysAddr::new(phys as usize)),
            Err(Stop::Reached) => {}
            Err(stop) => panic!("{stop:?}"),
        }
        match space.fault(at(number), how).unwrap() {
            Fault::Retry => {}
            Fault::CopyOnWrite(_) => unshare(space, number).unwrap(),
            other => return Err(other),
        }
    }
    // It faults for ever.
    Err(Fault::Retry)
}

#[test]
fn a_program_sees_what_is_mapped_until_it_is_unmapped() {
    see_and_unmap::<MultiLevel>();
    see_and_unmap::<Guarded>();
}

#[test]
fn a_page_goes_out_and_comes_back() {
    mark_and_fill::<MultiLevel>();
    mark_and_fill::<Guarded>();
}

fn mark_and_fill<T: Handled>() {
    let mmu = Host::<T>::machine();
    let space = AddressSpace::new(mmu).unwrap();
    space.activate().unwrap();
    let frames = [1, 2].map(|number| mmu.kernel().data(number));
    space.map(page(5), frames[0], RW).unwrap();
    assert!(access(&space, 5, false).is_ok());
    let leaf = space.freeze(at(5)).unwrap();
    assert_eq!(leaf.frame, frames[0]);
    space.page_out(at(5), leaf.frame, 77).unwrap();
    mmu.kernel().release(Run { first: leaf.frame, len: 1, dirty: false });
    assert_eq!(access(&space, 5, false), Err(Fault::Swapped(77)));
    // What it may do changes while it is out, and it comes back with that.
    assert!(matches!(space.entry(at(5)).mark(), Some(Mark::Payload(77, attr)) if attr.contains(Attr::WRITE)));
    assert_eq!(space.protect(page(5), Change::READ_ONLY), Ok(0));
    let late = mmu.kernel().data(1);
    assert_eq!(space.fill(at(5), 78, late), Err(Error::Changed { at: at(5) }));
    assert_eq!(mmu.kernel().uses()[late.get() - RAM / 4096], Use::Free, "it is released");
    space.fill(at(5), 77, frames[1]).unwrap();
    assert!(!space.lookup(at(5)).unwrap().attr.contains(Attr::WRITE));
    assert_eq!(access(&space, 5, false), Ok(PhysAddr::new(frames[1].get() * 4096)));
    space.unmap(page(5)).unwrap();
    mmu.idle().unwrap();
}

#[test]
fn the_kernel_copies_and_looks_through_ranges() {
    copy_and_look::<MultiLevel>();
    copy_and_look::<Guarded>();
}

fn copy_and_look<T: Handled>() {
    let mmu = Host::<T>::machine();
    let host = mmu.kernel();
    let space = AddressSpace::new(mmu).unwrap();
    let before = host.in_use();
    let pages = |first: usize, count: usize| Pages::count(Vpn::new(first), count).unwrap();
    let handler = |space: &AddressSpace<Host<T>>, at: VirtAddr, access: Access| {
        match space.fault(at, access)? {
            Fault::Retry => {}
            Fault::NotMapped if at.get() < 1 << 20 => {
                space.map_with(Pages::one(at.vpn(PageSize::K4)), RW, |_| {
                    let frame = host.data(1);
                    mmu.clear_frame(frame).map(|()| frame)
                })?;
            }
            Fault::CopyOnWrite(_) => {
                let copy = |of| {
                    let frame = host.data(1);
                    mmu.copy_frame(of, frame).map(|()| frame)
                };
                space.unshare(at, |_| false, copy)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    };
    let mut read = [0xff; 7];
    assert_eq!(space.copy_to_user(VirtAddr::new(0x5fff), &[1, 2, 3, 4, 5, 6, 7], handler), Ok(()));
    let child = space.fork(SupervisorPages::LeftOut).unwrap();
    assert_eq!(child.copy_to_user(VirtAddr::new(0x6001), &[9], handler), Ok(()));
    assert_eq!(child.copy_from_user(VirtAddr::new(0x5fff), &mut read, handler), Ok(()));
    assert_eq!(read, [1, 2, 9, 4, 5, 6, 7]);
    assert_eq!(space.copy_from_user(VirtAddr::new(0x5fff), &mut read, handler), Ok(()));
    assert_eq!(read, [1, 2, 3, 4, 5, 6, 7]);
    let stopped = Err(Stopped { copied: 1, error: None });
    space.map(page(0xff), host.data(1), Attr::READ | Attr::USER).unwrap();
    assert_eq!(space.copy_from_user(VirtAddr::new(0xf_ffff), &mut read, handler), stopped);
    drop(child);

    // What is in use, in pages that are far apart.
    space.mark_pages(pages(0x400, 3), Mark::Guard).unwrap();
    let all = pages(0, 1 << 19);
    let used = |first: usize, count: usize| space.first_used(pages(first, count));
    let hole = |first: usize, count: usize| space.first_hole(pages(first, count));
    assert_eq!((space.first_used(all), space.first_hole(all)), (Ok(Some(at(5))), Ok(Some(at(0)))));
    assert_eq!((used(7, 0xf8), used(7, 0x800)), (Ok(None), Ok(Some(at(0xff)))));
    assert_eq!((used(0x401, 1), used(0x403, 0x1000)), (Ok(Some(at(0x401))), Ok(None)));
    assert_eq!((hole(5, 2), hole(5, 3), hole(0x400, 3)), (Ok(None), Ok(Some(at(7))), Ok(None)));
    assert_eq!(space.mark_pages(pages(0x402, 2), Mark::Guard), Err(Error::Marked { at: at(0x402) }));
    let none = Err(Error::NotMapped { at: at(7) });
    assert_eq!(
        (space.protect_whole(pages(5, 3), Change::READ_ONLY), space.unmap_whole(pages(5, 3))),
        (none, none)
    );
    assert_eq!((space.unmap_whole(pages(5, 2)), space.unmap_whole(pages(0x400, 3))), (Ok(2), Ok(0)));
    assert_eq!(space.unmap(all), Ok(1));
    assert_eq!(space.first_used(all), Ok(None));
    // Memory is short for the nodes.
    let take = |_: VirtAddr| {
        if host.in_use() < FRAMES { Ok(host.data(1)) } else { Err(Error::NoMemory { wanted: 1, pending: 0 }) }
    };
    let mut rest = Vec::new();
    while let Some(frame) = host.take_frame() {
        rest.push(frame);
    }
    host.give_frame(rest.pop().unwrap());
    assert!(matches!(space.map_with(pages(0x3ff, 2), RW, take), Err(Error::NoMemory { .. })));
    rest.into_iter().for_each(|frame| host.give_frame(frame));
    assert_eq!((space.first_used(all), host.in_use()), (Ok(None), before));
}

const ACCESS: Attr = Attr::READ.union(Attr::WRITE).union(Attr::EXEC);

#[test]
fn a_closed_page_keeps_its_frame_and_faults() {
    close_and_open::<MultiLevel>();
    close_and_open::<Guarded>();
}

fn close_and_open<T: Handled>() {
    let mmu = Host::<T>::machine();
    let space = AddressSpace::new(mmu).unwrap();
    space.activate().unwrap();
    let k16 = PageSize::from_shift(14).unwrap();
    // Pages of 4 KiB, and two of 16 KiB, which are one TLB entry.
    let small = mmu.kernel().data(1);
    space.map(page(5), small, RW).unwrap();
    let large = mmu.kernel().data(8);
    let all = Pages::count(Vpn::new(1024), 8).unwrap();
    space.edit(|edit| edit.map_sized(all, large, k16, RW)).unwrap();
    let own = |frame: Pfn, page: usize| Ok(PhysAddr::new((frame.get() + page) * 4096));
    for number in [5, 1024, 1028] {
        let count = if number == 5 { 1 } else { 4 };
        let part = Pages::count(Vpn::new(number), count).unwrap();
        let frame = if number == 5 { small } else { Pfn::new(large.get() + number - 1024) };
        let last = number + count - 1;
        assert_eq!(
            (access(&space, number, true), access(&space, last, true)),
            (own(frame, 0), own(frame, count - 1))
        );
        assert_eq!(space.protect(part, Change::clear(ACCESS)), Ok(count));
        for (page, store) in [(number, false), (number, true), (last, false)] {
            let fault = access(&space, page, store);
            // The frame of its own page.
            let own = Pfn::new(frame.get() + page - number);
            assert!(matches!(fault, Err(Fault::Closed(leaf)) if leaf.frame == own), "{page:#x}: {fault:?}");
        }
        assert_eq!(space.lookup(at(number)).unwrap().attr, Attr::USER | Attr::DIRTY);
        // The other half of the pair is what it was.
        for page in [1024, 1028].into_iter().filter(|&page| number != 5 && page != number) {
            assert_eq!(access(&space, page, true), own(large, page - 1024));
        }
        assert_eq!(space.protect(part, Change::set(Attr::READ)), Ok(count));
        assert_eq!(access(&space, last, false), own(frame, count - 1));
        assert!(matches!(access(&space, last, true), Err(Fault::NoRight(_))));
        assert_eq!(space.protect(part, Change::set(Attr::WRITE)), Ok(count));
        assert_eq!(access(&space, number, true), own(frame, 0));
    }
    // So it is in a copy.
    assert_eq!(space.protect(all, Change::clear(ACCESS)), Ok(8));
    let child = space.fork(SupervisorPages::LeftOut).unwrap();
    child.activate().unwrap();
    assert!(
        matches!(access(&child, 1026, false), Err(Fault::Closed(leaf)) if leaf.frame.get() == large.get() + 2)
    );
    mmu.idle().unwrap();
    drop((space, child));
    assert_eq!(mmu.kernel().in_use(), 0);
}

fn see_and_unmap<T: Handled>() {
    let mmu = Host::<T>::machine();
    let space = AddressSpace::new(mmu).unwrap();
    space.activate().unwrap();
    assert_eq!(access(&space, 5, false), Err(Fault::NotMapped));
    let frame = mmu.kernel().data(1);
    space.map(page(5), frame, RW).unwrap();
    let phys = PhysAddr::new(frame.get() * 4096);
    assert_eq!(access(&space, 5, false), Ok(phys));
    // The first store is a TLB Modified exception, which makes the page dirty; the second one is not.
    assert!(!space.lookup(at(5)).unwrap().attr.contains(Attr::DIRTY));
    assert_eq!(access(&space, 5, true), Ok(phys));
    assert!(space.lookup(at(5)).unwrap().attr.contains(Attr::DIRTY));
    let before = mmu.kernel().machine_cpu().counts.exceptions;
    assert_eq!(access(&space, 5, true), Ok(phys));
    assert_eq!(mmu.kernel().machine_cpu().counts.exceptions, before, "the handler has loaded it");
    space.protect(page(5), Change::clear(Attr::WRITE)).unwrap();
    assert!(matches!(access(&space, 5, true), Err(Fault::NoRight(_))));
    space.unmap(page(5)).unwrap();
    assert_eq!(access(&space, 5, false), Err(Fault::NotMapped));
    assert_eq!(mmu.kernel().dirty.load(Ordering::Relaxed), 1);
    mmu.idle().unwrap();
    drop(space);
    assert_eq!(mmu.kernel().in_use(), 0);
}

#[test]
fn a_handler_needs_as_many_instructions_as_for_a_table_of_its_own() {
    assert_eq!(first_refill::<MultiLevel>(), 17);
    // One page: no node is on the way to its leaf.
    assert_eq!(first_refill::<Guarded>(), 16);
}

/// Returns the instructions of a refill, with a page in the table that misses.
fn first_refill<T: Handled>() -> u64 {
    let mmu = Host::<T>::machine();
    let space = AddressSpace::new(mmu).unwrap();
    space.map(page(5), mmu.kernel().data(1), RW).unwrap();
    space.activate().unwrap();
    assert!(access(&space, 5, false).is_ok());
    let spent = mmu.kernel().machine_cpu().counts.instructions;
    mmu.idle().unwrap();
    spent
}

#[test]
fn a_guarded_table_takes_a_part_of_a_frame() {
    assert_eq!(frames_of_small_spaces::<MultiLevel>(), 300);
    assert_eq!(frames_of_small_spaces::<Guarded>(), 101);
}

/// Returns how many frames a hundred address spaces take that have one page each.
fn frames_of_small_spaces<T: Handled>() -> usize {
    let mmu = Host::<T>::machine();
    let host = mmu.kernel();
    let frame = host.data(1);
    let before = host.in_use();
    let spaces: Vec<_> = (0..100)
        .map(|number| {
            let space = AddressSpace::new(mmu).unwrap();
            host.share(Run { first: frame, len: 1, dirty: false });
            space.map(page(number), frame, RW).unwrap();
            space
        })
        .collect();
    let taken = host.in_use() - before;
    drop(spaces);
    assert_eq!(host.in_use(), before);
    taken
}

/// A process as it should be: what each of its pages holds, whether it may be written, and whether it is closed.
#[derive(Clone, Default)]
struct Model(BTreeMap<usize, (u32, bool, bool)>);

/// Random operations of up to four processes. Returns what was wrong first.
fn drive<T: Handled>(mmu: &'static Mmu<Host<T>>, rounds: usize) -> Result<(), String> {
    const PAGES: usize = 48;
    let host = mmu.kernel();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |end: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) as usize % end
    };
    let new = || (AddressSpace::new(mmu).unwrap(), Model::default());
    let mut all = vec![new()];
    let mut runs = 0;
    all[0].0.activate().unwrap();
    // Pages on both sides of where a root slot ends.
    let place = |page: usize| 1024 - PAGES / 2 + page;
    for round in 0..rounds {
        let value = round as u32 + 1;
        let (number, len) = (place(below(PAGES - 4)), 1 + below(4));
        let part = Pages::count(Vpn::new(number), len).unwrap();
        let (space, model) = &mut all[runs];
        let fill = |frame: Pfn, len: usize| {
            (0..len).for_each(|page| {
                host.word(PhysAddr::new((frame.get() + page) * 4096)).store(value, Ordering::Relaxed);
            });
        };
        match below(16) {
            0..3 => {
                // One page of its size, or small ones.
                let len = if number % 4 == 0 && below(2) == 0 { 4 } else { 1 };
                let size = PageSize::from_shift(if len == 4 { 14 } else { 12 }).unwrap();
                let part = Pages::count(Vpn::new(number), len).unwrap();
                let is_free = (number..number + len).all(|page| !model.0.contains_key(&page));
                let frame = host.data(len);
                fill(frame, len);
                let write = below(4) > 0;
                let attr = if write { RW } else { Attr::READ | Attr::USER };
                let done = space.edit(|edit| edit.map_sized(part, frame, size, attr));
                if done.is_ok() != is_free {
                    return Err(format!("round {round}: map is {done:?}"));
                }
                if is_free {
                    model.0.extend((number..number + len).map(|page| (page, (value, write, false))));
                } else {
                    host.release(Run { first: frame, len, dirty: false });
                }
            }
            3..5 => {
                space.unmap(part).unwrap();
                (number..number + len).for_each(|page| model.0.retain(|&at, _| at != page));
            }
            5 => {
                space.protect(part, Change::clear(Attr::WRITE | Attr::COPY_ON_WRITE)).unwrap();
                for page in number..number + len {
                    if let Some((_, write, _)) = model.0.get_mut(&page) {
                        *write = false;
                    }
                }
            }
            9 => {
                // Closed, or opened for loads.
                let close = below(2) == 0;
                let clear = Change::clear(ACCESS | Attr::COPY_ON_WRITE);
                space.protect(part, if close { clear } else { Change::set(Attr::READ) }).unwrap();
                for page in number..number + len {
                    if let Some((_, write, closed)) = model.0.get_mut(&page) {
                        (*write, *closed) = (*write && !close, close);
                    }
                }
            }
            6 => {
                // The parent, or another one, goes where there are too many.
                let child = (space.fork(SupervisorPages::LeftOut).unwrap(), model.clone());
                if all.len() == 4 {
                    all[below(4)] = child;
                } else {
                    all.push(child);
                }
                runs = below(all.len());
                all[runs].0.activate().unwrap();
            }
            7..9 => {
                runs = below(all.len());
                all[runs].0.activate().unwrap();
            }
            _ => {
                for (page, store) in (number..number + len).zip([true, false, false, true]) {
                    let (expected, met) = (model.0.get(&page).copied(), access(space, page, store));
                    let found = met.map(|at| host.word(at));
                    match (expected, found) {
                        (Some((_, true, _)), Ok(word)) if store => {
                            word.store(value, Ordering::Relaxed);
                            model.0.insert(page, (value, true, false));
                        }
                        (Some((_, _, true)), Err(Fault::Closed(_))) => {}
                        (Some((_, false, false)), Err(Fault::NoRight(_))) if store => {}
                        (Some((held, _, false)), Ok(word))
                            if !store && word.load(Ordering::Relaxed) == held => {}
                        (None, Err(Fault::NotMapped)) => {}
                        _ => return Err(format!("round {round}: page {page} of {runs} is wrong")),
                    }
                }
            }
        }
    }
    mmu.idle().unwrap();
    drop(all);
    if host.in_use() == 0 { Ok(()) } else { Err(format!("{} frames are leaked", host.in_use())) }
}

#[test]
fn processes_see_their_own_memory_whatever_the_kernel_does() {
    let rounds = if cfg!(miri) { 300 } else { 20_000 };
    assert_eq!(drive(Host::<MultiLevel>::machine(), rounds), Ok(()));
    assert_eq!(drive(Host::<Guarded>::machine(), rounds), Ok(()));
}

#[test]
fn without_flushes_they_do_not() {
    is_found::<MultiLevel>();
    is_found::<Guarded>();
}

fn is_found<T: Handled>() {
    let mmu = Host::<T>::machine();
    mmu.kernel().forgets.store(true, Ordering::Relaxed);
    assert!(drive(mmu, 20_000).is_err());
}
