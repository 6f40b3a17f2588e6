//! A kernel for MIPS III, an R4000 on QEMU's Malta board, whose TLB is refilled by the handlers of
//! [`tlbkit_refill::mips3`] from 64-bit page tables.
//!
//! ```text
//!   arch    boot, exceptions, TLB, serial line, exit
//!   tables  the page tables by name
//!   work    the CPU with a kind of table, under random changes and accesses, each judged by a model
//! ```
//!
//! `cargo xtask boot --cpu R4000` builds and runs it. An R4000 has 40 bits of virtual addresses: pages lie below 2^40, in
//! xuseg, and the handlers walk all 64 bits.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod arch;
mod tables;
mod work;

use tlbkit_malta::{firmware, println};

/// What the CPU does.
#[unsafe(no_mangle)]
extern "C" fn main(count: usize, arguments: *const u32) -> ! {
    // SAFETY: the firmware's registers, as they came.
    let words = unsafe { firmware::command_line(count, arguments) };
    println!("CPU {:#010x}, {} TLB entries, `{words}`", arch::prid(), arch::ENTRIES);
    let inject = match words {
        "" => None,
        "inject=drop-flush" => Some(work::Inject::DropFlush),
        "inject=skip-invalidation" => Some(work::Inject::SkipInvalidation),
        _ => panic!("the kernel does not know the words `{words}`"),
    };
    let checks = tables::all(inject);
    println!("end checks={} failures={}", checks.done, checks.failed);
    arch::exit()
}

/// The kernel found itself wrong: it says so, and ends without the line that tells how many checks failed.
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    println!("panic: {info}");
    arch::exit()
}
