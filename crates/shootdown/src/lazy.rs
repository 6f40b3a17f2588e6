//! CPUs that do not run an address space: lazy handling (Tzou 3.3.2), joining, going idle, going offline.
//!
//! An address space has three sets of CPUs:
//!
//! ```text
//!   members   may hold its translations
//!   running   may use them now
//!   stale     must flush before it uses them again
//! ```
//!
//! A requester interrupts the members that run the address space. It marks each other member as stale, *and then* reads again
//! whether that member runs the space. A CPU that switches to the space sets its running bit, *and then* reads its stale mark.
//! So at least one of the two sees the other: the requester sends a request, or the CPU flushes by itself. No CPU waits for a CPU
//! that does not run the space, and a stale mark takes no room in a queue.
//!
//! An idle CPU is one that has switched out. Where hardware loads the TLB and page-table nodes are freed, an idle CPU must not
//! walk the table of the space that it has left: switch it to a root of its own.

use tlbkit_addr::CpuSet;

use crate::{Misuse, Order, Plan, Repair};

/// The three sets of an address space, as plain data. [`SharedSpace`](crate::SharedSpace) has them as atomics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SpaceCpus<const W: usize = 1> {
    /// CPUs that may hold translations.
    pub members: CpuSet<W>,
    /// CPUs that may use translations now.
    pub running: CpuSet<W>,
    /// CPUs that must flush before they use one.
    pub stale: CpuSet<W>,
}

/// What a CPU does to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SwitchKind {
    /// It begins to run the space.
    In,
    /// It stops running the space (for another one, or to idle), and keeps its translations.
    Out,
    /// It stops running the space and keeps nothing: its TLB has no address-space tags.
    OutAndForget,
    /// It goes offline.
    Offline,
}

/// What a [`Switch`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SwitchAction {
    /// Accept requests (again).
    Open,
    /// Become a member, and tell whether this CPU was none.
    Join,
    /// Say that this CPU runs the space.
    SetRunning,
    /// 2-phase's gate: tell whether an entry of the space is changing; serve the queue until it is not.
    IsChanging,
    /// Tell whether this CPU is marked stale, and clear the mark.
    TakeStale,
    /// Flush the address space.
    FlushSpace,
    /// Stop using the space, and wait for status writes under way.
    Drain,
    /// Say that this CPU no longer runs the space.
    ClearRunning,
    /// Accept no more requests.
    Close,
    /// Run the replier until it is idle.
    Serve,
    /// Flush everything.
    FlushAll,
    /// Stop being a member.
    Part,
    /// All steps are done.
    Finished,
}

/// The steps of a [`SwitchKind`], in the only order that misses no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Switch {
    change: SwitchKind,
    gate: bool,
    at: u8,
    stale: bool,
}

impl Switch {
    /// Returns the steps of `change` under `plan`.
    pub const fn new(plan: &Plan, change: SwitchKind) -> Self {
        let gate = matches!(plan.algorithm().order(), Order::TwoPhase) && plan.has(Repair::ALL_LOADERS);
        Self { change, gate, at: 0, stale: false }
    }

    const fn steps(&self) -> &'static [SwitchAction] {
        use SwitchAction as S;
        match self.change {
            SwitchKind::In => &[S::Open, S::Join, S::SetRunning, S::IsChanging, S::TakeStale, S::FlushSpace],
            SwitchKind::Out => &[S::Drain, S::ClearRunning],
            SwitchKind::OutAndForget => &[S::Drain, S::ClearRunning, S::FlushSpace, S::Part],
            SwitchKind::Offline => &[S::Drain, S::ClearRunning, S::Part, S::Close, S::Serve, S::FlushAll],
        }
    }

    /// Returns what is to be done now.
    pub fn next(&self) -> SwitchAction {
        self.steps().get(usize::from(self.at)).copied().unwrap_or(SwitchAction::Finished)
    }

    /// Goes on; `yes` is the answer if there was a question.
    ///
    /// # Errors
    ///
    /// [`Misuse::NotAsked`] when it has finished.
    pub fn did(&mut self, yes: bool) -> Result<(), Misuse> {
        match self.next() {
            SwitchAction::Finished => return Err(Misuse::NotAsked),
            // A CPU that joins while an entry changes may have loaded the old one, and is in no target set.
            SwitchAction::Join => self.stale = self.gate && yes,
            SwitchAction::IsChanging if yes => {
                self.stale = true;
                return Ok(());
            }
            SwitchAction::TakeStale => self.stale |= yes,
            _ => {}
        }
        self.at += 1;
        let (gate, change, stale) = (self.gate, self.change, self.stale);
        let idle = |next| match next {
            SwitchAction::IsChanging => !gate,
            SwitchAction::FlushSpace => change == SwitchKind::In && !stale,
            _ => false,
        };
        while idle(self.next_at(self.at)) {
            self.at += 1;
        }
        Ok(())
    }

    fn next_at(&self, at: u8) -> SwitchAction {
        self.steps().get(usize::from(at)).copied().unwrap_or(SwitchAction::Finished)
    }
}
