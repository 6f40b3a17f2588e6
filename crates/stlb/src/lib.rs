//! A cache of TLB entries in software, and a table of entries worth loading ahead: the STLB and the PTLB of K. Bala,
//! *Software Management Techniques for Translation Lookaside Buffers* (MIT, 1995), and of Bala, Kaashoek and Weihl,
//! OSDI 1994.
//!
//! A kernel that refills the TLB by software looks here first: a hit saves the walk of its page table, and, if the page
//! table is mapped memory itself, the nested TLB misses. A hit costs two loads and a branch, an entry 16 bytes. The
//! cache works with any page table and caches entries of any type ([`EntryLayout`]).
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
//! // The table changes: page table first, then the hardware TLB, then this.
//! stlb.invalidate_page(process, Vpn::new(0x402));
//! assert_eq!(stlb.lookup(at, process), None);
//! ```
//!
//! | type | is | hit |
//! |-|-|-|
//! | [`Direct`] | direct-mapped, of one CPU | two loads, one branch |
//! | [`Assoc`] | 2-way, 4-way, ... | one more load and branch for each further way |
//! | [`Victim`] | direct-mapped, and a few slots for what conflicts push out | as `Direct`, or a search |
//! | [`Shared`] | of several CPUs, direct-mapped or with ways | validated: two more loads, one more branch |
//! | [`Ptlb`] | entries to load when a process receives a message | - |
//! | [`Integrated`] | any of the per-CPU caches and a PTLB in one table | as the cache |
//!
//! All are invalidated the same way ([`Invalidate`] says by which rule), and [`Asids`] numbers address spaces so that a
//! reused number resurrects nothing.
//!
//! # Measured
//!
//! On the host, ASID-tagged hits of [`Page64`] (`cargo bench -p tlbkit-benches --bench stlb`; ratios of rounds that
//! alternate, on a busy machine; the walk is `x86_64`'s `OffsetPageTable` with the same 8192 pages):
//!
//! | | of the walk, dense pages | of the walk, sparse pages | instructions, loads, branches |
//! |-|-|-|-|
//! | [`Direct`] | 0.16 | 0.05 | 10, 2, 1 |
//! | 2-way, found in the first | 0.20 | 0.07 | 10, 2, 1 |
//! | 4-way | 0.37 | 0.10 | |
//! | [`Shared`] | 0.28 | 0.09 | 20, 8, 2 |
//!
//! In a chain of hits each of which needs the one before, one takes as long as 1.6 loads from the first-level cache.
//! Instructions are counted by callgrind (`benches/src/bin/stlb_hit.rs`), in a loop whose own are subtracted.
//!
//! What the caches do for Mach's kernel misses, `tlblab mach` says: with the thesis's machine and costs the PTLB removes
//! 62 to 65 % of them (2 to 10 servers), the STLB 27 to 33 % (2 to 7 servers), and at eight servers, where the
//! direct-mapped STLB of 4096 entries begins to conflict (99 % of lookups hit, then 85 %), a victim cache of eight
//! entries or [`folded`] take the conflicts away (99 %).
//!
//! # Not supported
//!
//! * One entry for all of a superpage: it is cached unit by unit, so that a hit needs one probe ([`EntryLayout`]).
//! * One entry for a page that is global: it is cached for each address space that uses it, since the hardware
//!   presents the current ASID with every miss. [`Invalidate::invalidate_global`] forgets all of them.
//! * A victim cache, or a prefetch TLB, in the shared form.
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
