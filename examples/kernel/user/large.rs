//! A large page that processes share: each copies what it writes of it, and no process sees what another one has written.

use crate::sys::{self, Found};
use crate::{Numbers, at, check, exit, expect, pattern, stamp};

/// The pages of a large page, and which of them are looked at.
const PAGES: usize = 512;
const EACH: usize = 16;
/// How many a process writes.
const WRITES: usize = 6;
/// How often there is a new large page.
const ROUNDS: usize = 4;

/// What a process knows of a page: who has written it last, and how old it is.
type Known = [(usize, usize); PAGES / EACH];

/// Runs processes that fork, write and look, with a large page, or with small pages if no memory is in a row.
pub(crate) fn run(numbers: &mut Numbers) {
    for round in 0..ROUNDS {
        if !sys::map_large(at(0)) {
            check(sys::map(at(0), PAGES), Found::Failure);
        }
        let mut known = [(sys::number(), round); PAGES / EACH];
        for (page, (own, age)) in known.into_iter().enumerate() {
            check(stamp(page * EACH, pattern(own, page * EACH, age)), Found::Failure);
        }
        // A child that writes nothing: the page is its parent's alone again, as a whole.
        crate::run(|| look(&known));
        sys::wait();
        change(numbers, &mut known);
        grow(numbers, &mut known, 2);
        check(sys::unmap(at(0), PAGES), Found::Failure);
    }
}

/// Writes to some pages, while two children, which do the same, as deep as `depth`, write to theirs; then looks at all pages.
fn grow(numbers: &mut Numbers, known: &mut Known, depth: usize) {
    for _ in 0..if depth == 0 { 0 } else { 2 } {
        match sys::fork() {
            Ok(None) => {
                look(known);
                change(numbers, known);
                grow(numbers, known, depth - 1);
                exit()
            }
            Ok(Some(_)) => {}
            Err(()) => check(false, Found::Failure),
        }
        change(numbers, known);
    }
    sys::wait();
    look(known);
    // The children are gone: what nobody else has may be written where it is.
    change(numbers, known);
    look(known);
}

fn change(numbers: &mut Numbers, known: &mut Known) {
    let own = sys::number();
    for _ in 0..WRITES {
        let page = numbers.below(PAGES / EACH);
        known[page] = (own, known[page].1 + 1);
        check(stamp(page * EACH, pattern(own, page * EACH, known[page].1)), Found::Failure);
    }
}

fn look(known: &Known) {
    for (page, &(writer, age)) in known.iter().enumerate() {
        expect(page * EACH, pattern(writer, page * EACH, age));
    }
}
