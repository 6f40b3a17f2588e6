//! Changes: of a page, of a run, of the sizes of leaves.

use std::hint::black_box;

use super::{Case, Evict, case, scaled};
use crate::work::{Mapped, check, check_writable, dense, shuffled, sparse};
use crate::{Resize, Subject, timed};

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
            let (time, ()) = timed(|| (0..HALF).for_each(|page| table.map(black_box(first + page), page)));
            (0..HALF).for_each(|page| check(&*table, first + page, Some(page)));
            (0..HALF).for_each(|page| table.unmap(first + page));
            time
        }
    }));
    for (job, map) in [("unmap page", S::map as Map<S>), ("unmap page, untouched", S::map_untouched)] {
        cases.push(case::<S, _>(job, HALF, move || {
            let (mut table, first) = half::<S>();
            move || {
                (0..HALF).for_each(|page| map(&mut table, first + page, page));
                let (time, ()) = timed(|| (0..HALF).for_each(|page| table.unmap(black_box(first + page))));
                (0..HALF).for_each(|page| check(&*table, first + page, None));
                time
            }
        }));
    }
    for (job, map) in [("protect page", S::map as Map<S>), ("protect page, untouched", S::map_untouched)] {
        cases.push(case::<S, _>(job, RUN, move || {
            let (mut table, first) = more::<S>(RUN);
            (0..RUN).for_each(|page| {
                table.unmap(first + page);
                map(&mut table, first + page, page);
            });
            let mut writable = true;
            move || {
                writable = !writable;
                let protect = |page| table.protect_range(black_box(first + page), 1, writable);
                let (time, ()) = timed(|| (0..RUN).for_each(protect));
                (0..RUN).for_each(|page| check_writable(&*table, first + page, writable));
                time
            }
        }));
    }
    cases.push(case::<S, _>("replace page", RUN, || {
        let (mut table, first) = more::<S>(RUN);
        let mut frame = 0x1000;
        move || {
            frame ^= 0x100;
            let replace = |page| table.replace(black_box(first + page), frame + page);
            let (time, ()) = timed(|| (0..RUN).for_each(replace));
            (0..RUN).for_each(|page| check(&*table, first + page, Some(frame + page)));
            time
        }
    }));
}

/// How a subject maps one page.
type Map<S> = fn(&mut S, usize, usize);

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
            let (time, ()) = timed(|| pages.iter().for_each(|&vpn| table.map(vpn, 1)));
            pages.iter().for_each(|&vpn| check(&*table, vpn, Some(1)));
            pages.iter().for_each(|&vpn| table.unmap(vpn));
            time
        }
    }));
    cases.push(case::<S, _>("unmap page, cold", COLD, || {
        let ((mut table, mut apart), mut other) = (Apart::new::<S>(true), Evict::new());
        move || {
            other.run();
            let pages = apart.next();
            let (time, ()) = timed(|| pages.iter().for_each(|&vpn| table.unmap(vpn)));
            pages.iter().for_each(|&vpn| check(&*table, vpn, None));
            pages.iter().for_each(|&vpn| table.map(vpn, 1));
            time
        }
    }));
    cases.push(case::<S, _>("protect page, cold", COLD, || {
        let ((mut table, mut apart), mut other) = (Apart::new::<S>(true), Evict::new());
        move || {
            other.run();
            let pages = apart.next();
            let (time, ()) = timed(|| pages.iter().for_each(|&vpn| table.protect_range(vpn, 1, false)));
            pages.iter().for_each(|&vpn| check_writable(&*table, vpn, false));
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
            let (time, ()) = timed(|| pages.iter().for_each(|&vpn| table.replace(vpn, frame)));
            pages.iter().for_each(|&vpn| check(&*table, vpn, Some(frame)));
            time
        }
    }));
}

fn range<S: Subject + 'static>(cases: &mut Vec<Case>) {
    cases.push(case::<S, _>("map 128", RUN, || {
        let (mut table, first) = half::<S>();
        move || {
            let (time, ()) = timed(|| table.map_range(black_box(first), 0x1000, RUN));
            (0..RUN).for_each(|page| check(&*table, first + page, Some(0x1000 + page)));
            table.unmap_range(first, RUN);
            time
        }
    }));
    cases.push(case::<S, _>("unmap 128", RUN, || {
        let (mut table, first) = half::<S>();
        move || {
            table.map_range(first, 0x1000, RUN);
            let (time, ()) = timed(|| table.unmap_range(black_box(first), RUN));
            (0..RUN).for_each(|page| check(&*table, first + page, None));
            time
        }
    }));
    cases.push(case::<S, _>("protect 128", RUN, || {
        let (mut table, first) = more::<S>(RUN);
        let mut writable = true;
        move || {
            writable = !writable;
            let (time, ()) = timed(|| table.protect_range(black_box(first), RUN, writable));
            (0..RUN).for_each(|page| check_writable(&*table, first + page, writable));
            time
        }
    }));
}

fn growing<S: Subject + 'static>(cases: &mut Vec<Case>) {
    for (map, unmap, pages) in [
        ("map from empty, dense", "unmap all, dense", dense(S::BITS, APART)),
        ("map from empty, sparse", "unmap all, sparse", sparse(S::BITS, 1024)),
    ] {
        let all = pages.clone();
        cases.push(case::<S, _>(map, all.len(), move || {
            move || {
                let mut table = S::new();
                let (time, ()) = timed(|| all.iter().for_each(|&vpn| table.map(vpn, vpn)));
                all.iter().for_each(|&vpn| check(&table, vpn, Some(vpn)));
                empty(table, &all);
                time
            }
        }));
        cases.push(case::<S, _>(unmap, pages.len(), move || {
            move || {
                let mut table = S::new();
                pages.iter().for_each(|&vpn| table.map(vpn, vpn));
                let (time, ()) = timed(|| pages.iter().for_each(|&vpn| table.unmap(vpn)));
                pages.iter().for_each(|&vpn| check(&table, vpn, None));
                table.destroy();
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
            let life = || {
                let mut table = S::new();
                table.map(black_box(vpn), 1);
                table.unmap(black_box(vpn));
                table.destroy();
            };
            timed(life).0
        }
    }));
}

pub(super) fn freeing<S: Subject + 'static>(cases: &mut Vec<Case>) {
    cases.push(case::<S, _>("unmap freeing", 64, || {
        let far = sparse(S::BITS, 64);
        let mut table = Mapped::<S>::new(Vec::new(), |at| at);
        move || {
            far.iter().for_each(|&vpn| table.map(vpn, 1));
            let (time, ()) = timed(|| far.iter().for_each(|&vpn| table.unmap(vpn)));
            far.iter().for_each(|&vpn| check(&*table, vpn, None));
            time
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
            let (time, ()) = timed(|| table.promote(black_box(first)));
            (first..first + S::PAGES).for_each(|vpn| check(&*table, vpn, Some(vpn)));
            table.split(first);
            time
        }
    }));
    cases.push(case::<S, _>("split 512", 1, || {
        let (mut table, first) = run::<S>();
        move || {
            table.promote(first);
            let (time, ()) = timed(|| table.split(black_box(first)));
            (first..first + S::PAGES).for_each(|vpn| check(&*table, vpn, Some(vpn)));
            time
        }
    }));
}
