//! What the kernel and its programs have counted, and the row that a boot ends with.

use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use spin::Mutex;

use crate::arch::{self, Console};
use crate::faults;

/// What is counted. The programs know the numbers of those from `Checks` to `StaleWrites`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    Checks,
    Failures,
    StaleReads,
    StaleWrites,
    /// Changes of address spaces: calls, page faults that map or copy, and edits that page out.
    Operations,
    /// Those of open pages, beside others of the same address space.
    Beside,
    Forks,
    Faults,
    Shootdowns,
    Interrupts,
    PagesMoved,
    PagedOut,
    PagedIn,
    /// Pages that were written or moved on their way to disk, and pages that another thread brought first.
    StayedIn,
    CameTwice,
    /// Superpages that were made, that could not be made, and that were taken apart.
    Promotions,
    Refusals,
    Demotions,
    /// Stores to large pages that processes share.
    LargeCopies,
    /// Changes of what the kernel maps for itself.
    OwnPages,
    /// Unmaps of the program that takes memory and gives it back, and the interrupts meanwhile.
    Churned,
    ChurnInterrupts,
}

const NAMES: [&str; 22] = [
    "checks",
    "failures",
    "stale_reads",
    "stale_writes",
    "operations",
    "beside",
    "forks",
    "faults",
    "shootdowns",
    "interrupts",
    "pages_moved",
    "paged_out",
    "paged_in",
    "stayed_in",
    "came_twice",
    "promotions",
    "refusals",
    "demotions",
    "large_copies",
    "own_pages",
    "churned",
    "churn_interrupts",
];

/// The names of what [`costs`](crate::costs) measures, in its order.
const LONGEST: [&str; 4] = ["longest_unmap", "longest_drop", "longest_fork", "longest_copy"];

/// The numbers of a boot.
pub(crate) struct Report {
    counts: [AtomicUsize; NAMES.len()],
    /// The most instructions of calls with interrupts masked, if that was measured.
    pub(crate) longest: [AtomicUsize; LONGEST.len()],
}

pub(crate) static REPORT: Report = Report {
    counts: [const { AtomicUsize::new(0) }; NAMES.len()],
    longest: [const { AtomicUsize::new(0) }; LONGEST.len()],
};

/// Whether the row has been said.
static SAID: AtomicBool = AtomicBool::new(false);

/// One CPU speaks at a time.
static LINE: Mutex<()> = Mutex::new(());

/// Says a line.
pub(crate) fn say(line: core::fmt::Arguments<'_>) {
    let _speaking = LINE.lock();
    let _ = writeln!(Console, "{line}");
}

impl Report {
    pub(crate) fn add(&self, count: Count, more: usize) {
        self.counts[count as usize].fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, count: Count) -> usize {
        self.counts[count as usize].load(Ordering::Relaxed)
    }

    /// Counts a check of the kernel's. One that fails is a failure, of the kind `what`.
    pub(crate) fn check(&self, holds: bool, what: Count, why: impl FnOnce() -> &'static str) {
        self.add(Count::Checks, 1);
        if !holds {
            self.fail(what, why());
        }
    }

    /// Counts a failure of the kind `what`. A boot with a planted fault ends with it.
    pub(crate) fn fail(&self, what: Count, why: &str) {
        self.add(Count::Failures, 1);
        if what != Count::Failures {
            self.add(what, 1);
        }
        if self.get(Count::Failures) <= 10 {
            say(format_args!("{why}"));
        }
        if faults::any() {
            self.end(0, 0);
        }
    }

    /// Says the row, and ends the machine.
    pub(crate) fn end(&self, frames_leaked: usize, nodes_leaked: usize) -> ! {
        if SAID.swap(true, Ordering::Relaxed) {
            loop {
                core::hint::spin_loop();
            }
        }
        for leaked in [frames_leaked, nodes_leaked] {
            self.add(Count::Checks, 1);
            self.add(Count::Failures, usize::from(leaked > 0));
        }
        let _speaking = LINE.lock();
        let _ = write!(Console, "row machine={} cpus={}", arch::NAME, crate::cpus());
        let longest = LONGEST.iter().zip(&self.longest).filter(|(_, most)| most.load(Ordering::Relaxed) > 0);
        for (name, number) in NAMES.iter().zip(&self.counts).chain(longest) {
            let _ = write!(Console, " {name}={}", number.load(Ordering::Relaxed));
        }
        let _ = writeln!(Console, " frames_leaked={frames_leaked} nodes_leaked={nodes_leaked}");
        arch::stop()
    }
}
