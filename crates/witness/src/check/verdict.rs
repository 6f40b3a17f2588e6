//! The result of a check.

use core::fmt;
use std::string::{String, ToString};
use std::vec::Vec;

use crate::event::CPUS;
use crate::text::Malformed;

/// The counts of what was checked in a log that holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checked {
    /// Events.
    pub events: u64,
    /// Stores to words of tables.
    pub writes: u64,
    /// Invalidations.
    pub fences: u64,
    /// Nodes and frames that were given back, none of which a CPU could reach.
    pub freed: u64,
    /// Changes that were promised, and were in force.
    pub promised: u64,
    /// Promises of changes for which no word of the range changed in the named table between `lower` and `done`. The change was made before,
    /// or in another table.
    pub unchanged: u64,
    /// Accesses that could have only the result that the log gives.
    pub accesses: u64,
    /// Whether the log's last event is [`Event::Full`](crate::event::Event::Full): the log does not have the events after it.
    pub full: bool,
    /// Whether the log's last event is [`Event::Gap`](crate::event::Event::Gap): an event is missing, and the log does not have the events
    /// after it. Such a log does not hold, even if it breaks no rule before.
    pub gap: bool,
}

impl Checked {
    /// Returns the reason why a log does not hold although it breaks no rule: it has no event, or a gap.
    #[must_use]
    pub fn incomplete(&self) -> Option<&'static str> {
        if self.gap {
            Some("an event is missing: a CPU had begun to record it, and what came after is not checked")
        } else if self.events == 0 {
            Some("nothing was checked: the log has no event")
        } else {
            None
        }
    }
}

/// An action that has begun and not ended when a log ends. A kernel that was stopped at any moment leaves such actions; a kernel that
/// has shut down in order should leave none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pending {
    /// A change began and was not promised.
    Change {
        /// Its name.
        id: u64,
        /// Where it began.
        line: u64,
    },
    /// An interrupt was sent and not taken.
    Interrupt {
        /// Its name.
        id: u64,
        /// The CPUs that have not taken it, one bit each.
        cpus: u64,
        /// Where it was sent.
        line: u64,
    },
    /// Invalidations were executed, and no barrier that completes them.
    Invalidation {
        /// The CPU that executed them.
        cpu: usize,
        /// How many there are.
        count: usize,
        /// The first of them.
        line: u64,
    },
    /// A root was loaded under a number that has to be invalidated before the CPU's next access.
    Number {
        /// The CPU that loaded it.
        cpu: usize,
        /// The number.
        asid: u16,
        /// Where it was loaded.
        line: u64,
    },
    /// RISC-V: a root was loaded, and no fence since then makes the stores to its table visible to the CPU's walks.
    Root {
        /// The CPU that loaded it.
        cpu: usize,
        /// The root node.
        root: u64,
        /// Where it was loaded.
        line: u64,
    },
    /// A walk by software began and did not end.
    Walk {
        /// The CPU that walks.
        cpu: usize,
        /// The root node of its table.
        root: u64,
        /// Where it began.
        line: u64,
    },
    /// AArch64: a CPU ran its halves under two numbers, each from the half's own register. No processor does that, so the log has to say
    /// `uses asid`.
    Halves {
        /// The CPU.
        cpu: usize,
        /// Where it loaded the second of them.
        line: u64,
    },
}

impl Pending {
    /// Returns the number of the line where it began.
    #[must_use]
    pub fn line(&self) -> u64 {
        match *self {
            Self::Change { line, .. }
            | Self::Interrupt { line, .. }
            | Self::Invalidation { line, .. }
            | Self::Number { line, .. }
            | Self::Root { line, .. }
            | Self::Walk { line, .. }
            | Self::Halves { line, .. } => line,
        }
    }
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: ", self.line())?;
        match *self {
            Self::Change { id, .. } => write!(f, "change {id} is never promised: no `done {id}` follows"),
            Self::Interrupt { id, cpus, .. } => {
                write!(f, "interrupt {id} is never taken by")?;
                let mut cpus = (0..CPUS).filter(|cpu| cpus >> cpu & 1 != 0);
                cpus.try_for_each(|cpu| write!(f, " CPU {cpu}"))
            }
            Self::Invalidation { cpu, count, .. } => {
                write!(f, "no barrier of CPU {cpu} completes this invalidation")?;
                if count > 1 { write!(f, ", nor {} more", count - 1) } else { Ok(()) }
            }
            Self::Walk { cpu, root, .. } => {
                write!(
                    f,
                    "CPU {cpu} began to walk the table at {root:#x} by software, and the log has no end of that"
                )
            }
            Self::Number { cpu, asid, .. } => {
                write!(
                    f,
                    "CPU {cpu} has to invalidate ASID {asid} before it is used, and the log ends before that"
                )
            }
            Self::Root { cpu, root, .. } => write!(
                f,
                "CPU {cpu} has loaded the root {root:#x}, and may read its table as it was before: no fence follows"
            ),
            Self::Halves { cpu, .. } => write!(
                f,
                "CPU {cpu} runs its halves under two ASIDs, but one register has that of both: say `uses asid ttbr0`, or `ttbr1`"
            ),
        }
    }
}

/// The rules that an event can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// Memory for data was given back or taken while a CPU may reach it.
    FrameReached,
    /// Memory of a node was given back or used for something else while a walk may reach it.
    NodeReached,
    /// A change was promised while a CPU may use what it took away.
    RightKept,
    /// A new entry may match beside an old one, where the architecture forbids that.
    TwoMatch,
    /// A valid entry was replaced by another without an invalid entry in between, and the architecture requires break before make.
    BreakLeftOut,
    /// A dirty bit that hardware sets may be lost.
    DirtyLost,
    /// An ASID is used for another table while a CPU may hold entries of the first table under it.
    AsidReused,
    /// A walk may read a word of a node before it was written.
    Unwritten,
    /// An access may have another result than the log gives.
    AccessDiffers,
}

impl Rule {
    /// Returns the rule's name in the JSON output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FrameReached => "frame-reached",
            Self::NodeReached => "node-reached",
            Self::RightKept => "right-kept",
            Self::TwoMatch => "two-match",
            Self::BreakLeftOut => "break-left-out",
            Self::DirtyLost => "dirty-lost",
            Self::AsidReused => "asid-reused",
            Self::Unwritten => "unwritten",
            Self::AccessDiffers => "access-differs",
        }
    }
}

/// A rule that was broken, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub(super) rule: Rule,
    pub(super) line: u64,
    pub(super) cpu: Option<usize>,
    pub(super) story: Vec<String>,
}

impl Violation {
    /// Returns the rule.
    #[must_use]
    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// Returns the number of the line whose event breaks it.
    #[must_use]
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Returns the CPU that could do harm.
    #[must_use]
    pub fn cpu(&self) -> Option<usize> {
        self.cpu
    }

    /// Returns sentences that explain the violation: what was promised, which entry the CPU may hold, since which line, and why no
    /// invalidation has removed it.
    #[must_use]
    pub fn story(&self) -> &[String] {
        &self.story
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.story.join("\n"))
    }
}

/// Why an event was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// A rule is broken.
    Violation(Violation),
    /// The event cannot have happened, after those before it.
    Impossible {
        /// The number of its line.
        line: u64,
        /// The reason.
        why: &'static str,
    },
    /// The line is no event.
    Malformed {
        /// Its number.
        line: u64,
        /// What is wrong with it.
        why: Malformed,
    },
}

impl Refusal {
    /// Returns the number of the line that is refused.
    #[must_use]
    pub fn line(&self) -> u64 {
        match self {
            Self::Violation(violation) => violation.line,
            Self::Impossible { line, .. } | Self::Malformed { line, .. } => *line,
        }
    }

    /// Returns the reason without the line's number; for a violation, the sentences that explain it.
    #[must_use]
    pub fn why(&self) -> String {
        match self {
            Self::Violation(violation) => violation.to_string(),
            Self::Impossible { why, .. } => (*why).into(),
            Self::Malformed { why, .. } => why.to_string(),
        }
    }

    /// Returns the violation, if it is one.
    #[must_use]
    pub fn violation(&self) -> Option<&Violation> {
        if let Self::Violation(violation) = self { Some(violation) } else { None }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Violation(violation) => violation.fmt(f),
            Self::Impossible { line, why } => write!(f, "line {line}: {why}"),
            Self::Malformed { line, why } => write!(f, "line {line}: {why}"),
        }
    }
}

impl core::error::Error for Refusal {}
