//! A cache of TLB entries in software, and a table of entries worth loading ahead: the STLB and the PTLB of K. Bala,
//! *Software Management Techniques for Translation Lookaside Buffers* (MIT, 1995), and of Bala, Kaashoek and Weihl,
//! OSDI 1994.
//!
//! The refill handler of a kernel looks in this cache first: a hit saves the walk of the page table, and, if the page table is in
//! mapped memory, also the nested TLB misses. A hit costs two loads and a branch; an entry takes 16 bytes. The cache works with
//! any page table and caches entries of any type ([`EntryLayout`]).
//!
//! ```
//! use tlbkit_addr::{Asid, VirtAddr, Vpn};
//! use tlbkit_stlb::{AsidTag, Cache, CacheMemory, Direct, Invalidate, Page64};
//!
//! // The kernel's page table, which a miss walks. Here every page is its own frame, present.
//! fn walk(at: VirtAddr) -> u64 {
//!     (at.get() & !0xfff | 1) as u64
//! }
//!
//! // 1024 slots in memory that the caller provides: 16 KiB, 16 bytes a slot.
//! let mut memory = CacheMemory::<{ 1024 * 16 }>::new();
//! let mut stlb = Direct::<Page64, 1024>::new(memory.bytes()).unwrap();
//! let process = AsidTag::new(Asid::new(7, 8).unwrap()).unwrap();
//!
//! // The refill handler: the cache first, then the table.
//! let at = VirtAddr::new(0x40_2abc);
//! assert_eq!(stlb.lookup(at, process), None);
//! stlb.fill(at, process, walk(at));
//! assert_eq!(stlb.lookup(at, process), Some(0x40_2001));
//!
//! // A page changes: update the page table first, then flush the hardware TLB, then this cache.
//! stlb.invalidate_page(process, Vpn::new(0x402));
//! assert_eq!(stlb.lookup(at, process), None);
//! ```
//!
//! | type | description | a hit costs |
//! |-|-|-|
//! | [`Direct`] | a direct-mapped cache for one CPU | two loads, one branch |
//! | [`Assoc`] | a 2-way, 4-way, ... cache for one CPU | one more load and branch for each further way |
//! | [`Victim`] | direct-mapped, with a few slots for entries that conflicts evict | as `Direct`, or a search |
//! | [`Shared`] | shared by several CPUs, direct-mapped or with ways | two more loads and one more branch, for validation |
//! | [`Ptlb`] | entries to load when a process receives a message | - |
//! | [`Integrated`] | any of the per-CPU caches and a PTLB in one table | as the cache |
//!
//! All are invalidated in the same way ([`Invalidate`] has the rule). [`Asids`] assigns numbers to address spaces, so that a
//! number that is used again does not bring old entries back.
//!
//! # Measured
//!
//! ASID-tagged hits of [`Page64`] on a host, as ratios to the time of a walk (`cargo xtask bench --summary STLB`; the walk is
//! `x86_64`'s `OffsetPageTable` with the same 8192 pages):
//!
//! | | dense pages | sparse pages | instructions, loads, branches |
//! |-|-|-|-|
//! | [`Direct`] | 0.17 | 0.03 | 10, 2, 1 |
//! | 2-way, found in the first | 0.18 | 0.04 | 10, 2, 1 |
//! | 4-way | 0.43 | 0.09 | |
//! | [`Shared`] | 0.31 | 0.06 | 20, 8, 2 |
//!
//! In a chain of dependent hits, one hit takes as long as 1.7 loads from the first-level cache. Callgrind counts the instructions
//! (`benches/examples/stlb_hit.rs`), in a loop whose own instructions are subtracted. Four of the eight loads of [`Shared`] are of
//! the cache's address and of the ASID: the barrier keeps the compiler from holding them in registers over the loop.
//!
//! `tlblab mach` prints the effect on Mach's kernel misses. With the thesis's machine and costs, the PTLB removes 62 to 65 % of
//! them (2 to 10 servers), and the STLB 27 to 33 % (2 to 7 servers). At eight servers the direct-mapped STLB of 4096 entries begins
//! to conflict: 85 % of lookups hit, instead of 99 %. A victim cache of eight entries, or [`folded`], removes the conflicts (99 %).
//!
//! # Not supported
//!
//! * One entry for a whole superpage: it is cached unit by unit, so that a hit needs one probe ([`EntryLayout`]).
//! * One entry for a global page: it is cached for each address space that uses it, because the hardware presents the
//!   current ASID with every miss. [`Invalidate::invalidate_global`] removes all of these entries.
//! * A victim cache or a prefetch TLB that several CPUs share.
#![no_std]
#![cfg_attr(not(test), warn(unused_crate_dependencies))]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable))]

mod asids;
mod atomic;
mod cache;
mod count;
mod entry;
mod hash;
mod layout;
mod memory;
mod ptlb;
mod shared;
mod table;
mod victim;

pub use asids::{Asids, Context};
pub use atomic::Atomic;
pub use cache::{Cache, Hit, Invalidate};
pub use count::{Count, Counters};
pub use hash::folded;
pub use layout::{AsidRange, AsidTag, EntryLayout, Mips32, Page64, Pair, Tag};
pub use memory::{BadMemory, CacheMemory, LINE};
pub use ptlb::{Integrated, Probe, Ptlb, Rank, Recorded};
pub use shared::{Shared, Ticket};
pub use table::{Assoc, Direct};
pub use victim::Victim;
