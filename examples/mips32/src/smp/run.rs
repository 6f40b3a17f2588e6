//! One run of the stress: what all CPUs share.

use core::cell::UnsafeCell;
use core::fmt::Arguments;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use heapless::Vec;
use tlbkit_addr::{Asid, Attr, PageSize, Pages, VirtAddr, Vpn};
use tlbkit_pagetable::{Carried, Change, Error, Holes, Leaf, Pinned, Retired, Table, Writer};
use tlbkit_shootdown::{Plan, SharedSpace};

use super::arena::{Arena, Frame};
use super::masked::{Masked, masked};
use super::report::Report;
use super::sleepers::Sleepers;
use crate::arch::tlb;
use crate::args::{Args, Inject};
use crate::println;

/// The table under test, whatever it is.
pub(super) type AnyTable = dyn Table<'static> + Sync;

/// Requests that a CPU's mailbox holds; one more, and it flushes everything. Low, so that this happens.
pub(super) const REQUESTS: usize = 2;
/// Operations that a CPU may have in flight.
pub(super) const SLOTS: usize = 2;

/// Pages under test: some side by side, and some that share nothing, so that unmapping one retires nodes.
pub(super) const PAGES: usize = 24;
const TOGETHER: usize = 8;

/// The address space of all CPUs.
pub(super) const SPACE: Asid = match Asid::new(1, 8) {
    Some(asid) => asid,
    None => panic!("the TLB has eight bits for it"),
};

/// A page that may be stored to without a trap.
const WRITABLE: Attr = Attr::WRITE.union(Attr::DIRTY);

/// Returns the address of a page.
pub(super) const fn address(page: usize) -> usize {
    if page < TOGETHER { 0x1000_0000 + (page << 12) } else { 0x2000_0000 + (page << 22) + (page << 12) }
}

/// Returns the page at an address, if it is under test.
pub(super) fn page_at(at: usize) -> Option<usize> {
    (0..PAGES).find(|&page| address(page) == at & !0xfff)
}

/// Returns a page's number in the address space.
pub(super) fn vpn(page: usize) -> Vpn {
    VirtAddr::new(address(page)).vpn(PageSize::K4)
}

/// What the model says of a page: kept beside the table, by the holder of the exclusion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    #[default]
    Unmapped,
    Writable(Frame),
    /// And what had been stored to it when every TLB knew.
    ReadOnly(Frame, u32),
}

/// Changes whose nodes may wait for an operation.
pub(super) const PENDING: usize = 4;

/// What only the holder of the exclusion touches.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) states: [State; PAGES],
    generations: [u32; PAGES],
    /// Nodes that the next operation is to take along: retired by a change that no operation was to wait for.
    pub(super) pending: Vec<Carried<'static>, PENDING>,
}

/// A page's flag and tentative entry, which TLB-first's miss handler looks at.
#[derive(Debug, Default)]
pub(super) struct Tentative {
    pub(super) changing: AtomicBool,
    /// Whether the page stays, without the right to store.
    pub(super) readable: AtomicBool,
}

/// What went wrong, and what went on.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) started: AtomicUsize,
    /// Operations that have ended.
    pub(super) completed: AtomicUsize,
    /// Pages that were loaded from, and perhaps stored to.
    pub(super) touches: AtomicUsize,
    /// Loads of another CPU's word, or of an older one.
    pub(super) stale_reads: AtomicUsize,
    /// Stores to a page that was read-only.
    pub(super) stale_writes: AtomicUsize,
    /// Faults that the table no longer stood for.
    pub(super) spurious: AtomicUsize,
    /// Touches that found the page unmapped, or read-only.
    pub(super) faults: AtomicUsize,
    /// Nodes that were retired, and used again after a shootdown.
    pub(super) nodes: AtomicUsize,
    /// Anything else that must not be: a refusal of the table, a duplicate in a TLB, a leak.
    pub(super) wrong: AtomicUsize,
}

/// A run.
pub(super) struct Run {
    pub(super) plan: Plan,
    pub(super) cpus: usize,
    pub(super) total: usize,
    /// Whether repliers acknowledge without having flushed.
    pub(super) no_flush: bool,
    pub(super) table: &'static AnyTable,
    pub(super) space: SharedSpace,
    pub(super) arena: Arena,
    pub(super) tentative: [Tentative; PAGES],
    pub(super) counts: Counts,
    /// CPUs that wait for something within a shootdown, or may be about to.
    pub(super) waiting: Sleepers,
    /// CPUs that rest until it is their turn.
    pub(super) resting: Sleepers,
    /// Whether a CPU has the exclusion.
    excluded: AtomicBool,
    model: UnsafeCell<Model>,
}

// SAFETY: the model is touched by the holder of the exclusion only; the rest is `Sync`.
unsafe impl Sync for Run {}

/// How many entries are changing. The refill vector looks at it when the plan is TLB-first.
pub(super) static CHANGING: AtomicU32 = AtomicU32::new(0);

impl Run {
    /// Returns a run that has not begun.
    pub(super) fn new(plan: Plan, table: &'static AnyTable, args: &Args) -> Self {
        Self {
            plan,
            cpus: args.cpus,
            total: args.shootdowns,
            no_flush: args.inject == Some(Inject::NoFlush),
            table,
            space: SharedSpace::new(),
            arena: Arena::default(),
            tentative: Default::default(),
            counts: Counts::default(),
            waiting: Sleepers::default(),
            resting: Sleepers::default(),
            excluded: AtomicBool::new(false),
            model: UnsafeCell::new(Model::default()),
        }
    }

    /// Tells whether every operation has completed.
    pub(super) fn is_over(&self) -> bool {
        self.counts.completed.load(Ordering::SeqCst) >= self.total
    }

    /// Counts something that must not be.
    pub(super) fn wrong(&self, what: Arguments<'_>) {
        if self.counts.wrong.fetch_add(1, Ordering::Relaxed) < 3 {
            println!("wrong: {what}");
        }
    }

    /// Takes the exclusion of the table and the model, if it is free.
    pub(super) fn exclude(&self) -> bool {
        !self.excluded.swap(true, Ordering::Acquire)
    }

    /// Gives the exclusion up.
    pub(super) fn release(&self) {
        self.excluded.store(false, Ordering::Release);
    }

    /// Returns the model.
    ///
    /// # Safety
    ///
    /// The caller has the exclusion, and no other reference to the model.
    #[expect(clippy::mut_from_ref, reason = "the exclusion stands for the borrow")]
    pub(super) unsafe fn model(&self) -> &mut Model {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.model.get() }
    }

    /// Edits the table. The caller has the exclusion.
    pub(super) fn edit<R>(
        &self,
        edit: impl FnOnce(&mut Writer<'_, 'static, AnyTable>) -> Result<R, Error>,
    ) -> (Option<R>, Retired<'static>) {
        let mut writer = match Writer::new(self.table) {
            Ok(writer) => writer,
            Err(error) => panic!("the holder of the exclusion is the only writer: {error}"),
        };
        let done = edit(&mut writer);
        if let Err(error) = &done {
            self.wrong(format_args!("the table refuses: {error}"));
        }
        (done.ok(), writer.finish())
    }

    /// Keeps the nodes of a change for the next operation. The caller has the exclusion.
    pub(super) fn keep(&self, model: &mut Model, retired: Retired<'static>) {
        if retired.nodes() == 0 {
            return;
        }
        if let Err(_) | Ok(Err(_)) = retired.across_cpus().map(|nodes| model.pending.push(nodes)) {
            self.wrong(format_args!("nodes leak"));
        }
    }

    /// Returns what the table says of a page.
    pub(super) fn look_up(&self, masked: &Masked, at: usize) -> Option<Leaf> {
        // SAFETY: this CPU is not interrupted, so it acknowledges nothing meanwhile.
        self.table.lookup(unsafe { Pinned::by(masked) }, VirtAddr::new(at))
    }

    /// Raises the rights of a page: maps it if it is not mapped, and else lets it be stored to again. No other CPU
    /// needs to know (Tzou 5.1.1): a CPU with an older translation faults, and looks again. The caller has the
    /// exclusion.
    pub(super) fn raise(&self, page: usize) {
        // SAFETY: the caller has the exclusion.
        let model = unsafe { self.model() };
        if model.pending.is_full() {
            return;
        }
        let pages = Pages::one(vpn(page));
        let retired = match model.states[page] {
            State::Unmapped => {
                model.generations[page] += 1;
                let Some(frame) = self.arena.take(page, model.generations[page]) else {
                    return;
                };
                model.states[page] = State::Writable(frame);
                let attr = Attr::READ | WRITABLE;
                self.edit(|writer| writer.map(pages, frame.number(), PageSize::K4, attr)).1
            }
            State::ReadOnly(frame, stored) => {
                self.still(frame, stored);
                model.states[page] = State::Writable(frame);
                self.edit(|writer| writer.protect(pages, Holes::Refuse, Change::set(WRITABLE))).1
            }
            State::Writable(_) => return,
        };
        if !retired.flush().is_none() {
            tlb::forget(address(page) as u32, u32::from(SPACE.get()));
        }
        self.keep(model, retired);
    }

    /// Checks a read-only frame: nothing has been stored since every TLB knew.
    pub(super) fn still(&self, frame: Frame, stored: u32) {
        if frame.stored() != stored {
            self.counts.stale_writes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Looks at everything once more, when no CPU changes anything: model, table, frames, nodes. Says how the run went.
    pub(super) fn audit(&self) -> Report {
        // SAFETY: the others have left the run.
        let model = unsafe { self.model() };
        for (page, state) in model.states.iter().enumerate() {
            // SAFETY: no CPU changes the table.
            let leaf = masked(|masked| self.look_up(masked, address(page)));
            let (frame, attr) = match *state {
                State::Unmapped => {
                    if leaf.is_some() {
                        self.wrong(format_args!("page {page} is still in the table"));
                    }
                    continue;
                }
                State::Writable(frame) => (frame, WRITABLE),
                State::ReadOnly(frame, stored) => {
                    self.still(frame, stored);
                    (frame, Attr::empty())
                }
            };
            if leaf.map(|leaf| (leaf.frame, leaf.attr & WRITABLE)) != Some((frame.number(), attr)) {
                self.wrong(format_args!("page {page} is {state:?}, and in the table {leaf:?}"));
            }
            self.arena.give(frame, page);
        }
        if self.arena.used() > 0 {
            self.wrong(format_args!("{} frames leak", self.arena.used()));
        }
        while let Some(nodes) = model.pending.pop() {
            // SAFETY: every CPU has left the space and emptied its TLB.
            unsafe { nodes.into_retired().reclaim() };
        }
        let counts = &self.counts;
        let mut report = Report::of("shootdown", self.plan, self.cpus);
        report.counted("shootdowns", &counts.completed);
        report.counted("touches", &counts.touches);
        report.counted("faults", &counts.faults);
        report.counted("spurious", &counts.spurious);
        report.counted("nodes", &counts.nodes);
        let of = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        report.failed("stale_reads", of(&counts.stale_reads));
        report.failed("stale_writes", of(&counts.stale_writes) + of(&self.arena.strays));
        report.failed("other", of(&counts.wrong));
        report
    }
}
