//! A CPU's request queue, of fixed size, which loses no request.
//!
//! ```text
//!   requests         [ op, what | op, what | ... ]    up to N, in order of arrival
//!   overflow         more than N requests become one flush of everything
//!   unacknowledged   after an overflow: one bit for each operation that waits for its acknowledgement
//! ```
//!
//! An overflow loses the addresses of the requests, but no request. The bits cannot overflow: there is one for each
//! operation that can be in flight.

use tlbkit_addr::{Asid, CpuSet, Flush, FlushScope, Pages};

use crate::{Misuse, OpId};

/// The translations that a request asks a CPU to flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// None: the CPU only has to leave the walk that it is in.
    Nothing,
    /// Some pages of an address space.
    Pages(Asid, Pages),
    /// The pages or links of the operation's own [`Flush`], which is in shared memory while the operation waits for this
    /// CPU.
    Listed(Asid),
    /// A whole address space.
    Space(Asid),
    /// All address spaces.
    All,
}

impl Target {
    /// Returns the target of a request for `flush`.
    pub fn of(space: Asid, flush: &Flush) -> Self {
        match flush.ranges() {
            [only] if !flush.links() => Self::Pages(space, *only),
            [] if !flush.is_all() => Self::Nothing,
            [] => Self::Space(space),
            // Separate ranges, or one range with changed links, which a flush by address may leave in page-walk caches.
            _ => Self::Listed(space),
        }
    }

    /// Calls `f` with the address space, or `None` for all, and the flush that this target asks for; does not call it for
    /// [`Nothing`](Self::Nothing). For [`Listed`](Self::Listed), whose list is not available here, the flush is the whole
    /// space.
    pub(crate) fn with(self, f: impl FnOnce(Option<Asid>, &Flush)) {
        let mut flush = Flush::none();
        let space = match self {
            Self::Nothing => return,
            Self::Pages(space, pages) => {
                flush.add(FlushScope::Everywhere, pages);
                Some(space)
            }
            Self::Listed(space) | Self::Space(space) => {
                flush.add_all(FlushScope::Everywhere);
                Some(space)
            }
            Self::All => {
                flush.add_all(FlushScope::Everywhere);
                None
            }
        };
        f(space, &flush);
    }

    /// Returns the smallest target of one request that covers both targets.
    #[must_use]
    pub fn widened(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nothing, any) | (any, Self::Nothing) => any,
            (Self::Pages(a, x), Self::Pages(b, y)) if a == b => match x.merge(y) {
                Some(both) => Self::Pages(a, both),
                None => Self::Space(a),
            },
            (
                Self::Pages(a, _) | Self::Listed(a) | Self::Space(a),
                Self::Pages(b, _) | Self::Listed(b) | Self::Space(b),
            ) if a == b => Self::Space(a),
            _ => Self::All,
        }
    }

    /// Tells whether the target covers `page` of `space`, or may cover it.
    pub fn covers(&self, space: Asid, page: tlbkit_addr::Vpn) -> bool {
        match self {
            Self::Nothing => false,
            Self::Pages(of, pages) => *of == space && pages.contains(page),
            Self::Listed(of) | Self::Space(of) => *of == space,
            Self::All => true,
        }
    }
}

/// The duty that an operation asks of a replier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Duty {
    /// Flush, then acknowledge.
    #[default]
    Flush,
    /// Acknowledge, then flush, before this CPU runs a program.
    AcknowledgeFirst,
    /// Flush, then acknowledge; the CPU that gives the last acknowledgement runs the operation to its end.
    FlushAndFinish,
    /// Stop until the entry has changed, then flush.
    Stop,
}

/// One request: what to flush, and for which operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The operation that sends the request.
    pub op: OpId,
    /// The translations to flush.
    pub what: Target,
    /// The duty of the replier.
    pub duty: Duty,
}

impl Request {
    /// The value of an unused element of the queue.
    const NONE: Self =
        Self { op: OpId { cpu: 0, slot: 0, generation: 0 }, what: Target::Nothing, duty: Duty::Flush };
}

/// A set of operations: one bit for each slot of each CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpSet<const W: usize = 1, const SLOTS: usize = 1>([CpuSet<W>; SLOTS]);

impl<const W: usize, const SLOTS: usize> OpSet<W, SLOTS> {
    /// Returns the set without any operation.
    pub const fn empty() -> Self {
        Self([CpuSet::empty(); SLOTS])
    }

    fn insert(&mut self, op: OpId) {
        if let Some(cpus) = self.0.get_mut(usize::from(op.slot)) {
            cpus.insert(usize::from(op.cpu));
        }
    }

    fn has(&self, op: OpId) -> bool {
        self.0.get(usize::from(op.slot)).is_some_and(|cpus| cpus.contains(usize::from(op.cpu)))
    }

    /// Tells whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(CpuSet::is_empty)
    }

    /// Returns the number of operations.
    pub fn len(&self) -> usize {
        self.0.iter().map(CpuSet::len).sum()
    }

    /// Removes one operation, and returns its CPU and its slot. Its generation is the slot's current generation, because an
    /// operation does not end before all CPUs have acknowledged or, in 2-phase, flushed.
    pub fn pop(&mut self) -> Option<(u16, u16)> {
        for (slot, cpus) in self.0.iter_mut().enumerate() {
            if let Some(cpu) = cpus.iter().next() {
                cpus.remove(cpu);
                return Some((cpu as u16, slot as u16));
            }
        }
        None
    }
}

/// The next work of a replier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work<const W: usize = 1, const SLOTS: usize = 1> {
    /// One request.
    One(Request),
    /// After an overflow of the queue: flush everything, then acknowledge all operations of this set.
    Everything(OpSet<W, SLOTS>),
}

/// The requests for one CPU: up to `N`, from up to `SLOTS` operations of each CPU of a `CpuSet<W>`.
///
/// A queue is plain data. [`Mailbox`](crate::Mailbox) adds a lock, and relies on the first request being on the same cache
/// line as the mailbox's flag.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Queue<const N: usize, const W: usize = 1, const SLOTS: usize = 1> {
    /// The number of requests. It has 32 bits, so that the first request is on the cache line of the mailbox's flag.
    len: u32,
    closed: bool,
    unacknowledged: OpSet<W, SLOTS>,
    /// The requests: the first `len` elements. All other elements are [`Request::NONE`].
    requests: [Request; N],
}

impl<const N: usize, const W: usize, const SLOTS: usize> Queue<N, W, SLOTS> {
    /// Returns an empty queue.
    ///
    /// # Errors
    ///
    /// [`Misuse::NoRoom`] if `N`, `W` or `SLOTS` is zero.
    pub const fn new() -> Result<Self, Misuse> {
        if N == 0 || W == 0 || SLOTS == 0 {
            return Err(Misuse::NoRoom);
        }
        Ok(Self::of_checked_size())
    }

    /// As [`new`](Self::new), for sizes that are known not to be zero.
    pub(crate) const fn of_checked_size() -> Self {
        Self { len: 0, closed: false, unacknowledged: OpSet::empty(), requests: [Request::NONE; N] }
    }

    /// Adds a request. Returns whether the CPU will reply; an offline CPU has nothing to flush, and does not.
    ///
    /// If `N` requests are waiting already, all of them and this one become one flush of everything.
    ///
    /// # Errors
    ///
    /// [`Misuse::NoSuchCpu`] if a `CpuSet<W>` cannot hold the operation's CPU, [`Misuse::NoRoom`] if its slot is not below
    /// `SLOTS`.
    pub fn push(&mut self, request: Request) -> Result<bool, Misuse> {
        let cpu = usize::from(request.op.cpu);
        if cpu >= CpuSet::<W>::CAPACITY {
            return Err(Misuse::NoSuchCpu { cpu });
        }
        if usize::from(request.op.slot) >= SLOTS {
            return Err(Misuse::NoRoom);
        }
        if self.closed {
            return Ok(false);
        }
        if !self.unacknowledged.is_empty() {
            self.unacknowledged.insert(request.op);
        } else if let Some(free) = self.requests.get_mut(self.len as usize) {
            *free = request;
            self.len += 1;
        } else {
            self.overflow_with(request.op);
        }
        Ok(true)
    }

    /// Turns the queue into an overflow: adds an operation without its target, and turns all requests into their operations.
    pub(crate) fn overflow_with(&mut self, op: OpId) {
        self.unacknowledged.insert(op);
        for earlier in self.requests.iter_mut().take(self.len as usize) {
            self.unacknowledged.insert(earlier.op);
            *earlier = Request::NONE;
        }
        self.len = 0;
    }

    /// Takes the next piece of work: the oldest request, or after an overflow everything at once.
    ///
    /// The call moves the requests that follow, at most `N - 1`, by one place.
    pub fn take(&mut self) -> Option<Work<W, SLOTS>> {
        if !self.unacknowledged.is_empty() {
            return Some(Work::Everything(core::mem::replace(&mut self.unacknowledged, OpSet::empty())));
        }
        // Each request moves one place to the front, the last place becomes free, and `moved` is the first request.
        let mut moved = Request::NONE;
        for place in self.requests.iter_mut().take(self.len as usize).rev() {
            core::mem::swap(place, &mut moved);
        }
        self.len = self.len.checked_sub(1)?;
        Some(Work::One(moved))
    }

    /// Tells whether a request of this operation, which has not ended, waits in the queue.
    pub(crate) fn has(&self, op: OpId) -> bool {
        self.unacknowledged.has(op)
            || self.requests.iter().take(self.len as usize).any(|request| request.op == op)
    }

    /// Tells whether the queue has no work.
    pub fn is_empty(&self) -> bool {
        self.len == 0 && self.unacknowledged.is_empty()
    }

    /// Returns the number of waiting requests.
    pub fn len(&self) -> usize {
        self.len as usize + self.unacknowledged.len()
    }

    /// Tells whether the queue has overflowed since it was last empty.
    pub fn has_overflowed(&self) -> bool {
        !self.unacknowledged.is_empty()
    }

    /// Refuses requests from now on, because the CPU goes offline. The CPU must still take the requests in the queue.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Accepts requests again.
    pub fn open(&mut self) {
        self.closed = false;
    }
}
