//! The timer of each CPU: Count and Compare on a CPU that is alone, the interrupt controller's where there are several.
//!
//! QEMU raises and lowers the interrupts of a CPU under one lock, but not where a CPU writes Compare or reads Count: there an
//! interrupt that another CPU sends meanwhile may be lost. The controller's registers are devices', and have the lock.

use super::{SEVERAL, cp0, gic};

/// Status and Cause: the timer's interrupt. The controller's comes by its pin 1.
pub(super) const TIMER: u32 = if SEVERAL { 1 << 11 } else { 1 << 15 };
const PIN: usize = 1;

/// Ticks of 1 us.
const TICKS: u32 = if SEVERAL { 100 } else { 160 };

/// Makes the timer of this CPU ready.
pub(super) fn prepare() {
    if SEVERAL {
        gic::stop_timer();
        gic::route_timer(PIN);
    }
}

fn time() -> u32 {
    if SEVERAL { gic::time() as u32 } else { cp0::count::read() }
}

/// Lets the timer interrupt after so many microseconds, or some more, and takes its interrupt back.
pub(super) fn set(microseconds: u32) {
    let mut ticks = microseconds * TICKS;
    loop {
        let at = time().wrapping_add(ticks);
        if SEVERAL {
            gic::interrupt_at(at as usize);
        } else {
            // SAFETY: it takes the timer's interrupt back, and says when the next one is.
            unsafe { cp0::compare::write(at) };
        }
        // Had that time passed before it was written, the interrupt would come when the time has gone round.
        let passed = time().wrapping_sub(at) as i32 >= 0;
        if !passed || cp0::cause::read() & TIMER != 0 {
            return;
        }
        ticks = ticks.saturating_mul(2);
    }
}
