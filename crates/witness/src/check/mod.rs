//! The checker: replays a log against a machine that keeps whatever its architecture lets it keep.
//!
//! # The machine
//!
//! A CPU that has loaded a root walks its table at any moment and in any number: it may hold each leaf, each link and, on
//! RISC-V, each absence that a walk finds. It forgets them when an invalidation covers them: on RISC-V and x86-64 the CPU's own
//! at once, on AArch64 any at the `dsb` that follows. It walks on through links that it holds, whether or not a table still has
//! them. After another root was loaded it walks the first no more, and keeps what it had.
//!
//! A store is visible to other CPUs' walks at once, or not before the barrier that follows it: the machine takes the worse. On
//! x86-64 it is visible at once. An invalidation does not cover what a walk may read again, because the store that changed it
//! was not visible. Two CPUs that store to the same node are taken to have synchronised, by a lock that the log does not show.
//!
//! # How
//!
//! A CPU may hold a current entry of a table that it walks at any moment, so current entries need no record. When a word changes,
//! every CPU that may have read the old word gets an item with the old entry, until an invalidation covers it. So memory grows with
//! tables and with items that are not invalidated, not with the log; an event costs a few look-ups for each CPU and table that reaches its word, and a link
//! that is cut costs a pass over what is below it.

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

pub use arch::Arch;
pub use drive::{Broken, Kernel, Log, Page, drive};
pub use read::{Place, Recorded, Unread, read};
pub use sample::{Sample, Without};
pub use verdict::{Checked, Pending, Refusal, Rule, Violation};

use crate::event::Event;
use crate::text;

/// The machine, part way through a log.
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

    /// Takes an event in that stands in line `line`; lines count up from 1.
    ///
    /// # Errors
    ///
    /// [`Refusal::Violation`] if the event breaks a rule, and [`Refusal::Impossible`] if it cannot have happened. What is
    /// checked after either means nothing.
    pub fn event(&mut self, line: u64, cpu: usize, event: Event) -> Result<(), Refusal> {
        self.machine.event(line, cpu, event)
    }

    /// Takes the next event in, of code that runs under the checker; events are numbered from 1, as lines are.
    ///
    /// # Errors
    ///
    /// As for [`event`](Self::event).
    pub fn say(&mut self, cpu: usize, event: Event) -> Result<(), Refusal> {
        self.machine.event(self.machine.checked.events + 1, cpu, event)
    }

    /// Returns what has begun and not ended: in a whole log, what it leaves unsaid. None of that breaks a rule.
    ///
    /// Costs a look at each of them.
    #[must_use]
    pub fn pending(&self) -> std::vec::Vec<Pending> {
        self.machine.pending()
    }

    /// Returns what has been checked.
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
