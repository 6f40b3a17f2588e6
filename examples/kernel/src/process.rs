//! Processes, and the hand of the clock that goes round their pages.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use heapless::Deque;
use tlbkit::{Access, Pfn, VirtAddr};

use crate::body::{Body, MESSAGE, SWEEP};
use crate::disk;
use crate::growth::Misses;
use crate::memory::{Lock, Space};
use crate::open::{Open, OpenRange};
use crate::window::{PAGES, PROCESSES, Refused, WINDOW, WindowRange};

/// Frames on their way from one process to another.
pub(crate) type Message = heapless::Vec<Pfn, MESSAGE>;

/// A process, or the place for one.
pub(crate) struct Process {
    taken: AtomicBool,
    number: AtomicUsize,
    /// Its memory. The lock is held over changes of the address space.
    pub(crate) body: Lock<Option<Body>>,
    /// The pages that its threads change without that lock.
    pub(crate) open: Open,
    /// Messages that it has not received. The lock comes after that of the sender's, or its own, memory.
    pub(crate) inbox: Lock<Deque<Message, 4>>,
    pub(crate) threads: AtomicUsize,
    pub(crate) children: AtomicUsize,
    parent: AtomicUsize,
    /// Where a thread goes on after an access that is not allowed, or 0.
    pub(crate) handler: AtomicUsize,
}

pub(crate) static ALL: [Process; PROCESSES] = [const { Process::new() }; PROCESSES];

impl Process {
    const fn new() -> Self {
        Self {
            taken: AtomicBool::new(false),
            number: AtomicUsize::new(0),
            body: Lock::new(None),
            open: Open::new(),
            inbox: Lock::new(Deque::new()),
            threads: AtomicUsize::new(0),
            children: AtomicUsize::new(0),
            parent: AtomicUsize::new(0),
            handler: AtomicUsize::new(0),
        }
    }

    /// Returns a process with this memory and one thread; `None` if there is no place.
    pub(crate) fn begin(body: Body, parent: Option<&'static Self>) -> Option<&'static Self> {
        let free = |(_, process): &(usize, &Self)| !process.taken.swap(true, Ordering::Acquire);
        let (number, process) = ALL.iter().enumerate().find(free)?;
        process.number.store(number, Ordering::Relaxed);
        *process.body.lock() = Some(body);
        process.open.clear();
        process.threads.store(1, Ordering::Relaxed);
        process
            .handler
            .store(parent.map_or(0, |parent| parent.handler.load(Ordering::Relaxed)), Ordering::Relaxed);
        process.parent.store(parent.map_or(PROCESSES, Self::number), Ordering::Relaxed);
        if let Some(parent) = parent {
            parent.children.fetch_add(1, Ordering::Relaxed);
        }
        Some(process)
    }

    /// Returns its number.
    pub(crate) fn number(&self) -> usize {
        self.number.load(Ordering::Relaxed)
    }

    /// Ends one of its threads, the last one when every child has ended: `false` if one has not. It is gone with the last
    /// thread; tells whether it was the first process.
    pub(crate) fn end_thread(&'static self) -> Ended {
        let last = |threads: usize| threads.checked_sub(1).filter(|&left| left > 0);
        if self.threads.fetch_update(Ordering::AcqRel, Ordering::Relaxed, last).is_ok() {
            return Ended::Thread;
        }
        if self.children.load(Ordering::Acquire) > 0 {
            return Ended::NotYet;
        }
        let body = self.body.lock().take();
        let mut inbox = self.inbox.lock();
        while let Some(message) = inbox.pop_front() {
            drop_message(&message);
        }
        drop((inbox, body));
        let parent = ALL.get(self.parent.load(Ordering::Relaxed));
        self.taken.store(false, Ordering::Release);
        let Some(parent) = parent else { return Ended::Everything };
        parent.children.fetch_sub(1, Ordering::Release);
        Ended::Process
    }

    /// Takes what its threads have missed, unless another CPU is changing its memory.
    pub(crate) fn hear(&self, misses: &Misses) {
        if !misses.is_empty()
            && let Some(mut body) = self.body.try_lock()
            && let Some(body) = &mut *body
        {
            body.hear(misses);
        }
    }

    /// Resolves a page fault. The process's memory is free while the disk reads.
    pub(crate) fn fault(&self, space: &Space, at: VirtAddr, access: Access) -> Result<(), Refused> {
        if let Ok(page) = OpenRange::new(at.get(), 1) {
            return self.open.fault(space, page, at, access);
        }
        let Some(incoming) = self.with(|body| body.fault(at, access))? else { return Ok(()) };
        incoming.read();
        self.with(|body| body.come_in(incoming))
    }

    /// Does something with the process's memory.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Body) -> Result<R, Refused>) -> Result<R, Refused> {
        self.body.lock().as_mut().ok_or(Refused::Wrong).and_then(f)
    }
}

/// What has ended with a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Nothing: there are children.
    NotYet,
    Thread,
    Process,
    /// The first process.
    Everything,
}

fn drop_message(message: &Message) {
    message.iter().for_each(|&frame| crate::frames::release(frame, false));
}

/// The process and the page that the hand points to.
static HAND: Lock<(usize, usize)> = Lock::new((0, 0));

/// Moves the hand until some pages have gone to disk, once round all pages at most twice. Returns how many have gone.
/// The caller has no process's memory.
pub(crate) fn page_out() -> usize {
    let mut hand = HAND.lock();
    let mut gone = 0;
    for _ in 0..2 * PROCESSES * PAGES / SWEEP {
        if gone >= SWEEP || disk::in_use() + SWEEP >= disk::SLOTS {
            break;
        }
        let (process, page) = *hand;
        // A process that another CPU is changing keeps its pages for now.
        let body = ALL[process].body.try_lock();
        let swept = body.and_then(|mut body| {
            Some(body.as_mut()?.sweep(WindowRange::new(WINDOW + page * 4096, SWEEP).ok()?))
        });
        let next = if swept.is_some() { page + SWEEP } else { PAGES };
        if let Some(outgoing) = swept {
            // The process runs on, and faults, while the disk writes.
            outgoing.write();
            let _body = ALL[process].body.lock();
            gone += outgoing.leave();
        }
        *hand = if next < PAGES { (process, next) } else { ((process + 1) % PROCESSES, 0) };
    }
    gone
}
