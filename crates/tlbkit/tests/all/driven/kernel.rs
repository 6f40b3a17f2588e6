//! A kernel that checks what it is asked for: frames that are taken once, mappings that are counted, and for each CPU a TLB
//! that keeps what it has loaded until it is flushed.

use std::collections::{BTreeMap, BTreeSet};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tlbkit::pagetable::Geometry;
use tlbkit::{
    AddressSpace, Asid, CpuSet, Deferred, Flush, FrameOf, Guarded, Kernel, Machine, Overdue, PagesOf, Pfn,
    PhysAddr, Place, Record, Run, VirtAddr, arch,
};

/// The first frame of the arena, and how many there are.
const FIRST: usize = 0x100;
const FRAMES: usize = if cfg!(miri) { 96 } else { 224 };
/// How many runs of frames can wait for a later flush: as few as there can be.
pub const PLACES: usize = 16;
/// Frames of users are numbers alone, from here on: no code looks into them.
const DATA: usize = 0x2000;

/// A machine, and where its root register has the ASID.
pub trait Arch: Machine {
    /// Whether a node is a frame.
    const WHOLE: bool = true;
    /// The logarithm of the bytes of a base page, and of a frame.
    const SHIFT: u32 = Self::Geometry::BASE.shift();

    /// Returns the address of a page.
    fn address(page: usize) -> VirtAddr {
        VirtAddr::new(page << Self::SHIFT)
    }

    /// Returns a range of pages, as the machine's calls take it.
    fn pages(first: usize, last: usize) -> PagesOf<Ram<Self>>
    where
        Self: Sized,
    {
        let (first, last) = (Self::address(first), Self::address(last));
        AddressSpace::<Ram<Self>>::pages_between(first, last).expect("a range")
    }

    /// Returns a frame, as the machine's calls take it.
    fn frame(number: usize) -> FrameOf<Ram<Self>>
    where
        Self: Sized,
    {
        AddressSpace::<Ram<Self>>::frame(PhysAddr::new(number << Self::SHIFT)).expect("a frame")
    }

    /// Returns the number of a frame.
    fn number(frame: FrameOf<Ram<Self>>) -> usize
    where
        Self: Sized,
    {
        AddressSpace::<Ram<Self>>::address(frame).get() >> Self::SHIFT
    }

    /// Returns the ASID that a root value has.
    fn asid(root: usize) -> usize;
}

/// Implements [`Arch`] for machines of which a node is a frame.
macro_rules! archs {
    ($($(#[$cfg:meta])? $machine:ty: |$root:ident| $asid:expr;)*) => {$(
        $(#[$cfg])?
        impl Arch for $machine {
            fn asid($root: usize) -> usize {
                $asid
            }
        }
    )*};
}

archs! {
    #[cfg(target_pointer_width = "64")]
    arch::Sv39: |root| root >> 44 & 0xffff;
    #[cfg(target_pointer_width = "64")]
    arch::Sv39Svnapot: |root| arch::Sv39::asid(root);
    #[cfg(target_pointer_width = "64")]
    arch::X86_64: |root| root & 0xfff;
    #[cfg(target_pointer_width = "64")]
    arch::AArch64: |root| root >> 48;
    #[cfg(target_pointer_width = "64")]
    arch::AArch64K16: |root| arch::AArch64::asid(root);
    #[cfg(target_pointer_width = "64")]
    arch::AArch64K64: |root| arch::AArch64::asid(root);
    arch::Sv32: |root| root >> 22 & 0x1ff;
    arch::Mips32: |root| root & 0xff;
}

impl Arch for arch::Mips32<Guarded> {
    const WHOLE: bool = false;

    fn asid(root: usize) -> usize {
        <arch::Mips32>::asid(root)
    }
}

/// Hands each machine to a macro: `$each!(name, machine, when)`. It is driven in `full` tests alone, or always; `few` says that Miri
/// interprets some histories, too.
macro_rules! each_machine {
    ($each:ident) => {
        #[cfg(target_pointer_width = "64")]
        $each!(sv39, arch::Sv39, few);
        #[cfg(target_pointer_width = "64")]
        $each!(svnapot, arch::Sv39Svnapot, full);
        #[cfg(target_pointer_width = "64")]
        $each!(x86_64, arch::X86_64, few);
        #[cfg(target_pointer_width = "64")]
        $each!(aarch64, arch::AArch64, few);
        #[cfg(target_pointer_width = "64")]
        $each!(pages_of_16_kib, arch::AArch64K16, full);
        #[cfg(target_pointer_width = "64")]
        $each!(pages_of_64_kib, arch::AArch64K64, always);
        $each!(sv32, arch::Sv32, always);
        $each!(mips32, arch::Mips32, few);
        $each!(guarded, arch::Mips32<Guarded>, few);
    };
}

/// What a TLB has of a page: the frame, and whether stores are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub frame: usize,
    pub writable: bool,
}

/// A CPU's TLB, by ASID and page, and its root register.
#[derive(Debug, Default)]
pub struct Tlb {
    pub root: Option<usize>,
    pub held: BTreeMap<(usize, usize), Held>,
    asked: bool,
}

#[derive(Debug)]
pub struct State {
    /// The CPU that runs.
    pub cpu: usize,
    taken: BTreeSet<usize>,
    /// How many more frames may be taken.
    pub allowance: usize,
    next: usize,
    /// How often each frame of users is mapped.
    pub mapped: BTreeMap<usize, usize>,
    /// How many pages have each payload.
    pub payloads: BTreeMap<u64, usize>,
    /// What was released, numbered from 0 as the model numbers it.
    pub released: Vec<Run>,
    pub tlbs: Vec<Tlb>,
    pub asid_bits: u32,
    /// Whether flushes are left out: what a test must notice.
    pub forgets: bool,
    pauses: usize,
}

/// What lets the other CPUs run while one waits.
type Others = Box<dyn Fn() + Send + Sync>;

pub struct Ram<A: Arch> {
    /// The frames, in [`Self::ALL`] parts of 4 KiB, which the box of a slice has. A pointer, and not that box: to go through it, Miri
    /// would look at each word for interior mutability.
    memory: AtomicPtr<Part>,
    records: Box<[Record]>,
    state: Mutex<State>,
    pub others: OnceLock<Others>,
    pub deferred: Deferred<[Place; PLACES]>,
    machine: std::marker::PhantomData<fn() -> A>,
}

#[repr(C, align(4096))]
struct Part([AtomicU32; 1024]);

impl<A: Arch> Ram<A> {
    /// The parts of a frame.
    const PARTS: usize = 1 << (A::SHIFT - 12);
    /// The parts of all frames, of one more, so that they can begin where a frame does, and of another, which stands for the frames
    /// of users.
    const ALL: usize = (FRAMES + 2) * Self::PARTS;

    pub fn new(cpus: usize) -> Self {
        let parts: Box<[_]> = (0..Self::ALL).map(|_| Part([const { AtomicU32::new(0) }; 1024])).collect();
        Self {
            memory: AtomicPtr::new(Box::into_raw(parts).cast()),
            records: (0..FRAMES).map(|_| Record::new(0)).collect(),
            state: Mutex::new(State {
                cpu: 0,
                taken: BTreeSet::new(),
                allowance: usize::MAX,
                next: DATA,
                mapped: BTreeMap::new(),
                payloads: BTreeMap::new(),
                released: Vec::new(),
                tlbs: (0..cpus).map(|_| Tlb::default()).collect(),
                asid_bits: A::ASID_BITS,
                forgets: false,
                pauses: 0,
            }),
            others: OnceLock::new(),
            deferred: Deferred::new(),
            machine: std::marker::PhantomData,
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many frames are nodes or control blocks.
    pub fn taken(&self) -> usize {
        self.state().taken.len()
    }

    /// Takes neighbouring frames for users, aligned to `align`, each of which is to be mapped once.
    pub fn fresh(&self, count: usize, align: usize) -> usize {
        let mut state = self.state();
        let first = state.next.next_multiple_of(align);
        // Sometimes the next ones continue these, and sometimes not.
        state.next = first + count + first % 3 / 2;
        (first..first + count).for_each(|frame| assert_eq!(state.mapped.insert(frame, 1), None));
        first
    }

    /// Takes frames back that were never mapped.
    pub fn put_back(&self, first: usize, count: usize) {
        let mut state = self.state();
        (first..first + count).for_each(|frame| assert_eq!(state.mapped.remove(&frame), Some(1)));
    }

    /// Notes that one page less has a payload.
    pub fn let_go(&self, payload: u64) {
        let mut state = self.state();
        let holders = state.payloads.get_mut(&payload).expect("a page has the payload");
        *holders -= 1;
        if *holders == 0 {
            state.payloads.remove(&payload);
        }
    }

    /// Has the CPUs that were interrupted take the interrupt.
    pub fn serve(&self, on_interrupt: impl Fn()) {
        let (me, cpus) = {
            let state = self.state();
            (state.cpu, state.tlbs.len())
        };
        for cpu in (0..cpus).filter(|&cpu| cpu != me) {
            if std::mem::replace(&mut self.state().tlbs[cpu].asked, false) {
                self.state().cpu = cpu;
                on_interrupt();
                self.state().cpu = me;
            }
        }
    }

    fn index(frame: PhysAddr) -> usize {
        (frame.get() >> A::SHIFT) - FIRST
    }
}

impl<A: Arch> Drop for Ram<A> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from the box of a slice of so many parts, and no code looks into a frame any more.
        drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(*self.memory.get_mut(), Self::ALL)) });
    }
}

// SAFETY: each frame of the arena is handed out once until it is given back, with memory and a record of its own. One thread
// runs as all CPUs, and changes from one to another in `pause` alone, when no closure of `masked` but the waiting one is under
// way. A TLB is a map, from which `flush` takes what it is told; no CPU walks the table but by way of `lookup`.
unsafe impl<A: Arch> Kernel for Ram<A> {
    type Machine = A;

    fn cpu(&self) -> usize {
        self.state().cpu
    }

    fn take_frame(&self) -> Option<PhysAddr> {
        let mut state = self.state();
        if state.allowance != usize::MAX {
            state.allowance = state.allowance.checked_sub(1)?;
        }
        let free = (0..FRAMES).find(|frame| !state.taken.contains(frame))?;
        state.taken.insert(free);
        Some(PhysAddr::new((FIRST + free) << A::SHIFT))
    }

    fn give_frame(&self, frame: PhysAddr) {
        assert!(self.state().taken.remove(&Self::index(frame)), "{frame} is given back twice");
    }

    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        let parts = self.memory.load(Ordering::Relaxed);
        let begin = (parts.addr() >> 12).wrapping_neg() & (Self::PARTS - 1);
        parts.wrapping_add(begin + Self::index(frame) * Self::PARTS).cast()
    }

    /// Each word of a user's frame is its number.
    fn user_memory<R>(&self, frame: PhysAddr, access: impl FnOnce(*mut u8) -> R) -> Option<R> {
        let number = frame.get() >> A::SHIFT;
        if !self.state().mapped.contains_key(&number) {
            return None;
        }
        let memory = self.memory(PhysAddr::new((FIRST + FRAMES) << A::SHIFT));
        for word in 0..Self::PARTS << 10 {
            // SAFETY: the arena has such a frame, which is none of those that are handed out. One thread uses it.
            unsafe { memory.cast::<u32>().add(word).write(number as u32) };
        }
        Some(access(memory))
    }

    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        self.records.get(Self::index(frame))
    }

    fn release(&self, run: Run<FrameOf<Self>>) {
        let mut state = self.state();
        state.released.push(Run { first: Pfn::new(A::number(run.first)), len: run.len, dirty: run.dirty });
        for frame in run.frames().map(A::number) {
            let count = state.mapped.get_mut(&frame).unwrap_or_else(|| panic!("{run:?} is not mapped"));
            *count -= 1;
            if *count == 0 {
                state.mapped.remove(&frame);
            }
        }
    }

    fn release_all(&self, runs: &[Run<FrameOf<Self>>]) {
        assert!((2..=16).contains(&runs.len()), "{} runs", runs.len());
        runs.iter().for_each(|&run| self.release(run));
    }

    fn share(&self, run: Run<FrameOf<Self>>) {
        let mut state = self.state();
        for frame in run.frames().map(A::number) {
            *state.mapped.get_mut(&frame).expect("what is shared is mapped") += 1;
        }
    }

    fn release_payload(&self, payload: u64) {
        self.let_go(payload);
    }

    fn share_payload(&self, payload: u64) {
        *self.state().payloads.get_mut(&payload).expect("a page has the payload") += 1;
    }

    fn flush(&self, flush: &Flush<'_>, asid: Option<Asid>) {
        let mut state = self.state();
        if state.forgets {
            return;
        }
        let cpu = state.cpu;
        let asid = asid.map(|asid| usize::from(asid.get()));
        let pages = flush.by_address();
        let named: Option<BTreeSet<usize>> =
            pages.map(|pages| pages.map(|at| at.get() >> A::SHIFT).collect());
        let covered = |tag: usize, page: usize| {
            asid.is_none_or(|asid| asid == tag) && named.as_ref().is_none_or(|named| named.contains(&page))
        };
        state.tlbs[cpu].held.retain(|&(tag, page), _| !covered(tag, page));
    }

    fn interrupt(&self, cpus: CpuSet) {
        let mut state = self.state();
        cpus.into_iter().for_each(|cpu| state.tlbs[cpu].asked = true);
    }

    fn overdue(&self, what: Overdue) {
        eprintln!("{what:?}");
    }

    fn pause(&self) {
        let mut state = self.state();
        state.pauses += 1;
        assert!(state.pauses < 1_000_000, "CPU {} waits for ever", state.cpu);
        drop(state);
        if let Some(others) = self.others.get() {
            others();
        }
    }

    fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        f()
    }

    fn load(&self, root: usize) {
        let mut state = self.state();
        let cpu = state.cpu;
        state.tlbs[cpu].root = Some(root);
    }

    fn unload(&self) {
        let mut state = self.state();
        let cpu = state.cpu;
        state.tlbs[cpu].root = None;
    }

    fn deferred(&self) -> Option<&Deferred> {
        Some(&self.deferred)
    }

    fn asid_bits(&self) -> u32 {
        self.state().asid_bits
    }
}
