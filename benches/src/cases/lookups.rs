//! Looking pages up: hits, misses, and visits.

use std::time::Duration;

use tlbkit_addr::{Asid, VirtAddr};
use tlbkit_stlb::{AsidTag, Cache, CacheMemory, Direct, Page64};

use super::{Case, Evict, case, scaled};
use crate::work::{CC1, Mapped, PERL, SQLITE, captured, chain, dense, file, follow, shuffled, sparse};
use crate::{Iterate, Subject, timed};

/// Draws so many pages of a space.
type Pages = fn(u32, usize) -> Vec<usize>;

/// The pages that are looked up.
const PAGES: usize = scaled(8192);
/// Different addresses of misses: more than a branch predictor remembers.
const ABSENT: usize = scaled(65536);
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
            let table = chain::<S>(&pages);
            let order = shuffled(pages);
            let sum = addresses(&order).wrapping_mul(times);
            move || {
                let add =
                    |sum: usize, &vpn: &usize| sum.wrapping_add(table.translate(vpn << 12).unwrap_or(0));
                let (time, found) = timed(|| (0..times).fold(0, |sum, _| order.iter().fold(sum, add)));
                assert_eq!(found, sum, "{}: a page has another frame", S::NAME);
                time
            }
        }));
    }
}

/// Returns the sum of the pages' addresses, which is that of the frames' of a chain.
fn addresses(pages: &[usize]) -> usize {
    pages.iter().fold(0, |sum: usize, &vpn| sum.wrapping_add(vpn << 12))
}

fn chains<S: Subject + 'static>(cases: &mut Vec<Case>) {
    let every = |job, pages: Pages, steps: usize, is_cold: bool| {
        case::<S, _>(job, steps, move || {
            let table = chain::<S>(&pages(S::BITS, PAGES));
            let (mut at, mut other) = (0, is_cold.then(Evict::new));
            move || {
                if let Some(other) = &mut other {
                    other.run();
                }
                let order = table.pages();
                let start = order[at] << 12;
                at = (at + steps) % order.len();
                let (time, end) = timed(|| follow(&*table, start, steps));
                assert_eq!(end, order[at] << 12, "{}: a page has another frame", S::NAME);
                time
            }
        })
    };
    cases.push(every("lookup chain dense", dense, PAGES, false));
    cases.push(every("lookup chain sparse", sparse, PAGES, false));
    cases.push(every("lookup cold dense", dense, COLD, true));
    cases.push(every("lookup cold sparse", sparse, COLD, true));
    cases.push(every("lookup cold file", file, COLD, true));
}

fn misses<S: Subject + 'static>(cases: &mut Vec<Case>) {
    /// Asks for pages that are not there.
    fn round<S: Subject>(table: Mapped<S>, absent: Vec<usize>) -> impl FnMut() -> Duration {
        move || {
            let found = || absent.iter().filter(|&&vpn| table.translate(vpn << 12).is_some()).count();
            let (time, found) = timed(found);
            assert_eq!(found, 0, "{}: pages that nobody mapped are mapped", S::NAME);
            time
        }
    }
    cases.push(case::<S, _>("lookup near miss", ABSENT, || {
        // Every second page is mapped, and the others asked for: the walk goes all the way.
        let every_second: Vec<usize> = dense(S::BITS, 2 * ABSENT).into_iter().step_by(2).collect();
        let table = chain::<S>(&every_second);
        round(table, shuffled(every_second).into_iter().map(|vpn| vpn + 1).collect())
    }));
    cases.push(case::<S, _>("lookup far miss", ABSENT, || {
        let mapped = dense(S::BITS, PAGES);
        let (first, last) = (mapped[0], mapped[PAGES - 1]);
        let far: Vec<usize> = sparse(S::BITS, ABSENT + PAGES);
        let far = far.into_iter().filter(|vpn| !(first..=last).contains(vpn)).take(ABSENT);
        round(chain::<S>(&mapped), shuffled(far.collect()))
    }));
    cases.push(case::<S, _>("lookup far miss, sparse", ABSENT, || {
        // Of these pages some are mapped, and the others are asked for.
        let mut pages = shuffled(sparse(S::BITS, PAGES + ABSENT));
        let absent = pages.split_off(PAGES);
        round(chain::<S>(&pages), absent)
    }));
}

fn behind_stlb<S: Subject + 'static>(cases: &mut Vec<Case>) {
    cases.push(case::<S, _>("lookup behind an STLB", PAGES, || {
        // 64 KiB in front of twice as many single pages: about half of the lookups walk, and fill.
        let table = chain::<S>(&sparse(S::BITS, PAGES));
        let order = shuffled(sparse(S::BITS, PAGES));
        let memory = Box::leak(Box::new(CacheMemory::<{ SLOTS * 16 }>::new())).bytes();
        let mut cache = Direct::<Page64, SLOTS>::new(memory).expect("room");
        let space = AsidTag::new(Asid::new(7, 8).expect("8 bits")).expect("room");
        let sum = addresses(&order);
        move || {
            let (time, found) = timed(|| {
                order.iter().fold(0usize, |sum, &vpn| {
                    let at = VirtAddr::new(vpn << 12);
                    let found = cache.lookup(at, space).unwrap_or_else(|| {
                        let walked = table.translate(at.get()).unwrap_or(0) as u64;
                        cache.fill(at, space, walked);
                        walked
                    });
                    sum.wrapping_add(found as usize)
                })
            });
            assert_eq!(found, sum, "{}: a page has another frame", S::NAME);
            time
        }
    }));
}

pub(super) fn iterating<S: Iterate + 'static>(cases: &mut Vec<Case>) {
    for (job, pages) in [("iterate dense", dense as Pages), ("iterate sparse", sparse)] {
        cases.push(case::<S, _>(job, PAGES, move || {
            let table = chain::<S>(&pages(S::BITS, PAGES));
            move || {
                let (time, count) = timed(|| table.count());
                assert_eq!(count, PAGES, "{}: not every page is visited", S::NAME);
                time
            }
        }));
    }
}
