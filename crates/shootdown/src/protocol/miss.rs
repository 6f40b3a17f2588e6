//! The TLB miss handler of software-loaded TLBs.

use crate::{Order, Plan, Repair};

/// Where a miss handler takes the entry from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The page table.
    Table,
    /// The tentative entry of an operation under way.
    Tentative,
}

/// What a miss handler asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MissAction {
    /// Tell whether the entry's flag is set.
    IsChanging,
    /// Read the entry from there, and keep it.
    Read(Source),
    /// Load what was read into the TLB. The handler ends.
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
    /// Returns a handler at its first instruction. Only TLB-first's looks at the flag.
    pub const fn new(plan: &Plan) -> Self {
        let now = match plan.algorithm().order() {
            Order::TlbFirst => MissAction::IsChanging,
            _ => MissAction::Read(Source::Table),
        };
        Self { now, masked: plan.has(Repair::MISS_MASKED) }
    }

    /// Returns what is to be done now.
    pub const fn next(&self) -> MissAction {
        self.now
    }

    /// Goes on; `yes` is the answer if there was a question. Tells whether the handler has ended.
    pub fn did(&mut self, yes: bool) -> bool {
        self.now = match self.now {
            MissAction::IsChanging if yes => MissAction::Read(Source::Tentative),
            MissAction::IsChanging => MissAction::Read(Source::Table),
            MissAction::Read(_) => MissAction::Load,
            MissAction::Load => return true,
        };
        false
    }

    /// Tells whether interprocessor interrupts wait until the handler has ended: always, except in an explorer. A
    /// flush between the read and the load would be acknowledged, and the old entry loaded after it.
    pub const fn is_masked(&self) -> bool {
        self.masked
    }
}
