use super::{hart, swap};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tlbkit::{Access, AddressSpace, Asid, Attr, Error, Fault, Flush, Kernel, Mmu, PageSize, Pages};
use tlbkit::{Pfn, PhysAddr, Record, Run, VirtAddr, Vpn, arch};

/// RAM is mapped one to one. The kernel gives out its second half: `FRAMES` frames from number `FIRST` on.
const RAM: usize = 0x8000_0000 >> 12;
const FRAMES: usize = 8 << 10;
const FIRST: usize = RAM + FRAMES;
const HEAP: core::ops::Range<usize> = 0x40_0000..0x4000_0000; // Where user programs may have memory.
const USER: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);
/// For each frame: a word for tlbkit; how often the frame is mapped, or the free frame behind it.
static RECORDS: [Record; FRAMES] = [const { Record::new(0) }; FRAMES];
static INFO: [AtomicUsize; FRAMES] = [const { AtomicUsize::new(0) }; FRAMES];
static FREE: AtomicUsize = AtomicUsize::new(FRAMES);
pub struct Mine;
pub static MMU: Mmu<Mine> = Mmu::new(Mine);

/// Takes a frame: a copy of another one, or zeros.
pub fn take(copy_of: Option<Pfn>) -> Result<Pfn, Error> {
    let frame = hart::masked(|| {
        let first = FREE.load(Relaxed);
        FREE.store(INFO.get(first)?.swap(1, Relaxed), Relaxed);
        Some(Pfn::new(FIRST + first))
    }).ok_or(Error::NoMemory { wanted: 1, pending: 0 })?;
    hart::fill(frame, copy_of);
    Ok(frame)
}

/// Returns how often a frame is mapped; `None` if the frame is none of those that the kernel gives out.
fn info(frame: Pfn) -> Option<&'static AtomicUsize> { INFO.get(frame.get().wrapping_sub(FIRST)) }
/// Tells whether a frame is mapped once and used by nobody else.
fn is_sole(frame: Pfn) -> bool { info(frame).is_some_and(|info| info.load(Relaxed) == 1) }
/// Notes that a frame is mapped once less.
pub fn put(frame: Pfn) {
    let Some(info) = info(frame).filter(|info| info.fetch_sub(1, Relaxed) == 1) else { return };
    hart::masked(|| info.store(FREE.swap(frame.get() - FIRST, Relaxed), Relaxed));
}

// SAFETY: a free frame has no other owner, and RAM is mapped one to one; a record is its frame's. `fence`
// orders the stores before it, and ends what the hart has walked. There is one hart.
unsafe impl Kernel for Mine {
    type Machine = arch::Sv39;
    fn take_frame(&self) -> Option<PhysAddr> { Some(take(None).ok()?.address(PageSize::K4)) }
    fn give_frame(&self, frame: PhysAddr) { put(frame.pfn(PageSize::K4)); }
    fn memory(&self, frame: PhysAddr) -> *mut u8 { hart::memory(frame) }
    fn record(&self, at: PhysAddr) -> Option<&Record> { RECORDS.get((at.get() >> 12).wrapping_sub(FIRST)) }
    fn share(&self, run: Run) { run.frames().filter_map(info).for_each(|n| _ = n.fetch_add(1, Relaxed)); }
    fn release(&self, run: Run) { run.frames().for_each(put); }
    fn share_payload(&self, slot: u64) { swap::hold(slot) }
    fn release_payload(&self, slot: u64) { swap::let_go(slot) }
    fn flush(&self, flush: &Flush<'_>, asid: Option<Asid>) {
        match flush.by_address(64).filter(|_| asid.is_some()) {
            Some(pages) => pages.for_each(|at| hart::fence(Some(at), asid)),
            None => hart::fence(None, asid),
        }
    }
    fn masked<R>(&self, f: impl FnOnce() -> R) -> R { hart::masked(f) }
    fn load(&self, root: usize) { hart::set_satp(root); }
    fn unload(&self) { hart::set_satp(0); }
}

/// Returns the kernel's own address space, which is never dropped: RAM, for every process's to share.
pub fn boot() -> Result<AddressSpace<Mine>, Error> {
    INFO.iter().for_each(|info| info.store(1, Relaxed)); // Zeros at first: the image does not hold them.
    (FIRST..FIRST + FRAMES).for_each(|frame| put(Pfn::new(frame)));
    let ram = |count| Pages::count(Vpn::new(RAM), count).ok_or(Error::NoRoom);
    let kernel = AddressSpace::lending(&MMU, ram(1 << 18)?)?;
    let attr = Attr::READ | Attr::WRITE | Attr::EXEC | Attr::GLOBAL | Attr::ACCESSED | Attr::DIRTY;
    kernel.map_linear(ram(2 * FRAMES)?, Pfn::new(RAM), attr).map(|()| kernel)
}

/// Resolves a page fault of a process; `false` if the process must not do what it tried.
pub fn page_fault(process: &AddressSpace<Mine>, at: VirtAddr, access: Access) -> Result<bool, Error> {
    process.edit(|edit| {
        match edit.fault(at, access)? {
            Fault::Retry => {} // The TLB held an older entry, which is flushed now.
            Fault::NotMapped if HEAP.contains(&at.get()) => {
                let frame = take(None)?;
                edit.map(Pages::one(at.vpn(PageSize::K4)), frame, USER).inspect_err(|_| put(frame))?;
            }
            Fault::CopyOnWrite(_) => edit.unshare(at, is_sole, |shared| take(Some(shared)))?,
            _ => return Ok(false),
        }
        Ok(true)
    })
}
