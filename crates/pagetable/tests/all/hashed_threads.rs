//! Walkers beside the writer of a hashed table: they never miss what is mapped all the time, and never see one block's
//! frame under another's address.
#![cfg(target_pointer_width = "64")]

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::{Compact, Compact32, Format};
use tlbkit_pagetable::geometry::{Geometry, Va32, Va48, Va64};
use tlbkit_pagetable::hpt::{Buckets, Hashed};
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{FlushAll, Holes, Pinned, Shared, Table, Writer, destroy};

const ROUNDS: usize = if cfg!(miri) { 3 } else { 400 };

/// Runs `write` beside two threads that check, pinned by a read lock, that every page of `pages` is mapped to its own
/// number where `always` says so, and to that or nothing elsewhere. `write` completes batches under the write lock.
fn beside<G, F, const C: u32, const B: u32, const L: usize>(
    pages: &[usize],
    always: impl Fn(usize) -> bool + Sync,
    write: impl FnOnce(&Hashed<'_, G, F, Slab<'_, F::Word, Shared>, Buckets<C, B, L>>, &RwLock<()>),
) where
    G: Geometry + Sync,
    F: Format + Sync,
{
    let mut memory = vec![Chunk::ZERO; 256];
    let slab = Slab::<F::Word, Shared>::new(&mut memory, 0).unwrap();
    let table = Hashed::<G, F, _, Buckets<C, B, L>>::new(&slab).unwrap();
    let (gate, over) = (RwLock::new(()), AtomicBool::new(false));
    for &vpn in pages.iter().filter(|&&vpn| always(vpn)) {
        let mut writer = Writer::new(&table).unwrap();
        writer.map(Pages::one(Vpn::new(vpn)), Pfn::new(vpn & 0xf_ffff), PageSize::K4, Attr::READ).unwrap();
        // SAFETY: no CPU walks the table yet.
        unsafe { writer.finish().reclaim() };
    }
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let pin = gate.read().unwrap();
                    // SAFETY: batches are completed under the write lock only.
                    let pinned = unsafe { Pinned::by(&pin) };
                    for &vpn in pages {
                        match table.lookup(pinned, VirtAddr::new(vpn << 12)) {
                            Some(leaf) => {
                                let at = leaf.phys(VirtAddr::new(vpn << 12), G::BASE);
                                assert_eq!(at.get() >> 12, vpn & 0xf_ffff);
                            }
                            None => assert!(!always(vpn), "{vpn:#x} was missed"),
                        }
                    }
                }
            });
        }
        write(&table, &gate);
        over.store(true, Ordering::Relaxed);
    });
    // SAFETY: no CPU walks the table any more.
    unsafe { destroy(table).reclaim() };
    assert_eq!(slab.usage().nodes, 0);
}

/// One chain, whose first bucket changes hands all the time.
#[test]
fn a_bucket_changes_hands() {
    fn play<G: Geometry + Sync, F: Format + Sync>() {
        beside::<G, F, 0, 1, 0>(
            &[1, 2, 3, 4, 5, 6, 7, 8],
            |vpn| vpn == 8,
            |table, gate| {
                for round in 0..ROUNDS * 4 {
                    let page = Pages::one(Vpn::new(1 + round % 7));
                    let mut writer = Writer::new(table).unwrap();
                    writer.map(page, Pfn::new(page.first().get()), PageSize::K4, Attr::READ).unwrap();
                    writer.unmap(page, Holes::Refuse).unwrap();
                    let batch = writer.finish();
                    drop(gate.write().unwrap());
                    // SAFETY: every walk that was under way when the page was unmapped is over.
                    unsafe { batch.reclaim() };
                }
            },
        );
    }
    play::<Va48, Compact>();
    // A tag of two words must not be read half and half.
    play::<Va64, Compact32>();
}

/// Blocks move to more segments and back to fewer, again and again, while pages that walkers ask for come and go.
#[test]
fn the_table_grows_and_shrinks() {
    fn play<G: Geometry + Sync, F: Format + Sync, const C: u32>() {
        let pages: Vec<usize> = (0..40).map(|at| at << 9 | 3).collect();
        let always = |vpn: usize| vpn >> 9 & 3 == 0;
        // Many more than a segment has buckets, so that segments are split and merged, and the directory is copied.
        let (rounds, others) = if cfg!(miri) { (1, 24) } else { (ROUNDS / 20, 1200) };
        beside::<G, F, C, 1, 100>(&pages, always, |table, gate| {
            let change = |chunk: &[usize], is_map: bool| {
                let mut writer = Writer::new(table).unwrap();
                for &vpn in chunk {
                    let page = Pages::one(Vpn::new(vpn));
                    if is_map {
                        writer.map(page, Pfn::new(vpn), PageSize::K4, Attr::READ).unwrap();
                    } else {
                        assert_eq!(writer.unmap(page, Holes::Refuse), Ok(1));
                    }
                }
                let batch = writer.finish();
                drop(gate.write().unwrap());
                // SAFETY: every walk that was under way when a node was retired is over.
                unsafe { batch.reclaim() };
            };
            let mut churned: Vec<usize> = (0..others).map(|at| 0x8_0000 + at * 7).collect();
            churned.extend(pages.iter().filter(|&&vpn| !always(vpn)));
            let small = table.buckets();
            for _ in 0..rounds {
                for chunk in churned.chunks(4) {
                    change(chunk, true);
                }
                assert!(table.buckets() * 2 > churned.len(), "{} buckets", table.buckets());
                for chunk in churned.chunks(4) {
                    change(chunk, false);
                }
                assert!(table.buckets() <= small * 4, "{} buckets", table.buckets());
            }
        });
    }
    play::<Va48, Compact, 0>();
    // The hash of a refill handler, whose directory's entries change one by one.
    play::<Va32, Compact32, 1>();
}

/// Two megabytes become a large page and small ones again.
#[test]
fn pages_change_their_size() {
    let pages: Vec<usize> = (0x1000..0x1200).step_by(if cfg!(miri) { 128 } else { 1 }).collect();
    beside::<Va48, Compact, 3, 3, 0>(
        &[0x1000, 0x10ff, 0x11ff],
        |_| false,
        |table, gate| {
            let whole = Pages::count(Vpn::new(0x1000), 512).unwrap();
            let change = |to: Option<PageSize>| {
                let mut writer = Writer::new(table).unwrap();
                match to {
                    None => writer.map(whole, Pfn::new(0x1000), PageSize::M2, Attr::READ).unwrap(),
                    Some(size) => writer.resize(whole, size, FlushAll::in_place(&mut |_| ())).unwrap(),
                }
                let batch = writer.finish();
                drop(gate.write().unwrap());
                // SAFETY: every walk that was under way when the batch was finished is over.
                unsafe { batch.reclaim() };
            };
            change(None);
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        while !over.load(Ordering::Relaxed) {
                            let pin = gate.read().unwrap();
                            // SAFETY: batches are completed under the write lock only.
                            let pinned = unsafe { Pinned::by(&pin) };
                            for &vpn in &pages {
                                let found = table.translate(pinned, VirtAddr::new(vpn << 12));
                                assert_eq!(found.map(|at| at.get() >> 12), Some(vpn));
                            }
                        }
                    });
                }
                for _ in 0..if cfg!(miri) { 1 } else { ROUNDS } {
                    change(Some(PageSize::K4));
                    change(Some(PageSize::M2));
                }
                over.store(true, Ordering::Relaxed);
            });
        },
    );
}
