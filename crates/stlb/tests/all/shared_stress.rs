//! The shared form under real threads.
#![cfg(target_has_atomic = "64")]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use tlbkit_addr::{Asid, PageSize, Pages, VirtAddr, Vpn};
use tlbkit_stlb::{AsidTag, CacheMemory, Mips32, Pair, Shared};

const PAGES: usize = 16;
const READERS: usize = 3;
const CHANGES: usize = if cfg!(miri) { 60 } else { 20_000 };

fn page(number: usize) -> VirtAddr {
    Vpn::new(number * 2).address(PageSize::K4)
}

/// All three words say which page and which version: halves of two entries would not agree.
fn entry(number: usize, version: u64) -> Pair {
    let word = (number as u32) << 24 | version as u32 & 0xff_ffff;
    Pair { page_mask: !word, lo0: word, lo1: word.rotate_left(7) }
}

/// Several CPUs look up and refill while one changes the table: no torn entry, and never a version older than the
/// last one whose invalidation was over before the lookup began.
fn stress<const SETS: usize, const WAYS: usize>() {
    let mut memory = CacheMemory::<8192>::new();
    let cache = Shared::<Mips32, SETS, WAYS>::new(memory.bytes()).unwrap();
    let space = AsidTag::new(Asid::new(1, 8).unwrap()).unwrap();
    let table: [AtomicU64; PAGES] = Default::default();
    let settled: [AtomicU64; PAGES] = Default::default();
    let done = AtomicUsize::new(0);
    let hits = AtomicUsize::new(0);

    thread::scope(|scope| {
        for reader in 0..READERS {
            let (cache, table, settled, done, hits) = (&cache, &table, &settled, &done, &hits);
            scope.spawn(move || {
                let mut turn = reader;
                while done.load(Ordering::Relaxed) == 0 {
                    turn = turn.wrapping_mul(5).wrapping_add(2 * reader + 1);
                    // Twice in a row, so that the second finds what the first filled in, if no other CPU came between.
                    let number = turn / 2 % PAGES;
                    for _ in 0..2 {
                        let floor = settled[number].load(Ordering::Acquire);
                        match cache.lookup(page(number), space) {
                            Ok(found) => {
                                let version = u64::from(found.lo0 & 0xff_ffff);
                                assert_eq!(found, entry(number, version), "torn");
                                assert!(version >= floor, "stale: {version} after {floor}");
                                hits.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(ticket) => {
                                let version = table[number].load(Ordering::Relaxed);
                                cache.fill(ticket, page(number), space, entry(number, version));
                            }
                        }
                    }
                }
            });
        }
        // On a busy machine the others may have had no turn by then: they get one.
        let shown = |change| change >= CHANGES && (cfg!(miri) || hits.load(Ordering::Relaxed) > 0);
        for change in (0..1000 * CHANGES).take_while(|&change| !shown(change)) {
            let number = change * 7 % PAGES;
            let version = table[number].load(Ordering::Relaxed) + 1;
            table[number].store(version, Ordering::Relaxed);
            cache.invalidate_pages(space, Pages::count(Vpn::new(number * 2), 2).unwrap());
            settled[number].store(version, Ordering::Release);
            if change % 64 == 0 {
                thread::yield_now();
            }
        }
        done.store(1, Ordering::Relaxed);
    });
    assert!(cfg!(miri) || hits.into_inner() > 0, "no hits, nothing shown");
}

#[test]
fn direct() {
    stress::<8, 1>();
}

#[test]
fn four_ways() {
    stress::<2, 4>();
}
