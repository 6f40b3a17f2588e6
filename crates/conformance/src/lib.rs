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
//! Random sequences of operations run on the table and on a [`Model`], a `BTreeMap` that predicts every result, error and flush.
//! Ranges are at both ends of the address space. They overlap, cover parts of superpages, leave one page of a pair, begin and end a few
//! pages beside the boundaries of nodes, include the hole of a signed space, and extend beyond the space. After every operation the suite compares every page, the visits of a
//! range and the footprint, and stops visits in the middle. At the end it destroys the table, whose storage must then be empty.
//! It repeats this while retired nodes wait, with a failure at each allocation, in memory that is too small, and with a panic at
//! each call to the caller's code. While no batch completes, no node may come back to the storage. Walkers look up every page
//! after every store, and operations run between two loads of a walk. A failing sequence is shrunk to a few operations, which are
//! printed as a test that repeats the failure. The seed is kept beside the test, in a file that ends in `.failures`.
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
//! | [`mod@threads`], [`threads!`] | threads that walk while another thread writes |
//! | [`writers`] | threads that write at a time |
//! | `scenes`, [`walkers!`] | one writer and one or two walkers in every interleaving, by loom |
//! | [`foreign`], [`mapper!`] | the suite for a kernel's own mapper, which is not a `Table` |
//! | [`fuzz`] | the bodies of fuzz targets for tables and mappers, and a corpus of inputs |
//! | [`Instrumented`], [`Instruments`] | node storage that fails, counts loads, corrupts a store, unwinds, checks every access |

// Under loom there is no `Slab`, because loom's atomics cannot lie in raw memory.
cfg_if::cfg_if! {
    if #[cfg(not(tlbkit_loom))] {
        pub mod fuzz;
        mod hang;
        mod model;
        mod moments;
        mod ops;
        mod profile;
        mod properties;
        mod run;
        mod rust;
        mod storage;
        mod subject;
        mod whole;
        mod words;

        pub use model::{Effect, Model};
        pub use ops::{Op, ops};
        pub use profile::Profile;
        pub use run::{Mismatch, Outcome, Runner};
        #[doc(hidden)]
        pub use storage::compiled;
        pub use storage::{Fault, Instrumented, Instruments, Trip};
        pub use subject::{Nodes, Property, Subject};
        pub use suite::Failure;
    }
}

// These modules export macros, so a macro must not generate them.
#[cfg(not(tlbkit_loom))]
pub mod foreign;
#[cfg(tlbkit_loom)]
pub mod scenes;
#[cfg(not(tlbkit_loom))]
pub mod suite;
#[cfg(not(tlbkit_loom))]
pub mod threads;
#[cfg(not(tlbkit_loom))]
pub mod writers;

#[doc(hidden)]
pub use tlbkit_pagetable as pagetable;

/// The items that the code of a printed failure uses.
#[cfg(not(tlbkit_loom))]
pub mod prelude {
    pub use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
    pub use tlbkit_pagetable::{Change, Holes, Mark};

    pub use crate::suite::replay;
    pub use crate::{Op, Property, conformance, foreign, fuzz};
}

/// Compiles the examples of the pages on writing a table and on testing a mapper.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/own-table.md")]
#[doc = include_str!("../../../docs/own-mapper.md")]
struct OwnTable;

// With and without loom, each macro of the other configuration expands to nothing, so that one file of tests serves both.

/// Runs the loom scenes with a kind of table: one line in a test file.
///
/// `walkers!(name, |nodes| constructor)` makes a module `name` with a test for each scene, which runs one writer and one or two
/// walkers in every interleaving with a few preemptions. Without `--cfg tlbkit_loom` it expands to nothing. With that flag the
/// feature `loom` of this crate is required, and [`conformance!`] and [`threads!`] expand to nothing:
///
/// ```console
/// $ RUSTFLAGS="--cfg tlbkit_loom" cargo test --release --test own
/// ```
///
/// The constructor gets `&'static scenes::Watched<W>`, storage that detects every access to a freed node, and returns a `Result`.
/// The table's geometry is `scenes::Tiny`, or another one with at least eight pages and a second page size of two pages. For a
/// table of one page size it is `scenes::Tiny<12, 1>`, and no pages are joined or split. Add `, grows` at the end for a table
/// that grows: its changes take many stores, so the scenes run with fewer preemptions.
#[cfg(not(tlbkit_loom))]
#[macro_export]
macro_rules! walkers {
    ($($anything:tt)*) => {};
}

/// Runs the whole suite on a kind of table. Expands to nothing under `--cfg tlbkit_loom`.
#[cfg(tlbkit_loom)]
#[macro_export]
macro_rules! conformance {
    ($($anything:tt)*) => {};
}

/// Runs threads that walk a table while another thread writes it. Expands to nothing under `--cfg tlbkit_loom`.
#[cfg(tlbkit_loom)]
#[macro_export]
macro_rules! threads {
    ($($anything:tt)*) => {};
}
