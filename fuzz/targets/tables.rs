//! Every page table against the model: results, errors, flushes, leaves and memory, in an address space that the input
//! chooses, for all structures and formats that there are for it at once.
//!
//! Batches wait, single allocations fail, and memory runs out, as the input says.
#![no_main]

use common::rebased::Rebased;
use common::{Ends, Full, Odd, Pair, kinds};
use libfuzzer_sys::fuzz_target;
use tlbkit_conformance::{fuzz, subject};
use tlbkit_pagetable::format::{
    Aarch64, Aarch64Guest, Compact, Compact32, EntryLo, Ept, Paper, Sv39, Sv39x4, X86,
};
use tlbkit_pagetable::geometry::{GuestEpt, GuestIpa, GuestX4, Va32, Va39, Va48, Va64};
use tlbkit_pagetable::gpt::{Adaptive, Fixed, Gpt, OneWord, TwoWords};
use tlbkit_pagetable::hpt::{Buckets, H8k, Hashed, Hpt32, Hr, HrSmall, PaperHr};
use tlbkit_pagetable::lpt::{Linear, Lpt, PaperLpt};
use tlbkit_pagetable::{Shared, Solo};

#[macro_use]
#[path = "../../crates/pagetable/tests/all/common/mod.rs"]
mod common;

const KSEG2: usize = 0xc000_0000;
const BELOW_TOP: usize = 0xff00_0000_0000_0000;

/// Runs the input on one table.
macro_rules! table {
    ($input:ident, $format:ty, $mode:ty, |$nodes:ident| $new:expr) => {{
        subject!(Tested, $format, $mode, |$nodes| $new);

        fuzz::check::<Tested>($input).unwrap_or_else(|failure| panic!("{}: {failure}", stringify!($new)));
    }};
}

/// Runs the input on one table of a kind.
macro_rules! kind {
    ($name:ident, $kind:ident, $change:ident, $input:ident, $geometry:ty, $format:ty) => {
        table!($input, $format, Shared, |nodes| kinds::$kind::<$geometry, $format, _>::new(nodes))
    };
}

/// Writes a function that runs the input on tables of one space: those of each kind, if it has a geometry and a format for them,
/// and others.
macro_rules! tables {
    ($space:ident$(, $geometry:ty, $kinds:ty)?: $($format:ty, $mode:ty, |$nodes:ident| $new:expr;)*) => {
        fn $space(input: &[u8]) {
            $( each_own_kind!(kind, input, $geometry, $kinds); )?
            $( table!(input, $format, $mode, |$nodes| $new); )*
        }
    };
}

tables! {
    va32, Va32, Compact32:
    Compact32, Solo, |nodes| kinds::Mpt::<Va32, Compact32, _>::new(nodes);
    EntryLo, Solo, |nodes| kinds::Mpt::<Va32, EntryLo, _>::new(nodes);
    Paper, Shared, |nodes| kinds::Mpt::<Va32, Paper, _>::new(nodes);
    Linear<Va32, EntryLo, KSEG2>, Shared, |nodes| Lpt::<Va32, EntryLo, _, KSEG2>::new(nodes);
    Linear<Va32, Compact32, KSEG2>, Solo, |nodes| Lpt::<Va32, Compact32, _, KSEG2>::new(nodes);
    Compact32, Solo, |nodes| Hpt32::<_, Compact32>::new(nodes);
    EntryLo, Shared, |nodes| Hpt32::<_, EntryLo>::new(nodes);
    EntryLo, Solo, |nodes| kinds::CptGrows::<Va32, EntryLo, _>::new(nodes);
}

tables! {
    odd, Odd, Compact32:
    Compact32, Solo, |nodes| kinds::Mpt::<Odd, Compact32, _>::new(nodes);
    Paper, Shared, |nodes| kinds::Mpt::<Odd, Paper, _>::new(nodes);
    Compact, Shared, |nodes| kinds::Mpt::<Odd, Compact, _>::new(nodes);
    Compact32, Shared, |nodes| Gpt::<Odd, Compact32, _, OneWord, Fixed<3>>::new(nodes);
    Compact32, Solo, |nodes| Gpt::<Odd, Compact32, _, OneWord, Adaptive>::new(nodes);
    Compact32, Shared, |nodes| Hashed::<Odd, Compact32, _, Buckets<0, 1, 0>>::new(nodes);
    Compact32, Solo, |nodes| Hashed::<Odd, Compact32, _, Buckets<2, 1, 0>>::new(nodes);
    Compact32, Shared, |nodes| Hashed::<Odd, Compact32, _, Buckets<1, 1, 100>>::new(nodes);
}

tables! {
    pair:
    Compact32, Solo, |nodes| kinds::Mpt::<Pair, Compact32, _>::new(nodes);
    Compact32, Shared, |nodes| Gpt::<Pair, Compact32, _, OneWord, Fixed<2>>::new(nodes);
    Compact32, Solo, |nodes| Hashed::<Pair, Compact32, _, Buckets<0, 1, 0>>::new(nodes);
}

tables! {
    va39:
    Compact, Solo, |nodes| kinds::Mpt::<Va39, Compact, _>::new(nodes);
    Sv39, Solo, |nodes| kinds::Mpt::<Va39, Sv39, _>::new(nodes);
    Sv39, Shared, |nodes| kinds::Mpt::<Va39, Sv39, _>::new(nodes);
}

tables! {
    va48, Va48, Compact:
    X86, Shared, |nodes| kinds::Mpt::<Va48, X86, _>::new(nodes);
    Aarch64, Shared, |nodes| kinds::Mpt::<Va48, Aarch64, _>::new(nodes);
    Linear<Va48, Compact, BELOW_TOP>, Shared, |nodes| Lpt::<Va48, Compact, _, BELOW_TOP>::new(nodes);
    Compact, Shared, |nodes| Gpt::<Va48, Compact, _, OneWord, Fixed<8>>::new(nodes);
    Compact, Shared, |nodes| Hashed::<Va48, Compact, _, Buckets<4, 1, 150>>::new(nodes);
}

tables! {
    va64, Va64, Compact:
    Paper, Solo, |nodes| kinds::Mpt::<Va64, Paper, _>::new(nodes);
    Compact32, Shared, |nodes| kinds::Mpt::<Va64, Compact32, _>::new(nodes);
    Linear<Va64, Paper, BELOW_TOP>, Shared, |nodes| PaperLpt::new(nodes);
    Compact, Shared, |nodes| Gpt::<Va64, Compact, _, OneWord, Fixed<4>>::new(nodes);
    Paper, Solo, |nodes| Gpt::<Va64, Paper, _, TwoWords, Fixed<1>>::new(nodes);
    Paper, Solo, |nodes| Gpt::<Va64, Paper, _, TwoWords, Adaptive>::new(nodes);
    Paper, Shared, |nodes| H8k::new(nodes);
    Paper, Shared, |nodes| PaperHr::new(nodes);
    Compact, Solo, |nodes| Hr::new(nodes);
    Compact32, Shared, |nodes| HrSmall::new(nodes);
    Paper, Solo, |nodes| Hashed::<Va64, Paper, _, Buckets<3, 10, 0>>::new(nodes);
    Compact, Solo, |nodes| kinds::CptGrows::<Va64, Compact, _>::new(nodes);
}

tables! {
    full, Full, Compact:
    Compact, Solo, |nodes| kinds::Mpt::<Full, Compact, _>::new(nodes);
}

tables! {
    ends:
    Rebased<14>, Solo, |nodes| kinds::Mpt::<Ends, Rebased<14>, _>::new(nodes);
    Rebased<14>, Shared, |nodes| Gpt::<Ends, Rebased<14>, _, OneWord, Adaptive>::new(nodes);
}

tables! {
    guests:
    Sv39x4, Shared, |nodes| kinds::Mpt::<GuestX4<Va39>, Sv39x4, _>::new(nodes);
    Ept, Shared, |nodes| kinds::Mpt::<GuestEpt, Ept, _>::new(nodes);
    Aarch64Guest, Shared, |nodes| kinds::Mpt::<GuestIpa<40, 3>, Aarch64Guest, _>::new(nodes);
}

fuzz_target!(|input: &[u8]| {
    const SPACES: [fn(&[u8]); 9] = [va32, odd, pair, va39, va48, va64, full, ends, guests];
    SPACES[fuzz::pick(input, SPACES.len())](input);
});
