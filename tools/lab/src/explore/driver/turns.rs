//! CPUs as coroutines of one thread. Before each access to the memory that they share, and before what each hook does,
//! the explorer chooses which CPU goes on. A schedule is run from its beginning, with another last choice each time,
//! until there is none left: depth first, with a bound on preemptions.

use std::cell::{Cell, RefCell};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use tlbkit_shootdown::{Access, watch};

/// Where a CPU has come to a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Before it does this.
    Before(&'static str),
    /// It waits for a word that another CPU writes, or an interrupt.
    Wait,
    /// It spins until another CPU has written a word: that holds a lock for a few stores.
    Spin,
    /// In the user's program: it goes on when it is interrupted, or when there is nothing left to wait for.
    User,
    /// In the user's program, where no request interrupts it: it also goes on when another CPU has written a word, at its next tick.
    Tick,
}

thread_local! {
    static RUNNING: Cell<*const Yielder<(), Stop>> = const { Cell::new(std::ptr::null()) };
    static WRITES: Cell<u64> = const { Cell::new(0) };
    /// Stacks of runs that have ended: to map new ones takes longer than a run.
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

/// Stops the CPU at hand until it is chosen to go on.
pub(crate) fn stop(why: Stop) {
    let yielder = RUNNING.get();
    if !yielder.is_null() {
        // SAFETY: it is the yielder of the coroutine that runs, which sets it when it begins, and `Cpu::resume` when it
        // goes on; while none runs there is none. A yielder lives as long as its coroutine's function, which calls this.
        unsafe { &*yielder }.suspend(why);
    }
}

/// Takes notice that the CPU at hand has written a word that others may wait for.
pub(crate) fn wrote() {
    WRITES.set(WRITES.get() + 1);
}

fn watcher(access: Access) {
    match access {
        Access::Next => stop(Stop::Before("a shared word")),
        Access::Wrote => wrote(),
        Access::Waits => stop(Stop::Spin),
    }
}

/// More steps than any run takes that ends.
const ENDLESS: usize = 20_000;

/// The choices of one run, and the next run's.
#[derive(Debug, Default)]
pub(crate) struct Choices {
    /// What was chosen, and of how many.
    made: RefCell<Vec<(u16, u16)>>,
    at: Cell<usize>,
}

impl Choices {
    /// Chooses one of so many: as in the run before as far as that is repeated, then the first.
    pub(crate) fn choose(&self, of: usize) -> usize {
        if of < 2 {
            return 0;
        }
        let (at, mut made) = (self.at.get(), self.made.borrow_mut());
        self.at.set(at + 1);
        if at == made.len() {
            made.push((0, of as u16));
        }
        debug_assert_eq!(made[at].1, of as u16, "a run is repeated as it was");
        usize::from(made[at].0)
    }

    /// Repeats the run at hand.
    pub(crate) fn again(&self) {
        self.at.set(0);
    }

    /// Goes on to the next run, if there is one.
    pub(crate) fn next(&self) -> bool {
        let mut made = self.made.borrow_mut();
        self.at.set(0);
        while let Some((chosen, of)) = made.pop() {
            if chosen + 1 < of {
                made.push((chosen + 1, of));
                return true;
            }
        }
        false
    }
}

struct Cpu {
    /// There is one until the CPU is dropped.
    body: Option<Coroutine<(), Stop, ()>>,
    at: Option<Stop>,
    /// The yielder, once the coroutine has begun.
    yielder: Cell<*const Yielder<(), Stop>>,
    /// How often it has written.
    own: u64,
    /// How often others had written when it last went on from a wait.
    looked: u64,
}

/// The machine around the CPUs: what happens between two steps.
pub(crate) trait Machine {
    /// Tells whether a CPU that runs the user's program goes on.
    fn leaves_user(&self, cpu: usize) -> bool;
    /// What is wrong when all CPUs have come to their end, and what the hardware had under way has landed.
    fn end(&self) -> Result<(), String>;
    /// Tells whether a CPU that waits has been interrupted.
    fn wakes(&self, cpu: usize) -> bool;
    /// Something that the hardware may do before the step at hand, or something that is wrong.
    fn between(&self, choices: &Choices, next: usize, before: Stop) -> Result<(), String>;
}

/// Runs the CPUs once.
pub(crate) fn run(
    bodies: Vec<Box<dyn FnOnce()>>,
    machine: &dyn Machine,
    choices: &Choices,
    preemptions: usize,
    trace: bool,
) -> Result<(), String> {
    WRITES.set(0);
    let mut cpus: Vec<Cpu> = bodies.into_iter().map(Cpu::new).collect();
    // Dropped before the CPUs: one that is dropped half-way is unwound, and then it stops nowhere.
    let _watched = Watched::begin();
    turns(&mut cpus, machine, choices, preemptions, trace)
}

/// While there is one, shared words tell of each access.
struct Watched;

impl Watched {
    fn begin() -> Self {
        watch(Some(watcher));
        Self
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        watch(None);
        RUNNING.set(std::ptr::null());
    }
}

fn turns(
    cpus: &mut [Cpu],
    machine: &dyn Machine,
    choices: &Choices,
    preemptions: usize,
    trace: bool,
) -> Result<(), String> {
    let (mut last, mut left, mut steps) = (0, preemptions, 0);
    loop {
        let ready = |cpu: &Cpu, at: usize| match cpu.at {
            None => false,
            Some(Stop::Before(_)) => true,
            Some(Stop::Wait) => cpu.has_news() || machine.wakes(at),
            Some(Stop::Spin) => cpu.has_news(),
            Some(Stop::User) => machine.leaves_user(at),
            Some(Stop::Tick) => cpu.has_news() || machine.leaves_user(at),
        };
        if cpus.iter().all(|cpu| cpu.at.is_none()) {
            return machine.end();
        }
        // The CPU that has just stopped first: to go on with another one costs a preemption.
        let goes_on = ready(&cpus[last], last);
        let mut able: Vec<usize> = if goes_on { vec![last] } else { Vec::new() };
        if !goes_on || left > 0 {
            let others = (1..cpus.len()).map(|by| (last + by) % cpus.len());
            able.extend(others.filter(|&at| ready(&cpus[at], at)));
        }
        if able.is_empty() {
            let at: Vec<_> = cpus.iter().map(|cpu| cpu.at).collect();
            return Err(format!("no CPU can go on: {at:?}"));
        }
        let next = able[choices.choose(able.len())];
        left -= usize::from(goes_on && next != last);
        if let Some(before) = cpus[next].at {
            if trace {
                eprintln!("CPU {next}: {before:?}");
            }
            machine.between(choices, next, before)?;
        }
        cpus[next].resume();
        (last, steps) = (next, steps + 1);
        if steps > ENDLESS {
            return Err("it does not end".into());
        }
    }
}

impl Cpu {
    fn new(body: Box<dyn FnOnce()>) -> Self {
        let stack = STACKS.with_borrow_mut(Vec::pop).unwrap_or_default();
        let body = Coroutine::with_stack(stack, move |yielder: &Yielder<(), Stop>, ()| {
            RUNNING.set(yielder);
            body();
        });
        let yielder = Cell::new(std::ptr::null());
        Self { body: Some(body), at: Some(Stop::Before("the beginning")), yielder, own: 0, looked: 0 }
    }

    /// Tells whether another CPU has written something since this one last went on from a wait.
    fn has_news(&self) -> bool {
        WRITES.get() - self.own > self.looked
    }

    fn resume(&mut self) {
        let before = WRITES.get();
        if matches!(self.at, Some(Stop::Wait | Stop::Spin | Stop::Tick)) {
            self.looked = before - self.own;
        }
        RUNNING.set(self.yielder.get());
        let Some(body) = &mut self.body else { return };
        let result = body.resume(());
        self.yielder.set(RUNNING.replace(std::ptr::null()));
        self.own += WRITES.get() - before;
        self.at = match result {
            CoroutineResult::Yield(at) => Some(at),
            CoroutineResult::Return(()) => None,
        };
    }
}

impl Drop for Cpu {
    fn drop(&mut self) {
        if let Some(mut body) = self.body.take() {
            body.force_unwind();
            STACKS.with_borrow_mut(|stacks| stacks.push(body.into_stack()));
        }
    }
}
