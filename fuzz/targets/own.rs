//! The table of docs/own-table.md against the model, by the target that the page shows.
#![no_main]

/// The page's table has none of its bugs here.
macro_rules! planted {
    ($bug:ident, $right:expr, $wrong:expr) => {
        $right
    };
}

macro_rules! planted_bugs {
    () => {};
}

#[path = "../../crates/conformance/tests/all/own/table.rs"]
#[allow(
    missing_docs,
    clippy::redundant_locals,
    clippy::no_effect,
    reason = "as the page shows it, without its bugs"
)]
mod own;

use own::Own;
use tlbkit_conformance::{fuzz, subject};
use tlbkit_pagetable::Shared;
use tlbkit_pagetable::format::Compact;
use tlbkit_pagetable::geometry::Va39;

subject!(Tested, Compact, Shared, |nodes| Own::<Va39, _>::new(nodes));
libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::table::<Tested>(input));
