//! What the kernel records for the witness (`docs/witness.md`), if the boot loader says `witness`. A kernel for one CPU, whose
//! instructions are counted, can record only with the feature `witness`.
//!
//! The recorder is in memory that `cargo xtask boot --witness` reads when the machine has stopped.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tlbkit::{PageSize, Pages, Pfn, PhysAddr, Store, Walking};
use tlbkit_witness::Recorder;
use tlbkit_witness::event::{Barrier, Event, Fence, Memory};

use crate::arch::{self, CPUS};
use crate::report::say;

/// Whether the kernel can record at all.
pub(crate) const RECORDS: bool = cfg!(feature = "witness") || CPUS > 1;
/// The bytes of an event.
const EVENT: usize = 5 * size_of::<usize>();
/// How many events each CPU has room for.
const EVENTS: usize = if RECORDS { (arch::RECORD_LEN / CPUS - 64) / EVENT - 2 } else { 0 };

type Record = Recorder<CPUS, EVENTS>;

const _: () = assert!(size_of::<Record>() <= arch::RECORD_LEN);

/// Whether the kernel records, and whether it records the words of page tables, too.
static ON: AtomicBool = AtomicBool::new(false);
static WORDS: AtomicBool = AtomicBool::new(false);

fn recorder() -> &'static Record {
    // SAFETY: the memory has no other owner, and was zero when the machine started: a recorder that has recorded
    // nothing. Its fields are atomic.
    unsafe { &*core::ptr::with_exposed_provenance(arch::RECORD) }
}

/// Tells whether the kernel records.
fn records() -> bool {
    RECORDS && ON.load(Ordering::Relaxed)
}

/// Begins to record, if that is wanted, and says where: all but the words of page tables.
///
/// What maps the kernel's memory reaches every frame at any time, and never changes: if its words were recorded, no frame could be
/// freed. But a CPU loads its root as any other, so its nodes and its fences are recorded.
pub(crate) fn begin(wanted: bool) {
    if !RECORDS || !wanted {
        return;
    }
    ON.store(true, Ordering::Relaxed);
    let (at, word) = (arch::physical(arch::RECORD), size_of::<usize>());
    say(format_args!("recorder at={at} word={word} cpus={CPUS} events={EVENTS}"));
    if arch::notes() {
        record(Event::UsesDirty);
    }
    if !arch::SIZES.is_empty() && CPUS > 1 {
        record(Event::UsesHalves);
    }
}

/// Records the words of page tables, too, from now on: the kernel has mapped its memory.
pub(crate) fn begin_words() {
    WORDS.store(true, Ordering::Relaxed);
}

fn record(event: Event) {
    if records() {
        recorder().record(arch::cpu(), event);
    }
}

/// Records a store to a page table.
pub(crate) fn stored(store: Store) {
    if matches!(store, Store::Word { .. } | Store::Exchange { .. }) && !WORDS.load(Ordering::Relaxed) {
        return;
    }
    record(match store {
        Store::Word { at, value } => Event::Write { at: at as u64, value },
        Store::Exchange { at, old, new } => Event::Swap { at: at as u64, old, new },
        Store::Release => Event::Barrier(Barrier::Release),
        // A fence of Rust's is `dmb ish` there, which no walk waits for.
        Store::Fence if cfg!(target_arch = "aarch64") => Event::Barrier(Barrier::Release),
        Store::Fence => Event::Barrier(Barrier::Complete),
    });
}

/// Records that this CPU begins or ends a walk by software, for which changes wait that no CPU is interrupted for. The value of the root
/// register is the address of the root node, on the machine that has them.
pub(crate) fn walking(walk: Walking) {
    if !WORDS.load(Ordering::Relaxed) {
        return;
    }
    record(match walk {
        Walking::Begin { root, uses } => Event::WalkBegin { root: root.get() as u64, uses },
        Walking::End => Event::WalkEnd,
    });
}

/// Records that a node was taken, or is about to be free.
pub(crate) fn node(at: PhysAddr, free: bool) {
    record(Event::Node(Memory { at: at.get() as u64, bytes: PageSize::K4.bytes() as u64, free }));
}

/// Records that a frame of a user page was taken, or is about to be free.
pub(crate) fn frame(frame: Pfn, free: bool) {
    let at = frame.address(PageSize::K4).get() as u64;
    record(Event::Frame(Memory { at, bytes: PageSize::K4.bytes() as u64, free }));
}

/// Records that this CPU translates by a root from now on, or by none.
pub(crate) fn root(value: usize) {
    record(Event::Root { value: value as u64, high: false });
}

/// Records that this CPU has forgotten the translations of an address, or of all, in an address space, or in all.
#[allow(dead_code, reason = "AArch64 says which it was")]
pub(crate) fn fence(at: Option<usize>, asid: Option<u16>) {
    fence_of(false, at, asid);
}

/// Records the same, on every CPU if it was made so.
pub(crate) fn fence_of(broadcast: bool, at: Option<usize>, asid: Option<u16>) {
    let pages = at.map(|at| (at as u64, at as u64));
    record(Event::Fence(Fence { pages, asid, broadcast, leaf: false }));
}

/// Records a barrier.
#[allow(dead_code, reason = "on some machines a fence is its own barrier")]
pub(crate) fn barrier(barrier: Barrier) {
    record(Event::Barrier(barrier));
}

/// By the CPU that is interrupted and the one that interrupts: how many interrupts were sent, and how many of them taken.
static SENT: [[AtomicUsize; CPUS]; CPUS] = [const { [const { AtomicUsize::new(0) }; CPUS] }; CPUS];
static TAKEN: [[AtomicUsize; CPUS]; CPUS] = [const { [const { AtomicUsize::new(0) }; CPUS] }; CPUS];

/// The name of an interrupt. One that comes while another is pending is taken with it, so that each has a name of its own.
fn name(to: usize, from: usize, count: usize) -> u64 {
    (count * CPUS * CPUS + to * CPUS + from) as u64
}

/// Records interrupts to the CPUs whose bits are set, before they are sent.
pub(crate) fn sending(cpus: usize) {
    if !records() {
        return;
    }
    let from = arch::cpu();
    for to in (0..CPUS).filter(|to| cpus >> to & 1 != 0) {
        let count = SENT[to][from].load(Ordering::Relaxed);
        record(Event::IpiSend { cpus: 1 << to, id: name(to, from, count) });
        SENT[to][from].store(count + 1, Ordering::Release);
    }
}

/// Records the interrupts that this CPU has taken.
pub(crate) fn taken() {
    if !records() {
        return;
    }
    let to = arch::cpu();
    for from in 0..CPUS {
        let (sent, taken) = (SENT[to][from].load(Ordering::Acquire), TAKEN[to][from].load(Ordering::Relaxed));
        (taken..sent).for_each(|count| record(Event::IpiTake { id: name(to, from, count) }));
        TAKEN[to][from].store(sent, Ordering::Relaxed);
    }
}

/// Makes a change of an address space that this CPU runs, and promises that what it takes away from `pages` is taken away
/// everywhere when it has returned.
pub(crate) fn lowering<R>(pages: Pages, change: impl FnOnce() -> R) -> R {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    if !records() {
        return change();
    }
    let id = NEXT.fetch_add(1, Ordering::Relaxed) as u64;
    let (first, last) = (pages.first().address(PageSize::K4), pages.last().address(PageSize::K4));
    record(Event::Lower {
        id,
        first: first.get() as u64,
        last: last.get() as u64 | PageSize::K4.mask() as u64,
        root: None,
    });
    let result = change();
    record(Event::Done { id });
    result
}
