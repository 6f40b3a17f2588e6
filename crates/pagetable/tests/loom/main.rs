//! Walkers beside a writer, in every interleaving and with every stale value that the memory model allows.
//!
//! `RUSTFLAGS="--cfg tlbkit_loom" cargo test --release --features loom -p tlbkit-pagetable --test loom`
#![cfg(tlbkit_loom)]

mod pairs;
#[path = "../common/rebased.rs"]
mod rebased;
mod scene;
mod storage;

use rebased::Rebased;
use scene::{GROWING, ONE, Scene, TWO, check, check_visit, check_visits};
use storage::Watched;
use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::gpt::{self, Adaptive, Fixed, Gpt};
use tlbkit_pagetable::hpt::Hashed;
use tlbkit_pagetable::lpt::Lpt;
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::{Change, Geometry, Holes, Radix, Table};

/// Eight pages in three levels of one bit. A page is two words, so that it can be a page of a linear table too.
#[derive(Debug)]
struct Tiny;

type Words = Rebased<4>;

const PAGE: PageSize = PageSize::from_shift(4).unwrap();
const LARGE: PageSize = PageSize::from_shift(5).unwrap();

impl Geometry for Tiny {
    const VA_BITS: u32 = 7;
    const BASE: PageSize = PAGE;
    const SIZES: &'static [PageSize] = &[PAGE, LARGE];
}

impl Radix for Tiny {
    const WIDTHS: &'static [u32] = &[1, 1, 1];
}

/// The same pages in a space whose tags have 64 bits.
#[derive(Debug)]
struct Wide;

impl Geometry for Wide {
    const VA_BITS: u32 = 40;
    const BASE: PageSize = PAGE;
    const SIZES: &'static [PageSize] = &[PAGE];
}

/// A secret with which the product's hash of a page below eight ends in the two low bits of its number.
const LOW_BITS: usize = 0x10_0001;

const READ: Attr = Attr::READ;
const WRITE: Attr = Attr::READ.union(Attr::WRITE);

type Writing<'w, 't> = tlbkit_pagetable::Writer<'w, 'static, dyn Table<'static> + 't>;

fn set(writer: &mut Writing<'_, '_>, page: usize) {
    writer.map(pages(page, 1), Pfn::new(8 + page), PAGE, WRITE).unwrap();
}

fn pages(first: usize, count: usize) -> Pages {
    Pages::count(Vpn::new(first), count).unwrap()
}

/// A page appears, with the nodes that lead to it.
const MAP: Scene = Scene {
    before: |_| (),
    steps: &[|writer| writer.map(pages(0, 2), Pfn::new(8), PAGE, WRITE).unwrap()],
    then: &[],
    probe: &[1],
    broken: &[],
};

/// A page disappears, and its nodes.
const UNMAP: Scene = Scene {
    before: |writer| writer.map(pages(0, 1), Pfn::new(8), PAGE, WRITE).unwrap(),
    steps: &[|writer| assert_eq!(writer.unmap(pages(0, 1), Holes::Refuse, None), Ok(1))],
    then: &[],
    probe: &[0],
    broken: &[],
};

/// One of two pages disappears: a table that merges nodes does so now.
const UNMAP_ONE: Scene = Scene {
    before: |writer| {
        writer.map(pages(0, 1), Pfn::new(8), PAGE, WRITE).unwrap();
        writer.map(pages(7, 1), Pfn::new(9), PAGE, READ).unwrap();
    },
    steps: &[|writer| assert_eq!(writer.unmap(pages(0, 1), Holes::Refuse, None), Ok(1))],
    then: &[],
    probe: &[0, 7],
    broken: &[],
};

/// The other of the two disappears: what stands behind another in a chain leaves it.
const UNMAP_OTHER: Scene = Scene {
    before: UNMAP_ONE.before,
    steps: &[|writer| assert_eq!(writer.unmap(pages(7, 1), Holes::Refuse, None), Ok(1))],
    then: &[],
    probe: &[0, 7],
    broken: &[],
};

/// A second page appears, near the first: a table that splits guards does so now.
const MAP_BESIDE: Scene = Scene {
    before: |writer| writer.map(pages(0, 1), Pfn::new(8), PAGE, WRITE).unwrap(),
    steps: &[|writer| writer.map(pages(2, 1), Pfn::new(9), PAGE, READ).unwrap()],
    then: &[],
    probe: &[0, 2],
    broken: &[],
};

/// Two pages lose a right.
const PROTECT: Scene = Scene {
    before: |writer| writer.map(pages(2, 2), Pfn::new(8), PAGE, WRITE).unwrap(),
    steps: &[|writer| {
        assert_eq!(writer.protect(pages(2, 2), Holes::Refuse, Change::clear(Attr::WRITE)), Ok(2));
    }],
    then: &[],
    probe: &[3],
    broken: &[],
};

/// Two pages become one.
const PROMOTE: Scene = Scene {
    before: |writer| writer.map(pages(2, 2), Pfn::new(8), PAGE, WRITE).unwrap(),
    steps: &[|writer| writer.resize(pages(2, 2), LARGE, &mut |_| ()).unwrap()],
    then: &[],
    probe: &[3],
    broken: &[],
};

/// One page becomes two.
const SPLIT: Scene = Scene {
    before: |writer| writer.map(pages(2, 2), Pfn::new(8), LARGE, WRITE).unwrap(),
    steps: &[|writer| writer.resize(pages(2, 2), PAGE, &mut |_| ()).unwrap()],
    then: &[],
    probe: &[3],
    broken: &[],
};

/// A page goes, and before anybody has flushed it others come: what was its slot, or its node, must not be taken
/// for theirs.
const REPLACE: Scene = Scene {
    before: |writer| writer.map(pages(0, 1), Pfn::new(8), PAGE, WRITE).unwrap(),
    steps: &[
        |writer| assert_eq!(writer.unmap(pages(0, 1), Holes::Refuse, None), Ok(1)),
        |writer| writer.map(pages(4, 1), Pfn::new(9), PAGE, WRITE).unwrap(),
        |writer| writer.map(pages(0, 1), Pfn::new(10), PAGE, READ).unwrap(),
    ],
    then: &[],
    probe: &[0, 4],
    broken: &[],
};

/// A page goes, and after everybody has flushed it another takes its place, while walkers ask again for both.
const REUSE: Scene = Scene {
    before: |writer| writer.map(pages(2, 1), Pfn::new(8), PAGE, WRITE).unwrap(),
    steps: &[|writer| assert_eq!(writer.unmap(pages(2, 1), Holes::Refuse, None), Ok(1))],
    then: &[|writer| writer.map(pages(6, 1), Pfn::new(9), PAGE, WRITE).unwrap()],
    probe: &[2, 6],
    broken: &[],
};

/// The first of three pages disappears, and none is in the first slot of a node of four slots: a visitor goes on to the others.
const VISIT_UNMAP: Scene = Scene {
    before: |writer| [2, 4, 7].map(|page| set(writer, page)).into_iter().collect(),
    steps: &[|writer| assert_eq!(writer.unmap(pages(2, 1), Holes::Refuse, None), Ok(1))],
    then: &[],
    probe: &[2],
    broken: &[],
};

/// A page appears before, between or behind two others.
const VISIT_MAP: Scene = Scene {
    before: |writer| [4, 7].map(|page| set(writer, page)).into_iter().collect(),
    steps: &[|writer| set(writer, 2)],
    then: &[],
    probe: &[2],
    broken: &[],
};

/// Pages of the first of two buckets: all but one are in its chain.
const CHAIN: scene::Step = |writer| {
    for page in [0, 2, 4, 6] {
        writer.map(pages(page, 1), Pfn::new(8 + page), PAGE, WRITE).unwrap();
    }
};

/// A table of two buckets splits them, and parts the chain that both halves of the first have.
const GROW: Scene = Scene {
    before: CHAIN,
    steps: &[
        |writer| writer.map(pages(1, 1), Pfn::new(9), PAGE, WRITE).unwrap(),
        |writer| writer.map(pages(3, 1), Pfn::new(11), PAGE, WRITE).unwrap(),
    ],
    then: &[],
    probe: &[0, 1],
    broken: &[],
};

/// The same, and a visitor looks for the last page of the chain, 6, 4, 2: the chain of page 4 is made to lead past page 2, which
/// may lead the visitor astray.
const GROW_CHAIN: Scene = Scene { probe: &[2, 1], ..GROW };

/// A page disappears from the chain that two buckets still have in common, and the chain is parted.
const UNMAP_JOINED: Scene = Scene {
    before: |writer| {
        CHAIN(writer);
        set(writer, 1);
    },
    steps: &[|writer| assert_eq!(writer.unmap(pages(6, 1), Holes::Refuse, None), Ok(1))],
    then: &[],
    probe: &[2, 6],
    broken: &[],
};

/// Maps seven pages, which splits two buckets, and unmaps all but `kept`, which parts the chains.
fn split_keeping(writer: &mut Writing<'_, '_>, kept: &[usize]) {
    for page in [0, 2, 4, 6, 1, 3, 5] {
        set(writer, page);
    }
    for page in [1, 3, 5, 0, 2, 4, 6].into_iter().filter(|page| !kept.contains(page)) {
        writer.unmap(pages(page, 1), Holes::Refuse, None).unwrap();
    }
}

/// A table of four buckets merges them, and links the chain of one, page 4, to that of another, page 2.
const SHRINK: Scene = Scene {
    before: |writer| split_keeping(writer, &[2, 4, 6]),
    steps: &[|writer| assert_eq!(writer.unmap(pages(6, 1), Holes::Refuse, None), Ok(1))],
    then: &[],
    probe: &[2, 6],
    broken: &[],
};

/// The same with pages 0 and 6 in the buckets that are merged: one of them moves to an overflow bucket.
const SHRINK_FIRST: Scene = Scene {
    before: |writer| split_keeping(writer, &[0, 4, 6]),
    steps: &[|writer| assert_eq!(writer.unmap(pages(4, 1), Holes::Refuse, None), Ok(1))],
    then: &[],
    probe: &[0, 4, 6],
    broken: &[],
};

/// Writes the tests of one table: how much is played of scenes of a few stores, and of others.
macro_rules! walkers {
    ($table:ident, $two:expr, $one:expr, $build:expr) => {
        mod $table {
            use super::*;

            #[test]
            fn map() {
                check($two, &MAP, $build);
            }

            #[test]
            fn map_beside() {
                check($one, &MAP_BESIDE, $build);
            }

            #[test]
            fn unmap() {
                check($two, &UNMAP, $build);
            }

            #[test]
            fn unmap_one() {
                check($one, &UNMAP_ONE, $build);
            }

            #[test]
            fn unmap_other() {
                check($one, &UNMAP_OTHER, $build);
            }

            #[test]
            fn protect() {
                check($two, &PROTECT, $build);
            }

            #[test]
            fn promote() {
                check($one, &PROMOTE, $build);
            }

            #[test]
            fn split() {
                check($one, &SPLIT, $build);
            }

            #[test]
            fn replace() {
                check($one, &REPLACE, $build);
            }

            #[test]
            fn reuse() {
                check($one, &REUSE, $build);
            }

            #[test]
            fn visit_unmap() {
                check_visit(&VISIT_UNMAP, &[4, 7], $build);
            }

            #[test]
            fn visit_map() {
                check_visit(&VISIT_MAP, &[4, 7], $build);
            }
        }
    };
}

walkers!(mpt, TWO, ONE, |nodes| Mpt::<Tiny, Words, _>::new(nodes).unwrap());
walkers!(lpt, TWO, ONE, |nodes| Lpt::<Tiny, Words, _, 0x1000>::new(nodes).unwrap());
walkers!(g2, TWO, ONE, |nodes| Gpt::<Tiny, Words, _, gpt::Compact, Fixed<1>>::new(nodes).unwrap());
walkers!(g4, TWO, ONE, |nodes| Gpt::<Tiny, Words, _, gpt::Compact, Fixed<2>>::new(nodes).unwrap());
walkers!(ga, TWO, ONE, |nodes| Gpt::<Tiny, Words, _, gpt::Compact, Adaptive>::new(nodes).unwrap());
walkers!(hpt, TWO, ONE, |nodes| Hashed::<Tiny, Words, _, 0, 0, 0>::new(nodes).unwrap());
walkers!(hr, GROWING, GROWING, |nodes| Hashed::<Tiny, Words, _, 0, 1, 75>::new(nodes).unwrap());
walkers!(hpt_pairs, TWO, ONE, |nodes| Hashed::<Tiny, Words, _, 1, 0, 0>::new(nodes).unwrap());
walkers!(cpt, TWO, ONE, |nodes| Hashed::<Tiny, Words, _, 2, 0, 0>::new(nodes).unwrap());
walkers!(cpt_grows, GROWING, GROWING, |nodes| Hashed::<Tiny, Words, _, 2, 1, 40>::new(nodes).unwrap());

/// Tables of two buckets at first, which grow and shrink: with the hash of a refill handler, whose directory stays where it is,
/// and with one that multiplies, whose root changes.
macro_rules! grows {
    ($table:ident, $geometry:ty) => {
        mod $table {
            use super::*;

            type Grows<const LOAD: usize> = Hashed<'static, $geometry, Words, Watched, 0, 1, LOAD>;

            fn build<const LOAD: usize>(nodes: &'static Watched) -> Grows<LOAD> {
                Grows::keyed(nodes, LOW_BITS).unwrap()
            }

            #[test]
            fn grow() {
                check(GROWING, &GROW, build::<200>);
            }

            #[test]
            fn grow_chain() {
                check_visits(GROWING, &GROW_CHAIN, build::<200>);
            }

            #[test]
            fn unmap_joined() {
                check_visits(GROWING, &UNMAP_JOINED, build::<200>);
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

grows!(grows_folded, Tiny);
grows!(grows, Wide);

/// The check can fail: nodes that are reclaimed before the walkers have acknowledged are walked.
#[test]
#[should_panic(expected = "somebody is in a freed node")]
fn early_reclaim_is_caught() {
    scene::check_early(&UNMAP, |nodes| Mpt::<Tiny, Words, _>::new(nodes).unwrap());
}
