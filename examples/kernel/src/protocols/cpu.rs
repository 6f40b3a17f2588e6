//! A CPU's part: what the protocol asks of it, and its fault handler.

use core::sync::atomic::Ordering;

use tlbkit::addr::Flush;
use tlbkit::pagetable::format::{EntryLo, Format};
use tlbkit::shootdown::{
    CpuHandle, LocalCpu, Miss, MissAction, Misuse, OpId, Order, Outcome, Source, SwitchKind,
};
use tlbkit::{Asid, CpuSet, PageSize, Pages, VirtAddr};
use tlbkit_malta::tlb::{self, Entry};
use tlbkit_malta::{cp0, trap};

use super::spaces::{self, Nodes, asid};
use super::unmap::Unmap;
use super::vm::Vm;
use super::{CHANGING, REQUESTS, Run, SLOTS, add, address, page_at, vpn, wrong};
use crate::{arch, faults, time};

/// EntryLo: there is a translation, and stores are allowed.
const VALID: u32 = 2;
const DIRTY: u32 = 4;

/// A CPU in a run.
pub(super) struct Cpu {
    run: &'static Run,
    handle: CpuHandle<'static, REQUESTS, 1, SLOTS>,
    local: Local,
}

/// What the protocol can ask of this CPU.
struct Local {
    run: &'static Run,
    /// The page that this CPU's own operation flushes.
    own: Option<usize>,
}

impl Cpu {
    /// Lets CPU `me`, this one, take part in a run.
    pub(super) fn new(run: &'static Run, me: usize) -> Result<Self, Misuse> {
        let flag = (run.plan.algorithm().order() == Order::TlbFirst).then_some(&CHANGING);
        arch::install_plain(flag);
        Ok(Self { run, handle: run.system.attach(me)?, local: Local { run, own: None } })
    }

    /// Serves the requests of other CPUs. The kernel takes no interrupt, so a CPU calls this before each access.
    pub(super) fn poll(&mut self) {
        arch::take_interrupt();
        if let Err(why) = self.run.system.poll(&mut self.handle, &mut self.local) {
            wrong(format_args!("a request: {why}"));
        }
    }

    /// Begins to run a space, or stops.
    pub(super) fn switch(&mut self, change: SwitchKind, space: usize) {
        let Self { run, handle, local } = self;
        if change == SwitchKind::In {
            arch::plain_root(run.roots[space]);
            // SAFETY: the vector's handler walks the space's table from here on.
            unsafe { tlb::switch(u32::from(asid(space).get())) };
        }
        if let Err(why) = run.system.switch(handle, local, change, &run.spaces[space], asid(space)) {
            wrong(format_args!("{change:?}, space {space}: {why}"));
        }
    }

    /// Takes back what operations in a space have left for others that never came.
    pub(super) fn drain(&mut self, space: usize) {
        let Self { run, handle, local } = self;
        if let Err(why) = run.system.drain(handle, local, &run.spaces[space]) {
            wrong(format_args!("what is carried: {why}"));
        }
    }

    /// Starts operations that wait, as many as this CPU may have in flight.
    pub(super) fn start(&mut self) {
        let Self { run, handle, local } = self;
        let run = *run;
        while let Some((space, page, unmapping)) = { run.vm.lock().waiting.pop_front() } {
            local.own = Some(page);
            let plan = unmapping.plan;
            let done = run.system.start(handle, local, plan, Unmap { run, space, page, unmapping });
            local.own = None;
            match done {
                Ok(_) => {}
                // Its operations are all with the repliers: another CPU starts this one later.
                Err((Unmap { unmapping, .. }, Misuse::Busy { .. })) => {
                    if run.vm.lock().waiting.push_front((space, page, unmapping)).is_err() {
                        wrong(format_args!("too many operations wait"));
                    }
                    return;
                }
                Err((_, why)) => wrong(format_args!("an operation: {why}")),
            }
        }
    }

    /// Loads a word of the space. A fault that the table does not stand for is repaired, and tried again.
    pub(super) fn load(&mut self, space: usize, at: usize) -> Option<u32> {
        loop {
            self.poll();
            match trap::load(at as u32) {
                Ok(touched) => return Some(touched.value),
                Err(_) if refill(&mut self.run.vm.lock(), self.run, space, at, false) => {}
                Err(_) => return None,
            }
        }
    }

    /// Stores a word of the space, as [`load`](Self::load).
    pub(super) fn store(&mut self, space: usize, at: usize, value: u32) -> bool {
        loop {
            self.poll();
            // SAFETY: the space's pages hold the programs' words, and nothing else.
            match unsafe { trap::store(at as u32, value) } {
                Ok(()) => return true,
                Err(_) if refill(&mut self.run.vm.lock(), self.run, space, at, true) => {}
                Err(_) => return false,
            }
        }
    }
}

impl LocalCpu<Nodes> for Local {
    fn flush(&mut self, space: Option<Asid>, what: &Flush, _drain: bool) {
        let mine = |page: usize| what.ranges() == [Pages::one(vpn(page))];
        if faults::NO_FLUSH.planted() && !self.own.is_some_and(mine) {
            return;
        }
        if let (Some(space), false, [one]) = (space, what.is_all(), what.ranges())
            && one.len() == 1
        {
            return tlb::forget(one.first().address(PageSize::K4).get() as u32, u32::from(space.get()));
        }
        tlb::forget_all(|entry| {
            let here = space.is_none_or(|space| entry.hi & tlb::ASID == u32::from(space.get()));
            // An entry is a pair.
            let pair = Pages::count(VirtAddr::new((entry.hi & tlb::VPN2) as usize).vpn(PageSize::K4), 2);
            let meets = |range: &Pages| pair.is_none_or(|pair| range.intersect(pair).is_some());
            here && (what.is_all() || what.ranges().iter().any(meets))
        });
    }

    fn interrupt(&mut self, cpus: CpuSet) {
        arch::interrupt(cpus.into_iter().fold(0, |mask, cpu| mask | 1 << cpu));
    }

    fn ended(&mut self, op: OpId, outcome: Outcome) {
        self.run.vm.lock().ended(op, outcome);
        self.run.counts.shootdowns.fetch_add(1, Ordering::SeqCst);
    }

    fn complete(&mut self, _op: OpId, nodes: Nodes, _outcome: Outcome) {
        // SAFETY: the operation says that no CPU reaches them any more.
        add(&self.run.counts.nodes, unsafe { spaces::reclaim(nodes) });
    }

    fn pause(&mut self) {
        time::pause();
        arch::take_interrupt();
    }
}

/// Tells whether TLB-first is changing a page's entry.
pub(super) fn is_changing(run: &Run, space: usize, page: usize) -> bool {
    run.tentative[space][page].changing.load(Ordering::SeqCst)
}

/// The miss handler in full, for misses and faults that the vector's does not serve: loads the pair, if that allows the access,
/// and tells whether it does. A page that may be written gets its dirty bit here.
fn refill(vm: &mut Vm, run: &Run, space: usize, at: usize, write: bool) -> bool {
    let Some(page) = page_at(at) else { return false };
    if write && !is_changing(run, space, page) {
        vm.dash.tables().touch(asid(space), vpn(page));
    }
    let halves = [at & !0x1000, at | 0x1000];
    let lo = halves.map(|half| page_at(half).map_or(0, |page| entry_of(vm, run, space, page)));
    let wanted = if write { VALID | DIRTY } else { VALID };
    let allowed = lo[at >> 12 & 1] & wanted == wanted;
    if allowed {
        let (at, space) = (address(page) as u32, u32::from(asid(space).get()));
        tlb::forget(at, space);
        let (any, entry) = (cp0::random::read() as usize, Entry { hi: at & tlb::VPN2 | space, mask: 0, lo });
        // SAFETY: the pair is what the table (or the tentative entry) says, and nothing is there for it.
        unsafe { tlb::replace(any, entry) };
    }
    allowed
}

/// Takes a page's entry from the table, or from the operation that is changing it.
fn entry_of(vm: &Vm, run: &Run, space: usize, page: usize) -> u32 {
    let tentative = &run.tentative[space][page];
    let mut miss = Miss::new(&run.plan);
    let mut word = 0;
    loop {
        let changing = match miss.next() {
            MissAction::IsChanging => tentative.changing.load(Ordering::SeqCst),
            MissAction::Read(Source::Tentative) => {
                word = tentative.entry.load(Ordering::SeqCst);
                false
            }
            MissAction::Read(_) => {
                word = vm.word(space, page).unwrap_or(0);
                false
            }
            MissAction::Load => false,
        };
        if miss.did(changing) {
            return word;
        }
    }
}

/// Returns the word of EntryLo of an entry.
pub(super) fn entry_lo(entry: tlbkit_dash::tolerance::Entry) -> Option<u32> {
    EntryLo::leaf(entry.frame, PageSize::K4, entry.attr, true).ok()
}
