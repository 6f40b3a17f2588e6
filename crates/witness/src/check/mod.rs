//! The checker: replays a log against a machine that keeps whatever its architecture lets it keep.
//!
//! # The machine
//!
//! A CPU that has loaded a root may walk the root's table at any moment and any number of times. It may hold each leaf, each link
//! and, on RISC-V, each absence that a walk finds, until an invalidation covers it: on RISC-V and x86-64 an invalidation by this CPU,
//! which takes effect at once; on AArch64 an invalidation by any CPU, which takes effect at that CPU's next `dsb`. A CPU also walks
//! through links that it holds, whether or not a table still has them. When a CPU has loaded another root, it no longer walks the
//! first table, and keeps the entries that it has read there.
//!
//! A store may be visible to other CPUs' walks at once, or only after the next barrier: the checker assumes the worse case. On
//! x86-64 a store is visible at once. An invalidation does not cover an entry that a walk may read again, because the store that
//! changed the entry was not visible. The checker assumes that two CPUs that store to the same node have synchronised by a lock,
//! which the log does not show.
//!
//! # How
//!
//! A CPU may hold a current entry of a table that it walks at any moment, so current entries need no record. When a word changes,
//! every CPU that may have read the old word gets an **item** with the old entry, until an invalidation covers it. So memory grows
//! with the tables and with the items that are not invalidated, not with the log. An event costs a few look-ups for each CPU and
//! table that reaches its word. A link that is removed costs a pass over the nodes below it.
//!
//! | term | here |
//! |-|-|
//! | number | the number of an address space: an ASID or a PCID |
//! | line | the place of an event in the log; the lines are the checker's clock |
//! | entry | what a word says to a walker: a leaf, a link, or an absence |
//! | item | an old entry that a CPU may still hold |
//! | place | where a CPU holds an item: number, level and address |
//! | session | a CPU, a number and a table that the CPU has walked under this number |
//! | holder | a CPU that may hold the entries of a node, by a root that it has loaded or by a link that it holds |

mod arch;
mod drive;
mod exclude;
mod fence;
mod free;
mod fresh;
mod hash;
mod held;
mod holders;
mod machine;
mod memory;
mod pair;
mod promise;
mod read;
mod sample;
mod session;
mod store;
mod story;
mod switch;
mod verdict;
mod walk;

pub use arch::Arch;
pub use drive::{Broken, Kernel, Log, Page, drive};
pub use read::{Place, Recorded, Unread, read};
pub use sample::{Sample, Without};
pub use verdict::{Checked, Pending, Refusal, Rule, Violation};

use crate::event::Event;
use crate::text;

/// The checker's state after a part of a log.
#[derive(Debug)]
pub struct Checker {
    machine: machine::Machine,
}

impl Checker {
    /// Returns a machine whose CPUs have loaded no root, and whose memory holds no table.
    #[must_use]
    pub fn new(arch: Arch) -> Self {
        Self { machine: machine::Machine::new(arch) }
    }

    /// Checks the event of line `line`. Lines are numbered from 1 in ascending order.
    ///
    /// # Errors
    ///
    /// [`Refusal::Violation`] if the event breaks a rule, and [`Refusal::Impossible`] if it cannot have happened. After an error the
    /// results of further calls have no meaning.
    pub fn event(&mut self, line: u64, cpu: usize, event: Event) -> Result<(), Refusal> {
        self.machine.event(line, cpu, event)
    }

    /// Checks the next event of code that runs under the checker. Events are numbered from 1, as lines are.
    ///
    /// # Errors
    ///
    /// As for [`event`](Self::event).
    pub fn say(&mut self, cpu: usize, event: Event) -> Result<(), Refusal> {
        self.machine.event(self.machine.checked.events + 1, cpu, event)
    }

    /// Returns the actions that have begun and not ended, none of which breaks a rule: after the last event, those that the log leaves
    /// open.
    ///
    /// Costs a visit of each.
    #[must_use]
    pub fn pending(&self) -> std::vec::Vec<Pending> {
        self.machine.pending()
    }

    /// Returns the counts of what has been checked.
    #[must_use]
    pub fn checked(&self) -> Checked {
        self.machine.checked
    }
}

/// Checks a log in the text form.
///
/// # Errors
///
/// The first event that breaks a rule, or the first line that is no event or cannot have happened.
pub fn check(arch: Arch, log: &str) -> Result<Checked, Refusal> {
    let mut checker = Checker::new(arch);
    for (line, text) in (1..).zip(log.lines()) {
        match text::parse(text) {
            Ok(Some((cpu, event))) => checker.event(line, cpu, event)?,
            Ok(None) => {}
            Err(why) => return Err(Refusal::Malformed { line, why }),
        }
    }
    Ok(checker.checked())
}
