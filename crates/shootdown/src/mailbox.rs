//! A CPU's request queue in shared memory.

use crate::sync::{AtomicBool, Cell, Ordering, constructor, fence, relax};
use crate::{Misuse, OpId, Queue, Request, Work};

/// A [`Queue`] to which other CPUs post requests, with its lock and with a flag that is clear only if it holds no request.
///
/// A post holds the lock for a few stores; a check for requests is one load. If `W` and `SLOTS` are 1, the flag, the lock
/// and the first request share one cache line: no other line moves from the requester to the replier.
///
/// If a replier's [`take`](Self::take) does not see a post, then the requester's loads after that post see the replier's
/// stores before that `take`: both sides have a full fence in between
/// ([`Repair::ENQUEUE_BEFORE_FLAG`](crate::Repair::ENQUEUE_BEFORE_FLAG)).
///
/// Call its methods with interrupts disabled, or make sure that no interrupt handler touches this CPU's mailbox.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Mailbox<const N: usize, const W: usize = 1, const SLOTS: usize = 1> {
    pending: AtomicBool,
    locked: AtomicBool,
    queue: Cell<Queue<N, W, SLOTS>>,
}

// SAFETY: only `locked` accesses the queue, and its lock admits one CPU at a time. The queue is plain data without thread
// affinity.
unsafe impl<const N: usize, const W: usize, const SLOTS: usize> Sync for Mailbox<N, W, SLOTS> {}

impl<const N: usize, const W: usize, const SLOTS: usize> Mailbox<N, W, SLOTS> {
    /// Returns an empty mailbox.
    ///
    /// # Errors
    ///
    /// [`Misuse::NoRoom`] as for [`Queue::new`].
    pub fn new() -> Result<Self, Misuse> {
        Queue::<N, W, SLOTS>::new()?;
        Ok(Self::of_checked_size())
    }

    constructor! {
        /// As [`new`](Self::new), for sizes that are known not to be zero.
        pub(crate) fn of_checked_size() -> Self {
            Self {
                pending: AtomicBool::new(false),
                locked: AtomicBool::new(false),
                queue: Cell::new(Queue::of_checked_size()),
            }
        }
    }

    /// Calls `f` with the queue while this CPU holds the lock.
    fn locked<R>(&self, f: impl FnOnce(&mut Queue<N, W, SLOTS>) -> R) -> R {
        while self.locked.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            relax();
        }
        // SAFETY: this CPU changed `locked` from false to true, so no other CPU has a reference to the queue before the
        // store below. The acquiring exchange makes the accesses of the last holder happen before these.
        let result = self.queue.with_mut(|queue| f(unsafe { &mut *queue }));
        self.locked.store(false, Ordering::Release);
        result
    }

    /// Posts a request. Returns whether the CPU will reply; an offline CPU does not.
    ///
    /// # Errors
    ///
    /// As [`Queue::push`].
    pub fn post(&self, request: Request) -> Result<bool, Misuse> {
        let posted = self.locked(|queue| {
            let posted = queue.push(request);
            self.pending.store(true, Ordering::Relaxed);
            posted
        });
        fence(Ordering::SeqCst);
        posted
    }

    /// Returns true only if the mailbox has no request. False may also mean that a closed mailbox has refused a request. The call
    /// costs one load.
    #[inline]
    pub fn is_empty(&self) -> bool {
        !self.pending.load(Ordering::Acquire)
    }

    /// Tells whether a request of this operation has not been taken yet.
    pub(crate) fn has(&self, op: OpId) -> bool {
        self.locked(|queue| queue.has(op))
    }

    /// Takes the next piece of work. If there is none, the call costs a barrier and does not take the lock.
    pub fn take(&self) -> Option<Work<W, SLOTS>> {
        if self.is_empty() {
            // A replier clears its stop flag and then loads `pending`; a requester posts and then loads that stop flag. The
            // fences exclude that the replier misses the request and the requester sees the old flag.
            fence(Ordering::SeqCst);
            if self.is_empty() {
                return None;
            }
        }
        self.locked(|queue| {
            let work = queue.take();
            if queue.is_empty() {
                self.pending.store(false, Ordering::Relaxed);
            }
            work
        })
    }

    /// Refuses requests from now on, because the CPU goes offline.
    pub fn close(&self) {
        self.locked(Queue::close);
    }

    /// Accepts requests again.
    pub fn open(&self) {
        self.locked(Queue::open);
    }
}
