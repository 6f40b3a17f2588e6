#![cfg_attr(target_pointer_width = "64", doc = include_str!("lib.md"))]
#![cfg_attr(
    not(target_pointer_width = "64"),
    doc = "Virtual memory for kernels: see the documentation for machines with addresses of 64 bits."
)]
// Under loom this crate is empty, because constants such as `Mmu::new` cannot contain loom's atomics. `tests/loom.rs` includes
// the modules that it tests.
#![cfg(not(tlbkit_loom))]
#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), warn(unused_crate_dependencies))]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable))]

#[cfg(test)]
extern crate self as tlbkit;

pub mod arch;
mod asids;
mod block;
mod counted;
mod cpu;
mod cpu_call;
mod cpu_set;
mod cursor;
mod deferred;
mod detached;
mod edit;
mod fault;
mod flush;
mod fork;
mod guarded;
#[cfg(all(test, target_pointer_width = "64"))]
#[path = "../tests/all/host/mod.rs"]
mod host;
mod kernel;
mod limbo;
mod lock;
mod machine;
mod mmu;
mod numbers;
mod once;
mod owned;
mod rights;
mod runs;
mod section;
mod settle;
mod space;
mod storage;
mod sync {
    pub(crate) use core::sync::atomic::{AtomicUsize, Ordering, fence};
}
mod table;
mod take_over;
mod user;
mod visit;

pub use counted::{Base, BasePage, Frame, FrameOf, PagesOf, Span};
pub use cpu_set::CpuSet;
pub use cursor::Cursor;
pub use deferred::{Deferred, Place};
pub use edit::Edit;
pub use fault::{Access, Fault, Reason};
pub use flush::Flush;
pub use fork::SupervisorPages;
pub use guarded::Guarded;
pub use kernel::{Broadcast, Kernel, Overdue, Walking};
pub use machine::Machine;
pub use mmu::Mmu;
pub use rights::Mapping;
pub use space::AddressSpace;
pub use table::{MultiLevel, TableKind};
pub use tlbkit_addr::{
    Asid, Attr, FlushScope, PageSize, Pages, PagesIter, Pfn, PhysAddr, VirtAddr, Vpn, WalkCache,
};
pub use tlbkit_pagetable::nodes::{Record, Store};
pub use tlbkit_pagetable::{Change, Entry, Error, Footprint, FrameNumber, Leaf, Mark, Run};
pub use user::Stopped;
pub use {tlbkit_addr as addr, tlbkit_pagetable as pagetable, tlbkit_shootdown as shootdown};

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
