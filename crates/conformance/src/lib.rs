//! The property suite of tlbkit's page tables, for every table behind the trait: theirs and yours.
//!
//! One line tests a table:
//!
//! ```
//! use tlbkit_conformance::conformance;
//! use tlbkit_pagetable::format::Compact;
//! use tlbkit_pagetable::geometry::Va48;
//! use tlbkit_pagetable::mpt::Mpt;
//! use tlbkit_pagetable::Shared;
//!
//! conformance!(my_table, Compact, Shared, |nodes| Mpt::<Va48, Compact, _>::new(nodes));
//! # fn main() {}
//! ```
//!
//! Random sequences of operations run on the table and on a [`Model`], a `BTreeMap` that predicts every result, error
//! and flush. Ranges lie at both ends of the address space and collide, cut superpages, leave one page of a pair,
//! reach over the hole of a signed space or out of it. After every operation every page, the visits of a range
//! and the footprint are compared; in the end the table is taken apart and its storage must be empty. The same runs
//! while retired nodes wait, with a failure at every single allocation, in memory that is too small, and with a panic at
//! every single call to the caller's code. No batch completes, and no node may come back; walkers look at every page after
//! every single store, and operations run between two loads of a walk. What fails is shrunk to a few operations, which are
//! printed as a test that repeats them; the seed is kept beside the test, in a file that ends in `.failures`.
//!
//! Piece by piece, as a fuzzer or a test of one's own wants it:
//!
//! ```
//! use tlbkit_conformance::{Op, Outcome, Profile, Runner};
//! use tlbkit_pagetable::format::Compact;
//! use tlbkit_pagetable::nodes::{Chunk, Slab};
//! use tlbkit_pagetable::{Solo, Table, destroy, mpt};
//!
//! let mut memory = vec![Chunk::ZERO; 64];
//! let slab = Slab::<u64, Solo>::new(&mut memory, 0)?;
//! let table = mpt::Mpt4::new(&slab)?;
//! let mut runner = Runner::new(&table, Profile::of::<Compact>(), 0);
//! let input = b"any bytes at all are operations, twelve at a time";
//! for op in Op::decode_all(table.space(), input) {
//!     let outcome = runner.step(&table, &op)?;
//!     assert!(!matches!(outcome, Outcome::NoMemory { .. }));
//! }
//! // SAFETY: nobody walks the table any more.
//! unsafe { destroy(table).reclaim() };
//! assert_eq!(slab.usage().nodes, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | file | is |
//! |-|-|
//! | [`Model`], [`Effect`], [`Profile`] | what a table is, and what an entry format keeps |
//! | [`Op`], [`ops`] | operations, from bytes, biased to what goes wrong |
//! | [`Runner`], [`Mismatch`] | performs and compares |
//! | [`suite`], [`conformance!`] | the properties |
//! | [`foreign`] | the same for a kernel's own mapper, which is no `Table` |
//! | [`Failing`], [`Counting`], [`Faulty`], [`Tripping`], [`Watching`] | node storage that fails, counts loads, plants a fault, unwinds, looks on |

mod counting;
mod failing;
mod faulty;
pub mod foreign;
mod model;
mod moments;
mod ops;
mod profile;
mod properties;
mod run;
mod rust;
pub mod suite;
mod tripping;
mod watching;
mod wrap;

pub use counting::Counting;
pub use failing::Failing;
pub use faulty::{Fault, Faulty};
pub use model::{Effect, Model};
pub use ops::{Op, ops};
pub use profile::Profile;
pub use run::{Mismatch, Outcome, Runner};
pub use suite::{Failure, Property, Subject};
pub use tripping::{Trip, Tripping};
pub use watching::Watching;

#[doc(hidden)]
pub use tlbkit_pagetable as pagetable;

/// What a printed failure names.
pub mod prelude {
    pub use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
    pub use tlbkit_pagetable::{Change, Holes, Mark};

    pub use crate::suite::{Property, replay};
    pub use crate::{Op, conformance};
}

/// The page about tables of one's own, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/own-table.md")]
struct OwnTable;
