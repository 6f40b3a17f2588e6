//! The refill handler, and what it looks at: a software TLB cache of this CPU's own, and behind that the table of the address
//! space that this CPU runs.
//!
//! ```text
//!   TLB miss --> log:      what missed, and what is replaced for it
//!                Context:  the entry for the pair in this CPU's cache --> hit
//!                ErrorEPC: the root node of the table --------------> miss: walk it, and fill the entry of the cache
//! ```
//!
//! Each CPU has a copy of the words, for its own log is named there. Whatever is flushed goes from the TLB first, then from the
//! cache: what is in neither comes from the table again. The handler loads pages of every size; the kernel hears from the log
//! which of them should be larger.

use core::mem::MaybeUninit;
use core::slice;
#[cfg(not(feature = "one-cpu"))]
use core::sync::atomic::AtomicU32;

use spin::Mutex;
use tlbkit::{Asid, Guarded, PageSize, Pages, VirtAddr};
use tlbkit_malta::{cp0, tlb, vectors};
use tlbkit_refill::features::Features;
use tlbkit_refill::handler::{Form, Front, Gpt, Mpt, Place, Root, Spec, Stlb, Walk, Write};
use tlbkit_refill::{Block, Log};
use tlbkit_stlb::{AsidTag, Direct, Invalidate as _, Mips32};

use crate::arch::CPUS;
use crate::growth::{MISSES, Miss};
use crate::words::Words;

/// The caches: one for each CPU, in a window of 8 MiB, because Context names no less. Behind the kernel and its programs.
const WINDOWS: usize = super::KSEG0 + (128 << 20);
const WINDOW: usize = 8 << 20;
/// Entries of a cache: 8 KiB.
const SETS: usize = 512;

type Cache = Direct<'static, Mips32, SETS>;

/// Each CPU's cache, once it has one. No other CPU takes the lock.
static CACHES: [Mutex<Option<Cache>>; CPUS] = [const { Mutex::new(None) }; CPUS];

const SPEC: Spec = Spec {
    features: Features::R2,
    place: Place::VECTOR,
    // That of each CPU comes here.
    block: super::KSEG0 as u32,
    root: Root::ErrorEpc,
    front: match Stlb::new(WINDOWS as u32, SETS) {
        Ok(stlb) => Front::Stlb(stlb),
        Err(_) => panic!("the windows are 8 MiB apart in kseg0"),
    },
    walk: match Mpt::of::<<super::Machine as tlbkit::Machine>::Geometry>() {
        Ok(walk) => Walk::Mpt(walk),
        Err(_) => panic!("two levels of ten bits"),
    },
    // Pages grow while other CPUs miss in them.
    form: Form { shared: !ALONE, ..Form::BOTH },
    write: Write::Index,
};
const _: () = assert!(SPEC.assemble().is_ok(), "the handler does not fit");

/// The handler of guarded tables. The root word changes with the table: the handler loads it from the beginning of the address
/// space's control block.
const GUARDED: Spec = Spec {
    root: Root::Cell,
    walk: match Gpt::fixed::<<super::Machine as tlbkit::Machine>::Geometry>(Guarded::WIDTH) {
        Ok(walk) => Walk::Gpt(walk),
        Err(_) => panic!("nodes of 16 slots"),
    },
    form: Form::REPORTING,
    ..SPEC
};
const _: () = assert!(GUARDED.assemble().is_ok(), "the handler does not fit");

/// The handler of this machine's tables.
const OWN: Spec = if IS_GUARDED { GUARDED } else { SPEC };
const IS_GUARDED: bool = cfg!(feature = "guarded");

/// Each CPU's vectors, the words that its handler and the kernel share, and what has missed.
static VECTORS: [Words; CPUS] = [const { Words::new() }; CPUS];
static BLOCKS: [Block; CPUS] = [const { Block::new() }; CPUS];
static LOGS: [Log<MISSES>; CPUS] = [const { Log::new() }; CPUS];

/// A root node without an entry, or a root word that leads nowhere, for CPUs that run no address space.
static EMPTY: Words = Words::new();

/// Makes this CPU's TLB and cache, whatever they hold, empty ones, and writes its handler. A CPU calls it once, before it runs
/// anything.
pub(super) fn prepare() {
    tlb::reset();
    let cpu = super::cpu();
    let window = WINDOW * cpu;
    let first = core::ptr::with_exposed_provenance_mut::<MaybeUninit<u8>>(WINDOWS + window);
    // SAFETY: the window is memory that nothing else uses, and its CPU takes it once.
    let memory = unsafe { slice::from_raw_parts_mut(first, 16 * SETS) };
    let cache = Cache::new(memory).ok();
    assert!(cache.is_some(), "the window is too small");
    *CACHES[cpu].lock() = cache;
    LOGS[cpu].attach(&BLOCKS[cpu], (&raw const LOGS[cpu]).addr() as u32);
    let Ok(handler) = (Spec { block: (&raw const BLOCKS[cpu]).addr() as u32, ..OWN }).assemble() else {
        panic!("the handler of a block in kseg0 fits");
    };
    let vectors = (&raw const VECTORS[cpu]).expose_provenance();
    // SAFETY: no address space runs; the handler goes by the root that `set_root` writes, finds this CPU's cache in Context, and
    // its block and log are this CPU's alone. EBase is written while the vectors are those of a reset, and no exception comes.
    unsafe {
        vectors::install_at(vectors, handler.refill.words(), handler.general.words(), handler.tail.words());
        cp0::status::write(BOOT_VECTORS);
        cp0::ebase::write(vectors as u32);
        cp0::status::write(0);
        cp0::context::write(OWN.context() + window as u32);
        set_root(0);
    }
}

/// Status: the vectors are those of a reset.
const BOOT_VECTORS: u32 = 1 << 22;

/// Hands over what has missed on this CPU since the last call, and tells whether there was no room for more: then a fault may be
/// nothing but a miss that the handler could not write down.
pub(crate) fn misses(mut each: impl FnMut(Miss)) -> bool {
    let cpu = super::cpu();
    let mut count = 0;
    LOGS[cpu].drain(&BLOCKS[cpu], |miss| {
        count += 1;
        let gone = miss.evicted;
        let is_ours = !gone.is_empty() && (gone.entry_hi ^ miss.entry_hi) & tlb::ASID == 0;
        // An entry for larger pages begins at the bits above its mask.
        let first = gone.entry_hi & tlb::VPN2 & !gone.page_mask;
        let page = |at: u32| VirtAddr::new(at as usize).vpn(PageSize::K4);
        each(Miss { page: page(miss.at), evicted: is_ours.then(|| page(first)) });
    });
    count == MISSES
}

/// Returns how many pairs of this CPU's TLB entries match one address. There must be none: it is a machine check.
pub(crate) fn conflicts() -> usize {
    tlb::duplicates()
}

/// Whether no other CPU walks a table that this one changes.
pub(crate) const ALONE: bool = CPUS == 1;

/// The sizes that pages grow to. Alone, those of TLB entries, which map pairs: of pages of 4, 16 and 64 KiB. Beside other CPUs a
/// pair of 4 KiB, and single pages of 64 and 256 KiB: of these an entry maps half. In guarded tables pages do not grow.
pub(crate) const SIZES: &[PageSize] = if IS_GUARDED {
    &[]
} else if ALONE {
    &[size(13), size(15), size(17)]
} else {
    &[size(13), size(16), size(18)]
};

const fn size(shift: u32) -> PageSize {
    match PageSize::from_shift(shift) {
        Some(size) => size,
        None => panic!("a size"),
    }
}

/// Returns the size of the pages that fill one of [`SIZES`].
pub(crate) fn page_size(size: PageSize) -> PageSize {
    // A page has 4 KiB times a power of four.
    PageSize::from_shift(size.shift() & !1).unwrap_or(PageSize::K4)
}

/// Calls `forget` with this CPU's cache.
fn cached(forget: impl FnOnce(&mut Cache)) {
    if let Some(cache) = &mut *CACHES[super::cpu()].lock() {
        forget(cache);
    }
}

/// Returns the name of an address space in a cache. Each of the machine's 8 bits has its place there.
fn space(asid: u16) -> Option<AsidTag<Mips32>> {
    Asid::new(asid, 8).and_then(|asid| AsidTag::new(asid).ok())
}

/// Forgets the translation of an address in one address space.
pub(crate) fn fence(at: usize, asid: u16) {
    tlb::forget(at as u32, asid.into());
    let page = Pages::one(VirtAddr::new(at).vpn(PageSize::K4));
    cached(|cache| match space(asid) {
        Some(space) => cache.invalidate_pages(space, page),
        None => cache.invalidate_all(),
    });
}

/// Forgets the translations of one address space.
pub(crate) fn fence_asid(asid: u16) {
    tlb::forget_all(|entry| entry.is_in(asid.into()));
    cached(|cache| match space(asid) {
        Some(space) => cache.invalidate_space(space),
        None => cache.invalidate_all(),
    });
}

/// Forgets every translation.
pub(crate) fn fence_all() {
    tlb::forget_all(|_| true);
    cached(|cache| cache.invalidate_all());
}

/// Lets this CPU walk the table of `root`, a value of [`Machine::root`](tlbkit::Machine::root), from now on; none if it is 0.
///
/// # Safety
///
/// It is the root of an address space that lives until another one is set, or 0.
pub(crate) unsafe fn set_root(root: usize) {
    const ASID: usize = 0xff;
    let node = if root == 0 { core::ptr::from_ref(&EMPTY).addr() } else { super::KSEG0 | root & !0xfff };
    // SAFETY: the caller's promise; no other code uses ErrorEPC while there is no reset, NMI or cache error.
    unsafe {
        cp0::error_epc::write(node as u32);
        tlb::switch((root & ASID) as u32);
    }
}

/// Writes another handler for this CPU: it walks the table of [`plain_root`], with nothing in front, and tells of no miss. Its block is
/// wired near register 0, from where it loads the root with one instruction. If there is a `flag`, each miss goes to the kernel while
/// that is not zero.
#[cfg(not(feature = "one-cpu"))]
pub(crate) fn install_plain(flag: Option<&'static AtomicU32>) {
    /// Words up to the general vector.
    const ROOM: usize = Place::VECTOR.general as usize / 4;
    let mut words: heapless::Vec<u32, ROOM> = heapless::Vec::new();
    if let Some(flag) = flag {
        let flag = core::ptr::from_ref(flag).addr() as u32;
        // The lower half is added with its sign.
        let high = flag.wrapping_add(0x8000) >> 16;
        words.extend([
            0x3c1a_0000 | high,              // lui  k0, %hi(flag)
            0x8f5a_0000 | flag & 0xffff,     // lw   k0, %lo(flag)(k0)
            0x1740_0000 | (ROOM as u32 - 3), // bnez k0, the general vector
            0,                               // nop
        ]);
    }
    let before = words.len();
    let place = Place {
        general: Place::VECTOR.general - 4 * before as i32,
        room: Place::VECTOR.room - before,
        tail: Place::VECTOR.tail - 4 * before as i32,
        ..Place::VECTOR
    };
    let block = (&raw const BLOCKS[super::cpu()]).addr() as u32;
    // SAFETY: the first entry of the TLB is this one's, or was no other's.
    unsafe { tlb::wire(block) };
    let (block, root) = (tlb::near(block), Root::Block);
    let (front, form, write) = (Front::None, Form::PLAIN, Write::Random);
    let spec = Spec { place, block, root, front, form, write, ..SPEC };
    let Ok(handler) = spec.assemble() else { panic!("the handler fits") };
    words.extend(handler.refill.words().iter().copied());
    let vectors = (&raw const VECTORS[super::cpu()]).expose_provenance();
    // SAFETY: no address space runs. The words before the handler pass a miss on with everything but k0 intact.
    unsafe { vectors::install_at(vectors, &words, handler.general.words(), handler.tail.words()) };
}

/// Lets this CPU walk the table whose root node is at an address in kseg0.
#[cfg(not(feature = "one-cpu"))]
pub(crate) fn plain_root(node: usize) {
    BLOCKS[super::cpu()].set_root(node as u32);
}
