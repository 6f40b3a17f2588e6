//! The machines over host threads: a software TLB per thread, mailboxes for interrupts, frames that are marked free
//! when an operation hands them back. A thread that reaches a free frame, or another page's, has been let down.

#![cfg(not(tlbkit_loom))]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use tlbkit_addr::{Asid, Pages, Vpn};
use tlbkit_shootdown::{
    Algorithm, Change, Edit, Hardware, Loader, Local, LowRights, Miss, MissAction, Outcome, Plan, RemoteTlbs,
    Rendezvous, SharedSpace, Source, System, Target,
};

const THREADS: usize = 4;
const PAGES: usize = 2;
const FREE: usize = usize::MAX;
const UNMAPPED: usize = 0;
type Kernel<'a> = System<usize, Unmap<'a>, THREADS, 2, 1, 2>;

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
    changing: AtomicUsize,
    started: AtomicUsize,
    completed: AtomicUsize,
    finished: AtomicUsize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread has panicked")
}

impl Memory {
    fn new() -> Self {
        let frames = 4 * PAGES;
        Self {
            pages: Default::default(),
            frames: (0..frames).map(|_| AtomicUsize::new(FREE)).collect(),
            free: Mutex::new((0..frames).collect()),
            tlbs: Default::default(),
            space: SharedSpace::new(),
            changing: AtomicUsize::new(0),
            started: AtomicUsize::new(0),
            completed: AtomicUsize::new(0),
            finished: AtomicUsize::new(0),
        }
    }

    fn flush(&self, cpu: usize, what: Target) {
        let mut tlb = lock(&self.tlbs[cpu]);
        for (page, entry) in tlb.iter_mut().enumerate() {
            if what.covers(Asid::default(), Vpn::new(page)) {
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

    /// Maps a page to a free frame, if nobody is changing it.
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

/// Unmapping one page. Its payload is the frame, found under the exclusion; so it is noted in the memory.
struct Unmap<'a> {
    memory: &'a Memory,
    page: usize,
    gone: &'a [AtomicUsize; PAGES],
}

impl Edit<1> for Unmap<'_> {
    fn exclude(&self) -> bool {
        !self.memory.pages[self.page].locked.swap(true, Ordering::SeqCst)
    }
    fn release(&self) {
        // Before the page can be mapped again, what was there is noted for the payload.
        let gone = self.gone[self.page].swap(UNMAPPED, Ordering::SeqCst);
        if let Some(frame) = gone.checked_sub(1) {
            self.memory.frames[frame].store(FREE, Ordering::SeqCst);
            lock(&self.memory.free).push(frame);
        }
        self.memory.pages[self.page].locked.store(false, Ordering::SeqCst);
    }
    fn set_tentative(&self) {
        self.memory.pages[self.page].tentative.store(UNMAPPED, Ordering::SeqCst);
    }
    fn set_changing(&self, on: bool) {
        self.memory.pages[self.page].changing.store(on, Ordering::SeqCst);
        if on {
            self.memory.changing.fetch_add(1, Ordering::SeqCst);
        } else {
            self.memory.changing.fetch_sub(1, Ordering::SeqCst);
        }
    }
    fn update(&self) {
        let before = self.memory.pages[self.page].entry.swap(UNMAPPED, Ordering::SeqCst);
        if before != UNMAPPED {
            self.gone[self.page].store(before, Ordering::SeqCst);
        }
    }
    fn check(&self) -> bool {
        self.memory.pages[self.page].entry.load(Ordering::SeqCst) == UNMAPPED
    }
    fn space(&self) -> &SharedSpace {
        &self.memory.space
    }
    fn what(&self) -> Target {
        Target::Pages(Asid::default(), Pages::one(Vpn::new(self.page)))
    }
}

struct Cpu<'a> {
    memory: &'a Memory,
    me: usize,
}

impl Local<usize> for Cpu<'_> {
    fn flush(&mut self, what: Target, _drain: bool) {
        self.memory.flush(self.me, what);
    }
    fn interrupt(&mut self, _cpu: usize) {}
    fn pause(&mut self) {
        std::thread::yield_now();
    }
    fn complete(&mut self, payload: usize, outcome: Outcome) {
        assert_eq!((payload, outcome), (7, Outcome::Done));
        self.memory.completed.fetch_add(1, Ordering::SeqCst);
    }
    fn remote(&mut self) -> Option<&mut dyn RemoteTlbs> {
        Some(self)
    }
}

impl RemoteTlbs for Cpu<'_> {
    fn flush(&mut self, cpu: usize, what: Target, _drain: bool) -> (u32, u32) {
        self.memory.flush(cpu, what);
        (1, 0)
    }
    fn is_flushed(&mut self, _cpu: usize, ticket: u32) -> bool {
        ticket == 1
    }
}

fn stress(plan: Plan, turns: usize) {
    // A thread that panics would leave the others waiting for it.
    std::panic::set_hook(Box::new(|why| {
        eprintln!("{why}");
        std::process::abort();
    }));
    let memory = Memory::new();
    let gone: [AtomicUsize; PAGES] = Default::default();
    let kernel: Kernel<'_> = System::new(plan).expect("sizes are not zero");
    let target = Target::Space(Asid::default());
    std::thread::scope(|scope| {
        for me in 0..THREADS {
            let (memory, gone, kernel) = (&memory, &gone, &kernel);
            scope.spawn(move || {
                let mut station = kernel.station(me).expect("it exists");
                let mut cpu = Cpu { memory, me };
                let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(me as u64 + 1);
                let changing = || memory.changing.load(Ordering::SeqCst) > 0;
                let switch = |station: &mut _, cpu: &mut _, change| {
                    kernel.switch(station, cpu, change, &memory.space, target, changing).expect("it fits");
                };
                switch(&mut station, &mut cpu, Change::In);
                for _ in 0..turns {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let page = random as usize >> 8 & (PAGES - 1);
                    match random as usize & 63 {
                        0..3 => {
                            let unmap = Unmap { memory, page, gone };
                            if kernel.start(&mut station, &mut cpu, 7, unmap).is_ok() {
                                memory.started.fetch_add(1, Ordering::SeqCst);
                            }
                        }
                        3..9 => memory.map(page),
                        9 => {
                            let change = [Change::Out, Change::OutAndForget, Change::Offline];
                            switch(&mut station, &mut cpu, change[random as usize >> 20 & 1]);
                            if random >> 40 & 3 == 0 {
                                switch(&mut station, &mut cpu, change[2]);
                            }
                            // Long enough away for others to unmap what this one still holds.
                            for _ in 0..4 {
                                std::thread::yield_now();
                            }
                            switch(&mut station, &mut cpu, Change::In);
                        }
                        _ => memory.touch(&plan, me, page),
                    }
                    kernel.poll(&mut station, &mut cpu).expect("requests are of operations in flight");
                }
                memory.finished.fetch_add(1, Ordering::SeqCst);
                let all = || {
                    memory.finished.load(Ordering::SeqCst) == THREADS
                        && memory.started.load(Ordering::SeqCst) == memory.completed.load(Ordering::SeqCst)
                };
                while !all() {
                    kernel.poll(&mut station, &mut cpu).expect("requests are of operations in flight");
                    std::thread::yield_now();
                }
            });
        }
    });
    assert!(memory.started.into_inner() > 0, "nothing was unmapped");
}

/// Hardware as the host threads have it: software loads, nothing is written back.
const SOFT: Hardware = Hardware { remote_flush: true, ..Hardware::RP3 };

#[test]
fn every_algorithm_holds_on_threads() {
    assert_eq!(SOFT.loader, Loader::Software);
    for algorithm in Algorithm::ALL {
        let plan = Plan::new(algorithm, &SOFT, LowRights::NeverWriteBack).expect("all suit this hardware");
        stress(plan, 3_000);
    }
}

#[test]
fn two_phase_holds_when_requesters_serve_while_they_wait() {
    let plan = Plan::new(Algorithm::TwoPhase, &SOFT, LowRights::NeverWriteBack).expect("it suits");
    stress(plan.with_rendezvous(Rendezvous::Serve), 3_000);
}
