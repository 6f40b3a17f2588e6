//! The measured work: one list, which the criterion bench and the ratio bench both run.

use std::hint::black_box;
use std::time::{Duration, Instant};

use tlbkit_addr::{Asid, VirtAddr};
use tlbkit_stlb::{Cache, Direct, Memory, Page64, Space};

use crate::work::{CC1, PERL, SQLITE, captured, chain, dense, file, follow, shuffled, sparse};
use crate::{Iterate, Resize, Subject, ours, peers};

/// One subject at one job.
pub struct Case {
    /// The job.
    pub job: &'static str,
    /// The subject.
    pub subject: &'static str,
    /// How many operations one round has.
    pub operations: u64,
    /// Sets the subject up.
    pub start: Box<dyn FnOnce() -> Round>,
}

/// Draws so many pages.
type Pages = fn(usize) -> Vec<usize>;

/// Does a round of a case and returns the time of what counts.
pub type Round = Box<dyn FnMut() -> Duration>;

fn timed<T>(work: impl FnOnce() -> T) -> Duration {
    let start = Instant::now();
    black_box(work());
    start.elapsed()
}

/// The pages that lookups look up.
const PAGES: usize = 8192;
/// The run that range operations work on: the paper's mapping benchmark (Elphinstone et al. 3.3).
const RUN: usize = 128;
/// Entries of the software TLB cache that stands in front of each table.
const SLOTS: usize = 4096;
/// Lookups between two evictions of the caches.
const COLD: usize = 256;

fn case<R: FnMut() -> Duration + 'static>(
    job: &'static str,
    subject: &'static str,
    operations: usize,
    start: impl FnOnce() -> R + 'static,
) -> Case {
    Case { job, subject, operations: operations as u64, start: Box::new(|| Box::new(start())) }
}

fn lookups<S: Subject + 'static>(cases: &mut Vec<Case>) {
    for (job, pages) in [("chain dense", dense as Pages), ("chain sparse", sparse)] {
        cases.push(case(job, S::NAME, PAGES, move || {
            let (table, start) = chain::<S>(&pages(PAGES));
            move || timed(|| follow(&table, start, PAGES))
        }));
    }
    for (job, pages) in [("throughput dense", dense as Pages), ("throughput sparse", sparse)] {
        cases.push(case(job, S::NAME, PAGES, move || {
            let (table, _) = chain::<S>(&pages(PAGES));
            let order = shuffled(pages(PAGES));
            let add = move |sum: usize, va: usize| sum.wrapping_add(table.translate(va).unwrap_or(0));
            move || timed(|| order.iter().fold(0, |sum, &vpn| add(sum, vpn << 12)))
        }));
    }
    for (job, pages) in [
        ("throughput sparse 64", sparse(64)),
        ("throughput sparse 1024", sparse(1024)),
        ("throughput file", file(PAGES)),
        ("throughput cc1", captured(CC1)),
        ("throughput sqlite", captured(SQLITE)),
        ("throughput perl", captured(PERL)),
    ] {
        // Small sets several times over, so that a round is no shorter than the clock.
        let times = PAGES.div_ceil(pages.len());
        cases.push(case(job, S::NAME, times * pages.len(), move || {
            let (table, _) = chain::<S>(&pages);
            let order = shuffled(pages);
            let add = move |sum: usize, va: usize| sum.wrapping_add(table.translate(va).unwrap_or(0));
            move || {
                timed(|| (0..times).fold(0, |sum, _| order.iter().fold(sum, |sum, &vpn| add(sum, vpn << 12))))
            }
        }));
    }
    cases.push(case("STLB in front", S::NAME, PAGES, || {
        // 64 KiB in front of twice as many single pages: about half of the lookups walk, and fill.
        let (table, _) = chain::<S>(&sparse(PAGES));
        let order = shuffled(sparse(PAGES));
        let memory = Box::leak(Box::new(Memory::<{ SLOTS * 16 }>::new())).bytes();
        let mut cache = Direct::<Page64, SLOTS>::new(memory).expect("room");
        let space = Space::new(Asid::new(7, 8).expect("8 bits")).expect("room");
        move || {
            timed(|| {
                order.iter().fold(0usize, |sum, &vpn| {
                    let at = VirtAddr::new(vpn << 12);
                    let found = cache.lookup(at, space).unwrap_or_else(|| {
                        let walked = table.translate(at.get()).unwrap_or(0) as u64;
                        cache.fill(at, space, walked);
                        walked
                    });
                    sum.wrapping_add(found as usize)
                })
            })
        }
    }));
    cases.push(case("near miss", S::NAME, PAGES, || {
        // Every second page is mapped, and the others asked for: the walk goes all the way.
        let every_second: Vec<usize> = dense(2 * PAGES).into_iter().step_by(2).collect();
        let (table, _) = chain::<S>(&every_second);
        let order = shuffled(every_second);
        move || timed(|| order.iter().filter(|&&vpn| table.translate((vpn + 1) << 12).is_some()).count())
    }));
    cases.push(case("far miss", S::NAME, PAGES, || {
        let (table, _) = chain::<S>(&dense(PAGES));
        let far = shuffled(sparse(PAGES));
        move || timed(|| far.iter().filter(|&&vpn| table.translate(vpn << 12).is_some()).count())
    }));
    for (job, pages) in
        [("cold chain dense", dense as Pages), ("cold chain sparse", sparse), ("cold chain file", file)]
    {
        cases.push(case(job, S::NAME, COLD, move || {
            // A chain right after the caches were filled with something else.
            let (table, mut at) = chain::<S>(&pages(PAGES));
            let mut other = vec![0u64; 8 << 20];
            move || {
                other.iter_mut().step_by(8).for_each(|line| *line += 1);
                let start = at;
                timed(|| at = follow(&table, start, COLD) >> 12)
            }
        }));
    }
}

/// A table half of whose node is mapped, so that mapping in the other half creates and frees none.
fn half<S: Subject>() -> (S, usize) {
    let base = dense(1)[0] & !511;
    let mut table = S::new();
    table.map_range(base, 7, HALF);
    (table, base + HALF)
}

const HALF: usize = 256;

fn edits<S: Subject + 'static>(cases: &mut Vec<Case>) {
    cases.push(case("map page", S::NAME, HALF, || {
        let (mut table, first) = half::<S>();
        move || {
            let time = timed(|| (0..HALF).for_each(|page| table.map(black_box(first + page), page)));
            (0..HALF).for_each(|page| table.unmap(first + page));
            time
        }
    }));
    cases.push(case("unmap page", S::NAME, HALF, || {
        let (mut table, first) = half::<S>();
        move || {
            (0..HALF).for_each(|page| table.map(first + page, page));
            timed(|| (0..HALF).for_each(|page| table.unmap(black_box(first + page))))
        }
    }));
    cases.push(case("map 128", S::NAME, RUN, || {
        let (mut table, first) = half::<S>();
        move || {
            let time = timed(|| table.map_range(black_box(first), 0x1000, RUN));
            table.unmap_range(first, RUN);
            time
        }
    }));
    cases.push(case("unmap 128", S::NAME, RUN, || {
        let (mut table, first) = half::<S>();
        move || {
            table.map_range(first, 0x1000, RUN);
            timed(|| table.unmap_range(black_box(first), RUN))
        }
    }));
    cases.push(case("PROT1 128", S::NAME, RUN, || {
        let (mut table, first) = half::<S>();
        table.map_range(first, 0x1000, RUN);
        let mut writable = false;
        move || {
            writable = !writable;
            timed(|| (0..RUN).for_each(|page| table.protect_range(black_box(first + page), 1, writable)))
        }
    }));
    cases.push(case("PROTN 128", S::NAME, RUN, || {
        let (mut table, first) = half::<S>();
        table.map_range(first, 0x1000, RUN);
        let mut writable = false;
        move || {
            writable = !writable;
            timed(|| table.protect_range(black_box(first), RUN, writable))
        }
    }));
}

fn life<S: Subject + 'static>(cases: &mut Vec<Case>) {
    cases.push(case("create, map, destroy", S::NAME, 1, || {
        let vpn = dense(1)[0];
        move || {
            timed(|| {
                let mut table = S::new();
                table.map(black_box(vpn), 1);
                table.unmap(black_box(vpn));
                table.destroy();
            })
        }
    }));
}

fn iteration<S: Iterate + 'static>(cases: &mut Vec<Case>) {
    for (job, pages) in [("iterate dense", dense(PAGES)), ("iterate sparse", sparse(PAGES))] {
        cases.push(case(job, S::NAME, PAGES, move || {
            let (table, _) = chain::<S>(&pages);
            move || timed(|| table.count())
        }));
    }
}

fn resizing<S: Resize + 'static>(cases: &mut Vec<Case>) {
    // A run that is aligned, so that it can be one leaf, in pages and frames.
    let first = dense(1)[0].next_multiple_of(S::PAGES);
    let set_up = move || {
        let mut table = S::new();
        table.map_range(first, first, S::PAGES);
        table
    };
    cases.push(case("promote 512", S::NAME, 1, move || {
        let mut table = set_up();
        move || {
            let time = timed(|| table.promote(black_box(first)));
            table.split(first);
            time
        }
    }));
    cases.push(case("split 512", S::NAME, 1, move || {
        let mut table = set_up();
        move || {
            table.promote(first);
            timed(|| table.split(black_box(first)))
        }
    }));
}

fn freeing<S: Subject + 'static>(cases: &mut Vec<Case>) {
    cases.push(case("unmap, freeing", S::NAME, 64, || {
        let far = sparse(64);
        let mut table = S::new();
        move || {
            far.iter().for_each(|&vpn| table.map(vpn, 1));
            timed(|| far.iter().for_each(|&vpn| table.unmap(vpn)))
        }
    }));
}

/// Returns every case of every subject, job by job in the order of the subjects.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    macro_rules! subjects {
        ($($subject:ty: $($job:ident)*;)*) => { $( $( $job::<$subject>(&mut cases); )* )* };
    }
    subjects! {
        peers::X86: lookups edits life;
        peers::X86Freeing: freeing;
        peers::Multiarch: lookups edits life;
        peers::Aarch64: lookups edits life iteration;
        peers::HashBrown: lookups edits life freeing iteration;
        peers::BTree: lookups edits life freeing iteration;
        ours::MptSolo: lookups edits life freeing iteration resizing;
        ours::MptShared: lookups edits life freeing iteration resizing;
        ours::LptSolo: lookups edits life freeing iteration resizing;
        ours::LptShared: lookups edits life freeing iteration resizing;
        ours::G16Solo: lookups edits life freeing iteration resizing;
        ours::G16Shared: lookups edits life freeing iteration resizing;
        ours::GaSolo: lookups edits life freeing iteration resizing;
        ours::GaShared: lookups edits life freeing iteration resizing;
        ours::HrSolo: lookups edits life freeing iteration resizing;
        ours::HrShared: lookups edits life freeing iteration resizing;
        ours::Cpt4Solo: lookups edits life freeing iteration resizing;
        ours::Cpt4Shared: lookups edits life freeing iteration resizing;
        ours::Cpt8Solo: lookups edits life freeing iteration resizing;
        ours::Cpt8Shared: lookups edits life freeing iteration resizing;
    }
    cases.sort_by_key(|case| JOBS.iter().position(|&job| job == case.job));
    cases
}

/// The jobs in the order of the report.
const JOBS: &[&str] = &[
    "chain dense",
    "chain sparse",
    "throughput dense",
    "throughput sparse",
    "throughput sparse 64",
    "throughput sparse 1024",
    "throughput file",
    "throughput cc1",
    "throughput sqlite",
    "throughput perl",
    "STLB in front",
    "near miss",
    "far miss",
    "cold chain dense",
    "cold chain sparse",
    "cold chain file",
    "map page",
    "unmap page",
    "map 128",
    "unmap 128",
    "PROT1 128",
    "PROTN 128",
    "create, map, destroy",
    "unmap, freeing",
    "iterate dense",
    "iterate sparse",
    "promote 512",
    "split 512",
];
