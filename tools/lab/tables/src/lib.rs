//! The page tables that `tlblab tables` measures, by the names that the paper gives them.
//!
//! Forty tables take a compiler longer than the rest of the lab. Here they are compiled once, and behind [`Built`]: the lab and its
//! tests link them.

mod linear;
mod names;
mod storage;
mod structure;

pub use names::{Named, compact, compact_way, paper, paper_way};
pub use storage::Storage;
pub use structure::{Build, Built, Form};
