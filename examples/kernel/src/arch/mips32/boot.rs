//! From the firmware to the kernel, on each CPU, and what the boot loader hands over.

use core::slice;

use tlbkit_malta::{cores, cp0, firmware, gic};

use super::timer::{self, TIMER};
use super::{IPI, refill};
use crate::arch::Boot;

tlbkit_malta::start!(first, other);

extern "C" fn first(count: usize, arguments: *const u32) -> ! {
    // SAFETY: the firmware's registers, as they came.
    let words = unsafe { firmware::command_line(count, arguments) };
    let found = |name: &str| {
        words.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default()
    };
    // The address is in kseg0, and may be extended to 64 bits.
    let start = found("rd_start").trim_start_matches("0x");
    let start = usize::from_str_radix(&start[start.len().saturating_sub(8)..], 16).unwrap_or(0);
    let len = found("rd_size").parse().unwrap_or(0);
    assert!(start >> 29 == 0b100 && len > 0, "there are no programs: QEMU takes them as -initrd");
    if super::SEVERAL {
        gic::route(gic::find());
    }
    prepare();
    // SAFETY: it is memory that the boot loader has filled, behind the kernel, and nothing writes it.
    let programs = unsafe { slice::from_raw_parts(core::ptr::with_exposed_provenance(start), len) };
    crate::first(Boot { words, programs })
}

extern "C" fn other() -> ! {
    prepare();
    crate::other()
}

/// Empties the TLB and what stands behind it, and lets the interrupts through that user mode takes.
fn prepare() {
    refill::prepare();
    timer::prepare();
    // SAFETY: in kernel mode no interrupt is taken; user mode takes these two.
    unsafe { cp0::status::write(IPI | TIMER) };
}

/// Starts every other CPU below `limit` that the machine has, and returns how many run then.
pub(crate) fn start_others(limit: usize) -> usize {
    unsafe extern "C" {
        static _start: u8;
    }
    if !super::SEVERAL {
        return 1;
    }
    let cpus = gic::find().min(limit);
    cores::start(cpus, (&raw const _start).addr());
    cpus
}
