//! Threads of one process, on all CPUs, that take memory and give it back: each at the next addresses, as an allocator does that
//! goes round. So an address comes again long after its page was unmapped.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::sys::{self, Found};
use crate::{Numbers, STACKS, at, check, expect, may_stay, pattern, stamp, start_threads};

/// The pages of a thread, round which it goes, and the most that it takes at a time.
const ROUND: usize = 128;
const MOST: usize = 4;
const TIMES: usize = 400;

static SEED: AtomicUsize = AtomicUsize::new(0);

/// Returns how many threads there are on so many CPUs.
fn threads_on(cpus: usize) -> usize {
    cpus.min(STACKS / ROUND)
}

/// Returns how many unmaps there are on so many CPUs.
pub(crate) fn unmaps(cpus: usize) -> usize {
    threads_on(cpus) * TIMES
}

pub(crate) fn run(cpus: usize, seed: usize) {
    SEED.store(seed, Ordering::Relaxed);
    let threads = threads_on(cpus);
    start_threads(threads, other);
    work(0);
    sys::wait();
}

extern "C" fn other(thread: usize) -> ! {
    work(thread);
    sys::exit()
}

fn work(thread: usize) {
    let mut numbers = Numbers::new(SEED.load(Ordering::Relaxed) * 64 + thread);
    let (own, mut next) = (sys::number(), 0);
    for age in 1..=TIMES {
        let len = 1 + numbers.below(MOST);
        if next + len > ROUND {
            next = 0;
        }
        let pages = || (thread * ROUND + next..).take(len);
        check(sys::map(at(thread * ROUND + next), len), Found::Failure);
        for page in pages() {
            expect(page, 0);
            check(stamp(page, pattern(own, page, age)), Found::Failure);
        }
        pages().for_each(|page| expect(page, pattern(own, page, age)));
        check(sys::unmap(at(thread * ROUND + next), len), Found::Failure);
        for page in pages() {
            let found = sys::load(at(page));
            let is_own = may_stay() && found == Some(pattern(own, page, age));
            check(found.is_none() || is_own, Found::StaleRead);
        }
        next += len;
    }
}
