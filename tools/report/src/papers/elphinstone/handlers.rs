//! The handlers for 64-bit MIPS that Figures 2 and 5 and Table 2 run.

use tlbkit_names::{C128K, CS, G16, GA, H8K, H128K, HR, LPT, MPT, S8K_G16, S8K_MPT, S128K_G16, S128K_MPT};
use tlblab::Cycles;
use tlblab::refill::Row;

/// The structures with a 64-bit handler: those that the paper measured; then a cache in front of the multi-level table, the
/// linear one of its section 5.5, the adaptive guarded one that it forecasts, and the new ones.
pub(super) const HANDLERS: [&str; 13] =
    [MPT, G16, H8K, H128K, C128K, S8K_G16, S128K_G16, S8K_MPT, S128K_MPT, LPT, GA, HR, CS];

/// How many of them the paper measured.
pub(super) const MEASURED: usize = 7;

/// What the words of the handlers are.
pub(super) const WORDS_RUN: &str = "Instructions and loads are those of 64-bit MIPS handlers for the paper's geometry, whose words an \
                         interpreter runs at every miss; the return is counted, the trap is not.";

/// Cycles that a line from memory takes on `tlblab`'s R4700.
pub(super) const LINE: f64 = 30.0;

/// What the cycles are.
pub(super) const ON_CACHES: &str = "Cycles are those of the same words on a model of the R4700, one instruction a cycle, whose caches the \
                         handler shares with the program: its first 10 million instructions, recorded by lines. What \
                         memory takes, 30 cycles a line, is chosen: the paper does not say. The current core has the \
                         caches of a Zen 3, and executes in order here, too. The trap is not counted, as there.";

/// Returns a number of a row that counts cycles.
pub(super) fn on(row: &Row, number: impl Fn(&Cycles) -> f64) -> f64 {
    row.cycles.as_ref().map_or(f64::NAN, number)
}

/// Returns the instructions of the program itself, which every shipped trace has.
pub(super) fn program(row: &Row) -> f64 {
    row.program_insns.map_or(f64::NAN, |insns| insns as f64)
}
