//! Walkers beside a writer, in every interleaving and with every stale value that the memory model allows.
//!
//! `RUSTFLAGS="--cfg tlbkit_loom" cargo test --release --features loom -p tlbkit-pagetable --test loom`
#![cfg(tlbkit_loom)]

#[macro_use]
#[path = "../all/common/kinds.rs"]
mod kinds;
mod hashed_writers;
mod pairs;
#[path = "../all/common/rebased.rs"]
mod rebased;
mod two_writers;
mod writers;

use rebased::Rebased;
use tlbkit_addr::{Attr, PageSize, Pages, Vpn};
use tlbkit_conformance::scenes::{self, GROWING, ONE, Pen, Scene, UNMAP, Watched, check, check_visits};
use tlbkit_conformance::walkers;
use tlbkit_pagetable::hpt::{Buckets, Hashed};
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::{Error, Geometry, Holes};

/// Eight pages in three levels of one bit. A page is two words, so that it can be a page of a linear table too.
type Tiny = scenes::Tiny<4>;

type Words = Rebased<4>;

const PAGE: PageSize = PageSize::from_shift(4).unwrap();

/// The same pages in a space whose tags have 64 bits.
#[derive(Debug)]
struct Wide;

impl Geometry for Wide {
    const VA_BITS: u32 = 40;
    const BASE: PageSize = PAGE;
    const SIZES: &'static [PageSize] = &[PAGE];
}

/// A secret with which a table of two or four buckets hashes a page below eight to the low bits of its number, as the hash of a
/// refill handler does. [`CHAIN`] checks it.
const LOW_BITS: usize = 0x15b;

const WRITE: Attr = Attr::READ.union(Attr::WRITE);

/// Maps a page.
fn set(pen: &mut Pen<'_>, page: usize) {
    pen.set(page, 8 + page, WRITE);
}

fn pages(first: usize, count: usize) -> Pages {
    Pages::count(Vpn::new(first), count).unwrap()
}

/// Pages of the first of two buckets: all but one are in its chain.
const CHAIN: scenes::Step = |writer| {
    let before = writer.footprint().nodes;
    for page in [0, 2, 4, 6] {
        set(writer, page);
    }
    assert_eq!(writer.footprint().nodes, before + 3, "overflow buckets: the pages are in one chain");
};

/// A table of two buckets splits them, and parts the chain that both halves of the first have.
const GROW: Scene = Scene {
    before: CHAIN,
    steps: &[|writer| set(writer, 1), |writer| set(writer, 3)],
    then: &[],
    probe: &[0, 1],
    broken: &[],
};

/// The same, and a walker looks for the last page of the chain, 6, 4, 2: the chain of page 4 is made to lead past page 2, so the
/// walker may miss it.
const GROW_CHAIN: Scene = Scene { probe: &[2, 1], ..GROW };

/// A page disappears from the chain that two buckets still have in common, and the chain is parted.
const UNMAP_JOINED: Scene = Scene {
    before: |writer| {
        CHAIN(writer);
        set(writer, 1);
    },
    steps: &[|writer| assert_eq!(writer.unmap(pages(6, 1), Holes::Refuse), Ok(1))],
    then: &[],
    probe: &[2, 6],
    broken: &[],
};

/// Of the chain's buckets two are vacant when a third one is emptied: the change takes all three out, the first one included.
const SWEEP: Scene = Scene {
    before: |writer| {
        CHAIN(writer);
        for page in [0, 4] {
            writer.unmap(pages(page, 1), Holes::Refuse).unwrap();
        }
    },
    steps: &[|writer| {
        let before = writer.footprint().nodes;
        assert_eq!(writer.unmap(pages(6, 1), Holes::Refuse), Ok(1));
        assert_eq!(writer.footprint().nodes, before - 2, "two overflow buckets are gone");
    }],
    then: &[],
    probe: &[2, 6],
    broken: &[],
};

/// Maps seven pages, which splits two buckets, and unmaps all but `kept`, which parts the chains.
fn split_keeping(writer: &mut Pen<'_>, kept: &[usize]) {
    for page in [0, 2, 4, 6, 1, 3, 5] {
        set(writer, page);
    }
    for page in [1, 3, 5, 0, 2, 4, 6].into_iter().filter(|page| !kept.contains(page)) {
        writer.unmap(pages(page, 1), Holes::Refuse).unwrap();
    }
}

/// A table of four buckets merges them, and links the chain of one, page 4, to that of another, page 2.
const SHRINK: Scene = Scene {
    before: |writer| split_keeping(writer, &[2, 4, 6]),
    steps: &[|writer| assert_eq!(writer.unmap(pages(6, 1), Holes::Refuse), Ok(1))],
    then: &[],
    probe: &[2, 6],
    broken: &[],
};

/// The same with pages 0 and 6 in the buckets that are merged: one of them moves to an overflow bucket.
const SHRINK_FIRST: Scene = Scene {
    before: |writer| split_keeping(writer, &[0, 4, 6]),
    steps: &[|writer| assert_eq!(writer.unmap(pages(4, 1), Holes::Refuse), Ok(1))],
    then: &[],
    probe: &[0, 4, 6],
    broken: &[],
};

/// A guarded table's leaf of two pages becomes one of the smallest size when one of them disappears, and a larger one again when
/// another appears. The page that stays is copied twice, and no walker misses it.
const SHRINK_LEAF: Scene = Scene {
    before: |writer| [2, 5].into_iter().for_each(|page| set(writer, page)),
    steps: &[
        |writer| {
            let before = writer.footprint().leaf_bytes;
            assert_eq!(writer.unmap(pages(5, 1), Holes::Refuse), Ok(1));
            assert!(writer.footprint().leaf_bytes < before, "a smaller leaf");
        },
        |writer| {
            let before = writer.footprint().leaf_bytes;
            set(writer, 7);
            assert!(writer.footprint().leaf_bytes > before, "a larger leaf");
        },
    ],
    then: &[],
    probe: &[2, 5],
    broken: &[],
};

/// The regions of the largest leaves of [`Tiny`] have two pages, those of [`Wide`] have 16.
#[test]
fn a_guarded_leaf_shrinks_and_grows() {
    check(ONE, &SHRINK_LEAF, |nodes| kinds::Ga::<Wide, Words, _>::new(nodes));
}

macro_rules! kind {
    // Between the others, with stores in the same order: `cargo xtask test --full`.
    (g4, $kind:ident, $change:ident) => {
        #[cfg(tlbkit_full)]
        walkers!(g4, |nodes| kinds::$kind::<Tiny, Words, _>::new(nodes));
    };
    (cpt_grows, $kind:ident, $change:ident) => {
        #[cfg(tlbkit_full)]
        walkers!(cpt_grows, |nodes| kinds::$kind::<Tiny, Words, _>::new(nodes), grows);
    };
    ($name:ident, $kind:ident, grows) => {
        walkers!($name, |nodes| kinds::$kind::<Tiny, Words, _>::new(nodes), grows);
    };
    ($name:ident, $kind:ident, $change:ident) => {
        walkers!($name, |nodes| kinds::$kind::<Tiny, Words, _>::new(nodes));
    };
}

each_kind!(kind);
#[cfg(tlbkit_full)]
walkers!(hpt_pairs, |nodes| Hashed::<Tiny, Words, _, Buckets<1, 0, 0>>::new(nodes));

/// Tables of two buckets at first, which grow and shrink: with the hash of a refill handler, whose directory stays where it is,
/// and with one that multiplies, whose root changes. The longest scenes have an attribute.
macro_rules! grows {
    ($table:ident, $geometry:ty $(, #[$long:meta])?) => {
        mod $table {
            use super::*;

            type Grows<const LOAD: usize> = Hashed<'static, $geometry, Words, Watched, Buckets<0, 1, LOAD>>;

            fn build<const LOAD: usize>(nodes: &'static Watched) -> Result<Grows<LOAD>, Error> {
                Grows::keyed(nodes, LOW_BITS)
            }

            #[test]
            $(#[$long])?
            fn grow() {
                check(GROWING, &GROW, build::<200>);
            }

            #[test]
            fn grow_chain() {
                check(GROWING, &GROW_CHAIN, build::<200>);
            }

            #[test]
            $(#[$long])?
            fn visit_grow_chain() {
                check_visits(GROWING, &GROW_CHAIN, build::<200>);
            }

            #[test]
            $(#[$long])?
            fn unmap_joined() {
                check_visits(GROWING, &UNMAP_JOINED, build::<200>);
            }

            #[test]
            fn sweep() {
                check(GROWING, &SWEEP, build::<200>);
            }

            #[test]
            fn shrink() {
                check(GROWING, &SHRINK, build::<300>);
            }

            #[test]
            fn shrink_first() {
                check(GROWING, &SHRINK_FIRST, build::<300>);
            }
        }
    };
}

grows!(grows_folded, Tiny, #[cfg_attr(not(tlbkit_full), ignore = "cargo xtask test --full")]);
grows!(grows, Wide);

/// The check can fail: nodes that are reclaimed before the walkers have acknowledged are walked.
#[test]
#[should_panic(expected = "a walker is in a freed node")]
fn early_reclaim_is_caught() {
    scenes::check_early(&UNMAP, |nodes| Mpt::<Tiny, Words, _>::new(nodes));
}
