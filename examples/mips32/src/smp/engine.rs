//! A CPU's part in the shootdowns: what it does for the protocol, and the miss handler that the protocol needs.

use core::sync::atomic::Ordering;

use tlbkit_addr::{Asid, Attr, CpuSet, Flush, Pages};
use tlbkit_pagetable::format::{EntryLo, Format};
use tlbkit_shootdown::{CpuHandle, LocalCpu, Miss, MissAction, Misuse, OpId, Outcome, Source, SwitchKind};

use super::gic;
use super::idle;
use super::lower::{Held, Kind, Lower, Shootdowns};
use super::masked::Masked;
use super::run::{REQUESTS, Run, SLOTS, SPACE, page_at, vpn};
use super::seats::Seats;
use crate::arch::tlb::{self, Entry};
use crate::arch::{cp0, touch};

/// EntryLo: there is a translation.
const VALID: u32 = 2;
/// EntryLo: stores are allowed.
const DIRTY: u32 = 4;

/// A CPU in a run.
pub(super) struct Engine {
    run: &'static Run,
    system: &'static Shootdowns,
    handle: CpuHandle<'static, REQUESTS, 1, SLOTS>,
    cpu: Cpu,
}

/// What the protocol can ask of this CPU.
struct Cpu {
    run: &'static Run,
    me: usize,
    /// The page that this CPU's own operation flushes.
    own: Option<usize>,
}

/// Each CPU's engine while it takes part in a run.
pub(super) static SEATS: Seats<Engine> = Seats::new();

impl Engine {
    /// Returns the engine of CPU `me`.
    pub(super) fn new(run: &'static Run, system: &'static Shootdowns, me: usize) -> Result<Self, Misuse> {
        Ok(Self { run, system, handle: system.attach(me)?, cpu: Cpu { run, me, own: None } })
    }

    /// Calls into the shootdowns: meanwhile this CPU may be waiting, so that others wake it.
    fn enter<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        self.run.waiting.with(self.cpu.me, || {
            let result = f(self);
            // Where it slept, it has lowered the interrupt of whatever was posted meanwhile.
            self.serve();
            result
        })
    }

    /// Serves the requests of other CPUs.
    pub(super) fn poll(&mut self) {
        self.enter(|_| {});
    }

    fn serve(&mut self) {
        if let Err(why) = self.system.poll(&mut self.handle, &mut self.cpu) {
            self.run.wrong(format_args!("a request: {why}"));
        }
    }

    /// Takes back what operations have left for others that never came.
    pub(super) fn drain(&mut self) {
        self.enter(|engine| {
            let run = engine.run;
            if let Err(why) = engine.system.drain(&mut engine.handle, &mut engine.cpu, &run.space) {
                run.wrong(format_args!("what is carried: {why}"));
            }
        });
    }

    /// Begins to run the address space, or stops.
    pub(super) fn switch(&mut self, change: SwitchKind) {
        self.enter(|engine| {
            let run = engine.run;
            let done = engine.system.switch(&mut engine.handle, &mut engine.cpu, change, &run.space, SPACE);
            if let Err(why) = done {
                run.wrong(format_args!("{change:?}: {why}"));
            }
        });
    }

    /// Lowers the rights of a page, and waits until that is done, unless the plan is asynchronous.
    pub(super) fn lower(&mut self, page: usize, kind: Kind) {
        let run = self.run;
        self.enter(|engine| {
            engine.cpu.own = Some(page);
            let mut edit = Lower::new(run, page, kind);
            loop {
                match engine.system.start(&mut engine.handle, &mut engine.cpu, run.plan, edit) {
                    Ok(_) => break,
                    // Its operations are all with the repliers: one must end first.
                    Err((same, Misuse::Busy { .. })) => {
                        edit = same;
                        engine.cpu.pause();
                        engine.serve();
                    }
                    Err((_, why)) => {
                        run.wrong(format_args!("an operation: {why}"));
                        break;
                    }
                }
            }
            engine.cpu.own = None;
        });
    }

    /// Raises the rights of a page, unless another CPU is changing something.
    pub(super) fn raise(&mut self, page: usize) {
        if self.run.exclude() {
            self.run.raise(page);
            self.run.release();
            self.cpu.changed();
        }
    }

    /// Rests until an interrupt, unless `until` says that there is something to do.
    pub(super) fn rest(&mut self, until: impl Fn() -> bool) {
        self.run.resting.with(self.cpu.me, || {
            if !until() {
                self.cpu.pause();
            }
        });
        self.poll();
    }

    /// Tells CPUs that rest that it may be their turn.
    pub(super) fn next(&self) {
        self.run.resting.wake(self.cpu.me);
    }
}

impl LocalCpu<Held> for Cpu {
    fn flush(&mut self, space: Option<Asid>, what: &Flush, _drain: bool) {
        let mine = |page: usize| what.ranges() == [Pages::one(vpn(page))];
        if self.run.no_flush && !self.own.is_some_and(mine) {
            return;
        }
        let few = what.ranges().iter().map(|pages| pages.len()).sum::<usize>() <= 8;
        if what.is_all() || !few {
            let of = |space: Asid| move |entry: &Entry| entry.hi & tlb::ASID == u32::from(space.get());
            space.map_or_else(|| tlb::forget_all(|_| true), |space| tlb::forget_all(of(space)));
        } else {
            for page in what.ranges().iter().copied().flatten() {
                tlb::forget((page.get() << 12) as u32, u32::from(SPACE.get()));
            }
        }
    }

    fn interrupt(&mut self, cpus: CpuSet) {
        cpus.iter().for_each(gic::send);
    }

    fn ended(&mut self, _op: OpId, outcome: Outcome) {
        let run = self.run;
        if outcome != Outcome::Done {
            run.wrong(format_args!("an operation ended as {outcome:?}"));
        }
        run.counts.completed.fetch_add(1, Ordering::SeqCst);
        // Its requester may wait for the slot, and every CPU for the end.
        self.changed();
        run.resting.wake(self.me);
    }

    fn complete(&mut self, _op: OpId, held: Held, _outcome: Outcome) {
        if let Some((frame, page)) = held.frame {
            self.run.arena.give(frame, page);
        }
        for nodes in held.nodes {
            // SAFETY: the operation has completed: every CPU that runs the space has left its walks since the nodes were
            // unlinked, and flushed.
            unsafe { nodes.into_retired().reclaim() };
        }
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
pub(super) fn load(run: &Run, at: usize) -> Option<u32> {
    loop {
        match touch::load(at as u32) {
            Ok(touched) => return Some(touched.value),
            Err(_) if super::masked::masked(|masked| refill(masked, run, at, false)) => {}
            Err(_) => return None,
        }
    }
}

/// Stores a word of the space, as [`load`].
pub(super) fn store(run: &Run, at: usize, value: u32) -> bool {
    loop {
        // SAFETY: the space's pages hold the stress's words, and nothing else.
        match unsafe { touch::store(at as u32, value) } {
            Ok(()) => return true,
            Err(_) if super::masked::masked(|masked| refill(masked, run, at, true)) => {}
            Err(_) => return false,
        }
    }
}

/// The miss handler in full, for misses and faults that the vector's does not serve: loads the pair, if that allows
/// the access, and tells whether it does.
fn refill(masked: &Masked, run: &Run, at: usize, write: bool) -> bool {
    // An entry is a pair, and TLB-first has a flag for each page: the neighbour of a page that is changing must not
    // bring the old entry back.
    let lo = [at & !0x1000, at | 0x1000].map(|half| entry_of(masked, run, half));
    let wanted = if write { VALID | DIRTY } else { VALID };
    let allowed = lo[at >> 12 & 1] & wanted == wanted;
    if allowed {
        let (at, space) = (at as u32, u32::from(SPACE.get()));
        if tlb::probe(at, space).is_some() {
            run.counts.spurious.fetch_add(1, Ordering::Relaxed);
            tlb::forget(at, space);
        }
        let (any, entry) = (cp0::random::read() as usize, Entry { hi: at & tlb::VPN2 | space, mask: 0, lo });
        // SAFETY: the pair is what the table (or the tentative entry) says, and nothing is there for it.
        unsafe { tlb::replace(any, entry) };
    }
    allowed
}

/// Takes a page's entry from the table, or from the operation that is changing it.
fn entry_of(masked: &Masked, run: &Run, at: usize) -> u32 {
    let tentative = page_at(at).map(|page| &run.tentative[page]);
    let mut miss = Miss::new(&run.plan);
    let mut word = 0;
    loop {
        let changing = match miss.next() {
            MissAction::IsChanging => tentative.is_some_and(|page| page.changing.load(Ordering::SeqCst)),
            MissAction::Read(from) => {
                let leaf = run.look_up(masked, at).and_then(|mut leaf| {
                    if from == Source::Tentative {
                        let page = tentative.filter(|page| page.readable.load(Ordering::SeqCst));
                        leaf.attr.remove(Attr::WRITE | Attr::DIRTY);
                        page?;
                    }
                    Some(leaf)
                });
                word =
                    leaf.map_or(0, |leaf| EntryLo::leaf(leaf.frame, leaf.size, leaf.attr, true).unwrap_or(0));
                false
            }
            MissAction::Load => false,
        };
        if miss.did(changing) {
            return word;
        }
    }
}
