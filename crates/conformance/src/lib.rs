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
//! every single call to the caller's code. What fails is shrunk to a few operations.
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
//! let mut table = mpt::Mpt4::new(&slab)?;
//! let mut runner = Runner::new(&table, Profile::of::<Compact>(), 0);
//! let input = b"any bytes at all are operations, twelve at a time";
//! for op in Op::decode_all(table.space(), input) {
//!     let outcome = runner.step(&mut table, &op)?;
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
//! | [`Failing`], [`Counting`], [`Faulty`], [`Tripping`] | node storage that fails, counts loads, plants a fault, unwinds |

mod counting;
mod failing;
mod faulty;
mod model;
mod ops;
mod profile;
mod run;
pub mod suite;
mod tripping;
mod wrap;

pub use counting::Counting;
pub use failing::Failing;
pub use faulty::{Fault, Faulty};
pub use model::{Effect, Model};
pub use ops::{Op, ops};
pub use profile::Profile;
pub use run::{Mismatch, Outcome, Runner};
pub use suite::Subject;
pub use tripping::{Trip, Tripping};

#[doc(hidden)]
pub use tlbkit_pagetable as pagetable;
