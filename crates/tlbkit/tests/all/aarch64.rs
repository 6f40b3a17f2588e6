//! The two halves of AArch64, each with a root of its own: a walker that goes by the Arm ARM alone finds what was mapped, at each
//! width and with each granule.
#![cfg(target_pointer_width = "64")]

use std::alloc::{Layout, alloc_zeroed};
use std::marker::PhantomData;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tlbkit::pagetable::Geometry;
use tlbkit::{
    Access, AddressSpace, Asid, Attr, Base, BasePage, CpuSet, Error, Fault, Flush, FrameOf, Kernel, Machine,
    Mmu, Overdue, PageSize, Pages, Pfn, PhysAddr, Record, Run, Store, VirtAddr, arch,
};
use tlbkit_witness::check::{Arch, check as judge};

const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);
/// The attributes of a kernel's page, the same in every address space.
const GLOBAL: Attr = Attr::READ.union(Attr::WRITE).union(Attr::GLOBAL);
const FRAMES: usize = 24;

/// Memory and a root register. Its first frame is `base`.
struct Plain<M> {
    pool: usize,
    base: usize,
    shift: u32,
    next: AtomicUsize,
    records: Vec<Record>,
    root: AtomicUsize,
    flushes: Mutex<Vec<Option<Asid>>>,
    /// What the CPU does, in the witness's lines.
    log: Mutex<Vec<String>>,
    machine: PhantomData<fn() -> M>,
}

impl<M: Machine> Plain<M> {
    fn new() -> Self {
        let shift = M::Geometry::BASE.shift();
        // SAFETY: the size is not zero.
        let pool = unsafe { alloc_zeroed(Layout::from_size_align(FRAMES << shift, 1 << shift).unwrap()) };
        Self {
            pool: pool.expose_provenance(),
            base: 1 << shift,
            shift,
            next: AtomicUsize::new(1 << shift),
            records: (0..FRAMES).map(|_| Record::new(0)).collect(),
            root: AtomicUsize::new(0),
            flushes: Mutex::default(),
            log: Mutex::default(),
            machine: PhantomData,
        }
    }

    fn say(&self, event: String) {
        self.log.lock().unwrap().push(format!("0 {event}"));
    }

    fn machine() -> &'static Mmu<Self> {
        Box::leak(Box::new(Mmu::new(Self::new())))
    }
}

// SAFETY: a frame is handed out once, and has memory and a record of its own. There is one CPU, which walks tables in `walk` alone.
unsafe impl<M: Machine> Kernel for Plain<M> {
    type Machine = M;

    fn cpu(&self) -> usize {
        0
    }

    fn take_frame(&self) -> Option<PhysAddr> {
        let frame = self.next.fetch_add(1 << self.shift, Ordering::Relaxed);
        (frame - self.base < FRAMES << self.shift).then_some(PhysAddr::new(frame))
    }

    fn give_frame(&self, frame: PhysAddr) {
        self.say(format!("node free {:#x} {:#x}", frame.get(), 1 << self.shift));
    }

    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.pool + frame.get() - self.base)
    }

    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        self.records.get((frame.get() - self.base) >> self.shift)
    }

    fn release(&self, run: Run<FrameOf<Self>>) {
        let at = AddressSpace::<Self>::address(run.first).get();
        self.say(format!("frame free {at:#x} {:#x}", run.len << self.shift));
    }

    fn flush(&self, flush: &Flush<'_>, asid: Option<Asid>) {
        self.flushes.lock().unwrap().push(asid);
        let of = asid.map_or(String::new(), |asid| format!(" asid {}", asid.get()));
        self.say("barrier dsb ishst".into());
        match flush.by_address() {
            Some(pages) => pages.for_each(|at| self.say(format!("fence va {:#x}{of}", at.get()))),
            None => self.say(format!("fence{of}")),
        }
        self.say("barrier dsb ish".into());
        self.say("barrier isb".into());
    }

    fn stored(&self, store: Store) {
        self.say(match store {
            Store::Word { at, value } => format!("write {at:#x} {value:#x}"),
            Store::Exchange { at, old, new } => format!("swap {at:#x} {old:#x} {new:#x}"),
            Store::Release => "barrier release".into(),
            Store::Fence => "barrier dsb ish".into(),
        });
    }

    fn interrupt(&self, _: CpuSet) {}

    fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        f()
    }

    fn load(&self, root: usize) {
        self.root.store(root, Ordering::Relaxed);
        self.say(format!("root {root:#x}"));
        self.say("barrier isb".into());
    }

    fn unload(&self) {
        self.say("root 0".into());
        self.say("barrier isb".into());
        self.say("barrier dsb nsh".into());
    }
}

/// Walks as DDI 0487, D8.2, says: from the root register's value, for `bits` significant bits of `at`, with a granule of `1 << granule`
/// bytes. Returns the physical address.
fn walk<M: Machine>(kernel: &Plain<M>, bits: u32, granule: u32, wide: bool, at: usize) -> Option<usize> {
    let root = kernel.root.load(Ordering::Relaxed);
    let high = if wide { (root >> 2 & 15) << 48 } else { 0 };
    let mut node = (root & ((1 << 48) - 1) & !0x3f) | high;
    let at_bits = at & ((1 << bits) - 1);
    // The last level resolves the bits from the granule's on, each level above it as many as a node has entries, the first the rest.
    let mut shift = granule;
    while shift + granule - 3 < bits {
        shift += granule - 3;
    }
    let mut top = bits - shift;
    loop {
        let index = at_bits >> shift & ((1 << top) - 1);
        let word: *const u64 = kernel.memory(PhysAddr::new(node)).cast_const().cast();
        // SAFETY: the node is a frame of the pool, and the index is one of its entries.
        let word = unsafe { *word.add(index) } as usize;
        if word & 1 == 0 {
            return None;
        }
        let next = match (wide, granule) {
            (false, _) => word & ((1 << 48) - 1) >> granule << granule,
            (true, 16) => (word & ((1 << 48) - 1) >> 16 << 16) | (word >> 12 & 15) << 48,
            (true, _) => (word & ((1 << 50) - 1) >> granule << granule) | (word >> 8 & 3) << 50,
        };
        if shift == granule || word & 2 == 0 {
            return Some(next | at & ((1 << shift) - 1));
        }
        (node, shift, top) = (next, shift - (granule - 3), granule - 3);
    }
}

/// Maps the first page, the last one and one in the middle of a half, and walks to each.
fn check<const BITS: u32, const GRANULE: u32, const RUNS: bool, const UPPER: bool, const WIDE: bool>()
where
    Base<GRANULE>: BasePage,
    arch::AArch64Of<BITS, GRANULE, RUNS, UPPER, WIDE>: Machine<Table = tlbkit::MultiLevel>,
{
    let page_of = AddressSpace::<Plain<arch::AArch64Of<BITS, GRANULE, RUNS, UPPER, WIDE>>>::page;
    let frame_of = |frame: usize| {
        let at = PhysAddr::new(frame << GRANULE);
        AddressSpace::<Plain<arch::AArch64Of<BITS, GRANULE, RUNS, UPPER, WIDE>>>::frame(at).unwrap()
    };
    let name = format!("{BITS} bits, granule of 2^{GRANULE}, upper {UPPER}, wide {WIDE}");
    let mmu = Plain::<arch::AArch64Of<BITS, GRANULE, RUNS, UPPER, WIDE>>::machine();
    let space = if UPPER { AddressSpace::kernels(mmu) } else { AddressSpace::new(mmu) }.unwrap();
    space.activate().unwrap();
    assert_eq!(arch::AArch64Of::<BITS, GRANULE, RUNS, UPPER, WIDE>::TSZ, 64 - u64::from(BITS));

    let granule = PageSize::from_shift(GRANULE).unwrap();
    let (first, last) = if UPPER { (usize::MAX << BITS, usize::MAX) } else { (0, (1 << BITS) - 1) };
    let attr = if UPPER { GLOBAL } else { RW };
    let pages = [first, first + (1 << (BITS - 1)), last - 3 * granule.bytes(), last];
    let frames = if WIDE { 1 << (52 - GRANULE) } else { 1 << (48 - GRANULE) };
    if WIDE {
        // Bits 51 to 48 of a root's address are in bits 5 to 2.
        let node = PhysAddr::new(0xa << 48 | 1 << GRANULE);
        let root = arch::AArch64Of::<BITS, GRANULE, RUNS, UPPER, WIDE>::root(node, Asid::default());
        assert_eq!(root, 1 << GRANULE | 0xa << 2);
    }
    for (at, frame) in pages.into_iter().zip([2, 3, 5, frames - 1]) {
        let page = VirtAddr::new(at).align_down(granule);
        space.map(page_of(page), frame_of(frame), attr).unwrap();
        let phys = frame << GRANULE | at & granule.mask();
        assert_eq!(walk(mmu.kernel(), BITS, GRANULE, WIDE, at), Some(phys), "{name}: {at:#x}");
        assert_eq!(space.translate(VirtAddr::new(at)), Some(PhysAddr::new(phys)), "{name}: {at:#x}");
        let leaf = space.lookup(VirtAddr::new(at)).unwrap();
        assert_eq!((leaf.at, leaf.frame), (page, frame_of(frame)), "{name}");
    }
    assert_eq!(walk(mmu.kernel(), BITS, GRANULE, WIDE, first + granule.bytes()), None, "{name}");

    // The addresses beside the half belong to no space.
    let outside = if UPPER { [first - 1, 0, 1 << 55] } else { [last + 1, usize::MAX, 1 << 55] };
    for at in outside.map(VirtAddr::new) {
        let page = page_of(at);
        assert!(matches!(space.map(page, frame_of(1), attr), Err(Error::OutOfRange { .. })), "{name}: {at}");
        assert!(matches!(space.unmap(page), Err(Error::OutOfRange { .. })), "{name}: {at}");
        assert_eq!(space.lookup(at), None, "{name}: {at}");
    }
    // A visit has them in order, with the addresses of the half.
    let mut visited = Vec::new();
    let (first, last) = (VirtAddr::new(first), VirtAddr::new(last));
    let all =
        AddressSpace::<Plain<arch::AArch64Of<BITS, GRANULE, RUNS, UPPER, WIDE>>>::pages_between(first, last)
            .unwrap();
    let _ = space.for_each(all, |leaf| {
        visited.push(leaf.at.get());
        std::ops::ControlFlow::Continue(())
    });
    assert_eq!(visited, pages.map(|at| at & !granule.mask()), "{name}");
    assert_eq!(space.unmap(all), Ok(pages.len()), "{name}");
    if UPPER {
        // The pages are the same in every address space: no flush names a number.
        assert!(mmu.kernel().flushes.lock().unwrap().iter().all(Option::is_none), "{name}");
        assert_eq!(AddressSpace::sharing(&space).unwrap_err(), Error::NothingLent, "{name}");
    } else {
        let refused = Err(Error::WrongAttr { attr: Attr::GLOBAL });
        assert_eq!(space.map(page_of(first), frame_of(2), GLOBAL), refused);
    }
}

/// Checks machines, of each of which an address space is compiled.
macro_rules! check {
    ($($bits:literal, $granule:literal, $wide:literal, $runs:literal, $upper:literal;)+) => {$(
        check::<$bits, $granule, $runs, $upper, $wide>();
    )+};
}

/// Each granule with the fewest and the most bits, and each number of bits: a granule in both halves, with and without runs.
#[test]
fn each_half_has_all_its_bits_and_a_root_of_its_own() {
    check! {
        36, 12, false, false, false; 39, 12, false, true, true; 42, 12, false, true, false; 47, 12, false, false, true;
        48, 12, false, true, false; 48, 12, true, false, true; 52, 12, true, true, false;
        36, 14, false, true, true; 47, 14, false, false, false; 52, 14, true, false, true;
        36, 16, false, false, true; 42, 16, false, true, false; 52, 16, true, true, true;
    }
}

/// All of them: `cargo xtask test --full`.
#[test]
#[cfg(tlbkit_full)]
fn each_half_of_each_machine_has_all_its_bits_and_a_root_of_its_own() {
    macro_rules! each {
        ($($bits:literal, $granule:literal, $wide:literal;)+) => {
            check! {$(
                $bits, $granule, $wide, false, false; $bits, $granule, $wide, false, true;
                $bits, $granule, $wide, true, false; $bits, $granule, $wide, true, true;
            )+}
        };
    }
    each! {
        36, 12, false; 39, 12, false; 42, 12, false; 47, 12, false; 48, 12, false; 48, 12, true; 52, 12, true;
        36, 14, false; 39, 14, false; 42, 14, false; 47, 14, false; 48, 14, false; 52, 14, true;
        36, 16, false; 39, 16, false; 42, 16, false; 47, 16, false; 48, 16, false; 52, 16, true;
    }
}

/// Faults of a machine, and what the checker of logs says of its changes, which reads the root as T0SZ says.
fn faults_and_log<const BITS: u32>(arch: Arch)
where
    arch::AArch64Of<BITS, 12>: Machine<Table = tlbkit::MultiLevel, Base = Base<12>>,
{
    let mmu = Plain::<arch::AArch64Of<BITS, 12>>::machine();
    let (space, kernel) = (AddressSpace::new(mmu).unwrap(), mmu.kernel());
    space.activate().unwrap();
    let page = |at: VirtAddr| Pages::one(at.vpn(PageSize::K4));
    let ends = [0, 1 << (BITS - 1), (1 << BITS) - 0x1000].map(VirtAddr::new);
    for (at, frame) in ends.into_iter().zip([0x80, 0x81, 0x82]) {
        assert_eq!(space.fault(at, Access::LOAD.by_user()), Ok(Fault::NotMapped), "{BITS} bits: {at}");
        space.map(page(at), Pfn::new(frame), Attr::READ | Attr::USER).unwrap();
        // Without FEAT_HAFDBS software sets the access flag.
        assert_eq!(space.fault(at, Access::LOAD.by_user()), Ok(Fault::Retry), "{BITS} bits: {at}");
        kernel.say(format!("access {:#x} load user {:#x}", at.get(), frame << 12));
        assert!(matches!(space.fault(at, Access::STORE.by_user()), Ok(Fault::NoRight(_))));
    }
    for wild in [1 << BITS, 1 << 47, usize::MAX].map(VirtAddr::new) {
        assert_eq!(space.fault(wild, Access::LOAD.by_user()), Ok(Fault::NotMapped), "{BITS} bits: {wild}");
    }
    for at in ends {
        space.unmap(page(at)).unwrap();
    }
    mmu.offline().unwrap();
    drop(space);
    let log = kernel.log.lock().unwrap().clone();
    let verdict = |arch, log: &[String]| judge(arch, &log.join("\n")).map(drop);
    assert!(verdict(arch, &log).is_ok(), "{BITS} bits: {:?}\n{}", verdict(arch, &log), log.join("\n"));
    // The log is one of this width, and the checker looks: without its fences it does not hold, nor as one of 48 bits.
    let unfenced: Vec<String> = log.iter().filter(|line| !line.contains("fence")).cloned().collect();
    assert!(verdict(arch, &unfenced).is_err(), "{BITS} bits");
    if BITS < 40 {
        assert!(verdict(Arch::Aarch64, &log).is_err(), "{BITS} bits");
    }
}

#[test]
fn faults_and_changes_of_39_and_42_bits() {
    faults_and_log::<39>(Arch::Aarch64B39);
    faults_and_log::<42>(Arch::Aarch64B42);
}

/// TTBR0_EL1 with T0SZ 16 translates 48 bits: user programs of Linux have their stack just below the end of them.
#[test]
fn the_last_page_of_the_lower_half() {
    let space = AddressSpace::new(Plain::<arch::AArch64>::machine()).unwrap();
    let last = VirtAddr::new(0xffff_ffff_f000);
    space.map(Pages::one(last.vpn(PageSize::K4)), Pfn::new(9), RW).unwrap();
    assert_eq!(space.lookup(last).unwrap().frame, Pfn::new(9));
    assert_eq!(arch::AArch64::TSZ, 16);
}

/// A wild address of a user program is a program's fault, which the kernel answers with a signal; it is no error of the kernel's call.
#[test]
fn a_fault_at_an_address_that_no_table_has() {
    let space = AddressSpace::new(Plain::<arch::AArch64>::machine()).unwrap();
    for wild in [0x1_0000_0000_0000, 0xdead_beef_0000_0000, usize::MAX] {
        let answer = space.edit(|edit| edit.fault(VirtAddr::new(wild), Access::LOAD.by_user()));
        assert!(matches!(answer, Ok(Fault::NotMapped)), "{wild:#x}: {answer:?}");
    }
}

/// The index of each memory type is that of its field in MAIR_EL1 (Arm ARM, D19.2, MAIR_EL1).
#[test]
fn a_page_of_a_device_names_a_field_of_mair_that_is_a_devices() {
    let mmu = Plain::<arch::AArch64>::machine();
    let space = AddressSpace::new(mmu).unwrap();
    space.activate().unwrap();
    for (page, (memory, field)) in [
        (Attr::empty(), 0xff),
        (Attr::UNCACHED, 0x44),
        (Attr::DEVICE, 0x04),
        (Attr::STRICT, 0x00),
        (Attr::GATHERED, 0x0c),
    ]
    .into_iter()
    .enumerate()
    {
        let at = VirtAddr::new(page << 12);
        space.map(Pages::one(at.vpn(PageSize::K4)), Pfn::new(9 + page), RW | memory).unwrap();
        // The last level's node is the fourth frame: the block, the root and two nodes come before it.
        let leaf: *const u64 = mmu.kernel().memory(PhysAddr::new(5 << 12)).cast_const().cast();
        // SAFETY: the frame is one of the pool.
        let index = unsafe { *leaf.add(page) } >> 2 & 7;
        assert_eq!(arch::AArch64::MAIR_EL1 >> (8 * index) & 0xff, field, "{memory:?}");
    }
}

/// A kernel author's own test, whose frames are the heap of a host, learns why there is no address space.
#[test]
fn a_frame_that_can_be_no_node_is_named() {
    fn beyond<M: Machine>() -> &'static Mmu<Plain<M>> {
        let (base, next) = (1 << 43, AtomicUsize::new(1 << 43));
        Box::leak(Box::new(Mmu::new(Plain { base, next, ..Plain::new() })))
    }
    let refused = Err(Error::FrameTooLarge { frame: Pfn::new(1 << 31) });
    assert_eq!(AddressSpace::new(beyond::<arch::AArch64>()).map(drop), refused);
    assert_eq!(AddressSpace::kernels(beyond::<arch::AArch64Upper>()).map(drop), refused);
}

/// Two CPUs with an `Mmu` for each half, both in one state.
mod halves {
    use std::cell::Cell;
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, OnceLock};

    use super::*;

    thread_local! {
        static CPU: Cell<usize> = const { Cell::new(0) };
    }

    type Lower = Half<arch::AArch64>;
    type Upper = Half<arch::AArch64Upper>;

    /// What each half calls to serve the other one.
    type Served = Arc<OnceLock<[Box<dyn Fn() + Send + Sync>; 2]>>;

    struct Half<M> {
        plain: Plain<M>,
        served: Served,
        /// Which of `served` a CPU that waits for this half calls.
        other: usize,
        waits: AtomicUsize,
    }

    impl<M: Machine> Half<M> {
        fn machine(served: &Served, other: usize) -> &'static Mmu<Self, 2> {
            let plain = Plain::new();
            let half = Self { plain, served: served.clone(), other, waits: AtomicUsize::new(0) };
            Box::leak(Box::new(Mmu::new(half)))
        }
    }

    // SAFETY: frames and records are those of `Plain`. A thread has one number.
    unsafe impl<M: Machine> Kernel for Half<M> {
        type Machine = M;

        fn cpu(&self) -> usize {
            CPU.get()
        }

        fn take_frame(&self) -> Option<PhysAddr> {
            self.plain.take_frame()
        }

        fn give_frame(&self, _: PhysAddr) {}

        fn memory(&self, frame: PhysAddr) -> *mut u8 {
            self.plain.memory(frame)
        }

        fn record(&self, frame: PhysAddr) -> Option<&Record> {
            self.plain.record(frame)
        }

        fn release(&self, _: Run<FrameOf<Self>>) {}

        fn flush(&self, _: &Flush<'_>, _: Option<Asid>) {}

        fn interrupt(&self, _: CpuSet) {}

        fn overdue(&self, _: Overdue) {}

        fn pause(&self) {
            let waits = self.waits.fetch_add(1, Ordering::Relaxed);
            assert!(waits < 1 << 24, "CPU {} waits for ever", CPU.get());
            if let Some(served) = self.served.get() {
                served[self.other]();
            }
            std::thread::yield_now();
        }

        fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
            f()
        }

        fn load(&self, _: usize) {}

        fn unload(&self) {}
    }

    /// A CPU changes the upper half inside edits of the lower half, while another one changes the lower half: each waits for the
    /// other's acknowledgement in another half, and serves the half in which it does not wait.
    #[test]
    fn a_cpu_that_waits_for_one_half_serves_the_other() {
        let served = Arc::new(OnceLock::new());
        let (lower, upper) = (Lower::machine(&served, 1), Upper::machine(&served, 0));
        let serve: [Box<dyn Fn() + Send + Sync>; 2] =
            [Box::new(|| lower.on_interrupt()), Box::new(|| upper.on_interrupt())];
        assert!(served.set(serve).is_ok());
        let (space, kernel) = (AddressSpace::new(lower).unwrap(), AddressSpace::kernels(upper).unwrap());
        let page = |at: usize| Pages::one(VirtAddr::new(at).vpn(PageSize::K4));
        let (joined, done) = (AtomicUsize::new(0), AtomicBool::new(false));
        let cpu = |number: usize| {
            CPU.set(number);
            space.activate().unwrap();
            kernel.activate().unwrap();
            joined.fetch_add(1, Ordering::SeqCst);
            while joined.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
            let (user, own) = (number << 21, usize::MAX << 47 | number << 21);
            // Neighbours that stay, so that no node comes and goes: this machine takes no frame back.
            space.map(page(user + 0x1000), Pfn::new(9), RW).unwrap();
            kernel.map(page(own + 0x1000), Pfn::new(9), GLOBAL).unwrap();
            let (user, own) = (page(user), page(own));
            for _ in 0..if cfg!(miri) { 4 } else { 400 } {
                space.map(user, Pfn::new(9), RW).unwrap();
                kernel.map(own, Pfn::new(9), GLOBAL).unwrap();
                if number == 0 {
                    space
                        .edit(|edit| {
                            kernel.unmap(own)?;
                            edit.unmap(user)
                        })
                        .unwrap();
                } else {
                    space.unmap(user).unwrap();
                    kernel.unmap(own).unwrap();
                }
            }
            // The CPUs answer each other until both are through.
            if joined.fetch_add(1, Ordering::SeqCst) == 3 {
                done.store(true, Ordering::SeqCst);
            }
            while !done.load(Ordering::SeqCst) {
                lower.on_interrupt();
                upper.on_interrupt();
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            for number in 0..2 {
                scope.spawn(move || cpu(number));
            }
        });
        assert!(lower.kernel().waits.load(Ordering::Relaxed) > 0, "no CPU waited");
        assert!(upper.kernel().waits.load(Ordering::Relaxed) > 0, "no CPU waited");
    }
}
