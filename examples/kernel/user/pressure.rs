//! Processes that have more pages than there is memory.

use crate::sys::{self, Found};
use crate::{Numbers, at, check, exit, expect, pattern, stamp};

const PROCESSES: usize = 3;
const PAGES: usize = 900;
const ROUNDS: usize = 1500;

/// Where messages are received.
const INBOX: usize = 1000;
/// Pages that both threads of a process read, at the end of its pages, and that are not written any more.
const BOTH: core::ops::Range<usize> = PAGES - 64..PAGES;
/// Where the second thread's stack is.
const STACK: usize = 980;

pub(crate) fn run(seed: usize) {
    let parent = sys::number();
    let mut children = [0; PROCESSES];
    for (process, child) in children.iter_mut().enumerate() {
        match sys::fork() {
            Ok(None) => {
                churn(&mut Numbers::new(seed * PROCESSES + process), parent);
                exit()
            }
            Ok(Some(number)) => *child = number,
            Err(()) => check(false, Found::Failure),
        }
    }
    // None goes on before each has filled its pages.
    for (process, _) in children.iter().enumerate() {
        check(sys::receive(at(INBOX + process)) == 1, Found::Failure);
    }
    for (process, &child) in children.iter().enumerate() {
        check(sys::send(child, at(INBOX + process), 1), Found::Failure);
    }
}

fn churn(numbers: &mut Numbers, parent: usize) {
    let own = sys::number();
    check(sys::map(at(0), PAGES), Found::Failure);
    let mut ages = [0_u16; PAGES];
    for page in 0..PAGES {
        check(stamp(page, pattern(own, page, 0)), Found::Failure);
    }
    check(sys::map(at(INBOX), 1) && sys::send(parent, at(INBOX), 1), Found::Failure);
    check(sys::receive(at(INBOX)) == 1, Found::Failure);
    // On another CPU, if there is one: so two CPUs fault on the same pages, which others page out.
    check(sys::map(at(STACK), 4), Found::Failure);
    sys::spawn(reader, at(STACK + 4), own);
    let mut also = Numbers::new(own);
    for round in 0..ROUNDS {
        // Neighbours of a page that wanders slowly, and any page.
        let page = if numbers.below(4) == 0 {
            numbers.below(PAGES)
        } else {
            (round / 4 + numbers.below(64)) % PAGES
        };
        expect(page, pattern(own, page, ages[page].into()));
        if round % 8 == 0 {
            read_both(own, &mut also);
        }
        if numbers.below(3) == 0 && !BOTH.contains(&page) {
            ages[page] += 1;
            check(stamp(page, pattern(own, page, ages[page].into())), Found::Failure);
        }
    }
    sys::wait();
    for (page, &age) in ages.iter().enumerate() {
        expect(page, pattern(own, page, age.into()));
    }
}

extern "C" fn reader(process: usize) -> ! {
    // The same numbers as the other thread has: the same pages, at about the same time.
    let mut numbers = Numbers::new(process);
    for _ in 0..ROUNDS / 8 {
        read_both(process, &mut numbers);
    }
    sys::exit()
}

fn read_both(process: usize, numbers: &mut Numbers) {
    let page = BOTH.start + numbers.below(BOTH.len());
    expect(page, pattern(process, page, 0));
}
