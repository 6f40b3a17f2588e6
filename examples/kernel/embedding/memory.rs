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
/// For each frame of user memory, [`DATA`] plus how often it is mapped or held; for each free frame, the index of the next free one;
/// for each of `tlbkit`'s frames, 0.
static INFO: [AtomicUsize; FRAMES] = [const { AtomicUsize::new(0) }; FRAMES];
/// More than any index.
const DATA: usize = 1 << 32;
/// The index of the first free frame; `FRAMES` if there is none.
static FREE: AtomicUsize = AtomicUsize::new(FRAMES);

/// The kernel, as `tlbkit` knows it.
pub struct Mine;

pub static MMU: Mmu<Mine> = Mmu::new(Mine);

/// Takes a free frame, which gets this `INFO`.
fn take_free(info: usize) -> Result<Pfn, Error> {
    let free = cpu::masked(|| {
        let first = FREE.load(Relaxed);
        let next = INFO.get(first)?.swap(info, Relaxed);
        FREE.store(next, Relaxed);
        Some(Pfn::new(FIRST + first))
    });
    free.ok_or(Error::NoMemory { wanted: 1, pending: 0 })
}

/// Makes a frame free.
fn free(frame: Pfn) {
    let Some(info) = info(frame) else { return };
    cpu::masked(|| {
        let next = FREE.swap(frame.get() - FIRST, Relaxed);
        info.store(next, Relaxed);
    });
}

/// Takes a free frame for user memory and fills it: with the bytes of another frame, or with zeros.
pub fn take(copy_of: Option<Pfn>) -> Result<Pfn, Error> {
    let frame = take_free(DATA + 1)?;
    let filled = match copy_of {
        Some(other) => MMU.copy_frame(other, frame),
        None => MMU.clear_frame(frame),
    };
    filled.map(|()| frame).inspect_err(|_| put(frame))
}

/// Counts a frame of user memory as mapped or held once more. Returns `false` if it is none.
fn hold(frame: Pfn) -> bool {
    let more = |info| (info > DATA).then(|| info + 1);
    info(frame).is_some_and(|info| info.fetch_update(Relaxed, Relaxed, more).is_ok())
}

/// Counts a frame of user memory as mapped or held once less, and frees it if that was the last time.
pub fn put(frame: Pfn) {
    let fewer = |info| (info > DATA).then(|| info - 1);
    if info(frame).is_some_and(|info| info.fetch_update(Relaxed, Relaxed, fewer) == Ok(DATA + 1)) {
        free(frame);
    }
}

/// Returns the `INFO` of a frame; `None` if the frame is none of those that the kernel gives out.
fn info(frame: Pfn) -> Option<&'static AtomicUsize> {
    INFO.get(frame.get().wrapping_sub(FIRST))
}

/// Tells whether a frame of user memory is mapped once and held by nothing else.
fn is_sole(frame: Pfn) -> bool {
    info(frame).is_some_and(|info| info.load(Relaxed) == DATA + 1)
}

// SAFETY: a free frame has no other owner, and all of them are mapped where `memory` says; a record is its frame's. A frame of user
// memory stays one while it is held, and no Rust code but `tlbkit`'s copies accesses its bytes. `flush` orders the
// stores before it, and ends what the CPU has walked. There is one CPU.
unsafe impl Kernel for Mine {
    type Machine = cpu::Machine;

    fn take_frame(&self) -> Option<PhysAddr> {
        let frame = take_free(0).ok()?;
        Some(frame.address(PageSize::K4))
    }

    fn give_frame(&self, frame: PhysAddr) {
        free(frame.pfn(PageSize::K4));
    }

    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        cpu::memory(frame)
    }

    fn user_memory<R>(&self, frame: PhysAddr, access: impl FnOnce(*mut u8) -> R) -> Option<R> {
        let number = frame.pfn(PageSize::K4);
        hold(number).then(|| {
            let result = access(cpu::memory(frame));
            put(number);
            result
        })
    }

    fn record(&self, at: PhysAddr) -> Option<&Record> {
        RECORDS.get(at.pfn(PageSize::K4).get().wrapping_sub(FIRST))
    }

    fn share(&self, run: Run) {
        run.frames().for_each(|frame| _ = hold(frame));
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

    #[inline(always)]
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
    (FIRST..FIRST + FRAMES).map(Pfn::new).for_each(free);
}

/// Resolves a page fault of a process. Returns `false` if the process must not make this access.
pub fn page_fault(process: &AddressSpace<Mine>, at: VirtAddr, access: Access) -> Result<bool, Error> {
    match process.fault(at, access)? {
        // The TLB held an older entry, which is flushed now.
        Fault::Retry => {}
        Fault::NotMapped if HEAP.contains(&at.get()) => {
            match process.map_with(Pages::one(at.vpn(PageSize::K4)), USER, |_| take(None)) {
                // Another thread was faster, and no frame was taken.
                Err(Error::Occupied { .. }) => {}
                mapped => mapped?,
            }
        }
        Fault::CopyOnWrite(_) => process.unshare(at, is_sole, |shared| take(Some(shared)))?,
        _ => return Ok(false),
    }
    Ok(true)
}
