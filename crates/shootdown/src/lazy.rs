//! CPUs that do not run an address space: lazy handling (Tzou 3.3.2), and the steps by which a CPU joins, goes idle and goes
//! offline.
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
//! whether that member runs the space. A CPU that switches to the space sets its running bit, *and then* reads its stale mark. So
//! at least one of the two sees the other: the requester sends a request, or the CPU flushes by itself. No CPU waits for a CPU that
//! does not run the space, and a stale mark takes no space in a queue. A requester that flushes remotely marks no member, and
//! flushes the TLBs of all.
//!
//! An idle CPU has switched out. If hardware loads the TLB and the kernel frees page-table nodes, an idle CPU must not walk
//! the table of the space that it has left: the kernel installs another root on it.

use tlbkit_addr::CpuSet;

use crate::{Misuse, Order, Plan, Repair};

/// The three sets of an address space, as plain data. [`SharedSpace`](crate::SharedSpace) has them as atomics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SpaceCpus<const W: usize = 1> {
    /// CPUs that may hold translations.
    pub members: CpuSet<W>,
    /// CPUs that may use translations now.
    pub running: CpuSet<W>,
    /// CPUs that must flush before they use a translation of the space.
    pub stale: CpuSet<W>,
}

/// A change of one CPU's relation to an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SwitchKind {
    /// The CPU begins to run the space.
    In,
    /// The CPU stops running the space, for another space or to idle, and keeps its translations.
    Out,
    /// The CPU stops running the space and flushes its translations, for instance because its TLB has no address-space tags.
    OutAndForget,
    /// The CPU goes offline.
    Offline,
}

/// A step that a [`Switch`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SwitchAction {
    /// Accept requests (again).
    Open,
    /// Become a member of the space. Answer: whether this CPU may have missed a change under way. It may have if it was no member
    /// before; a driver that knows whether an entry of the space is changing may answer that instead, as [`System`](crate::System)
    /// does.
    Join,
    /// Say that this CPU runs the space.
    SetRunning,
    /// 2-phase's gate: wait until no entry of the space is changing, and serve the queue while waiting. Answer: whether one
    /// is changing, or has changed since the last answer.
    IsChanging,
    /// Clear this CPU's stale mark. Answer: whether the mark was set.
    TakeStale,
    /// Flush the address space.
    FlushSpace,
    /// Stop using the space, and wait for this CPU's status writes under way; on hardware whose cache lines
    /// [need the entry](crate::Hardware::lines_need_entry), flush the space.
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
    Leave,
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
            SwitchKind::OutAndForget => &[S::Drain, S::ClearRunning, S::FlushSpace, S::Leave],
            SwitchKind::Offline => &[S::Drain, S::ClearRunning, S::Leave, S::Close, S::Serve, S::FlushAll],
        }
    }

    /// Returns the step that the caller must do now.
    pub fn next(&self) -> SwitchAction {
        self.steps().get(usize::from(self.at)).copied().unwrap_or(SwitchAction::Finished)
    }

    /// Records that the step is done; `yes` is the answer, if the step asks for one.
    ///
    /// # Errors
    ///
    /// [`Misuse::NotAsked`] when all steps are done.
    pub fn did(&mut self, yes: bool) -> Result<(), Misuse> {
        match self.next() {
            SwitchAction::Finished => return Err(Misuse::NotAsked),
            // A CPU that joins while an entry is changing may have loaded the old entry, and may be missing in the target
            // set.
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
