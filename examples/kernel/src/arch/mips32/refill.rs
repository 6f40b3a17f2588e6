//! The refill handler, and what it looks at: a software TLB cache of this CPU's own, and behind that the table of the address
//! space that this CPU runs.
//!
//! ```text
//!   TLB miss --> Context:  the entry for the pair in this CPU's cache --> hit: 12 instructions
//!                ErrorEPC: the root node of the table --------------> miss: walk it, and fill the entry of the cache
//! ```
//!
//! All CPUs run the same words; Context and ErrorEPC are each CPU's own. Whatever is flushed goes from the TLB first, then
//! from the cache: what is in neither comes from the table again.

use core::mem::MaybeUninit;
use core::slice;

use spin::Mutex;
use tlbkit::{Asid, PageSize, Pages, VirtAddr};
use tlbkit_refill::features::Features;
use tlbkit_refill::handler::{Form, Front, Handler, Mpt, Place, Root, Spec, Stlb, Walk, Write};
use tlbkit_stlb::{Direct, Invalidate as _, Mips32, Space};

use super::{cp0, tlb, vectors};
use crate::memory::{CPUS, Words};

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
    // The plain form uses no memory but the table.
    block: 0x8000_1000,
    root: Root::ErrorEpc,
    front: match Stlb::new(WINDOWS as u32, SETS) {
        Ok(stlb) => Front::Stlb(stlb),
        Err(_) => panic!("the windows are 8 MiB apart in kseg0"),
    },
    walk: match Mpt::of::<<super::Machine as tlbkit::Machine>::Geometry>() {
        Ok(walk) => Walk::Mpt(walk),
        Err(_) => panic!("two levels of ten bits"),
    },
    form: Form::PLAIN,
    write: Write::Random,
};
const HANDLER: Handler = match SPEC.assemble() {
    Ok(handler) => handler,
    Err(_) => panic!("the handler does not fit"),
};

/// A root node without an entry, for CPUs that run no address space.
static EMPTY: Words = Words::new();

/// Writes the handler to its vector.
pub(super) fn install() {
    // SAFETY: the handler goes by the root that `set_root` has written.
    unsafe { vectors::install(HANDLER.refill.words(), HANDLER.general.words(), HANDLER.tail.words()) };
}

/// Makes this CPU's TLB and cache, whatever they hold, empty ones. A CPU calls it once, before it runs anything.
pub(super) fn prepare() {
    tlb::reset();
    let window = WINDOW * super::cpu();
    let first = core::ptr::with_exposed_provenance_mut::<MaybeUninit<u8>>(WINDOWS + window);
    // SAFETY: the window is memory that nothing else uses, and its CPU takes it once.
    let memory = unsafe { slice::from_raw_parts_mut(first, 16 * SETS) };
    let cache = Cache::new(memory).ok();
    assert!(cache.is_some(), "the window is too small");
    *CACHES[super::cpu()].lock() = cache;
    // SAFETY: no address space runs; the handler finds this CPU's cache there.
    unsafe {
        cp0::context::write(SPEC.context() + window as u32);
        set_root(0);
    }
}

/// Calls `forget` with this CPU's cache.
fn cached(forget: impl FnOnce(&mut Cache)) {
    if let Some(cache) = &mut *CACHES[super::cpu()].lock() {
        forget(cache);
    }
}

/// Returns the name of an address space in a cache. Each of the machine's 8 bits has its place there.
fn space(asid: u16) -> Option<Space<Mips32>> {
    Asid::new(asid, 8).and_then(|asid| Space::new(asid).ok())
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
    // SAFETY: the caller's promise; nobody else uses ErrorEPC while there is no reset, NMI or cache error.
    unsafe {
        cp0::error_epc::write(node as u32);
        tlb::switch((root & ASID) as u32);
    }
}
