//! The timer of each CPU: Count and Compare on a CPU that is alone, the interrupt controller's where there are several.
//!
//! QEMU raises and lowers the interrupts of a CPU under one lock, but not where a CPU writes Compare or reads Count: there an
//! interrupt that another CPU sends meanwhile may be lost. The controller's registers are devices', and have the lock.

use tlbkit_malta::cores::write;
use tlbkit_malta::{cp0, gic};

use super::SEVERAL;

/// The controller's time.
const SH_COUNTER: usize = gic::REGISTERS + 0x10;
/// Of the CPU at hand: which pin its timer is for, and when it interrupts. To write the time takes the interrupt back.
const VP_COMPARE_MAP: usize = gic::REGISTERS + 0x8044;
const VP_COMPARE: usize = gic::REGISTERS + 0x80a0;
/// An interrupt is for a pin.
const TO_PIN: usize = 1 << 31;

/// Status and Cause: the timer's interrupt. The controller's comes by its pin 1.
pub(super) const TIMER: u32 = if SEVERAL { 1 << 11 } else { 1 << 15 };
const PIN: usize = 1;

/// Ticks of 1 us.
const TICKS: u32 = if SEVERAL { 100 } else { 160 };

/// Makes the timer of this CPU ready.
pub(super) fn prepare() {
    if SEVERAL {
        gic::stop_timer();
        write(VP_COMPARE_MAP, TO_PIN | PIN);
    }
}

fn time() -> u32 {
    if SEVERAL { gic::read(SH_COUNTER) as u32 } else { cp0::count::read() }
}

/// Lets the timer interrupt after so many microseconds, or some more, and takes its interrupt back.
pub(crate) fn set(microseconds: u32) {
    let mut ticks = microseconds * TICKS;
    loop {
        let at = time().wrapping_add(ticks);
        if SEVERAL {
            write(VP_COMPARE, at as usize);
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
