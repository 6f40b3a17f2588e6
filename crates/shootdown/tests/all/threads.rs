//! The machines over host threads: a software TLB per thread, mailboxes for interrupts, frames that are marked free
//! when an operation hands them back. A thread that reaches a free frame, or another page's, has been let down.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use tlbkit_addr::{Asid, CpuSet, Flush, Pages, Vpn};
use tlbkit_shootdown::{
    Algorithm, Edit, Hardware, Loader, LocalCpu, LowRights, Miss, MissAction, OpId, Order, Outcome, Plan,
    RemoteTlbs, Rendezvous, SharedSpace, Source, Style, SwitchKind, System,
};

use crate::support::PAGE;

const THREADS: usize = 4;
const PAGES: usize = 2;
const FREE: usize = usize::MAX;
const UNMAPPED: usize = 0;
type Kernel<'a> = System<Option<usize>, Unmap<'a>, THREADS, 2, 1, 2>;

#[derive(Default)]
struct Page {
    /// The frame's number plus one, or [`UNMAPPED`].
    entry: AtomicUsize,
    tentative: AtomicUsize,
    changing: AtomicBool,
    locked: AtomicBool,
}

struct Memory {
    pages: [Page; PAGES],
    /// The page that uses each frame, or [`FREE`].
    frames: Vec<AtomicUsize>,
    free: Mutex<Vec<usize>>,
    tlbs: [Mutex<[usize; PAGES]>; THREADS],
    space: SharedSpace,
    /// Whether CPUs flush each other's TLBs.
    remote: bool,
    started: AtomicUsize,
    ended: AtomicUsize,
    completed: AtomicUsize,
    finished: AtomicUsize,
    left: AtomicUsize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread has panicked")
}

impl Memory {
    fn new(remote: bool) -> Self {
        let frames = 4 * PAGES;
        Self {
            pages: Default::default(),
            frames: (0..frames).map(|_| AtomicUsize::new(FREE)).collect(),
            free: Mutex::new((0..frames).collect()),
            tlbs: Default::default(),
            space: SharedSpace::new(),
            remote,
            started: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            completed: AtomicUsize::new(0),
            finished: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
        }
    }

    fn flush(&self, cpu: usize, what: &Flush) {
        let mut tlb = lock(&self.tlbs[cpu]);
        for (page, entry) in tlb.iter_mut().enumerate() {
            if what.covers(Pages::one(Vpn::new(page))) {
                *entry = UNMAPPED;
            }
        }
    }

    /// Uses a page: through the TLB, with a miss handler that other CPUs' flushes wait for.
    fn touch(&self, plan: &Plan, cpu: usize, page: usize) {
        let mut tlb = lock(&self.tlbs[cpu]);
        if tlb[page] == UNMAPPED {
            let (mut miss, mut word) = (Miss::new(plan), UNMAPPED);
            let at = &self.pages[page];
            loop {
                let yes = match miss.next() {
                    MissAction::IsChanging => at.changing.load(Ordering::SeqCst),
                    MissAction::Read(from) => {
                        std::thread::yield_now();
                        word = match from {
                            Source::Table => at.entry.load(Ordering::SeqCst),
                            Source::Tentative => at.tentative.load(Ordering::SeqCst),
                        };
                        false
                    }
                    MissAction::Load => {
                        tlb[page] = word;
                        false
                    }
                };
                if miss.did(yes) {
                    break;
                }
            }
        }
        if let Some(frame) = tlb[page].checked_sub(1) {
            let now = self.frames[frame].load(Ordering::SeqCst);
            assert_eq!(now, page, "CPU {cpu} reaches frame {frame}, which is another page's or free");
        }
    }

    /// Maps a page to a free frame, if no CPU is changing it.
    fn map(&self, page: usize) {
        let at = &self.pages[page];
        if at.locked.swap(true, Ordering::SeqCst) {
            return;
        }
        if at.entry.load(Ordering::SeqCst) == UNMAPPED
            && let Some(frame) = lock(&self.free).pop()
        {
            self.frames[frame].store(page, Ordering::SeqCst);
            at.entry.store(frame + 1, Ordering::SeqCst);
        }
        at.locked.store(false, Ordering::SeqCst);
    }
}

/// Unmapping one page. Its payload is the frame, if one was mapped.
struct Unmap<'a> {
    memory: &'a Memory,
    page: usize,
}

impl Edit<1> for Unmap<'_> {
    type Payload = Option<usize>;

    fn exclude(&mut self) -> bool {
        !self.memory.pages[self.page].locked.swap(true, Ordering::SeqCst)
    }
    fn release(&mut self) {
        self.memory.pages[self.page].locked.store(false, Ordering::SeqCst);
    }
    fn set_tentative(&mut self) {
        self.memory.pages[self.page].tentative.store(UNMAPPED, Ordering::SeqCst);
    }
    fn set_changing(&mut self, on: bool) {
        self.memory.pages[self.page].changing.store(on, Ordering::SeqCst);
    }
    fn update(&mut self) -> Option<usize> {
        self.memory.pages[self.page].entry.swap(UNMAPPED, Ordering::SeqCst).checked_sub(1)
    }
    fn update_again(&mut self, frame: &mut Option<usize>) {
        *frame = frame.or(self.update());
    }
    fn check(&mut self) -> bool {
        self.memory.pages[self.page].entry.load(Ordering::SeqCst) == UNMAPPED
    }
    fn space(&self) -> &SharedSpace {
        &self.memory.space
    }
    fn asid(&self) -> Asid {
        Asid::default()
    }
    fn flush(&self) -> &Flush {
        &PAGE[self.page]
    }
}

struct Cpu<'a> {
    memory: &'a Memory,
    me: usize,
}

impl LocalCpu<Option<usize>> for Cpu<'_> {
    fn flush(&mut self, _space: Option<Asid>, what: &Flush, _drain: bool) {
        self.memory.flush(self.me, what);
    }
    fn interrupt(&mut self, _cpus: CpuSet) {}
    fn pause(&mut self) {
        std::thread::yield_now();
    }
    fn ended(&mut self, _op: OpId, outcome: Outcome) {
        assert_eq!(outcome, Outcome::Done);
        self.memory.ended.fetch_add(1, Ordering::SeqCst);
    }
    fn complete(&mut self, _op: OpId, frame: Option<usize>, outcome: Outcome) {
        assert_eq!(outcome, Outcome::Done);
        if let Some(frame) = frame {
            self.memory.frames[frame].store(FREE, Ordering::SeqCst);
            lock(&self.memory.free).push(frame);
        }
        self.memory.completed.fetch_add(1, Ordering::SeqCst);
    }
    fn remote(&mut self) -> Option<&mut dyn RemoteTlbs> {
        self.memory.remote.then_some(self)
    }
}

impl RemoteTlbs for Cpu<'_> {
    fn flush(&mut self, cpus: CpuSet, _space: Option<Asid>, what: &Flush, _drain: bool) -> u32 {
        cpus.iter().for_each(|cpu| self.memory.flush(cpu, what));
        1
    }
    fn is_flushed(&mut self, ticket: u32) -> bool {
        ticket == 1
    }
    fn ends_walks(&self) -> bool {
        true // A miss handler holds the TLB's lock.
    }
}

/// Returns what a thread does next.
fn random(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state as usize
}

/// Ends the program when it is dropped by a thread that panics, which would leave the others waiting for it.
struct EndsAll;

impl Drop for EndsAll {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The harness keeps what the panic has printed, and ends with the program.
            let _ = writeln!(std::io::stderr(), "a thread has panicked: `--nocapture` shows how");
            std::process::abort();
        }
    }
}

/// Lets all threads touch, map and unmap pages, by any of the plans.
fn stress(plans: &[Plan], rendezvous: Rendezvous, turns: usize) {
    let remote = plans.iter().any(|plan| plan.algorithm().style() == Style::Remote);
    // TLB-first's miss handler loads what that wants; it is right for the others, too.
    let misses = plans.iter().find(|plan| plan.algorithm().order() == Order::TlbFirst).unwrap_or(&plans[0]);
    let memory = Memory::new(remote);
    let kernel: Kernel<'_> = System::new(SOFT).with_rendezvous(rendezvous);
    std::thread::scope(|scope| {
        for me in 0..THREADS {
            let (memory, kernel) = (&memory, &kernel);
            scope.spawn(move || {
                let _ends_all = EndsAll;
                let mut handle = kernel.attach(me).expect("it exists");
                let mut cpu = Cpu { memory, me };
                let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(me as u64 + 1);
                let switch = |handle: &mut _, cpu: &mut _, change| {
                    kernel.switch(handle, cpu, change, &memory.space, Asid::default()).expect("it fits");
                };
                switch(&mut handle, &mut cpu, SwitchKind::In);
                for _ in 0..turns {
                    let random = random(&mut state);
                    let page = random >> 8 & (PAGES - 1);
                    match random & 63 {
                        0..3 => {
                            let unmap = Unmap { memory, page };
                            let plan = plans[(random >> 16) % plans.len()];
                            if kernel.start(&mut handle, &mut cpu, plan, unmap).is_ok() {
                                memory.started.fetch_add(1, Ordering::SeqCst);
                            }
                        }
                        3..9 => memory.map(page),
                        9 => {
                            let change = [SwitchKind::Out, SwitchKind::OutAndForget, SwitchKind::Offline];
                            switch(&mut handle, &mut cpu, change[random >> 20 & 1]);
                            if random >> 28 & 3 == 0 {
                                switch(&mut handle, &mut cpu, change[2]);
                            }
                            // Long enough away for others to unmap what this one still holds.
                            for _ in 0..4 {
                                std::thread::yield_now();
                            }
                            switch(&mut handle, &mut cpu, SwitchKind::In);
                        }
                        _ => memory.touch(misses, me, page),
                    }
                    kernel.poll(&mut handle, &mut cpu).expect("requests are of operations in flight");
                }
                memory.finished.fetch_add(1, Ordering::SeqCst);
                let all = || {
                    memory.finished.load(Ordering::SeqCst) == THREADS
                        && memory.started.load(Ordering::SeqCst) == memory.ended.load(Ordering::SeqCst)
                };
                while !all() {
                    kernel.poll(&mut handle, &mut cpu).expect("requests are of operations in flight");
                    std::thread::yield_now();
                }
                switch(&mut handle, &mut cpu, SwitchKind::Out);
                memory.left.fetch_add(1, Ordering::SeqCst);
                while me == 0 && memory.left.load(Ordering::SeqCst) < THREADS {
                    std::thread::yield_now();
                }
                if me == 0 {
                    kernel.drain(&mut handle, &mut cpu, &memory.space).expect("a slot is free");
                }
            });
        }
    });
    let started = memory.started.into_inner();
    assert!(started > 0, "nothing was unmapped");
    assert_eq!(memory.completed.into_inner(), started);
}

/// Hardware as the host threads have it: software loads, nothing is written back.
const SOFT: Hardware = Hardware { remote_flush: true, ..Hardware::RP3 };

#[test]
fn every_algorithm_holds_on_threads() {
    assert_eq!(SOFT.loader, Loader::Software);
    for algorithm in Algorithm::ALL {
        stress(&[plan(algorithm)], Rendezvous::Flag, 3_000);
    }
}

/// An operation names its plan: one system runs all of them, side by side.
#[test]
fn all_algorithms_at_once_hold_on_threads() {
    for rendezvous in [Rendezvous::Flag, Rendezvous::Serve] {
        stress(&Algorithm::ALL.map(plan), rendezvous, 6_000);
        let ours = Algorithm::ALL.into_iter().filter(|algorithm| algorithm.style() != Style::Remote);
        stress(&ours.map(plan).collect::<Vec<_>>(), rendezvous, 6_000);
    }
}

fn plan(algorithm: Algorithm) -> Plan {
    Plan::new(algorithm, &SOFT, LowRights::NeverWriteBack).expect("all suit this hardware")
}

#[test]
fn two_phase_holds_when_requesters_serve_while_they_wait() {
    stress(&[plan(Algorithm::TwoPhase)], Rendezvous::Serve, 3_000);
}
