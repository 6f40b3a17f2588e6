//! How long a thread runs, and how long a CPU waits for another one.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::arch::{self, CPUS};

/// How long a thread runs, and a CPU that has none waits, in microseconds.
const SLICE: u32 = 5_000;
/// How long a CPU waits for another one before it looks again, the first time; twice as long each time after that, up to
/// `PAUSE << DOUBLED`. Where fewer host CPUs than there are CPUs here have other work, a CPU that looks often keeps an
/// emulator's lock from the CPU for which all others wait.
const PAUSE: u32 = 20;
const DOUBLED: u32 = 6;

/// How often each CPU has paused since it ran a thread.
static PAUSES: [AtomicU32; CPUS] = [const { AtomicU32::new(0) }; CPUS];

/// Lets time pass while this CPU waits for another one, which an emulator or a hypervisor runs meanwhile.
pub(crate) fn pause() {
    let pauses = &PAUSES[arch::cpu()];
    let count = pauses.load(Ordering::Relaxed);
    pauses.store(count + 1, Ordering::Relaxed);
    arch::wait(PAUSE << count.min(DOUBLED));
}

/// Waits for an interrupt, or for as long as a thread runs.
pub(crate) fn idle() {
    arch::wait(SLICE);
}

/// A thread begins to run here.
pub(crate) fn begin_slice() {
    PAUSES[arch::cpu()].store(0, Ordering::Relaxed);
    arch::set_timer(SLICE);
}

/// The thread goes on: if this CPU has waited since it ran, it has its whole time again.
pub(crate) fn resume() {
    if PAUSES[arch::cpu()].load(Ordering::Relaxed) > 0 {
        begin_slice();
    }
}
