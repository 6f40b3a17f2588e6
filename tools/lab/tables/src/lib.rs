//! The page tables that `tlblab tables`, `refill` ([`handled`]) and `mapping` measure, by the names that the paper gives them.
//!
//! Sixty tables take a compiler longer than the rest of the lab. Here they are compiled once, and behind trait objects: the lab and
//! its tests link them.

mod cuckoo;
mod flat;
pub mod handled;
mod linear;
pub mod mapping;
mod names;
mod storage;
mod structure;
mod whole;

pub use cuckoo::Cuckoo;
pub use flat::Flat;
pub use names::{Named, compact, compact_way, paper, paper_way};
pub use storage::Storage;
pub use structure::{Build, Built, Form};
