//! A tree of processes: each finds what its parent wrote, writes over it, and finds its own again when its children have
//! ended.

use crate::sys::{self, Found};
use crate::{at, check, exit, expect, pattern, stamp};

const PAGES: usize = 6;

/// Becomes the root of a tree of so many processes.
pub(crate) fn run(processes: usize) {
    check(sys::map(at(0), PAGES), Found::Failure);
    grow(processes, None);
}

fn grow(processes: usize, parent: Option<usize>) {
    let own = sys::number();
    if let Some(parent) = parent {
        (0..PAGES).for_each(|page| expect(page, pattern(parent, page, 0)));
    }
    (0..PAGES).for_each(|page| check(stamp(page, pattern(own, page, 0)), Found::Failure));
    let left = (processes - 1) / 2;
    for share in [left, processes - 1 - left] {
        if share == 0 {
            continue;
        }
        match sys::fork() {
            Ok(None) => {
                grow(share, Some(own));
                exit()
            }
            Ok(Some(_)) => {}
            Err(()) => check(false, Found::Failure),
        }
    }
    sys::wait();
    (0..PAGES).for_each(|page| expect(page, pattern(own, page, 0)));
}
