//! Page tables for kernels, whether hardware or software loads the TLB: multi-level, linear, guarded, hashed and
//! clustered tables behind one trait. A kernel that wants only a page table uses this crate alone; `tlbkit` builds address
//! spaces on it. A lookup costs a few loads ([below](#which-table)) and takes no lock; a change of one page that needs no
//! other node costs the walk and one store.
//!
//! A table is bytes in memory that the caller provides, with a documented layout. One CPU writes it, while any number of other
//! CPUs walk it without a lock. All nodes come from that memory. Every failure is an error that leaves the table as it was. A
//! node that a walker may still reach is freed only after a shootdown.
//!
//! A table that one CPU both walks and changes:
//!
//! ```
//! use tlbkit_addr::{Attr, PageSize, Pages, Pfn, PhysAddr, VirtAddr};
//! use tlbkit_pagetable::nodes::{Chunk, Slab};
//! use tlbkit_pagetable::{Change, Error, Holes, Local, Solo, mpt};
//!
//! // Memory for nodes: 16 chunks of 4 KiB. A kernel uses a static, or memory that the boot loader reports as free.
//! let mut memory = vec![Chunk::ZERO; 16];
//! let slab = Slab::<u64, Solo>::new(&mut memory, 0)?;
//!
//! // Four levels of nine bits. The closure flushes the TLB; here there is none.
//! let mut table = Local::new(mpt::Mpt4::new(&slab)?, |_stale| ());
//!
//! // Sixteen pages in one call, all or nothing.
//! let start = VirtAddr::new(0x40_0000);
//! let pages = Pages::count(start.vpn(PageSize::K4), 16).unwrap();
//! table.map(pages, Pfn::new(0x100), PageSize::K4, Attr::READ | Attr::WRITE)?;
//! assert_eq!(table.translate(VirtAddr::new(0x40_1234)), Some(PhysAddr::new(0x10_1234)));
//!
//! // The error names the page that is already mapped.
//! let refused = table.map(Pages::one(pages.last()), Pfn::new(7), PageSize::K4, Attr::READ);
//! assert!(matches!(refused, Err(Error::Occupied { at, .. }) if at == VirtAddr::new(0x40_f000)));
//!
//! // PROTN: write-protect them all.
//! table.protect(pages, Holes::Refuse, Change::clear(Attr::WRITE))?;
//! assert_eq!(table.lookup(start).unwrap().attr, Attr::READ);
//!
//! table.unmap(pages, Holes::Refuse)?;
//! table.destroy();
//! assert_eq!(slab.usage().nodes, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Several CPUs share a [`Table`] in [`Shared`] mode. A walker proves by a [`Pinned`] that its CPU acknowledges no shootdown
//! during the lookup. The only [`Writer`] collects its changes in a [`Retired`] batch, which the kernel passes to a shootdown.
//!
//! # Which table
//!
//! | table | for | loads of a lookup | memory | but |
//! |-|-|-|-|-|
//! | [`mpt`] | tables that hardware walks; dense spaces | one a level | a page a node | a sparse space takes a node on most levels for each page |
//! | [`lpt`] | dense spaces that software refills, where nested misses are cheap | one, while the TLB holds the table's page | as MPT | the TLB holds pages of the table, too |
//! | [`gpt`] | sparse spaces, and many small ones | one a node, and fewer nodes where the space is sparse; then the leaf's tag and the PTE | proportional to the mapped pages | single pages in random order: a map or unmap takes five to eleven times the instructions of MPT (`cargo xtask instructions`) |
//! | [`hpt`] | fast refills of spaces of known size | two, and more after collisions, at any address | proportional to the number of buckets | a range costs a probe for each page |
//! | [`cpt`] | fast refills of clustered pages, and superpages | as HPT | one tag for up to sixteen pages | single pages far apart take a whole entry each |
//!
//! # Limits
//!
//! The crate contains no instructions of any architecture: the kernel flushes TLBs, switches address spaces and masks interrupts.
//! An address is a `usize`: a 32-bit host has no 64-bit address space. Each hashed table belongs to one address space.
#![cfg_attr(not(any(test, tlbkit_loom)), no_std)]
#![cfg_attr(not(test), warn(unused_crate_dependencies))]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable))]

pub mod cpt;
mod cursor;
mod dry_run;
mod error;
mod fields;
mod footprint;
pub mod format;
mod frames;
pub mod geometry;
pub mod gpt;
mod hint;
pub mod hpt;
mod leaf;
mod local;
pub mod lpt;
mod mark;
mod mode;
mod moving;
pub mod mpt;
mod nested_miss;
mod node_locks;
pub mod nodes;
mod page_ranges;
mod pairs;
mod pinned;
mod replace;
mod retired;
mod right;
mod table;
mod word;
mod writer;

pub use cursor::{AnyCursor, PageCursor};
pub use error::Error;
pub use footprint::{Footprint, Tally};
pub use frames::{FrameNumber, Rest, Run, Uncovered};
pub use geometry::{Geometry, Half, Radix, Space, Stage};
pub use leaf::Leaf;
pub use local::{Invalidate, Local, OneCpu};
pub use mark::{Entry, Mark};
pub use mode::{Mode, Shared, Solo};
pub use nested_miss::NestedMissObserver;
pub use node_locks::NodeLocks;
pub use page_ranges::PageRanges;
pub use pinned::Pinned;
pub use retired::{Carried, Pending, Retired};
pub use right::{FlushAll, Part, Right};
pub use table::{Change, Holes, Private, Table, WriterFlag, destroy};
pub use word::Word;
pub use writer::{PageTurn, Turn, Writer};
