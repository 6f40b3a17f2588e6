//! TLB refill handlers for MIPS32, as data: the words that a kernel copies to its exception vector, assembled from the
//! table's type and geometry, the cache in front of it, and what the CPU has.
//!
//! ```
//! use core::sync::atomic::{AtomicU32, Ordering};
//!
//! use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr};
//! use tlbkit_pagetable::format::EntryLo;
//! use tlbkit_pagetable::geometry::Va32;
//! use tlbkit_pagetable::nodes::{Chunk, NodeAddr, Nodes, Slab};
//! use tlbkit_pagetable::{Local, Solo, mpt};
//! use tlbkit_refill::features::Features;
//! use tlbkit_refill::handler::{Form, Front, Handler, Mpt, Place, Root, Spec, Walk, Write};
//! use tlbkit_refill::interp::{Access, Machine, Window, Windows};
//!
//! // At compile time: the handler of a two-level table, for a 24Kf. It fits, or this does not compile.
//! const WALK: Walk = match Mpt::of::<Va32>() {
//!     Ok(mpt) => Walk::Mpt(mpt),
//!     Err(_) => panic!("two levels of at most ten bits"),
//! };
//! const SPEC: Spec = Spec {
//!     features: Features::R2,
//!     place: Place::VECTOR,
//!     block: 0x8000_1000,
//!     root: Root::ErrorEpc,
//!     front: Front::None,
//!     walk: WALK,
//!     form: Form::PLAIN,
//!     write: Write::Random,
//! };
//! const HANDLER: Handler = match SPEC.assemble() {
//!     Ok(handler) => handler,
//!     Err(_) => panic!("the handler does not fit"),
//! };
//!
//! // A table in kseg0, with a page in it.
//! let mut memory = vec![Chunk::ZERO; 8];
//! let slab = Slab::<u32, Solo>::new(&mut memory, 0x8010_0000)?;
//! let mut table = Local::new(mpt::Mpt::<Va32, EntryLo, _>::new(&slab)?, |_flush| ());
//! let at = VirtAddr::new(0x0040_2abc);
//! table.map(Pages::one(at.vpn(PageSize::K4)), Pfn::new(0x7), PageSize::K4, Attr::READ)?;
//!
//! // A kernel copies the words to the vector. Here the interpreter plays the CPU, with a TLB of 16 entries.
//! let vectors: Vec<_> = HANDLER.refill.words().iter().map(|&word| AtomicU32::new(word)).collect();
//! // SAFETY: these are the slab's 8 chunks, and no other code uses them while the machine runs.
//! let nodes = unsafe { Window::from_raw(0x10_0000, slab.at(NodeAddr::new(0x8010_0000)).cast(), 8 * 1024) };
//! let mut machine = Machine::<_, 16>::new(SPEC.features, Windows([Window::new(0, &vectors), nodes]));
//! machine.cp0.context = u64::from(SPEC.context());
//! machine.cp0.error_epc = SPEC.walk.root(table.table().root().get()) as i32 as u64;
//!
//! // A miss, fifteen instructions, and the access succeeds.
//! assert_eq!(machine.settle(at.get() as u64, Access::Load), Ok(0x7abc));
//! assert_eq!((machine.counts.instructions, machine.counts.loads), (15, 3));
//! # table.destroy();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A handler is put together from parts that know nothing of each other ([`Spec`](handler::Spec)): what stands in front
//! of the table ([`Front`](handler::Front)), the table ([`Walk`](handler::Walk)), what is done beside
//! ([`Form`](handler::Form)), and how the entry is written ([`Write`](handler::Write)). `docs/embedding.md` shows how
//! to put it into a kernel.
//!
//! # Instructions
//!
//! On release 2 with `tlbwr`, `eret` included, along the way that most misses take (`tests/counts.rs` asserts them, and
//! `tests/listings` has every handler, disassembled):
//!
//! | table | root in memory | root in a register, or near | larger pages, a page of 4 KiB | reporting, `tlbwi` |
//! |-|-|-|-|-|
//! | [`Mpt`](handler::Mpt), two levels | 16 | 15 | 18 | 45 |
//! | [`Lpt`](handler::Lpt), without a nested miss | 9 | 9 | 11 | 38 |
//! | [`Hashed`](handler::Hashed), pairs, first probe | 17 | 16 | 17 | 46 |
//! | `Hashed`, blocks of eight pages, first probe | 17 | 16 | 19 | 46 |
//! | either in a table that grows, release 2 | 24 | 23 | 24, 26 | 53 |
//! | [`Gpt`](handler::Gpt), the leaf alone | 16 | 15 | 16 | 45 |
//! | for each node above it, of 16 or 256 slots | +5 | +5 | +5 | +5 |
//! | for each of 8, 32, 64 or 128 slots | +6 | +6 | +6 | +6 |
//! | for each in an adaptive table, or of 2 or 4 slots | +10 | +10 | +10 | +10 |
//! | [`Stlb`](handler::Stlb) in front of any, hit | 12 | 12 | 14 | |
//!
//! `tlbwi` in place of `tlbwr` takes two more. Near is where one load reaches from register 0: from 0xffff_8000 on
//! ([`Block`]).
//!
//! # What a handler may rely on, and the kernel
//!
//! * It changes k0 and k1, the EntryLos, PageMask and Index, nothing else. With Form::SIZED and no cache in front it
//!   expects PageMask to be 0 and leaves it so; with a cache it leaves what it wrote last. A kernel that writes TLB entries
//!   sets PageMask before, and clears it after.
//! * Context holds [`Spec::context`](handler::Spec::context), on each CPU its own.
//! * All nodes, the [`Block`] and the [`Log`] are in kseg0; the pages of a linear table too, which it reaches in kseg2. A
//!   block at the end of kseg3 is there too, and is seen there through a TLB entry that is wired: one entry less for
//!   everything else.
//! * A miss that the table does not resolve ends at the general vector, with Cause, EPC, BadVAddr, Context and EntryHi as
//!   the hardware set them for the access. Either the handler branches there, or it writes a pair whose half is
//!   invalid, and the access, tried again, raises TLB Invalid. The kernel need not tell the two apart; but once it has mapped
//!   the page it flushes, as the table's [`Flush`](tlbkit_addr::Flush) asks (`FlushScope::Local`).
//! * A handler of the plain form is for tables of pages of 4 KiB and no others. One for larger pages wants pairs flushed, as
//!   the tables' flushes name them ([`Format::PAIRED`](tlbkit_pagetable::format::Format::PAIRED)).
//!
//! # Not supported
//!
//! * Two misses go to the general vector although the table maps the page: one that a writer on another CPU has led astray
//!   while it changed a growing table's chains, and one whose log is full. The kernel drains the log and returns, and the
//!   access is tried again.
//! * What a nested miss of a linear table replaces is not reported.
//! * Move to front in a hashed table's chain: a handler only reads.
#![no_std]
#![cfg_attr(not(test), warn(unused_crate_dependencies))]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable))]

pub mod asm;
mod block;
mod error;
pub mod features;
pub mod handler;
pub mod interp;
mod log;
pub mod mips3;

pub use block::Block;
pub use error::Error;
pub use log::{Evicted, Log, Miss};

/// The page on embedding, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/embedding.md")]
struct Embedding;
