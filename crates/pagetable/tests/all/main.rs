//! The tests of this crate, in one program: what they share is compiled once.
#![cfg(not(tlbkit_loom))]

/// Checks a table by the suite. Most code is that of several tables here, so each has half of the suite's cases; with
/// `cargo xtask test --full` it has all.
macro_rules! conformance {
    ($($table:tt)*) => {
        tlbkit_conformance::conformance!(@cases if cfg!(tlbkit_full) { 16 } else { 8 }, $($table)*);
    };
}

mod attacked_writers;
#[macro_use]
mod common;
mod cursor;
mod direct;
mod drain;
mod dropped;
mod forgotten_debts;
mod formats;
mod gpt_detach;
mod gpt_pairs;
mod gpt_properties;
mod gpt_ranges;
mod gpt_sizes;
mod gpt_words;
mod halves;
mod hashed;
mod hashed_bounds;
mod hashed_growth;
mod hashed_properties;
mod hashed_space;
mod hashed_threads;
mod hashed_writers;
mod huge;
mod large_over_invalid;
mod lpt;
mod lpt_properties;
mod manuals;
mod mark_rights;
mod moving;
mod mpt;
mod mpt_detach;
mod mpt_fork;
mod mpt_hardware;
mod mpt_pairs;
mod mpt_share;
mod obligation;
mod pieces;
mod reach;
mod replace;
mod right;
mod run_links;
mod runs;
mod second_stage;
mod several_writers;
mod slab;
mod slots_beside_a_writer;
mod spaces;
mod split_frames;
mod stale_pairs;
mod take_over;
mod threads;
mod unwinding;
mod vacant;
mod visits;
