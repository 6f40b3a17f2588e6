//! The serial line: a PL011.

use core::fmt;

const DATA: usize = 0x0900_0000;
const FLAGS: usize = DATA + 0x18;
/// The transmit queue is full.
const FULL: u32 = 1 << 5;

/// The serial line.
pub(crate) struct Console;

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // SAFETY: both are registers of the UART: to read the one changes nothing, and the other takes a byte.
            unsafe {
                while super::register(FLAGS).read_volatile() & FULL != 0 {}
                super::register(DATA).write_volatile(byte.into());
            }
        }
        Ok(())
    }
}
