//! Nodes that wait until the walks by software that may be in them have ended. Nobody waits with them: a later broadcast, a switch of
//! address spaces, or [`Mmu::reclaim`](crate::Mmu::reclaim) gives them back.

use tlbkit_pagetable::Carried;

use crate::lock::Lock;
use crate::sync::{AtomicUsize, Ordering};

/// How many batches can wait. With one more, the initiator of a change waits itself.
const BATCHES: usize = 4;
/// The most nodes of a batch that waits.
const NODES: usize = 32;

/// Batches of nodes that are in no table any more, and in no cache of any TLB.
pub(crate) struct Limbo {
    batches: Lock<[Option<Batch>; BATCHES]>,
    /// How many nodes wait, so that a CPU which looks for them need not take the lock.
    nodes: AtomicUsize,
}

struct Batch {
    nodes: Carried<'static>,
    /// The last epoch in which a walk may have found one of the nodes.
    since: usize,
}

impl Limbo {
    pub(crate) const fn new() -> Self {
        Self { batches: Lock::new([const { None }; BATCHES]), nodes: AtomicUsize::new(0) }
    }

    /// Returns how many nodes wait.
    #[inline]
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.load(Ordering::Relaxed)
    }

    /// Takes nodes that walks from the epoch `since` on, or from one before, may be in. If there is no room, it leaves them.
    pub(crate) fn keep(&self, nodes: &mut Option<Carried<'static>>, since: usize) {
        let count = nodes.as_ref().map_or(0, Carried::nodes);
        if count > NODES {
            return;
        }
        self.batches.with(|batches| {
            if let Some(free) = batches.iter_mut().find(|place| place.is_none()) {
                *free = nodes.take().map(|nodes| Batch { nodes, since });
                self.nodes.fetch_add(count, Ordering::Relaxed);
            }
        });
    }

    /// Takes a batch out of which, by `is_left`, all walks have ended that began in its epoch or before.
    pub(crate) fn take(&self, is_left: impl Fn(usize) -> bool) -> Option<Carried<'static>> {
        self.batches.with(|batches| {
            let left = |place: &&mut Option<Batch>| place.as_ref().is_some_and(|batch| is_left(batch.since));
            let Batch { nodes, .. } = batches.iter_mut().find(left)?.take()?;
            self.nodes.fetch_sub(nodes.nodes(), Ordering::Relaxed);
            Some(nodes)
        })
    }
}
