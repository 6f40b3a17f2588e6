//! Which CPUs are inside a walk by software, on a machine that [broadcasts](crate::Kernel::BROADCAST) its flushes.
//!
//! A broadcast flush makes two promises of a shootdown's three. Every TLB has dropped the translations, and no walk by hardware reads the
//! old entries: the initiator's instruction and its barrier do that for all CPUs. It does not promise that walks by software have ended. A
//! CPU that replies to an interrupt is outside of them, because they mask interrupts. Without an interrupt this module knows it.
//!
//! ```text
//!   walker      word = epoch | kind    fence    walk the table, use what was found    word = 0, release
//!   initiator   unlink a node, or change an entry    fence    broadcast    load the words, acquire
//!                 a word is 0                      that CPU's walk has ended, or has not begun
//!                 a word has a later epoch         that CPU's walk has begun after the change
//!                 otherwise                        that CPU may be in the node
//! ```
//!
//! **A word that is 0.** By the two fences one of two things holds. The initiator's load sees the word that the walker stored before its
//! fence, or a later one; or each load of the walker after its fence sees what the initiator stored before its own. In the first case the
//! word was 0 again, stored with release after the walk, and the initiator has loaded it with acquire: all accesses of the walk happen
//! before what the initiator does next. In the second case the walk does not find the node.
//!
//! **A word with a later epoch.** The initiator begins an epoch after its change ([`advance`], release), and the walker has loaded that
//! epoch, or a later one, with acquire: the walk finds the change. Its earlier walks happen before the store of its word, which is a
//! release, and that store before what the initiator does next. So a CPU that walks again and again does not hold up the initiator.
//!
//! What happens before the initiator's next step happens before the node is used again. This holds on any CPU that loads the words later
//! than the initiator, and learns of the node by a release and an acquire: a word that it loads is the same one or a later one.
//!
//! A section has one of two kinds. A [walk](SectionKind::Walk) ends with what was found, which may be stale when the caller uses it: only nodes wait
//! for it. A [use](SectionKind::Use) uses what it has found before it ends, as a TLB does: [`for_each`](crate::AddressSpace::for_each), and copies from
//! and to user memory. Every change waits for it, as for a TLB. An interrupt would not shorten the wait: it is taken when the section
//! has ended.
//!
//! This file is also a module of `tests/loom.rs`, which runs both sides in every interleaving.

use tlbkit_shootdown::{SectionKind, SectionWord};

use crate::sync::{AtomicUsize, Ordering, fence};

/// The word of a CPU that is in no section.
pub(crate) const OUTSIDE: usize = SectionWord::OUTSIDE.bits();

/// A section on a CPU, which ends when this is dropped.
pub(crate) struct Section<'c>(Option<&'c AtomicUsize>);

impl<'c> Section<'c> {
    /// A section that nobody asks for.
    pub(crate) const NONE: Self = Self(None);

    /// Begins a section on the CPU with this word. Inside another section it does nothing.
    #[inline(always)]
    pub(crate) fn begin(epoch: &AtomicUsize, word: &'c AtomicUsize, kind: SectionKind) -> Self {
        if word.load(Ordering::Relaxed) != OUTSIDE {
            return Self::NONE;
        }
        word.store(SectionWord::begun(epoch.load(Ordering::Acquire), kind).bits(), Ordering::Release);
        fence(Ordering::SeqCst);
        Self(Some(word))
    }
}

impl Section<'_> {
    /// Tells whether this section has begun, and not another one around it.
    #[inline(always)]
    pub(crate) const fn has_begun(&self) -> bool {
        self.0.is_some()
    }
}

impl Drop for Section<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(word) = self.0 {
            word.store(OUTSIDE, Ordering::Release);
        }
    }
}

/// Begins an epoch, after a change and a fence, and returns the one before.
pub(crate) fn advance(epoch: &AtomicUsize) -> usize {
    epoch.fetch_add(SectionWord::STEP, Ordering::AcqRel)
}

/// Tells whether the CPU with this word may be in a section of this kind that began in the epoch `since` or before; with `None`, in
/// any epoch. A fence is between the change and this call.
#[inline]
pub(crate) fn is_inside(word: &AtomicUsize, kind: SectionKind, since: Option<usize>) -> bool {
    SectionWord::from_bits(word.load(Ordering::Acquire)).may_be_inside(kind, since)
}
