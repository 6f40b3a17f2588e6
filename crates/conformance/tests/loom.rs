//! The table of docs/own-table.md in the scenes that loom plays, as a table outside the tree would be.
//!
//! `RUSTFLAGS="--cfg tlbkit_loom" cargo test --release --features loom -p tlbkit-conformance --test loom`
#![cfg(tlbkit_loom)]

use tlbkit_conformance::scenes::{Tiny, UNMAP, check_early};
use tlbkit_conformance::walkers;

/// The page's table has none of its bugs here.
macro_rules! planted {
    ($bug:ident, $right:expr, $wrong:expr) => {
        $right
    };
}

macro_rules! planted_bugs {
    () => {};
}

#[path = "all/own/table.rs"]
#[allow(dead_code, unreachable_pub, reason = "as the page shows it, with bugs that are not planted")]
mod table;

walkers!(own, |nodes| table::Own::<Tiny<12, 3>, _>::new(nodes));

/// The check can fail: nodes that are reclaimed before the walkers have acknowledged are walked.
#[test]
#[should_panic(expected = "a walker is in a freed node")]
fn early_reclaim_is_caught() {
    check_early(&UNMAP, |nodes| table::Own::<Tiny<12, 3>, _>::new(nodes));
}
