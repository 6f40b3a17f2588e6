//! The kernel, as `tlbkit` needs it. Nothing else is `unsafe` here but what is in `arch`, `witness` and `own`.

use core::sync::atomic::{AtomicBool, Ordering};

use spin::RelaxStrategy;
use tlbkit::{
    AddressSpace, Asid, Attr, Broadcast, CpuSet, Deferred, Error, Flush, Kernel, Mmu, Overdue, PageSize,
    Pages, Pfn, PhysAddr, Place, Record, Run, Store, VirtAddr, Walking,
};

use crate::arch::CPUS;
use crate::disk::Slot;
use crate::report::{Count, REPORT};
use crate::words::Words;
use crate::{arch, costs, faults, frames, time, witness};

pub(crate) type Space = AddressSpace<Machine, CPUS>;

/// The machine that the kernel runs on.
pub(crate) struct Machine;

pub(crate) static MMU: Mmu<Machine, CPUS> = Mmu::new(Machine);

/// Where frames and nodes wait after an unmap that interrupts nobody, and whether programs' unmaps are such.
static DEFERRED: Deferred<[Place; 64]> = Deferred::new();
static DEFERS: AtomicBool = AtomicBool::new(false);

/// Defers the unmaps that programs ask for from now on.
pub(crate) fn defer() {
    DEFERS.store(true, Ordering::Relaxed);
}

/// Tells whether a program may find pages that it has unmapped for a while.
pub(crate) fn defers() -> bool {
    DEFERS.load(Ordering::Relaxed)
}

/// Unmaps pages that a program gives back for good.
pub(crate) fn give_back(space: &Space, pages: Pages) -> Result<usize, Error> {
    if defers() { space.unmap_deferred(pages) } else { witness::lowering(pages, || space.unmap(pages)) }
}

/// Frames for the nodes and control blocks of address spaces. The frames of user pages are others, so that nothing but
/// `tlbkit` reaches what is in these.
const NODES: usize = if costs::LONGEST { 8192 } else { 2048 };
static TABLES: [Words; NODES] = [const { Words::new() }; NODES];
static RECORDS: [Record; NODES] = [const { Record::new(0) }; NODES];
static FREE: Lock<heapless::Vec<u16, NODES>> = Lock::new(heapless::Vec::new());

fn number(frame: PhysAddr) -> usize {
    (frame.get() >> PageSize::K4.shift()).wrapping_sub(TABLES[0].frame().get())
}

// SAFETY: a frame of `FREE` is one of `TABLES`, which nothing else uses; its number is in `FREE` once, or its owner has
// it. The kernel's memory is where it is in every address space, so `memory` is its address. A record is in the array
// beside it. User memory is that of `frames`, and never anything else; all code accesses its words atomically. `arch` numbers CPUs from 0 on, and starts none from `CPUS` on. The fences of `arch` end what the CPU has walked,
// and order stores before them. The root is loaded at once. Nothing that is called here unwinds, or looks anything up.
unsafe impl Kernel for Machine {
    type Machine = arch::Machine;

    fn cpu(&self) -> usize {
        arch::cpu()
    }

    fn deferred(&self) -> Option<&Deferred> {
        if CPUS == 1 { None } else { Some(&DEFERRED) }
    }

    fn take_frame(&self) -> Option<PhysAddr> {
        let frame = FREE.lock().pop()?;
        let frame = TABLES[usize::from(frame)].frame().address(PageSize::K4);
        witness::node(frame, false);
        Some(frame)
    }

    fn give_frame(&self, frame: PhysAddr) {
        witness::node(frame, true);
        // There is room: it has all of them.
        let _ = FREE.lock().push(number(frame) as u16);
    }

    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        let first = TABLES[0].frame().address(PageSize::K4);
        TABLES.as_ptr().cast_mut().cast::<u8>().wrapping_add(frame.get().wrapping_sub(first.get()))
    }

    fn user_memory<R>(&self, frame: PhysAddr, access: impl FnOnce(*mut u8) -> R) -> Option<R> {
        frames::memory(frame.pfn(PageSize::K4)).map(access)
    }

    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        RECORDS.get(number(frame))
    }

    fn share(&self, run: Run) {
        run.frames().for_each(frames::share);
    }

    fn release(&self, run: Run) {
        run.frames().for_each(|frame| frames::release(frame, run.dirty));
    }

    fn share_payload(&self, payload: u64) {
        Slot::of(payload).share();
    }

    fn release_payload(&self, payload: u64) {
        Slot::of(payload).release();
    }

    fn flush(&self, flush: &Flush<'_>, asid: Option<Asid>) {
        if faults::leaves_out_flush() {
            return;
        }
        // Without ASIDs an address is one of the address space that runs here, or of all.
        let asid = asid.map(Asid::get).or((arch::ASID_BITS == 0).then_some(0));
        arch::before_fences();
        match (asid, flush.by_address()) {
            (Some(asid), Some(pages)) => {
                pages.for_each(|at| arch::fence(at.get(), asid));
            }
            (Some(asid), None) => arch::fence_asid(asid),
            (None, _) => arch::fence_all(),
        }
        arch::after_fences();
    }

    const BROADCAST: Option<Broadcast<Self>> =
        if arch::BROADCAST.is_some() { Some(Self::broadcast) } else { None };

    fn interrupt(&self, cpus: CpuSet) {
        REPORT.add(Count::Shootdowns, 1);
        REPORT.add(Count::Interrupts, cpus.into_iter().count());
        arch::interrupt(cpus.into_iter().fold(0, |mask, cpu| mask | 1 << cpu));
    }

    /// A minute and more.
    const PATIENCE: u32 = 60_000;

    fn overdue(&self, what: Overdue) {
        panic!("CPU {} waits for ever: {what:?}", arch::cpu());
    }

    fn pause(&self) {
        time::pause();
        // An interrupt that stands would end the next pause at once. What it was sent for is looked for after each.
        arch::take_interrupt();
    }

    fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        costs::masked(|| arch::masked(f))
    }

    fn stored(&self, store: Store) {
        witness::stored(store);
    }

    fn walking(&self, walk: Walking) {
        witness::walking(walk);
    }

    fn load(&self, root: usize) {
        // SAFETY: an address space of this kernel's shares the kernel's half.
        unsafe { arch::set_root(root) }
    }

    fn unload(&self) {
        // SAFETY: memory is where it was, without translation or by the root that the CPU has booted with.
        unsafe { arch::set_root(0) }
    }

    fn asid_bits(&self) -> u32 {
        arch::ASID_BITS
    }
}

impl Machine {
    /// Flushes the TLBs of all CPUs, where an instruction does that.
    fn broadcast(&self, flush: &Flush<'_>, asid: Option<Asid>, _cpus: CpuSet) -> bool {
        let done =
            arch::BROADCAST.is_some_and(|broadcast| faults::leaves_out_flush() || broadcast(flush, asid));
        REPORT.add(Count::Shootdowns, usize::from(done));
        done
    }
}

/// Serves the shootdowns that other CPUs ask for. A CPU calls it when it is interrupted, and while it waits for a lock.
pub(crate) fn on_interrupt() {
    arch::take_interrupt();
    faults::asked(|| MMU.on_interrupt());
}

/// A lock. A CPU that waits for it serves shootdowns, because the holder may change an address space; only a holder of a lock that the
/// methods of [`Machine`] take changes none.
pub(crate) type Lock<T> = spin::mutex::Mutex<T, Serving>;

/// How a CPU waits for such a lock.
pub(crate) struct Serving;

impl RelaxStrategy for Serving {
    fn relax() {
        time::pause();
        on_interrupt();
    }
}

/// Where the kernel has no pages of `tlbkit`'s, neither its memory nor [what it maps for itself](crate::own), its own address space lends
/// nothing.
#[cfg(not(feature = "guarded"))]
fn lends() -> bool {
    arch::MAPPED_LEN != 0 || crate::own::wanted()
}

#[cfg(not(feature = "guarded"))]
fn lending(pages: Pages) -> Result<Space, Error> {
    if lends() { Space::lending(&MMU, [pages]) } else { Space::new(&MMU) }
}

/// Guarded tables lend nothing. Where they are, the kernel's memory needs no table.
#[cfg(feature = "guarded")]
fn lending(_pages: Pages) -> Result<Space, Error> {
    const { assert!(arch::MAPPED_LEN == 0, "this machine's tables are multi-level") };
    Space::new(&MMU)
}

/// Returns an empty address space for programs, with the kernel's half if it needs a table.
#[cfg(not(feature = "guarded"))]
pub(crate) fn sharing(kernel: &Space) -> Result<Space, Error> {
    if lends() { Space::sharing(kernel) } else { Space::new(&MMU) }
}

/// Returns an empty address space for programs.
#[cfg(feature = "guarded")]
pub(crate) fn sharing(_kernel: &Space) -> Result<Space, Error> {
    Space::new(&MMU)
}

/// Fills the lists of free frames, and returns the kernel's own address space: memory, mapped one to one where the machine
/// does not show it anyway.
pub(crate) fn prepare() -> Result<Space, Error> {
    FREE.lock().extend(0..NODES as u16);
    frames::prepare();
    let pages = |at: usize, len: usize| {
        let count = len >> PageSize::K4.shift();
        Pages::count(VirtAddr::new(at).vpn(PageSize::K4), count).ok_or(Error::NoRoom)
    };
    let (first, len) = arch::LENT;
    let kernel = lending(pages(first, len)?)?;
    if arch::MAPPED_LEN == 0 {
        return Ok(kernel);
    }
    let attr = Attr::READ | Attr::WRITE | Attr::GLOBAL | Attr::ACCESSED | Attr::DIRTY;
    let map = |at: usize, len: usize, attr: Attr| {
        kernel.map_linear(pages(at, len)?, Pfn::new(arch::physical(at) >> PageSize::K4.shift()), attr)
    };
    map(arch::KERNEL, arch::MAPPED_LEN, attr | Attr::EXEC)?;
    for &device in arch::DEVICES {
        map(device, PageSize::K4.bytes(), attr | Attr::DEVICE)?;
    }
    Ok(kernel)
}

/// Returns how many frames nodes and control blocks take.
pub(crate) fn tables() -> usize {
    NODES - FREE.lock().len()
}
