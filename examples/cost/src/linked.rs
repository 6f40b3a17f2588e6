//! What `cargo xtask cost` counts the code of: a kernel that makes each call once. It is linked, and never runs.
//!
//! The feature `without` leaves out the calls, and so all of `tlbkit`. The rest is there in both: a kernel has frames, masks interrupts
//! and writes its root register in any case.
#![no_std]
#![no_main]
#![allow(dead_code, reason = "the kernel that boots uses the rest")]

use core::hint::black_box;

#[cfg(not(feature = "without"))]
mod calls;
mod kernel;

use kernel::{cpu, cpus};

#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    cpus::begin(0);
    cpu::prepare();
    kernel::frames(kernel::Frames::prepare);
    #[cfg(not(feature = "without"))]
    let mut given = calls::Given::new();
    loop {
        #[cfg(not(feature = "without"))]
        for call in black_box(calls::CALLS) {
            let number = call(&mut given).unwrap_or(1);
            given.vary(number);
        }
        let frame = kernel::take();
        cpu::load(black_box(0));
        cpu::unload();
        kernel::frames(|frames| frame.into_iter().for_each(|frame| frames.put(black_box(frame))));
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
