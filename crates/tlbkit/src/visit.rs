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
//!
//! **Without the writer's fence.** A writer that changes one entry by a sequentially consistent exchange needs no fence
//! ([`Stale::in_order`](tlbkit_pagetable::mpt::Stale::in_order)). That exchange, the writer's load of the members, the visitor's exchange
//! that joins them and the visitor's fence are in the single total order of all sequentially consistent operations. The writer's
//! exchange is before its load, and the joining before the visitor's fence. If the load does not see the joining, it is before it in
//! that order; so the writer's exchange is before the visitor's fence, and a load after that fence sees it. On x86-64 every exchange is
//! a full barrier, which is what the fence would be.

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
/// that joins later sees those stores. `in_order` states that the only one to be seen is a sequentially consistent exchange.
#[inline(always)]
pub(crate) fn is_alone<const WORDS: usize>(cpus: &SharedSpace<WORDS>, cpu: usize, in_order: bool) -> bool {
    // Loom takes an access that is sequentially consistent for an acquire and a release.
    if !in_order || cfg!(tlbkit_loom) {
        fence(Ordering::SeqCst);
    }
    let mut others = cpus.members.load();
    others.remove(cpu);
    others.is_empty()
}

#[cfg(all(test, not(tlbkit_loom)))]
mod tests {
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    use std::{hint, thread};

    use tlbkit_pagetable::Word as _;

    use super::{Visit, is_alone};
    use crate::cpu_set::SharedSpace;

    /// Both sides of a change in order, as the processor runs them, and in Miri as the memory model lets them run.
    #[test]
    fn a_visitor_that_is_not_seen_finds_the_exchange() {
        const ROUNDS: usize = if cfg!(miri) { 20 } else { 20_000 };
        let rounds: Vec<_> = (0..ROUNDS).map(|_| (SharedSpace::new(), AtomicU64::new(1))).collect();
        let [began, ended] = [AtomicUsize::new(0), AtomicUsize::new(0)];
        // Two threads pass together.
        let meet = |count: &AtomicUsize, round: usize| {
            count.fetch_add(1, Ordering::AcqRel);
            let mut spins = 0_usize;
            while count.load(Ordering::Acquire) < 2 * (round + 1) {
                spins += 1;
                if spins.is_multiple_of(4096) { thread::yield_now() } else { hint::spin_loop() }
            }
        };
        let (mut alone, mut finds) = (Vec::new(), Vec::new());
        thread::scope(|threads| {
            threads.spawn(|| {
                for (round, (cpus, entry)) in rounds.iter().enumerate() {
                    meet(&began, round);
                    let _visit = Visit::begin(cpus, 1);
                    finds.push(entry.load(Ordering::Relaxed) == 0);
                    meet(&ended, round);
                }
            });
            for (round, (cpus, entry)) in rounds.iter().enumerate() {
                meet(&began, round);
                assert_eq!(u64::swap(entry, 0), 1);
                alone.push(is_alone(cpus, 0, true));
                meet(&ended, round);
            }
        });
        assert!(alone.iter().zip(&finds).all(|(alone, finds)| !alone || *finds));
    }
}
