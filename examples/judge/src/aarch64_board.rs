//! QEMU's machine `virt` with an AArch64 CPU: what the kernel prints to, and how it ends.

use core::arch::asm;
use core::fmt::{self, Write};

pub(crate) const MEMORY: usize = 0x4000_0000;
pub(super) const UART: usize = 0x0900_0000;

/// The serial line.
pub(crate) struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // SAFETY: the address is that of the machine's UART, mapped one to one; its first register takes a byte.
            unsafe { (UART as *mut u32).write_volatile(byte.into()) };
        }
        Ok(())
    }
}

/// Says why, if there is something to say, and ends the machine with an exit code.
pub(crate) fn stop(why: &str, code: u32) -> ! {
    if !why.is_empty() {
        let _ = writeln!(Console, "{}: {why}", super::NAME);
    }
    // Semihosting's SYS_EXIT with ADP_Stopped_ApplicationExit.
    let block = [0x2_0026, u64::from(code)];
    // SAFETY: QEMU, run with semihosting, reads the block and ends.
    unsafe { asm!("hlt #0xf000", in("x0") 0x18, in("x1") block.as_ptr(), options(nostack)) };
    loop {
        core::hint::spin_loop();
    }
}
