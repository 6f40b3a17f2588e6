//! The most expensive of two million changes of one page, and the most bytes that a page ever takes, of the tables that grow.
//!
//! `cargo xtask worst` runs it. The same changes are made several times, and of each change the fastest time counts: what is
//! left is the change's own, for interrupts do not come at the same change every time.

use std::error::Error;
use std::time::Instant;

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, Vpn};
use tlbkit_names::{CPT8, HR};
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Holes, Local, Solo, cpt::Cpt8, hpt::Hr};

/// How often the same changes are made.
const ROUNDS: usize = 7;
const PAGES: usize = 1_000_000;
/// Memory for nodes: chunks of 4 KiB.
const CHUNKS: usize = 1 << 17;
/// From how many pages on the bytes of each are looked at.
const FEW: usize = 1000;

/// What one table has shown: the fastest nanoseconds of each change, first the pages that are mapped, then those that are
/// unmapped.
struct Seen {
    nanoseconds: Vec<u32>,
    /// The most bytes for each page at any size: of nodes, and of the chunks that they are in.
    bytes: [f64; 2],
}

/// Pages that follow each other.
fn dense(at: usize) -> usize {
    at
}

/// Pages all over 36 bits, each once: an odd multiple.
fn sparse(at: usize) -> usize {
    (at.wrapping_mul(0x9_d2c5_6813) >> 2) & 0x3_ffff_ffff
}

/// Makes the changes of one round on a new table, and notes what was seen.
macro_rules! round {
    ($table:ty, $memory:expr, $place:expr, $seen:expr) => {{
        let slab = Slab::<u64, Solo>::new($memory, 0)?;
        let mut table = Local::new(<$table>::keyed(&slab, 0x1234_5678_9abc_def1)?, |_: &Flush| ());
        let seen: &mut Seen = $seen;
        for at in 0..PAGES {
            let page = Pages::one(Vpn::new($place(at)));
            let start = Instant::now();
            table.map(page, Pfn::new(at & 0xffff), PageSize::K4, Attr::READ)?;
            let took = start.elapsed().as_nanos() as u32;
            seen.nanoseconds[at] = seen.nanoseconds[at].min(took);
            let (mapped, usage) = (at + 1, slab.usage());
            if mapped >= FEW {
                for (most, bytes) in seen.bytes.iter_mut().zip([usage.bytes, usage.chunks]) {
                    *most = most.max(bytes as f64 / mapped as f64);
                }
            }
        }
        for at in 0..PAGES {
            let page = Pages::one(Vpn::new($place(at)));
            let start = Instant::now();
            table.unmap(page, Holes::Refuse)?;
            let took = start.elapsed().as_nanos() as u32;
            let time = &mut seen.nanoseconds[PAGES + at];
            *time = (*time).min(took);
        }
        table.destroy();
    }};
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut memory = vec![Chunk::ZERO; CHUNKS];
    println!(
        "{:6} {:7} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8}",
        "", "", "map", "map", "unmap", "unmap", "bytes", "chunks"
    );
    println!(
        "{:6} {:7} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8}",
        "table", "pages", "mean ns", "worst ns", "mean ns", "worst ns", "a page", "a page"
    );
    for (name, shape, place) in [
        (HR, "dense", dense as fn(usize) -> usize),
        (HR, "sparse", sparse),
        (CPT8, "dense", dense),
        (CPT8, "sparse", sparse),
    ] {
        let mut seen = Seen { nanoseconds: vec![u32::MAX; 2 * PAGES], bytes: [0.0; 2] };
        for _ in 0..ROUNDS {
            if name == HR {
                round!(Hr<'_, _>, &mut memory, place, &mut seen);
            } else {
                round!(Cpt8<'_, _>, &mut memory, place, &mut seen);
            }
        }
        let [map, unmap] = [0, PAGES].map(|first| {
            let times = &seen.nanoseconds[first..first + PAGES];
            let mean = times.iter().map(|&time| f64::from(time)).sum::<f64>() / PAGES as f64;
            (mean, times.iter().max().copied().unwrap_or(0))
        });
        println!(
            "{name:6} {shape:7} {:9.0} {:9} {:9.0} {:9} {:8.1} {:8.1}",
            map.0, map.1, unmap.0, unmap.1, seen.bytes[0], seen.bytes[1]
        );
    }
    Ok(())
}
