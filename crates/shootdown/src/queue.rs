//! A CPU's request queue: fixed size, nothing lost.
//!
//! ```text
//!   requests   [ op, what | op, what | ... ]    up to N, in order of arrival
//!   overflow   more than N requests become one flush of everything, and
//!   owed       has one bit per operation that still waits for its acknowledgement
//! ```
//!
//! Overflow loses precision, never a request. The bits cannot overflow: there is one for each operation in flight.

use tlbkit_addr::{Asid, CpuSet, Flush, FlushScope, Pages};

use crate::{Misuse, OpId};

/// What to flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Nothing: the CPU is only to leave the walk that it is in.
    Nothing,
    /// Some pages of an address space.
    Pages(Asid, Pages),
    /// What the operation's own [`Flush`] asks for, which is in shared memory as long as the operation waits for this CPU:
    /// separate pages, or links.
    Listed(Asid),
    /// A whole address space.
    Space(Asid),
    /// Everything.
    All,
}

impl Target {
    /// Returns what `flush` asks for, as a request says it.
    pub fn of(space: Asid, flush: &Flush) -> Self {
        match flush.ranges() {
            [only] if !flush.links() => Self::Pages(space, *only),
            [] if !flush.is_all() => Self::Nothing,
            [] => Self::Space(space),
            // Separate ones, or one whose links a flush by address may leave.
            _ => Self::Listed(space),
        }
    }

    /// Calls `f` with what is to be flushed, of one address space or of all; not if that is nothing. A list whose
    /// operation is not at hand is the whole space.
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

    /// Returns the smallest target that covers both and can be said in one request.
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

    /// Tells whether the target covers `page` of `space`, or may.
    pub fn covers(&self, space: Asid, page: tlbkit_addr::Vpn) -> bool {
        match self {
            Self::Nothing => false,
            Self::Pages(of, pages) => *of == space && pages.contains(page),
            Self::Listed(of) | Self::Space(of) => *of == space,
            Self::All => true,
        }
    }
}

/// What an operation asks of a replier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Duty {
    /// Flush, then acknowledge.
    #[default]
    Flush,
    /// Flush, then acknowledge; the CPU that gives the last acknowledgement runs the operation to its end.
    FlushAndFinish,
    /// Stop until the entry has changed, then flush.
    Stop,
}

/// One request: what to flush, and for which operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The operation that wants to know.
    pub op: OpId,
    /// What to flush.
    pub what: Target,
    /// What else is asked.
    pub duty: Duty,
}

impl Request {
    /// The value of an unused place.
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

    /// Tells whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(CpuSet::is_empty)
    }

    /// Returns the number of operations.
    pub fn len(&self) -> usize {
        self.0.iter().map(CpuSet::len).sum()
    }

    /// Takes one operation out: its CPU and slot. Its generation is the one that the slot is at: an operation does
    /// not end before it has been acknowledged.
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

/// What a replier has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work<const W: usize = 1, const SLOTS: usize = 1> {
    /// One request.
    One(Request),
    /// The queue overflowed: flush everything, then acknowledge all of these.
    Everything(OpSet<W, SLOTS>),
}

/// The requests for one CPU: up to `N`, from up to `SLOTS` operations of each CPU of a `CpuSet<W>`.
///
/// Plain data: [`Mailbox`](crate::Mailbox) puts a lock around it, and needs the first request on the cache line of the flag that
/// a request is there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Queue<const N: usize, const W: usize = 1, const SLOTS: usize = 1> {
    /// 32 bits, so that the first request is on the cache line of the mailbox's flag.
    len: u32,
    closed: bool,
    owed: OpSet<W, SLOTS>,
    /// The first `len` of them; the others are all [`Request::NONE`].
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
        Self { len: 0, closed: false, owed: OpSet::empty(), requests: [Request::NONE; N] }
    }

    /// Adds a request. Returns whether the CPU will reply: an offline CPU has nothing to flush, and does not.
    ///
    /// If `N` requests are waiting already, all of them and this one become one flush of everything.
    ///
    /// # Errors
    ///
    /// [`Misuse::NoSuchCpu`] if the operation's CPU or slot is beyond what the queue was made for.
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
        if !self.owed.is_empty() {
            self.owed.insert(request.op);
        } else if let Some(free) = self.requests.get_mut(self.len as usize) {
            *free = request;
            self.len += 1;
        } else {
            self.owe(request.op);
        }
        Ok(true)
    }

    /// Adds an operation without its request: everything is to be flushed.
    pub(crate) fn owe(&mut self, op: OpId) {
        self.owed.insert(op);
        for earlier in self.requests.iter_mut().take(self.len as usize) {
            self.owed.insert(earlier.op);
            *earlier = Request::NONE;
        }
        self.len = 0;
    }

    /// Takes the next piece of work: the oldest request, or after an overflow everything at once.
    ///
    /// Costs a move of the requests behind it, of which there are at most `N-1`.
    pub fn take(&mut self) -> Option<Work<W, SLOTS>> {
        if !self.owed.is_empty() {
            return Some(Work::Everything(core::mem::replace(&mut self.owed, OpSet::empty())));
        }
        // Each moves up one place, the last one's becomes free, and the first is left over.
        let mut moved = Request::NONE;
        for place in self.requests.iter_mut().take(self.len as usize).rev() {
            core::mem::swap(place, &mut moved);
        }
        self.len = self.len.checked_sub(1)?;
        Some(Work::One(moved))
    }

    /// Tells whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.len == 0 && self.owed.is_empty()
    }

    /// Returns the number of requests that wait.
    pub fn len(&self) -> usize {
        self.len as usize + self.owed.len()
    }

    /// Tells whether the queue has overflowed since it was last empty.
    pub fn has_overflowed(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Accepts no more requests: the CPU goes offline. What is in the queue is still to be taken.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Accepts requests again.
    pub fn open(&mut self) {
        self.closed = false;
    }
}
