//! A kernel for MIPS32 on QEMU's Malta board, all of whose virtual memory is tlbkit's.
//!
//! ```text
//!   arch   the machine: boot, exceptions, TLB, serial line, exit
//!   cpu    what each CPU has of its own
//!   memory where things are; args what the command line asks for
//!   vm     frames, page tables, address spaces, faults
//!   user   programs, and task a program in an address space
//!   work   what the kernel shows: workloads, stress, costs
//!   ipc    processes that send messages, over page tables in mapped memory
//!   run    a boot: the machine around one kind of table, at work
//!   smp    several CPUs, and the shootdowns between them
//!   moving     messages, copied and remapped
//!   superpage  pages that grow where the TLB misses
//! ```
//!
//! `cargo xtask boot` builds and runs it. It prints a report and ends QEMU with status 0 if nothing failed.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod arch;
mod args;
mod cpu;
mod ipc;
mod memory;
mod moving;
mod run;
mod smp;
mod superpage;
mod task;
mod user;
mod vm;
mod work;

use arch::semihosting;
use tlbkit_names as names;

/// What CPU 0 does.
#[unsafe(no_mangle)]
extern "C" fn main(count: usize, arguments: *const u32) -> ! {
    arch::tlb::reset();
    // SAFETY: user mode may read Count; there is no handler to serve any address space, and none is current.
    unsafe {
        if !cfg!(feature = "release1") {
            arch::cp0::hwrena::write(1 << 2);
        }
        arch::vectors::install(&[], &[], &[]);
    }
    // SAFETY: the firmware's registers, as they came.
    let words = unsafe { arch::firmware::command_line(count, arguments) };
    let failures = match args::Args::parse(words) {
        Ok(args) => {
            println!("CPU {:#010x}, {} TLB entries: {args:?}", arch::cp0::prid::read(), arch::tlb::entries());
            match args.work {
                args::Work::Shootdown => smp::run(&args),
                _ => table(&args),
            }
        }
        Err(error) => {
            println!("error: {error}");
            1
        }
    };
    semihosting::exit(u32::from(failures > 0))
}

/// Boots with the table of a name, and returns how many checks failed.
fn table(args: &args::Args) -> u32 {
    use tlbkit_pagetable::gpt::{Adaptive, Fixed};
    use vm::structure::{Guarded, Hash, Linear, MultiLevel};

    if args.work == args::Work::Ipc {
        return run::ipc();
    }
    let (bytes, name) = names::split(args.table).unwrap_or((0, ""));
    let sets = bytes / 16;
    match name {
        names::MPT => drive::<MultiLevel>(args, sets),
        names::LPT => drive::<Linear>(args, sets),
        names::G2 => drive::<Guarded<Fixed<1>>>(args, sets),
        names::G4 => drive::<Guarded<Fixed<2>>>(args, sets),
        names::G8 => drive::<Guarded<Fixed<3>>>(args, sets),
        names::G16 => drive::<Guarded<Fixed<4>>>(args, sets),
        names::G64 => drive::<Guarded<Fixed<6>>>(args, sets),
        names::G256 => drive::<Guarded<Fixed<8>>>(args, sets),
        names::GA => drive::<Guarded<Adaptive>>(args, sets),
        names::H8K => drive::<Hash<1, 9>>(args, sets),
        names::H128K => drive::<Hash<1, 13>>(args, sets),
        names::HR => drive::<Hash<1, 1, 100>>(args, sets),
        names::C128K => drive::<Hash<3, 11>>(args, sets),
        _ => {
            println!("error: the kernel knows no table `{}`", args.table);
            1
        }
    }
}

/// Works one kind of table.
fn drive<S: vm::structure::Structure>(args: &args::Args, sets: usize) -> u32 {
    match args.work {
        args::Work::Superpage => superpage::run::<S>(args.table),
        _ => run::run::<S>(args, sets),
    }
}

/// The kernel found itself wrong: say so, and end with a failure.
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    println!("panic on CPU {}: {info}", arch::cp0::cpu());
    semihosting::exit(101)
}
