//! Several CPUs.

/// Where every CPU but the first begins, on its own stack, its TLB in no particular state.
#[unsafe(no_mangle)]
extern "C" fn secondary(_cpu: usize) -> ! {
    loop {
        // SAFETY: waits for an interrupt, all of which are masked.
        unsafe { core::arch::asm!("wait", options(nomem, nostack)) };
    }
}

/// An interrupt in kernel mode. CPUs that run alone mask all of them.
pub fn interrupt() {}
