//! What OpenSBI does for the kernel: Supervisor Binary Interface 1.0.

use core::arch::asm;
use core::fmt;

/// Extensions.
const PUTCHAR: usize = 1;
const TIME: usize = 0x5449_4d45;
const IPI: usize = 0x73_5049;
const HSM: usize = 0x48_534d;
const RESET: usize = 0x5352_5354;

fn call(extension: usize, function: usize, arguments: [usize; 3]) -> (isize, usize) {
    let [a, b, c] = arguments;
    let (error, value);
    // SAFETY: the calls below change nothing of the kernel's; the interface keeps every register but a0 and a1.
    unsafe {
        asm!(
            "ecall",
            inout("a0") a => error, inout("a1") b => value, in("a2") c, in("a6") function, in("a7") extension,
            options(nostack)
        );
    }
    (error, value)
}

/// Starts a hart at `at` in supervisor mode, without translation; tells whether there is such a hart.
pub(super) fn start(hart: usize, at: usize) -> bool {
    call(HSM, 0, [hart, at, 0]).0 == 0
}

/// Interrupts these harts.
pub(crate) fn interrupt(harts: usize) {
    call(IPI, 0, [harts, 0, 0]);
}

/// Lets the timer interrupt after so many ticks.
pub(super) fn set_timer(ticks: usize) {
    let now: usize;
    // SAFETY: it reads the time.
    unsafe { asm!("rdtime {}", out(reg) now, options(nomem, nostack)) };
    call(TIME, 0, [now + ticks, 0, 0]);
}

/// Ends the machine.
pub(crate) fn stop() -> ! {
    call(RESET, 0, [0, 0, 0]);
    loop {
        core::hint::spin_loop();
    }
}

/// The serial line.
pub(crate) struct Console;

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            call(PUTCHAR, 0, [byte.into(), 0, 0]);
        }
        Ok(())
    }
}
