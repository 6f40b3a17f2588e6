//! Every interleaving of a few accesses to the shared form.
//!
//! `RUSTFLAGS="--cfg tlbkit_loom" cargo test --release --features loom -p tlbkit-stlb --test shared_loom`
#![cfg(tlbkit_loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use tlbkit_addr::{Asid, PageSize, VirtAddr, Vpn};
use tlbkit_stlb::{AsidTag, CacheMemory, Page64, Shared};

/// One set, so that everything meets in it.
type Cache = Shared<'static, Page64, 1, 1>;

fn cache() -> Arc<Cache> {
    let memory = Box::leak(Box::new(CacheMemory::<4096>::new()));
    Arc::new(Cache::new(memory.bytes()).unwrap())
}

fn space() -> AsidTag<Page64> {
    AsidTag::new(Asid::new(1, 8).unwrap()).unwrap()
}

fn page(number: usize) -> VirtAddr {
    Vpn::new(number).address(PageSize::K4)
}

/// A datum that tells which page it is for, and of which version of the table.
fn entry(page: VirtAddr, version: u64) -> u64 {
    page.get() as u64 | version
}

/// What a CPU does at a miss; returns the translation it ends up with.
fn refill(cache: &Cache, table: &AtomicU64, at: VirtAddr) -> u64 {
    match cache.lookup(at, space()) {
        Ok(data) => data,
        Err(ticket) => {
            let data = entry(at, table.load(Ordering::Relaxed));
            cache.fill(ticket, at, space(), data);
            data
        }
    }
}

/// Plays in every interleaving with so many preemptions at the most, and prints how many those are.
fn explore(preemptions: Option<usize>, play: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    let played = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = played.clone();
    model.check(move || {
        play();
        count.fetch_add(1, Ordering::Relaxed);
    });
    println!("{} interleavings", played.load(Ordering::Relaxed));
}

/// A reader never pairs one entry's tag with another's datum, even if the first comes back.
///
/// The reader is the spawned thread, which loom runs last at first. The other way round it explores nothing: it looks
/// for a race only with the last access to a word, and the writer loads each word itself before it stores it.
#[test]
fn never_torn() {
    explore(if cfg!(tlbkit_full) { None } else { Some(3) }, || {
        let cache = cache();
        let table = Arc::new(AtomicU64::new(0));
        refill(&cache, &table, page(1));
        let reader = thread::spawn({
            let cache = cache.clone();
            move || {
                for at in [1, 2] {
                    if let Ok(data) = cache.lookup(page(at), space()) {
                        assert_eq!(data & !0xfff, page(at).get() as u64);
                    }
                }
            }
        });
        for at in [2, 1] {
            refill(&cache, &table, page(at));
        }
        reader.join().unwrap();
    });
}

/// Once an invalidation is over, no CPU hits the old entry, although another CPU was in the middle of filling it in.
#[test]
fn never_stale_after_a_racing_fill() {
    explore(None, || {
        let cache = cache();
        let table = Arc::new(AtomicU64::new(0));
        let filler = thread::spawn({
            let (cache, table) = (cache.clone(), table.clone());
            move || {
                refill(&cache, &table, page(1));
            }
        });
        table.store(1, Ordering::Relaxed);
        cache.invalidate_pages(space(), tlbkit_addr::Pages::one(Vpn::new(1)));
        if let Ok(data) = cache.lookup(page(1), space()) {
            assert_eq!(data, entry(page(1), 1));
        }
        filler.join().unwrap();
        if let Ok(data) = cache.lookup(page(1), space()) {
            assert_eq!(data, entry(page(1), 1));
        }
    });
}

/// Two CPUs invalidate different pages of a set while a third fills: neither waits for the other, and neither page is
/// stale afterwards.
#[test]
fn two_invalidations_and_a_fill() {
    explore(Some(3), || {
        let cache = cache();
        let table = Arc::new(AtomicU64::new(0));
        let spawn = |work: fn(&Cache, &AtomicU64)| {
            let (cache, table) = (cache.clone(), table.clone());
            thread::spawn(move || work(&cache, &table))
        };
        let filler = spawn(|cache, table| {
            refill(cache, table, page(1));
        });
        let other = spawn(|cache, _| cache.invalidate_all());
        table.store(1, Ordering::Relaxed);
        cache.invalidate_pages(space(), tlbkit_addr::Pages::one(Vpn::new(1)));
        if let Ok(data) = cache.lookup(page(1), space()) {
            assert_eq!(data, entry(page(1), 1));
        }
        filler.join().unwrap();
        other.join().unwrap();
        if let Ok(data) = cache.lookup(page(1), space()) {
            assert_eq!(data, entry(page(1), 1));
        }
    });
}
