//! Bounds of hashed tables for every input: what chosen pages cost a lookup, and what the most expensive of many changes
//! costs. Both are counted in accesses to words, never in time.
//!
//! `cargo test -p tlbkit-pagetable --test all hashed_bounds -- --nocapture` prints the figures.
#![cfg(target_pointer_width = "64")]

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_conformance::Instrumented;
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Holes, Local, Solo, cpt::Cpt8, hpt::Hr};

/// Storage that counts the words that are touched: loaded, stored, or cleared when a node is taken.
type Counting<'m> = Instrumented<'m, u64, Solo>;

fn counting(memory: &mut [Chunk]) -> Counting<'_> {
    Instrumented::new(Slab::new(memory, 0).unwrap())
}

fn words_of<T>(nodes: &Counting<'_>, f: impl FnOnce() -> T) -> (T, usize) {
    let before = nodes.touched();
    let result = f();
    (result, nodes.touched() - before)
}

fn page(vpn: usize) -> Pages {
    Pages::one(Vpn::new(vpn))
}

/// Returns a count for Miri, the gate, or `cargo xtask test --full`.
const fn count(miri: usize, gate: usize, full: usize) -> usize {
    if cfg!(miri) {
        miri
    } else if cfg!(tlbkit_full) {
        full
    } else {
        gate
    }
}

const CHOSEN: usize = count(300, 5_000, 20_000);

/// The public hash of a page: the number of a bucket in its segment, and above it that of the segment.
fn hash(key: u64) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let product = u128::from(key) * u128::from(GOLDEN);
    let hash = ((product >> 64) as u64 ^ product as u64).wrapping_mul(GOLDEN);
    hash >> 57 | hash >> 32 << 7
}

/// Pages whose public hash ends in as many zeroes as the buckets of a table of all of them have bits, but two.
fn chosen() -> Vec<usize> {
    let mask = (CHOSEN.ilog2() - 3).min(11);
    (1u64..).filter(|&key| hash(key) & ((1 << mask) - 1) == 0).take(CHOSEN).map(|key| key as usize).collect()
}

/// Maps the pages, and returns the mean of the words that a lookup touches, and the most buckets that growing moved.
fn costs(pages: &[usize], secret: Option<usize>) -> (f64, usize) {
    let mut memory = vec![Chunk::ZERO; 1024];
    let nodes = counting(&mut memory);
    let table = secret.map_or_else(|| Hr::new(&nodes), |secret| Hr::keyed(&nodes, secret)).unwrap();
    let mut table = Local::new(table, |_: &Flush| ());
    for &vpn in pages {
        table.map(page(vpn), Pfn::new(vpn & 0xffff), PageSize::K4, Attr::READ).unwrap();
    }
    // A thousand of them show it.
    let some: Vec<_> = pages.iter().step_by(pages.len().div_ceil(1000)).collect();
    let mut words = 0;
    for &&vpn in &some {
        let (leaf, touched) = words_of(&nodes, || table.lookup(VirtAddr::new(vpn << 12)));
        assert_eq!(leaf.unwrap().frame, Pfn::new(vpn & 0xffff));
        words += touched;
    }
    let moved = table.table().most_moved();
    for &vpn in pages {
        table.unmap(page(vpn), Holes::Refuse).unwrap();
    }
    assert_eq!(table.table().buckets(), 2, "it has shrunk");
    assert!(table.table().most_moved() <= 256);
    table.destroy();
    assert_eq!(nodes.slab().usage().nodes, 0);
    (words as f64 / some.len() as f64, moved)
}

/// A program that chooses pages can ruin the public hash, and cannot ruin one with a secret. Either way a change moves
/// a bounded number of buckets.
#[test]
fn chosen_pages_share_no_chain_under_a_secret() {
    let pages = chosen();
    let (public, moved) = costs(&pages, None);
    println!("public hash: {public:.1} words a lookup, {moved} buckets moved at once");
    assert!(cfg!(miri) || public > 100.0, "the pages are not well chosen: {public} words");
    assert!(moved <= 128, "{moved} buckets moved at once");
    for secret in [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7345, 0xa409_3822_299f_31d1usize] {
        let (keyed, moved) = costs(&pages, Some(secret));
        println!("secret {secret:#x}: {keyed:.1} words a lookup, {moved} buckets moved at once");
        assert!(keyed < 9.5, "{keyed} words a lookup");
        assert!(moved <= 128, "{moved} buckets moved at once");
    }
}

/// The most words that one of many changes touches, a million in full, as a table grows to `PAGES` pages and shrinks again.
macro_rules! worst {
    ($table:ty, $chunks:expr, $place:expr) => {{
        let mut memory = vec![Chunk::ZERO; $chunks];
        let nodes = counting(&mut memory);
        let mut table = Local::new(<$table>::new(&nodes).unwrap(), |_: &Flush| ());
        let (mut worst, mut all) = ([0; 2], [0; 2]);
        for at in 0..PAGES {
            let (done, words) =
                words_of(&nodes, || table.map(page($place(at)), Pfn::new(1), PageSize::K4, Attr::READ));
            done.unwrap();
            worst[0] = worst[0].max(words);
            all[0] += words;
        }
        for at in 0..PAGES {
            let (done, words) = words_of(&nodes, || table.unmap(page($place(at)), Holes::Refuse));
            done.unwrap();
            worst[1] = worst[1].max(words);
            all[1] += words;
        }
        println!(
            "{PAGES} pages: a map touches {} words, the worst {}; an unmap {}, the worst {}",
            all[0] / PAGES,
            worst[0],
            all[1] / PAGES,
            worst[1]
        );
        table.destroy();
        worst
    }};
}

const PAGES: usize = count(400, 50_000, 500_000);

/// Whatever number a kernel takes for a secret, pages in a row and pages in steps do not meet in few buckets.
#[test]
fn every_secret_is_a_hash() {
    let count = count(500, 5_000, 20_000);
    for secret in [0, 1, 2, 3, 0x1234_5678_9abc_def1, usize::MAX, usize::MAX << 32, 1 << 63] {
        for step in [1, 2, 512, 0x9_d2c5_6813] {
            let pages: Vec<usize> =
                (0..count).map(|at: usize| at.wrapping_mul(step) & 0x7_ffff_ffff).collect();
            let (words, _) = costs(&pages, Some(secret));
            assert!(words < 9.5, "secret {secret:#x}, pages in steps of {step:#x}: {words} words a lookup");
        }
    }
}

/// No secret of a hundred, in the gate of 25 of them, makes long chains of pages in a row, or of pages with a stride. A hash of one
/// multiplication fails here: one secret of a hundred or so is a poor one for it.
#[test]
fn no_secret_is_poor() {
    let (secrets, count) = (count(1, 25, 100), count(100, 2000, 4000));
    let mut worst = (0.0_f64, 0, 0);
    for at in 1..=secrets {
        let secret = 0x243f_6a88_85a3_08d3_usize.wrapping_mul(at).rotate_left(29);
        for stride in [1, 16, 128, 0x201, 1 << 13] {
            let pages: Vec<usize> = (0..count).map(|at| at * stride).collect();
            let (words, _) = costs(&pages, Some(secret));
            if words > worst.0 {
                worst = (words, secret, stride);
            }
        }
    }
    println!("{:.2} words a lookup with secret {:#x} and stride {:#x}", worst.0, worst.1, worst.2);
    assert!(worst.0 < 9.5, "{worst:?}");
}

/// The directory of up to 2^13 entries is copied once a doubling; everything else is about segments of 128 buckets.
#[test]
fn no_change_is_expensive() {
    assert!(worst!(Hr<'_, _>, 1 << 14, |at| at).into_iter().all(|words| words < 50_000));
    assert!(worst!(Cpt8<'_, _>, 1 << 16, |at| 8 * at).into_iter().all(|words| words < 50_000));
}

/// A program that knows the hash has one long chain, half of whose buckets are vacant, in a segment that has just been split: the unmap
/// that is one too many does not take them out one by one, each by a walk of both chains.
#[test]
#[cfg_attr(miri, ignore = "a chain that a program chooses is long")]
fn a_joined_chain_is_not_swept() {
    const CHAIN: usize = 1500;
    let mut memory = vec![Chunk::ZERO; 256];
    let nodes = counting(&mut memory);
    let mut table = Local::new(Hr::new(&nodes).unwrap(), |_: &Flush| ());
    // The bucket is near the end of the segment that is split next when the table has this many.
    let heads = ((CHAIN + 400) * 100).div_ceil(150).next_multiple_of(128);
    let bucket = heads - (1 << heads.ilog2()) + 120;
    let in_chain = (0u64..).filter(|&key| hash(key) & 4095 == bucket as u64);
    let chain: Vec<usize> = in_chain.take(CHAIN).map(|key| key as usize).collect();
    let others = (1 << 34)..;
    let (mut mapped, mut pages) = (0, chain.iter().copied().chain(others));
    while mapped < CHAIN + 400 || (mapped + 1) * 100 <= 150 * table.table().buckets() {
        table.map(page(pages.next().unwrap()), Pfn::new(1), PageSize::K4, Attr::READ).unwrap();
        mapped += 1;
    }
    let heads = table.table().buckets();
    let mut most = 0;
    for &vpn in &chain[..mapped / 2] {
        let (done, words) = words_of(&nodes, || table.unmap(page(vpn), Holes::Refuse));
        done.unwrap();
        most = most.max(words);
    }
    table.map(page(pages.next().unwrap()), Pfn::new(1), PageSize::K4, Attr::READ).unwrap();
    assert!(table.table().buckets() > heads, "the split has joined the chain to another one");
    for &vpn in &chain[mapped / 2..] {
        let (done, words) = words_of(&nodes, || table.unmap(page(vpn), Holes::Refuse));
        done.unwrap();
        assert!(words < 10 * most, "an unmap accesses {words} words, and at most {most} before the split");
    }
    table.destroy();
}
