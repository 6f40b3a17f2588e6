//! Looking pages up: hits, misses, and visits.

use std::time::Duration;

use tlbkit_addr::{Asid, VirtAddr};
use tlbkit_stlb::{AsidTag, Cache, CacheMemory, Direct, Page64};

use super::{Case, Evict, case, scaled, timed};
use crate::work::{CC1, Mapped, PERL, SQLITE, captured, chain, dense, file, follow, shuffled, sparse};
use crate::{Iterate, Subject};

/// Draws so many pages of a space.
type Pages = fn(u32, usize) -> Vec<usize>;

/// The pages that are looked up.
const PAGES: usize = scaled(8192);
/// Entries of the software TLB cache that stands in front of each table.
const SLOTS: usize = 4096;
/// Lookups between two evictions of the caches.
const COLD: usize = 256;

pub(super) fn add<S: Subject + 'static>(cases: &mut Vec<Case>) {
    hits::<S>(cases);
    chains::<S>(cases);
    misses::<S>(cases);
    behind_stlb::<S>(cases);
}

fn hits<S: Subject + 'static>(cases: &mut Vec<Case>) {
    for (job, pages) in [
        ("lookup dense", dense(S::BITS, PAGES)),
        ("lookup sparse", sparse(S::BITS, PAGES)),
        ("lookup sparse 64", sparse(S::BITS, 64)),
        ("lookup sparse 1024", sparse(S::BITS, 1024)),
        ("lookup file", file(S::BITS, PAGES)),
        ("lookup cc1", captured(S::BITS, CC1)),
        ("lookup sqlite", captured(S::BITS, SQLITE)),
        ("lookup perl", captured(S::BITS, PERL)),
    ] {
        // Small sets several times over, so that a round is no shorter than the clock.
        let times = PAGES.div_ceil(pages.len());
        cases.push(case::<S, _>(job, times * pages.len(), move || {
            let (table, _) = chain::<S>(&pages);
            let order = shuffled(pages);
            move || {
                let add =
                    |sum: usize, &vpn: &usize| sum.wrapping_add(table.translate(vpn << 12).unwrap_or(0));
                timed(|| (0..times).fold(0, |sum, _| order.iter().fold(sum, add)))
            }
        }));
    }
}

fn chains<S: Subject + 'static>(cases: &mut Vec<Case>) {
    for (job, pages) in [("lookup chain dense", dense as Pages), ("lookup chain sparse", sparse)] {
        cases.push(case::<S, _>(job, PAGES, move || {
            let (table, start) = chain::<S>(&pages(S::BITS, PAGES));
            move || timed(|| follow(&*table, start, PAGES))
        }));
    }
    for (job, pages) in
        [("lookup cold dense", dense as Pages), ("lookup cold sparse", sparse), ("lookup cold file", file)]
    {
        cases.push(case::<S, _>(job, COLD, move || {
            // A chain right after the caches were filled with something else.
            let (table, mut at) = chain::<S>(&pages(S::BITS, PAGES));
            let mut other = Evict::new();
            move || {
                other.run();
                let start = at;
                timed(|| at = follow(&*table, start, COLD) >> 12)
            }
        }));
    }
}

fn misses<S: Subject + 'static>(cases: &mut Vec<Case>) {
    /// Asks for pages that are not there.
    fn round<S: Subject>(table: Mapped<S>, absent: Vec<usize>) -> impl FnMut() -> Duration {
        move || timed(|| absent.iter().filter(|&&vpn| table.translate(vpn << 12).is_some()).count())
    }
    cases.push(case::<S, _>("lookup near miss", PAGES, || {
        // Every second page is mapped, and the others asked for: the walk goes all the way.
        let every_second: Vec<usize> = dense(S::BITS, 2 * PAGES).into_iter().step_by(2).collect();
        let (table, _) = chain::<S>(&every_second);
        round(table, shuffled(every_second).into_iter().map(|vpn| vpn + 1).collect())
    }));
    cases.push(case::<S, _>("lookup far miss", PAGES, || {
        let (table, _) = chain::<S>(&dense(S::BITS, PAGES));
        round(table, shuffled(sparse(S::BITS, PAGES)))
    }));
    cases.push(case::<S, _>("lookup far miss, sparse", PAGES, || {
        // Of twice as many pages every second one is mapped.
        let pages = sparse(S::BITS, 2 * PAGES);
        let [mapped, absent] = [0, 1].map(|from| pages.iter().skip(from).step_by(2).copied().collect());
        let (table, _) = chain::<S>(&Vec::<usize>::from_iter(mapped));
        round(table, shuffled(absent))
    }));
}

fn behind_stlb<S: Subject + 'static>(cases: &mut Vec<Case>) {
    cases.push(case::<S, _>("lookup behind an STLB", PAGES, || {
        // 64 KiB in front of twice as many single pages: about half of the lookups walk, and fill.
        let (table, _) = chain::<S>(&sparse(S::BITS, PAGES));
        let order = shuffled(sparse(S::BITS, PAGES));
        let memory = Box::leak(Box::new(CacheMemory::<{ SLOTS * 16 }>::new())).bytes();
        let mut cache = Direct::<Page64, SLOTS>::new(memory).expect("room");
        let space = AsidTag::new(Asid::new(7, 8).expect("8 bits")).expect("room");
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
}

pub(super) fn iterating<S: Iterate + 'static>(cases: &mut Vec<Case>) {
    for (job, pages) in [("iterate dense", dense as Pages), ("iterate sparse", sparse)] {
        cases.push(case::<S, _>(job, PAGES, move || {
            let (table, _) = chain::<S>(&pages(S::BITS, PAGES));
            move || timed(|| table.count())
        }));
    }
}
