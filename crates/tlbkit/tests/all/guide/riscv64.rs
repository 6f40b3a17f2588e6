//! RISC-V: the slot of the root node that memory is in.

super::kernel!(Sv39, Pages::count(tlbkit::Vpn::new(0x8_0000), 1 << 18));

#[path = "../../../../../examples/kernel/embedding/memory.rs"]
#[allow(dead_code, unreachable_pub, reason = "the guide's file is a module of a kernel")]
mod memory;

#[path = "../../../../../examples/kernel/embedding/own.rs"]
#[allow(unreachable_pub, reason = "the guide's file is a module of a kernel")]
mod own;

#[path = "../../../../../examples/kernel/embedding/swap.rs"]
#[allow(dead_code, unreachable_pub, reason = "the guide's file is a module of a kernel")]
mod swap;
