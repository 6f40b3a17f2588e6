//! Superpages: APPROX-ONLINE (Romer et al. 1995, 7.3) hears of TLB misses, and says which pages should become one.
//!
//! ```text
//!   refill handler --> log --> a trap: the process's policy hears of each miss --> Body::promote
//!   one page is needed alone (another right, a copy, disk, a message, a fork) --> Body::alone
//! ```
//!
//! A policy is a process's. It hears of every CPU's misses as those of one TLB, and of what they replace if that is the same
//! process's; what another process's misses replace it does not hear of. So it may count an entry as there that is gone, and
//! charges a superpage the sooner for it. What is mapped is right whatever it counts.

use core::fmt::Write as _;
use core::sync::atomic::{AtomicBool, Ordering};

use heapless::Vec;
use spin::{Mutex, MutexGuard};
use tlbkit::{PageSize, Pages, Vpn};
use tlbkit_superpage::{
    Action, ApproxOnline, Costs, PageSizes, Policy as _, PolicyMemory, Refusal, SegmentMemory, Setup, Slot,
    Superpage, Tlb,
};

use crate::arch;
use crate::report::say;
use crate::window::{PAGES, PROCESSES, window};

/// How many misses a CPU's log has room for.
pub(crate) const MISSES: usize = 32;

/// A TLB miss.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Miss {
    pub(crate) page: Vpn,
    /// The first page of the entry that had to go for it, if it was of the same address space.
    pub(crate) evicted: Option<Vpn>,
}

/// Misses of one address space.
pub(crate) type Misses = Vec<Miss, MISSES>;

/// Copying a kilobyte costs as much as so many misses: 256 loads and stores in a loop, against a handler that reports, and its
/// part of a trap.
const R_PER_KB: u32 = 2;

/// Segments, of the largest size, in the window; the words and counters that one takes at most.
const SEGMENTS: usize = 32;
const BITS: usize = 16;
const COUNTERS: usize = 64;

/// What a policy counts in.
struct Store {
    directory: [Slot; SEGMENTS * SegmentMemory::SLOTS],
    bits: [usize; SEGMENTS * BITS],
    counters: [u16; SEGMENTS * COUNTERS],
}

/// A policy, which is thousands of bytes: it is made here, and is never moved.
type Policy = Option<ApproxOnline<'static>>;

static STORES: [Mutex<Option<Store>>; PROCESSES] = [const { Mutex::new(None) }; PROCESSES];
static POLICIES: [Mutex<Policy>; PROCESSES] = [const { Mutex::new(None) }; PROCESSES];
/// The policies that no process has.
static FREE: Mutex<Vec<&'static mut ApproxOnline<'static>, PROCESSES>> = Mutex::new(Vec::new());

/// Makes the policies, if the machine has superpages and tells of misses.
pub(crate) fn prepare() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if arch::SIZES.is_empty() || DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    for (store, home) in STORES.iter().zip(&POLICIES) {
        let policy = MutexGuard::leak(home.lock()).insert(policy(MutexGuard::leak(store.lock())));
        // There is room: it has all of them.
        let _ = FREE.lock().push(policy);
    }
}

fn policy(store: &'static mut Option<Store>) -> ApproxOnline<'static> {
    let page_sizes = PageSizes::new(PageSize::K4, arch::SIZES).expect("they are sizes");
    let costs = Costs { r_per_kb: R_PER_KB, ..Costs::PAPER };
    let setup = Setup { page_sizes, split: false, costs, ..Setup::PAPER };
    let each = ApproxOnline::segment_memory(&setup).expect("the costs fit");
    assert!(each.bits <= BITS && each.counters <= COUNTERS, "a segment takes more than there is");
    let (directory, bits, counters) = ([Slot::default(); _], [0; _], [0; _]);
    let Store { directory, bits, counters } = store.insert(Store { directory, bits, counters });
    let memory = PolicyMemory {
        directory,
        bits: &mut bits[..SEGMENTS * each.bits],
        counters: &mut counters[..SEGMENTS * each.counters],
    };
    ApproxOnline::new(&setup, memory).expect("the costs fit")
}

/// Whether the next process's policy tells what it hears and answers.
static TELLS: AtomicBool = AtomicBool::new(false);

/// Has the policy of the next process say line by line what it is told and what it answers, for a host that asks its own policy
/// the same:
///
/// ```text
///   + setup sizes=13,15,17 r_per_kb=2   the page sizes (as shifts) and the costs
///   + m 4000 4012                       a miss of page 0x4000, which replaced the entry of page 0x4012 (or -)
///   + p 4000 15                         the answer: promote 2^15 bytes at page 0x4000; it was done
///   + r 4000 17                         the same, but there is no memory for it
///   + n 4000 17                         the same, but the range cannot be one mapping
///   + d 4003 4000 15                    page 0x4003 is needed alone; the policy gave up what it was in
///   + e 4012                            the entry of page 0x4012 has gone
///   + u 4000 4003                       these pages are mapped no longer
/// ```
pub(crate) fn tell() {
    TELLS.store(true, Ordering::Relaxed);
}

/// The policy of a process, if there is one.
pub(crate) struct Growth {
    policy: Option<&'static mut ApproxOnline<'static>>,
    /// Whether it says what it hears.
    tells: bool,
}

/// Says a line, if this policy does.
macro_rules! tell {
    ($growth:expr, $($line:tt)*) => {
        if $growth.tells {
            say(format_args!($($line)*));
        }
    };
}

impl Growth {
    pub(crate) fn new() -> Self {
        let growth = Self { policy: FREE.lock().pop(), tells: TELLS.swap(false, Ordering::Relaxed) };
        if growth.tells {
            let mut sizes = heapless::String::<32>::new();
            for size in arch::SIZES {
                let comma = if sizes.is_empty() { "" } else { "," };
                let _ = write!(sizes, "{comma}{}", size.shift());
            }
            say(format_args!("+ setup sizes={sizes} r_per_kb={R_PER_KB}"));
        }
        growth
    }

    /// Takes a miss, and returns what should become one mapping.
    pub(crate) fn miss(&mut self, Miss { page, evicted }: Miss) -> Option<Superpage> {
        let all = window(PAGES);
        let evicted = evicted.filter(|&page| all.contains(page));
        let policy = self.policy.as_mut().filter(|_| all.contains(page))?;
        match evicted {
            Some(evicted) => tell!(self, "+ m {:x} {:x}", page.get(), evicted.get()),
            None => tell!(self, "+ m {:x} -", page.get()),
        }
        // This policy has no use for the time.
        match policy.on_miss(tlbkit_superpage::Miss { tlb: Tlb::Data, page, evicted, now: 0 }) {
            Some(Action::Promote { range, .. }) => Some(range),
            Some(Action::OutOfSegments { .. }) | None => None,
        }
    }

    /// Answers what [`miss`](Self::miss) returned.
    pub(crate) fn answer(&mut self, range: Superpage, done: Result<(), Refusal>) {
        let word = match done {
            Ok(()) => "p",
            Err(Refusal::NoMemory) => "r",
            Err(_) => "n",
        };
        tell!(self, "+ {word} {:x} {}", range.first.get(), range.size.shift());
        match (&mut self.policy, done) {
            (Some(policy), Ok(())) => policy.promoted(range),
            (Some(policy), Err(why)) => policy.refused(range, why),
            (None, _) => {}
        }
    }

    /// An entry has gone, in a miss that is not to be charged any more.
    pub(crate) fn evicted(&mut self, page: Vpn) {
        if let Some(policy) = self.policy.as_mut().filter(|_| window(PAGES).contains(page)) {
            tell!(self, "+ e {:x}", page.get());
            policy.evicted(Tlb::Data, page);
        }
    }

    /// One page is needed alone: returns the superpage that is to be mapped in small pages, if there is one.
    pub(crate) fn demote(&mut self, page: Vpn) -> Option<Superpage> {
        let whole = self.policy.as_mut()?.demote(page)?;
        tell!(self, "+ d {:x} {:x} {}", page.get(), whole.first.get(), whole.size.shift());
        Some(whole)
    }

    /// Pages are mapped no longer.
    pub(crate) fn unmapped(&mut self, pages: Pages) {
        if let Some(policy) = &mut self.policy {
            tell!(self, "+ u {:x} {:x}", pages.first().get(), pages.last().get());
            policy.unmapped(pages);
        }
    }
}

impl Drop for Growth {
    fn drop(&mut self) {
        self.unmapped(window(PAGES));
        if let Some(policy) = self.policy.take() {
            // There is room: it has all of them.
            let _ = FREE.lock().push(policy);
        }
    }
}
