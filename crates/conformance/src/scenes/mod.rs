//! Scenes of one writer and one or two walkers, in every interleaving and with every stale value that the memory model allows.
//!
//! This module exists only under `--cfg tlbkit_loom` with the feature `loom`: see [`walkers!`](crate::walkers).

mod play;
mod storage;

pub use play::{
    Bound, Build, GROWING, ONE, Pen, Scene, Step, TWO, check, check_early, check_visit, check_visits,
};
pub use storage::Watched;
use tlbkit_addr::{Attr, PageSize, Pages, Vpn};
use tlbkit_pagetable::{Change, FlushAll, Geometry, Holes, Radix};

/// Eight pages of `2^SHIFT` bytes in three levels of one bit: the space of the scenes, with the `SIZES` smallest of the
/// sizes that its levels have.
#[derive(Debug)]
pub struct Tiny<const SHIFT: u32 = 12, const SIZES: usize = 2>;

impl<const SHIFT: u32, const SIZES: usize> Tiny<SHIFT, SIZES> {
    const ALL: [PageSize; 3] = [
        PageSize::from_shift(SHIFT).unwrap(),
        PageSize::from_shift(SHIFT + 1).unwrap(),
        PageSize::from_shift(SHIFT + 2).unwrap(),
    ];
}

impl<const SHIFT: u32, const SIZES: usize> Geometry for Tiny<SHIFT, SIZES> {
    const VA_BITS: u32 = SHIFT + 3;
    const BASE: PageSize = Self::ALL[0];
    const SIZES: &'static [PageSize] = Self::ALL.split_at(SIZES).0;
}

impl<const SHIFT: u32, const SIZES: usize> Radix for Tiny<SHIFT, SIZES> {
    const WIDTHS: &'static [u32] = &[1, 1, 1];
}

const READ: Attr = Attr::READ;
const WRITE: Attr = Attr::READ.union(Attr::WRITE);

fn pages(first: usize, count: usize) -> Pages {
    Pages::count(Vpn::new(first), count).unwrap()
}

/// A page appears, with the nodes that lead to it.
pub const MAP: Scene = Scene {
    before: |_| (),
    steps: &[|pen| pen.small(pages(0, 2), 8, WRITE)],
    then: &[],
    probe: &[1],
    broken: &[],
};

/// A page disappears, and its nodes.
pub const UNMAP: Scene = Scene {
    before: |pen| pen.set(0, 8, WRITE),
    steps: &[|pen| assert_eq!(pen.unmap(pages(0, 1), Holes::Refuse), Ok(1))],
    then: &[],
    probe: &[0],
    broken: &[],
};

/// One of two pages disappears: a table that merges nodes does so now.
pub const UNMAP_ONE: Scene = Scene {
    before: |pen| {
        pen.set(0, 8, WRITE);
        pen.set(7, 9, READ);
    },
    steps: &[|pen| assert_eq!(pen.unmap(pages(0, 1), Holes::Refuse), Ok(1))],
    then: &[],
    probe: &[0, 7],
    broken: &[],
};

/// The other of the two pages disappears: in a hashed table an entry that is not the first leaves its chain.
pub const UNMAP_OTHER: Scene = Scene {
    before: UNMAP_ONE.before,
    steps: &[|pen| assert_eq!(pen.unmap(pages(7, 1), Holes::Refuse), Ok(1))],
    then: &[],
    probe: &[0, 7],
    broken: &[],
};

/// A second page appears, near the first: a table that splits guards does so now.
pub const MAP_BESIDE: Scene = Scene {
    before: |pen| pen.set(0, 8, WRITE),
    steps: &[|pen| pen.set(2, 9, READ)],
    then: &[],
    probe: &[0, 2],
    broken: &[],
};

/// Two pages lose a right.
pub const PROTECT: Scene = Scene {
    before: |pen| pen.small(pages(2, 2), 8, WRITE),
    steps: &[|pen| {
        assert_eq!(pen.protect(pages(2, 2), Holes::Refuse, Change::clear(Attr::WRITE)), Ok(2));
    }],
    then: &[],
    probe: &[3],
    broken: &[],
};

/// Two pages become one.
pub const PROMOTE: Scene = Scene {
    before: PROTECT.before,
    steps: &[|pen| pen.reshape(pages(2, 2), 1)],
    then: &[],
    probe: &[3],
    broken: &[3],
};

/// One page becomes two.
pub const SPLIT: Scene = Scene {
    before: |pen| pen.large(pages(2, 2), 8, WRITE),
    steps: &[|pen| pen.reshape(pages(2, 2), 0)],
    then: &[],
    probe: &[3],
    broken: &[3],
};

/// A page is unmapped, and before any walker has flushed it other pages are mapped. A walker must not take the old slot or node
/// for theirs.
pub const REPLACE: Scene = Scene {
    before: |pen| pen.set(0, 8, WRITE),
    steps: &[
        |pen| assert_eq!(pen.unmap(pages(0, 1), Holes::Refuse), Ok(1)),
        |pen| pen.set(4, 9, WRITE),
        |pen| pen.set(0, 10, READ),
    ],
    then: &[],
    probe: &[0, 4],
    broken: &[],
};

/// A page is unmapped, and after every walker has flushed it another page takes its slot or node, while walkers look up both
/// pages again.
pub const REUSE: Scene = Scene {
    before: |pen| pen.set(2, 8, WRITE),
    steps: &[|pen| assert_eq!(pen.unmap(pages(2, 1), Holes::Refuse), Ok(1))],
    then: &[|pen| pen.set(6, 9, WRITE)],
    probe: &[2, 6],
    broken: &[],
};

/// One of two pages moves to a node that is not there yet.
pub const MOVE_ONE: Scene = Scene {
    before: |pen| pen.small(pages(0, 2), 8, WRITE),
    steps: &[|pen| {
        assert_eq!(pen.move_pages(pages(0, 1), Vpn::new(3), FlushAll::in_place(&mut |_| ())), Ok(1));
    }],
    then: &[],
    probe: &[0, 3],
    broken: &[],
};

/// A page moves with its node, if the table moves nodes. After every walker has flushed, another page appears beside it: no walker finds
/// that page at the old place.
pub const MOVE: Scene = Scene {
    before: |pen| pen.set(0, 8, WRITE),
    steps: &[|pen| {
        assert_eq!(pen.move_pages(pages(0, 2), Vpn::new(4), FlushAll::in_place(&mut |_| ())), Ok(1));
    }],
    then: &[|pen| pen.set(5, 10, READ)],
    probe: &[0, 1, 4, 5],
    broken: &[],
};

/// The first of three pages disappears, none of which is in the first slot of a node of four slots: a visitor must find the
/// others.
pub const VISIT_UNMAP: Scene = Scene {
    before: |pen| [2, 4, 7].into_iter().for_each(|page| pen.set(page, 8 + page, WRITE)),
    steps: &[|pen| assert_eq!(pen.unmap(pages(2, 1), Holes::Refuse), Ok(1))],
    then: &[],
    probe: &[2],
    broken: &[],
};

/// A page appears before, between or after two others.
pub const VISIT_MAP: Scene = Scene {
    before: |pen| [4, 7].into_iter().for_each(|page| pen.set(page, 8 + page, WRITE)),
    steps: &[|pen| pen.set(2, 10, WRITE)],
    then: &[],
    probe: &[2],
    broken: &[],
};

/// The pages that stay mapped in the scenes of visitors.
pub const STAY: &[usize] = &[4, 7];

/// Runs the loom scenes with a kind of table. The documentation of this macro without `--cfg tlbkit_loom` describes its
/// arguments.
#[macro_export]
macro_rules! walkers {
    ($name:ident, |$nodes:ident| $new:expr) => {
        $crate::walkers!(@ $name, TWO, ONE, $nodes, $new);
    };
    ($name:ident, |$nodes:ident| $new:expr, grows) => {
        $crate::walkers!(@ $name, GROWING, GROWING, $nodes, $new);
    };
    (@ $name:ident, $two:ident, $one:ident, $nodes:ident, $new:expr) => {
        mod $name {
            #[allow(unused_imports, reason = "the table's parameters are named as where the macro is called")]
            use super::*;

            $crate::walkers! { @tests $nodes, $new,
                map MAP $two, map_beside MAP_BESIDE $one, unmap UNMAP $two, unmap_one UNMAP_ONE $one,
                unmap_other UNMAP_OTHER $one, protect PROTECT $two, promote PROMOTE $one, split SPLIT $one,
                replace REPLACE $one, reuse REUSE $one, move_one MOVE_ONE $two, move_node MOVE $one
            }

            #[test]
            fn visit_unmap() {
                $crate::scenes::check_visit(&$crate::scenes::VISIT_UNMAP, $crate::scenes::STAY, |$nodes| $new);
            }

            #[test]
            fn visit_map() {
                $crate::scenes::check_visit(&$crate::scenes::VISIT_MAP, $crate::scenes::STAY, |$nodes| $new);
            }
        }
    };
    (@tests $nodes:ident, $new:expr, $($test:ident $scene:ident $bound:ident),+) => {
        $(
            #[test]
            fn $test() {
                $crate::scenes::check($crate::scenes::$bound, &$crate::scenes::$scene, |$nodes| $new);
            }
        )+
    };
}
