//! Changes: of a page, of a run, of the sizes of leaves.

use std::hint::black_box;

use super::{Case, Evict, case, scaled, timed};
use crate::work::{Mapped, dense, shuffled, sparse};
use crate::{Resize, Subject};

/// Half of the slots of a node with 512.
const HALF: usize = 256;
/// The run that range operations work on: the paper's mapping benchmark (Elphinstone et al. 3.3).
const RUN: usize = 128;
/// Pages that lie apart, and how many of them are changed between two evictions of the caches.
const APART: usize = scaled(4096);
const COLD: usize = 256;

pub(super) fn add<S: Subject + 'static>(cases: &mut Vec<Case>) {
    warm::<S>(cases);
    cold::<S>(cases);
    range::<S>(cases);
    growing::<S>(cases);
    life::<S>(cases);
}

/// A table half of whose node is mapped, so that mapping in the other half creates and frees none.
fn half<S: Subject>() -> (Mapped<S>, usize) {
    let base = dense(S::BITS, 1)[0] & !511;
    let table = Mapped::new((base..base + HALF).collect(), |at| 7 + at);
    (table, base + HALF)
}

/// The same, and the first `pages` pages of the other half are mapped, too.
fn more<S: Subject>(pages: usize) -> (Mapped<S>, usize) {
    let base = dense(S::BITS, 1)[0] & !511;
    let table = Mapped::new((base..base + HALF + pages).collect(), |at| 7 + at);
    (table, base + HALF)
}

fn warm<S: Subject + 'static>(cases: &mut Vec<Case>) {
    cases.push(case::<S, _>("map page", HALF, || {
        let (mut table, first) = half::<S>();
        move || {
            let time = timed(|| (0..HALF).for_each(|page| table.map(black_box(first + page), page)));
            (0..HALF).for_each(|page| table.unmap(first + page));
            time
        }
    }));
    cases.push(case::<S, _>("unmap page", HALF, || {
        let (mut table, first) = half::<S>();
        move || {
            (0..HALF).for_each(|page| table.map(first + page, page));
            timed(|| (0..HALF).for_each(|page| table.unmap(black_box(first + page))))
        }
    }));
    cases.push(case::<S, _>("protect page", RUN, || {
        let (mut table, first) = more::<S>(RUN);
        let mut writable = false;
        move || {
            writable = !writable;
            timed(|| (0..RUN).for_each(|page| table.protect_range(black_box(first + page), 1, writable)))
        }
    }));
    cases.push(case::<S, _>("replace page", RUN, || {
        let (mut table, first) = more::<S>(RUN);
        let mut frame = 0x1000;
        move || {
            frame ^= 0x100;
            timed(|| (0..RUN).for_each(|page| table.replace(black_box(first + page), frame + page)))
        }
    }));
}

/// Pages far apart, each of which has a neighbour that is mapped; the next [`COLD`] of them in turn.
struct Apart {
    pages: Vec<usize>,
    at: usize,
}

impl Apart {
    /// Returns a table of pages far apart, and their neighbours, mapped or to be mapped.
    fn new<S: Subject>(mapped: bool) -> (Mapped<S>, Self) {
        let mut pages: Vec<usize> = sparse(S::BITS, APART).into_iter().map(|vpn| vpn | 1).collect();
        pages.dedup();
        let neighbours =
            pages.iter().flat_map(|&vpn| if mapped { vec![vpn - 1, vpn] } else { vec![vpn - 1] });
        (Mapped::new(neighbours.collect(), |at| 7 + at), Self { pages: shuffled(pages), at: 0 })
    }

    fn next(&mut self) -> &[usize] {
        let first = self.at;
        self.at = if first + 2 * COLD > self.pages.len() { 0 } else { first + COLD };
        &self.pages[first..first + COLD]
    }
}

fn cold<S: Subject + 'static>(cases: &mut Vec<Case>) {
    cases.push(case::<S, _>("map page, cold", COLD, || {
        let ((mut table, mut apart), mut other) = (Apart::new::<S>(false), Evict::new());
        move || {
            other.run();
            let pages = apart.next();
            let time = timed(|| pages.iter().for_each(|&vpn| table.map(vpn, 1)));
            pages.iter().for_each(|&vpn| table.unmap(vpn));
            time
        }
    }));
    cases.push(case::<S, _>("unmap page, cold", COLD, || {
        let ((mut table, mut apart), mut other) = (Apart::new::<S>(true), Evict::new());
        move || {
            other.run();
            let pages = apart.next();
            let time = timed(|| pages.iter().for_each(|&vpn| table.unmap(vpn)));
            pages.iter().for_each(|&vpn| table.map(vpn, 1));
            time
        }
    }));
    cases.push(case::<S, _>("protect page, cold", COLD, || {
        let ((mut table, mut apart), mut other) = (Apart::new::<S>(true), Evict::new());
        move || {
            other.run();
            let pages = apart.next();
            let time = timed(|| pages.iter().for_each(|&vpn| table.protect_range(vpn, 1, false)));
            pages.iter().for_each(|&vpn| table.protect_range(vpn, 1, true));
            time
        }
    }));
    cases.push(case::<S, _>("replace page, cold", COLD, || {
        let ((mut table, mut apart), mut other) = (Apart::new::<S>(true), Evict::new());
        let mut frame = 0x1000;
        move || {
            other.run();
            frame ^= 0x100;
            let pages = apart.next();
            timed(|| pages.iter().for_each(|&vpn| table.replace(vpn, frame)))
        }
    }));
}

fn range<S: Subject + 'static>(cases: &mut Vec<Case>) {
    cases.push(case::<S, _>("map 128", RUN, || {
        let (mut table, first) = half::<S>();
        move || {
            let time = timed(|| table.map_range(black_box(first), 0x1000, RUN));
            table.unmap_range(first, RUN);
            time
        }
    }));
    cases.push(case::<S, _>("unmap 128", RUN, || {
        let (mut table, first) = half::<S>();
        move || {
            table.map_range(first, 0x1000, RUN);
            timed(|| table.unmap_range(black_box(first), RUN))
        }
    }));
    cases.push(case::<S, _>("protect 128", RUN, || {
        let (mut table, first) = more::<S>(RUN);
        let mut writable = false;
        move || {
            writable = !writable;
            timed(|| table.protect_range(black_box(first), RUN, writable))
        }
    }));
}

fn growing<S: Subject + 'static>(cases: &mut Vec<Case>) {
    for (job, pages) in
        [("map from empty, dense", dense(S::BITS, APART)), ("map from empty, sparse", sparse(S::BITS, 1024))]
    {
        cases.push(case::<S, _>(job, pages.len(), move || {
            move || {
                let mut table = S::new();
                let time = timed(|| pages.iter().for_each(|&vpn| table.map(vpn, vpn)));
                empty(table, &pages);
                time
            }
        }));
    }
}

/// Unmaps the pages and takes the table apart.
pub(super) fn empty<S: Subject>(mut table: S, pages: &[usize]) {
    pages.iter().for_each(|&vpn| table.unmap(vpn));
    table.destroy();
}

fn life<S: Subject + 'static>(cases: &mut Vec<Case>) {
    cases.push(case::<S, _>("destroy", 1, || {
        let vpn = dense(S::BITS, 1)[0];
        move || {
            timed(|| {
                let mut table = S::new();
                table.map(black_box(vpn), 1);
                table.unmap(black_box(vpn));
                table.destroy();
            })
        }
    }));
}

pub(super) fn freeing<S: Subject + 'static>(cases: &mut Vec<Case>) {
    cases.push(case::<S, _>("unmap freeing", 64, || {
        let far = sparse(S::BITS, 64);
        let mut table = Mapped::<S>::new(Vec::new(), |at| at);
        move || {
            far.iter().for_each(|&vpn| table.map(vpn, 1));
            timed(|| far.iter().for_each(|&vpn| table.unmap(vpn)))
        }
    }));
}

pub(super) fn resizing<S: Resize + 'static>(cases: &mut Vec<Case>) {
    // A run that is aligned, so that it can be one leaf, in pages and frames.
    fn run<S: Resize>() -> (Mapped<S>, usize) {
        let first = dense(S::BITS, 1)[0].next_multiple_of(S::PAGES);
        (Mapped::new((first..first + S::PAGES).collect(), |at| first + at), first)
    }
    cases.push(case::<S, _>("promote 512", 1, || {
        let (mut table, first) = run::<S>();
        move || {
            let time = timed(|| table.promote(black_box(first)));
            table.split(first);
            time
        }
    }));
    cases.push(case::<S, _>("split 512", 1, || {
        let (mut table, first) = run::<S>();
        move || {
            table.promote(first);
            timed(|| table.split(black_box(first)))
        }
    }));
}
