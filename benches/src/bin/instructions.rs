//! Does one operation a thousand times in a function of its own, for callgrind to count its instructions.
//!
//! `cargo xtask instructions` runs it for every subject and operation and prints the counts by call; alone it only
//! lists what there is.
#![allow(missing_docs)]

use std::hint::black_box;

use tlbkit_benches::work::{dense, shuffled, sparse};
use tlbkit_benches::{Subject, ours, peers};

const CALLS: usize = 1000;

// Each operation is a function of its own that callgrind can tell apart, and nothing but the operation is in it.
mod operation {
    use super::Subject;

    #[inline(never)]
    pub(crate) fn hit<S: Subject>(table: &S, va: usize) -> Option<usize> {
        table.translate(va)
    }

    #[inline(never)]
    pub(crate) fn map<S: Subject>(table: &mut S, vpn: usize, pages: usize) {
        if pages == 1 { table.map(vpn, 1) } else { table.map_range(vpn, 1, pages) }
    }

    #[inline(never)]
    pub(crate) fn unmap<S: Subject>(table: &mut S, vpn: usize, pages: usize) {
        if pages == 1 { table.unmap(vpn) } else { table.unmap_range(vpn, pages) }
    }

    #[inline(never)]
    pub(crate) fn protect<S: Subject>(table: &mut S, vpn: usize, pages: usize, writable: bool) {
        table.protect_range(vpn, pages, writable);
    }
}

/// Does an operation [`CALLS`] times; callgrind is told which function to collect.
fn run<S: Subject>(operation: &str) -> bool {
    let mut table = S::new();
    let pages = if operation == "hit sparse" { shuffled(sparse(8192)) } else { dense(8192) };
    // Half a node's worth of pages, and the other half of the node.
    let (base, first) = (pages[0] & !511, (pages[0] & !511) + 256);
    if !operation.starts_with("hit") {
        table.map_range(base, 1, 256);
    }
    match operation {
        "hit dense" | "hit sparse" => {
            pages.iter().for_each(|&vpn| table.map(vpn, vpn));
            for call in 0..CALLS {
                black_box(operation::hit(&table, pages[call] << 12));
            }
        }
        "map 1" | "unmap 1" | "map 128" | "unmap 128" => {
            let pages = if operation.ends_with("128") { 128 } else { 1 };
            for call in 0..CALLS {
                let vpn = first + call % 128;
                operation::map(&mut table, vpn, pages);
                operation::unmap(&mut table, vpn, pages);
            }
        }
        "protect 128" => {
            for call in 0..CALLS {
                operation::protect(&mut table, base, 128, call % 2 == 0);
            }
        }
        _ => return false,
    }
    true
}

const OPERATIONS: &[&str] =
    &["hit dense", "hit sparse", "map 1", "unmap 1", "map 128", "unmap 128", "protect 128"];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (subject, operation) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    let mut known = Vec::new();
    macro_rules! subjects {
        ($($subject:ty;)*) => { $(
            known.push(<$subject>::NAME);
            if subject == <$subject>::NAME && run::<$subject>(&operation) {
                return;
            }
        )* };
    }
    subjects! {
        peers::X86; peers::Multiarch; peers::Aarch64; peers::HashBrown; peers::BTree;
        ours::MptSolo; ours::MptShared; ours::LptSolo; ours::LptShared; ours::G16Solo; ours::G16Shared; ours::GaSolo; ours::GaShared;
        ours::HrSolo; ours::HrShared; ours::Cpt4Solo; ours::Cpt4Shared; ours::Cpt8Solo; ours::Cpt8Shared;
    }
    println!("{}\n\n{}", known.join("\n"), OPERATIONS.join("\n"));
}
