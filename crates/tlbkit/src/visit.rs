//! Which CPUs may be in a walk of an address space's table: CPUs that run it, and visitors.
//!
//! ```text
//!   visitor   joins the CPUs of the address space, fence, walks, leaves
//!   writer    unlinks a node, fence, reads which other CPUs are members   none: the node is free at once
//!                                                                         some: when the shootdown has completed
//! ```
//!
//! The fences ensure one of two things: the writer sees the visitor, or the visitor sees that the node is unlinked. This file is
//! also a module of `tests/loom.rs`, which runs both sides in every interleaving.

use tlbkit_shootdown::SharedSpace;

use crate::sync::{Ordering, fence};

/// A walk by a CPU that does not run the address space, and the sets of CPUs that the CPU has joined for the walk.
pub(crate) struct Visit<'c, const WORDS: usize> {
    cpus: &'c SharedSpace<WORDS>,
    cpu: usize,
    joined: bool,
    entered: bool,
}

impl<'c, const WORDS: usize> Visit<'c, WORDS> {
    /// Records that `cpu` may be in a walk, before the walk begins.
    pub(crate) fn begin(cpus: &'c SharedSpace<WORDS>, cpu: usize) -> Self {
        let joined = cpus.members.insert(cpu);
        // A CPU that has just come online already runs the kernel's own address space, and continues to run it after the visit.
        let entered = cpus.running.insert(cpu);
        fence(Ordering::SeqCst);
        Self { cpus, cpu, joined, entered }
    }
}

impl<const WORDS: usize> Drop for Visit<'_, WORDS> {
    fn drop(&mut self) {
        // The walk is over before other CPUs see the removal.
        if self.entered {
            self.cpus.running.remove(self.cpu);
        }
        if self.joined {
            self.cpus.members.remove(self.cpu);
        }
    }
}

/// Tells whether no CPU except `cpu` may hold a translation or walk the table as it was before the stores of `cpu` so far. A CPU
/// that joins later sees those stores.
#[inline(always)]
pub(crate) fn is_alone<const WORDS: usize>(cpus: &SharedSpace<WORDS>, cpu: usize) -> bool {
    fence(Ordering::SeqCst);
    let mut others = cpus.members.load();
    others.remove(cpu);
    others.is_empty()
}
