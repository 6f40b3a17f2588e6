//! The TLB, and the register of the lower half's root.

use core::arch::asm;

use tlbkit::{Asid, Flush, PageSize};
use tlbkit_witness::event::Barrier;

use crate::words::Words;
use crate::{faults, witness};

/// How many bits an ASID has: `boot` checks that.
pub(crate) const ASID_BITS: u32 = 16;

/// How a CPU invalidates the TLBs of all CPUs, unless each is interrupted and invalidates its own.
pub(crate) const BROADCAST: Option<fn(&Flush<'_>, Option<Asid>) -> bool> =
    if cfg!(any(feature = "interrupts", feature = "one-cpu")) { None } else { Some(broadcast) };

/// Invalidates on every CPU what `flush` names. Two of the planted faults are those of CPUs that invalidate for themselves.
fn broadcast(flush: &Flush<'_>, asid: Option<Asid>) -> bool {
    if faults::NO_WAIT.planted() || faults::NO_SWITCH_FLUSH.planted() {
        return false;
    }
    before_fences();
    match (asid.map(Asid::get), flush.by_address()) {
        (Some(asid), Some(pages)) => pages.for_each(|at| fence_on(true, at.get(), asid)),
        (Some(asid), None) => fence_asid_on(true, asid),
        (None, _) => fence_all_on(true),
    }
    after_fences();
    true
}

/// What TTBR0 has while no address space runs: nothing is mapped.
static EMPTY: Words = Words::new();

/// Lets what was stored be seen by walks that follow.
pub(crate) fn before_fences() {
    // SAFETY: a barrier is always allowed.
    unsafe { asm!("dsb ishst", options(nostack, preserves_flags)) };
    witness::barrier(Barrier::Stores);
}

/// Waits until the TLBs have dropped what was flushed, and the walks that may have used it have ended.
pub(crate) fn after_fences() {
    // SAFETY: a barrier is always allowed.
    unsafe { asm!("dsb ish", "isb", options(nostack, preserves_flags)) };
    witness::barrier(Barrier::Complete);
    witness::barrier(Barrier::Context);
}

/// Invalidates by an operand, here or everywhere.
macro_rules! invalidate {
    ($on_all:ident, $here:literal, $all:literal $(, $operand:expr)?) => {{
        // SAFETY: forgetting translations is always allowed.
        unsafe {
            if $on_all {
                asm!($all, $(in(reg) $operand,)? options(nostack, preserves_flags));
            } else {
                asm!($here, $(in(reg) $operand,)? options(nostack, preserves_flags));
            }
        }
    }};
}

/// Forgets the translation of an address in one address space, and the links on the way.
pub(crate) fn fence(at: usize, asid: u16) {
    fence_on(false, at, asid);
}

/// Forgets the translations of one address space.
pub(crate) fn fence_asid(asid: u16) {
    fence_asid_on(false, asid);
}

/// Forgets every translation.
pub(crate) fn fence_all() {
    fence_all_on(false);
}

fn fence_on(all: bool, at: usize, asid: u16) {
    let page = at >> PageSize::K4.shift() & ((1 << 44) - 1);
    invalidate!(all, "tlbi vae1, {}", "tlbi vae1is, {}", usize::from(asid) << 48 | page);
    witness::fence_of(all, Some(at), Some(asid));
}

fn fence_asid_on(all: bool, asid: u16) {
    invalidate!(all, "tlbi aside1, {}", "tlbi aside1is, {}", usize::from(asid) << 48);
    witness::fence_of(all, None, Some(asid));
}

fn fence_all_on(all: bool) {
    invalidate!(all, "tlbi vmalle1", "tlbi vmalle1is");
    witness::fence_of(all, None, None);
}

/// Translates the lower half by this root from now on; by none if it is 0.
///
/// # Safety
///
/// It is the root of an address space that lives until another one is set, or 0.
pub(crate) unsafe fn set_root(root: usize) {
    let value = if root == 0 { empty() } else { root };
    // SAFETY: the caller's promise; the kernel is in the upper half. The last barrier waits for walks from the old root.
    unsafe { asm!("msr ttbr0_el1, {}", "isb", "dsb nsh", in(reg) value, options(nostack, preserves_flags)) };
    witness::root(root);
}

/// Returns the root under which nothing is mapped.
pub(super) fn empty() -> usize {
    super::physical(core::ptr::from_ref(&EMPTY).addr())
}
