//! Threads of one process, on all CPUs. Each maps, moves, protects and unmaps pages of its own, which the others use
//! all the time.
//!
//! A page has a turn, which its owner counts: odd from the moment on that a call has returned which took the page away,
//! even from before the call that brings it back. A thread that finds the same odd turn before and after an access that
//! was allowed has used a stale translation.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::sys::{self, Found};
use crate::{Numbers, age_in, at, check, may_stay, pattern, start_threads};

const PAGES: usize = 24;
/// Where a page is while it is away.
const AWAY: usize = 256;
const ROUNDS: usize = 200;
/// The word that others write.
const OTHERS: usize = 8 * 64;

static TURNS: [AtomicUsize; PAGES] = [const { AtomicUsize::new(1) }; PAGES];
/// Whether the page was unmapped, and may be found for a while: until it carries its next age.
static MAY_STAY: [AtomicBool; PAGES] = [const { AtomicBool::new(false) }; PAGES];
/// The least age that a page may carry.
static FLOORS: [AtomicUsize; PAGES] = [const { AtomicUsize::new(0) }; PAGES];
/// The page that all threads watch at the end, its turn, and the turn in which each thread has seen it last.
const WATCHED: usize = PAGES;
static TURN: AtomicUsize = AtomicUsize::new(1);
/// The turn in which the page was written last, which is what it holds.
static WRITTEN: AtomicUsize = AtomicUsize::new(0);
static SEEN: [AtomicUsize; 16] = [const { AtomicUsize::new(0) }; 16];
/// How often it comes and goes, and the turn that is the end.
const SHOWS: usize = 20;
const END: usize = usize::MAX;

static THREADS: AtomicUsize = AtomicUsize::new(0);
static SEED: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn run(threads: usize, seed: usize) {
    THREADS.store(threads, Ordering::Relaxed);
    SEED.store(seed, Ordering::Relaxed);
    start_threads(threads, other);
    work(0);
    show(threads);
    sys::wait();
}

extern "C" fn other(thread: usize) -> ! {
    work(thread);
    watch(thread);
    sys::exit()
}

fn work(thread: usize) {
    let threads = THREADS.load(Ordering::Relaxed);
    let mut numbers = Numbers::new(SEED.load(Ordering::Relaxed) * 64 + thread);
    for age in 1..=ROUNDS {
        let page = thread + threads * numbers.below(PAGES / threads);
        turn(page, age, &mut numbers);
    }
}

/// Brings a page, uses it with the others, and takes it away.
fn turn(page: usize, age: usize, numbers: &mut Numbers) {
    let own = sys::number();
    TURNS[page].fetch_add(1, Ordering::SeqCst);
    check(sys::map(at(page), 1), Found::Failure);
    check(sys::store(at(page), pattern(own, page, age)), Found::Failure);
    FLOORS[page].store(age, Ordering::SeqCst);
    MAY_STAY[page].store(false, Ordering::SeqCst);
    look_around(own, numbers);

    if numbers.below(2) == 0 {
        check(sys::remap(at(page), 1, at(page + AWAY)), Found::Failure);
        TURNS[page].fetch_add(1, Ordering::SeqCst);
        look_around(own, numbers);
        check(sys::load(at(page + AWAY)) == Some(pattern(own, page, age)), Found::StaleRead);
        TURNS[page].fetch_add(1, Ordering::SeqCst);
        check(sys::remap(at(page + AWAY), 1, at(page)), Found::Failure);
    }

    // From when `protect` has returned, no CPU writes.
    check(sys::protect(at(page), 1, false), Found::Failure);
    let before = sys::load(at(page) + OTHERS);
    look_around(own, numbers);
    check(sys::load(at(page) + OTHERS) == before, Found::StaleWrite);
    check(sys::load(at(page)) == Some(pattern(own, page, age)), Found::StaleRead);

    MAY_STAY[page].store(may_stay(), Ordering::SeqCst);
    check(sys::unmap(at(page), 1), Found::Failure);
    if !may_stay() {
        FLOORS[page].store(age + 1, Ordering::SeqCst);
    }
    TURNS[page].fetch_add(1, Ordering::SeqCst);
    look_around(own, numbers);
}

/// Uses pages of all threads.
fn look_around(own: usize, numbers: &mut Numbers) {
    for _ in 0..24 {
        let page = numbers.below(PAGES);
        let (turn, floor) = (TURNS[page].load(Ordering::SeqCst), FLOORS[page].load(Ordering::SeqCst));
        let may_stay = MAY_STAY[page].load(Ordering::SeqCst);
        let store = numbers.below(3) == 0;
        let met = if store {
            sys::store(at(page) + OTHERS, numbers.below(1 << 30)).then_some(0)
        } else {
            sys::load(at(page))
        };
        let is_away = turn % 2 == 1 && TURNS[page].load(Ordering::SeqCst) == turn;
        let found = if store { Found::StaleWrite } else { Found::StaleRead };
        check(!(is_away && met.is_some()) || may_stay, found);
        if let Some(word) = met.filter(|&word| word != 0) {
            let age = age_in(word);
            check(word == pattern(own, page, age) && age >= floor, Found::StaleRead);
        }
    }
}

/// Brings a page, waits until every other thread has it in its TLB, takes it away, and waits until each has looked again; so again
/// and again.
fn show(threads: usize) {
    for _ in 0..SHOWS {
        let turn = TURN.fetch_add(1, Ordering::SeqCst) + 1;
        check(sys::map(at(WATCHED), 1), Found::Failure);
        check(sys::store(at(WATCHED), turn), Found::Failure);
        WRITTEN.store(turn, Ordering::SeqCst);
        wait_for_all(threads, turn);
        check(sys::unmap(at(WATCHED), 1), Found::Failure);
        wait_for_all(threads, TURN.fetch_add(1, Ordering::SeqCst) + 1);
    }
    TURN.store(END, Ordering::SeqCst);
}

/// Waits until every other thread has looked at the page in this turn.
fn wait_for_all(threads: usize, turn: usize) {
    while SEEN.iter().take(threads).skip(1).any(|seen| seen.load(Ordering::SeqCst) != turn) {
        core::hint::spin_loop();
    }
}

/// Looks at the page all the time.
fn watch(thread: usize) {
    loop {
        let turn = TURN.load(Ordering::SeqCst);
        if turn == END {
            return;
        }
        let is_written = WRITTEN.load(Ordering::SeqCst) == turn;
        let found = sys::load(at(WATCHED));
        let (there, is_away) = (found.is_some(), !turn.is_multiple_of(2));
        let is_same = TURN.load(Ordering::SeqCst) == turn;
        check(!(is_written && is_same) || found.is_none_or(|word| word == turn), Found::StaleRead);
        if found == Some(turn) {
            SEEN[thread].store(turn, Ordering::SeqCst);
        } else if is_away && is_same {
            check(!there || may_stay(), Found::StaleRead);
            SEEN[thread].store(turn, Ordering::SeqCst);
        }
    }
}
