//! Which CPUs may be in a walk of an address space's table: CPUs that run it, and visitors.
//!
//! ```text
//!   visitor   joins the CPUs of the address space, fence, walks, leaves
//!   writer    takes a node out, fence, looks which CPUs are left          none: the node is free at once
//!                                                                         some: when the shootdown has completed
//! ```
//!
//! Of the two one sees the other: the writer the visitor, or the visitor that the node is not in the table any more. The
//! file is also a module of `tests/loom.rs`, which plays both in every interleaving.

use tlbkit_shootdown::SharedSpace;

use crate::sync::{Ordering, fence};

/// A walk by a CPU that does not run the address space, and what it has added to the sets of CPUs for that.
pub(crate) struct Visit<'c> {
    cpus: &'c SharedSpace,
    cpu: usize,
    joined: bool,
    entered: bool,
}

impl<'c> Visit<'c> {
    /// Notes that `cpu` may be in a walk, before it begins one.
    pub(crate) fn begin(cpus: &'c SharedSpace, cpu: usize) -> Self {
        let joined = cpus.members.insert(cpu);
        // A CPU that has just come online runs the kernel's own by now, and goes on.
        let entered = cpus.running.insert(cpu);
        fence(Ordering::SeqCst);
        Self { cpus, cpu, joined, entered }
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        // The walk precedes what the others see.
        if self.entered {
            self.cpus.running.remove(self.cpu);
        }
        if self.joined {
            self.cpus.members.remove(self.cpu);
        }
    }
}

/// Tells whether no CPU but `cpu` may hold a translation, or walk the table, after what `cpu` has stored so far. One that joins
/// from now on sees it.
#[inline(always)]
pub(crate) fn is_alone(cpus: &SharedSpace, cpu: usize) -> bool {
    fence(Ordering::SeqCst);
    let mut others = cpus.members.load();
    others.remove(cpu);
    others.is_empty()
}
