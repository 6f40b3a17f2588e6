//! The proof that a walker's CPU cannot acknowledge a shootdown during the walk.

use core::marker::PhantomData;

/// Proof that the CPU acknowledges no shootdown before the walk that holds this proof is over.
///
/// A node that a walker may still reach is freed only when every CPU that may be in a walk has acknowledged the shootdown of the
/// change that unlinked the node. So the flush is also the grace period: a walk between two acknowledgements never meets a freed
/// node. A kernel pins a CPU in its own way: it masks interrupts, or defers preemption and the shootdown interrupt; a TLB refill
/// handler is pinned by its exception level (on MIPS, EXL masks interrupts). In solo mode any walk is pinned: nothing is freed
/// while it runs.
///
/// The type has no size and costs no instruction.
#[derive(Clone, Copy, Debug)]
pub struct Pinned<'g> {
    // A raw pointer makes the type not `Send`: the proof holds only for this CPU.
    guard: PhantomData<(&'g (), *const ())>,
}

impl<'g> Pinned<'g> {
    /// Asserts that this CPU is pinned for as long as `guard` is borrowed.
    ///
    /// # Safety
    ///
    /// While `guard` is borrowed this CPU neither acknowledges a shootdown nor reclaims a
    /// [`Retired`](crate::Retired) batch of the tables it walks.
    #[inline(always)]
    pub const unsafe fn by<G: ?Sized>(_guard: &'g G) -> Self {
        Self { guard: PhantomData }
    }
}
