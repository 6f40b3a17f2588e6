//! A kernel's own part: what its machine's instructions do, frames that are counted, behind a lock, and its [`Kernel`].

use spin::Mutex;
use tlbkit::{AddressSpace, Asid, CpuSet, Flush, Kernel, Mmu, Overdue, PageSize, Pfn, PhysAddr, Record, Run};

#[cfg_attr(target_arch = "aarch64", path = "../../kernel/embedding/cpu/aarch64.rs")]
#[cfg_attr(target_arch = "riscv64", path = "../../kernel/embedding/cpu/riscv64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "../../kernel/embedding/cpu/x86_64.rs")]
pub mod cpu;
#[cfg_attr(target_arch = "aarch64", path = "cpus/aarch64.rs")]
#[cfg_attr(target_arch = "riscv64", path = "cpus/riscv64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "cpus/x86_64.rs")]
pub mod cpus;

use cpu::FIRST;

/// The most CPUs.
pub const CPUS: usize = if cfg!(feature = "four-cpus") { 4 } else { 1 };

/// The kernel gives out so many frames, from `FIRST` on: 16 MiB.
pub const FRAMES: usize = 4 << 10;

/// What is known of the frames: the uses of each, and which have none.
pub struct Frames {
    uses: [u32; FRAMES],
    free: [u16; FRAMES],
    count: usize,
}

impl Frames {
    /// Makes all of them free.
    pub fn prepare(&mut self) {
        for (place, number) in self.free.iter_mut().zip(0..) {
            *place = number;
        }
        self.count = FRAMES;
    }

    /// Takes a free frame, with one use.
    pub fn take(&mut self) -> Option<Pfn> {
        let count = self.count.checked_sub(1)?;
        let index = usize::from(*self.free.get(count)?);
        *self.uses.get_mut(index)? = 1;
        self.count = count;
        Some(Pfn::new(FIRST + index))
    }

    /// Counts one use more of a frame.
    pub fn hold(&mut self, frame: Pfn) {
        if let Some(uses) = self.uses.get_mut(frame.get().wrapping_sub(FIRST)) {
            *uses = uses.wrapping_add(1);
        }
    }

    /// Counts one use less. The frame is free after the last.
    pub fn put(&mut self, frame: Pfn) {
        let index = frame.get().wrapping_sub(FIRST);
        let Some(uses) = self.uses.get_mut(index) else { return };
        *uses = uses.wrapping_sub(1);
        if *uses == 0
            && let Some(place) = self.free.get_mut(self.count)
        {
            *place = index as u16;
            self.count += 1;
        }
    }
}

static ALL: Mutex<Frames> = Mutex::new(Frames { uses: [0; FRAMES], free: [0; FRAMES], count: 0 });
/// Where unmaps wait for a later flush.
#[cfg(feature = "deferring")]
static DEFERRED: tlbkit::Deferred<[tlbkit::Place; 128]> = tlbkit::Deferred::new();
static RECORDS: [Record; FRAMES] = [const { Record::new(0) }; FRAMES];

/// Calls `f` with the frames, with interrupts masked, behind the lock.
pub fn frames<R>(f: impl FnOnce(&mut Frames) -> R) -> R {
    cpu::masked(|| f(&mut ALL.lock()))
}

// Functions of the kernel's own, which it has once: no call of `tlbkit` has the lock in it.

#[inline(never)]
pub fn take() -> Option<Pfn> {
    frames(Frames::take)
}

#[inline(never)]
fn hold(run: Run) {
    frames(|frames| run.frames().for_each(|frame| frames.hold(frame)));
}

#[inline(never)]
fn put(run: Run) {
    frames(|frames| run.frames().for_each(|frame| frames.put(frame)));
}

#[inline(never)]
fn put_all(runs: &[Run]) {
    frames(|frames| {
        for run in runs {
            run.frames().for_each(|frame| frames.put(frame));
        }
    });
}

/// The kernel, as `tlbkit` knows it.
pub struct Mine;

pub static MMU: Mmu<Mine, CPUS> = Mmu::new(Mine);

pub type Space = AddressSpace<Mine, CPUS>;

// SAFETY: a free frame has no other owner, and all of them are mapped where `memory` says; a record is its frame's. All frames are
// RAM, whose bytes nothing but `tlbkit`'s copies accesses. `flush` orders the stores before it, and ends what the CPU has walked.
// `cpus` numbers the CPUs from 0 on.
unsafe impl Kernel for Mine {
    type Machine = cpu::Machine;

    #[cfg(target_arch = "aarch64")]
    const BROADCAST: Option<tlbkit::Broadcast<Self>> = Some(|_, flush, asid, _| cpus::broadcast(flush, asid));

    fn cpu(&self) -> usize {
        cpus::number()
    }

    fn take_frame(&self) -> Option<PhysAddr> {
        take().map(|frame| frame.address(PageSize::K4))
    }

    fn give_frame(&self, frame: PhysAddr) {
        put(Run { first: frame.pfn(PageSize::K4), len: 1, dirty: false });
    }

    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        cpu::memory(frame)
    }

    fn user_memory<R>(&self, frame: PhysAddr, access: impl FnOnce(*mut u8) -> R) -> Option<R> {
        self.record(frame).map(|_| access(cpu::memory(frame)))
    }

    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        RECORDS.get(frame.pfn(PageSize::K4).get().wrapping_sub(FIRST))
    }

    fn share(&self, run: Run) {
        hold(run);
    }

    fn release(&self, run: Run) {
        put(run);
    }

    fn release_all(&self, runs: &[Run]) {
        put_all(runs);
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

    fn interrupt(&self, cpus: CpuSet) {
        cpus::interrupt(cpus);
    }

    #[cfg(feature = "deferring")]
    fn deferred(&self) -> Option<&tlbkit::Deferred> {
        Some(&DEFERRED)
    }

    fn overdue(&self, _: Overdue) {
        // A kernel says so, and stops.
        loop {
            core::hint::spin_loop();
        }
    }
}
