//! Threads: which one runs next, and what it asks for when it traps.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use heapless::Deque;
use spin::Mutex;
use tlbkit::VirtAddr;

use crate::arch;
use crate::growth::Misses;
use crate::memory::{MMU, Space, defers, on_interrupt};
use crate::open::OpenRange;
use crate::process::{ALL, Ended, Process, page_out};
use crate::report::{Count, REPORT};
use crate::trap::{Frame, Trap};
use crate::window::{Refused, WindowRange};
use crate::{faults, own, time};

/// A thread that does not run, or that this CPU runs.
pub(crate) struct Thread {
    process: &'static Process,
    space: Space,
    frame: Frame,
    /// Where the last fault was, and how often in a row.
    faulted: (VirtAddr, usize),
}

/// How often a fault at one place may come again after it was mended. By then nothing but a TLB that was not flushed is
/// to blame.
const AGAIN: usize = 1000;

/// How many threads there can be.
const THREADS: usize = 256;

/// The threads that wait for a CPU.
static READY: Mutex<Deque<Thread, THREADS>> = Mutex::new(Deque::new());
/// The threads that wait for something to happen, and how much has happened.
static PARKED: Mutex<Deque<Thread, THREADS>> = Mutex::new(Deque::new());
static EVENTS: AtomicUsize = AtomicUsize::new(0);
/// The CPUs that wait for a thread.
static IDLE: AtomicUsize = AtomicUsize::new(0);
/// Whether the first process has ended, and which CPUs have stopped since.
static ENDED: AtomicBool = AtomicBool::new(false);
static STOPPED: AtomicUsize = AtomicUsize::new(0);
/// How often in a row the hand has found nothing to page out.
static STARVED: AtomicUsize = AtomicUsize::new(0);

/// What happens to a thread after a trap.
enum Next {
    /// It goes on.
    On,
    /// It waits for its turn; where it asked for something, it asks again.
    Later,
    /// It waits for something to happen, and then asks again.
    Parked,
    /// It has ended.
    Gone,
}

impl Thread {
    pub(crate) fn new(process: &'static Process, space: Space, frame: Frame) -> Self {
        Self { process, space, frame, faulted: (VirtAddr::new(0), 0) }
    }

    /// Lets the thread wait for a CPU.
    pub(crate) fn ready(self) {
        let full = READY.lock().push_back(self).is_err();
        assert!(!full, "there are more threads than there can be");
        // One CPU that waits, and waits no more as far as others are concerned. A CPU that begins to wait from now on finds
        // the thread.
        let waits = |idle: usize| (idle != 0).then(|| idle & (idle - 1));
        if let Ok(idle) = IDLE.fetch_update(Ordering::SeqCst, Ordering::SeqCst, waits) {
            arch::interrupt(idle & idle.wrapping_neg());
        }
    }

    /// Lets the thread wait for the next event after so many.
    fn park(self, events: usize) {
        let mut parked = PARKED.lock();
        if EVENTS.load(Ordering::Relaxed) == events {
            let full = parked.push_back(self).is_err();
            assert!(!full, "there are more threads than there can be");
        } else {
            drop(parked);
            self.ready();
        }
    }

    fn trapped(&mut self, trap: Trap) -> Next {
        match trap {
            Trap::Interrupt => {
                on_interrupt();
                own::turn();
                Next::On
            }
            Trap::Timer => {
                let conflicts = arch::conflicts();
                REPORT.check(conflicts == 0, Count::Failures, || "two TLB entries match one address");
                own::turn();
                Next::Later
            }
            Trap::Call => self.call(),
            Trap::Fault(at, access) => {
                REPORT.add(Count::Faults, 1);
                match self.process.fault(&self.space, at, access) {
                    Ok(()) => {
                        let (last, times) = self.faulted;
                        self.faulted = (at, if at == last { times + 1 } else { 0 });
                        if self.faulted.1 == AGAIN {
                            REPORT.fail(Count::Failures, "a fault comes again for ever");
                        }
                        Next::On
                    }
                    Err(Refused::NoMemory) => starve(),
                    Err(Refused::Wrong) => self.refuse(format_args!("{access:?} at {at}")),
                }
            }
            Trap::Illegal => self.refuse(format_args!("an illegal instruction")),
        }
    }

    /// Tells the process what has missed, and returns whether there was room for no more.
    fn hear(&self) -> bool {
        let mut misses = Misses::new();
        let was_full = arch::misses(|miss| {
            // There is room: a log has no more.
            let _ = misses.push(miss);
        });
        self.process.hear(&misses);
        was_full
    }

    /// Lets the thread go on in its handler, or ends it.
    fn refuse(&mut self, what: core::fmt::Arguments<'_>) -> Next {
        let handler = self.process.handler.load(Ordering::Relaxed);
        if handler != 0 && self.frame.pc() != handler {
            self.frame.go_to(handler);
            return Next::On;
        }
        crate::report::say(format_args!(
            "process {}: {what}, pc {:#x}",
            self.process.number(),
            self.frame.pc()
        ));
        REPORT.fail(Count::Failures, "a program has failed");
        self.end()
    }

    fn end(&self) -> Next {
        match self.process.end_thread() {
            Ended::NotYet => return Next::Parked,
            Ended::Thread | Ended::Process => happened(),
            Ended::Everything => ENDED.store(true, Ordering::Release),
        }
        Next::Gone
    }

    /// Does what the thread asks for.
    fn call(&mut self) -> Next {
        let (number, [a, b, c, _]) = self.frame.call();
        self.faulted.1 = 0;
        let process = self.process;
        let (open, space) = (&process.open, &self.space);
        let answer = match number {
            0 => return self.end(),
            1 => report(a, b),
            2 => self.fork(),
            3 => match (process.threads.load(Ordering::Acquire), process.children.load(Ordering::Acquire)) {
                (1, 0) => Ok(0),
                _ => return Next::Parked,
            },
            4 => {
                process.threads.fetch_add(1, Ordering::Relaxed);
                Self::new(process, self.space.clone(), Frame::new(a, b, c)).ready();
                Ok(0)
            }
            5 => operation(
                WindowRange::new(a, b).and_then(|range| process.with(|body| body.reserve(range, c != 0))),
            ),
            6 => operation(WindowRange::new(a, b).and_then(|range| process.with(|body| body.unmap(range)))),
            7 => operation(
                WindowRange::new(a, b).and_then(|range| process.with(|body| body.protect(range, c != 0))),
            ),
            8 => {
                operation(WindowRange::new(a, b).and_then(|range| process.with(|body| body.shift(range, c))))
            }
            9 => match send(process, a, WindowRange::new(b, c)) {
                Ok(false) => return Next::Parked,
                sent => operation(sent.map(drop)),
            },
            10 => match receive(process, a) {
                Ok(0) => return Next::Parked,
                received => received,
            },
            11 => Ok(process.number()),
            12 => {
                process.handler.store(a, Ordering::Relaxed);
                Ok(0)
            }
            13 => Ok(crate::cpus()),
            14 => Ok(crate::wanted()),
            15 => Ok(REPORT.get(Count::Operations)),
            16 => operation(process.with(|body| body.reserve_large(a))),
            18 => beside(OpenRange::new(a, b).and_then(|range| open.reserve(space, range, c != 0))),
            19 => beside(OpenRange::new(a, b).and_then(|range| open.unmap(space, range))),
            20 => beside(OpenRange::new(a, b).and_then(|range| open.protect(space, range, c != 0))),
            21 => Ok(defers().into()),
            22 => Ok(REPORT.get(Count::Interrupts)),
            23 => {
                REPORT.add(Count::Churned, a);
                REPORT.add(Count::ChurnInterrupts, b);
                Ok(0)
            }
            _ => Err(Refused::Wrong),
        };
        match answer {
            Ok(value) => self.frame.answer(value),
            Err(Refused::Wrong) => self.frame.answer(usize::MAX),
            Err(Refused::NoMemory) => return starve(),
        }
        Next::On
    }

    fn fork(&mut self) -> Result<usize, Refused> {
        if self.process.open.in_use() {
            return Err(Refused::Wrong);
        }
        let child = self.process.with(|body| body.fork())?;
        let space = child.space.clone();
        let process = Process::begin(child, Some(self.process)).ok_or(Refused::Wrong)?;
        let mut frame = self.frame.clone();
        frame.answer(0);
        Self::new(process, space, frame).ready();
        REPORT.add(Count::Forks, 1);
        REPORT.add(Count::Operations, 1);
        // Numbers of processes begin with 0, which is what the child gets.
        Ok(process.number() + 1)
    }
}

/// Wakes the threads that wait for something to happen.
fn happened() {
    let mut parked = PARKED.lock();
    EVENTS.fetch_add(1, Ordering::Relaxed);
    while let Some(thread) = parked.pop_front() {
        thread.ready();
    }
}

/// Makes room in memory, so that the thread can try again.
fn starve() -> Next {
    let waited = MMU.flush_deferred();
    let starved = if waited.is_ok_and(|frames| frames > 0) || page_out() > 0 {
        0
    } else {
        STARVED.load(Ordering::Relaxed) + 1
    };
    STARVED.store(starved, Ordering::Relaxed);
    assert!(starved < 10_000, "there is no memory, and no page to take");
    Next::Later
}

fn operation(result: Result<(), Refused>) -> Result<usize, Refused> {
    result.map(|()| {
        REPORT.add(Count::Operations, 1);
        0
    })
}

/// Counts an operation on open pages.
fn beside(result: Result<(), Refused>) -> Result<usize, Refused> {
    REPORT.add(Count::Beside, usize::from(result.is_ok()));
    operation(result)
}

/// Takes over what a program has checked.
fn report(kind: usize, count: usize) -> Result<usize, Refused> {
    let kinds = [Count::Checks, Count::Failures, Count::StaleReads, Count::StaleWrites];
    let kind = *kinds.get(kind).ok_or(Refused::Wrong)?;
    if kind == Count::Checks {
        REPORT.add(Count::Checks, count);
    } else {
        REPORT.fail(kind, "a program has found what must not be");
    }
    Ok(0)
}

/// Sends pages to another process; `false` if that has too many messages already.
fn send(from: &'static Process, to: usize, range: Result<WindowRange, Refused>) -> Result<bool, Refused> {
    let (range, to) = (range?, ALL.get(to).ok_or(Refused::Wrong)?);
    from.with(|body| {
        let mut inbox = to.inbox.lock();
        if inbox.is_full() {
            return Ok(false);
        }
        let message = body.take_out(range)?;
        let _ = inbox.push_back(message);
        happened();
        Ok(true)
    })
}

/// Maps the next message at `at`, and returns how many pages it has; 0 if there is none.
fn receive(process: &'static Process, at: usize) -> Result<usize, Refused> {
    process.with(|body| {
        let mut inbox = process.inbox.lock();
        let Some(message) = inbox.front() else { return Ok(0) };
        body.put_in(at, message)?;
        REPORT.add(Count::Operations, 1);
        happened();
        Ok(inbox.pop_front().map_or(0, |message| message.len()))
    })
}

/// Runs threads on this CPU until the first process has ended.
pub(crate) fn work() {
    let mut last = None;
    while !ENDED.load(Ordering::Acquire) {
        let next = READY.lock().pop_front();
        let Some(mut thread) = next else {
            idle();
            continue;
        };
        if last.replace(thread.process.number()) != Some(thread.process.number()) {
            faults::flush_late();
        }
        assert_eq!(faults::switching(|| thread.space.activate()), Ok(()));
        time::begin_slice();
        let mut events;
        let next = loop {
            time::resume();
            let trap = arch::run(&mut thread.frame);
            events = EVENTS.load(Ordering::Relaxed);
            if thread.hear() && matches!(trap, Trap::Fault(..)) {
                // There is room now: if the access faults again, it is a fault.
                continue;
            }
            match thread.trapped(trap) {
                Next::On => {}
                next => break next,
            }
        };
        match next {
            Next::Later => thread.ready(),
            Next::Parked => thread.park(events),
            Next::On | Next::Gone => {}
        }
    }
    // No address space is kept by a CPU that has stopped.
    assert_eq!(MMU.offline(), Ok(()));
    STOPPED.fetch_add(1, Ordering::Release);
}

/// Waits for a thread, and serves the shootdowns of the address space that ran here until it runs no more.
fn idle() {
    assert_eq!(MMU.idle(), Ok(()));
    let bit = 1 << arch::cpu();
    IDLE.fetch_or(bit, Ordering::SeqCst);
    if READY.lock().is_empty() {
        time::idle();
    }
    IDLE.fetch_and(!bit, Ordering::SeqCst);
    on_interrupt();
}

/// Waits until every CPU has stopped.
pub(crate) fn wait_for_all() {
    while STOPPED.load(Ordering::Acquire) < crate::cpus() {
        time::pause();
    }
}
