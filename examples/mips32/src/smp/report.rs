//! How a run went.

use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};

use tlbkit_shootdown::{Plan, Rendezvous};

use super::run::Run;

/// A run's numbers. Displayed, they are a line for `cargo xtask boot`.
#[derive(Debug)]
pub(super) struct Report {
    plan: Plan,
    cpus: usize,
    /// Operations that have completed.
    shootdowns: usize,
    /// Pages that were loaded from, and perhaps stored to.
    touches: usize,
    /// Touches that found the page unmapped, or read-only.
    faults: usize,
    /// Faults that the table no longer stood for.
    spurious: usize,
    /// Nodes that were retired, and used again after a shootdown.
    nodes: usize,
    /// Loads of somebody else's word, or of an older one.
    stale_reads: usize,
    /// Stores to somebody else's frame, or to one that was read-only.
    stale_writes: usize,
    /// Anything else that must not be.
    other: usize,
}

impl Report {
    /// Returns the numbers of a run.
    pub(super) fn of(run: &Run) -> Self {
        let of = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        let counts = &run.counts;
        Self {
            plan: run.plan,
            cpus: run.cpus,
            shootdowns: of(&counts.completed),
            touches: of(&counts.touches),
            faults: of(&counts.faults),
            spurious: of(&counts.spurious),
            nodes: of(&counts.nodes),
            stale_reads: of(&counts.stale_reads),
            stale_writes: of(&counts.stale_writes) + of(&run.arena.strays),
            other: of(&counts.wrong),
        }
    }

    /// Adds the nodes that are left when the table has been taken apart.
    pub(super) fn leaked(&mut self, nodes: usize) {
        self.other += nodes;
    }

    /// Returns how many things went wrong.
    pub(super) fn failures(&self) -> u32 {
        (self.stale_reads + self.stale_writes + self.other) as u32
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let serving = if self.plan.rendezvous() == Rendezvous::Serve { "/serving" } else { "" };
        let algorithm = self.plan.algorithm();
        let Self { cpus, shootdowns, touches, faults, spurious, nodes, .. } = self;
        let Self { stale_reads, stale_writes, other, .. } = self;
        write!(
            f,
            "shootdown protocol={algorithm}{serving} cpus={cpus} shootdowns={shootdowns} touches={touches} "
        )?;
        write!(f, "faults={faults} spurious={spurious} nodes={nodes} stale_reads={stale_reads} ")?;
        write!(f, "stale_writes={stale_writes} other={other} failures={}", self.failures())
    }
}
