//! What the firmware does for the kernel: Arm Power State Coordination Interface (DEN 0022), by HVC.

use core::arch::asm;

const CPU_ON: usize = 0xc400_0003;
const SYSTEM_OFF: usize = 0x8400_0008;

fn call(function: usize, [a, b, c]: [usize; 3]) -> isize {
    let result;
    // SAFETY: the calls below change nothing of the kernel's; the calling convention keeps the registers from x18 on.
    unsafe {
        asm!(
            "hvc #0",
            inout("x0") function => result, inout("x1") a => _, inout("x2") b => _, inout("x3") c => _,
            clobber_abi("C"), options(nostack)
        );
    }
    result
}

/// Starts a CPU at the physical address `at` in EL1, without translation, its number in x0; tells whether there is such a CPU.
pub(super) fn start(cpu: usize, at: usize) -> bool {
    // The first affinity level of MPIDR is the number.
    call(CPU_ON, [cpu, at, cpu]) == 0
}

/// Ends the machine.
pub(crate) fn stop() -> ! {
    call(SYSTEM_OFF, [0; 3]);
    loop {
        core::hint::spin_loop();
    }
}
