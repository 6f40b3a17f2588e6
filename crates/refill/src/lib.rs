//! TLB refill handlers for MIPS32, as data: the words that a kernel copies to its exception vector. They are assembled from the
//! table's type and geometry, the software TLB in front of it, and the features of the CPU. A kernel whose TLB is loaded by
//! software uses them; a refill takes 12 instructions with a software TLB, and 9 and more without ([below](#instructions)).
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
//! // The handler of a two-level table for a 24Kf, assembled at compile time: if it does not fit, this does not compile.
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
//! // A miss: after fifteen instructions the access succeeds.
//! assert_eq!(machine.settle(at.get() as u64, Access::Load), Ok(0x7abc));
//! assert_eq!((machine.counts.instructions, machine.counts.loads), (15, 3));
//! # table.destroy();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A handler consists of independent parts ([`Spec`](handler::Spec)): the software TLB in front of the table
//! ([`Front`](handler::Front)), the walk of the table ([`Walk`](handler::Walk)), additional work such as larger pages and
//! reporting ([`Form`](handler::Form)), and the write of the TLB entry ([`Write`](handler::Write)). `docs/embedding-mips32.md`
//! shows how a kernel uses it.
//!
//! # Instructions
//!
//! The numbers of instructions on release 2 with `tlbwr`, including `eret`, on the path that most misses take (`tests/counts.rs`
//! asserts them, and `tests/listings` has a listing of every handler):
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
//! `tlbwi` instead of `tlbwr` takes two more. "Near" is the address range that one load reaches from register 0: from
//! 0xffff_8000 on ([`Block`]).
//!
//! # The contract between handler and kernel
//!
//! * The handler changes k0, k1, the EntryLos, PageMask and Index, and nothing else. With `Form::SIZED` and no software TLB in
//!   front it expects PageMask to be 0 and leaves it so; with a software TLB, PageMask keeps the value that the handler wrote last.
//!   A kernel that writes TLB entries sets PageMask before, and clears it after.
//! * Context holds [`Spec::context`](handler::Spec::context), on each CPU its own value.
//! * All nodes, the [`Block`] and the [`Log`] are in kseg0, and so are the pages of a linear table, which the handler accesses
//!   through kseg2. A block near register 0 is in kseg0, too, and is also mapped at the end of kseg3, by a wired TLB entry: one
//!   entry less for everything else.
//! * A miss that the table does not resolve ends at the general vector, with Cause, EPC, BadVAddr, Context and EntryHi as the
//!   hardware set them for the access. Either the handler branches there, or it writes a pair with an invalid half, and the
//!   repeated access raises TLB Invalid. The kernel need not distinguish the two. When it has mapped the page, it executes the
//!   table's [`Flush`](tlbkit_addr::Flush) (`FlushScope::Local`).
//! * A handler of the plain form is only for tables of 4 KiB pages. With a handler for larger pages the kernel flushes pairs, as
//!   the tables' flushes name them ([`Format::PAIRED`](tlbkit_pagetable::format::Format::PAIRED)).
//!
//! # Not supported
//!
//! * Two kinds of misses go to the general vector although the table maps the page: a miss during which a writer on another CPU
//!   changed the chains of a growing table, and a miss that finds the log full. The kernel drains the log and returns, and the
//!   access is repeated.
//! * The entry that a nested miss of a linear table replaces is not reported.
//! * Move to front in the chain of a hashed table: a handler only reads.
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

/// The pages on embedding, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/embedding.md")]
#[doc = include_str!("../../../docs/embedding-mips32.md")]
#[doc = include_str!("../../../docs/embedding-x86_64.md")]
struct Embedding;
