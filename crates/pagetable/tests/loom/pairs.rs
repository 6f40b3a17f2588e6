//! The guarded table that a MIPS32 handler walks: its leaves are pairs of pages of any size, which stand in every slot of a
//! node that they cover.

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_conformance::scenes::{ONE, Scene, check};
use tlbkit_pagetable::gpt::{Adaptive, Fixed, Gpt32};
use tlbkit_pagetable::{Change, FlushAll, Holes};

const SMALL: PageSize = PageSize::K4;
const LARGE: PageSize = PageSize::K16;
const WRITE: Attr = Attr::READ.union(Attr::WRITE).union(Attr::DIRTY);

fn pages(first: usize, count: usize) -> Pages {
    Pages::count(Vpn::new(first), count).unwrap()
}

/// A small page, far enough that a node is needed and near enough that its slots are smaller than a large page.
const FAR: usize = 8;

/// A larger page appears in two slots of a node that is walked, with both halves of it or with neither.
const MAP: Scene = Scene {
    before: |writer| writer.map(pages(FAR, 2), Pfn::new(8), SMALL, WRITE).unwrap(),
    steps: &[|writer| writer.map(pages(0, 4), Pfn::new(16), LARGE, WRITE).unwrap()],
    then: &[],
    probe: &[1, 2, FAR],
    broken: &[],
};

/// One appears beside another: the pair becomes one leaf.
const MAP_BESIDE: Scene = Scene {
    before: |writer| {
        writer.map(pages(FAR, 2), Pfn::new(8), SMALL, WRITE).unwrap();
        writer.map(pages(4, 4), Pfn::new(20), LARGE, WRITE).unwrap();
    },
    steps: &[|writer| writer.map(pages(0, 4), Pfn::new(16), LARGE, WRITE).unwrap()],
    then: &[],
    probe: &[2, 6],
    broken: &[],
};

/// A small page appears in the other half of a larger one's pair, whose leaf alone is the tree.
const MAP_SMALL: Scene = Scene {
    before: |writer| writer.map(pages(0, 4), Pfn::new(16), LARGE, WRITE).unwrap(),
    steps: &[|writer| writer.map(pages(5, 1), Pfn::new(8), SMALL, WRITE).unwrap()],
    then: &[],
    probe: &[3, 5],
    broken: &[],
};

/// One of a pair disappears from its slots, the other stays.
const UNMAP: Scene = Scene {
    before: |writer| {
        writer.map(pages(FAR, 2), Pfn::new(8), SMALL, WRITE).unwrap();
        writer.map(pages(0, 8), Pfn::new(16), LARGE, WRITE).unwrap();
    },
    steps: &[|writer| assert_eq!(writer.unmap(pages(0, 4), Holes::Refuse), Ok(4))],
    then: &[],
    probe: &[0, 2, 4],
    broken: &[],
};

/// One of a pair loses a right.
const PROTECT: Scene = Scene {
    before: UNMAP.before,
    steps: &[|writer| {
        assert_eq!(writer.protect(pages(4, 4), Holes::Refuse, Change::clear(Attr::WRITE)), Ok(4));
    }],
    then: &[],
    probe: &[3, 5],
    broken: &[],
};

/// A page goes, small ones take its slots, and it comes back, before any CPU has flushed any of them.
const REPLACE: Scene = Scene {
    before: UNMAP.before,
    steps: &[
        |writer| assert_eq!(writer.unmap(pages(0, 4), Holes::Refuse), Ok(4)),
        |writer| writer.map(pages(2, 1), Pfn::new(9), SMALL, WRITE).unwrap(),
        |writer| assert_eq!(writer.unmap(pages(2, 1), Holes::Refuse), Ok(1)),
        |writer| writer.map(pages(0, 4), Pfn::new(24), LARGE, WRITE).unwrap(),
    ],
    then: &[],
    probe: &[2, 4],
    broken: &[],
};

/// Small pages become a larger one, and get the leaf of the page beside it. EntryLos are broken before they are made.
const PROMOTE: Scene = Scene {
    before: |writer| {
        writer.map(pages(0, 4), Pfn::new(16), SMALL, WRITE).unwrap();
        writer.map(pages(4, 4), Pfn::new(20), LARGE, WRITE).unwrap();
    },
    // SAFETY: nothing runs on these pages.
    steps: &[|writer| unsafe { writer.resize(pages(0, 4), LARGE, FlushAll::breaking(&mut |_| ())) }.unwrap()],
    then: &[],
    probe: &[2, 6],
    broken: &[2],
};

/// One page of a pair becomes small ones, the other stays.
const SPLIT: Scene = Scene {
    before: UNMAP.before,
    // SAFETY: nothing runs on these pages.
    steps: &[|writer| unsafe { writer.resize(pages(0, 4), SMALL, FlushAll::breaking(&mut |_| ())) }.unwrap()],
    then: &[],
    probe: &[2, 6],
    broken: &[2],
};

macro_rules! pairs {
    ($table:ident, $policy:ty) => {
        mod $table {
            use super::*;

            fn sees(scene: &'static Scene) {
                check(ONE, scene, |nodes| Gpt32::<_, $policy>::new(nodes));
            }

            #[test]
            fn map() {
                sees(&MAP);
            }

            #[test]
            fn map_beside() {
                sees(&MAP_BESIDE);
            }

            #[test]
            fn map_small() {
                sees(&MAP_SMALL);
            }

            #[test]
            fn unmap() {
                sees(&UNMAP);
            }

            #[test]
            fn protect() {
                sees(&PROTECT);
            }

            #[test]
            fn replace() {
                sees(&REPLACE);
            }

            #[test]
            fn promote() {
                sees(&PROMOTE);
            }

            #[test]
            fn split() {
                sees(&SPLIT);
            }
        }
    };
}

pairs!(g8, Fixed<3>);
pairs!(ga, Adaptive);
