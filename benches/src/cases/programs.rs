//! What programs do to an address space: first touches, forks, the end.

use std::hint::black_box;

use super::edits::empty;
use super::{Case, case, scaled};
use crate::work::{CC1, Mapped, PERL, SQLITE, captured, check, check_writable, file, runs, shuffled};
use crate::{Fork, Subject, timed};

/// The pages of a process that forks or ends.
const PAGES: usize = scaled(2048);

pub(super) fn add<S: Subject + 'static>(cases: &mut Vec<Case>) {
    for (job, program) in [("fault cc1", CC1), ("fault sqlite", SQLITE), ("fault perl", PERL)] {
        let touched = captured(S::BITS, program);
        cases.push(case::<S, _>(job, touched.len(), move || {
            move || {
                let mut table = S::new();
                let (time, ()) = timed(|| {
                    for &vpn in &touched {
                        if table.translate(vpn << 12).is_none() {
                            table.map(vpn, vpn);
                        }
                    }
                });
                touched.iter().for_each(|&vpn| check(&table, vpn, Some(vpn)));
                empty(table, &touched);
                time
            }
        }));
    }
    cases.push(case::<S, _>("fork protect", PAGES, || {
        let (mut table, runs) = process::<S>();
        move || {
            let (time, ()) = timed(|| protect(&mut *table, &runs, false));
            table.pages().iter().for_each(|&vpn| check_writable(&*table, vpn, false));
            protect(&mut *table, &runs, true);
            time
        }
    }));
    cases.push(case::<S, _>("fork replace", PAGES, || {
        let (mut table, runs) = process::<S>();
        let order = shuffled(table.pages().to_vec());
        let mut frame = 0;
        move || {
            protect(&mut *table, &runs, false);
            frame ^= 0x10000;
            let numbered = || order.iter().enumerate();
            let (time, ()) = timed(|| numbered().for_each(|(at, &vpn)| table.replace(vpn, frame + at)));
            numbered().for_each(|(at, &vpn)| {
                check(&*table, vpn, Some(frame + at));
                check_writable(&*table, vpn, true);
            });
            time
        }
    }));
    cases.push(case::<S, _>("destroy file", PAGES, || {
        let runs = runs(&file(S::BITS, PAGES));
        move || {
            let mut table = S::new();
            runs.iter().for_each(|&(first, len)| table.map_range(first, first, len));
            let (unmap, ()) = timed(|| runs.iter().for_each(|&(first, len)| table.unmap_range(first, len)));
            runs.iter().for_each(|&(first, _)| check(&table, first, None));
            unmap + timed(|| table.destroy()).0
        }
    }));
}

/// Returns a table of pages in runs as long as files are, and the runs.
fn process<S: Subject>() -> (Mapped<S>, Vec<(usize, usize)>) {
    let pages = file(S::BITS, PAGES);
    let runs = runs(&pages);
    (Mapped::new(pages, |at| 7 + at), runs)
}

fn protect<S: Subject>(table: &mut S, runs: &[(usize, usize)], writable: bool) {
    runs.iter().for_each(|&(first, len)| table.protect_range(first, len, writable));
}

pub(super) fn forking<S: Fork + 'static>(cases: &mut Vec<Case>) {
    cases.push(case::<S, _>("fork", PAGES, || {
        let (mut table, runs) = process::<S>();
        move || {
            let (time, copy) = timed(|| black_box(&*table).fork());
            table.pages().iter().enumerate().for_each(|(at, &vpn)| check(&copy, vpn, Some(7 + at)));
            // What is left is as before: the copy's pages are no longer shared.
            drop(copy);
            runs.iter().for_each(|&(first, len)| table.unshare(first, len));
            time
        }
    }));
}
