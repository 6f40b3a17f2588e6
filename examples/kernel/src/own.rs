//! Pages that the kernel maps for itself, and unmaps, while the other CPUs use them: what a kernel does with its stacks and modules.
//!
//! ```text
//!   one CPU at a time   frames, filled -> map, to be read -> show | let them be written -> show | withdraw -> wait -> unmap
//!   every CPU           uses what is shown, without a fault: there is no handler for one
//! ```
//!
//! A mapping of the kernel's is in force on every CPU when `map` returns, and so is a right when `protect` returns: the page is shown
//! then. What is withdrawn has no users when it is unmapped, and its frames are a program's soon: a CPU that finds anything but what
//! was written there uses a stale translation.

use core::sync::atomic::{AtomicUsize, Ordering};

use heapless::Vec;
use spin::RelaxStrategy as _;
use tlbkit::pagetable::format::Format as _;
use tlbkit::{Attr, Change, Error, Machine, PageSize, Pages, Pfn, VirtAddr};

use crate::arch::CPUS;
use crate::memory::{Lock, Serving, Space};
use crate::report::{Count, REPORT};
use crate::words::Page;
use crate::{arch, frames};

/// How many ranges there are, and how many pages each has: an odd number, so that pairs of pages belong to two ranges.
const RANGES: usize = 4;
const LEN: usize = 19;

/// A range, as the CPUs that use it see it.
struct Range {
    /// 0 if no CPU may use it; otherwise the number of its mapping, times two, plus one if it may be written.
    shown: AtomicUsize,
    users: AtomicUsize,
}

static SHOWN: [Range; RANGES] =
    [const { Range { shown: AtomicUsize::new(0), users: AtomicUsize::new(0) } }; RANGES];

/// The CPU that has this changes the ranges. No CPU waits for it.
static OWNER: Lock<Option<Owner>> = Lock::new(None);

struct Owner {
    /// The kernel's own address space.
    space: Space,
    /// How many changes there have been.
    steps: usize,
}

/// Tells whether this boot does so: under stress. (Guarded tables lend nothing; what the witness hears of are the pages of programs.)
pub(crate) fn wanted() -> bool {
    crate::wanted() > 0 && CPUS > 1 && !cfg!(any(feature = "guarded", feature = "witness"))
}

/// Begins, with the kernel's own address space.
pub(crate) fn begin(space: &Space) {
    if wanted() {
        *OWNER.lock() = Some(Owner { space: space.clone(), steps: 0 });
    }
}

/// Ends: nothing is mapped after that.
pub(crate) fn end() {
    let Some(owner) = OWNER.lock().take() else { return };
    (0..RANGES).for_each(|range| owner.unmap(range));
    REPORT.check(owner.steps > 100, Count::Failures, || "the kernel has mapped no pages for itself");
}

/// Uses what is shown, changes one range unless another CPU does, and uses what is shown then. This CPU runs a process.
pub(crate) fn turn() {
    if !wanted() {
        return;
    }
    use_all();
    if let Some(mut owner) = OWNER.try_lock()
        && let Some(owner) = &mut *owner
    {
        owner.step();
        REPORT.add(Count::OwnPages, 1);
    }
    use_all();
}

fn page(range: usize, page: usize) -> VirtAddr {
    VirtAddr::new(arch::OWN + ((range * LEN + page) << PageSize::K4.shift()))
}

fn pages(range: usize) -> Pages {
    let first = page(range, 0).vpn(PageSize::K4);
    Pages::count(first, LEN).unwrap_or(Pages::one(first))
}

/// Returns what a mapping has in each word at first.
fn pattern(number: usize, page: usize) -> usize {
    number << 8 | page
}

/// The word that a CPU writes. The words before and behind those of the CPUs stay as they were.
fn word_of(cpu: usize) -> usize {
    1 + cpu
}

/// Reads and writes every page that is shown.
fn use_all() {
    for (range, at) in SHOWN.iter().enumerate() {
        // Where software loads the TLB, the log has room for the misses of one range. No process hears of them.
        let _ = arch::misses(|_| ());
        at.users.fetch_add(1, Ordering::SeqCst);
        let shown = at.shown.load(Ordering::SeqCst);
        if shown != 0 {
            (0..LEN).for_each(|index| use_one(range, index, shown));
        }
        at.users.fetch_sub(1, Ordering::SeqCst);
    }
}

fn use_one(range: usize, index: usize, shown: usize) {
    let at = page(range, index).get();
    // SAFETY: the range is shown, so the page is mapped to a frame of words, and this CPU, which runs a process, has the kernel's
    // pages. It is a user of the range, which is not unmapped before this CPU is none.
    let words: &Page = unsafe { &*core::ptr::with_exposed_provenance(at) };
    let (cpu, expected) = (arch::cpu(), pattern(shown >> 1, index));
    for word in [&words[0], &words[words.len() - 1]] {
        REPORT.check(
            word.load(Ordering::Relaxed) == expected,
            Count::StaleReads,
            || "a page of the kernel's is not what was mapped",
        );
    }
    let mine = &words[word_of(cpu)];
    let written = expected ^ cpu << 4;
    let found = mine.load(Ordering::Relaxed);
    REPORT.check(
        found == expected || found == written,
        Count::StaleReads,
        || "a CPU's word in a page of the kernel's is another's",
    );
    if shown & 1 == 1 {
        mine.store(written, Ordering::Relaxed);
    }
}

/// What a page of the kernel's has, if it may be read alone, and what it gets to be written. The kernel has no handler that notes
/// anything in an entry, so the status bits are there from the beginning.
const READ: Attr = Attr::READ.union(Attr::GLOBAL).union(Attr::ACCESSED.intersection(OPTIONAL));
const WRITE: Attr = Attr::WRITE.union(Attr::DIRTY.intersection(OPTIONAL));
const OPTIONAL: Attr = <arch::Machine as Machine>::Format::OPTIONAL;

impl Owner {
    /// Takes one range, in turn, one step further.
    fn step(&mut self) {
        let range = self.steps % RANGES;
        let at = &SHOWN[range].shown;
        match at.load(Ordering::Relaxed) {
            0 => self.map(range),
            shown if shown & 1 == 0 => {
                let write = self.space.protect(pages(range), Change::set(WRITE));
                assert_eq!(write, Ok(LEN), "the pages are mapped");
                at.store(shown | 1, Ordering::SeqCst);
            }
            _ => self.unmap(range),
        }
        self.steps += 1;
    }

    /// Maps a range to be read, and shows it, if there are frames.
    fn map(&self, range: usize) {
        let mut taken = Vec::<Pfn, LEN>::new();
        while let Some(frame) = (!taken.is_full()).then(frames::take).flatten() {
            let _ = taken.push(frame);
        }
        // In descending order no two of them are neighbours.
        taken.reverse();
        let number = self.steps + 1;
        for (index, &frame) in taken.iter().enumerate() {
            frames::words(frame)
                .iter()
                .for_each(|word| word.store(pattern(number, index), Ordering::Relaxed));
        }
        match self.space.map_each(pages(range), taken.iter().copied(), READ) {
            Ok(()) => SHOWN[range].shown.store(number << 1, Ordering::SeqCst),
            // Frames, or nodes, are short.
            Err(Error::NotMapped { .. } | Error::NoMemory { .. }) => {
                taken.iter().for_each(|&frame| frames::release(frame, false));
            }
            Err(why) => panic!("the kernel cannot map pages for itself: {why}"),
        }
    }

    /// Withdraws a range, waits for those that use it, and unmaps it: the frames are released.
    fn unmap(&self, range: usize) {
        let at = &SHOWN[range];
        let was_shown = at.shown.swap(0, Ordering::SeqCst) != 0;
        while at.users.load(Ordering::SeqCst) > 0 {
            Serving::relax();
        }
        let gone = self.space.unmap(pages(range));
        assert_eq!(gone, Ok(if was_shown { LEN } else { 0 }), "the pages were mapped");
    }
}
