//! Faults that are planted in the kernel, one a boot: the checks must find each.

use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::arch::{self, CPUS};

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Planted(&'static str, u8);

/// No TLB is flushed.
pub(crate) const NO_FLUSH: Planted = Planted("no-flush", 1);
/// No CPU waits for the other CPUs' TLBs: a CPU that is asked to flush its own replies first, and flushes when it takes
/// up a thread of another process.
pub(crate) const NO_WAIT: Planted = Planted("no-wait", 2);
/// A frame is freed before its page is unmapped.
pub(crate) const EARLY_FREE: Planted = Planted("early-free", 3);
/// A store to a copy-on-write page gets the right to write, and no copy.
pub(crate) const NO_COW: Planted = Planted("no-cow", 4);
/// A CPU that takes up an address space flushes nothing of what changed while it ran another one.
pub(crate) const NO_SWITCH_FLUSH: Planted = Planted("no-switch-flush", 5);

static CHOSEN: AtomicU8 = AtomicU8::new(0);

impl Planted {
    /// Tells whether this boot has the fault.
    pub(crate) fn planted(self) -> bool {
        CHOSEN.load(Ordering::Relaxed) == self.1
    }
}

/// Plants the fault of this name.
pub(crate) fn plant(name: &str) {
    let all = [NO_FLUSH, NO_WAIT, EARLY_FREE, NO_COW, NO_SWITCH_FLUSH];
    let Some(fault) = all.into_iter().find(|fault| fault.0 == name) else {
        panic!("there is no fault {name:?}");
    };
    CHOSEN.store(fault.1, Ordering::Relaxed);
}

/// Tells whether there is a fault at all.
pub(crate) fn any() -> bool {
    CHOSEN.load(Ordering::Relaxed) != 0
}

/// Whether another CPU asks this one to flush, and whether this one still has to.
static ASKED: [AtomicBool; CPUS] = [const { AtomicBool::new(false) }; CPUS];
static LATER: [AtomicBool; CPUS] = [const { AtomicBool::new(false) }; CPUS];

/// Runs `serve`, which does what other CPUs ask of this one.
pub(crate) fn asked(serve: impl FnOnce()) {
    ASKED[arch::cpu()].store(true, Ordering::Relaxed);
    serve();
    ASKED[arch::cpu()].store(false, Ordering::Relaxed);
}

/// Whether this CPU takes up an address space.
static SWITCHING: [AtomicBool; CPUS] = [const { AtomicBool::new(false) }; CPUS];

/// Runs `switch`, which takes up an address space.
pub(crate) fn switching<R>(switch: impl FnOnce() -> R) -> R {
    SWITCHING[arch::cpu()].store(true, Ordering::Relaxed);
    let result = switch();
    SWITCHING[arch::cpu()].store(false, Ordering::Relaxed);
    result
}

/// Tells whether a flush that this CPU is to carry out is left out, for now or for good.
pub(crate) fn leaves_out_flush() -> bool {
    any() && leaves_out_this_flush()
}

fn leaves_out_this_flush() -> bool {
    let later = NO_WAIT.planted() && ASKED[arch::cpu()].load(Ordering::Relaxed);
    if later {
        LATER[arch::cpu()].store(true, Ordering::Relaxed);
    }
    let switching = NO_SWITCH_FLUSH.planted() && SWITCHING[arch::cpu()].load(Ordering::Relaxed);
    later || switching || NO_FLUSH.planted()
}

/// Carries out what was left out for now.
pub(crate) fn flush_late() {
    if LATER[arch::cpu()].swap(false, Ordering::Relaxed) {
        arch::before_fences();
        arch::fence_all();
        arch::after_fences();
    }
}
