//! A kernel for MIPS32 on QEMU's Malta board, all of whose virtual memory is tlbkit's.
//!
//! ```text
//!   arch      the machine: boot, exceptions, TLB, serial line, exit
//!   cpu       what each CPU has of its own
//!   args      what the command line asks for
//!   smp       several CPUs
//! ```
//!
//! `cargo xtask boot` builds and runs it. It prints a report and ends QEMU with status 0 if nothing failed.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod arch;
mod args;
mod cpu;
mod smp;

use arch::semihosting;

/// What CPU 0 does.
#[unsafe(no_mangle)]
extern "C" fn main(count: usize, arguments: *const u32) -> ! {
    arch::tlb::reset();
    // SAFETY: user mode may read Count; there is no handler to serve any address space, and none is current.
    unsafe {
        arch::cp0::hwrena::write(1 << 2);
        arch::vectors::install(&[], &[]);
    }
    // SAFETY: the firmware's registers, as they came.
    let words = unsafe { arch::firmware::command_line(count, arguments) };
    let failures = match args::Args::parse(words) {
        Ok(args) => {
            println!("CPU {:#010x}, {} TLB entries: {args:?}", arch::cp0::prid::read(), arch::tlb::entries());
            println!("{:?}", arch::touch::load(0x1000));
            0
        }
        Err(error) => {
            println!("error: {error}");
            1
        }
    };
    semihosting::exit(u32::from(failures > 0))
}

/// The kernel found itself wrong: say so, and end with a failure.
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    println!("panic on CPU {}: {info}", arch::cp0::cpu());
    semihosting::exit(101)
}
