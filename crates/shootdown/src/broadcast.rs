//! The end of a change on a machine that broadcasts its flushes ([`Hardware::broadcasts`]): no CPU is interrupted.
//!
//! A shootdown's reply to an interrupt says two things at once: the translations are gone from that CPU's TLB, and the CPU is in no walk
//! by software, because such walks mask interrupts. Here each has an answer of its own:
//!
//! ```text
//! Initiator, after PTE = new_PTE                          Walker, with interrupts masked
//!     flush hot_TLBes on every processor;                     word = epoch | kind;
//!     wait until that is done;               (barrier)        walk the table;
//!     read which processors run the space;                    use what was found;           (kind Use)
//!     while (a word says Use)                                 word = outside;
//!         wait;
//!     release the frames;
//!     if (no word says Walk)
//!         give the nodes back;
//!     else
//!         keep the nodes, with the epoch;    (nobody waits)
//! ```
//!
//! | what may still be in use | until | how the initiator knows |
//! |-|-|-|
//! | a translation in a TLB, a walk by hardware, an access that one of them has translated | the barrier | [`AllFlushed`](BroadcastAction::AllFlushed) |
//! | a leaf that a section of kind [`Use`](SectionKind::Use) has found | the section ends | it waits |
//! | a node that a section of either kind has found | the section ends | it keeps the nodes; it waits only if there is no room |

use tlbkit_addr::CpuSet;

use crate::{Algorithm, Hardware, Loader, LowRights, Misuse, Plan, Repair, SectionKind, Unsuitable};

/// An action that the initiator asks its driver to do. The change of the table and a fence come before the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BroadcastAction<const W: usize = 1> {
    /// Execute the flush that reaches the TLBs of all CPUs.
    Flush,
    /// Read whether the flush is done on every CPU, with the walks by hardware and the accesses under way that used what it names: a
    /// barrier waits for that. Answer: [`BroadcastSeen::Yes`] or [`BroadcastSeen::No`].
    AllFlushed,
    /// Read which other CPUs run the address space. Answer: [`BroadcastSeen::Cpus`].
    ReadRunning,
    /// Load the words of these CPUs. Answer: [`BroadcastSeen::Cpus`], those of them that
    /// [may be inside](crate::SectionWord::may_be_inside). If `since` is there, the initiator waits: it asks again until there are none.
    Look {
        /// The CPUs.
        cpus: CpuSet<W>,
        /// The kind of the sections.
        kind: SectionKind,
        /// The epoch in which, or before which, they have begun.
        since: Option<usize>,
    },
    /// Begin an epoch. Answer: [`BroadcastSeen::Epoch`], the epoch before.
    BeginEpoch,
    /// Release the frames: no CPU can reach them any more.
    Release,
    /// Keep the nodes until [no CPU may be inside](crate::SectionWord::may_be_inside) a walk that began in the epoch `since` or before. Answer:
    /// [`BroadcastSeen::Yes`], or [`BroadcastSeen::No`] if there is no room.
    Keep {
        /// The epoch.
        since: usize,
    },
    /// Give the nodes back: no CPU is in one of them.
    Reclaim,
    /// The change is over.
    Done,
}

/// The answer to a [`BroadcastAction`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BroadcastSeen<const W: usize = 1> {
    /// The action is done.
    Did,
    /// Yes.
    Yes,
    /// No.
    No,
    /// The CPUs that were asked for.
    Cpus(CpuSet<W>),
    /// The epoch that was asked for.
    Epoch(usize),
}

/// The initiator of a broadcast, as a state machine. A caller does the action that [`next`](Self::next) returns, and gives the answer to
/// [`did`](Self::did), until the action is [`Done`](BroadcastAction::Done).
///
/// ```
/// use tlbkit_shootdown::{
///     Algorithm, Broadcast, BroadcastAction, BroadcastSeen, Hardware, LowRights, Plan, SectionKind, SectionWord,
/// };
///
/// Broadcast::suits(&Hardware::AARCH64)?;
/// let plan = Plan::new(Algorithm::PteFirst, &Hardware::AARCH64, LowRights::NeverWriteBack)?;
/// // CPU 2 walks the table, and the change has taken a node out of it.
/// let word = SectionWord::begun(0, SectionKind::Walk);
/// let mut change = Broadcast::<1>::new(&plan, true);
/// let mut kept = None;
/// loop {
///     let seen = match change.next() {
///         BroadcastAction::Done => break,
///         BroadcastAction::AllFlushed => BroadcastSeen::Yes,              // tlbi ...is, then dsb ish
///         BroadcastAction::ReadRunning => BroadcastSeen::Cpus([2].into_iter().collect()),
///         BroadcastAction::Look { cpus, kind, since } => {
///             BroadcastSeen::Cpus(cpus.iter().filter(|_| word.may_be_inside(kind, since)).collect())
///         }
///         BroadcastAction::BeginEpoch => BroadcastSeen::Epoch(0),
///         BroadcastAction::Keep { since } => {
///             kept = Some(since);
///             BroadcastSeen::Yes
///         }
///         _ => BroadcastSeen::Did,
///     };
///     change.did(seen)?;
/// }
/// let since = kept.expect("CPU 2 may be in the node");
/// assert!(word.may_be_inside(SectionKind::Walk, Some(since)));
/// assert!(!SectionWord::begun(SectionWord::STEP, SectionKind::Walk).may_be_inside(SectionKind::Walk, Some(since)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Broadcast<const W: usize = 1> {
    now: BroadcastAction<W>,
    /// The other CPUs that run the address space.
    others: CpuSet<W>,
    /// The CPUs that the last look has found inside.
    inside: CpuSet<W>,
    /// Whether the change has taken nodes out of the table.
    nodes: bool,
    /// Whether it waits for walks, and does nothing else.
    walks_alone: bool,
    /// The kind of the sections that were looked for last.
    kind: SectionKind,
    plan: Plan,
}

impl Broadcast {
    /// Checks whether a change may end with a broadcast where one reaches all TLBs of this hardware: entries are changed first
    /// ([`Algorithm::PteFirst`]), and a walk by software is in a section, but not the miss handler of a TLB that software loads.
    ///
    /// # Errors
    ///
    /// [`Unsuitable::LoadedBySoftware`]; the reasons for which PTE-first does not suit the hardware.
    pub const fn suits(hardware: &Hardware) -> Result<(), Unsuitable> {
        if matches!(hardware.loader, Loader::Software) {
            return Err(Unsuitable::LoadedBySoftware);
        }
        Algorithm::PteFirst.suits(hardware, LowRights::NeverWriteBack)
    }
}

impl<const W: usize> Broadcast<W> {
    /// Returns the initiator of a change that has been made, before its flush. `nodes` tells whether the change has taken nodes out of the
    /// table.
    #[inline(always)]
    pub const fn new(plan: &Plan, nodes: bool) -> Self {
        Self::at(BroadcastAction::Flush, plan, nodes, false)
    }

    /// Returns an initiator that waits until all walks by software have ended that began before its change so far, and does no more.
    #[inline(always)]
    pub const fn walks(plan: &Plan) -> Self {
        Self::at(BroadcastAction::ReadRunning, plan, false, true)
    }

    #[inline(always)]
    const fn at(now: BroadcastAction<W>, plan: &Plan, nodes: bool, walks_alone: bool) -> Self {
        Self {
            now,
            others: CpuSet::empty(),
            inside: CpuSet::empty(),
            nodes,
            walks_alone,
            kind: SectionKind::Walk,
            plan: *plan,
        }
    }

    /// Returns the action that the caller must do now.
    #[inline(always)]
    pub const fn next(&self) -> BroadcastAction<W> {
        self.now
    }

    /// Takes the answer to [`next`](Self::next).
    ///
    /// # Errors
    ///
    /// [`Misuse::NotAsked`] if the answer does not fit the action, or the change is over.
    #[inline]
    pub fn did(&mut self, seen: BroadcastSeen<W>) -> Result<(), Misuse> {
        use BroadcastAction as A;
        use BroadcastSeen as S;
        use SectionKind::{Use, Walk};
        self.now = match (self.now, seen) {
            (A::Flush, S::Did) if self.plan.has(Repair::BARRIER) => A::AllFlushed,
            (A::Flush, S::Did) | (A::AllFlushed, S::Yes) => A::ReadRunning,
            (A::AllFlushed, S::No) => A::AllFlushed,
            (A::ReadRunning, S::Cpus(others)) => {
                self.others = others;
                match () {
                    () if self.walks_alone => self.look(Walk),
                    () if self.plan.has(Repair::USES_END) => self.look(Use),
                    () => A::Release,
                }
            }
            (A::Look { kind, .. }, S::Cpus(cpus)) if cpus.is_empty() => match kind {
                _ if self.walks_alone => A::Done,
                Use => A::Release,
                Walk => A::Reclaim,
            },
            (A::Look { since: None, .. }, S::Cpus(cpus)) => {
                self.inside = cpus;
                A::BeginEpoch
            }
            (A::Look { kind, since, .. }, S::Cpus(cpus)) => A::Look { cpus, kind, since },
            (A::BeginEpoch, S::Epoch(since)) if self.nodes && matches!(self.kind, Walk) => A::Keep { since },
            (A::BeginEpoch, S::Epoch(since)) => self.wait(since),
            (A::Release, S::Did) if self.nodes && self.plan.has(Repair::WALKS_END) => self.look(Walk),
            (A::Release, S::Did) => A::Reclaim,
            (A::Keep { .. }, S::Yes) | (A::Reclaim, S::Did) => A::Done,
            (A::Keep { since }, S::No) => self.wait(since),
            _ => return Err(Misuse::NotAsked),
        };
        Ok(())
    }

    /// Returns the first look at the words of the others.
    const fn look(&mut self, kind: SectionKind) -> BroadcastAction<W> {
        self.kind = kind;
        BroadcastAction::Look { cpus: self.others, kind, since: None }
    }

    /// Returns a look at the words of the CPUs that were inside.
    const fn wait(&self, since: usize) -> BroadcastAction<W> {
        BroadcastAction::Look { cpus: self.inside, kind: self.kind, since: Some(since) }
    }
}
