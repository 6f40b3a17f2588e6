//! The table of docs/own-table.md in the scenes that loom plays, as a table outside the tree would be.
//!
//! `RUSTFLAGS="--cfg tlbkit_loom" cargo test --release --features loom -p tlbkit-conformance --test loom`
#![cfg(tlbkit_loom)]

use tlbkit_conformance::scenes::{UNMAP, check_early};
use tlbkit_conformance::walkers;

#[path = "all/own/small.rs"]
#[allow(unreachable_pub, reason = "as the page shows it")]
mod small;

walkers!(own, |nodes| small::Own::<1, _>::new(nodes));

/// The check can fail: nodes that are reclaimed before the walkers have acknowledged are walked.
#[test]
#[should_panic(expected = "a walker is in a freed node")]
fn early_reclaim_is_caught() {
    check_early(&UNMAP, |nodes| small::Own::<1, _>::new(nodes));
}
