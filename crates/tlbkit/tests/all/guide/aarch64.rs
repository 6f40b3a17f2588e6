//! AArch64: the upper half has a root of its own.

super::kernel!(AArch64, Pages::count(tlbkit::Vpn::new(0xffff_0000_4000_0000 >> 12), 1 << 18));

#[path = "../../../../../examples/kernel/embedding/memory.rs"]
#[allow(dead_code, unreachable_pub, reason = "the guide's file is a module of a kernel")]
mod memory;

#[path = "../../../../../examples/kernel/embedding/upper.rs"]
#[allow(unreachable_pub, reason = "the guide's file is a module of a kernel")]
mod own;

#[path = "../../../../../examples/kernel/embedding/swap.rs"]
#[allow(dead_code, unreachable_pub, reason = "the guide's file is a module of a kernel")]
mod swap;
