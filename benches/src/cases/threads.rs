//! Changes by several threads of one table at once.

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::thread::{available_parallelism, panicking};
use std::time::Duration;

use super::{Case, scaled};
use crate::threads::{Concurrent, passes};
use crate::work::dense;

/// The pages of a last-level node.
const NODE: usize = 512;
/// How many nodes a pass fills.
const NODES: usize = scaled(8 * NODE) / NODE;
/// How many passes a round has: threads begin and end outside of them.
const PASSES: usize = scaled(16);
/// A run that is mapped and unmapped by one call each, and how many of them a thread maps in a pass.
const RUN: usize = 16;
const RUNS: usize = scaled(512);
/// The frame of the first page.
const FRAME: usize = 0x1000;

/// Returns the numbers of threads: one, two, and as many as there are CPUs.
fn counts(most: usize) -> Vec<usize> {
    let cpus = available_parallelism().map_or(1, usize::from).min(most);
    if cpus > 2 { vec![1, 2, cpus] } else { vec![1, 2] }
}

pub(super) fn add<S: Concurrent + 'static>(cases: &mut Vec<Case>) {
    for threads in counts(S::MOST) {
        // Nodes of each thread's own.
        let own = NODES.div_ceil(threads);
        let exists = |page: usize, thread| (!page.is_multiple_of(NODE)).then_some(thread);
        faults::<S>(cases, "fault, N threads, disjoint", threads, threads * own, |page| {
            exists(page, page / NODE / own)
        });
        faults::<S>(cases, "fault, N threads, shared", threads, 1, |page| exists(page, page % threads));
        faults::<S>(cases, "fault, N threads, first touches", threads, NODES, |page| {
            Some(page / RUN % threads)
        });
        runs::<S>(cases, threads);
    }
}

/// The case of a subject with so many threads; ratios are to one thread.
fn case<S: Concurrent, R: FnMut() -> Duration + 'static>(
    job: &'static str,
    threads: usize,
    operations: usize,
    start: impl FnOnce() -> R + 'static,
) -> Case {
    let name = |threads| -> &'static str {
        format!("{}, {threads} thread{}", S::name(), if threads == 1 { "" } else { "s" }).leak()
    };
    Case { bits: S::BITS, one: Some(name(1)), ..Case::new(job, name(threads), operations, start) }
}

/// A table, and the runs of pages that are mapped in it between two passes: the first page of each, and how many. They are unmapped when
/// it is dropped, and the table is taken apart. Page numbers are counted from a page of the table's own on.
struct Kept<S: Concurrent> {
    table: ManuallyDrop<S>,
    first: usize,
    runs: Vec<(usize, usize)>,
}

impl<S: Concurrent> Kept<S> {
    /// Returns a table for this thread, which is a CPU that runs on it.
    fn new(runs: Vec<(usize, usize)>) -> Self {
        let kept =
            Self { table: ManuallyDrop::new(S::new()), first: dense(S::BITS, 1)[0] & !(NODE - 1), runs };
        kept.table.enter(0);
        kept.runs.iter().for_each(|&(page, pages)| kept.map(page, pages));
        kept
    }

    fn fault(&self, page: usize) {
        self.table.fault(self.first + page, FRAME + page);
    }

    fn map(&self, page: usize, pages: usize) {
        self.table.map(self.first + page, FRAME + page, pages);
    }

    fn unmap(&self, page: usize, pages: usize) {
        self.table.unmap(self.first + page, pages);
    }

    /// Checks that these pages are mapped to their frames, or that they are not mapped.
    fn check(&self, pages: Range<usize>, mapped: bool) {
        for page in pages {
            let said = self.table.translate((self.first + page) << 12);
            let wanted = mapped.then_some((FRAME + page) << 12);
            assert!(said == wanted, "{}: page {page} translates to {said:x?}, not to {wanted:x?}", S::name());
        }
    }
}

impl<S: Concurrent> Drop for Kept<S> {
    fn drop(&mut self) {
        if !panicking() {
            self.runs.iter().for_each(|&(page, pages)| self.unmap(page, pages));
            // SAFETY: the table is not used again.
            unsafe { ManuallyDrop::take(&mut self.table) }.destroy();
        }
    }
}

/// A job whose threads fault on pages of `nodes` nodes. `of` returns for a page the thread that faults on it, or `None` for a page that is
/// always mapped: the first one of a node that exists from the beginning.
fn faults<S: Concurrent + 'static>(
    cases: &mut Vec<Case>,
    job: &'static str,
    threads: usize,
    nodes: usize,
    of: impl Fn(usize) -> Option<usize>,
) {
    let all = nodes * NODE;
    let pages_of = |thread: Option<usize>| (0..all).filter(|&page| of(page) == thread).collect::<Vec<_>>();
    let touched: Vec<_> = (0..threads).map(|thread| pages_of(Some(thread))).collect();
    let kept = pages_of(None);
    let operations = PASSES * (all - kept.len());
    cases.push(case::<S, _>(job, threads, operations, move || {
        let kept = Kept::<S>::new(kept.into_iter().map(|page| (page, 1)).collect());
        move || {
            let work = |thread: usize| touched[thread].iter().for_each(|&page| kept.fault(page));
            let undo = |thread: usize| touched[thread].iter().for_each(|&page| kept.unmap(page, 1));
            passes(&*kept.table, threads, PASSES, [&work, &undo], |is_done| {
                touched.iter().flatten().for_each(|&page| kept.check(page..page + 1, is_done));
            })
        }
    }));
}

/// The job whose threads map and unmap runs, each in a node of its own: a thread maps the next run, and unmaps the one before it.
fn runs<S: Concurrent + 'static>(cases: &mut Vec<Case>, threads: usize) {
    // A pass ends with the run that it begins with.
    let own = RUNS.div_ceil(threads).next_multiple_of(NODE / RUN);
    cases.push(case::<S, _>("mmap and munmap, N threads", threads, PASSES * own * threads, move || {
        let kept = Kept::<S>::new((0..threads).map(|thread| (thread * NODE, RUN)).collect());
        move || {
            let work = |thread: usize| {
                for number in 0..own {
                    let run = |number: usize| thread * NODE + number * RUN % NODE;
                    kept.map(run(number + 1), RUN);
                    kept.unmap(run(number), RUN);
                }
            };
            passes(&*kept.table, threads, PASSES, [&work, &|_| ()], |_| {
                for node in (0..threads).map(|thread| thread * NODE) {
                    kept.check(node..node + RUN, true);
                    kept.check(node + RUN..node + NODE, false);
                }
            })
        }
    }));
}
