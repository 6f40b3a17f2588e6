//! Types that all crates of tlbkit share: addresses, page and frame numbers, page sizes, access attributes,
//! address-space identifiers, sets of CPUs, and the flush that a change to a page table needs. They are the arguments and
//! results of every other crate of tlbkit.
//!
//! A value costs a register or a few words: nothing here takes heap memory or depends on an architecture. All addresses
//! and numbers are `usize` wide, so a 32-bit kernel computes in 32 bits, and a 64-bit host can handle the tables of a
//! 32-bit machine as well as its own.
//!
//! Ranges are inclusive ([`Pages`]: `first..=last`), because the end of the last page of the address space does not fit in a
//! `usize`. Every operation that could wrap returns an `Option`.
//!
//! ```
//! use tlbkit_addr::{Attr, CpuSet, Flush, FlushScope, PageSize, Pages, VirtAddr};
//!
//! let at = VirtAddr::new(0x40_2abc);
//! let vpn = at.vpn(PageSize::K4);
//! assert_eq!(vpn.get(), 0x402);
//! assert_eq!(at.offset(PageSize::K4), 0xabc);
//!
//! // Sixteen pages at the end of the address space: nothing overflows.
//! let top = VirtAddr::new(usize::MAX).vpn(PageSize::K4);
//! let pages = Pages::new(top.checked_sub(15).unwrap(), top).unwrap();
//! assert_eq!(pages.len(), 16);
//! assert_eq!(pages.iter().next_back(), Some(top));
//!
//! // If these pages are write-protected, every CPU that runs the address space must flush them.
//! let mut flush = Flush::none();
//! flush.add(FlushScope::Everywhere, pages);
//! let running: CpuSet = [0, 3].into_iter().collect();
//! assert!(flush.scope() == FlushScope::Everywhere && running.contains(3));
//! assert!((Attr::READ | Attr::WRITE).contains(Attr::READ));
//! ```
//!
//! | type | description |
//! |-|-|
//! | [`VirtAddr`], [`PhysAddr`] | a byte address |
//! | [`Vpn`], [`Pfn`] | a virtual page or physical frame number, counted in base pages |
//! | [`PageSize`] | a power of two of bytes, as a value |
//! | [`Pages`] | an inclusive, never empty range of virtual pages |
//! | [`Attr`] | rights, status bits and memory type of a page |
//! | [`Asid`] | an address-space identifier, which tags TLB entries |
//! | [`CpuSet`] | a set of CPUs of any fixed capacity |
//! | [`Flush`], [`FlushScope`] | which translations a change makes stale, and on which CPUs |
//! | [`WalkCache`] | how hardware caches the entries above the leaves |
#![no_std]
#![cfg_attr(not(test), warn(unused_crate_dependencies))]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable))]
#![forbid(unsafe_code)]

mod address;
mod asid;
mod attr;
mod cpuset;
mod flush;
mod page;
mod pages;

pub use address::{PhysAddr, VirtAddr};
pub use asid::Asid;
pub use attr::Attr;
pub use cpuset::{CpuSet, Cpus};
pub use flush::{Flush, FlushScope, WalkCache};
pub use page::{PageSize, Pfn, Vpn};
pub use pages::{Pages, PagesIter};
