//! The property suite of tlbkit's page tables. An author of a page table uses it to test any implementation of the `Table` trait,
//! or a mapper of another design. One line tests a table:
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
//! and the footprint are compared, and visits are stopped in the middle; in the end the table is taken apart and its storage
//! must be empty. The same runs while retired nodes wait, with a failure at every single allocation, in memory that is too
//! small, and with a panic at every single call to the caller's code. No batch completes, and no node may come back; walkers
//! look at every page after every single store, and operations run between two loads of a walk. What fails is shrunk to a few
//! operations, which are printed as a test that repeats them; the seed is kept beside the test, in a file that ends in
//! `.failures`.
//!
//! Operation by operation, for a fuzzer or a test of your own:
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
//! // SAFETY: no walker is in the table any more.
//! unsafe { destroy(table).reclaim() };
//! assert_eq!(slab.usage().nodes, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | item | contents |
//! |-|-|
//! | [`Model`], [`Effect`], [`Profile`] | the model of a table, and the properties of an entry format |
//! | [`Op`], [`ops`] | operations, decoded from bytes, with a bias to cases that often fail |
//! | [`Runner`], [`Mismatch`] | performs operations and compares the results |
//! | [`suite`], [`conformance!`] | the properties |
//! | [`mod@threads`], [`threads!`] | real walkers beside a real writer |
//! | `scenes`, [`walkers!`] | one writer and one or two walkers in every interleaving, by loom |
//! | [`foreign`], [`mapper!`] | the same for a kernel's own mapper, which is not a `Table` |
//! | [`fuzz`] | the bodies of fuzz targets for both, and inputs to begin with |
//! | [`Failing`], [`Counting`], [`Faulty`], [`Tripping`], [`Watching`] | node storage that fails, counts loads, plants a fault, unwinds, looks on |

// Loom's atomics have no slab.
cfg_if::cfg_if! {
    if #[cfg(not(tlbkit_loom))] {
        mod counting;
        mod failing;
        mod faulty;
        pub mod fuzz;
        mod hang;
        mod model;
        mod moments;
        mod ops;
        mod profile;
        mod properties;
        mod run;
        mod rust;
        mod subject;
        mod tripping;
        mod watching;
        mod whole;
        mod wrap;

        pub use counting::Counting;
        pub use failing::Failing;
        pub use faulty::{Fault, Faulty};
        pub use model::{Effect, Model};
        pub use ops::{Op, ops};
        pub use profile::Profile;
        pub use run::{Mismatch, Outcome, Runner};
        pub use subject::{Property, Subject};
        pub use suite::Failure;
        pub use tripping::{Trip, Tripping};
        pub use watching::Watching;
    }
}

// They export macros, which must not come out of another.
#[cfg(not(tlbkit_loom))]
pub mod foreign;
#[cfg(tlbkit_loom)]
pub mod scenes;
#[cfg(not(tlbkit_loom))]
pub mod suite;
#[cfg(not(tlbkit_loom))]
pub mod threads;

#[doc(hidden)]
pub use tlbkit_pagetable as pagetable;

/// What a printed failure names.
#[cfg(not(tlbkit_loom))]
pub mod prelude {
    pub use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
    pub use tlbkit_pagetable::{Change, Holes, Mark};

    pub use crate::suite::replay;
    pub use crate::{Op, Property, conformance, foreign, fuzz};
}

/// The page about tables of one's own, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/own-table.md")]
struct OwnTable;

// What is there the one way or the other is nothing otherwise, so that one file of tests serves both.

/// Plays the loom scenes with a kind of table: one line in a test of yours.
///
/// `walkers!(name, |nodes| constructor)` makes a module `name` with a test for each scene, one writer and a walker or two in
/// every interleaving with a few preemptions. Without `--cfg tlbkit_loom` it is nothing; with it, the feature `loom` of this
/// crate is wanted, and [`conformance!`] and [`threads!`] are nothing:
///
/// ```console
/// $ RUSTFLAGS="--cfg tlbkit_loom" cargo test --release --test own
/// ```
///
/// The constructor is given `&'static scenes::Watched<W>`, storage that catches every access to a freed node, and returns a
/// `Result`. The table's geometry is `scenes::Tiny`, or another of eight pages or more with a second page size of two of
/// them; for a table of one page size it is `scenes::Tiny<12, 1>`, and nothing is joined or split. A table whose changes are
/// many stores, because it grows, says so with `, grows` at the end, and is interrupted less often.
#[cfg(not(tlbkit_loom))]
#[macro_export]
macro_rules! walkers {
    ($($anything:tt)*) => {};
}

/// Runs the whole suite over a kind of table. Under `--cfg tlbkit_loom` it is nothing.
#[cfg(tlbkit_loom)]
#[macro_export]
macro_rules! conformance {
    ($($anything:tt)*) => {};
}

/// Runs real walkers beside a real writer of a kind of table. Under `--cfg tlbkit_loom` it is nothing.
#[cfg(tlbkit_loom)]
#[macro_export]
macro_rules! threads {
    ($($anything:tt)*) => {};
}
