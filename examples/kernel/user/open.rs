//! Four threads of a process, on several CPUs, that map, use, protect and unmap pages which no lock of the kernel's protects: their faults
//! and calls run beside each other.
//!
//! A thread has runs of its own, in nodes that it has in common with the others, and all use one run together. A run has a turn, as a page
//! of [`threads`](crate::threads) has. The threads end one after the other, while others fault.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::sys::{self, Found};
use crate::{Numbers, PAGE, age_in, check, may_stay, pattern, start_threads};

/// Where the open pages begin, 128 of them.
const OPEN: usize = (1 << 30) + (16 << 20) - 64 * PAGE;
const THREADS: usize = 4;
/// The pages of a run, and how many runs each thread has.
const RUN: usize = 8;
const OWN: usize = 3;
/// The run that all threads use.
const SHARED: usize = THREADS * OWN + 1;
/// How often all threads meet, and how many turns the first one goes on then: the next as many more, and so on.
const MEETINGS: usize = 12;
const TURNS: usize = 8;
/// How many times as much it is under stress.
const STRESS: usize = 40;

/// The turn of each run of a thread's own: odd while it is away.
static TURN: [AtomicUsize; THREADS * OWN] = [const { AtomicUsize::new(1) }; THREADS * OWN];
/// How often a thread has come to a meeting.
static COME: AtomicUsize = AtomicUsize::new(0);
static SEED: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn run(seed: usize) {
    SEED.store(seed, Ordering::Relaxed);
    start_threads(THREADS, other);
    work(0);
    sys::wait();
}

extern "C" fn other(thread: usize) -> ! {
    work(thread);
    sys::exit()
}

fn work(thread: usize) {
    let mut numbers = Numbers::new(SEED.load(Ordering::Relaxed) * 64 + thread);
    let times = if sys::wanted() > 0 { STRESS } else { 1 };
    let mut age = 0;
    for meeting in 0..MEETINGS * times {
        together(thread, meeting);
        age += 1;
        turn(thread, age, &mut numbers);
    }
    for _ in 0..TURNS * times * (1 + thread) {
        age += 1;
        turn(thread, age, &mut numbers);
    }
}

/// Returns where a page of a run is. Runs that are next to each other belong to different threads.
fn place(run: usize, page: usize) -> usize {
    OPEN + (run * RUN + page) * PAGE
}

/// Waits until all threads have come here once more.
fn meet() {
    let come = COME.fetch_add(1, Ordering::SeqCst);
    let all = (come / THREADS + 1) * THREADS;
    while COME.load(Ordering::SeqCst) < all {
        core::hint::spin_loop();
    }
}

/// All threads store to the same fresh pages at once, each a word of its own. Of the frames that their faults bring a page has one.
fn together(thread: usize, meeting: usize) {
    let own = sys::number();
    let word = |page: usize, thread: usize| pattern(own, page, meeting % 64 * THREADS + thread);
    if thread == 0 {
        check(sys::map_open(place(SHARED, 0), RUN, false), Found::Failure);
    }
    meet();
    for page in 0..RUN {
        check(sys::store(place(SHARED, page) + thread * 64, word(page, thread)), Found::Failure);
    }
    meet();
    for page in 0..RUN {
        for other in 0..THREADS {
            let found = sys::load(place(SHARED, page) + other * 64);
            check(found == Some(word(page, other)), Found::StaleRead);
        }
    }
    meet();
    if thread == 0 {
        check(sys::unmap_open(place(SHARED, 0), RUN), Found::Failure);
        check(sys::load(place(SHARED, 0)).is_none() || may_stay(), Found::StaleRead);
    }
}

/// Brings a run of the thread's own, uses it with the others, and takes it away.
fn turn(thread: usize, age: usize, numbers: &mut Numbers) {
    let own = sys::number();
    let run = thread + THREADS * numbers.below(OWN);
    let len = 1 + numbers.below(RUN);
    let word = |page: usize| pattern(own, run * RUN + page, age % 1024);
    TURN[run].fetch_add(1, Ordering::SeqCst);
    check(sys::map_open(place(run, 0), len, numbers.below(4) == 0), Found::Failure);
    for page in 0..len {
        check(sys::load(place(run, page)) == Some(0), Found::StaleRead);
        check(sys::store(place(run, page), word(page)), Found::Failure);
    }
    look_around(own, numbers);

    // From when `protect` has returned, no CPU writes.
    check(sys::protect_open(place(run, 0), len, false), Found::Failure);
    look_around(own, numbers);
    for page in 0..len {
        check(!sys::store(place(run, page), 1), Found::StaleWrite);
        check(sys::load(place(run, page)) == Some(word(page)), Found::StaleRead);
    }
    if numbers.below(2) == 0 {
        check(sys::protect_open(place(run, 0), len, true), Found::Failure);
        check(sys::store(place(run, 0), word(0)), Found::Failure);
    }

    check(sys::unmap_open(place(run, 0), len), Found::Failure);
    TURN[run].fetch_add(1, Ordering::SeqCst);
    (0..len).for_each(|page| check(sys::load(place(run, page)).is_none() || may_stay(), Found::StaleRead));
    look_around(own, numbers);
}

/// Looks at pages of all threads.
fn look_around(own: usize, numbers: &mut Numbers) {
    for _ in 0..8 {
        let (run, page) = (numbers.below(THREADS * OWN), numbers.below(RUN));
        let turn = TURN[run].load(Ordering::SeqCst);
        let met = sys::load(place(run, page));
        let is_away = turn % 2 == 1 && TURN[run].load(Ordering::SeqCst) == turn;
        check(!(is_away && met.is_some()) || may_stay(), Found::StaleRead);
        if let Some(word) = met.filter(|&word| word != 0) {
            check(word == pattern(own, run * RUN + page, age_in(word)), Found::StaleRead);
        }
    }
}
