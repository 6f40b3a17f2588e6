//! The names of the page tables, as every program of this repository takes and prints them: the lab, the benches, the kernels in
//! `examples`, `cargo xtask` and the report. A name is written here once, and a misspelled constant does not compile.
//!
//! The tables and most names are those of Elphinstone et al. 1999, 3.2. What a name means in bytes depends on the program:
//! `tools/lab/src/tables/names.rs` has the layouts that the lab measures, `examples/mips32` tables of 32-bit words, and
//! `benches/src/ours.rs` tables of 48-bit spaces.
#![no_std]

/// A multi-level table.
pub const MPT: &str = "MPT";
/// A linear table in virtual memory.
pub const LPT: &str = "LPT";
/// A guarded table with nodes of 2 slots.
pub const G2: &str = "G2";
/// A guarded table with nodes of 4 slots.
pub const G4: &str = "G4";
/// A guarded table with nodes of 8 slots.
pub const G8: &str = "G8";
/// A guarded table with nodes of 16 slots.
pub const G16: &str = "G16";
/// A guarded table with nodes of 32 slots.
pub const G32: &str = "G32";
/// A guarded table with nodes of 64 slots.
pub const G64: &str = "G64";
/// A guarded table with nodes of 128 slots.
pub const G128: &str = "G128";
/// A guarded table with nodes of 256 slots.
pub const G256: &str = "G256";
/// An adaptive guarded table, which chooses the size of each node.
pub const GA: &str = "GA";
/// A hashed table of 8 KB.
pub const H8K: &str = "H8k";
/// A hashed table of 128 KB.
pub const H128K: &str = "H128k";
/// A hashed table that grows.
pub const HR: &str = "HR";
/// A clustered table of 128 KB, with blocks of 8 pages.
pub const C128K: &str = "C128k";
/// A clustered table that grows, with superpages.
pub const CS: &str = "CS";
/// A clustered table that grows, with blocks of 4 pages.
pub const CPT4: &str = "CPT4";
/// A clustered table that grows, with blocks of 8 pages.
pub const CPT8: &str = "CPT8";

/// A flattened table: a radix tree with two levels in one node wherever memory has a piece for it.
pub const FPT: &str = "FPT";
/// [`FPT`] where memory has pieces for half of these nodes.
pub const FPT50: &str = "FPT50";
/// [`FPT`] where memory has no such piece: each level has nodes of its own.
pub const FPT0: &str = "FPT0";
/// An elastic cuckoo table: hashed, with three places for each line of eight pages.
pub const ECPT: &str = "ECPT";

/// [`G16`] behind a software TLB of 8 KB.
pub const S8K_G16: &str = "S8k/G16";
/// [`GA`] behind a software TLB of 8 KB.
pub const S8K_GA: &str = "S8k/GA";
/// [`MPT`] behind a software TLB of 8 KB.
pub const S8K_MPT: &str = "S8k/MPT";
/// [`G16`] behind a software TLB of 128 KB.
pub const S128K_G16: &str = "S128k/G16";
/// [`LPT`] behind a software TLB of 128 KB.
pub const S128K_LPT: &str = "S128k/LPT";
/// [`MPT`] behind a software TLB of 128 KB.
pub const S128K_MPT: &str = "S128k/MPT";

/// Every table, without a software TLB.
pub const ALL: [&str; 22] = [
    MPT, LPT, G2, G4, G8, G16, G32, G64, G128, G256, GA, H8K, H128K, HR, C128K, CS, CPT4, CPT8, FPT, FPT50,
    FPT0, ECPT,
];

/// The tables for which `examples/mips32` has a refill handler.
pub const ON_MIPS32: [&str; 13] = [MPT, LPT, G2, G4, G8, G16, G64, G256, GA, H8K, H128K, HR, C128K];

/// The software TLBs that a name can have in front, with their sizes in bytes.
pub const CACHES: [(&str, usize); 2] = [("S8k", 8 << 10), ("S128k", 128 << 10)];

/// Splits a name into the bytes of the software TLB in front, 0 without one, and the table's name. Returns `None` if there is no
/// such software TLB.
///
/// ```
/// assert_eq!(tlbkit_names::split("S8k/GA"), Some((8192, "GA")));
/// assert_eq!(tlbkit_names::split("GA"), Some((0, "GA")));
/// assert_eq!(tlbkit_names::split("S9k/GA"), None);
/// ```
pub fn split(name: &str) -> Option<(usize, &str)> {
    let Some((front, table)) = name.split_once('/') else { return Some((0, name)) };
    CACHES.iter().find(|(cache, _)| *cache == front).map(|&(_, bytes)| (bytes, table))
}
