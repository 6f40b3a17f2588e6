//! The table of docs/own-table.md against the model, by the target that docs/own-tests.md shows.
#![no_main]

#[path = "../../crates/conformance/tests/all/own/small.rs"]
#[allow(missing_docs, reason = "as the page shows it")]
mod own;

use own::Own;
use tlbkit_conformance::{fuzz, subject};
use tlbkit_pagetable::Shared;
use tlbkit_pagetable::format::Compact;

subject!(Tested, Compact, Shared, |nodes| Own::<9, _>::new(nodes));
libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::table::<Tested>(input));
