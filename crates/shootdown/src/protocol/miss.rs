//! The TLB miss handler of software-loaded TLBs, as a state machine.

use crate::{Order, Plan, Repair};

/// The place from which a miss handler reads the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The page table.
    Table,
    /// The tentative entry of an operation under way.
    Tentative,
}

/// A step of a miss handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MissAction {
    /// Read the entry's flag. Answer: whether it is set.
    IsChanging,
    /// Read the entry from this source, and keep it.
    Read(Source),
    /// Load the entry that was read into the TLB. The handler ends.
    Load,
}

/// One run of the miss handler.
///
/// ```text
/// Load_TLB_trap_handler()
///     if (changing_PTE_flag)
///         load tentative_PTE into TLB;
///     else
///         load PTE into TLB;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Miss {
    now: MissAction,
    masked: bool,
}

impl Miss {
    /// Returns a handler at its first step. Only the handler of TLB-first reads the flag.
    pub const fn new(plan: &Plan) -> Self {
        let now = match plan.algorithm().order() {
            Order::TlbFirst => MissAction::IsChanging,
            _ => MissAction::Read(Source::Table),
        };
        Self { now, masked: plan.has(Repair::MISS_MASKED) }
    }

    /// Returns the step that the caller must do now.
    pub const fn next(&self) -> MissAction {
        self.now
    }

    /// Records that the step is done; `yes` is the answer, if the step asks for one. Returns whether the handler has ended.
    pub fn did(&mut self, yes: bool) -> bool {
        self.now = match self.now {
            MissAction::IsChanging if yes => MissAction::Read(Source::Tentative),
            MissAction::IsChanging => MissAction::Read(Source::Table),
            MissAction::Read(_) => MissAction::Load,
            MissAction::Load => return true,
        };
        false
    }

    /// Tells whether interprocessor interrupts are masked until the handler has ended: always, except in a test that
    /// switches [`Repair::MISS_MASKED`] off. Without the mask, the CPU could acknowledge a flush between the read and the
    /// load, and then load the old entry.
    pub const fn is_masked(&self) -> bool {
        self.masked
    }
}
