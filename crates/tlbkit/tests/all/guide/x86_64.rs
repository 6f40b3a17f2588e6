//! x86-64: the upper half.

super::kernel!(X86_64, Pages::count(tlbkit::Vpn::new(0xffff_8000_0000_0000 >> 12), 1 << 35));

#[path = "../../../../../examples/kernel/embedding/memory.rs"]
#[allow(dead_code, unreachable_pub, reason = "the guide's file is a module of a kernel")]
mod memory;

#[path = "../../../../../examples/kernel/embedding/own.rs"]
#[allow(unreachable_pub, reason = "the guide's file is a module of a kernel")]
mod own;

#[path = "../../../../../examples/kernel/embedding/swap.rs"]
#[allow(dead_code, unreachable_pub, reason = "the guide's file is a module of a kernel")]
mod swap;
