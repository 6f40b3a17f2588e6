//! Free frames, what `tlbkit` asks of the kernel, and the page-fault handler, on every machine. There is one CPU.

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tlbkit::{
    Access, AddressSpace, Asid, Attr, Error, Fault, Flush, Kernel, Mmu, PageSize, Pages, Pfn, PhysAddr,
    Record, Run, VirtAddr,
};

use super::cpu::FIRST;
use super::{cpu, swap};

/// The kernel gives out so many frames, from `FIRST` on: 32 MiB.
const FRAMES: usize = 8 << 10;

/// Where user programs may have memory.
const HEAP: Range<usize> = 0x40_0000..0x4000_0000;
/// The rights of a page there.
const USER: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);

/// A word of `tlbkit`'s for each frame.
static RECORDS: [Record; FRAMES] = [const { Record::new(0) }; FRAMES];
/// For each frame that is in use, how often it is mapped; for each free one, the index of the next free one.
static INFO: [AtomicUsize; FRAMES] = [const { AtomicUsize::new(0) }; FRAMES];
/// The index of the first free frame; `FRAMES` if there is none.
static FREE: AtomicUsize = AtomicUsize::new(FRAMES);

/// The kernel, as `tlbkit` knows it.
pub struct Mine;

pub static MMU: Mmu<Mine> = Mmu::new(Mine);

/// Takes a free frame and fills it: with the bytes of another frame, or with zeros.
pub fn take(copy_of: Option<Pfn>) -> Result<Pfn, Error> {
    let free = cpu::masked(|| {
        let first = FREE.load(Relaxed);
        let next = INFO.get(first)?.swap(1, Relaxed);
        FREE.store(next, Relaxed);
        Some(Pfn::new(FIRST + first))
    });
    let frame = free.ok_or(Error::NoMemory { wanted: 1, pending: 0 })?;
    fill(frame, copy_of);
    Ok(frame)
}

/// Fills a frame that only the caller has: with the bytes of another frame, or with zeros.
fn fill(frame: Pfn, copy_of: Option<Pfn>) {
    let size = PageSize::K4.bytes();
    let to = cpu::memory(frame.address(PageSize::K4));
    match copy_of {
        Some(other) => {
            let from = cpu::memory(other.address(PageSize::K4));
            // SAFETY: both are mapped frames, they are different, and only the caller has the first.
            unsafe { to.copy_from(from, size) }
        }
        // SAFETY: it is a mapped frame that only the caller has.
        None => unsafe { to.write_bytes(0, size) },
    }
}

/// Counts a frame as mapped once less, and frees it if that was the last time.
pub fn put(frame: Pfn) {
    let Some(info) = info(frame) else { return };
    if info.fetch_sub(1, Relaxed) == 1 {
        cpu::masked(|| {
            let next = FREE.swap(frame.get() - FIRST, Relaxed);
            info.store(next, Relaxed);
        });
    }
}

/// Returns how often a frame is mapped; `None` if the frame is none of those that the kernel gives out.
fn info(frame: Pfn) -> Option<&'static AtomicUsize> {
    INFO.get(frame.get().wrapping_sub(FIRST))
}

/// Tells whether a frame is mapped once and used by nothing else.
fn is_sole(frame: Pfn) -> bool {
    info(frame).is_some_and(|info| info.load(Relaxed) == 1)
}

// SAFETY: a free frame has no other owner, and all of them are mapped where `memory` says; a record is its frame's. `flush` orders the
// stores before it, and ends what the CPU has walked. There is one CPU.
unsafe impl Kernel for Mine {
    type Machine = cpu::Machine;

    fn take_frame(&self) -> Option<PhysAddr> {
        let frame = take(None).ok()?;
        Some(frame.address(PageSize::K4))
    }

    fn give_frame(&self, frame: PhysAddr) {
        put(frame.pfn(PageSize::K4));
    }

    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        cpu::memory(frame)
    }

    fn record(&self, at: PhysAddr) -> Option<&Record> {
        RECORDS.get(at.pfn(PageSize::K4).get().wrapping_sub(FIRST))
    }

    fn share(&self, run: Run) {
        for info in run.frames().filter_map(info) {
            info.fetch_add(1, Relaxed);
        }
    }

    fn release(&self, run: Run) {
        run.frames().for_each(put);
    }

    fn share_payload(&self, slot: u64) {
        swap::hold(slot);
    }

    fn release_payload(&self, slot: u64) {
        swap::let_go(slot);
    }

    fn flush(&self, flush: &Flush<'_>, asid: Option<Asid>) {
        cpu::flush(flush, asid);
    }

    fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        cpu::masked(f)
    }

    fn load(&self, root: usize) {
        cpu::load(root);
    }

    fn unload(&self) {
        cpu::unload();
    }

    fn asid_bits(&self) -> u32 {
        cpu::asid_bits()
    }
}

/// Frees all frames that the kernel gives out.
pub fn prepare() {
    for (index, info) in INFO.iter().enumerate() {
        info.store(1, Relaxed);
        put(Pfn::new(FIRST + index));
    }
}

/// Resolves a page fault of a process. Returns `false` if the process must not make this access.
pub fn page_fault(process: &AddressSpace<Mine>, at: VirtAddr, access: Access) -> Result<bool, Error> {
    process.edit(|edit| {
        match edit.fault(at, access)? {
            // The TLB held an older entry, which is flushed now.
            Fault::Retry => {}
            Fault::NotMapped if HEAP.contains(&at.get()) => {
                let page = Pages::one(at.vpn(PageSize::K4));
                let frame = take(None)?;
                edit.map(page, frame, USER).inspect_err(|_| put(frame))?;
            }
            Fault::CopyOnWrite(_) => edit.unshare(at, is_sole, |shared| take(Some(shared)))?,
            _ => return Ok(false),
        }
        Ok(true)
    })
}
