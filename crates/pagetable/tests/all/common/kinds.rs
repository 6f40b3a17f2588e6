//! Each kind of table: a test of every table goes through this list.
#![allow(unused_macros, reason = "the fuzzer has lines of its own for the linear table")]

use tlbkit_pagetable::gpt::{Adaptive, Fixed, Gpt, OneWord};
use tlbkit_pagetable::hpt::{Buckets, Hashed};
use tlbkit_pagetable::{lpt, mpt};

/// The logarithms of the pages in a bucket of a hashed table, and of the buckets of one that does not grow. Loom keeps track of each
/// word, and its format has no pairs, which stand in one bucket.
const PAGES: u32 = if cfg!(tlbkit_loom) { 0 } else { 1 };
const BUCKETS: u32 = if cfg!(tlbkit_loom) { 0 } else { 6 };

// Each kind in a geometry, a format and a storage. None but the linear table has an address in virtual memory.
pub(crate) type Mpt<'n, G, F, N> = mpt::Mpt<'n, G, F, N>;
pub(crate) type Lpt<'n, G, F, N> = lpt::Lpt<'n, G, F, N, 0xc000_0000>;
pub(crate) type G2<'n, G, F, N> = Gpt<'n, G, F, N, OneWord, Fixed<1>>;
pub(crate) type G4<'n, G, F, N> = Gpt<'n, G, F, N, OneWord, Fixed<2>>;
pub(crate) type Ga<'n, G, F, N> = Gpt<'n, G, F, N, OneWord, Adaptive>;
pub(crate) type Hpt<'n, G, F, N> = Hashed<'n, G, F, N, Buckets<PAGES, BUCKETS, 0>>;
// From two buckets on, so that it grows in every test.
pub(crate) type Hr<'n, G, F, N> = Hashed<'n, G, F, N, Buckets<PAGES, 1, 75>>;
pub(crate) type Cpt<'n, G, F, N> = Hashed<'n, G, F, N, Buckets<2, BUCKETS, 0>>;
pub(crate) type CptGrows<'n, G, F, N> = Hashed<'n, G, F, N, Buckets<2, 1, 40>>;

/// Hands each kind of table to a macro: `$each!(name, Kind, change ...)`. What a change may do to the entries of other pages is
/// `stays`, nothing; `moves`, to store them in another place; `grows`, the same, of any number of them.
macro_rules! each_kind {
    ($each:ident $($with:tt)*) => {
        $each!(lpt, Lpt, stays $($with)*);
        each_own_kind!($each $($with)*);
    };
}

/// The same, without the linear table: its entries are in pages of the address space, and its format is not the one that it is made
/// with.
macro_rules! each_own_kind {
    ($each:ident $($with:tt)*) => {
        $each!(mpt, Mpt, stays $($with)*);
        $each!(g2, G2, stays $($with)*);
        $each!(g4, G4, stays $($with)*);
        $each!(ga, Ga, stays $($with)*);
        $each!(hpt, Hpt, moves $($with)*);
        $each!(hr, Hr, grows $($with)*);
        $each!(cpt, Cpt, moves $($with)*);
        $each!(cpt_grows, CptGrows, grows $($with)*);
    };
}
