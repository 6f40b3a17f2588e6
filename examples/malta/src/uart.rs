//! The serial line: Malta's 16550, polled.

use core::fmt::{self, Write};

/// Its registers, uncached. QEMU's is set up as it is.
const BASE: usize = 0xb800_03f8_u32 as i32 as usize;
/// Line status: room for one more byte.
const ROOM: u8 = 1 << 5;

/// The serial line.
pub struct Uart;

impl Write for Uart {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // SAFETY: the device's registers; what is written there is sent, and nothing else.
            unsafe {
                let registers = core::ptr::with_exposed_provenance_mut::<u8>(BASE);
                while registers.add(5).read_volatile() & ROOM == 0 {}
                registers.write_volatile(byte);
            }
        }
        Ok(())
    }
}

/// Prints a line.
#[macro_export]
macro_rules! println {
    ($($argument:tt)*) => {{
        use core::fmt::Write;
        // The serial line does not fail.
        let _ = writeln!($crate::uart::Uart, $($argument)*);
    }};
}

/// Prints.
#[macro_export]
macro_rules! print {
    ($($argument:tt)*) => {{
        use core::fmt::Write;
        let _ = write!($crate::uart::Uart, $($argument)*);
    }};
}
