//! A CPU's part: what the protocol asks of it, and its fault handler.

use core::sync::atomic::Ordering;

use tlbkit_addr::{Asid, CpuSet, Flush, PageSize, Pages, VirtAddr};
use tlbkit_dash::unmapping::Tables;
use tlbkit_pagetable::format::{EntryLo, Format};
use tlbkit_shootdown::{CpuHandle, LocalCpu, Miss, MissAction, Misuse, OpId, Outcome, Source, SwitchKind};

use super::spaces::asid;
use super::unmap::Unmap;
use super::vm::{Ended, Vm};
use super::{Paging, address, page_at, vpn, wrong};
use crate::arch::tlb::{self, Entry};
use crate::arch::{cp0, touch};
use crate::smp::gic;
use crate::smp::idle;
use crate::smp::masked::{Masked, masked};
use crate::smp::run::{REQUESTS, SLOTS};
use crate::smp::seats::Seats;

/// EntryLo: there is a translation.
const VALID: u32 = 2;
/// EntryLo: stores are allowed.
const DIRTY: u32 = 4;

/// A CPU in a run.
pub(super) struct Engine {
    run: &'static Paging,
    handle: CpuHandle<'static, REQUESTS, 1, SLOTS>,
    cpu: Cpu,
}

/// What the protocol can ask of this CPU.
struct Cpu {
    run: &'static Paging,
    me: usize,
    /// The page that this CPU's own operation flushes.
    own: Option<usize>,
}

/// Each CPU's engine while it takes part in a run.
pub(super) static SEATS: Seats<Engine> = Seats::new();

/// Serves the requests of other CPUs, if this one takes part in a run.
pub(in crate::smp) fn poll(masked: &Masked) {
    SEATS.with(masked, Engine::poll);
}

impl Engine {
    /// Returns the engine of CPU `me`.
    pub(super) fn new(run: &'static Paging, me: usize) -> Result<Self, Misuse> {
        Ok(Self { run, handle: run.system.attach(me)?, cpu: Cpu { run, me, own: None } })
    }

    /// Calls into the shootdowns: meanwhile this CPU may be waiting, so that others wake it.
    fn enter(&mut self, f: impl FnOnce(&mut Self)) {
        let run = self.run;
        run.waiting.with(self.cpu.me, || {
            f(self);
            // Where it slept, it has lowered the interrupt of whatever was posted meanwhile.
            if let Err(why) = run.system.poll(&mut self.handle, &mut self.cpu) {
                wrong(format_args!("a request: {why}"));
            }
        });
    }

    fn poll(&mut self) {
        self.enter(|_| {});
    }

    /// Begins to run a space, or stops.
    pub(super) fn switch(&mut self, change: SwitchKind, space: usize) {
        if change == SwitchKind::In {
            // SAFETY: no other code uses the register, and the vector's handler walks the space's table from here on.
            unsafe {
                cp0::error_epc::write(self.run.roots[space]);
                tlb::switch(u32::from(asid(space).get()));
            }
        }
        self.enter(|engine| {
            let (run, handle, cpu) = (engine.run, &mut engine.handle, &mut engine.cpu);
            if let Err(why) = run.system.switch(handle, cpu, change, &run.spaces[space], asid(space)) {
                wrong(format_args!("{change:?}, space {space}: {why}"));
            }
        });
    }

    /// Starts operations that wait, as many as this CPU may have in flight.
    pub(super) fn start(&mut self, masked: &Masked) {
        let run = self.run;
        while let Some((space, page, unmapping)) = run.vm.with(masked, |vm| vm.waiting.pop_front()) {
            let mut busy = false;
            self.enter(|engine| {
                engine.cpu.own = Some(page);
                let plan = unmapping.plan;
                let edit = Unmap { run, space, page, unmapping };
                match run.system.start(&mut engine.handle, &mut engine.cpu, plan, edit) {
                    Ok(_) => {}
                    // Its operations are all with the repliers: another CPU starts this one later.
                    Err((Unmap { unmapping, .. }, Misuse::Busy { .. })) => {
                        busy = true;
                        let back = run.vm.with(masked, |vm| vm.waiting.push_front((space, page, unmapping)));
                        if back.is_err() {
                            wrong(format_args!("too many operations wait"));
                        }
                    }
                    Err((_, why)) => wrong(format_args!("an operation: {why}")),
                }
                engine.cpu.own = None;
            });
            if busy {
                return;
            }
        }
    }

    /// Rests until an interrupt, unless something has changed since `epoch`.
    pub(super) fn rest(&mut self, epoch: u32) {
        let run = self.run;
        run.resting.with(self.cpu.me, || {
            if run.epoch.load(Ordering::SeqCst) == epoch {
                self.cpu.pause();
            }
        });
        self.poll();
    }
}

impl LocalCpu<Ended> for Cpu {
    fn flush(&mut self, space: Option<Asid>, what: &Flush, _drain: bool) {
        let mine = |page: usize| what.ranges() == [Pages::one(vpn(page))];
        if self.run.no_flush && !self.own.is_some_and(mine) {
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
        cpus.iter().for_each(gic::send);
    }

    fn complete(&mut self, _op: OpId, ended: Ended, outcome: Outcome) {
        // SAFETY: the engine is entered with interrupts off.
        let masked = unsafe { Masked::assume() };
        self.run.vm.with(&masked, |vm| vm.completed(ended, outcome));
        self.run.counts.shootdowns.fetch_add(1, Ordering::SeqCst);
        self.changed();
        self.run.changed(self.me);
    }

    fn pause(&mut self) {
        // SAFETY: the engine is entered with interrupts off.
        idle::sleep(&unsafe { Masked::assume() });
    }

    fn changed(&mut self) {
        self.run.waiting.wake(self.me);
    }
}

/// Loads a word of the space. A fault that the table does not stand for is repaired, and tried again.
pub(super) fn load(run: &Paging, space: usize, at: usize) -> Option<u32> {
    loop {
        match touch::load(at as u32) {
            Ok(touched) => return Some(touched.value),
            Err(_) if masked(|masked| run.vm.with(masked, |vm| refill(vm, run, space, at, false))) => {}
            Err(_) => return None,
        }
    }
}

/// Stores a word of the space, as [`load`].
pub(super) fn store(run: &Paging, space: usize, at: usize, value: u32) -> bool {
    loop {
        // SAFETY: the space's pages hold the programs' words, and nothing else.
        match unsafe { touch::store(at as u32, value) } {
            Ok(()) => return true,
            Err(_) if masked(|masked| run.vm.with(masked, |vm| refill(vm, run, space, at, true))) => {}
            Err(_) => return false,
        }
    }
}

/// Tells whether TLB-first is changing a page's entry.
pub(super) fn is_changing(run: &Paging, space: usize, page: usize) -> bool {
    run.tentative[space][page].changing.load(Ordering::SeqCst)
}

/// The miss handler in full, for misses and faults that the vector's does not serve: loads the pair, if that allows
/// the access, and tells whether it does. A page that may be written gets its dirty bit here.
fn refill(vm: &mut Vm, run: &Paging, space: usize, at: usize, write: bool) -> bool {
    let Some(page) = page_at(at) else { return false };
    if write && !is_changing(run, space, page) {
        vm.dash.tables().touch(asid(space), vpn(page));
    }
    let first = page & !1;
    let lo = [first, first + 1].map(|half| entry_of(vm, run, space, half));
    let wanted = if write { VALID | DIRTY } else { VALID };
    let allowed = lo[page & 1] & wanted == wanted;
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
fn entry_of(vm: &Vm, run: &Paging, space: usize, page: usize) -> u32 {
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
                let entry = vm.dash.tables().entry(asid(space), vpn(page));
                let leaf =
                    entry.and_then(|entry| EntryLo::leaf(entry.frame, PageSize::K4, entry.attr, true).ok());
                word = leaf.unwrap_or(0);
                false
            }
            MissAction::Load => false,
        };
        if miss.did(changing) {
            return word;
        }
    }
}
