//! The handlers for 64-bit MIPS that Figures 2 and 5 and Table 2 run.

use tlbkit_names::{C128K, G16, H8K, H128K, MPT, S8K_G16, S8K_MPT, S128K_G16, S128K_MPT};
use tlblab::refill::Row;

/// The structures with a 64-bit handler: the paper's, and a cache in front of the multi-level table.
pub(super) const HANDLERS: [&str; 9] = [MPT, G16, H8K, H128K, C128K, S8K_G16, S128K_G16, S8K_MPT, S128K_MPT];

/// What the words of the handlers are.
pub(super) const WORDS_RUN: &str = "Instructions and loads are those of 64-bit MIPS handlers for the paper's geometry, whose words an \
                         interpreter runs at every miss; the return is counted, the trap is not.";

/// Returns the instructions of the program itself, which every shipped trace has.
pub(super) fn program(row: &Row) -> f64 {
    row.program_insns.map_or(f64::NAN, |insns| insns as f64)
}
