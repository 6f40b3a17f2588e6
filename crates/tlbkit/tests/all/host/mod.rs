//! A machine on the host: frames in an arena, a TLB for each CPU that keeps what it has loaded until it is flushed, and
//! a walker of its own that reads the entries as the RISC-V manual says.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

pub mod unwinding;

use std::any::Any;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use tlbkit::{
    Asid, Broadcast, CpuSet, Deferred, Flush, Kernel, Mmu, Overdue, PageSize, Pfn, PhysAddr, Record, Run,
    Store, VirtAddr, Walking, arch,
};
use tlbkit_witness::Recorder;
use tlbkit_witness::event::{Barrier, Event, Fence, Memory};

/// A log of what the machine's CPUs do.
pub type Log = Recorder<4, { 1 << 15 }>;

/// Where the arena begins, as the machine counts.
pub const RAM: usize = 0x8000_0000;

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
    /// How many calls of `masked` are under way, and the stores, frames and nodes since the first of them.
    static MASKED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Counts work with interrupts masked.
fn worked(by: usize) {
    MASKED.set((MASKED.get().0, MASKED.get().1 + by));
}

/// Runs the calling thread as CPU `cpu`.
pub fn run_as(cpu: usize) {
    CPU.set(cpu);
}

/// Returns the CPU that the calling thread runs as.
pub fn cpu() -> usize {
    CPU.get()
}

/// What a frame is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Free,
    /// A node, or a control block.
    Taken,
    /// Memory of user programs, mapped so often.
    Data(usize),
}

#[repr(C, align(4096))]
pub struct Frame([AtomicU64; 512]);

#[derive(Clone, Copy, Debug)]
struct Entry {
    frame: usize,
    bits: u64,
}

/// A CPU's TLB, and the address space that it runs.
#[derive(Debug, Default)]
struct Tlb {
    satp: usize,
    entries: HashMap<(usize, usize), Entry>,
}

/// With `BROADCASTS` a CPU flushes the TLBs of all others itself.
pub struct Host<const BROADCASTS: bool = false> {
    frames: &'static [Frame],
    uses: Mutex<Vec<Use>>,
    records: &'static [Record],
    tlbs: Vec<Mutex<Tlb>>,
    interrupts: Vec<AtomicBool>,
    pub asid_bits: AtomicU32,
    pub flushes: AtomicUsize,
    pub full_flushes: AtomicUsize,
    pub interrupted: AtomicUsize,
    /// How often a CPU has flushed the TLBs of others.
    pub broadcasts: AtomicUsize,
    /// Whether broadcasts are refused, as where some CPU lacks the instruction.
    pub refuses: AtomicBool,
    /// How often a CPU has waited for another.
    pub pauses: AtomicUsize,
    /// What CPUs have waited for too long.
    pub overdue: Mutex<Vec<Overdue>>,
    /// Frames that were released dirty.
    pub dirty: AtomicUsize,
    /// How often runs were released together.
    pub batches: AtomicUsize,
    /// The most stores, frames and nodes that were ever handled with interrupts masked.
    pub most_masked: AtomicUsize,
    /// Whether flushes are left out: what a test must notice.
    pub forgets: AtomicBool,
    /// How many more frames may be taken.
    pub allowance: AtomicUsize,
    /// How many translations of others a TLB held under the number of an address space as its root was loaded.
    pub mistaken: AtomicUsize,
    /// How many pages have each payload.
    payloads: Mutex<HashMap<u64, usize>>,
    /// The memory for deferred unmaps, if there is any.
    pub deferred: OnceLock<&'static Deferred>,
    /// What happens when that memory is asked for.
    pub on_deferred: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Where it is recorded what the CPUs do.
    pub log: OnceLock<&'static Log>,
    /// What happens while a CPU waits for another one.
    pub meanwhile: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// What happens when a frame is taken or given back.
    pub on_frame: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// What happens when frames are released.
    pub on_release: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// What a CPU does when it begins or ends a walk by software.
    pub on_walk: OnceLock<Box<dyn Fn(Walking) + Send + Sync>>,
    /// What happens when a frame of a node is looked up.
    pub on_memory: OnceLock<Box<dyn Fn(PhysAddr) + Send + Sync>>,
}

/// What an access meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    Memory(PhysAddr),
    Fault,
}

const V: u64 = 1;
const R: u64 = 2;
const W: u64 = 4;
const X: u64 = 8;
const U: u64 = 16;
const G: u64 = 32;
const A: u64 = 64;
const D: u64 = 128;

impl<const BROADCASTS: bool> Host<BROADCASTS> {
    pub fn new(frames: usize, cpus: usize) -> Self {
        let arena: Vec<Frame> = (0..frames).map(|_| Frame([const { AtomicU64::new(0) }; 512])).collect();
        let arena: &'static [Frame] = arena.leak();
        // The page tables name frames by number: the arena's provenance is theirs.
        let _ = arena.as_ptr().expose_provenance();
        Self {
            frames: arena,
            uses: Mutex::new(vec![Use::Free; frames]),
            records: Vec::leak((0..frames).map(|_| Record::new(0)).collect()),
            tlbs: (0..cpus).map(|_| Mutex::default()).collect(),
            interrupts: (0..cpus).map(|_| AtomicBool::new(false)).collect(),
            asid_bits: AtomicU32::new(16),
            flushes: AtomicUsize::new(0),
            full_flushes: AtomicUsize::new(0),
            interrupted: AtomicUsize::new(0),
            broadcasts: AtomicUsize::new(0),
            refuses: AtomicBool::new(false),
            pauses: AtomicUsize::new(0),
            overdue: Mutex::default(),
            dirty: AtomicUsize::new(0),
            batches: AtomicUsize::new(0),
            most_masked: AtomicUsize::new(0),
            forgets: AtomicBool::new(false),
            allowance: AtomicUsize::new(usize::MAX),
            mistaken: AtomicUsize::new(0),
            payloads: Mutex::default(),
            deferred: OnceLock::new(),
            on_deferred: OnceLock::new(),
            log: OnceLock::new(),
            meanwhile: OnceLock::new(),
            on_frame: OnceLock::new(),
            on_release: OnceLock::new(),
            on_walk: OnceLock::new(),
            on_memory: OnceLock::new(),
        }
    }

    /// Records what this CPU has done.
    pub fn say(&self, event: Event) {
        self.say_as(cpu(), event);
    }

    fn say_as(&self, cpu: usize, event: Event) {
        if let Some(log) = self.log.get() {
            log.record(cpu, event);
        }
    }

    fn memory_of(frame: usize, frames: usize, free: bool) -> Memory {
        Memory { at: (RAM + frame * 4096) as u64, bytes: frames as u64 * 4096, free }
    }

    fn uses(&self) -> MutexGuard<'_, Vec<Use>> {
        self.uses.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    fn index(at: PhysAddr) -> usize {
        (at.get() - RAM) / 4096
    }

    fn take(&self, as_what: Use) -> Option<PhysAddr> {
        let spent = |left: usize| if left == usize::MAX { Some(left) } else { left.checked_sub(1) };
        self.allowance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spent).ok()?;
        let mut uses = self.uses();
        let free = uses.iter().position(|&used| used == Use::Free)?;
        uses[free] = as_what;
        let memory = Self::memory_of(free, 1, false);
        self.say(if as_what == Use::Taken { Event::Node(memory) } else { Event::Frame(memory) });
        Some(PhysAddr::new(RAM + free * 4096))
    }

    /// Takes a frame for a user page, and writes `pattern` all over it.
    pub fn data(&self, pattern: u64) -> Option<Pfn> {
        let at = self.take(Use::Data(1))?;
        for word in &self.frames[Self::index(at)].0 {
            word.store(pattern, Ordering::Relaxed);
        }
        Some(Pfn::new(at.get() / 4096))
    }

    /// Takes a frame of [`data`](Self::data) back that was never mapped.
    pub fn put_back(&self, frame: Pfn) {
        self.release(Run { first: frame, len: 1, dirty: false });
    }

    /// Notes that one more page has a payload.
    pub fn hold_payload(&self, payload: u64) {
        *self.payloads.lock().unwrap().entry(payload).or_default() += 1;
    }

    /// Notes that one page less has it.
    pub fn let_go_payload(&self, payload: u64) {
        let mut payloads = self.payloads.lock().unwrap();
        let holders = payloads.get_mut(&payload).expect("a holder has the payload");
        *holders -= 1;
        if *holders == 0 {
            payloads.remove(&payload);
        }
    }

    /// Returns how many pages have a payload.
    pub fn holders(&self, payload: u64) -> usize {
        self.payloads.lock().unwrap().get(&payload).copied().unwrap_or(0)
    }

    /// Returns how often a frame is mapped.
    pub fn mappings(&self, frame: Pfn) -> Use {
        self.uses()[frame.get() - RAM / 4096]
    }

    pub fn in_use(&self) -> usize {
        self.uses().iter().filter(|&&used| used != Use::Free).count()
    }

    /// Returns a word of memory.
    pub fn word(&self, at: PhysAddr) -> &AtomicU64 {
        &self.frames[Self::index(at)].0[at.get() % 4096 / 8]
    }

    /// Accesses `at` as this CPU does in user mode: by its TLB, or by a walk that it then remembers. A leaf that does not
    /// allow the access faults, and stays remembered.
    pub fn access(&self, at: VirtAddr, store: bool) -> Met {
        self.access_by(at, store, |met| met)
    }

    /// Accesses `at` as [`access`](Self::access) does. No flush of this CPU's TLB ends before `use_it` returns: it waits for accesses under
    /// way.
    pub fn access_by<R>(&self, at: VirtAddr, store: bool, use_it: impl FnOnce(Met) -> R) -> R {
        let mut tlb = self.tlbs[cpu()].lock().unwrap();
        use_it(self.translate(&mut tlb, at, store))
    }

    fn translate(&self, tlb: &mut Tlb, at: VirtAddr, store: bool) -> Met {
        let (satp, page) = (tlb.satp, at.get() >> 12);
        if satp == 0 {
            return Met::Fault;
        }
        let asid = satp >> 44 & 0xffff;
        let key = (asid, page);
        let global =
            |(at, entry): (&(usize, usize), &Entry)| (at.1 == page && entry.bits & G != 0).then_some(*entry);
        let held = tlb.entries.get(&key).copied().or_else(|| tlb.entries.iter().find_map(global));
        let entry = match held {
            Some(entry) => entry,
            None => match self.walk(satp, at) {
                Some((entry, _)) => {
                    tlb.entries.insert(key, entry);
                    entry
                }
                None => return Met::Fault,
            },
        };
        let needed = if store { V | R | W | U } else { V | R | U };
        if entry.bits & needed != needed {
            return Met::Fault;
        }
        let status = if store { A | D } else { A };
        if entry.bits & status != status {
            // Svadu: set in memory, if the entry there still allows it; otherwise a fault.
            let Some((now, cell)) = self.walk(satp, at) else { return Met::Fault };
            if now.bits & needed != needed || now.frame != entry.frame {
                return Met::Fault;
            }
            let word = cell.load(Ordering::SeqCst);
            if cell.compare_exchange(word, word | status, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                return Met::Fault;
            }
            tlb.entries.insert(key, Entry { bits: entry.bits | status, ..entry });
        }
        Met::Memory(PhysAddr::new(entry.frame | at.get() & 0xfff))
    }

    /// Walks the table as the manual says, section 10.3.2.
    fn walk(&self, satp: usize, at: VirtAddr) -> Option<(Entry, &AtomicU64)> {
        let mut node = (satp & ((1 << 44) - 1)) << 12;
        for level in [2_usize, 1, 0] {
            let index = at.get() >> (12 + 9 * level) & 0x1ff;
            assert_ne!(self.uses()[Self::index(PhysAddr::new(node))], Use::Free, "a walk met a free frame");
            let cell = self.word(PhysAddr::new(node + index * 8));
            let word = cell.load(Ordering::SeqCst);
            if word & V == 0 {
                return None;
            }
            let below = (word >> 10 << 12) as usize & ((1 << 56) - 1);
            if word & (R | X) != 0 {
                let offset = at.get() & ((1 << (12 + 9 * level)) - 1) & !0xfff;
                return Some((Entry { frame: below | offset, bits: word & 0xff }, cell));
            }
            node = below;
        }
        None
    }

    /// Flushes what `flush` names from the TLBs of `cpus`.
    fn flush_on(&self, cpus: impl IntoIterator<Item = usize>, flush: &Flush<'_>, asid: Option<Asid>) {
        let of = |entry: &Entry, tag: usize| match asid {
            None => true,
            Some(asid) => tag == usize::from(asid.get()) && entry.bits & G == 0,
        };
        let named: Option<Vec<usize>> =
            flush.by_address_up_to(64).map(|pages| pages.map(|at| at.get() >> 12).collect());
        self.full_flushes.fetch_add(usize::from(named.is_none()), Ordering::Relaxed);
        let asid = asid.map(Asid::get);
        for flushed in cpus {
            let mut tlb = self.tlbs[flushed].lock().unwrap();
            // The log has a line for each CPU that is flushed, as if that CPU had flushed itself.
            for pages in named.iter().flatten().map(|page| Some(((page << 12) as u64, (page << 12) as u64))) {
                self.say_as(flushed, Event::Fence(Fence { pages, asid, ..Fence::default() }));
            }
            match &named {
                Some(named) => {
                    tlb.entries.retain(|&(tag, page), entry| !(of(entry, tag) && named.contains(&page)));
                }
                None => {
                    self.say_as(flushed, Event::Fence(Fence { asid, ..Fence::default() }));
                    tlb.entries.retain(|&(tag, _), entry| !of(entry, tag));
                }
            }
        }
    }

    fn broadcast(&self, flush: &Flush<'_>, asid: Option<Asid>, cpus: CpuSet) -> bool {
        if self.refuses.load(Ordering::Relaxed) {
            return false;
        }
        self.broadcasts.fetch_add(1, Ordering::Relaxed);
        if !self.forgets.load(Ordering::Relaxed) {
            self.flush_on(cpus, flush, asid);
        }
        true
    }

    /// Returns the value of this CPU's root register.
    pub fn root(&self) -> usize {
        self.tlbs[cpu()].lock().unwrap().satp
    }

    /// Tells whether this CPU was interrupted, once.
    pub fn pending(&self) -> bool {
        let pending = self.interrupts[cpu()].swap(false, Ordering::SeqCst);
        if pending {
            self.say(Event::IpiTake { id: 0 });
        }
        pending
    }
}

// SAFETY: frames are the arena's, each handed out once until it is given back, at a fixed address; records are an array
// beside it. A thread runs as one CPU, and takes interrupts where it asks for them, which is never in `masked`. The TLB is
// a map, from which `flush` takes what is named; a walk is under the TLB's lock.
unsafe impl<const BROADCASTS: bool> Kernel for Host<BROADCASTS> {
    type Machine = arch::Sv39;
    const BROADCAST: Option<Broadcast<Self>> = if BROADCASTS { Some(Self::broadcast) } else { None };

    fn deferred(&self) -> Option<&Deferred> {
        self.on_deferred.get().inspect(|on_deferred| on_deferred());
        self.deferred.get().copied()
    }

    fn cpu(&self) -> usize {
        cpu()
    }

    fn take_frame(&self) -> Option<PhysAddr> {
        self.on_frame.get().inspect(|on_frame| on_frame());
        self.take(Use::Taken)
    }

    fn give_frame(&self, frame: PhysAddr) {
        self.on_frame.get().inspect(|on_frame| on_frame());
        worked(1);
        let mut uses = self.uses();
        self.say(Event::Node(Self::memory_of(Self::index(frame), 1, true)));
        let was = std::mem::replace(&mut uses[Self::index(frame)], Use::Free);
        assert_eq!(was, Use::Taken, "{frame} is given back");
    }

    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        self.on_memory.get().inspect(|on_memory| on_memory(frame));
        self.frames[Self::index(frame)].0.as_ptr().cast_mut().cast()
    }

    fn user_memory<R>(&self, frame: PhysAddr, access: impl FnOnce(*mut u8) -> R) -> Option<R> {
        let index = frame.get().checked_sub(RAM)? / 4096;
        match self.uses().get_mut(index)? {
            // Nothing frees it meanwhile.
            Use::Data(mappings) => *mappings += 1,
            Use::Free | Use::Taken => return None,
        }
        let result = access(self.memory(frame));
        self.put_back(frame.pfn(PageSize::K4));
        Some(result)
    }

    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        self.records.get(Self::index(frame))
    }

    fn release(&self, run: Run) {
        worked(run.len);
        if let Some(on_release) = self.on_release.get() {
            on_release();
        }
        let first = run.first.get() - RAM / 4096;
        self.dirty.fetch_add(usize::from(run.dirty), Ordering::Relaxed);
        for (frame, used) in self.uses()[first..first + run.len].iter_mut().enumerate() {
            *used = match *used {
                Use::Data(1) => {
                    self.say(Event::Frame(Self::memory_of(first + frame, 1, true)));
                    // Its next owner finds what a stale translation would have read or overwritten.
                    self.frames[first + frame].0.iter().for_each(|word| word.store(!0, Ordering::Relaxed));
                    Use::Free
                }
                Use::Data(more) => Use::Data(more - 1),
                other => panic!("frame {frame} is released, and is {other:?}"),
            };
        }
    }

    fn release_all(&self, runs: &[Run]) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        runs.iter().for_each(|&run| self.release(run));
    }

    fn release_payload(&self, payload: u64) {
        self.let_go_payload(payload);
    }

    fn share_payload(&self, payload: u64) {
        self.hold_payload(payload);
    }

    fn share(&self, run: Run) {
        let first = run.first.get() - RAM / 4096;
        for used in &mut self.uses()[first..first + run.len] {
            match used {
                Use::Data(mappings) => *mappings += 1,
                other => panic!("{other:?} is shared"),
            }
        }
    }

    fn flush(&self, flush: &Flush<'_>, asid: Option<Asid>) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        if !self.forgets.load(Ordering::Relaxed) {
            self.flush_on(cpu()..cpu() + 1, flush, asid);
        }
    }

    fn stored(&self, store: Store) {
        worked(usize::from(!matches!(store, Store::Release | Store::Fence)));
        self.say(match store {
            Store::Word { at, value } => Event::Write { at: at as u64, value },
            Store::Exchange { at, old, new } => Event::Swap { at: at as u64, old, new },
            Store::Release => Event::Barrier(Barrier::Release),
            Store::Fence => Event::Barrier(Barrier::Complete),
        });
    }

    fn walking(&self, walk: Walking) {
        if let Some(on_walk) = self.on_walk.get() {
            on_walk(walk);
        }
    }

    fn interrupt(&self, cpus: CpuSet) {
        // A log has 64 CPUs at most.
        let bits = cpus.into_iter().filter(|&cpu| cpu < 64).fold(0, |bits, cpu| bits | 1 << cpu);
        self.say(Event::IpiSend { cpus: bits, id: 0 });
        for cpu in cpus {
            self.interrupted.fetch_add(1, Ordering::Relaxed);
            self.interrupts[cpu].store(true, Ordering::SeqCst);
        }
    }

    const PATIENCE: u32 = 1 << 12;

    fn overdue(&self, what: Overdue) {
        self.overdue.lock().unwrap().push(what);
    }

    fn pause(&self) {
        self.pauses.fetch_add(1, Ordering::Relaxed);
        match self.meanwhile.get() {
            Some(meanwhile) => meanwhile(),
            None => std::thread::yield_now(),
        }
    }

    fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        struct Unmasked<'h>(&'h AtomicUsize);
        impl Drop for Unmasked<'_> {
            fn drop(&mut self) {
                let (depth, work) = MASKED.get();
                self.0.fetch_max(work, Ordering::Relaxed);
                MASKED.set((depth - 1, if depth == 1 { 0 } else { work }));
            }
        }
        let (depth, work) = MASKED.get();
        MASKED.set((depth + 1, if depth == 0 { 0 } else { work }));
        let _unmasked = Unmasked(&self.most_masked);
        f()
    }

    fn load(&self, root: usize) {
        let mut tlb = self.tlbs[cpu()].lock().unwrap();
        let of_others = |(&(tag, page), entry): (&(usize, usize), &Entry)| {
            let now = self.walk(root, VirtAddr::new(page << 12)).map(|(now, _)| now.frame);
            tag == root >> 44 & 0xffff && now != Some(entry.frame)
        };
        let mistaken = tlb.entries.iter().filter(|&held| of_others(held)).count();
        self.mistaken.fetch_add(mistaken, Ordering::Relaxed);
        tlb.satp = root;
        self.say(Event::Root { value: root as u64, high: false });
    }

    fn unload(&self) {
        self.tlbs[cpu()].lock().unwrap().satp = 0;
        self.say(Event::Root { value: 0, high: false });
    }

    fn asid_bits(&self) -> u32 {
        self.asid_bits.load(Ordering::Relaxed)
    }
}

/// Returns a machine with so many frames of memory.
pub fn machine<const CPUS: usize>(frames: usize) -> &'static Mmu<Host, CPUS> {
    any_machine(frames)
}

/// Returns a machine with so many frames of memory, which broadcasts its flushes or does not.
pub fn any_machine<const CPUS: usize, const BROADCASTS: bool>(
    frames: usize,
) -> &'static Mmu<Host<BROADCASTS>, CPUS> {
    let mmu: &'static Mmu<Host<BROADCASTS>, CPUS> = Box::leak(Box::new(Mmu::new(Host::new(frames, CPUS))));
    keep(Box::new(mmu));
    mmu
}

/// A kernel has its machine in a static; here it is found from one, so that nothing counts as lost.
pub fn keep(machine: Box<dyn Any + Send + Sync>) {
    static MACHINES: Mutex<Vec<Box<dyn Any + Send + Sync>>> = Mutex::new(Vec::new());
    MACHINES.lock().unwrap_or_else(|poison| poison.into_inner()).push(machine);
}
