//! The proof that a walker's CPU cannot acknowledge a shootdown during the walk.

use core::marker::PhantomData;

/// Proof that the CPU will acknowledge no shootdown before the walk that is given this is over.
///
/// The nodes that a walker may still reach are freed only when every CPU has acknowledged the shootdown of the change
/// that unlinked them. So one mechanism is the flush and the grace period: a walk between two acknowledgements never
/// meets a freed node. What pins depends on the kernel: interrupts masked, preemption and the shootdown interrupt
/// deferred, or the exception level of a TLB refill handler (on MIPS, EXL masks interrupts). In solo mode any walk is
/// pinned: nothing is freed while it runs.
///
/// It costs no instruction.
#[derive(Clone, Copy, Debug)]
pub struct Pinned<'g> {
    // Not `Send`: another CPU is not pinned by it.
    guard: PhantomData<(&'g (), *const ())>,
}

impl<'g> Pinned<'g> {
    /// Asserts that this CPU is pinned for as long as `guard` is borrowed.
    ///
    /// # Safety
    ///
    /// While `guard` lives this CPU neither acknowledges a shootdown nor reclaims a
    /// [`Retired`](crate::Retired) batch of the tables it walks.
    #[inline(always)]
    pub const unsafe fn by<G: ?Sized>(_guard: &'g G) -> Self {
        Self { guard: PhantomData }
    }
}
