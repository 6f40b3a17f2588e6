//! The frames of all subjects: what a kernel's frame allocator is at its best, with a free list through the frames themselves.

use std::sync::atomic::{AtomicUsize, Ordering};

use tlbkit_addr::PhysAddr;
use tlbkit_pagetable::nodes::{FrameSource, Record};

/// The frames, of which every subject takes its nodes. Frame 0 is never handed out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frames;

/// Bytes of memory, which begins where the linker has put it: a kernel knows its direct map as a constant, too. It comes after all else,
/// so that a program with as much memory of its own still reaches everything: x86-64's code reaches 2 GiB.
const ARENA: usize = 1 << 30;
macro_rules! arena {
    ($($section:literal),+) => {
        std::arch::global_asm!(
            $($section,)+
            ".balign 4096",
            ".globl tlbkit_benches_arena",
            "tlbkit_benches_arena:",
            ".zero 1073741824",
            ".text"
        );
    };
}
#[cfg(target_arch = "x86_64")]
arena!(".section .lbss, \"awl\", @nobits");
#[cfg(not(target_arch = "x86_64"))]
arena!(".bss");
unsafe extern "C" {
    #[link_name = "tlbkit_benches_arena"]
    static MEMORY: u8;
}
static RECORDS: [Descriptor; ARENA / 4096] = [const { Descriptor(Record::new(0)) }; ARENA / 4096];
static FRESH: AtomicUsize = AtomicUsize::new(4096);
static FREE: AtomicUsize = AtomicUsize::new(0);
/// Free frames that are zero but for the address of the next one.
static ZEROED: AtomicUsize = AtomicUsize::new(0);

/// What a kernel keeps of a frame: kernels with several CPUs have a cache line of it, as Linux does.
#[repr(align(64))]
struct Descriptor(Record);

impl Frames {
    /// Returns the memory of the frame at an address.
    #[inline(always)]
    pub(crate) fn pointer(&self, frame: usize) -> *mut u8 {
        (&raw const MEMORY).cast_mut().wrapping_add(frame)
    }

    #[inline(always)]
    pub(crate) fn take_zeroed(&self) -> Option<PhysAddr> {
        let free = ZEROED.load(Ordering::Relaxed);
        if free == 0 {
            return None;
        }
        // SAFETY: a free frame of the arena holds the next one's address.
        ZEROED.store(unsafe { self.pointer(free).cast::<usize>().replace(0) }, Ordering::Relaxed);
        Some(PhysAddr::new(free))
    }

    #[inline(always)]
    pub(crate) fn give_zeroed(&self, frame: PhysAddr) {
        // SAFETY: the frame is of the arena, and no code uses it any more.
        unsafe { self.pointer(frame.get()).cast::<usize>().write(ZEROED.load(Ordering::Relaxed)) };
        ZEROED.store(frame.get(), Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn take(&self) -> Option<PhysAddr> {
        let free = FREE.load(Ordering::Relaxed);
        if free != 0 {
            // SAFETY: a free frame of the arena holds the next one's address.
            FREE.store(unsafe { self.pointer(free).cast::<usize>().read() }, Ordering::Relaxed);
            return Some(PhysAddr::new(free));
        }
        let fresh = FRESH.load(Ordering::Relaxed);
        FRESH.store(fresh + 4096, Ordering::Relaxed);
        (fresh < ARENA).then_some(PhysAddr::new(fresh))
    }

    #[inline(always)]
    pub(crate) fn give(&self, frame: PhysAddr) {
        // SAFETY: the frame is of the arena, and no code uses it any more.
        unsafe { self.pointer(frame.get()).cast::<usize>().write(FREE.load(Ordering::Relaxed)) };
        FREE.store(frame.get(), Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn record(&self, frame: PhysAddr) -> Option<&Record> {
        RECORDS.get(frame.get() >> 12).map(|Descriptor(record)| record)
    }
}

// SAFETY: each frame is handed out once until it is given back, and has its memory and its record. Those that are given back
// zeroed are zero when they are handed out again.
unsafe impl FrameSource for Frames {
    #[inline(always)]
    fn take(&self) -> Option<PhysAddr> {
        self.take()
    }

    #[inline(always)]
    fn give(&self, frame: PhysAddr) {
        self.give(frame);
    }

    #[inline(always)]
    fn take_zeroed(&self) -> Option<PhysAddr> {
        self.take_zeroed()
    }

    #[inline(always)]
    fn give_zeroed(&self, frame: PhysAddr) {
        self.give_zeroed(frame);
    }

    #[inline(always)]
    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        self.pointer(frame.get())
    }

    #[inline(always)]
    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        self.record(frame)
    }
}
